//! A store in which everything occurs, and the blocks of each structure in it.

use super::{Model, PER_LEAF};
use coulter_format::Pba;
use coulter_format::checksum::Kind;

/// What can be damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Superblock,
    Body,
    Root,
    Leaf,
    Table,
    Run,
    Header,
    Data,
}

impl Class {
    pub(crate) const ALL: [Class; 8] = [
        Class::Superblock,
        Class::Body,
        Class::Root,
        Class::Leaf,
        Class::Table,
        Class::Run,
        Class::Header,
        Class::Data,
    ];
}

impl Model {
    /// A store with leaf pages, live and stale runs, unmerged and unreleased updates, discards,
    /// relocations, segments in their second life, and records to be replayed, the last of them
    /// durable.
    pub(crate) fn rich() -> Model {
        let mut model = Model::new(48);
        model.checkpoint(false);
        for round in 0..24u64 {
            for step in 0..12 {
                let lba = (round * 7919 + step * 104_729) % 2500;
                model.write(lba, 1 + (step % 7) as u16 * 3);
            }
            model.discard(round * 97 % 2400, 30);
            if round % 6 == 5 {
                model.discard(round / 6 * PER_LEAF, 700);
            }
            let lbas: Vec<_> = model.map.keys().copied().skip(3).step_by(41).take(9).collect();
            model.relocate(&lbas);
            model.release(round % 5);
            model.sweep(2);
            // Old segments are emptied, so that some are written again.
            let victim = model.oldest_segment();
            let start = model.start(victim).0;
            let inside = |pba: Pba| (start..start + super::SEGMENT).contains(&pba.0);
            let moved: Vec<_> =
                model.map.iter().filter(|(_, at)| inside(at.pba)).map(|(lba, _)| *lba).collect();
            moved.chunks(100).for_each(|lbas| model.relocate(lbas));
            model.checkpoint(false);
        }
        model.write(40, 9);
        model.write(1000, 5);
        model.discard(45, 1);
        model.flush();
        model.write(2000, 2);
        model.flush();
        model.write(7, 1);
        model
    }

    /// The closed segment that was written first.
    fn oldest_segment(&self) -> u32 {
        let closed = |segment: &&u32| self.states[**segment as usize] == super::State::Closed;
        let latest = |segment: &&u32| self.opened.iter().rposition(|other| other == *segment);
        self.opened.iter().filter(closed).min_by_key(latest).copied().unwrap_or(0)
    }

    /// Every block of a structure that the check must notice: kind, key and place.
    pub(crate) fn blocks_of(&self, class: Class) -> Vec<(Kind, u64, Pba)> {
        let keyed = |kind: Kind| move |(key, pba): (u64, Pba)| (kind, key, pba);
        match class {
            Class::Superblock => {
                let second = self.superblock.geometry.second_superblock;
                [(0, Pba(0)), (1, second)].map(keyed(Kind::Checkpoint)).to_vec()
            }
            Class::Body => {
                (0..).zip(self.body.iter().copied()).map(keyed(Kind::Checkpoint)).collect()
            }
            Class::Root => {
                self.roots.iter().map(|(key, at)| (*key, at.pba)).map(keyed(Kind::Root)).collect()
            }
            Class::Leaf => {
                let leaves = self.leaves.iter().map(|(key, leaf)| (*key, leaf.pointer.pba));
                leaves.map(keyed(Kind::Leaf)).collect()
            }
            Class::Table => {
                let pages = (0..).zip(self.table.iter().map(|at| at.pba));
                pages.map(keyed(Kind::SegmentTable)).collect()
            }
            Class::Run => {
                let blocks = self
                    .runs
                    .iter()
                    .flat_map(|run| (run.number << 20..).zip(run.blocks.iter().map(|at| at.pba)));
                blocks.map(keyed(Kind::Run)).collect()
            }
            Class::Header => {
                let mut headers: Vec<_> =
                    self.map.values().map(|pointer| self.record_of(pointer.pba)).collect();
                headers.sort_unstable();
                headers.dedup();
                // That of the last record: nothing tells that it was durable.
                let last = *self.records.last().expect("there are records");
                headers.retain(|pba| *pba != last);
                headers.into_iter().map(|pba| (0, pba)).map(keyed(Kind::Discard)).collect()
            }
            Class::Data => {
                let last = *self.records.last().expect("there are records");
                let blocks = self.map.iter().map(|(lba, pointer)| (*lba, pointer.pba));
                let blocks = blocks.filter(|(_, pba)| self.record_of(*pba) != last);
                blocks.map(keyed(Kind::Data)).collect()
            }
        }
    }
}
