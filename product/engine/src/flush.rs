//! Flushes: one device flush for all who wait.

use crate::api::{Busy, Command, Failure, IoResult, RequestId};
use crate::canary::{Canary, sings};
use crate::ios::Purpose;
use crate::requests::Work;
use crate::shared::Shared;
use crate::units::Sequence;

/// The flush that is out.
#[derive(Default)]
pub(crate) struct Flusher {
    /// What it will make durable.
    out: Option<Sequence>,
}

impl Flusher {
    /// Takes a flush of the host.
    pub(crate) fn accept(&self, shared: &mut Shared, id: RequestId) -> Result<(), Busy> {
        if let Some(errno) = shared.poisoned {
            shared.requests.respond(id, Err(Failure::Device(errno)));
            return Ok(());
        }
        // Everything that was answered has been applied, so this covers what a flush must cover.
        let target = shared.log.applied;
        if target <= shared.log.durable || shared.config.read_only {
            shared.statistics.flush_requests += 1;
            shared.requests.respond(id, Ok(()));
            return Ok(());
        }
        let slot = shared.requests.insert(id, Work::Flush).ok_or(Busy)?;
        shared.requests.wait_for(slot, target);
        Ok(())
    }

    /// Begins a flush if somebody waits and none is out.
    pub(crate) fn step(&mut self, shared: &mut Shared) {
        if let Some(errno) = shared.poisoned {
            shared.requests.fail_waiting(Failure::Device(errno));
            return;
        }
        if self.out.is_some() || !shared.requests.wait_for_durability() {
            return;
        }
        if sings(Canary::FlushDropped) {
            shared.durable_up_to(shared.log.applied);
            return;
        }
        assert!(shared.log.durable < shared.log.applied, "who waits, waits for what was applied");
        self.out = Some(shared.log.applied);
        shared.statistics.device_flushes += 1;
        shared.ios.start(Purpose::Flush, Command::Flush);
    }

    /// The device's flush has ended.
    pub(crate) fn completed(&mut self, shared: &mut Shared, result: IoResult) {
        let covered = self.out.take().expect("one flush at a time");
        assert!(covered <= shared.log.applied, "a flush covers what had taken effect");
        match result {
            Err(_) if sings(Canary::FlushRetried) => {}
            // After a failed flush nobody knows what is durable: it is never tried again.
            Err(errno) => {
                shared.poison(errno);
                shared.requests.fail_waiting(Failure::Device(errno));
            }
            Ok(()) if shared.poisoned.is_none() => shared.durable_up_to(covered),
            Ok(()) => {}
        }
    }
}

#[cfg(feature = "verify")]
impl Flusher {
    /// # Panics
    /// If what is out is not what is said to be.
    pub(crate) fn assert_invariants(&self, out: usize, applied: Sequence) {
        assert_eq!(usize::from(self.out.is_some()), out, "one flush at a time, and its command");
        assert!(
            self.out.is_none_or(|covered| covered <= applied),
            "a flush covers what was applied"
        );
    }
}
