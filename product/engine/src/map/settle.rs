//! Old locations that may still be counted, and relocations, which must know of none.

use super::Map;
use super::bounds::SWEEP_FRAMES;
use super::chain::Update;
use super::directory::{Flag, LeafPlace, split};
use crate::segments::Segments;
use crate::units::Sequence;
use coulter_format::Lba;

/// What became of an address whose old location may still be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It is not.
    Done,
    /// The leaf must be loaded first.
    MustLoad,
    /// The page that would tell is damaged.
    Damaged,
}

impl Map {
    /// A relocation of an address of this leaf is on its way, or has arrived: while one is, the
    /// leaf stays known, so that the comparison on arrival can be made.
    fn relocation_started(&mut self, place: LeafPlace) {
        self.directory.leaf_mut(place).relocating += 1;
        self.refresh_pin(place);
        assert!(self.relocating < u32::MAX as usize, "relocations can be counted");
        self.relocating += 1;
    }

    /// See [`Map::try_start_relocation`].
    pub(crate) fn relocation_ended(&mut self, lba: Lba) {
        let place = self.directory.place(split(lba).0);
        self.relocation_ended_at(place);
    }

    fn relocation_ended_at(&mut self, place: LeafPlace) {
        let leaf = self.directory.leaf_mut(place);
        assert!(leaf.relocating > 0, "a relocation ends once");
        leaf.relocating -= 1;
        if leaf.unmerged == 0 && !leaf.disk.is_mapped() {
            self.directory.note_emptied();
        }
        self.refresh_pin(place);
        assert!(self.relocating > 0, "a relocation that ends was counted");
        self.relocating -= 1;
    }

    /// Whether so many addresses may be settled, beside what was promised.
    pub(crate) fn journal_has_room_to_settle(&self, addresses: usize) -> bool {
        self.journal.len() + addresses <= 4 * self.budget.journal_size as usize
    }

    /// Begins a relocation of this address if that may be: it keeps the leaf in memory, and needs a
    /// cell. Pinned first: making room for the cell must not give up this very leaf.
    pub(crate) fn try_start_relocation(&mut self, lba: Lba) -> bool {
        let Some(place) = self.directory.find(split(lba).0) else { return false };
        if !self.admits_relocation(place) {
            return false;
        }
        self.relocation_started(place);
        let reserved = self.reserve_down_to(1, SWEEP_FRAMES);
        if !reserved {
            self.relocation_ended_at(place);
        }
        reserved
    }

    fn admits_relocation(&self, place: LeafPlace) -> bool {
        // On arrival each notes an address, like every update that was promised.
        let noted = self.relocating + self.reserved_cells + 1;
        let stays_anyway = self.directory.leaf(place).must_stay();
        (stays_anyway || (self.may_pin() && self.obtainable() > SWEEP_FRAMES + 4))
            && self.journal_length() + noted <= 3 * self.budget.journal_size as usize
            && !self.recovery.is_full(noted)
    }

    /// Looks whether an old location of this address is still counted, and releases it.
    /// Told to load, [`Map::load_step`] has something to do; else who waits would wait for ever.
    pub(crate) fn settle(&mut self, segments: &mut Segments, lba: Lba, now: Sequence) -> Settled {
        let (key, index) = split(lba);
        let Some(place) = self.directory.find(key) else { return Settled::Done };
        let leaf = *self.directory.leaf(place);
        let damaged = leaf.is(Flag::Damaged) || self.root_is_damaged(key);
        let unknown = if damaged { Settled::Damaged } else { Settled::MustLoad };
        let in_memory = leaf.frame.is_some() && !leaf.is(Flag::Loading);
        let no_page = self.directory.is_loaded(place) && !leaf.disk.is_mapped();
        let nothing_counted = no_page || leaf.is(Flag::Cleared);
        let update = self.frames.chain_find(leaf.chain, index);
        let (slot, update) = match update {
            Some((slot, update)) if !update.released => (slot, update),
            None if leaf.is(Flag::Dead) && !in_memory && !nothing_counted => return unknown,
            _ => return Settled::Done,
        };
        if !in_memory && !nothing_counted {
            return unknown;
        }
        if in_memory {
            let old = self.frames.entry(leaf.frame, index);
            if old.is_mapped() {
                segments.release(old.pba, now);
            }
        }
        self.frames.chain_set(slot, Update { released: true, ..update });
        assert!(self.journal.len() < self.journal.capacity(), "room was asked for");
        self.journal.push(lba.0 << 1);
        Settled::Done
    }
}
