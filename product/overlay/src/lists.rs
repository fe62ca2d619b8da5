//! Lists of records by their standing, so that nothing looks at all records to find some.
//!
//! # Invariants
//! - A record is in the lists of its [`Standing`] and in no others: [`Lists::remove`] comes
//!   before it changes, [`Lists::add`] after that.

use std::collections::BTreeSet;

/// All that puts a record in one list or another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) mapped: u64,
    pub(crate) can_come_home: bool,
    pub(crate) is_taking_space: bool,
    pub(crate) has_fault: bool,
    pub(crate) is_settled: bool,
}

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
    pub(crate) fn add(&mut self, record: u32, at: Standing) {
        let mut is_new = true;
        if at.can_come_home {
            is_new &= self.coming_home.insert((at.mapped, record));
        }
        if at.is_taking_space {
            is_new &= self.taking_space.insert(record);
        }
        if at.has_fault {
            is_new &= self.faults.insert(record);
        }
        assert!(is_new, "record {record} was taken off its lists before it changed");
        self.settled += u64::from(at.is_settled);
    }

    pub(crate) fn remove(&mut self, record: u32, at: Standing) {
        let mut was_there = true;
        if at.can_come_home {
            was_there &= self.coming_home.remove(&(at.mapped, record));
        }
        if at.is_taking_space {
            was_there &= self.taking_space.remove(&record);
        }
        if at.has_fault {
            was_there &= self.faults.remove(&record);
        }
        assert!(was_there, "record {record} changed behind the back of its lists");
        let is_settled = u64::from(at.is_settled);
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
