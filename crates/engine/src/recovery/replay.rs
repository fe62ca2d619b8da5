//! Replay: the records that count take effect, in order.

use super::{Recovery, damaged};
use crate::Engine;
use crate::api::OpenError;
use crate::canary::{Canary, sings};
use crate::map::IfUnknown;
use crate::segments::State;
use crate::units::segment_of;
use crate::writes::discard_updates;
use coulter_format::checksum::Kind;
use coulter_format::record::Entry;
use coulter_format::{BlockPointer, Lba, Pba, Reason, Structure};

impl Engine {
    pub(super) fn replay(&mut self, r: &mut Recovery) -> Result<(), OpenError> {
        for found in r.found[..r.accepted].iter() {
            let entries = found.first_entry..found.first_entry + found.entry_count;
            for entry in &r.entries[entries] {
                // Metadata has other keys. Behind the end of the volume an update would take memory
                // that nobody allowed.
                let is_host = matches!(entry.kind, Kind::Data | Kind::Remote | Kind::Discard);
                let end = entry.key + u64::from(entry.count);
                if is_host && end > self.superblock.geometry.volume_size {
                    let key = Reason::Field("key");
                    return Err(damaged(Structure::RecordHeader, key, found.pba));
                }
                self.replay_entry(entry)?;
            }
            self.segments.record_applied(found.segment, self.log.now());
            self.log.applied = found.sequence;
            self.statistics.records_replayed += 1;
            self.statistics.long_records_replayed += u64::from(found.long_field.is_some());
        }
        match self.segments.miscounted() {
            false => Ok(()),
            true => {
                let pba = self.superblock.checkpoint.pba;
                Err(damaged(Structure::SegmentTable, Reason::Field("valid"), pba))
            }
        }
    }

    /// Applies an entry of host data. Metadata needs no replay: the pages that the checkpoint knows
    /// are intact, for nothing is reused before the next one.
    fn replay_entry(&mut self, entry: &Entry) -> Result<(), OpenError> {
        let now = self.log.now();
        let pointer = BlockPointer { pba: entry.pba, checksum: entry.word.checksum };
        let geometry = self.superblock.geometry;
        let updates = match entry.kind {
            // As many as were promised when it was accepted: what had room then has room now.
            Kind::Discard => discard_updates(Lba(entry.key), entry.key + u64::from(entry.count)),
            Kind::Data | Kind::Remote => 1,
            _ => return Ok(()),
        };
        if !self.map.reserve(updates) || self.map.journal_room() <= updates {
            return Err(OpenError::MapMemory { needed: self.map_size() * 2 });
        }
        let countable = |pba: Pba| {
            segment_of(&geometry, pba).is_some_and(|segment| {
                let segment = self.segments.segment(segment);
                matches!(segment.state, State::Open | State::Closed)
                    && segment.valid < geometry.segment_size
            })
        };
        let lba = Lba(entry.key);
        let source = entry.word.address;
        let nowhere = damaged(Structure::RecordHeader, Reason::Field("address"), entry.pba);
        match entry.kind {
            Kind::Discard if sings(Canary::DiscardForgotten) => {}
            Kind::Discard => self.apply_discard(lba, u64::from(entry.count)),
            // The source may have been freed since, if it was overwritten meanwhile.
            Kind::Data if entry.relocated && segment_of(&geometry, source).is_none() => {
                return Err(nowhere);
            }
            Kind::Data if entry.relocated && entry.pba == source => self.map.stays(lba, pointer),
            _ if !countable(entry.pba) => return Err(nowhere),
            Kind::Data if entry.relocated => {
                let matches = IfUnknown::Matches;
                self.map.update_if(&mut self.segments, lba, source, pointer, matches, now);
            }
            _ => {
                self.map.update(&mut self.segments, lba, pointer, now);
                self.log.write_clock += 1;
            }
        }
        self.map.unreserve(updates);
        Ok(())
    }
}
