//! Flushes: one device flush for all who wait.

use crate::Engine;
use crate::api::{Busy, Command, Failure, IoResult, RequestId};
use crate::canary::{Canary, sings};
use crate::ios::Purpose;
use crate::requests::Work;
use crate::units::Sequence;
use alloc::collections::VecDeque;

/// Who waits for durability, and the flush that is out.
#[derive(Default)]
pub(crate) struct Flusher {
    /// Request slots, with the sequence that must be durable.
    waiting: VecDeque<(u32, Sequence)>,
    /// What the flush that is out will make durable.
    out: Option<Sequence>,
}

impl Flusher {
    /// The request is answered once this sequence is durable.
    pub(crate) fn wait_for(&mut self, slot: u32, sequence: Sequence) {
        self.waiting.push_back((slot, sequence));
    }
}

impl Engine {
    pub(crate) fn accept_flush(&mut self, id: RequestId) -> Result<(), Busy> {
        if let Some(errno) = self.poisoned {
            self.respond(id, Err(Failure::Device(errno)));
            return Ok(());
        }
        // Everything that was answered has been applied, so this covers what a flush must cover.
        let target = self.log.applied;
        if target <= self.log.durable || self.config.read_only {
            self.statistics.flush_requests += 1;
            self.respond(id, Ok(()));
            return Ok(());
        }
        let slot = self.requests.insert(id, Work::Flush).ok_or(Busy)?;
        self.flusher.wait_for(slot, target);
        Ok(())
    }

    pub(crate) fn pump_flush(&mut self) {
        if let Some(errno) = self.poisoned {
            self.fail_flushes(errno);
            return;
        }
        if self.flusher.out.is_some() || self.flusher.waiting.is_empty() {
            return;
        }
        if sings(Canary::FlushDropped) {
            self.durable_up_to(self.log.applied);
            return;
        }
        self.flusher.out = Some(self.log.applied);
        self.statistics.device_flushes += 1;
        self.ios.start(Purpose::Flush, Command::Flush);
    }

    pub(crate) fn flush_completed(&mut self, result: IoResult) {
        let covered = self.flusher.out.take().expect("one flush at a time");
        match result {
            Err(_) if sings(Canary::FlushRetried) => {}
            // After a failed flush nobody knows what is durable: it is never tried again.
            Err(errno) => {
                self.poison(errno);
                self.fail_flushes(errno);
            }
            Ok(()) if self.poisoned.is_none() => self.durable_up_to(covered),
            Ok(()) => {}
        }
    }

    /// Answers those whose records are durable now.
    pub(crate) fn durable_up_to(&mut self, sequence: Sequence) {
        self.log.durable = self.log.durable.max(sequence);
        let durable = self.log.durable;
        let mut waiting = core::mem::take(&mut self.flusher.waiting);
        waiting.retain(|(slot, target)| {
            if *target <= durable {
                self.statistics.flush_requests += 1;
                self.finish_request(*slot);
            }
            *target > durable
        });
        self.flusher.waiting = waiting;
    }

    fn fail_flushes(&mut self, errno: i32) {
        while let Some((slot, _)) = self.flusher.waiting.pop_front() {
            self.fail_request(slot, Failure::Device(errno));
            self.finish_request(slot);
        }
    }
}

#[cfg(feature = "verify")]
impl Flusher {
    /// Whether a request waits for durability.
    pub(crate) fn is_waiting(&self, slot: u32) -> bool {
        self.waiting.iter().any(|(waiting, _)| *waiting == slot)
    }

    /// # Panics
    /// If what is out is not what is said to be, or somebody waits for what has come.
    pub(crate) fn assert_invariants(&self, out: usize, durable: Sequence, applied: Sequence) {
        assert_eq!(usize::from(self.out.is_some()), out, "one flush at a time, and its command");
        assert!(
            self.out.is_none_or(|covered| covered <= applied),
            "a flush covers what was applied"
        );
        let comes = |(_, target): &(u32, Sequence)| *target > durable && *target <= applied;
        assert!(self.waiting.iter().all(comes), "nobody waits for what is durable, or never comes");
    }
}
