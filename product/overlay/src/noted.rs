//! The lower file as its record notes it, by which changes of others are known.

use crate::lower::{Lower, Outcome, Settings};
use crate::overlay::Overlay;
use coulter_format::overlay::{Fingerprint, Record, RecordState};

impl<L: Lower> Overlay<L> {
    /// That nobody else has changed the lower file of a record.
    pub(crate) fn check_lower(&mut self, record: u32) -> Outcome<()> {
        let adopted = self.store.adopted(record);
        if adopted.fault.is_some() {
            return Err(libc::EIO);
        }
        let (state, expected) = (adopted.record.state, adopted.record.lower);
        if state == RecordState::Settling {
            return Ok(());
        }
        let handle = adopted.record.handle;
        let now = self.lower.status(&handle)?.fingerprint();
        if self.store.unnoted.contains(&record) && now.size == expected.size {
            return self.note_late(record, now);
        }
        if now != expected {
            self.set_fault(record, "its lower file was changed by others");
            return Err(libc::EIO);
        }
        Ok(())
    }

    /// Notes a lower file late: a change of our own failed, or the look at it that follows.
    fn note_late(&mut self, record: u32, now: Fingerprint) -> Outcome<()> {
        let Record { handle, number, lower, is_taking_space, .. } =
            self.store.adopted(record).record;
        if now.modified != lower.modified {
            if !is_taking_space {
                self.set_fault(record, "its lower file was changed by others");
                return Err(libc::EIO);
            }
            let modified = Some(lower.modified);
            let set = self.lower.set(&handle, &Settings { modified, ..Settings::default() });
            // A sync under way may come before it.
            self.touch(number);
            set?;
        }
        self.note_lower(record);
        if self.store.unnoted.contains(&record) { Err(libc::EIO) } else { Ok(()) }
    }

    /// After a change of our own: what the lower file is to be like from now on.
    pub(crate) fn note_lower(&mut self, record: u32) {
        let handle = self.store.adopted(record).record.handle;
        let Ok(status) = self.lower.status(&handle) else {
            self.store.unnoted.insert(record);
            return;
        };
        let adopted = self.store.adopted_mut(record);
        // Only the time of change can be ours: size and content are not touched before settling.
        adopted.record.lower.changed = status.changed;
        if adopted.record.lower == status.fingerprint() {
            self.store.unnoted.remove(&record);
        }
        self.store.dirty.insert(record);
    }
}
