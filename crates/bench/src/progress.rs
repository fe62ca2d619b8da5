//! Tells whoever waits how far a measurement is.

use std::fmt;
use std::sync::Arc;

type Listener = dyn Fn(&str, f64) + Send + Sync;

/// Where to report progress; nowhere by default.
#[derive(Clone, Default)]
pub struct Progress {
    listener: Option<Arc<Listener>>,
}

impl Progress {
    /// Calls `listener` with what is being done and how much of it is done, from 0 to 1; a few
    /// times a second at most, from the thread that measures.
    pub fn to(listener: impl Fn(&str, f64) + Send + Sync + 'static) -> Progress {
        Progress { listener: Some(Arc::new(listener)) }
    }

    pub(crate) fn report(&self, step: &str, share: f64) {
        if let Some(listener) = &self.listener {
            listener(step, share.clamp(0.0, 1.0));
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Progress({})", if self.listener.is_some() { "reported" } else { "silent" })
    }
}
