//! The cut: one instant of which everything is in the checkpoint, and nothing else.

use super::{Checkpointer, Cut, RUN_KEY_SHIFT};
use crate::canary::{Canary, sings};
use crate::log::Log;
use crate::map::journal::{EMPTY_BLOCK, RunBuilder};
use crate::pacing::Updates;
use crate::segments::Segments;
use crate::shared::Shared;
use crate::units::Origin;
use coulter_format::Pba;
use coulter_format::checkpoint::SweepPosition;
use coulter_format::checksum::{self, Kind};
use coulter_format::segment_table::{self, CoarseAge, SegmentEntry};

impl Checkpointer {
    /// Takes the images. Everything applied is in them, nothing else.
    pub(super) fn cut(&mut self, shared: &mut Shared) {
        let sequence = shared.log.applied;
        assert!(shared.log.is_quiet(Origin::Cleaning), "no relocation is on its way at a cut");
        assert!(shared.log.is_quiet(Origin::Metadata), "and no leaf page");
        let position = shared.map.sweep_position();
        let (segments, gone) = (&mut shared.segments, &mut self.gone);
        shared.lists.runs.remove_dead(position, |run| {
            let written = run.blocks.iter().filter(|pointer| pointer.is_mapped());
            written.for_each(|pointer| segments.release_listed(pointer.pba, sequence));
            let indices = 0..run.blocks.len() as u64;
            gone.extend(indices.map(|index| run.number << RUN_KEY_SHIFT | index));
        });
        self.release_copies(shared, Kind::RunCopy);
        let updates = self.cut_run(shared, position);
        self.cut_repairs(shared);
        self.cut_parities(shared);
        self.cut_roots(shared, sequence);
        self.next_list = 0;
        if shared.promises.blocks == 0 {
            shared.map.drop_empty_roots();
        }
        self.forgive_lost_references(shared);
        shared.log.close_unwanted(&mut shared.segments, shared.placer.streams());
        let queue_length = self.queue_length(shared);
        shared.segments.fill_queue(queue_length, sequence);
        if sings(Canary::SegmentReusedEarly) {
            shared.segments.queue_is_durable();
        }
        shared.cut_holes();
        // Only now is it certain which segments this checkpoint calls free.
        self.drop_dead_references(shared, position);
        let heads = shared.log.cut_heads(&shared.segments);
        let mut reserved = core::mem::take(&mut self.cut.reserved);
        reserved.clear();
        let queued = shared.segments.queue();
        reserved.extend(shared.log.opened().chain(queued).map(|segment| segment.0));
        self.cut_table(shared);
        let mut holes = core::mem::take(&mut self.cut.holes);
        shared.holes_to_be_searched(&mut holes);
        let patched = shared.segments.patched_count() > 0;
        let clean = shared.requests.shutdown.is_some() && shared.log.order.is_empty();
        let write_clock = shared.log.write_clock;
        let sweep = position;
        let references = shared.lists.references.count();
        self.cut = Cut {
            sequence,
            write_clock,
            sweep,
            heads,
            reserved,
            holes,
            references,
            patched,
            may_have_lost: shared.map.may_have_lost(),
            clean,
        };
        shared.signals.checkpoint = false;
        self.new_location = None;
        shared.signals.sweep_quota = shared.map.sweep_quota(updates);
    }

    /// Takes the image of the journal's run; returns how many updates there were.
    fn cut_run(&mut self, shared: &mut Shared, position: SweepPosition) -> Updates {
        self.images.clear();
        self.image_keys.clear();
        self.next_image = 0;
        let mut run = RunBuilder::new(&mut self.images);
        let referred = shared.map.journal_length() - shared.map.run_length();
        shared.map.cut_run(&mut run);
        let updates = Updates { in_run: run.finish(), referred };
        let (number, block_count) = (shared.lists.next_run, self.images.len());
        assert!(block_count < 1 << RUN_KEY_SHIFT, "a key numbers every block of a run");
        if block_count > 0 {
            shared.lists.runs.add(number, position, block_count);
            shared.lists.next_run += 1;
        }
        let keys = 0..block_count as u64;
        self.image_keys.extend(keys.map(|index| (Kind::Run, number << RUN_KEY_SHIFT | index)));
        updates
    }

    /// Groups of headers end here: what is referred to from now on is of the next checkpoint.
    fn cut_parities(&mut self, shared: &mut Shared) {
        while let Some((first, parity)) = shared.header_parities.pop() {
            self.images.extend_from_slice(core::slice::from_ref(parity));
            self.image_keys.push((Kind::HeaderParity, first.0.into()));
        }
        assert!(shared.header_parities.have_room(), "a cut takes all parity");
    }

    /// Blocks of which one copy was damaged are written anew, both of them.
    fn cut_repairs(&mut self, shared: &mut Shared) {
        let repairs = shared.lists.copies.take_repairs();
        for (kind, key, content) in &repairs {
            // A run may have died since.
            if shared.lists.pointer(*kind, *key).is_some() {
                self.images.extend_from_slice(core::slice::from_ref(content));
                self.image_keys.push((*kind, *key));
            }
        }
    }

    /// See [`crate::segments::Segments::forgive`]: only if map pages were damaged once is there anything to forgive.
    fn forgive_lost_references(&mut self, shared: &mut Shared) {
        if shared.segments.gone_through_count() == 0 {
            return;
        }
        let now = shared.log.now();
        shared.statistics.references_lost += shared.segments.forgive(now);
    }

    /// Segments that should wait in the queue: enough for twice the journal.
    fn queue_length(&self, shared: &Shared) -> usize {
        let size = u64::from(shared.superblock.geometry.segment_blocks);
        let journal = u64::from(shared.superblock.budget.journal_size);
        let length = (4 * journal).div_ceil(size) as usize + shared.pacing.kept_by_user() + 4;
        length.min(crate::create::RESERVED_MAX)
    }

    /// Forgets references of which nothing counts any more, and the parity of their headers. A segment may be
    /// emptied by that, in which another header lies.
    fn drop_dead_references(&mut self, shared: &mut Shared, position: SweepPosition) {
        loop {
            let gone = &mut self.gone;
            let references = &mut shared.lists.references;
            references.drop_dead(&shared.segments, position, |group| gone.push(group.0.into()));
            if gone.is_empty() {
                return;
            }
            self.release_copies(shared, Kind::HeaderParity);
        }
    }

    /// What the keys in `gone` were copies of is listed no more. None is left there.
    fn release_copies(&mut self, shared: &mut Shared, kind: Kind) {
        let now = shared.log.now();
        shared.lists.release_copies(&mut shared.segments, kind, &mut self.gone, now);
    }

    /// Images of the table pages that changed.
    fn cut_table(&mut self, shared: &mut Shared) {
        let (table, segments, log) = (&shared.lists.table, &mut shared.segments, &shared.log);
        segments.take_changed_pages(|segments, key| {
            self.images.extend_from_slice(&EMPTY_BLOCK);
            let page = self.images.last_mut().expect("it was just added");
            segment_table::encode(entries(segments, key, log), page);
            let checksum = checksum::block(Kind::SegmentTable, key as u64, page);
            if table[key].checksum != checksum || table[key].pba == Pba::NOWHERE {
                self.image_keys.push((Kind::SegmentTable, key as u64));
            } else {
                self.images.pop();
            }
        });
    }
}

/// What a page of the segment table says at a cut. Segments that the log has opened since have records behind
/// it alone.
fn entries(segments: &Segments, key: usize, log: &Log) -> impl Iterator<Item = SegmentEntry> {
    segments.of_table_page(key).map(|(index, segment)| {
        let state = segment.state_in_table(log.opened().any(|opened| opened == index));
        assert!(segment.listed <= segment.valid, "what is listed is counted");
        let valid = segment.valid - segment.listed;
        let mean_age = CoarseAge::from_blocks(segment.mean_age());
        SegmentEntry { valid, state, stream: segment.stream, clock: segment.clock, mean_age }
    })
}
