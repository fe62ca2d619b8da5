//! Looks again and again whether another host has taken the volume over, so that a host that ships
//! nothing learns it too, within [`look_every`](crate::Settings::look_every) and one request. While
//! the bucket does not answer no host can know.

use super::{Report, Shared};
use crate::bucket::Bucket;
use crate::history::takeover;
use crate::layout::VolumeId;
use crate::publish::Once;
use std::sync::PoisonError;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// Looks until the uploader ends, or another host has the volume instead of the one of `epoch`.
pub(super) fn look_out(
    bucket: &dyn Bucket,
    (volume, epoch): (VolumeId, u64),
    every: Duration,
    shared: &Shared,
    report: &Sender<Report>,
) {
    while waits(shared, every) {
        // A look that fails, or finds damage, says nothing: the next one may.
        if let Ok(true) = takeover::is_another_hosts(bucket, volume, epoch, &Once) {
            shared.revocation.revoke();
            let _ = report.send(Report::Fenced);
            shared.waker.wake();
            return;
        }
    }
}

/// Waits for a time; `false` if the uploader ends.
fn waits(shared: &Shared, time: Duration) -> bool {
    let until = Instant::now() + time;
    let mut state = shared.lock();
    while !state.is_over {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        let waited = shared.changed.wait_timeout(state, left);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    false
}
