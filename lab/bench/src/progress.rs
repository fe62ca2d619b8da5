//! Tells whoever waits how far a measurement is.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

type Listener = dyn Fn(&str, f64) + Send + Sync;

/// Reports of one step closer than this are left out.
const INTERVAL: Duration = Duration::from_millis(100);

/// Where to report progress; nowhere by default.
#[derive(Clone, Default)]
pub struct Progress {
    shared: Option<Arc<Shared>>,
}

struct Shared {
    listener: Box<Listener>,
    /// The step that was reported last, and when.
    latest: Mutex<Option<(String, Instant)>>,
}

impl Progress {
    /// Calls `listener` with what is being done and how much of it is done, from 0 to 1: at the
    /// start of each step, and then at most ten times a second, from the thread that measures.
    pub fn to(listener: impl Fn(&str, f64) + Send + Sync + 'static) -> Progress {
        let shared = Shared { listener: Box::new(listener), latest: Mutex::new(None) };
        Progress { shared: Some(Arc::new(shared)) }
    }

    pub(crate) fn report(&self, step: &str, share: f64) {
        let Some(shared) = &self.shared else { return };
        let mut latest = shared.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let too_soon = latest
            .as_ref()
            .is_some_and(|(last, when)| last == step && now.duration_since(*when) < INTERVAL);
        if !too_soon {
            *latest = Some((step.to_string(), now));
            (shared.listener)(step, share.clamp(0.0, 1.0));
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Progress({})", if self.shared.is_some() { "reported" } else { "silent" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_reported_but_not_every_advance() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = seen.clone();
        let progress = Progress::to(move |step, share| {
            sink.lock().expect("no panic elsewhere").push((step.to_string(), share));
        });
        (0..1000).for_each(|n| progress.report("first", f64::from(n) / 1000.0));
        progress.report("second", 7.0);
        let seen = seen.lock().expect("no panic elsewhere");
        assert!(seen.len() < 10, "{} reports in no time", seen.len());
        assert_eq!(seen[0], ("first".to_string(), 0.0));
        assert_eq!(seen[seen.len() - 1], ("second".to_string(), 1.0));
    }
}
