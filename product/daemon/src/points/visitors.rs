//! What the daemon's log tells of clients of a server: those that are let in, and with a line a
//! minute how many were not, so that a client that is refused cannot fill the log.

use crate::failure_log::Told;
use coulter_net::Event;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Tells of the clients of a server that speaks `protocol`.
pub(super) fn observer(protocol: &'static str) -> Option<Arc<dyn Fn(Event) + Send + Sync>> {
    let refused = Mutex::new((0, Told::default()));
    Some(Arc::new(move |event| match event {
        Event::Opened(number) => log::info!(connection = number; "{protocol}: connected"),
        Event::Closed(number, reason) => {
            log::info!(connection = number, reason:%; "{protocol}: gone");
        }
        // A refusal, or what is like one.
        _ => {
            let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
            refused.0 += 1;
            let count = refused.0;
            if let Some(count) = refused.1.news(count, Instant::now(), false) {
                log::warn!(count; "{protocol}: connections were refused, or closed to make room");
            }
        }
    }))
}
