//! The map, leaf by leaf: the page on the device, overlaid by the live runs from the oldest to the
//! newest, each after the records that are referred to before it, then by the records after the
//! checkpoint.
//!
//! Three answers are worked out for each of a leaf's 512 addresses: where it lay at the checkpoint,
//! whether the segment table still counts the location in the page besides, and where it lies now.

use crate::checkpoint::Checkpoint;
use crate::finding::{Finding, Owner};
use crate::layout::Layout;
use crate::metadata::read_metadata;
use crate::referred::{OfLeaf, ReferenceCursor};
use crate::replay::Replay;
use crate::report::Report;
use crate::root_lists::Tables;
use crate::runs::{RunCursor, is_live};
use crate::updates::{Update, UpdateCursor};
use crate::window::Window;
use coulter_format::checkpoint::SweepPosition;
use coulter_format::checksum::{self, Kind};
use coulter_format::map_page::{self, ENTRIES_PER_PAGE};
use coulter_format::root_list::LEAVES_PER_TABLE;
use coulter_format::run::RunEntry;
use coulter_format::{BLOCK_SIZE, Block, BlockPointer, Lba, Reason, Structure};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

const PER_PAGE: u64 = ENTRIES_PER_PAGE as u64;

/// Leaf pages read in one request at most.
const PAGES_PER_READ: usize = 256;

type Pointers = [BlockPointer; ENTRIES_PER_PAGE];

/// What is known of one leaf.
pub(crate) struct Leaf {
    /// The leaf's key: its first host address / 512.
    pub(crate) key: u64,
    /// Where its page lies, if it has one.
    pub(crate) page: Option<BlockPointer>,
    /// Whether it has none, or it was read.
    pub(crate) page_is_known: bool,
    /// What the page says.
    pub(crate) base: Pointers,
    /// What the checkpoint says: page and live runs.
    pub(crate) checkpoint: Pointers,
    /// Whether the location in the page is still counted in the segment table besides.
    pub(crate) unreleased: [bool; ENTRIES_PER_PAGE],
    /// Whether the checkpoint has that from a record that it refers to. A relocation in there may have come
    /// too late, if a run that may be hidden says so.
    pub(crate) referred: [bool; ENTRIES_PER_PAGE],
    /// What holds now, after replay.
    pub(crate) now: Pointers,
}

impl Leaf {
    fn new() -> Box<Leaf> {
        let nowhere = [BlockPointer::NOWHERE; ENTRIES_PER_PAGE];
        Box::new(Leaf {
            key: 0,
            page: None,
            page_is_known: false,
            base: nowhere,
            checkpoint: nowhere,
            unreleased: [false; ENTRIES_PER_PAGE],
            referred: [false; ENTRIES_PER_PAGE],
            now: nowhere,
        })
    }

    /// The host address of an entry.
    pub(crate) fn lba(&self, index: usize) -> Lba {
        Lba(self.key.saturating_mul(PER_PAGE).saturating_add(index as u64))
    }
}

/// Who goes through the map.
pub(crate) trait Visitor {
    /// A root page's pointer, whether the page is intact or not.
    fn root(&mut self, _key: u64, _pointer: BlockPointer, _report: &mut Report) {}

    /// A leaf page's pointer, whether the page is intact or not.
    fn leaf_page(&mut self, _key: u64, _pointer: BlockPointer, _report: &mut Report) {}

    /// A leaf that is known. The walk leaves the window to the visitor meanwhile.
    fn leaf(
        &mut self,
        leaf: &Leaf,
        window: &mut Window<'_>,
        report: &mut Report,
    ) -> ControlFlow<()>;

    /// A leaf of which something is hidden by damage. It says what the rest comes to, without the records
    /// after the checkpoint.
    fn doubtful(&mut self, _leaf: &Leaf) {}

    /// A root page that is damaged: where the pages of its leaves lie is not known.
    fn root_damaged(&mut self, _key: u64) {}

    /// One more root is done.
    fn progress(&mut self, _done: u64, _total: u64) {}
}

/// What damage hides of leaves, be they known otherwise or not.
#[derive(Debug, Default)]
pub(crate) struct Hidden {
    position: SweepPosition,
    /// Of runs with damaged blocks: when they were written, and the first and last leaf of what is hidden.
    runs: Vec<(SweepPosition, (u64, u64))>,
    /// When those records took effect that are referred to and whose headers are damaged.
    references: Vec<SweepPosition>,
    /// There may be roots that no page of their list tells of.
    roots_missing: bool,
    /// Roots that one tells of, if so.
    roots: BTreeSet<u64>,
}

impl Hidden {
    /// Whether nothing is.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.references.is_empty() && !self.roots_missing
    }

    /// Whether something that counts may be hidden of this leaf.
    pub(crate) fn hides(&self, leaf: u64) -> bool {
        let mut references = self.references.iter();
        let is_unlisted = self.roots_missing && !self.roots.contains(&(leaf / PER_PAGE));
        is_unlisted
            || self.hides_run(leaf)
            || references.any(|written| is_live(*written, self.position, leaf))
    }

    /// Whether something may be hidden that a run said, be it that addresses were unmapped.
    pub(crate) fn hides_run(&self, leaf: u64) -> bool {
        self.runs.iter().any(|(written, (first, last))| {
            (*first..=*last).contains(&leaf) && is_live(*written, self.position, leaf)
        })
    }
}

/// Goes through all leaves from `first` up to and without `end`, in order. Returns what is hidden by what
/// was met on the way.
pub(crate) fn walk(
    window: &mut Window<'_>,
    layout: &Layout,
    checkpoint: &Checkpoint,
    replay: &Replay,
    leaves: std::ops::Range<u64>,
    visitor: &mut dyn Visitor,
    report: &mut Report,
) -> Hidden {
    let mut walk = Walk {
        window,
        layout,
        position: checkpoint.header.sweep,
        runs: checkpoint.runs.iter().map(RunCursor::new).collect(),
        references: checkpoint.references.cursor(),
        updates: replay.updates.cursor(),
        roots_missing: checkpoint.roots_missing,
        tables: &checkpoint.tables,
        pages: Pages::default(),
        leaf: Leaf::new(),
        known: [false; ENTRIES_PER_PAGE],
        touched: [false; ENTRIES_PER_PAGE],
        report,
    };
    // Runs and updates before the range are skipped, not read.
    walk.skip_before(leaves.start);
    let before = checkpoint.roots.partition_point(|(key, _)| *key < leaves.start / PER_PAGE);
    let mut roots = checkpoint.roots.get(before..).unwrap_or(&[]);
    let total = roots.len() as u64;
    loop {
        let listed = roots.first().map(|(key, _)| *key);
        let overlaid = walk.overlaid_leaf().filter(|leaf| *leaf < leaves.end);
        let overlaid = overlaid.map(|leaf| leaf / PER_PAGE);
        let Some(key) = [listed, overlaid].into_iter().flatten().min() else { break };
        if key.saturating_mul(PER_PAGE) >= leaves.end {
            break;
        }
        let pointer = match roots.split_first() {
            Some(((first, pointer), rest)) if *first == key => {
                roots = rest;
                Some(*pointer)
            }
            _ => None,
        };
        if walk.root(key, pointer, &leaves, visitor).is_break() {
            break;
        }
        visitor.progress(total - roots.len() as u64, total);
    }
    let hidden = |run: &RunCursor<'_>| {
        let written = run.written();
        run.unknown().iter().map(|leaves| (written, *leaves)).collect::<Vec<_>>()
    };
    Hidden {
        position: walk.position,
        runs: walk.runs.iter().flat_map(hidden).collect(),
        references: checkpoint.references.damaged().to_vec(),
        roots_missing: checkpoint.roots_missing,
        roots: match checkpoint.roots_missing {
            true => checkpoint.roots.iter().map(|(key, _)| *key).collect(),
            false => BTreeSet::new(),
        },
    }
}

struct Walk<'a, 'w> {
    window: &'a mut Window<'w>,
    layout: &'a Layout,
    position: SweepPosition,
    runs: Vec<RunCursor<'a>>,
    references: ReferenceCursor<'a>,
    updates: UpdateCursor<'a>,
    /// See [`Checkpoint`].
    roots_missing: bool,
    tables: &'a Tables,
    pages: Pages,
    leaf: Box<Leaf>,
    /// Which entries of the leaf a run says anything of.
    known: [bool; ENTRIES_PER_PAGE],
    /// Which entries of the leaf a record after the checkpoint has changed.
    touched: [bool; ENTRIES_PER_PAGE],
    report: &'a mut Report,
}

impl Walk<'_, '_> {
    /// The next leaf that runs or records say anything of.
    fn overlaid_leaf(&mut self) -> Option<u64> {
        let mut next = [self.updates.leaf(), self.references.leaf()].into_iter().flatten().min();
        for run in &mut self.runs {
            let leaf = run.leaf(self.window, self.layout, self.report);
            next = [next, leaf].into_iter().flatten().min();
        }
        next
    }

    fn skip_before(&mut self, leaf: u64) {
        if let Some(before) = leaf.checked_sub(1) {
            self.updates.take(before);
            self.references.take(before);
            for run in &mut self.runs {
                while run.take(before, self.window, self.layout, self.report).is_some() {}
            }
        }
    }

    /// Goes through the leaves of one root.
    fn root(
        &mut self,
        key: u64,
        pointer: Option<BlockPointer>,
        leaves: &std::ops::Range<u64>,
        visitor: &mut dyn Visitor,
    ) -> ControlFlow<()> {
        let first = key.saturating_mul(PER_PAGE);
        let intact = self.load_root(key, pointer, leaves, visitor);
        let mut overlaid = self.overlaid_leaf();
        for slot in 0..ENTRIES_PER_PAGE {
            let leaf = first.saturating_add(slot as u64);
            let has_page = self.pages.pointer(slot).is_mapped();
            let has_page = has_page || self.pages.is_lost(slot);
            if !has_page && overlaid != Some(leaf) {
                continue;
            }
            if !leaves.contains(&leaf) {
                continue;
            }
            let known = self.fill_leaf(leaf, slot, intact);
            if overlaid == Some(leaf) {
                overlaid = self.overlaid_leaf();
            }
            if known && intact {
                visitor.leaf(&self.leaf, self.window, self.report)?;
            } else {
                self.report.complete = false;
                // A damaged root's leaves were all counted when it was met.
                self.report.counters.leaves_unknown += u64::from(intact);
                visitor.doubtful(&self.leaf);
            }
        }
        ControlFlow::Continue(())
    }

    /// Reads a root page and all its leaf pages in the range. False if the root is damaged.
    fn load_root(
        &mut self,
        key: u64,
        pointer: Option<BlockPointer>,
        leaves: &std::ops::Range<u64>,
        visitor: &mut dyn Visitor,
    ) -> bool {
        self.pages.clear();
        let Some(pointer) = pointer else {
            // A page of the list of roots that is lost may have told of it.
            if self.roots_missing {
                visitor.root_damaged(key);
            }
            return !self.roots_missing;
        };
        visitor.root(key, pointer, self.report);
        let owner = Owner::new(Kind::Root, key);
        let root = read_metadata(self.window, self.layout, owner, pointer, self.report);
        let Some(root) = root else {
            self.report.complete = false;
            self.report.counters.leaves_unknown += PER_PAGE;
            visitor.root_damaged(key);
            return false;
        };
        self.report.counters.root_pages += 1;
        let first = key.saturating_mul(PER_PAGE);
        // The list of roots tells which leaves may have pages.
        let tables = self.tables.get(&key).copied().unwrap_or(u16::MAX);
        let is_told =
            |slot: usize| tables & 1u16.wrapping_shl((slot / LEAVES_PER_TABLE) as u32) != 0;
        let all_told = map_page::decode(root)
            .enumerate()
            .filter(|(_, page)| page.is_mapped())
            .all(|(slot, _)| is_told(slot));
        for (slot, pointer) in map_page::decode(root).enumerate() {
            let leaf = first.saturating_add(slot as u64);
            if pointer.is_lost() {
                self.pages.lose(slot);
            } else if pointer.is_mapped() && leaves.contains(&leaf) {
                visitor.leaf_page(leaf, pointer, self.report);
                self.pages.want(slot, pointer);
            }
        }
        if !all_told {
            let (pba, reason) = (pointer.pba, Reason::Field("tables"));
            self.report.add(Finding::MetadataDamaged { owner, pba, reason });
        }
        self.pages.read(first, self.window, self.layout, self.report);
        true
    }

    /// Works out one leaf. False if that cannot be done, for something is damaged.
    fn fill_leaf(&mut self, key: u64, slot: usize, root_is_known: bool) -> bool {
        let leaf = &mut self.leaf;
        leaf.key = key;
        let pointer = self.pages.pointer(slot);
        leaf.page = pointer.is_mapped().then_some(pointer);
        let mut known = true;
        match self.pages.page(slot) {
            Some(page) => {
                let entries = map_page::decode(page);
                leaf.base.iter_mut().zip(entries).for_each(|(target, entry)| *target = entry);
            }
            None if self.pages.is_lost(slot) => leaf.base.fill(BlockPointer::LOST),
            None => {
                known = !pointer.is_mapped();
                leaf.base.fill(BlockPointer::NOWHERE);
            }
        }
        leaf.page_is_known = known && root_is_known && !self.pages.is_lost(slot);
        leaf.checkpoint = leaf.base;
        leaf.unreleased.fill(false);
        leaf.referred.fill(false);
        self.known.fill(false);
        let mut referred = self.references.take(key);
        known &= !self.references.hides(key, self.position);
        for index in 0..self.runs.len() {
            let number = self.runs.get(index).map(RunCursor::number);
            self.overlay_references(&mut referred, number);
            known &= self.overlay_run(key, index);
        }
        self.overlay_references(&mut referred, None);
        self.leaf.now = self.leaf.checkpoint;
        if self.updates.leaf().is_some_and(|next| next <= key) {
            let updates = self.updates.take(key);
            self.touched.fill(false);
            updates.iter().filter(|_| known).for_each(|update| self.overlay_update(update));
        }
        known
    }

    /// Applies what records changed that are referred to, before a run or after all.
    fn overlay_references(&mut self, referred: &mut OfLeaf<'_>, run: Option<u64>) {
        while let Some(entry) = referred.next_before(run, self.position) {
            self.report.counters.referred_updates += 1;
            overlay_entry(&mut self.leaf, &mut self.known, &entry, true);
        }
    }

    /// Applies a run's entries of a leaf. False if some of them may be lost.
    fn overlay_run(&mut self, key: u64, index: usize) -> bool {
        let Some(run) = self.runs.get_mut(index) else { return true };
        let live = run.is_live(key, self.position);
        while let Some(entry) = run.take(key, self.window, self.layout, self.report) {
            if live {
                self.report.counters.run_updates += 1;
                overlay_entry(&mut self.leaf, &mut self.known, &entry, false);
            }
        }
        !run.hides(key, self.position)
    }

    /// Applies an update of a record.
    fn overlay_update(&mut self, update: &Update) {
        let first = usize::from(update.index);
        let slots = self.leaf.now.iter_mut().zip(&mut self.touched);
        let mut unfounded = false;
        for (now, touched) in slots.skip(first).take(usize::from(update.count)) {
            match update.source {
                // Changed since is what relocations expect. Otherwise recovery trusts the source.
                Some(source) if now.pba != source => unfounded = !*touched,
                _ => (*now, *touched) = (update.pointer, true),
            }
        }
        if unfounded {
            let lba = self.leaf.lba(first);
            let (sequence, pba) = (update.sequence, update.source.unwrap_or_default());
            self.report.add(Finding::RelocationUnfounded { sequence, lba, pba });
        }
    }
}

/// Applies an entry of a run: the newest entry of an address says all, save that a whole leaf that
/// is unmapped "unreleased" leaves released what an older entry had released.
fn overlay_entry(
    leaf: &mut Leaf,
    known: &mut [bool; ENTRIES_PER_PAGE],
    entry: &RunEntry,
    is_referred: bool,
) {
    let first = (entry.lba.0 % PER_PAGE) as usize;
    let whole = entry.count as u64 == PER_PAGE;
    let count = entry.count as usize;
    let values = leaf.checkpoint.iter_mut().zip(&mut leaf.unreleased).zip(known.iter_mut());
    leaf.referred.iter_mut().skip(first).take(count).for_each(|referred| *referred = is_referred);
    for ((value, unreleased), known) in values.skip(first).take(count) {
        let released_before = whole && *known && !*unreleased;
        *value = entry.pointer;
        *unreleased = !entry.released && !released_before;
        *known = true;
    }
}

/// The leaf pages of one root.
#[derive(Default)]
struct Pages {
    pointers: Vec<BlockPointer>,
    /// Leaves whose page the root page says is lost.
    lost: Vec<bool>,
    /// For each leaf, where in `content` its page is, if it is intact.
    places: Vec<Option<usize>>,
    content: Vec<Block>,
    /// Slots by device address.
    order: Vec<usize>,
}

impl Pages {
    fn clear(&mut self) {
        self.pointers.clear();
        self.pointers.resize(ENTRIES_PER_PAGE, BlockPointer::NOWHERE);
        self.places.clear();
        self.places.resize(ENTRIES_PER_PAGE, None);
        self.lost.clear();
        self.lost.resize(ENTRIES_PER_PAGE, false);
        self.order.clear();
    }

    fn lose(&mut self, slot: usize) {
        if let Some(lost) = self.lost.get_mut(slot) {
            *lost = true;
        }
    }

    fn is_lost(&self, slot: usize) -> bool {
        self.lost.get(slot).copied().unwrap_or(false)
    }

    fn pointer(&self, slot: usize) -> BlockPointer {
        self.pointers.get(slot).copied().unwrap_or(BlockPointer::NOWHERE)
    }

    fn page(&self, slot: usize) -> Option<&Block> {
        self.content.get((*self.places.get(slot)?)?)
    }

    fn want(&mut self, slot: usize, pointer: BlockPointer) {
        if let Some(target) = self.pointers.get_mut(slot) {
            *target = pointer;
            self.order.push(slot);
        }
    }

    /// Reads what is wanted, neighbours on the device together.
    fn read(&mut self, first: u64, window: &mut Window<'_>, layout: &Layout, report: &mut Report) {
        let mut order = std::mem::take(&mut self.order);
        order.sort_by_key(|slot| self.pointer(*slot).pba);
        self.content.resize(order.len(), [0; BLOCK_SIZE]);
        let mut place = 0;
        while let Some(slot) = order.get(place) {
            let start = self.pointer(*slot).pba;
            let neighbours = order.iter().skip(place).zip(0u32..).take(PAGES_PER_READ);
            let count = neighbours
                .take_while(|(slot, offset)| self.pointer(**slot).pba == start.plus(*offset))
                .count()
                .max(1);
            let inside =
                layout.place(start).is_some() && u64::from(start.0) + count as u64 <= layout.end();
            let together = inside
                && match window.blocks(start, count as u32) {
                    Ok(blocks) => {
                        let target = self.content.get_mut(place..place + count);
                        target.unwrap_or(&mut []).copy_from_slice(blocks);
                        true
                    }
                    Err(_) => false,
                };
            for (offset, slot) in order.iter().skip(place).take(count).enumerate() {
                let owner = Owner::new(Kind::Leaf, first.saturating_add(*slot as u64));
                let place = place + offset;
                let intact = match together {
                    true => self.verify(place, *slot, owner, report),
                    false => self.read_alone(place, *slot, owner, window, layout, report),
                };
                report.counters.leaf_pages += u64::from(intact);
                if intact && let Some(target) = self.places.get_mut(*slot) {
                    *target = Some(place);
                }
            }
            place += count;
        }
        self.order = order;
    }

    fn verify(&self, place: usize, slot: usize, owner: Owner, report: &mut Report) -> bool {
        let pointer = self.pointer(slot);
        let page = self.content.get(place);
        let found = page.map(|page| checksum::block(owner.kind, owner.key, page));
        let intact = found == Some(pointer.checksum);
        if !intact {
            let reason = Reason::Checksum;
            report.add(Finding::MetadataDamaged { owner, pba: pointer.pba, reason });
        }
        intact
    }

    fn read_alone(
        &mut self,
        place: usize,
        slot: usize,
        owner: Owner,
        window: &mut Window<'_>,
        layout: &Layout,
        report: &mut Report,
    ) -> bool {
        debug_assert_eq!(owner.structure(), Structure::MapPage, "only leaf pages are read here");
        let page = read_metadata(window, layout, owner, self.pointer(slot), report);
        match (page, self.content.get_mut(place)) {
            (Some(page), Some(target)) => {
                *target = *page;
                true
            }
            _ => false,
        }
    }
}
