//! The atomics of what is shared with clients. The exhaustive model of [`crate::read_cache`] puts its
//! own in their place.

pub(crate) use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
