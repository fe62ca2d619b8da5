//! What an operator may change while a volume is open.

pub use coulter_engine::tuning::{CleaningMode, UnknownMode};

/// Settings of an open volume. None of them is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// When the cleaner works.
    pub cleaning: CleaningMode,
}

/// Settings to be changed; what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retuning {
    /// When the cleaner is to work.
    pub cleaning: Option<CleaningMode>,
}
