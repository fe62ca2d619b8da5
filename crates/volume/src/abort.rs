//! For code whose failure must not be survived.

/// Aborts the process when a panic passes by; says why first.
pub(crate) struct AbortOnUnwind(pub(crate) &'static str);

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("aborting: {}", self.0);
            std::process::abort();
        }
    }
}
