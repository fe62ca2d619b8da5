//! Bounds of the recovery budget.

/// Map updates between checkpoints: the least that lets any single request through.
pub const JOURNAL_SIZE_MIN: u32 = 1024;

/// The most that keeps recovery short and a run's list small.
pub const JOURNAL_SIZE_MAX: u32 = 65_536;

/// Runs alive at most: as many as a checkpoint lists easily.
pub const RUN_COUNT_MAX: u32 = 256;
