//! Where each block of a leaf lies last: what is left of the map, and the records that are newer.
//!
//! # Which records are newer
//! A value of the map is as old as the record that wrote it there. Where the map says "unmapped", it is as
//! old as the leaf's page; all that is known of that is the page's record, so what was discarded shortly
//! before it may come back.
//!
//! # Which relocations took effect
//! One takes effect if its address lay at its source when it arrived. If the record of the source is still
//! there, that is plain. If it is not, its segment has been written anew since, and two things look the
//! same: the address was overwritten while the relocation was on its way, or the older value is one from
//! before the source was written. No checkpoint is cut while a relocation is on its way, so it was the
//! latter if a checkpoint lies in between.
//!
//! # What is certain
//! A value is certain if nothing that may be newer is hidden: the map tells all of its leaf and no record after the
//! checkpoint is missing, or a record told it that is newer than all those that are. "Unmapped" is a value like
//! any other. What is not certain never counts as being as it was.

use super::copy::Wanted;
use super::events::{Effect, Event};
use super::scan::Log;
use crate::leaves::Leaf;
use crate::window::Window;
use coulter_format::checksum::{self, Kind};
use coulter_format::map_page::{self, ENTRIES_PER_PAGE};
use coulter_format::{BlockPointer, Pba};
use std::collections::HashMap;

/// What is known of a leaf when the map was gone through.
#[derive(Clone, Debug)]
pub(super) struct Base {
    pub(super) key: u64,
    values: Box<[Value; ENTRIES_PER_PAGE]>,
    /// Where its page lies, if it has one that could be read.
    page: Option<Pba>,
    /// Whether it may have a page that could not be read.
    lacks_page: bool,
}

/// What is known of one address.
#[derive(Clone, Copy, Debug, Default)]
struct Value {
    pointer: BlockPointer,
    /// Whether records may say otherwise.
    is_open: bool,
    /// Whether nothing that is hidden can be newer.
    is_certain: bool,
    /// It is what held at the checkpoint, or later.
    is_at_checkpoint: bool,
    /// A damaged map page took it away.
    is_lost: bool,
    /// It is from a record that the checkpoint refers to.
    is_referred: bool,
}

impl Value {
    /// Nothing is known, and records may say something.
    fn open() -> Value {
        Value { is_open: true, ..Value::default() }
    }
}

/// Where the blocks of a leaf lie.
#[derive(Clone, Debug, Default)]
pub(super) struct Settled {
    pub(super) key: u64,
    pub(super) blocks: Vec<SettledBlock>,
    /// Addresses that were mapped, and nothing tells where to.
    pub(super) lost: Vec<u16>,
    /// Addresses of which nothing tells whether they were mapped.
    pub(super) unknown: Vec<u16>,
}

/// Where a block lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct SettledBlock {
    pub(super) index: u16,
    pub(super) pointer: BlockPointer,
    /// Whether a newer version may be hidden.
    pub(super) is_found: bool,
}

impl Base {
    /// Of a leaf of which nothing is known.
    pub(super) fn unknown(key: u64) -> Base {
        Base {
            key,
            values: Box::new([Value::open(); ENTRIES_PER_PAGE]),
            page: None,
            lacks_page: true,
        }
    }

    /// Of a leaf of which these blocks are not where they should be.
    pub(super) fn missing(key: u64, blocks: &[Wanted]) -> Base {
        let rest = Value { is_certain: true, ..Value::default() };
        let values = Box::new([rest; ENTRIES_PER_PAGE]);
        let mut base = Base { key, values, page: None, lacks_page: false };
        for wanted in blocks {
            if let Some(value) =
                base.values.get_mut((wanted.lba % ENTRIES_PER_PAGE as u64) as usize)
            {
                (value.pointer, value.is_certain) = (wanted.pointer, !wanted.is_found);
            }
        }
        base
    }

    /// Of a leaf that nothing hides: what is not lost holds.
    pub(super) fn known(leaf: &Leaf) -> Base {
        Base::of(leaf, |pointer| pointer.is_lost())
    }

    /// Of a leaf of which something is hidden.
    pub(super) fn doubtful(leaf: &Leaf) -> Base {
        Base::of(leaf, |_| true)
    }

    fn of(leaf: &Leaf, is_open: impl Fn(BlockPointer) -> bool) -> Base {
        let mut base = Base::unknown(leaf.key);
        base.lacks_page = !leaf.page_is_known;
        base.page = leaf.page.filter(|_| leaf.page_is_known).map(|page| page.pba);
        for ((value, pointer), is_referred) in
            base.values.iter_mut().zip(leaf.now).zip(leaf.referred)
        {
            let (is_lost, is_open) = (pointer.is_lost(), is_open(pointer));
            // What no run says of an address is in the page, if that could be read.
            let is_certain = !is_lost && (pointer.is_mapped() || leaf.page_is_known);
            let is_at_checkpoint = is_certain;
            let pointer = if is_lost { BlockPointer::NOWHERE } else { pointer };
            *value = Value { pointer, is_open, is_certain, is_at_checkpoint, is_lost, is_referred };
        }
        base
    }

    /// Whether records may say otherwise of anything.
    pub(super) fn is_open(&self) -> bool {
        self.values.iter().any(|value| value.is_open)
    }

    /// A record is missing that may have changed any of it.
    pub(super) fn doubt(&mut self) {
        self.values.iter_mut().for_each(|value| value.is_certain &= !value.is_open);
    }

    /// Updates of the map are hidden from before the checkpoint: records may say what they were.
    pub(super) fn doubt_checkpoint(&mut self) {
        self.doubt();
        self.values.iter_mut().for_each(|value| value.is_at_checkpoint &= !value.is_open);
    }

    /// If the leaf's page could not be read, takes what the newest one says that the log still has.
    pub(super) fn find_page(&mut self, window: &mut Window<'_>, events: &[Event]) {
        if !self.lacks_page {
            return;
        }
        let pages = events.iter().filter(|event| matches!(event.effect, Effect::Page { .. }));
        for event in pages.rev() {
            let BlockPointer { pba, checksum } = event.pointer;
            let Ok(page) = window.block(pba) else { continue };
            if checksum::block(Kind::Leaf, self.key, page) != checksum {
                continue;
            }
            for (value, pointer) in self.values.iter_mut().zip(map_page::decode(page)) {
                if value.is_open && !value.pointer.is_mapped() {
                    let is_lost = pointer.is_lost();
                    let pointer = if is_lost { BlockPointer::NOWHERE } else { pointer };
                    *value = Value { pointer, is_lost, ..Value::open() };
                }
            }
            self.page = Some(pba);
            return;
        }
    }

    /// Where its blocks lie, as it is known.
    pub(super) fn settled(&self) -> Settled {
        let mut settled = Settled { key: self.key, ..Settled::default() };
        for (index, value) in (0..).zip(self.values.iter()) {
            let Value { pointer, is_certain, is_lost, .. } = *value;
            if pointer.is_mapped() {
                settled.blocks.push(SettledBlock { index, pointer, is_found: !is_certain });
            } else if is_lost {
                settled.lost.push(index);
            } else if !is_certain {
                settled.unknown.push(index);
            }
        }
        settled
    }

    /// Lets the records of the log take effect that are newer.
    pub(super) fn resolve(&mut self, events: &[Event], log: &Log) {
        let places: HashMap<(u16, Pba), u64> = events
            .iter()
            .filter(|event| event.is_block())
            .map(|event| ((event.index, event.pointer.pba), event.sequence))
            .collect();
        self.take_back_late(events, log, &places);
        let mut times = self.times(events, log);
        for event in events {
            let first = usize::from(event.index);
            let values = self.values.iter_mut().zip(times.iter_mut());
            for (value, time) in values.skip(first).take(usize::from(event.count)) {
                if !value.is_open || event.sequence < time.sequence || event.sequence == time.of_map
                {
                    continue;
                }
                let is_newest = event.sequence > log.certain_after();
                let (pointer, is_certain) = match event.effect {
                    Effect::Page { .. } => continue,
                    Effect::Written => (event.pointer, is_newest),
                    Effect::Discarded => (BlockPointer::NOWHERE, is_newest),
                    Effect::Moved { source } => {
                        let is_there = value.pointer.pba == source;
                        let is_known = places.contains_key(&(event.index, source));
                        let is_older = time.sequence <= log.cut_before(event.sequence);
                        if !is_there && (is_known || !is_older) {
                            continue;
                        }
                        (event.pointer, is_there && value.is_certain)
                    }
                };
                *value = Value { pointer, is_certain, ..Value::open() };
                time.sequence = event.sequence;
            }
        }
        // Only blocks that do not count are overwritten: these had been discarded.
        for (value, time) in self.values.iter_mut().zip(times.iter()) {
            if value.is_open && log.is_taken_after(value.pointer.pba, time.sequence) {
                *value = Value::open();
            }
        }
    }

    /// Where a relocation says what the checkpoint has by reference, and the address had been overwritten
    /// already, goes back to what was written.
    fn take_back_late(&mut self, events: &[Event], log: &Log, places: &HashMap<(u16, Pba), u64>) {
        let mut written: Box<[Option<Event>; ENTRIES_PER_PAGE]> =
            Box::new([None; ENTRIES_PER_PAGE]);
        for event in events.iter().filter(|event| event.is_block()) {
            let index = usize::from(event.index);
            let Some(value) = self.values.get_mut(index) else { continue };
            let Some(latest) = written.get_mut(index) else { continue };
            let Effect::Moved { source } = event.effect else {
                *latest = Some(*event);
                continue;
            };
            if !value.is_open || !value.is_referred || value.pointer != event.pointer {
                continue;
            }
            let since = places.get(&(event.index, source)).copied();
            let since = since.unwrap_or_else(|| log.cut_before(event.sequence));
            let late = latest.filter(|written| written.sequence > since);
            if let Some(written) = late {
                *value = Value { pointer: written.pointer, ..Value::open() };
            }
        }
    }

    /// How old each value is.
    fn times(&self, events: &[Event], log: &Log) -> Box<[Time; ENTRIES_PER_PAGE]> {
        let of_page = self.page.and_then(|page| {
            let is_it = |event: &&Event| event.pointer.pba == page;
            let event = events.iter().rev().find(is_it)?;
            // Of one that was moved nothing tells when it was made. What was written while it was being
            // made may not be in it, so two checkpoints before it are what is sure.
            let is_first = event.effect == Effect::Page { moved: false };
            is_first.then(|| log.cut_before(log.cut_before(event.sequence)))
        });
        let sequence = of_page.unwrap_or(0);
        let mut times = Box::new([Time { sequence, of_map: 0 }; ENTRIES_PER_PAGE]);
        for (value, time) in self.values.iter().zip(times.iter_mut()) {
            if value.is_at_checkpoint {
                time.sequence = sequence.max(log.checkpoint);
            }
        }
        for event in events {
            let Some(value) = self.values.get(usize::from(event.index)) else { continue };
            let Some(time) = times.get_mut(usize::from(event.index)) else { continue };
            if event.is_block() && value.pointer.is_mapped() && event.pointer == value.pointer {
                let sequence = event.sequence.max(time.sequence);
                *time = Time { sequence, of_map: event.sequence };
            }
        }
        times
    }
}

/// How old a value is.
#[derive(Clone, Copy, Debug)]
struct Time {
    sequence: u64,
    /// The same if the map has it from there: then the record has taken effect.
    of_map: u64,
}
