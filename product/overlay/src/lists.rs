//! Lists of records by what they are like, so that nothing looks at all records to find some.
//!
//! # Invariants
//! - A record is in exactly the lists that what it is like puts it in: [`Lists::remove`] comes before it changes,
//!   [`Lists::add`] after that.

use crate::store::Adopted;
use coulter_format::overlay::RecordState;
use std::collections::BTreeSet;

/// See the module's documentation.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Lists {
    /// Those whose blocks can come home, by the number of their blocks that are here.
    coming_home: BTreeSet<(u64, u32)>,
    /// Those that say that space is being taken below.
    taking_space: BTreeSet<u32>,
    /// Those with a fault.
    faults: BTreeSet<u32>,
    /// Number of those whose files are at home.
    settled: u64,
}

impl Lists {
    pub(crate) fn add(&mut self, record: u32, adopted: &Adopted) {
        let mut is_new = true;
        if adopted.can_come_home() {
            is_new &= self.coming_home.insert((adopted.mapped, record));
        }
        if adopted.record.is_taking_space {
            is_new &= self.taking_space.insert(record);
        }
        if adopted.fault.is_some() {
            is_new &= self.faults.insert(record);
        }
        assert!(is_new, "record {record} was taken off its lists before it changed");
        self.settled += u64::from(adopted.record.state == RecordState::Settled);
    }

    pub(crate) fn remove(&mut self, record: u32, adopted: &Adopted) {
        let mut was_there = true;
        if adopted.can_come_home() {
            was_there &= self.coming_home.remove(&(adopted.mapped, record));
        }
        if adopted.record.is_taking_space {
            was_there &= self.taking_space.remove(&record);
        }
        if adopted.fault.is_some() {
            was_there &= self.faults.remove(&record);
        }
        assert!(was_there, "record {record} changed behind the back of its lists");
        let is_settled = u64::from(adopted.record.state == RecordState::Settled);
        assert!(self.settled >= is_settled, "a settled record was counted");
        self.settled -= is_settled;
    }

    /// The record with most blocks here, of those that can come home.
    pub(crate) fn fullest(&self) -> Option<u32> {
        self.coming_home.last().map(|(_, record)| *record)
    }

    /// Records that can come home, ascending.
    pub(crate) fn coming_home(&self) -> Vec<u32> {
        let mut records: Vec<u32> = self.coming_home.iter().map(|(_, record)| *record).collect();
        records.sort_unstable();
        records
    }

    pub(crate) fn taking_space(&self) -> &BTreeSet<u32> {
        &self.taking_space
    }

    pub(crate) fn faults(&self) -> &BTreeSet<u32> {
        &self.faults
    }

    /// How many records are of files that are at home.
    pub(crate) fn settled(&self) -> u64 {
        self.settled
    }
}
