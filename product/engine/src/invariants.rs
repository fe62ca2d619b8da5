//! What must be true between any two steps, recounted from scratch.
//!
//! The engine keeps counts so that it need not look: how much of a segment is counted on, who reads it,
//! what recovery would need. Each of them can drift by one and nobody would see it for hours. Here every
//! count is made again from what it counts, by other code than keeps it.
//!
//! # Contract
//! - Called between two inputs, never in the midst of one. It changes nothing.
//! - The device is asked for map pages that are not in memory. What it does not tell, or tells wrongly, is
//!   taken for damaged: then counts must only be no lower than what is known.
//! - After a failed write what was under way is given up, and what counted it says nothing any more.
//!
//! # Does not
//! run in a program that serves anybody: it costs as much as the store is large.

use crate::Engine;
use crate::api::Phase;
use crate::ios::Purpose;
use crate::loads::Waiter;
use crate::log::verify::UnderWay;
use crate::requests::Work;
use crate::segments::Segments;
use crate::units::SegmentIndex;
use alloc::vec::Vec;
use coulter_format::{Block, Pba};

/// What lies in a block of the device now, if anybody can tell.
pub(crate) type Stored<'a> = &'a dyn Fn(Pba) -> Option<Block>;

/// References, counted anew.
pub(crate) struct Tally<'a> {
    segments: &'a Segments,
    counts: Vec<u32>,
    /// Every page that counts could be looked at.
    is_whole: bool,
}

impl Tally<'_> {
    fn new(segments: &Segments) -> Tally<'_> {
        Tally { segments, counts: alloc::vec![0; segments.iter().count()], is_whole: true }
    }

    /// One reference to a block. What is lost is nowhere.
    pub(crate) fn count(&mut self, pba: Pba) {
        if pba == Pba::LOST {
            self.is_whole = false;
        } else if pba != Pba::NOWHERE {
            self.counts[self.segments.of(pba).index()] += 1;
        }
    }

    /// Something that counts could not be looked at.
    pub(crate) fn miss(&mut self) {
        self.is_whole = false;
    }

    fn assert_counts(&self) {
        for (index, segment) in self.segments.iter() {
            let counted = self.counts[index.index()];
            let (valid, whole) = (segment.valid, self.is_whole);
            let agrees = if whole { valid == counted } else { valid >= counted };
            assert!(
                agrees,
                "{index:?} counts {valid} references, and there are {counted} (all: {whole}): \
                 {segment:?}"
            );
        }
    }
}

impl Engine {
    /// Counts anew what the engine counts, and compares; `stored` says what a block of the device holds.
    ///
    /// # Panics
    /// If a count, a list or a state contradicts another one: that is a bug of the engine.
    pub fn assert_invariants(&self, stored: &dyn Fn(Pba) -> Option<Block>) {
        self.shared.ios.assert_invariants();
        let is_open = !matches!(self.shared.phase, Phase::Opening | Phase::Failed(_));
        if !is_open || self.shared.segments.miscounted() {
            return;
        }
        let is_sound = self.shared.poisoned.is_none();
        let under_way = self.shared.log.assert_invariants(&self.shared.segments, is_sound);
        self.assert_references(stored);
        self.shared.map.assert_invariants(&under_way, is_sound);
        assert!(
            self.shared.map.size() <= self.shared.map_size(),
            "the map stays below its ceiling"
        );
        self.shared.segments.assert_invariants();
        self.shared.segments.assert_holes();
        self.shared.segments.assert_ready();
        self.assert_readers();
        self.assert_cache();
        self.assert_requests();
        self.shared.assert_room(is_sound);
        if is_sound {
            self.assert_relocations(&under_way);
            self.assert_loads();
            self.checkpointer
                .assert_invariants(self.count_ios(|purpose| purpose == Purpose::Checkpoint));
            self.shared.lists.assert_invariants(!self.shared.signals.checkpoint_is_active());
        }
    }

    fn assert_references(&self, stored: Stored<'_>) {
        let mut tally = Tally::new(&self.shared.segments);
        self.shared.map.tally(&mut tally, stored);
        self.shared.lists.listed(&self.shared.map).for_each(|pba| tally.count(pba));
        self.shared.lists.listed_anew().for_each(|pba| tally.count(pba));
        tally.assert_counts();
    }

    fn count_ios(&self, is_wanted: impl Fn(Purpose) -> bool) -> usize {
        self.shared.ios.purposes().filter(|purpose| is_wanted(*purpose)).count()
    }

    /// Every read that is on its way keeps its segment, and nothing else does.
    fn assert_readers(&self) {
        let mut readers = alloc::vec![0; self.shared.segments.iter().count()];
        for purpose in self.shared.ios.purposes() {
            let read = match purpose {
                Purpose::Read(part) => part.segment,
                Purpose::Load(slot) => self.shared.loads.segment_of(slot),
                Purpose::Clean(slot) => self.cleaner.segment_of(slot),
                Purpose::Defrag(segment) => segment,
                Purpose::Scrub(piece) => match piece.segment {
                    Some(segment) => segment,
                    // Before the log, or behind it.
                    None => continue,
                },
                Purpose::Trim(segment) => {
                    self.shared.segments.assert_trimming(segment);
                    continue;
                }
                Purpose::Prepare(segment) => {
                    self.preparer.assert_preparing(&self.shared, segment);
                    continue;
                }
                // A record keeps its segment.
                Purpose::Record(_) | Purpose::Pad { .. } => continue,
                Purpose::Flush | Purpose::Checkpoint | Purpose::Recover(_) => continue,
            };
            readers[read.index()] += 1;
        }
        for (index, _) in self.shared.segments.iter() {
            let counted = self.shared.segments.reader_count(index);
            assert_eq!(counted, readers[index.index()], "who reads {index:?} is counted");
        }
        let cleaning = self.count_ios(|p| matches!(p, Purpose::Clean(_) | Purpose::Defrag(_)));
        let scrubbing = self.count_ios(|purpose| matches!(purpose, Purpose::Scrub(_)));
        self.scrubber.assert_invariants(scrubbing);
        let images = self.shared.log.images();
        let others = self.checkpointer.body_copies_out() + self.scrubber.lent() + images;
        let lent = self.shared.log.lent_count() - others;
        self.cleaner.assert_chunks(cleaning, lent);
    }

    /// What clients look up is what the map says, as far as memory tells.
    fn assert_cache(&self) {
        let Some(cache) = &self.shared.cache else { return };
        cache.each(|lba, cached| {
            let known = self.shared.map.current(lba);
            assert!(
                known.is_none_or(|current| current == cached),
                "{lba:?} is cached at {cached:?}, and lies at {known:?}"
            );
        });
    }

    /// Blocks that are on their way out of a segment are counted there.
    fn assert_relocations(&self, under_way: &UnderWay) {
        let mut leaving = alloc::vec![0; self.shared.segments.iter().count()];
        for relocation in &under_way.relocations {
            leaving[self.shared.segments.of(relocation.source).index()] += 1;
        }
        for (index, segment) in self.shared.segments.iter() {
            assert_eq!(segment.leaving, leaving[index.index()], "what leaves {index:?} is counted");
        }
    }

    /// A page that is being loaded is one that the map waits for, and the reverse.
    fn assert_loads(&self) {
        let out = self.count_ios(|purpose| matches!(purpose, Purpose::Load(_)));
        assert_eq!(self.shared.loads.iter().count(), out, "each load has its command");
        let waiting = self.shared.map.pages_being_loaded();
        assert_eq!(waiting, out, "each page that the map waits for is being loaded");
        for (kind, key) in self.shared.loads.iter() {
            assert!(
                self.shared.map.waits_for(kind, key),
                "{kind:?} {key} is loaded, nobody waits for it"
            );
        }
    }

    /// Each request waits for something that is there, and for as much as it says.
    fn assert_requests(&self) {
        self.shared.requests.assert_invariants();
        let mut reads: Vec<u32> = alloc::vec![0; self.shared.requests.capacity()];
        for purpose in self.shared.ios.purposes() {
            if let Purpose::Read(part) = purpose {
                reads[part.request as usize] += 1;
            }
        }
        let mut parts = alloc::vec![0; self.shared.requests.capacity()];
        self.shared.log.requests_under_way().for_each(|request| parts[request as usize] += 1);
        let mut discards = 0;
        for (index, slot) in self.shared.requests.iter() {
            let under_way = parts[index as usize];
            match slot.work {
                Work::Read { count, cursor, outstanding, .. } => {
                    assert!(cursor <= count, "a read ends with its last block");
                    let out = reads[index as usize];
                    assert_eq!(outstanding, out, "a read waits for its commands");
                    let waits = out > 0 || self.shared.loads.waits(Waiter::Read(index));
                    assert!(waits, "a read waits for a command or a page");
                }
                Work::Write { parts, .. } => self.assert_parts(index, parts, under_way, true),
                Work::Discard { next, end, parts, .. } => {
                    assert!(next <= end, "a discard ends with its last block");
                    let is_logged = next == end;
                    discards += u32::from(!is_logged);
                    let waits = is_logged || self.shared.loads.waits(Waiter::Discard(index));
                    assert!(waits, "a discard that is not logged is tried again");
                    self.assert_parts(index, parts, under_way, is_logged);
                }
                Work::Flush => {
                    assert!(
                        self.shared.requests.is_waiting(index),
                        "a flush waits for the device's"
                    );
                }
            }
        }
        assert_eq!(
            discards,
            u32::from(self.shared.requests.discard_under_way),
            "one discard at a time is logged"
        );
        let flushes = self.count_ios(|purpose| purpose == Purpose::Flush);
        self.flusher.assert_invariants(flushes, self.shared.log.applied);
        self.shared.requests.assert_waiting(self.shared.log.durable, self.shared.log.applied);
    }

    /// A write is in as many records as it says; once all have taken effect, it waits for a flush.
    fn assert_parts(&self, request: u32, parts: u32, under_way: u32, is_logged: bool) {
        assert_eq!(parts, under_way, "a write waits for its records");
        let waits = parts > 0 || !is_logged || self.shared.requests.is_waiting(request);
        assert!(waits, "a write that has taken effect is answered, or waits for a flush");
    }
}

impl Segments {
    /// A discard that is on its way is one of a segment that waits for it.
    fn assert_trimming(&self, segment: SegmentIndex) {
        assert!(self.segment(segment).is_trimmed_now(), "{segment:?} is trimmed and waits for it");
    }
}
