//! Requests that wait, and for what.

use super::{Facts, SILENCE_TOLD, Status};
use crate::error::DaemonError;
use crate::life::state::Entry;
use coulter_terminal as terminal;
use serde_json::Value;
use std::fmt;
use std::time::Duration;

impl Facts {
    /// Why it can do less than it was attached for, if it can.
    pub fn less(&self) -> Option<DaemonError> {
        DaemonError::less(self.entry()).or_else(|| match self {
            Facts::Volume(status) if status.waits_for_space() => {
                let Entry { name, store, .. } = &status.entry;
                Some(DaemonError::WaitsForSpace { name: name.clone(), store: store.clone() })
            }
            _ => None,
        })
    }
}

impl Status {
    fn waits_for_space(&self) -> bool {
        let waiting = self.statistics.get("waiting");
        waiting.and_then(|waiting| waiting.get("for_space")) == Some(&Value::Bool(true))
    }

    /// A line if requests wait for longer than they should.
    pub(super) fn write_waiting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requests = self.number(&["waiting", "requests"]);
        let oldest = Duration::from_nanos(self.number(&["waiting", "oldest_ns"]));
        if self.waits_for_space() {
            let store = terminal::path(&self.entry.store);
            writeln!(f, "  waiting    {requests} requests wait for space below {store}")
        } else if oldest >= SILENCE_TOLD {
            let seconds = oldest.as_secs();
            writeln!(
                f,
                "  waiting    {requests} requests, the oldest for {seconds} s: \
                 does the disk below answer?"
            )
        } else {
            Ok(())
        }
    }
}
