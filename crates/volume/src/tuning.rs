//! What an operator may change while a volume is open.

pub use coulter_engine::placement::{Placement, UnknownName};
pub use coulter_engine::policy::VictimPolicy;
pub use coulter_engine::reclaim::Reclaim;
pub use coulter_engine::tuning::{CleaningMode, UnknownMode};

/// Settings of an open volume. None of them is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// When the cleaner works.
    pub cleaning: CleaningMode,
    /// Which segment it takes next.
    pub policy: VictimPolicy,
    /// Which blocks share segments.
    pub placement: Placement,
    /// How space is reclaimed.
    pub reclaim: Reclaim,
}

/// Settings to be changed; what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retuning {
    /// When the cleaner is to work.
    pub cleaning: Option<CleaningMode>,
    /// Which segment it is to take next.
    pub policy: Option<VictimPolicy>,
    /// Which blocks are to share segments, from the next ones on.
    pub placement: Option<Placement>,
    /// How space is to be reclaimed, from the next record on.
    pub reclaim: Option<Reclaim>,
}
