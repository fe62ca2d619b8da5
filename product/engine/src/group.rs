//! The group being filled: records of several user streams that will be sealed together and count
//! together.
//!
//! Records of a group are applied one after the other, each wholly; so two writes of one address
//! must be in the same record, or the later one may be overtaken. The group notes where each of
//! its addresses went. A discard, which may cover any number of addresses, keeps everything that
//! follows it in its own record.

use crate::canary::{Canary, sings};
use crate::memory::{self, NoMemory};
use crate::units::Stream;
use alloc::boxed::Box;
use coulter_format::Lba;
use coulter_format::record::PAYLOAD_BLOCKS_MAX;

/// Places in the table: more than twice what the records of a group can hold, so that a search is
/// short.
const PLACES: usize = (2 * Stream::USER.len() * PAYLOAD_BLOCKS_MAX).next_power_of_two();

#[derive(Clone, Copy)]
struct Noted {
    lba: u64,
    /// The group that it was noted in; others are forgotten.
    group: u64,
    stream: Stream,
}

/// Where a write may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// To any record.
    Any,
    /// Only to the record of this stream.
    Only(Stream),
    /// To none of this group: parts of it went to different records.
    Next,
}

/// Addresses in the group.
pub(crate) struct Group {
    number: u64,
    places: Box<[Noted]>,
    /// A discard is in this stream's record.
    pinned: Option<Stream>,
    /// Whether the group's writes are told apart: decided with its first one.
    splits: Option<bool>,
}

impl Group {
    pub(crate) fn new() -> Result<Group, NoMemory> {
        let place = Noted { lba: 0, group: 0, stream: Stream::User };
        let places = memory::filled(place, PLACES)?.into_boxed_slice();
        Ok(Group { number: 1, places, pinned: None, splits: None })
    }

    /// The group was sealed, or is empty: another one begins.
    pub(crate) fn end(&mut self) {
        assert!(self.number < u64::MAX, "groups can be counted");
        self.number += 1;
        self.pinned = None;
        self.splits = None;
    }

    /// Whether the group tells its writes apart; `now` decides for a new one.
    pub(crate) fn splits(&mut self, now: bool) -> bool {
        *self.splits.get_or_insert(now)
    }

    /// Where a write may go.
    pub(crate) fn choice(&self, lba: Lba, count: u32) -> Choice {
        if let Some(stream) = self.pinned {
            return Choice::Only(stream);
        }
        if self.splits != Some(true) || sings(Canary::GroupUnordered) {
            return Choice::Any;
        }
        let mut found = None;
        for block in lba.0..lba.0 + u64::from(count) {
            let place = &self.places[self.find(block)];
            if place.group != self.number {
                continue;
            }
            if found.is_some_and(|stream| stream != place.stream) {
                return Choice::Next;
            }
            found = Some(place.stream);
        }
        found.map_or(Choice::Any, Choice::Only)
    }

    /// A write went to the stream's record. `splits` is what was decided when the write came: making
    /// room for it may have begun another group.
    pub(crate) fn note(&mut self, lba: Lba, count: u32, stream: Stream, splits: bool) {
        if !self.splits(splits) {
            return;
        }
        for block in lba.0..lba.0 + u64::from(count) {
            let place = self.find(block);
            self.places[place] = Noted { lba: block, group: self.number, stream };
        }
    }

    /// A discard went to the stream's record.
    pub(crate) fn pin(&mut self, stream: Stream) {
        assert!(
            self.pinned.is_none_or(|pinned| pinned == stream),
            "a discard keeps all in one record"
        );
        self.pinned = Some(stream);
    }

    /// The address's place, or the one that it would take. The table is never full.
    fn find(&self, lba: u64) -> usize {
        let hash = lba.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let mut at = hash as usize % PLACES;
        loop {
            let place = &self.places[at];
            if place.group != self.number || place.lba == lba {
                return at;
            }
            at = (at + 1) % PLACES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_stays_in_the_record_that_it_went_to_first() {
        let mut group = Group::new().expect("there is memory");
        assert!(group.splits(true) && group.splits(false), "the first decides");
        group.note(Lba(10), 4, Stream::User, true);
        group.note(Lba(20), 1, Stream::UserCold, true);
        assert_eq!(group.choice(Lba(12), 1), Choice::Only(Stream::User));
        assert_eq!(group.choice(Lba(14), 3), Choice::Any);
        assert_eq!(group.choice(Lba(14), 7), Choice::Only(Stream::UserCold));
        assert_eq!(group.choice(Lba(13), 8), Choice::Next);
        group.end();
        group.note(Lba(12), 1, Stream::UserWarm, true);
        assert!(group.splits(false), "the first write of a group decides");
        assert_eq!(group.choice(Lba(12), 1), Choice::Only(Stream::UserWarm));
        group.end();
        assert!(!group.splits(false));
        assert_eq!(group.choice(Lba(12), 1), Choice::Any);
    }

    #[test]
    fn nothing_overtakes_a_discard() {
        let mut group = Group::new().expect("there is memory");
        group.splits(true);
        group.pin(Stream::UserWarm);
        assert_eq!(group.choice(Lba(7), 1), Choice::Only(Stream::UserWarm));
        group.end();
        assert_eq!(group.choice(Lba(7), 1), Choice::Any);
    }

    #[test]
    fn a_full_group_is_searched_rightly() {
        let mut group = Group::new().expect("there is memory");
        for _ in 0..3 {
            group.splits(true);
            let blocks = (Stream::USER.len() * PAYLOAD_BLOCKS_MAX) as u64;
            for block in 0..blocks {
                let stream = Stream::USER[(block % 3) as usize];
                assert_eq!(group.choice(Lba(block << 20), 1), Choice::Any);
                group.note(Lba(block << 20), 1, stream, true);
            }
            for block in 0..blocks {
                let stream = Stream::USER[(block % 3) as usize];
                assert_eq!(group.choice(Lba(block << 20), 1), Choice::Only(stream));
            }
            group.end();
        }
    }
}
