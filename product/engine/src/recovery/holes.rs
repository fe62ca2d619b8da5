//! Records in holes: where recovery looks for them, and how.

use super::{Recovery, Walk};
use crate::canary::{Canary, sings};
use crate::error::OpenError;
use crate::holes::Headers;
use crate::memory::{self, NoMemory};
use crate::segments::State;
use crate::shared::Shared;
use crate::units::{Sequence, Stream, segment_start};
use coulter_format::Block;
use coulter_format::record::RecordView;

impl Recovery {
    /// Segments whose holes the checkpoint reserves are searched from end to end.
    pub(super) fn begin_searches(
        &mut self,
        shared: &Shared,
        latest: Sequence,
    ) -> Result<(), OpenError> {
        let holes = if sings(Canary::HolesForgotten) { &[][..] } else { &self.holes };
        for segment in holes {
            let entry = shared.segments.segment(*segment);
            if entry.state != State::Closed || !entry.headers().lie_anywhere() {
                return Err(self.wrong_list(shared, "reserved"));
            }
            let walk = Walk { headers: Headers::Anywhere, ..Walk::new(*segment, latest) };
            memory::push(&mut self.walks, walk)?;
        }
        Ok(())
    }

    /// Collects the scattered records of a stretch of a patched segment, wherever their headers are. The
    /// next stretch begins with the first that is not wholly in this one: a span is no longer than a
    /// stretch.
    pub(super) fn search_on(
        &mut self,
        shared: &mut Shared,
        index: usize,
        stretch: &[Block],
    ) -> Result<(), NoMemory> {
        let count = stretch.len() as u32;
        let size = shared.superblock.geometry.segment_blocks;
        let (epoch, cut) = (shared.superblock.epoch, shared.superblock.checkpoint.sequence);
        let walk = self.walks[index];
        let start = segment_start(&shared.superblock.geometry, walk.segment).plus(walk.offset);
        let mut at = 0;
        while at < count {
            let block = &stretch[at as usize];
            let view = RecordView::decode(block, &shared.superblock.store, start.plus(at));
            let Ok(view) = view else {
                at += 1;
                continue;
            };
            let header = view.header();
            self.meet(&header);
            self.hear(&view, epoch)?;
            let end = at + header.span();
            let ours = header.epoch == epoch
                && usize::from(header.stream) < Stream::COUNT
                && header.scattered.is_some();
            if ours && header.sequence > cut && walk.offset + end <= size {
                if end > count {
                    break;
                }
                self.take_record(&view, &walk, end, &stretch[at as usize..])?;
            }
            at += 1;
        }
        let offset = walk.offset + at;
        self.walks[index] = Walk { offset, ..walk };
        if offset < size {
            self.walks_waiting.push_back(index);
        }
        Ok(())
    }
}
