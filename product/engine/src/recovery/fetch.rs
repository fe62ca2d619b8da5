//! Fetching the blocks that the checkpoint lists, each from its second copy if the first is no good.

use super::wrong_body::WrongBody;
use super::{Item, JobKind, PAGE, Recovery, damaged};
use crate::api::{Buffers, RECORD_BLOCKS, Target};
use crate::canary::{Canary, sings};
use crate::checkpoint::RUN_KEY_SHIFT;
use crate::error::OpenError;
use crate::shared::Shared;
use crate::units::segment_of;
use coulter_format::checkpoint::{BodyView, Reference};
use coulter_format::checksum::{self, Kind, rebound};
use coulter_format::record::RecordView;
use coulter_format::{Block, BlockPointer, Pba, Reason, Structure};

impl Item {
    /// Where its second copy lies, or the parity from which it is rebuilt, if there is one.
    fn copy(&self, shared: &Shared) -> Option<Pba> {
        let (kind, key) = match *self {
            Item::RootList { key, .. } => (Kind::RootListCopy, key),
            Item::TablePage { key, .. } => (Kind::TableCopy, key),
            Item::RunBlock { key, .. } => (Kind::RunCopy, key),
            Item::Header(referred) => (Kind::HeaderParity, u64::from(referred.group.0)),
        };
        shared.lists.copies.pointer(kind, key).map(|pointer| pointer.pba)
    }

    /// Whether a block is what is meant, wherever it was read from.
    fn verify(&self, shared: &Shared, block: &Block) -> Result<(), OpenError> {
        let (kind, key, pointer, structure) = match *self {
            Item::RootList { key, pointer } => (Kind::RootList, key, pointer, Structure::RootList),
            Item::TablePage { key, pointer } => {
                (Kind::SegmentTable, key, pointer, Structure::SegmentTable)
            }
            Item::RunBlock { key, pointer, .. } => (Kind::Run, key, pointer, Structure::Run),
            Item::Header(referred) => return verify_header(shared, &referred.reference, block),
        };
        match checksum::block(kind, key, block) == pointer.checksum {
            true => Ok(()),
            false => Err(damaged(structure, Reason::Checksum, pointer.pba)),
        }
    }
}

/// Whether a block is the header that is referred to, wherever it was read from.
pub(super) fn verify_header(
    shared: &Shared,
    reference: &Reference,
    block: &Block,
) -> Result<(), OpenError> {
    let pba = reference.pba;
    let view = RecordView::decode(block, &shared.superblock.store, pba)
        .map_err(|corrupt| OpenError::Damaged { corrupt, pba })?;
    match view.checksum() == reference.checksum {
        true => Ok(()),
        false => Err(damaged(Structure::RecordHeader, Reason::Checksum, pba)),
    }
}

impl Recovery {
    /// Takes over where the second copies lie.
    pub(super) fn take_copies(
        &self,
        shared: &mut Shared,
        body: &BodyView<'_>,
    ) -> Result<(), WrongBody> {
        let geometry = shared.superblock.geometry;
        // Those of root pages were taken with the pages.
        let mut places = body.copies().skip(body.roots().count());
        let mut put = |kind: Kind, key, pointer: BlockPointer| {
            // A copy in the place of the first is none.
            let pba = places.next().filter(|pba| *pba != Pba::NOWHERE && *pba != pointer.pba);
            let Some(pba) = pba else { return Ok(()) };
            let copy = kind.of_copy().expect("of all that is listed there are copies");
            let checksum = rebound(pointer.checksum, key, kind, copy);
            segment_of(&geometry, pba).ok_or(WrongBody::Field("copy"))?;
            shared.lists.copies.try_put(copy, key, BlockPointer { pba, checksum })?;
            Ok::<_, WrongBody>(())
        };
        for (key, pointer) in (0..).zip(body.root_lists()) {
            put(Kind::RootList, key, pointer)?;
        }
        for (key, pointer) in (0..).zip(body.table()) {
            put(Kind::SegmentTable, key, pointer)?;
        }
        for (run, blocks) in body.runs() {
            for (index, pointer) in (0..).zip(blocks.iter()) {
                put(Kind::Run, run.number << RUN_KEY_SHIFT | index, pointer)?;
            }
        }
        Ok(())
    }

    pub(super) fn fetch_items(
        &mut self,
        shared: &mut Shared,
        buffers: &mut impl Buffers,
    ) -> Result<bool, OpenError> {
        loop {
            while self.next_item < self.items.len() {
                let Some(buffer) = shared.log.lend() else { break };
                let first = self.next_item;
                let start = self.items[first].pba();
                let contiguous = self.items[first..].iter().take(RECORD_BLOCKS).enumerate();
                let count =
                    contiguous.take_while(|(i, item)| item.pba() == start.plus(*i as u32)).count();
                self.next_item += count;
                assert!(count > 0, "a read is for something");
                let kind = JobKind::Items { first, count };
                self.start_job(shared, kind, start, count as u32, Target::Record(buffer));
            }
            let Some((job, result)) = self.take_job() else { break };
            match (job.kind, job.target) {
                (JobKind::Items { first, count }, Target::Record(buffer)) => {
                    let mut taken = 0;
                    while taken < count && result.is_ok() {
                        let item = self.items[first + taken];
                        let block = &buffers.record(buffer)[taken];
                        if item.verify(shared, block).is_err() {
                            break;
                        }
                        self.take_item(shared, &item, block)?;
                        taken += 1;
                    }
                    shared.log.give_back(buffer);
                    assert!(taken <= count, "no more is taken than was read");
                    self.fetch_one_by_one(shared, first + taken, first + count, false);
                }
                (JobKind::OneByOne { next, end, is_copy }, Target::Page(page)) => {
                    assert_eq!(page, PAGE, "blocks are read one by one into one page");
                    let item = self.items[next];
                    let block = buffers.page(page);
                    let found =
                        result.map_err(OpenError::Device).and_then(|()| item.verify(shared, block));
                    match found {
                        Ok(()) => {
                            self.take_item(shared, &item, block)?;
                            if is_copy {
                                repair(shared, &item, block);
                            }
                            self.fetch_one_by_one(shared, next + 1, end, false);
                        }
                        Err(error) => {
                            // What is wrong with the first is what is told if the second is no better.
                            let has_copy = item.copy(shared).is_some();
                            if is_copy || !has_copy || sings(Canary::CopyUnused) {
                                let error = self.item_error.take().unwrap_or(error);
                                self.give_up_item(shared, next, error)?;
                                self.fetch_one_by_one(shared, next + 1, end, false);
                                continue;
                            }
                            self.item_error = Some(error);
                            match item {
                                Item::Header(referred) => {
                                    self.begin_rebuild(shared, next, end, &referred);
                                }
                                _ => self.fetch_one_by_one(shared, next, end, true),
                            }
                        }
                    }
                }
                (JobKind::Rebuild { next, end, member }, Target::Page(page)) => {
                    let found = result.map_err(OpenError::Device);
                    let block = buffers.page(page);
                    self.rebuild_on(shared, next, end, member, found.map(|()| block))?;
                }
                _ => unreachable!("items are read into records, or one by one"),
            }
        }
        let done = self.next_item == self.items.len() && !self.jobs_out();
        if done {
            self.items.clear();
            self.next_item = 0;
        }
        Ok(done)
    }

    /// Reads the first of these items alone, before all that was asked for later.
    pub(super) fn fetch_one_by_one(
        &mut self,
        shared: &mut Shared,
        next: usize,
        end: usize,
        is_copy: bool,
    ) {
        if next == end {
            return;
        }
        assert!(next < end && end <= self.items.len(), "items are fetched once");
        let item = self.items[next];
        let pba = match is_copy {
            true => item.copy(shared).expect("there is a copy"),
            false => {
                self.item_error = None;
                item.pba()
            }
        };
        assert_ne!(pba, Pba::NOWHERE, "what is read is somewhere");
        let kind = JobKind::OneByOne { next, end, is_copy };
        self.start_job(shared, kind, pba, 1, Target::Page(PAGE));
        self.hurry_newest();
    }
}

/// A block came from its second copy: the next checkpoint writes both anew. A header is
/// written where it lies: see [`super::mend`].
pub(super) fn repair(shared: &mut Shared, item: &Item, block: &Block) {
    shared.statistics.metadata_copies_used += 1;
    match *item {
        Item::RootList { key, .. } => shared.map.root_list_is_to_be_written(key as usize),
        Item::TablePage { key, .. } => shared.lists.copies.repair(Kind::SegmentTable, key, block),
        Item::RunBlock { key, .. } => shared.lists.copies.repair(Kind::Run, key, block),
        Item::Header(_) => {}
    }
}
