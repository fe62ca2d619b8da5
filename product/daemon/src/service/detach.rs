//! Asking a daemon to end, and waiting until it has.

use crate::error::{DaemonError, Error, StateError};
use crate::life::daemon_state::DaemonState;
use crate::life::state::{Entry, StateDirectory};
use crate::life::verbs::{Course, Verb};
use crate::service::control::{self, Request};
use std::time::Duration;

/// How long the process may take to end after it has said that all is durable.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// Asks the daemon of `entry` to end, and waits until it has.
///
/// # Errors
/// [`StateError::StoreDeleted`] unless `force`; [`DaemonError::Busy`] as the daemon tells it;
/// whatever kept the volume from closing cleanly.
pub fn detach(state: &StateDirectory, entry: &Entry, force: bool) -> Result<(), Error> {
    let is_refused =
        || DaemonState::look_closely(state, entry).course(Verb::Detach) == Course::Refuse;
    if !force && is_refused() {
        let (name, store) = (entry.name.clone(), entry.store.clone());
        let device = entry.device.clone().unwrap_or_default();
        return Err(StateError::StoreDeleted { name, store, device }.into());
    }
    control::ask(state, entry, &Request::Detach { force })?;
    if state.wait_for_end(entry, END_PATIENCE) {
        return Ok(());
    }
    Err(DaemonError::silent(entry).into())
}
