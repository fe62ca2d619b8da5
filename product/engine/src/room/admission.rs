//! Whether a write has room, and what to do until it has.

use super::{Admission, LEAF, ROOT};
use crate::api::RecordRef;
use crate::loads::Waiter;
use crate::map::load::LoadPurpose;
use crate::pacing::metadata_blocks;
use crate::shared::Shared;
use coulter_format::Lba;
use coulter_format::checkpoint::SweepPosition;
use coulter_format::checksum::Kind;
use coulter_format::record::Extent;
use coulter_format::root_list::LEAVES_PER_TABLE;

impl Shared {
    /// Whether these extents, of one write, have room.
    pub(crate) fn admission(&mut self, extents: &[Extent]) -> Admission {
        if !self.superblock.geometry.is_sparse() {
            return Admission::Free(0);
        }
        let written = || extents.iter().filter(|extent| extent.kind == Kind::Data);
        let charge = self.root_charge();
        let most = written().map(|extent| most_needed(extent, charge)).sum::<u64>();
        if most == 0 {
            return Admission::Free(0);
        }
        match self.try_admit(extents, most) {
            // What nothing is in counts until a checkpoint has done without it: recovery would have it again.
            Admission::Full if self.map.given_up_count() > 0 || self.map.has_empty_root() => {
                self.signals.checkpoint = true;
                Admission::Wait
            }
            Admission::Full => {
                self.map.note_no_empty_root();
                Admission::Full
            }
            admission => admission,
        }
    }

    fn try_admit(&mut self, extents: &[Extent], most: u64) -> Admission {
        let written = || extents.iter().filter(|extent| extent.kind == Kind::Data);
        if !self.has_roots_for(written()) || !self.has_tables_for(written()) {
            return self.wait_or_full();
        }
        let admitted = match self.charge() + self.promises.blocks + most <= self.charge_max() {
            true => Some(most),
            false => self.needed_exactly(written()),
        };
        match admitted {
            None => Admission::Wait,
            // What needs nothing is written even if more is charged than may be, as the table of a damaged store may say.
            Some(needed)
                if needed > 0
                    && self.charge() + self.promises.blocks + needed > self.charge_max() =>
            {
                self.wait_or_full()
            }
            Some(needed) => {
                // They exist from now on: a discard that comes later, and finds them, may concern this
                // write although it did not take effect yet.
                for root in &self.promises.roots {
                    self.map.make_root(*root);
                }
                for leaf in &self.promises.tables {
                    self.map.make_table(*leaf);
                }
                Admission::Free(needed)
            }
        }
    }

    /// Whether the roots of these extents exist or may.
    fn has_roots_for<'e>(&mut self, written: impl Iterator<Item = &'e Extent>) -> bool {
        let roots = &mut self.promises.roots;
        roots.clear();
        for root in written.flat_map(roots_of).filter(|root| !self.map.has_root(*root)) {
            if roots.last() != Some(&root) {
                assert!(roots.len() < roots.capacity(), "no write concerns so many roots");
                roots.push(root);
            }
        }
        roots.sort_unstable();
        roots.dedup();
        (self.map.root_count() + roots.len()) as u64 <= self.map.roots_max()
    }

    /// The same for the tables of their leaves, where these are counted.
    fn has_tables_for<'e>(&mut self, written: impl Iterator<Item = &'e Extent>) -> bool {
        let tables = &mut self.promises.tables;
        tables.clear();
        if !self.superblock.geometry.root_lists {
            return true;
        }
        tables.extend(written.flat_map(tables_of));
        tables.sort_unstable();
        tables.dedup();
        self.map.has_tables_for(tables)
    }

    /// Blocks that a root is charged with.
    fn root_charge(&self) -> u64 {
        // Where there may be very many, their second copies are counted, too.
        if self.superblock.geometry.root_lists { 2 } else { 1 }
    }

    /// Blocks that are charged now.
    pub(crate) fn charge(&self) -> u64 {
        let counted = self.segments.valid_count().saturating_sub(self.segments.listed_blocks());
        let pages = self.map.pageless_count() + self.map.given_up_count();
        counted + pages + self.root_charge() * self.map.root_count() as u64
    }

    /// Blocks that may be charged.
    pub(crate) fn charge_max(&self) -> u64 {
        let capacity = self.superblock.geometry.capacity;
        capacity + metadata_blocks(capacity)
    }

    /// Blocks that these extents need besides what is charged already. Their new roots are those that were noted
    /// last. `None`: a leaf must be loaded, or a discard take effect, before that is known.
    fn needed_exactly<'e>(&mut self, written: impl Iterator<Item = &'e Extent>) -> Option<u64> {
        if self.promises.discards > 0 {
            return None;
        }
        let mut leaves = core::mem::take(&mut self.promises.leaves);
        leaves.clear();
        let (mut blocks, mut unknown) = (0, None);
        for extent in written {
            for lba in extent.key..extent.key + u64::from(extent.count) {
                let leaf = lba / LEAF;
                match self.map.presence(Lba(lba)) {
                    Some(is_mapped) => blocks += u64::from(!is_mapped),
                    // A leaf that is damaged tells nothing, and never will: what is written to it is new.
                    None if self.map.is_doubtful(leaf) => blocks += 1,
                    None => unknown = Some(leaf),
                }
                if !self.map.has_page_or_update(leaf) && leaves.last() != Some(&leaf) {
                    assert!(leaves.len() < leaves.capacity(), "no write concerns so many leaves");
                    leaves.push(leaf);
                }
            }
        }
        // The ranges of a write are in any order, and several may lie in one leaf.
        leaves.sort_unstable();
        leaves.dedup();
        let roots = self.root_charge() * self.promises.roots.len() as u64;
        let needed = blocks + leaves.len() as u64 + roots;
        self.promises.leaves = leaves;
        let Some(leaf) = unknown else { return Some(needed) };
        self.load_for(leaf, Waiter::Nobody, LoadPurpose::Clean);
        None
    }

    /// There is no room as things stand: whether something under way may make some.
    fn wait_or_full(&mut self) -> Admission {
        let is_quiet = self.promises.blocks == 0 && self.promises.discards == 0;
        if !is_quiet || self.requests.discard_under_way || self.signals.checkpoint_is_active() {
            return Admission::Wait;
        }
        let here = self.map.sweep_position();
        match self.promises.settled_at {
            Some(target) if here < target => {
                self.signals.settling = true;
                return Admission::Wait;
            }
            // The round is over, and has settled all that there was.
            Some(_) if !self.map.has_unsettled() => {
                self.promises.settled_at = None;
                self.signals.settling = false;
            }
            _ if self.map.has_unsettled() => {
                let target = SweepPosition { cycle: here.cycle + 1, leaf: here.leaf };
                self.promises.settled_at = Some(target);
                self.signals.settling = true;
                return Admission::Wait;
            }
            _ => {}
        }
        Admission::Full
    }

    /// Blocks that the write in this record may map.
    pub(crate) fn promise(&mut self, record: RecordRef, blocks: u64) {
        self.log.record_mut(record).promised += blocks;
        self.promises.blocks += blocks;
    }

    /// The record discards something.
    pub(crate) fn promise_discard(&mut self, record: RecordRef) {
        let record = self.log.record_mut(record);
        self.promises.discards += u32::from(!core::mem::replace(&mut record.discards, true));
    }

    /// What was promised to a record's writes is charged now, or never will be.
    pub(crate) fn redeem(&mut self, (blocks, discards): (u64, bool)) {
        assert!(self.promises.blocks >= blocks, "what is redeemed was promised");
        self.promises.blocks -= blocks;
        self.promises.discards -= u32::from(discards);
    }

    /// The sweep has moved: whether it is still wanted for what is unsettled.
    pub(crate) fn note_settling(&mut self) {
        if self.promises.settled_at.is_none_or(|target| self.map.sweep_position() >= target) {
            self.signals.settling = false;
        }
    }
}

#[cfg(feature = "verify")]
impl Shared {
    /// # Panics
    /// If what the charge is made of is not what it counts, or more was let in than there is room for.
    pub(crate) fn assert_room(&self, is_sound: bool) {
        let valid = self.segments.iter().map(|(_, segment)| u64::from(segment.valid));
        assert_eq!(self.segments.valid_count(), valid.sum::<u64>(), "references are counted");
        let pages = self.map.root_pages().count() as u64;
        assert_eq!(self.map.root_page_count(), pages, "root pages are counted");
        assert_eq!(
            self.map.pageless_count(),
            self.map.count_pageless(),
            "so are leaves without page"
        );
        assert!(self.map.root_count() as u64 <= self.map.roots_max(), "no root is one too many");
        let (blocks, discards) = self.log.count_promises();
        if is_sound {
            assert_eq!(self.promises.blocks, blocks, "what is promised is in a record");
            assert_eq!(self.promises.discards, discards, "so is what is discarded");
        }
        let listed = self.segments.iter().map(|(_, segment)| u64::from(segment.listed));
        assert_eq!(self.segments.listed_blocks(), listed.sum::<u64>(), "what is listed is counted");
    }
}

/// Blocks that a write may need at most: itself, its leaf pages, its roots.
fn most_needed(extent: &Extent, root_charge: u64) -> u64 {
    let count = |size: u64| {
        let last = extent.key + u64::from(extent.count) - 1;
        last / size - extent.key / size + 1
    };
    u64::from(extent.count) + count(LEAF) + root_charge * count(ROOT)
}

fn roots_of(extent: &Extent) -> impl Iterator<Item = u64> + use<> {
    let last = extent.key + u64::from(extent.count) - 1;
    extent.key / ROOT..=last / ROOT
}

/// A leaf of each table that the extent writes to.
fn tables_of(extent: &Extent) -> impl Iterator<Item = u64> + use<> {
    let per_table = LEAVES_PER_TABLE as u64;
    let last = (extent.key + u64::from(extent.count) - 1) / LEAF;
    (extent.key / LEAF / per_table..=last / per_table).map(move |table| table * per_table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(key: u64, count: u16) -> Extent {
        Extent { key, count, kind: Kind::Data, relocated: false }
    }

    #[test]
    fn a_write_is_promised_its_blocks_its_leaf_pages_and_its_roots() {
        assert_eq!(most_needed(&data(5, 1), 1), 3);
        assert_eq!(most_needed(&data(511, 2), 1), 2 + 2 + 1);
        assert_eq!(most_needed(&data(ROOT - 1, 2), 1), 2 + 2 + 2);
        assert_eq!(most_needed(&data(ROOT - 1, 2), 2), 2 + 2 + 4);
        assert_eq!(roots_of(&data(ROOT - 1, 2)).collect::<alloc::vec::Vec<_>>(), [0, 1]);
        let table = 32 * LEAF;
        assert_eq!(tables_of(&data(table - 1, 2)).collect::<alloc::vec::Vec<_>>(), [0, 32]);
        assert_eq!(tables_of(&data(table, 600)).collect::<alloc::vec::Vec<_>>(), [32]);
    }
}
