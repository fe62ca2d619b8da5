//! The blocks that a request touches: one span, or several ranges.

use super::span::Span;
use crate::many::Many;
use std::sync::Arc;

/// What a request touches. Cheap to copy: several ranges are shared.
#[derive(Clone, Debug, Default)]
pub(super) struct Footprint {
    /// From the first block to the last.
    hull: Span,
    /// If only some of that is touched: what.
    many: Option<Arc<Many>>,
}

impl From<Span> for Footprint {
    fn from(hull: Span) -> Footprint {
        Footprint { hull, many: None }
    }
}

impl From<Arc<Many>> for Footprint {
    fn from(many: Arc<Many>) -> Footprint {
        let (first, end) = many.hull();
        Footprint { hull: Span::whole_blocks(first, end), many: Some(many) }
    }
}

impl Footprint {
    /// From the first block to the last.
    pub(super) fn hull(&self) -> Span {
        self.hull
    }

    /// Whether a block is in both.
    pub(super) fn overlaps(&self, other: &Footprint) -> bool {
        self.hull.overlaps(&other.hull)
            && match (&self.many, &other.many) {
                (None, None) => true,
                (Some(many), None) => many.overlaps(other.hull.first, other.hull.end),
                (None, Some(many)) => many.overlaps(self.hull.first, self.hull.end),
                (Some(many), Some(other)) => {
                    other.ranges().iter().any(|(first, end)| many.overlaps(*first, *end))
                }
            }
    }

    /// Calls `each` with what is touched: the first block, and how many.
    pub(super) fn each(&self, mut each: impl FnMut(u64, u64)) {
        match &self.many {
            Some(many) => many.ranges().iter().for_each(|(first, end)| each(*first, end - first)),
            None => each(self.hull.first, self.hull.count()),
        }
    }

    /// Whether the block is touched.
    pub(super) fn contains(&self, block: u64) -> bool {
        self.hull.contains(block)
            && self.many.as_ref().is_none_or(|many| many.overlaps(block, block + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Change;

    fn many(ranges: &[(u64, u64)]) -> Footprint {
        let write = |(first, count): &(u64, u64)| Change::Write {
            offset: first * 4096,
            length: count * 4096,
        };
        let changes: Vec<_> = ranges.iter().map(write).collect();
        let data: u64 = ranges.iter().map(|(_, count)| count * 4096).sum();
        Arc::new(Many::new(&changes, data, 1 << 30).expect("the ranges are sound")).into()
    }

    #[test]
    fn what_lies_between_the_ranges_is_not_touched() {
        let (one, other) = (many(&[(2, 2), (10, 1)]), many(&[(4, 6), (11, 1)]));
        assert!(!one.overlaps(&other) && !other.overlaps(&one));
        assert!(one.overlaps(&many(&[(0, 1), (3, 1)])));
        let between = Footprint::from(Span::whole_blocks(4, 10));
        assert!(!one.overlaps(&between) && !between.overlaps(&one));
        assert!(other.overlaps(&between) && between.overlaps(&other));
        assert!(one.contains(3) && !one.contains(4) && one.contains(10) && !one.contains(11));
    }
}
