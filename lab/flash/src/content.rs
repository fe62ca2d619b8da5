//! What pages hold, as far as the emulation cares: nothing, a tag for each host block, or bytes.

/// How much of the content is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Nothing: for measuring only.
    Nothing,
    /// Eight bytes for each host block, so that reads can be verified cheaply.
    Tags,
    /// Every byte.
    Bytes,
}

impl Keep {
    /// Bytes that are kept of a host block.
    #[inline]
    pub const fn block_bytes(self) -> usize {
        match self {
            Keep::Nothing => 0,
            Keep::Tags => 8,
            Keep::Bytes => crate::units::BLOCK_SIZE as usize,
        }
    }
}

/// The content of all physical pages.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Nothing,
    /// One string of bytes, `page_bytes` for each page.
    Flat {
        page_bytes: usize,
        bytes: Vec<u8>,
    },
    /// Each page on its own, present while it is programmed.
    Pages {
        zeros: Box<[u8]>,
        pages: Vec<Option<Box<[u8]>>>,
    },
}

impl Content {
    pub(crate) fn new(keep: Keep, pages: u32, blocks_per_page: u32) -> Content {
        let page_bytes = keep.block_bytes() * blocks_per_page as usize;
        match keep {
            Keep::Nothing => Content::Nothing,
            Keep::Tags => Content::Flat { page_bytes, bytes: vec![0; page_bytes * pages as usize] },
            Keep::Bytes => Content::Pages {
                zeros: vec![0; page_bytes].into_boxed_slice(),
                pages: vec![None; pages as usize],
            },
        }
    }

    /// What is kept of a page; zeros if it is erased.
    pub(crate) fn of(&self, page: usize) -> &[u8] {
        match self {
            Content::Nothing => &[],
            Content::Flat { page_bytes, bytes } => &bytes[page * page_bytes..][..*page_bytes],
            Content::Pages { zeros, pages } => pages[page].as_deref().unwrap_or(zeros),
        }
    }

    pub(crate) fn store(&mut self, page: usize, new: &[u8]) {
        match self {
            Content::Nothing => {}
            Content::Flat { page_bytes, bytes } => {
                bytes[page * *page_bytes..][..*page_bytes].copy_from_slice(new);
            }
            Content::Pages { zeros, pages } => {
                assert_eq!(new.len(), zeros.len(), "a page is stored whole");
                pages[page] = Some(new.into());
            }
        }
    }

    pub(crate) fn copy(&mut self, from: usize, to: usize) {
        match self {
            Content::Nothing => {}
            Content::Flat { page_bytes, bytes } => {
                let start = from * *page_bytes;
                bytes.copy_within(start..start + *page_bytes, to * *page_bytes);
            }
            Content::Pages { pages, .. } => pages[to] = pages[from].clone(),
        }
    }

    /// The pages are erased: what a careless reader would find there are zeros.
    pub(crate) fn clear(&mut self, pages_from: usize, count: usize) {
        match self {
            Content::Nothing => {}
            Content::Flat { page_bytes, bytes } => {
                bytes[pages_from * *page_bytes..][..count * *page_bytes].fill(0);
            }
            Content::Pages { pages, .. } => pages[pages_from..pages_from + count].fill(None),
        }
    }
}
