//! Which of its two forms a header's body takes: extents with a word for each block, or packed entries.
//!
//! A record is filled extent by extent, and only at its end is it known what it holds. So both forms are
//! counted all the while.

use super::{
    BODY_SIZE, EXTENT_SIZE, Extent, PACKED_KEY_LIMIT, PACKED_RELOCATED_SIZE, PACKED_SIZE,
    PAYLOAD_BLOCKS_MAX, SCATTERED_BODY_SIZE, SHORT_BLOCKS_MAX,
};
use crate::checksum::Kind;

/// How the body of a header is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Extents,
    Packed { relocated: bool },
}

impl Form {
    /// Bytes of what is counted by `extent_count`.
    pub(super) const fn item_size(self) -> usize {
        match self {
            Form::Extents => EXTENT_SIZE,
            Form::Packed { relocated: false } => PACKED_SIZE,
            Form::Packed { relocated: true } => PACKED_RELOCATED_SIZE,
        }
    }
}

/// What a header has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderRoom {
    /// Extents, beside the places of a scattered record.
    Scattered,
    /// Extents.
    Short,
    /// Extents, or packed entries.
    Long,
}

/// Bytes that extents take in a header, counted in both forms while they are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    extents: usize,
    pub(super) blocks: usize,
    packs: Packs,
}

/// Whether what has been added can be packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Packs {
    /// There is nothing yet.
    #[default]
    Empty,
    All {
        relocated: bool,
    },
    Never,
}

impl Cost {
    /// With one extent more.
    #[inline]
    pub const fn with(self, extent: &Extent) -> Cost {
        let joined = self.with_joined(extent);
        Cost { extents: joined.extents + EXTENT_SIZE, ..joined }
    }

    /// With one more that the last extent takes up.
    #[inline]
    pub const fn with_joined(self, extent: &Extent) -> Cost {
        let relocated = extent.relocated;
        let packs = match self.packs {
            _ if !can_be_packed(extent) => Packs::Never,
            Packs::Empty => Packs::All { relocated },
            Packs::All { relocated: before } if before == relocated => self.packs,
            Packs::All { .. } | Packs::Never => Packs::Never,
        };
        Cost {
            extents: self.extents + extent.block_cost() * extent.count as usize,
            blocks: self.blocks + extent.payload_blocks(),
            packs,
        }
    }

    /// Whether a header with this room holds it.
    #[inline]
    pub const fn fits(&self, room: HeaderRoom) -> bool {
        self.form(room).is_some()
    }

    /// The form in which it is written. Extents come first: they are what every reader knows.
    #[inline]
    pub(super) const fn form(&self, room: HeaderRoom) -> Option<Form> {
        let (size, blocks_max) = match room {
            HeaderRoom::Scattered => (SCATTERED_BODY_SIZE, SHORT_BLOCKS_MAX),
            HeaderRoom::Short => (BODY_SIZE, SHORT_BLOCKS_MAX),
            HeaderRoom::Long => (BODY_SIZE, PAYLOAD_BLOCKS_MAX),
        };
        if self.blocks > blocks_max {
            return None;
        }
        if self.extents <= size {
            return Some(Form::Extents);
        }
        match (room, self.packs) {
            (HeaderRoom::Long, Packs::All { relocated }) => {
                let form = Form::Packed { relocated };
                if self.blocks * form.item_size() <= size { Some(form) } else { None }
            }
            _ => None,
        }
    }
}

/// Whether entries of a packed record can say what the extent does.
#[inline]
const fn can_be_packed(extent: &Extent) -> bool {
    let end = extent.key.saturating_add(extent.count as u64);
    matches!(extent.kind, Kind::Data) && end <= PACKED_KEY_LIMIT
}
