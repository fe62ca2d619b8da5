//! For code whose failure must not be survived.

/// Aborts the process when it is dropped instead of [ended](AbortOnUnwind::end): a panic passes by. Says why
/// first.
#[must_use]
pub(crate) struct AbortOnUnwind {
    why: &'static str,
}

impl AbortOnUnwind {
    pub(crate) fn new(why: &'static str) -> AbortOnUnwind {
        AbortOnUnwind { why }
    }

    /// All went well.
    pub(crate) fn end(self) {
        std::mem::forget(self);
    }
}

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        eprintln!("aborting: {}", self.why);
        std::process::abort();
    }
}
