//! Lending record buffers: who reads, or writes outside the log, uses one for a while.

use super::{Log, RecordState};
use crate::api::RecordRef;
use crate::units::Origin;

/// Record buffers that a stream leaves to those that must always get on.
const IDLE_KEPT_BY_USER: usize = 6;
const IDLE_KEPT_BY_CLEANING: usize = 3;

pub(super) fn idle_kept(origin: Origin) -> usize {
    match origin {
        Origin::User => IDLE_KEPT_BY_USER,
        Origin::Cleaning => IDLE_KEPT_BY_CLEANING,
        Origin::Metadata => 0,
    }
}

impl Log {
    /// Lends a record buffer for reading, if enough remain for writing.
    pub(crate) fn lend(&mut self) -> Option<RecordRef> {
        if self.idle.len() <= IDLE_KEPT_BY_CLEANING {
            return None;
        }
        let record = self.idle.pop()?;
        self.record_mut(record).state = RecordState::Lent;
        Some(record)
    }

    /// Lends one for what a checkpoint writes outside the log, be it the last.
    pub(crate) fn lend_to_checkpoint(&mut self) -> Option<RecordRef> {
        let record = self.idle.pop()?;
        self.record_mut(record).state = RecordState::Lent;
        Some(record)
    }

    /// The same for reading ahead, if enough remain for the host as well.
    pub(crate) fn lend_ahead(&mut self) -> Option<RecordRef> {
        if self.idle.len() > IDLE_KEPT_BY_USER + 1 { self.lend() } else { None }
    }

    /// Takes a lent buffer back.
    pub(crate) fn give_back(&mut self, record: RecordRef) {
        assert_eq!(self.record(record).state, RecordState::Lent, "only what was lent");
        self.record_mut(record).state = RecordState::Idle;
        self.idle.push(record);
    }
}
