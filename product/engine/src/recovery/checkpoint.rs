//! What the checkpoint says: its lists, the segment table, and the runs.

use super::parity::take_parities;
use super::wrong_body::WrongBody;
use super::{Item, JobKind, Recovery, damaged};
use crate::api::{Buffers, RecordRef, Target};
use crate::checkpoint::{RUN_KEY_SHIFT, Run, Runs};
use crate::error::OpenError;
use crate::map::Map;
use crate::memory::{self, NoMemory};
use crate::pacing::reference_count_max;
use crate::references::References;
use crate::segments::State;
use crate::shared::Shared;
use crate::units::{SegmentIndex, Stream, segment_of, segment_start};
use alloc::vec::Vec;
use coulter_format::checkpoint::{BodyView, Reference};
use coulter_format::checksum::{Kind, crc32c};
use coulter_format::record::{Entry, RecordView};
use coulter_format::root_list::ROOTS_PER_PAGE;
use coulter_format::run::{ENTRIES_PER_RUN_BLOCK, RunEntry};
use coulter_format::segment_table::{self, SegmentState};
use coulter_format::{
    Block, BlockPointer, Lba, NUMBER_LIMIT, NUMBER_LIMIT_AT_OPENING, Pba, Reason, Structure, run,
};

/// Takes over where the root pages lie that a page of their list tells of.
fn take_root_list(shared: &mut Shared, block: &Block, pba: Pba) -> Result<(), OpenError> {
    let geometry = shared.superblock.geometry;
    let inside = |pba| segment_of(&geometry, pba).is_some();
    match shared.map.restore_root_list(block, inside)? {
        Ok(()) => Ok(()),
        Err(name) => Err(damaged(Structure::RootList, Reason::Field(name), pba)),
    }
}

impl Recovery {
    pub(super) fn read_body(
        &mut self,
        shared: &mut Shared,
        buffers: &mut impl Buffers,
    ) -> Result<bool, OpenError> {
        let location = shared.superblock.checkpoint;
        if !self.begun {
            self.begun = true;
            let buffer = shared.log.lend().expect("no buffer is in use yet");
            self.start_body_job(shared, location.pba, buffer);
        }
        let Some((job, result)) = self.take_job() else { return Ok(false) };
        let Target::Record(buffer) = job.target else { unreachable!("the body fills a record") };
        let bytes = &buffers.record(buffer).as_flattened()[..location.size as usize];
        let body = result.map_err(OpenError::Device).and_then(|()| {
            if crc32c(bytes) != location.checksum {
                return Err(damaged(Structure::Checkpoint, Reason::Checksum, job.pba));
            }
            BodyView::decode(bytes).map_err(|corrupt| OpenError::Damaged { corrupt, pba: job.pba })
        });
        let body = match body {
            Ok(body) => body,
            // What is wrong with the first is what is told if the second is no better.
            Err(error) => match self.body_error {
                None if location.copy != Pba::NOWHERE => {
                    self.body_error = Some(error);
                    self.start_body_job(shared, location.copy, buffer);
                    return Ok(false);
                }
                first => return Err(first.unwrap_or(error)),
            },
        };
        shared.statistics.body_copies_used += u64::from(self.body_error.is_some());
        self.take_body(shared, &body, job.count).map_err(|wrong| wrong.at(job.pba))?;
        shared.log.give_back(buffer);
        Ok(true)
    }

    fn start_body_job(&mut self, shared: &mut Shared, pba: Pba, buffer: RecordRef) {
        let count = shared.superblock.checkpoint.blocks();
        self.start_job(shared, JobKind::Body, pba, count, Target::Record(buffer));
    }

    /// Takes the lists over, once every address in them is one that can be.
    fn take_body(
        &mut self,
        shared: &mut Shared,
        body: &BodyView<'_>,
        body_blocks: u32,
    ) -> Result<(), WrongBody> {
        let geometry = shared.superblock.geometry;
        let inside = |pointer: &BlockPointer| segment_of(&geometry, pointer.pba).is_some();
        let header = body.header();
        let check = |holds: bool, name| if holds { Ok(()) } else { Err(WrongBody::Field(name)) };
        check(header.sequence == shared.superblock.checkpoint.sequence, "sequence")?;
        self.heads = memory::list(Stream::COUNT)?;
        for head in body.heads() {
            memory::push(&mut self.heads, head)?;
        }
        // A store that was last written when there were fewer streams has no heads for the others.
        check((Stream::COUNT_MIN..=Stream::COUNT).contains(&self.heads.len()), "stream_count")?;
        self.heads.resize(Stream::COUNT, None);
        // No segment is listed twice: two streams would write to one place.
        let mut listed = memory::filled(false, geometry.segment_count as usize)?;
        let mut is_new = |segment: u32| {
            let entry = listed.get_mut(segment as usize);
            entry.is_some_and(|entry| !core::mem::replace(entry, true))
        };
        for head in self.heads.iter().flatten() {
            check(is_new(head.segment) && head.offset <= geometry.segment_blocks, "head")?;
        }
        check(body.reserved().chain(body.reserved_holes()).all(is_new), "reserved")?;
        self.reserved = memory::listed(body.reserved().map(SegmentIndex))?;
        self.holes = memory::listed(body.reserved_holes().map(SegmentIndex))?;
        // Each has a directory: more than the volume can have would be more than was allowed.
        let root_count = shared.map.root_key_limit();
        check(body.roots().all(|(key, p)| key < root_count && inside(&p)), "root")?;
        check(body.roots().count() as u64 <= shared.map.roots_max(), "root_count")?;
        check(body.counts().root_lists == geometry.root_lists, "version")?;
        // A body that lists second copies lists those of the roots first.
        let copies = body.copies().chain(core::iter::repeat(Pba::NOWHERE));
        for ((key, pointer), copy) in body.roots().zip(copies) {
            let is_inside = copy == Pba::NOWHERE || segment_of(&geometry, copy).is_some();
            check(is_inside, "copy")?;
            shared.map.restore_root(key, pointer, copy)?;
        }
        let list_count = (shared.map.roots_max() as usize).div_ceil(ROOTS_PER_PAGE);
        let mut root_lists = memory::list(if geometry.root_lists { list_count } else { 0 })?;
        let fits = body.root_lists().count() <= list_count;
        check(fits && body.root_lists().all(|page| inside(&page)), "root_count")?;
        root_lists.extend(body.root_lists());
        for (index, pointer) in root_lists.iter().enumerate() {
            let item = Item::RootList { key: index as u64, pointer: *pointer };
            memory::push(&mut self.items, item)?;
        }
        let table = memory::listed(body.table())?;
        let pages = (geometry.segment_count as usize).div_ceil(segment_table::SEGMENTS_PER_PAGE);
        check(table.len() == pages && table.iter().all(inside), "table")?;
        for (index, pointer) in table.iter().enumerate() {
            let item = Item::TablePage { key: index as u64, pointer: *pointer };
            memory::push(&mut self.items, item)?;
        }
        let mut runs: Vec<Run> = Vec::new();
        for (header, blocks) in body.runs() {
            let blocks = memory::listed(blocks.iter())?;
            let rising = runs.last().is_none_or(|run| run.number < header.number);
            check(rising && blocks.iter().all(inside), "run")?;
            let run = Run { number: header.number, sweep: header.sweep, blocks };
            memory::push(&mut runs, run)?;
        }
        check(runs.last().is_none_or(|run| run.number < header.next_run), "next_run")?;
        let mut references = body.references();
        check(references.all(|r| segment_of(&geometry, r.pba).is_some()), "reference")?;
        self.take_copies(shared, body)?;
        let referred = take_parities(shared, body)?;
        check(header.next_run < 1 << (63 - RUN_KEY_SHIFT), "next_run")?;
        check(header.sweep.cycle < NUMBER_LIMIT, "sweep_cycle")?;
        check(header.write_clock < NUMBER_LIMIT, "write_clock")?;
        if !shared.config.read_only {
            check(header.next_run < 1 << (62 - RUN_KEY_SHIFT), "next_run")?;
            check(header.sweep.cycle < NUMBER_LIMIT_AT_OPENING, "sweep_cycle")?;
            check(header.write_clock < NUMBER_LIMIT_AT_OPENING, "write_clock")?;
        }
        assert!(shared.lists.runs.is_empty(), "lists are taken over once");
        assert_eq!(table.len(), pages, "a page for so many segments");
        let budget = &shared.superblock.budget;
        let run_blocks = budget.journal_size as usize / ENTRIES_PER_RUN_BLOCK + 2;
        let listed = table.len() + root_lists.capacity() + reference_count_max(budget);
        let of_runs = run_blocks * budget.run_count_limit as usize;
        shared.lists.copies.allow(listed + of_runs)?;
        shared.lists.runs = Runs::new(runs, budget.run_count_limit)?;
        shared.lists.references = References::new(&shared.superblock.budget, referred.into_iter())?;
        shared.lists.table = table;
        shared.lists.root_lists = root_lists;
        shared.lists.next_run = header.next_run;
        shared.lists.body = (shared.superblock.checkpoint.pba, body_blocks);
        shared.map.restore_sweep(header.sweep);
        if shared.superblock.may_have_lost {
            shared.map.note_loss();
        }
        shared.log.write_clock = header.write_clock;
        Ok(())
    }

    pub(super) fn take_item(
        &mut self,
        shared: &mut Shared,
        item: &Item,
        block: &Block,
    ) -> Result<(), OpenError> {
        match *item {
            Item::RootList { pointer, .. } => take_root_list(shared, block, pointer.pba),
            Item::TablePage { key, pointer } => {
                self.take_table_page(shared, key, block, pointer.pba)
            }
            Item::RunBlock { run, pointer, .. } => {
                self.take_run_block(shared, run, block, pointer.pba)
            }
            Item::Header(referred) => self.take_header(shared, &referred.reference, block),
        }
    }

    fn take_run_block(
        &mut self,
        shared: &mut Shared,
        run: usize,
        block: &Block,
        pba: Pba,
    ) -> Result<(), OpenError> {
        let written = shared.lists.runs[run].sweep;
        let position = shared.map.sweep_position();
        let geometry = shared.superblock.geometry;
        let entries = run::decode(block).map_err(|corrupt| OpenError::Damaged { corrupt, pba })?;
        let is_live = |entry: &RunEntry| {
            let leaf = entry.lba.0 / coulter_format::map_page::ENTRIES_PER_PAGE as u64;
            Map::run_is_live(written, position, leaf)
        };
        // Side by side: one after the other, each chain would be cache misses of its own.
        let live = entries.clone().filter(is_live);
        core::hint::black_box(live.fold(0, |sum, entry| sum ^ shared.map.warm_chain(entry.lba)));
        self.run_goes_on(shared, run, entries.clone().next())?;
        for entry in entries {
            self.beyond.last = Some((run, entry.lba.0));
            let somewhere = entry.pointer.is_mapped() && !entry.pointer.is_lost();
            if somewhere && segment_of(&geometry, entry.pointer.pba).is_none() {
                return Err(damaged(Structure::Run, Reason::Field("pba"), pba));
            }
            let has_leaf = match is_live(&entry) {
                true => shared.map.has_leaf_of(entry.lba),
                false => shared.map.can_have_leaf_of(entry.lba),
            };
            if !has_leaf {
                return Err(damaged(Structure::Run, Reason::Field("lba"), pba));
            }
            if entry.count as usize > coulter_format::map_page::ENTRIES_PER_PAGE {
                return Err(damaged(Structure::Run, Reason::Field("count"), pba));
            }
            if !is_live(&entry) {
                continue;
            }
            shared.map.make_leaves(entry.lba, u64::from(entry.count), entry.count == 1)?;
            if !shared.map.restore_update(&entry) {
                return Err(OpenError::MapMemory { needed: shared.map_size() * 2 });
            }
        }
        Ok(())
    }

    /// What a record changed that the checkpoint refers to. Nothing else is counted for its addresses.
    fn take_header(
        &mut self,
        shared: &mut Shared,
        reference: &Reference,
        block: &Block,
    ) -> Result<(), OpenError> {
        self.runs_end(shared)?;
        let pba = reference.pba;
        let wrong = |name| damaged(Structure::RecordHeader, Reason::Field(name), pba);
        let view = RecordView::decode(block, &shared.superblock.store, pba)
            .map_err(|corrupt| OpenError::Damaged { corrupt, pba })?;
        let header = view.header();
        let segment = shared.segments.of(pba);
        let geometry = shared.superblock.geometry;
        let offset = pba.0 - segment_start(&geometry, segment).0;
        let in_use = matches!(shared.segments.segment(segment).state, State::Open | State::Closed);
        if !in_use || header.scattered.is_some() || offset + header.span() > geometry.segment_blocks
        {
            return Err(wrong("pba"));
        }
        let position = shared.map.sweep_position();
        let is_live = |entry: &Entry| {
            let leaf = entry.key / coulter_format::map_page::ENTRIES_PER_PAGE as u64;
            Map::run_is_live(reference.sweep, position, leaf)
        };
        let live = view.entries().filter(is_live);
        core::hint::black_box(
            live.fold(0, |sum, entry| sum ^ shared.map.warm_chain(Lba(entry.key))),
        );
        for entry in view.entries() {
            if entry.kind != Kind::Data {
                return Err(wrong("kind"));
            }
            let has_leaf = match is_live(&entry) {
                true => shared.map.has_leaf_of(Lba(entry.key)),
                false => shared.map.can_have_leaf_of(Lba(entry.key)),
            };
            if !has_leaf {
                return Err(wrong("key"));
            }
            let pointer = BlockPointer { pba: entry.pba, checksum: entry.word.checksum };
            let update = RunEntry { lba: Lba(entry.key), count: 1, pointer, released: true };
            if !is_live(&entry) {
                continue;
            }
            shared.map.make_leaves(update.lba, 1, true)?;
            if !shared.map.restore_update(&update) {
                return Err(OpenError::MapMemory { needed: shared.map_size() * 2 });
            }
        }
        shared.statistics.references_followed += 1;
        Ok(())
    }

    fn take_table_page(
        &mut self,
        shared: &mut Shared,
        key: u64,
        block: &Block,
        pba: Pba,
    ) -> Result<(), OpenError> {
        let geometry = shared.superblock.geometry;
        let first = key as u32 * segment_table::SEGMENTS_PER_PAGE as u32;
        let entries = segment_table::decode(block).enumerate();
        for (index, entry) in entries.take((geometry.segment_count - first) as usize) {
            let entry = entry.map_err(|corrupt| OpenError::Damaged { corrupt, pba })?;
            let segment = SegmentIndex(first + index as u32);
            let state = match entry.state {
                SegmentState::Free => State::Free,
                SegmentState::Open => State::Open,
                SegmentState::Closed | SegmentState::Patched => State::Closed,
            };
            let possible = entry.valid <= geometry.segment_blocks
                && (entry.valid == 0 || state != State::Free);
            if !possible {
                return Err(damaged(Structure::SegmentTable, Reason::Field("valid"), pba));
            }
            let mean_time = entry.clock.saturating_sub(entry.mean_age.blocks());
            shared.segments.restore(
                segment,
                entry.valid,
                state,
                entry.stream,
                entry.clock,
                mean_time,
            );
            if entry.state == SegmentState::Patched {
                shared.segments.restore_patched(segment);
            }
        }
        Ok(())
    }

    /// Counts the blocks that the checkpoint lists: its table does not.
    pub(super) fn count_listed(&mut self, shared: &mut Shared) -> Result<(), OpenError> {
        if !shared.segments.counts() {
            // It would find them in a segment that nobody has opened, if the header of its first record is missing.
            return Ok(());
        }
        let listed = memory::listed(shared.lists.listed(&shared.map))?;
        for pba in listed {
            let segment = shared.segments.of(pba);
            let state = shared.segments.segment(segment).state;
            let room =
                shared.segments.segment(segment).valid < shared.superblock.geometry.segment_blocks;
            if !matches!(state, State::Open | State::Closed) || !room {
                return Err(damaged(Structure::Checkpoint, Reason::Field("pba"), pba));
            }
            shared.segments.retain_listed(pba);
        }
        Ok(())
    }

    /// Lists the blocks of the runs, oldest first, each behind the headers of the records that were
    /// referred to before it.
    pub(super) fn list_runs(&mut self, shared: &mut Shared) -> Result<(), NoMemory> {
        let references = &shared.lists.references;
        let mut headers = references.first(references.count()).iter().peekable();
        for (run, Run { number, blocks, .. }) in shared.lists.runs.iter().enumerate() {
            while let Some(next) = headers.next_if(|next| next.reference.run <= *number) {
                memory::push(&mut self.items, Item::Header(*next))?;
            }
            for (index, pointer) in blocks.iter().enumerate() {
                let key = number << RUN_KEY_SHIFT | index as u64;
                memory::push(&mut self.items, Item::RunBlock { key, pointer: *pointer, run })?;
            }
        }
        for referred in headers {
            memory::push(&mut self.items, Item::Header(*referred))?;
        }
        Ok(())
    }
}
