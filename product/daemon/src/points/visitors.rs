//! The log's lines about clients of a server. Clients that come and go, as often as they like, are
//! for the debug log alone. A line a minute says how many were refused. So no client can fill the
//! log.

use crate::service::failure_log::Told;
use coulter_net::Event;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Tells of the clients of a server that speaks `protocol`.
pub(super) fn observer(protocol: &'static str) -> Option<Arc<dyn Fn(Event) + Send + Sync>> {
    let refused = Mutex::new((0, Told::default()));
    Some(Arc::new(move |event| match event {
        Event::Opened(number) => log::debug!(connection = number; "{protocol}: connected"),
        Event::Closed(number, reason) => {
            log::debug!(connection = number, reason:%; "{protocol}: gone");
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
