//! The decoders of everything that lies on a device.
//!
//! The first byte says whether checksum and magic number are made right first, as a hostile writer
//! would: else nearly every input ends at the first comparison.

use crate::input::Input;
use crate::store::models;
use coulter_format::checkpoint::BodyView;
use coulter_format::checksum::crc32c;
use coulter_format::record::RecordView;
use coulter_format::superblock::Superblock;
use coulter_format::{BLOCK_SIZE, Block, Pba, StoreId, map_page, root_list, run, segment_table};

const STORE: StoreId = StoreId { uuid: [6; 16], salt: 1 };
/// Where checksums lie in superblocks and record headers.
const CHECKSUM: std::ops::Range<usize> = 12..16;
const MAGIC: std::ops::Range<usize> = 0..8;

fn block(bytes: &[u8]) -> Block {
    let mut block = [0; BLOCK_SIZE];
    let size = bytes.len().min(BLOCK_SIZE);
    block[..size].copy_from_slice(&bytes[..size]);
    block
}

pub(crate) fn seal(block: &mut Block, salt: u32) {
    block[CHECKSUM].copy_from_slice(&salt.to_le_bytes());
    let sum = crc32c(block);
    block[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
}

/// A block from the input. If the first byte says so, with the magic number of `model` and a
/// checksum that is right.
fn hostile(bytes: &[u8], model: &Block, salt: u32) -> Block {
    let mut input = Input::new(bytes);
    let is_sealed = input.byte().is_multiple_of(2);
    let mut block = block(input.rest());
    if is_sealed {
        block[MAGIC].copy_from_slice(&model[MAGIC]);
        seal(&mut block, salt);
    }
    block
}

pub(crate) fn superblock(bytes: &[u8]) {
    let mut block = hostile(bytes, &models().superblock, 0);
    let Ok(first) = Superblock::decode(&block) else { return };
    first.encode(&mut block);
    let again = Superblock::decode(&block);
    assert_eq!(again.as_ref(), Ok(&first), "what was accepted is written and read as it is");
}

pub(crate) fn record(bytes: &[u8]) {
    let pba = Pba(256);
    let block = hostile(bytes, &models().record_header, STORE.salt);
    let Ok(view) = RecordView::decode(&block, &STORE, pba) else { return };
    let payload = u32::from(view.header().payload_size);
    let last = pba.plus(payload);
    let mut carried = 0;
    for entry in view.entries().filter(|entry| entry.kind.has_payload()) {
        assert!(entry.pba > pba && entry.pba <= last, "payload lies behind its header");
        carried += 1;
    }
    assert!(carried <= payload, "no more payload than there is room for");
}

pub(crate) fn root_list(bytes: &[u8]) {
    let block = block(bytes);
    let entries: Vec<_> = root_list::decode(&block).collect();
    assert_eq!(entries.len(), root_list::ROOTS_PER_PAGE);
    let Ok(entries) = entries.into_iter().collect::<Result<Vec<_>, _>>() else { return };
    let mut again = [0; BLOCK_SIZE];
    root_list::encode(entries.iter().copied(), &mut again);
    let read = root_list::decode(&again).map(|entry| entry.expect("it was accepted"));
    assert!(read.eq(entries), "what was accepted is written and read as it is");
}

pub(crate) fn map_page(bytes: &[u8]) {
    let block = block(bytes);
    let pointers: Vec<_> = map_page::decode(&block).collect();
    assert_eq!(pointers.len(), map_page::ENTRIES_PER_PAGE);
    let mut again = [0; BLOCK_SIZE];
    map_page::encode(pointers.into_iter(), &mut again);
    assert!(again == block, "a map page is nothing but its pointers");
}

pub(crate) fn checkpoint(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    if let Some((first, body)) = bytes.split_first_mut()
        && first.is_multiple_of(2)
        && body.len() >= MAGIC.end
    {
        body[MAGIC].copy_from_slice(&models().body[MAGIC]);
    }
    let Ok(view) = BodyView::decode(bytes.get(1..).unwrap_or_default()) else { return };
    // Everything that it lists is walked to its end.
    let reserved = view.reserved().count();
    let roots = view.roots().count();
    let table = view.table().count();
    assert!(reserved + roots + table <= bytes.len(), "a list is no longer than its bytes");
}

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let is_sealed = input.byte().is_multiple_of(2);
    let mut block = block(input.rest());
    if is_sealed {
        block[MAGIC].copy_from_slice(&models().run_block[MAGIC]);
    }
    let Ok(entries) = run::decode(&block) else { return };
    assert!(entries.count() <= BLOCK_SIZE, "entries end with the block");
}

pub(crate) fn segment_table(bytes: &[u8]) {
    let block = block(bytes);
    let entries = segment_table::decode(&block).count();
    assert_eq!(entries, segment_table::SEGMENTS_PER_PAGE);
}
