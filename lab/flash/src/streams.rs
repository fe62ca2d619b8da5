//! Which writes belong together.
//!
//! A drive that keeps writes apart by handle needs somebody who gives writes of one segment one
//! handle, and segments that are written at the same time different ones. A host that knows names a
//! stream with each write. For others the drive may look for sequential streams: the handle that was
//! not used for longest belongs to a segment that is full.

/// Gives handles to writes.
#[derive(Clone, Debug)]
pub(crate) enum StreamHandles {
    /// Every write has handle 0.
    One,
    /// By the stream that the host names; with more streams than handles, several share one.
    Named { handles: u8 },
    /// By where the write goes.
    Detected(StreamDetector),
}

impl StreamHandles {
    /// The handle for a write at byte `offset` of a stream, 0 being none.
    pub(crate) fn handle(&mut self, offset: u64, stream: u8) -> u8 {
        match self {
            StreamHandles::One => 0,
            StreamHandles::Named { handles } => stream.saturating_sub(1) % *handles,
            StreamHandles::Detected(detector) => detector.handle(offset),
        }
    }
}

/// Looks for sequential streams.
#[derive(Clone, Debug)]
pub(crate) struct StreamDetector {
    segment_size: u64,
    /// The segment that each handle was last used for, and when.
    handles: Vec<(u64, u64)>,
    clock: u64,
}

impl StreamDetector {
    pub(crate) fn new(segment_size: u64, handles: u8) -> StreamDetector {
        assert!(segment_size > 0 && handles > 0, "a segment has a size, and a handle");
        StreamDetector { segment_size, handles: vec![(u64::MAX, 0); handles.into()], clock: 0 }
    }

    /// The handle for a write at byte `offset`.
    fn handle(&mut self, offset: u64) -> u8 {
        self.clock += 1;
        let segment = offset / self.segment_size;
        let known = self.handles.iter().position(|(used_for, _)| *used_for == segment);
        let oldest = || {
            let ages = self.handles.iter().enumerate();
            ages.min_by_key(|(_, (_, at))| *at).map_or(0, |(handle, _)| handle)
        };
        let handle = known.unwrap_or_else(oldest);
        self.handles[handle] = (segment, self.clock);
        handle as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_that_are_written_in_turns_keep_their_handles() {
        let mut detector = StreamDetector::new(1 << 20, 2);
        let (a, b) = (detector.handle(0), detector.handle(5 << 20));
        assert_ne!(a, b);
        for step in 1..100 {
            assert_eq!(detector.handle(step * 4096), a);
            assert_eq!(detector.handle((5 << 20) + step * 4096), b);
        }
        // A third segment takes the handle of the one that was left.
        detector.handle(5 << 20);
        assert_eq!(detector.handle(9 << 20), a);
    }

    #[test]
    fn named_streams_keep_their_handles_and_share_them_when_there_are_few() {
        let mut named = StreamHandles::Named { handles: 3 };
        assert_eq!([0, 1, 2, 3, 4, 7].map(|stream| named.handle(0, stream)), [0, 0, 1, 2, 0, 0]);
        assert_eq!([0, 1, 2].map(|stream| StreamHandles::One.handle(1 << 40, stream)), [0, 0, 0]);
    }
}
