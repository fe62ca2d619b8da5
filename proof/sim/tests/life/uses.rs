//! What each block in use of a store is for.

use super::{Life, newest_superblock};
use coulter_engine::Config;
use coulter_engine::reclaim::Reclaim;
use coulter_format::checkpoint::BodyView;
use coulter_format::checksum::Kind;
use coulter_format::record::RecordView;
use coulter_format::superblock::Superblock;
use coulter_format::{BLOCK_SIZE, Block, Pba};
use coulter_sim::device::Device;
use coulter_sim::hand::small;
use std::collections::BTreeMap;

/// What a block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    Superblock,
    Body,
    TablePage,
    RootPage,
    RunBlock,
    ReferredHeader,
    LogHeader,
    SecondCopy,
    /// Leaf pages, data, headers that nothing needs, and what is dead.
    Other,
}

pub fn block(device: &Device, pba: u32) -> Block {
    let mut blocks = [[0; BLOCK_SIZE]];
    device.read(Pba(pba), &mut blocks);
    blocks[0]
}

fn body_of(device: &Device, superblock: &Superblock) -> Vec<u8> {
    let place = superblock.checkpoint;
    let blocks = (0..place.blocks()).flat_map(|offset| block(device, place.pba.0 + offset));
    blocks.take(place.size as usize).collect()
}

/// What each block is for that the superblock leads to without the map.
pub fn uses(device: &Device) -> BTreeMap<u32, Use> {
    let superblock = newest_superblock(device);
    let geometry = superblock.geometry;
    let bytes = body_of(device, &superblock);
    let body = BodyView::decode(&bytes).expect("it is sound");
    let mut uses = BTreeMap::new();
    for pba in [Pba(0), geometry.second_superblock, geometry.third_superblock] {
        uses.insert(pba.0, Use::Superblock);
    }
    let place = superblock.checkpoint;
    for offset in 0..place.blocks() {
        uses.insert(place.pba.0 + offset, Use::Body);
        uses.insert(place.copy.0 + offset, Use::SecondCopy);
    }
    uses.extend(body.roots().map(|(_, pointer)| (pointer.pba.0, Use::RootPage)));
    uses.extend(body.table().map(|pointer| (pointer.pba.0, Use::TablePage)));
    for (_, blocks) in body.runs() {
        uses.extend(blocks.iter().map(|pointer| (pointer.pba.0, Use::RunBlock)));
    }
    uses.extend(body.references().map(|reference| (reference.pba.0, Use::ReferredHeader)));
    let copies = body.copies().chain(body.header_parities().map(|pointer| pointer.pba));
    uses.extend(copies.filter(|pba| *pba != Pba::NOWHERE).map(|pba| (pba.0, Use::SecondCopy)));
    for pba in device.written().filter(|pba| *pba >= geometry.first_segment) {
        let content = block(device, pba.0);
        let Ok(view) = RecordView::decode(&content, &superblock.store, pba) else { continue };
        let header = view.header();
        if header.epoch == superblock.epoch && header.sequence > place.sequence {
            // Those of the checkpoint itself are not replayed, but are found all the same.
            let only_metadata =
                view.entries().all(|e| !matches!(e.kind, Kind::Data | Kind::Discard));
            if !only_metadata || !superblock.clean {
                uses.insert(pba.0, Use::LogHeader);
            }
        }
    }
    uses
}

/// Stores of six kinds, each with what it holds, and the block of it that was written last and not flushed.
pub fn aged() -> impl Iterator<Item = (Life, Device, Vec<u8>, u64)> {
    (0..6u64).map(|seed| {
        let reference_blocks = if seed.is_multiple_of(2) { 8 } else { 24 };
        let reclaim = [Reclaim::CopyOut, Reclaim::HoleFill, Reclaim::Threaded][seed as usize % 3];
        let config = Config { reference_blocks, reclaim, ..small() };
        let life = Life { seed, config, map: None, closed: seed < 3, attested: true };
        let (device, expected, _) = life.live_on();
        let spared = if life.closed { u64::MAX } else { expected.len() as u64 - 1 };
        (life, device, expected, spared)
    })
}
