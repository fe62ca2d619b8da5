//! Heads over holes: records go into closed segments, see `holes`.
//!
//! # Invariants
//! - A stream has one head over holes at most, in a segment that is being patched.

use super::{Log, Place};
use crate::config::Reclaim;
use crate::holes;
use crate::segments::Segments;
use crate::units::{Origin, SegmentIndex, Stream};
use coulter_format::checkpoint::Head;

/// The heads.
pub(super) struct Patches {
    heads: [Option<Head>; Stream::COUNT],
    reclaim: Reclaim,
}

impl Patches {
    pub(super) fn new(reclaim: Reclaim) -> Patches {
        Patches { heads: [None; Stream::COUNT], reclaim }
    }

    /// The stream's, if it has one.
    #[cfg(feature = "verify")]
    pub(super) fn head(&self, stream: Stream) -> Option<Head> {
        self.heads[stream.index()]
    }
}

impl Log {
    /// Changes whose records go into holes, from the next one on.
    pub(crate) fn set_reclaim(&mut self, reclaim: Reclaim) {
        self.patches.reclaim = reclaim;
    }

    /// Whether records of this origin go into holes, if there are any.
    pub(super) fn fills_holes(&self, origin: Origin) -> bool {
        self.patches.reclaim.fills_holes(origin)
    }

    /// Segments of records on their way that lie in holes.
    pub(crate) fn segments_in_holes(&self) -> impl Iterator<Item = SegmentIndex> + '_ {
        let records = self.order.iter().map(|record| self.record(*record));
        records.filter(|record| !record.place.is_appended()).map(|record| record.segment)
    }

    /// Holes for a record of this origin, if it is to go there and there are any.
    ///
    /// Metadata of what goes into holes takes empty segments too. So the host waits for the cleaner
    /// where it would have to wait for a segment: else nothing would be left to win one with.
    pub(super) fn place_in_holes(
        &mut self,
        segments: &mut Segments,
        stream: Stream,
        origin: Origin,
        blocks: u32,
        keep: usize,
    ) -> Option<(Head, Place)> {
        let must_wait = origin == Origin::User && segments.usable_count() <= keep;
        let is_wanted = self.patches.reclaim.fills_holes(origin) && !must_wait;
        if !is_wanted || blocks > holes::WRITE_MAX {
            return None;
        }
        if let Some(head) = &mut self.patches.heads[stream.index()]
            && let Some(room) = segments.hole_room(SegmentIndex(head.segment), head.offset, blocks)
        {
            assert!(room.offset >= head.offset, "a head over holes goes forwards");
            head.offset = room.offset;
            return Some((*head, Place::Holes(room.places)));
        }
        let opened = segments.open_holes(stream, blocks)?;
        self.close_patch(segments, stream);
        let room = segments.hole_room(opened, 0, blocks).expect("it was opened for its room");
        let head = Head { segment: opened.0, offset: room.offset };
        self.patches.heads[stream.index()] = Some(head);
        Some((head, Place::Holes(room.places)))
    }

    /// A record of so many blocks was sealed at a stream's head over holes.
    pub(super) fn move_patch(
        &mut self,
        segments: &mut Segments,
        stream: Stream,
        segment: SegmentIndex,
        span: u32,
    ) {
        let head = self.patches.heads[stream.index()].as_mut().expect("the head is open");
        assert_eq!(head.segment, segment.0, "a record is filled at the head");
        head.offset = segments.behind(segment, head.offset + span);
        let offset = head.offset;
        assert!(offset <= segments.geometry().segment_blocks, "a head stays in its segment");
        if segments.hole_room(segment, offset, 0).is_none() {
            self.close_patch(segments, stream);
        }
    }

    /// Closes a stream's head over holes.
    fn close_patch(&mut self, segments: &mut Segments, stream: Stream) {
        if let Some(head) = self.patches.heads[stream.index()].take() {
            segments.close_holes(SegmentIndex(head.segment), self.write_clock, self.now());
        }
    }

    /// Closes the heads over holes of streams that are not wanted, save those being filled.
    pub(crate) fn close_patches(&mut self, segments: &mut Segments, wanted: &[Stream]) {
        for stream in Stream::ALL {
            if !wanted.contains(&stream) && self.filling(stream).is_none() {
                self.close_patch(segments, stream);
            }
        }
    }
}
