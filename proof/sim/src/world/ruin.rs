//! Metadata that is damaged while the store is not open, and what that explains.
//!
//! What is there to be damaged, and which addresses it is about, is read by the checker's dumps from the device as it
//! was before any damage: the engine is not asked. A block of a plan that is made shorter may not exist; then nothing
//! happens.

use super::{World, violation};
use crate::device::Device;
use crate::oracle::Violation;
use crate::plan::Ruin;
use coulter_check::dump::{self, CheckpointDump, RecordRow, RecordState, SuperblockState};
use coulter_engine::Degraded;
use coulter_format::checksum::Kind;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::record::RecordView;
use coulter_format::{BLOCK_SIZE, Block, Pba, StoreId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};

/// What a damaged block holds.
const RUINED: Block = [0x5a; BLOCK_SIZE];

const LEAF: u64 = ENTRIES_PER_PAGE as u64;
const ROOT: u64 = LEAF * LEAF;

/// What is damaged, and what that means.
#[derive(Default)]
pub(super) struct Ruins {
    /// To be done as soon as the store is not open.
    due: Vec<(Ruin, u64)>,
    /// What damaged blocks held.
    originals: BTreeMap<u32, Block>,
    /// Addresses of the store that may be errors when it is opened next.
    explained: Vec<Range<u64>>,
    /// Nothing but what has a second copy, or can be rebuilt, is damaged.
    is_mendable: bool,
    /// A page of the map was damaged: what it referred to stays counted, and cannot be counted anew.
    pub(super) hides_counts: bool,
    /// The store was opened and refuses writes.
    pub(super) refuses: bool,
}

impl Ruins {
    /// Whether anything was ever damaged.
    pub(super) fn any(&self) -> bool {
        !self.originals.is_empty()
    }

    /// Whether what is damaged explains that an address of the store is an error after this opening.
    pub(super) fn explains(&self, lba: u64) -> bool {
        self.explained.iter().any(|range| range.contains(&lba))
    }
}

impl World {
    /// Damage that is done when the store is closed or the power goes.
    pub(super) fn await_ruin(&mut self, ruin: Ruin, number: u64) {
        self.ruins.due.push((ruin, number));
    }

    /// The store is not open: what is to be damaged is damaged now.
    pub(super) fn ruin(&mut self) {
        for (ruin, number) in std::mem::take(&mut self.ruins.due) {
            let Some(view) = View::of(&self.intact()) else { return };
            let places = view.places(ruin, number);
            // What attests that a damaged record was durable is so itself. Else a later loss of it would leave nobody who
            // knows: the limit that docs/durability.md names.
            self.device.flush_all();
            self.ruins.hides_counts |= matches!(ruin, Ruin::Root | Ruin::Leaf);
            self.note(|_| format!("{ruin:?} {number} damages the blocks {places:?}"));
            for place in places {
                let block = self.device.block(Pba(place)).expect("it is on the device");
                if block != RUINED {
                    self.ruins.originals.insert(place, block);
                    self.device.replace(Pba(place), RUINED);
                    self.config.degraded = Degraded::ReadWrite;
                    self.outcome.blocks_ruined += 1;
                }
            }
        }
    }

    /// The device as it would be without damage.
    fn intact(&mut self) -> Device {
        let mut intact = self.device.clone();
        for (place, original) in &self.ruins.originals {
            if intact.block(Pba(*place)) == Some(RUINED) {
                intact.write(Pba(*place), &[*original]);
            }
        }
        intact
    }

    /// Finds out what the damage may cost an opening that begins now.
    pub(super) fn explain_ruins(&mut self) {
        self.ruins.refuses = false;
        if !self.ruins.any() {
            return;
        }
        let is_ruined = |place: &u32| self.device.block(Pba(*place)) == Some(RUINED);
        let ruined = self.ruins.originals.keys().copied().filter(is_ruined).collect();
        let view = View::of(&self.intact()).expect("no body and no superblock is damaged");
        (self.ruins.explained, self.ruins.is_mendable) = view.explained(&ruined);
        let Ruins { explained, is_mendable, .. } = &self.ruins;
        let told = format!("damaged: {ruined:?}, mendable: {is_mendable}, explains {explained:?}");
        self.note(|_| told);
    }

    /// Nobody gets on: whether that is because segments with damaged headers keep what they have.
    pub(super) fn gives_up_for_want_of_room(&mut self) -> bool {
        let gives_up = self.ruins.any() && self.engine().give_up_for_want_of_room();
        self.ruins.refuses |= gives_up;
        self.failed |= gives_up;
        gives_up
    }

    /// The store is open: whether it takes writes, and whether it should be degraded.
    pub(super) fn note_degradation(&mut self) -> Result<(), Violation> {
        if !self.ruins.any() {
            return Ok(());
        }
        let is_degraded = self.engine().degradation().is_some();
        self.ruins.refuses = self.engine().read_only().is_some();
        if self.ruins.refuses {
            // No checkpoint flushes what was recovered; the device writes it out meanwhile.
            self.device.flush_all();
        }
        self.outcome.degraded_openings += u64::from(is_degraded);
        if is_degraded && self.ruins.is_mendable {
            return violation(format!("nothing is lost, but: {:?}", self.engine().degradation()));
        }
        if self.ruins.refuses && !is_degraded {
            return violation("a store that is not degraded refuses writes".to_owned());
        }
        Ok(())
    }
}

/// A store without damage, as the checker's dumps show it.
struct View {
    checkpoint: CheckpointDump,
    /// By sequence: what is replayed, and of it the blocks that hold the extents of the record before.
    log: BTreeMap<u64, Logged>,
    /// Headers in it that a power cut has torn; the record behind each tells of it.
    torn: BTreeSet<u32>,
    /// Up to here the newest superblock attests that all was durable.
    durable: u64,
    /// The leaf pages of each root page: key and place.
    leaves: BTreeMap<u64, u32>,
    /// First entries of each block of each run.
    runs: BTreeMap<u32, Range<u64>>,
}

struct Logged {
    row: RecordRow,
    /// Whether its header tells of the record before.
    tells: bool,
}

impl View {
    fn of(device: &Device) -> Option<View> {
        let superblocks = dump::superblock(&mut device.blocks()).value?;
        let newest = superblocks.into_iter().find_map(|copy| match copy.state {
            SuperblockState::Valid(fields) if fields.newest => Some(fields),
            _ => None,
        })?;
        let store = StoreId { uuid: [5; 16], salt: 99 };
        let checkpoint = dump::checkpoint(&mut device.blocks()).value?;
        let (mut log, mut torn) = (BTreeMap::new(), BTreeSet::new());
        dump::records(&mut device.blocks(), None, |row| {
            if row.state == RecordState::Replayed {
                let block = device.block(Pba(row.block)).expect("it was read");
                let header = RecordView::decode(&block, &store, Pba(row.block));
                let echo = header.as_ref().ok().and_then(RecordView::echo);
                let tells = echo.is_some_and(|echo| echo.sequence() + 1 == row.sequence);
                if header.is_err() {
                    torn.insert(row.block);
                }
                log.insert(row.sequence, Logged { row: row.clone(), tells });
            }
            ControlFlow::Continue(())
        });
        let block = |place: u32| device.block(Pba(place)).expect("it is on the device");
        let mut leaves = BTreeMap::new();
        for root in &checkpoint.roots {
            let page = block(root.place.block);
            for (slot, pointer) in (0..).zip(coulter_format::map_page::decode(&page)) {
                if pointer.is_mapped() {
                    leaves.insert(root.key * LEAF + slot, pointer.pba.0);
                }
            }
        }
        let mut runs = BTreeMap::new();
        for place in checkpoint.runs.iter().flat_map(|run| &run.blocks) {
            let bytes = block(place.block);
            let entries = coulter_format::run::decode(&bytes).expect("it is intact");
            let lbas = entries.map(|entry| entry.lba.0);
            let (first, last) = lbas.fold((u64::MAX, 0), |(first, _), lba| (first.min(lba), lba));
            runs.insert(place.block, first..last);
        }
        Some(View { checkpoint, log, torn, durable: newest.durable_sequence, leaves, runs })
    }

    /// Both copies of each root page, table page, block of a run, and page of the list of roots.
    fn pairs(&self) -> [Vec<[u32; 2]>; 4] {
        let CheckpointDump { roots, table, runs, root_lists, .. } = &self.checkpoint;
        let runs = runs.iter().flat_map(|run| run.blocks.iter().map(|place| place.block));
        [
            self.paired(Kind::Root, roots.iter().map(|root| root.place.block).collect()),
            self.paired(Kind::SegmentTable, table.iter().map(|place| place.block).collect()),
            self.paired(Kind::Run, runs.collect()),
            self.paired(Kind::RootList, root_lists.iter().map(|place| place.block).collect()),
        ]
    }

    /// Blocks of a kind with their second copies, which the checkpoint lists in the same order.
    fn paired(&self, kind: Kind, firsts: Vec<u32>) -> Vec<[u32; 2]> {
        let is_copy = |owner_kind: Kind| kind.of_copy() == Some(owner_kind);
        let copies = self.checkpoint.second_copies.iter();
        let copies: Vec<u32> =
            copies.filter(|copy| is_copy(copy.owner.kind)).map(|copy| copy.block).collect();
        assert_eq!(firsts.len(), copies.len(), "each {kind:?} has a second copy");
        firsts.into_iter().zip(copies).map(|(first, copy)| [first, copy]).collect()
    }

    /// The blocks that a ruin damages.
    fn places(&self, ruin: Ruin, number: u64) -> Vec<u32> {
        let [roots, table, runs, lists] = self.pairs();
        let headers: Vec<u32> =
            self.checkpoint.references.iter().map(|referred| referred.header.block).collect();
        match ruin {
            Ruin::Copy => {
                let all = [roots, table, runs, lists].concat();
                chosen(&all, number).map(|pair| vec![pair[(number >> 32) as usize % 2]])
            }
            Ruin::Table => chosen(&table, number).map(|pair| pair.to_vec()),
            Ruin::Run => chosen(&runs, number).map(|pair| pair.to_vec()),
            Ruin::Root => chosen(&roots, number).map(|pair| pair.to_vec()),
            Ruin::Leaf => {
                let leaves: Vec<u32> = self.leaves.values().copied().collect();
                chosen(&leaves, number).map(|leaf| vec![*leaf])
            }
            Ruin::Referred => chosen(&headers, number).map(|header| vec![*header]),
            Ruin::ReferredPair => {
                let groups: Vec<Vec<u32>> =
                    self.groups().into_values().filter(|group| group.len() > 1).collect();
                chosen(&groups, number).map(|group| group[..2].to_vec())
            }
            Ruin::Header => self.logged(number, 1).map(|rows| vec![rows[0].block]),
            Ruin::HeaderAndPayload => self.logged(number, 1).map(|rows| blocks_of(&rows)),
            Ruin::Headers => self.logged(number, 2).map(|rows| blocks_of(&rows)),
        }
        .unwrap_or_default()
    }

    /// Headers that the checkpoint refers to, by their parity.
    fn groups(&self) -> BTreeMap<u32, Vec<u32>> {
        let mut groups: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for referred in &self.checkpoint.references {
            if let Some(parity) = referred.parity_block {
                groups.entry(parity).or_default().push(referred.header.block);
            }
        }
        groups
    }

    /// So many records in a row behind the checkpoint, of which others attest that they were durable.
    fn logged(&self, number: u64, count: u64) -> Option<Vec<&RecordRow>> {
        let rows = |first: u64| -> Option<Vec<&RecordRow>> {
            let rows: Option<Vec<_>> = (first..first + count)
                .map(|sequence| self.log.get(&sequence).map(|logged| &logged.row))
                .collect();
            let rows = rows.filter(|rows| !rows.iter().any(|row| row.scattered))?;
            let others = self.log.values().filter(|logged| {
                logged.row.sequence < first || logged.row.sequence >= first + count
            });
            let attested = others.map(|logged| logged.row.durable_sequence).max().unwrap_or(0);
            (first + count <= attested.max(self.durable) + 1).then_some(rows)
        };
        let firsts: Vec<u64> =
            self.log.keys().copied().filter(|first| rows(*first).is_some()).collect();
        rows(*chosen(&firsts, number)?)
    }

    /// What the damage of these blocks may put in doubt, and whether all of it can be mended.
    fn explained(&self, ruined: &BTreeSet<u32>) -> (Vec<Range<u64>>, bool) {
        let ruined: &BTreeSet<u32> = &ruined.union(&self.torn).copied().collect();
        let mut explained = Vec::new();
        let mut is_mendable = true;
        let is_lost = |pair: &[u32; 2]| pair.iter().all(|place| ruined.contains(place));
        let [roots, table, _, lists] = self.pairs();
        is_mendable &= !table.iter().any(is_lost);
        if lists.iter().any(is_lost) {
            // Which roots it named is not known.
            is_mendable = false;
            explained.push(0..u64::MAX);
        }
        for (root, pair) in self.checkpoint.roots.iter().zip(&roots) {
            if is_lost(pair) {
                explained.push(root.key * ROOT..(root.key + 1) * ROOT);
            }
        }
        for (key, leaf) in &self.leaves {
            if ruined.contains(leaf) {
                explained.push(key * LEAF..(key + 1) * LEAF);
            }
        }
        is_mendable &= !self.explain_runs(&is_lost, &mut explained);
        for (parity, group) in self.groups() {
            let lost = group.iter().chain([&parity]).filter(|place| ruined.contains(place)).count();
            if lost > 1 && group.iter().any(|header| ruined.contains(header)) {
                is_mendable = false;
                self.explain_references(&group, ruined, &mut explained);
            }
        }
        is_mendable &= !self.explain_log(ruined, &mut explained);
        (explained, is_mendable)
    }

    /// What a lost block of a run may have said. Whether one is lost.
    fn explain_runs(
        &self,
        is_lost: &dyn Fn(&[u32; 2]) -> bool,
        explained: &mut Vec<Range<u64>>,
    ) -> bool {
        let [_, _, runs, _] = self.pairs();
        let mut pairs = runs.iter();
        let mut any = false;
        for run in &self.checkpoint.runs {
            let pairs: Vec<_> = pairs.by_ref().take(run.blocks.len()).collect();
            let mut from = 0;
            let mut is_open = false;
            for pair in pairs {
                let said = &self.runs[&pair[0]];
                if is_lost(pair) {
                    (any, is_open) = (true, true);
                    continue;
                }
                if std::mem::take(&mut is_open) {
                    let end = (said.start / LEAF + 1) * LEAF;
                    self.explain_live((run.sweep_cycle, run.sweep_leaf), from..end, explained);
                }
                from = said.end;
            }
            if is_open {
                self.explain_live((run.sweep_cycle, run.sweep_leaf), from..u64::MAX, explained);
            }
        }
        any
    }

    fn explain_references(
        &self,
        group: &[u32],
        ruined: &BTreeSet<u32>,
        explained: &mut Vec<Range<u64>>,
    ) {
        for referred in &self.checkpoint.references {
            let header = &referred.header.block;
            if group.contains(header) && ruined.contains(header) {
                let written = (referred.sweep_cycle, referred.sweep_leaf);
                self.explain_live(written, 0..u64::MAX, explained);
            }
        }
    }

    /// Of these addresses, those in leaves that the sweep has not passed since it stood at `written`.
    fn explain_live(
        &self,
        written: (u64, u64),
        range: Range<u64>,
        explained: &mut Vec<Range<u64>>,
    ) {
        let now = (self.checkpoint.sweep_cycle, self.checkpoint.sweep_leaf);
        // The leaves before `written` are passed in the cycle after it, the others in its own.
        for (leaves, cycle) in
            [(0..written.1, written.0 + 1), (written.1..u64::MAX / LEAF, written.0)]
        {
            let first = match cycle.cmp(&now.0) {
                std::cmp::Ordering::Less => leaves.end,
                std::cmp::Ordering::Equal => leaves.start.max(now.1),
                std::cmp::Ordering::Greater => leaves.start,
            };
            let live = range.start.max(first * LEAF)..range.end.min(leaves.end * LEAF);
            if live.start < live.end {
                explained.push(live);
            }
        }
    }

    /// What lost records of the log changed and no later one. Whether any is lost for good.
    fn explain_log(&self, ruined: &BTreeSet<u32>, explained: &mut Vec<Range<u64>>) -> bool {
        let is_lost = |row: &RecordRow| ruined.contains(&row.block);
        let mut any = false;
        for (sequence, Logged { row, .. }) in &self.log {
            if !is_lost(row) {
                continue;
            }
            let next = self.log.get(&(sequence + 1));
            let is_told = next.is_some_and(|next| next.tells && !is_lost(&next.row));
            let payload = row.block + 1..=row.block + u32::from(row.payload_blocks);
            let is_rebuilt = is_told && !payload.into_iter().any(|place| ruined.contains(&place));
            any |= !is_rebuilt;
            let changed = match is_told {
                true => changes_of(row).collect(),
                false => std::iter::once(0..u64::MAX).collect(),
            };
            let later = self.log.range(sequence + 1..).map(|(_, logged)| &logged.row);
            let later = later.filter(|row| !is_lost(row)).flat_map(changes_of);
            explained.extend(later.fold(changed, |rest, known| without(rest, &known)));
        }
        any
    }
}

fn chosen<T>(list: &[T], number: u64) -> Option<&T> {
    (!list.is_empty()).then(|| &list[number as usize % list.len()])
}

/// The headers of records, and the first block of each one's payload, unless that is metadata: what the checkpoint
/// lists lies behind it in the log.
fn blocks_of(rows: &[&RecordRow]) -> Vec<u32> {
    let rows = rows.iter().flat_map(|row| {
        let holds_data = row.extents.iter().any(|extent| is_of_host(extent.kind));
        let is_data = holds_data && row.extents.iter().all(|extent| is_of_host(extent.kind));
        row.block..=row.block + u32::from(is_data && row.payload_blocks > 0)
    });
    rows.collect()
}

/// Whether an extent is the host's.
fn is_of_host(kind: &str) -> bool {
    matches!(kind, "data" | "discard")
}

/// Addresses that a record of the host's changed: what is only moved holds what it held.
fn changes_of(row: &RecordRow) -> impl Iterator<Item = Range<u64>> + '_ {
    let changes = row.extents.iter().filter(|extent| !extent.relocated && is_of_host(extent.kind));
    changes.map(|extent| extent.key..extent.key + u64::from(extent.blocks))
}

/// What is left of ranges.
fn without(ranges: Vec<Range<u64>>, taken: &Range<u64>) -> Vec<Range<u64>> {
    let parts = ranges.into_iter().flat_map(|range| {
        let before = range.start..range.end.min(taken.start);
        let behind = range.start.max(taken.end)..range.end;
        [before, behind]
    });
    parts.filter(|range| range.start < range.end).collect()
}
