//! The streams' heads: where each goes on, and what a checkpoint says of that.

use super::Log;
use crate::segments::Segments;
use crate::units::{SegmentIndex, Sequence, Stream, segment_start};
use coulter_format::checkpoint::Head;

impl Log {
    /// Whether the stream's head takes a record with so many blocks.
    pub(crate) fn head_takes(&self, stream: Stream, segment_blocks: u32, blocks: u32) -> bool {
        self.head(stream).is_some_and(|head| segment_blocks - head.offset > blocks)
    }

    pub(super) fn head_with_room(
        &mut self,
        segments: &mut Segments,
        stream: Stream,
        blocks: u32,
        keep: usize,
    ) -> Option<Head> {
        let size = segments.geometry().segment_blocks;
        assert!(blocks < size, "a record lies inside one segment");
        if let Some(head) = self.heads[stream.index()]
            && size - head.offset > blocks
        {
            return Some(head);
        }
        // Opened before the old head is closed: if there is no segment, nothing changes.
        let segment = segments.open(stream, keep, self.write_clock)?;
        self.close_head(segments, stream);
        self.opened.push_back((segment, None));
        let head = Head { segment: segment.0, offset: 0 };
        self.heads[stream.index()] = Some(head);
        Some(head)
    }

    /// Where recovery must begin in each stream after a cut at `applied`. From now on [`Log::opened`] are the
    /// segments that have only records behind the cut.
    pub(crate) fn cut_heads(&mut self, segments: &Segments) -> [Option<Head>; Stream::COUNT] {
        let applied = self.applied;
        self.opened.retain(|(_, first)| first.is_none_or(|first| first > applied));
        let heads = Stream::ALL.map(|stream| {
            let records = self.order.iter().map(|record| self.record(*record));
            let at_head = records.filter(|r| r.stream == stream && r.place.is_appended());
            let first = at_head.min_by_key(|r| r.sequence);
            let head = match first {
                Some(record) => {
                    let start = segment_start(segments.geometry(), record.segment);
                    let offset = record.header_pba.0 - start.0;
                    Head { segment: record.segment.0, offset }
                }
                None => self.heads[stream.index()]?,
            };
            self.opened().all(|opened| opened.0 != head.segment).then_some(head)
        });
        self.blocks_since_cut = 0;
        self.cut = applied;
        assert!(self.durable <= self.applied, "what is durable has taken effect");
        heads
    }

    /// Segments opened since the latest cut; at a cut, those that have only records behind it.
    pub(crate) fn opened(&self) -> impl Iterator<Item = SegmentIndex> + '_ {
        self.opened.iter().map(|(segment, _)| *segment)
    }

    /// A record of so many blocks was sealed at a stream's head.
    pub(super) fn move_head(
        &mut self,
        segments: &mut Segments,
        stream: Stream,
        segment: SegmentIndex,
        span: u32,
        sequence: Sequence,
    ) {
        let size = segments.geometry().segment_blocks;
        let head = self.heads[stream.index()].as_mut().expect("the head is open");
        assert_eq!(head.segment, segment.0, "a record is filled at the head");
        head.offset += span;
        assert!(head.offset <= size, "a head stays in its segment");
        let is_full = head.offset + 1 >= size;
        for (opened, first) in &mut self.opened {
            if *opened == segment && first.is_none() {
                *first = Some(sequence);
            }
        }
        // Closed at once: what is open cannot be cleaned, and the stream may not go on for long.
        if is_full {
            self.close_head(segments, stream);
        }
    }

    /// Closes a stream's head; the stream goes on in another segment.
    pub(super) fn close_head(&mut self, segments: &mut Segments, stream: Stream) {
        if let Some(head) = self.heads[stream.index()].take() {
            let segment = SegmentIndex(head.segment);
            // Of one that stayed empty recovery need not know. It is free, and will be queued again; a
            // checkpoint must not list it twice.
            self.opened.retain(|(opened, first)| *opened != segment || first.is_some());
            segments.close(segment, self.write_clock, self.now());
        }
    }

    /// Closes the heads of streams that are no longer wanted, save those being filled.
    pub(crate) fn close_unwanted(&mut self, segments: &mut Segments, wanted: &[Stream]) {
        for stream in Stream::ALL {
            if !wanted.contains(&stream) && self.filling(stream).is_none() {
                self.close_head(segments, stream);
            }
        }
    }

    pub(crate) fn head(&self, stream: Stream) -> Option<Head> {
        self.heads[stream.index()]
    }

    /// Sets a head, at recovery.
    pub(crate) fn restore_head(&mut self, stream: Stream, head: Option<Head>) {
        self.heads[stream.index()] = head;
    }
}
