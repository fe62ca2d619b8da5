//! For code whose failure must not be survived.

/// Aborts the process when a panic passes by; says why first.
pub(crate) struct AbortOnUnwind {
    why: &'static str,
    /// A panic was on its way already, and this code is called in passing by a destructor.
    was_panicking: bool,
}

impl AbortOnUnwind {
    pub(crate) fn new(why: &'static str) -> AbortOnUnwind {
        AbortOnUnwind { why, was_panicking: std::thread::panicking() }
    }
}

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        // A second panic that leaves a destructor aborts by itself.
        if std::thread::panicking() && !self.was_panicking {
            eprintln!("aborting: {}", self.why);
            std::process::abort();
        }
    }
}
