//! Which writes belong together, found out from where they go.
//!
//! A host that writes segments, and a drive that keeps writes apart by handle, need somebody who
//! gives writes of one segment one handle, and segments that are written at the same time different
//! ones: a host with placement hints would say so, a drive may guess it by looking for sequential
//! streams. The guess: the handle that was not used for longest belongs to a segment that is full.

/// Gives handles to writes.
#[derive(Clone, Debug)]
pub(crate) struct StreamDetector {
    segment_size: u64,
    /// The segment that each handle was last used for, and when.
    handles: Vec<(u64, u64)>,
    clock: u64,
}

impl StreamDetector {
    /// One that gives every write handle 0.
    pub(crate) fn none() -> StreamDetector {
        StreamDetector::new(1, 0)
    }

    pub(crate) fn new(segment_size: u64, handles: u8) -> StreamDetector {
        assert!(segment_size > 0, "a segment has a size");
        StreamDetector { segment_size, handles: vec![(u64::MAX, 0); handles.into()], clock: 0 }
    }

    /// The handle for a write at byte `offset`.
    pub(crate) fn handle(&mut self, offset: u64) -> u8 {
        self.clock += 1;
        let segment = offset / self.segment_size;
        let known = self.handles.iter().position(|(used_for, _)| *used_for == segment);
        let oldest = || {
            let ages = self.handles.iter().enumerate();
            ages.min_by_key(|(_, (_, at))| *at).map_or(0, |(handle, _)| handle)
        };
        let handle = known.unwrap_or_else(oldest);
        if let Some(entry) = self.handles.get_mut(handle) {
            *entry = (segment, self.clock);
        }
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
    fn without_handles_there_is_only_the_first() {
        let mut detector = StreamDetector::none();
        assert_eq!([0, 1 << 20, 1 << 40].map(|offset| detector.handle(offset)), [0, 0, 0]);
    }
}
