//! Deliberate mistakes, to see that the tests would find them.
//!
//! They are compiled in only with `--cfg coulter_canary`, which the build script of
//! `proof/canary-files` sets for that crate alone: it is this source under another name, and
//! nothing but its own tests depends on it. In the file system itself [`sings`] is `false` at
//! compile time.

#![cfg_attr(
    not(coulter_canary),
    allow(
        dead_code,
        unreachable_pub,
        reason = "in the file system itself no mistake is ever chosen"
    )
)]

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// A block that the open set frees is handed out before that set is submitted.
    FreedReusedEarly,
    /// New data is submitted after the set that refers to it.
    DataAfterSet,
    /// What a set frees is discarded before the set.
    DiscardBeforeSet,
    /// A file's new size goes into another set than its new blocks.
    SizeOutsideSet,
    /// A node goes with its last name, although it is open.
    NodeByPath,
    /// A cookie of a listing is how many names came before.
    CookieByIndex,
    /// A block that becomes zero by a discard is read while the discard is out.
    ZerosReadEarly,
    /// An operation that fails in its second step ends while data of its first is out.
    EndsWhileOut,
    /// A buffer that an operation made for itself goes back as the request's.
    OwnBufferGivenBack,
    /// A block of metadata counts as damaged after any error of a read.
    PassingErrorStays,
    /// A flush counts for commands that were out when it began.
    FlushCoversOut,
    /// A file grows over blocks behind its end that hold what was there.
    BehindEndKept,
}

impl Canary {
    /// All of them.
    pub const ALL: [Canary; 12] = [
        Canary::FreedReusedEarly,
        Canary::DataAfterSet,
        Canary::DiscardBeforeSet,
        Canary::SizeOutsideSet,
        Canary::NodeByPath,
        Canary::CookieByIndex,
        Canary::ZerosReadEarly,
        Canary::EndsWhileOut,
        Canary::OwnBufferGivenBack,
        Canary::PassingErrorStays,
        Canary::FlushCoversOut,
        Canary::BehindEndKept,
    ];
}

#[cfg(coulter_canary)]
mod chosen {
    use super::Canary;
    use std::cell::Cell;

    thread_local! {
        static CHOSEN: Cell<Option<Canary>> = const { Cell::new(None) };
    }

    /// Lets one mistake happen from now on, on this thread.
    pub fn choose(canary: Option<Canary>) {
        CHOSEN.with(|chosen| chosen.set(canary));
    }

    pub(crate) fn sings(canary: Canary) -> bool {
        CHOSEN.with(|chosen| chosen.get() == Some(canary))
    }
}

#[cfg(coulter_canary)]
pub use chosen::choose;
#[cfg(coulter_canary)]
pub(crate) use chosen::sings;

/// Whether a mistake is to be made. Never.
#[cfg(not(coulter_canary))]
pub(crate) const fn sings(_: Canary) -> bool {
    false
}
