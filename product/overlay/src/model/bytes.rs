//! The bytes of a file, in blocks that its versions share.

use coulter_format::{BLOCK_SIZE, Block};
use std::rc::Rc;

/// See the module's documentation. Behind the end its last block has zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bytes {
    size: usize,
    blocks: Vec<Rc<Block>>,
}

impl Bytes {
    pub(super) fn new(content: &[u8]) -> Bytes {
        let mut bytes = Bytes::default();
        bytes.write(0, content);
        bytes
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// A block, which is zeros where there is none.
    pub(super) fn block(&self, index: u64) -> Rc<Block> {
        let block = self.blocks.get(index as usize).cloned();
        block.unwrap_or_else(|| Rc::new([0; BLOCK_SIZE]))
    }

    /// Puts another block in the place of one.
    pub(super) fn set_block(&mut self, index: u64, block: &Rc<Block>) {
        self.blocks[index as usize] = block.clone();
        self.clear_behind_end();
    }

    pub(super) fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let count = self.size.saturating_sub(offset).min(into.len());
        for (at, byte) in (offset..offset + count).zip(into.iter_mut()) {
            *byte = self.blocks[at / BLOCK_SIZE][at % BLOCK_SIZE];
        }
        count
    }

    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.resize(self.size.max(offset + bytes.len()));
        let mut at = 0;
        while at < bytes.len() {
            let (index, start) = ((offset + at) / BLOCK_SIZE, (offset + at) % BLOCK_SIZE);
            let count = (bytes.len() - at).min(BLOCK_SIZE - start);
            let block = Rc::make_mut(&mut self.blocks[index]);
            block[start..start + count].copy_from_slice(&bytes[at..at + count]);
            at += count;
        }
    }

    pub(super) fn resize(&mut self, size: usize) {
        self.size = size;
        self.blocks.resize_with(size.div_ceil(BLOCK_SIZE), || Rc::new([0; BLOCK_SIZE]));
        self.clear_behind_end();
    }

    fn clear_behind_end(&mut self) {
        let start = self.size % BLOCK_SIZE;
        if let Some(last) = self.blocks.last_mut().filter(|_| start > 0)
            && last[start..].iter().any(|byte| *byte != 0)
        {
            Rc::make_mut(last)[start..].fill(0);
        }
    }
}

#[test]
fn bytes_behind_an_end_are_zeros_when_it_moves() {
    let mut bytes = Bytes::new(&[7; BLOCK_SIZE + 10]);
    let whole = bytes.clone();
    bytes.resize(100);
    bytes.resize(2 * BLOCK_SIZE);
    let mut found = [1; BLOCK_SIZE + 10];
    assert_eq!(bytes.read(0, &mut found), BLOCK_SIZE + 10);
    assert!(found[..100] == [7; 100] && found[100..].iter().all(|byte| *byte == 0));
    let mut rest = [1; 20];
    assert_eq!(whole.read(BLOCK_SIZE, &mut rest), 10, "it is as long as it was");
    assert_eq!(rest[..11], [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 1], "a version shares no change");
}
