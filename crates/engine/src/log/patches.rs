//! Heads over holes: records go into closed segments, see `holes`.

use super::Log;
use crate::holes::{self, HoleRoom};
use crate::segments::Segments;
use crate::units::{Origin, SegmentIndex, Stream};
use coulter_format::checkpoint::Head;

impl Log {
    /// Segments of records on their way that lie in holes.
    pub(crate) fn segments_in_holes(&self) -> impl Iterator<Item = SegmentIndex> + '_ {
        let records = self.order.iter().map(|record| self.record(*record));
        records.filter(|record| record.places.is_some()).map(|record| record.segment)
    }

    /// HoleRoom in holes for a record of this origin, if it is to go there and there is any.
    pub(super) fn room_in_holes(
        &mut self,
        segments: &mut Segments,
        stream: Stream,
        origin: Origin,
        blocks: u32,
    ) -> Option<(Head, HoleRoom)> {
        if !self.reclaim.fills_holes(origin) || blocks > holes::WRITE_MAX {
            return None;
        }
        let patch = &mut self.patches[stream.index()];
        let found = match *patch {
            Some(head) => segments.hole_room(SegmentIndex(head.segment), head.offset, blocks),
            None => None,
        };
        if let Some(room) = found {
            let head = patch.as_mut().expect("it was found there");
            head.offset = room.offset;
            return Some((*head, room));
        }
        let opened = segments.open_holes(stream, blocks)?;
        self.close_patch(segments, stream);
        let room = segments.hole_room(opened, 0, blocks).expect("it was opened for its room");
        let head = Head { segment: opened.0, offset: room.offset };
        self.patches[stream.index()] = Some(head);
        Some((head, room))
    }

    /// Closes a stream's head over holes.
    pub(super) fn close_patch(&mut self, segments: &mut Segments, stream: Stream) {
        if let Some(head) = self.patches[stream.index()].take() {
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
