//! A look at a copy beside a volume that runs, before the volume is closed for it: what cannot be
//! used now is refused, and the volume goes on.

use crate::copy::replication::Replication;
use coulter_object::publish::Briefly;
use coulter_object::{
    ReplicaError,
    history::{self, lineage},
    probe,
};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

/// How long a copy may take to show that it can be used. Commands to the volume wait meanwhile;
/// hosts do not.
const TRIAL_MAX: Duration = Duration::from_secs(8);

/// Looks whether the copy answers, is sound as far as an opening reads it, and takes objects.
///
/// # Errors
/// The reason, for people.
pub(crate) fn try_copy(replication: &Replication) -> Result<(), String> {
    let url = replication.url.clone();
    let reads = !replication.reseed;
    let look = move || -> Result<(), String> {
        let told = |error: ReplicaError| error.to_string();
        let bucket = lineage::open(&url, true, &Briefly).map_err(|error| told(error.into()))?;
        match history::record(&*bucket, &Briefly) {
            Ok(_) if reads => drop(history::newest(&*bucket, &Briefly).map_err(told)?),
            Ok(_) | Err(ReplicaError::NoVolume) => {}
            Err(error) => return Err(told(error)),
        }
        probe::sequence(&*bucket).map_err(|error| error.to_string())
    };
    let (sender, outcome) = sync_channel(1);
    // It ends by itself, when its request does.
    let started = thread::Builder::new().name("coulter-trial".to_owned()).spawn(move || {
        let _ = sender.send(look());
    });
    started.map_err(|error| error.to_string())?;
    match outcome.recv_timeout(TRIAL_MAX) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Timeout) => {
            Err(format!("no answer from {} for {} s", replication.url, TRIAL_MAX.as_secs()))
        }
        Err(RecvTimeoutError::Disconnected) => Err("the look at it failed here".to_owned()),
    }
}
