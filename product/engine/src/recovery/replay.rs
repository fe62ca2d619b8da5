//! Replay: the records that count take effect, in order.

use super::{Recovery, damaged};
use crate::canary::{Canary, sings};
use crate::error::OpenError;
use crate::map::update::IfUnknown;
use crate::segments::State;
use crate::shared::Shared;
use crate::units::segment_of;
use crate::writes::discard_updates;
use coulter_format::checksum::Kind;
use coulter_format::record::Entry;
use coulter_format::{BlockPointer, Lba, Pba, Reason, Structure};

impl Recovery {
    pub(super) fn replay(&mut self, shared: &mut Shared) -> Result<(), OpenError> {
        for index in 0..self.accepted {
            let found = self.found[index];
            self.pass_gap(shared, shared.log.applied + 1..found.sequence)?;
            assert!(found.intact || found.sequence <= self.durable, "torn records do not count");
            let entries =
                found.first_entry as usize..(found.first_entry + found.entry_count) as usize;
            for entry in &self.entries[entries] {
                // Metadata has other keys. Behind the end of the volume an update would take memory
                // that nobody allowed.
                let is_host = matches!(entry.kind, Kind::Data | Kind::Discard);
                let end = entry.key + u64::from(entry.count);
                let has_room = entry.kind != Kind::Data || shared.map.has_leaf_of(Lba(entry.key));
                if is_host && (end > shared.superblock.geometry.volume_size || !has_room) {
                    let key = Reason::Field("key");
                    return Err(damaged(Structure::RecordHeader, key, found.pba));
                }
                replay_entry(shared, entry)?;
            }
            shared.segments.record_applied(found.segment, shared.log.now());
            assert_eq!(found.sequence, shared.log.applied + 1, "replay has no gap");
            shared.log.applied = found.sequence;
            shared.statistics.records_replayed += 1;
            shared.statistics.long_records_replayed += u64::from(found.is_long);
        }
        self.pass_gap(shared, shared.log.applied + 1..self.durable + 1)?;
        self.settle_doubt(shared)?;
        match shared.segments.miscounted() {
            false => Ok(()),
            true => {
                let pba = shared.superblock.checkpoint.pba;
                Err(damaged(Structure::SegmentTable, Reason::Field("valid"), pba))
            }
        }
    }
}

/// Applies an entry of host data. Metadata needs no replay: the pages that the checkpoint knows
/// are intact, for nothing is reused before the next one.
fn replay_entry(shared: &mut Shared, entry: &Entry) -> Result<(), OpenError> {
    let now = shared.log.now();
    let pointer = BlockPointer { pba: entry.pba, checksum: entry.word.checksum };
    let geometry = shared.superblock.geometry;
    let updates = match entry.kind {
        // As many as were promised when it was accepted: what had room then has room now.
        Kind::Discard => discard_updates(Lba(entry.key), entry.key + u64::from(entry.count)),
        Kind::Data => 1,
        _ => return Ok(()),
    };
    if !shared.map.reserve(updates) || shared.map.journal_room() <= updates {
        return Err(OpenError::MapMemory { needed: shared.map_size() * 2 });
    }
    shared.map.make_leaves(Lba(entry.key), entry.count.into(), entry.kind == Kind::Data)?;
    let countable = |pba: Pba| {
        segment_of(&geometry, pba).is_some_and(|segment| {
            let segment = shared.segments.segment(segment);
            matches!(segment.state, State::Open | State::Closed)
                && segment.valid < geometry.segment_blocks
        })
    };
    let lba = Lba(entry.key);
    let source = entry.word.address;
    let nowhere = damaged(Structure::RecordHeader, Reason::Field("address"), entry.pba);
    match entry.kind {
        Kind::Discard if sings(Canary::DiscardForgotten) => {}
        Kind::Discard => {
            shared.map.discard(&mut shared.segments, lba, u64::from(entry.count), now);
        }
        // The source may have been freed since, if it was overwritten meanwhile.
        Kind::Data if entry.relocated && segment_of(&geometry, source).is_none() => {
            return Err(nowhere);
        }
        Kind::Data if entry.relocated && entry.pba == source => shared.map.stays(lba, pointer),
        _ if !countable(entry.pba) => return Err(nowhere),
        Kind::Data if entry.relocated => {
            let matches = IfUnknown::Matches;
            shared.map.update_if(&mut shared.segments, lba, source, pointer, matches, now);
        }
        _ => {
            shared.map.update(&mut shared.segments, lba, pointer, now);
            shared.log.write_clock += 1;
        }
    }
    shared.map.unreserve(updates);
    Ok(())
}
