//! The flash itself: what may be done to it, what it holds, how worn it is, and that it may lose
//! power at any operation.
//!
//! What it does not do: know which pages are valid. That is the FTL's knowledge, and after a power
//! cut the FTL has to find it out again from what is here: the out-of-band part of each page (which
//! logical page, and the sequence of the host's write), the label of each erase block, and the
//! journal of trims.
//!
//! # NAND rules (asserted)
//! - A page is programmed only when erased, and at an offset above any that was programmed in its
//!   erase block. Skipping offsets is allowed; a skipped page stays unprogrammed until the erase.
//! - Only programmed pages are read. Whole erase blocks are erased, never empty ones.
//!
//! # Sequence contract
//! The sequence of a page says when the *host* wrote it; copies carry their source's. So two pages
//! with equal logical page and sequence hold the same, and of two with different sequences the
//! higher is newer.
//!
//! # Power-loss contract
//! - Operations take effect in the order in which the FTL issues them. The one at which power fails
//!   is torn: a program leaves a page that holds nothing and cannot be programmed, an erase leaves
//!   a block without a readable page that has to be erased again. Later ones do nothing.
//! - The trim journal is in power-protected memory: a trim is durable at once. Its records cost
//!   one map page program for each page full of them.

use crate::content::{Content, Keep};
use crate::counters::{Cause, NandCounters};
use crate::geometry::Geometry;
use crate::profile::Profile;
use crate::timing::Timelines;
use crate::units::{EraseBlock, Lpn, Ns, Ppn};

/// Power failed at this operation or before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerCut;

/// When an operation is done, unless power fails.
pub type Done = Result<Ns, PowerCut>;

/// The out-of-band part of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oob {
    /// The logical page, or a map page's number with [`Oob::MAP`] set.
    pub lpn: u32,
    /// When the host wrote it.
    pub sequence: u64,
}

impl Oob {
    /// Set in `lpn` for pages of the map.
    pub const MAP: u32 = 1 << 31;
}

/// What an erase block is used for, told by the FTL when it opens it and kept out of band with its
/// first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The FTL's own number for the kind of use.
    pub role: u8,
    /// When it was opened: higher is later.
    pub opened: u64,
}

/// `lpn` of pages that hold nothing.
const FREE: u32 = u32::MAX;
const TORN: u32 = u32::MAX - 1;

#[derive(Clone, Copy, Debug)]
struct BlockState {
    /// The lowest offset that may be programmed.
    next: u32,
    erases: u32,
    /// An erase was torn: nothing but another erase may be done.
    spoilt: bool,
    label: Label,
    /// It was erased, and the time for that is charged when it is used again: not before then, and
    /// not before this.
    erase_due: Option<Ns>,
    /// Operation number of its last program. Flash keeps it out of band with that page.
    written: u64,
}

/// The flash of a drive.
#[derive(Clone, Debug)]
pub struct Nand {
    geometry: Geometry,
    pub(crate) time: Timelines,
    lpns: Vec<u32>,
    /// Sequences have 48 bits: at a million programs a second, nine years.
    sequences_low: Vec<u32>,
    sequences_high: Vec<u16>,
    blocks: Vec<BlockState>,
    content: Content,
    /// What the newest map pages hold, by logical page; empty until one is programmed.
    map_entries: Vec<u32>,
    trimmed: Vec<u64>,
    trim_records: u64,
    trim_records_per_page: u64,
    opened: u64,
    writes: u64,
    counters: NandCounters,
    /// Operations until power fails.
    fuse: Option<u64>,
}

impl Nand {
    /// New flash, all erased.
    pub fn new(profile: &Profile, keep: Keep) -> Nand {
        let geometry = profile.geometry;
        let pages = geometry.pages() as usize;
        let label = Label { role: 0, opened: 0 };
        let erased =
            BlockState { next: 0, erases: 0, spoilt: false, label, erase_due: None, written: 0 };
        Nand {
            geometry,
            time: Timelines::new(profile),
            lpns: vec![FREE; pages],
            sequences_low: vec![0; pages],
            sequences_high: vec![0; pages],
            blocks: vec![erased; geometry.erase_blocks as usize],
            content: Content::new(keep, geometry.pages(), geometry.blocks_per_page()),
            map_entries: Vec::new(),
            trimmed: vec![0; geometry.logical_pages().div_ceil(64) as usize],
            trim_records: 0,
            trim_records_per_page: u64::from(geometry.page_size) / 8,
            opened: 0,
            writes: 0,
            counters: NandCounters::default(),
            fuse: None,
        }
    }

    /// The shape.
    #[inline]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What was done so far.
    pub fn counters(&self) -> &NandCounters {
        &self.counters
    }

    /// Bytes of the emulator's own memory that grow with the number of pages, content aside.
    pub fn emulator_bytes(&self) -> u64 {
        (self.lpns.len() * 10 + self.trimmed.len() * 8 + self.map_entries.len() * 4) as u64
    }

    /// Power fails at the operation after `operations` more.
    pub fn cut_power_after(&mut self, operations: u64) {
        self.fuse = Some(operations);
    }

    /// Whether power has failed.
    pub fn is_off(&self) -> bool {
        self.fuse == Some(0)
    }

    /// Power comes back, at `at`.
    pub fn power_on(&mut self, at: Ns) {
        self.fuse = None;
        self.time.restart(at);
    }

    /// Whether the next operation is the one that is torn.
    #[inline]
    fn burn(&mut self) -> Result<bool, PowerCut> {
        match &mut self.fuse {
            None => Ok(false),
            Some(0) => Err(PowerCut),
            Some(left) => {
                *left -= 1;
                Ok(*left == 0)
            }
        }
    }

    /// Reads a page.
    ///
    /// # Errors
    /// [`PowerCut`].
    ///
    /// # Panics
    /// When the page is not programmed.
    #[inline]
    pub fn read(&mut self, at: Ns, page: Ppn, cause: Cause) -> Done {
        assert!(self.lpns[page.index()] < TORN, "only programmed pages are read");
        if self.burn()? {
            return Err(PowerCut);
        }
        self.counters.reads.count(cause);
        Ok(self.time.read(at, self.geometry.block_of(page), self.geometry.offset_of(page)))
    }

    /// Looks at the out-of-band part of a page, programmed or not: what a scan after power-on does.
    ///
    /// # Errors
    /// [`PowerCut`].
    pub fn scan(&mut self, at: Ns, page: Ppn) -> Result<(Option<Oob>, Ns), PowerCut> {
        if self.burn()? {
            return Err(PowerCut);
        }
        self.counters.reads.count(Cause::Recovery);
        let (block, offset) = (self.geometry.block_of(page), self.geometry.offset_of(page));
        Ok((self.oob(page), self.time.read(at, block, offset)))
    }

    /// Programs a page with `content`, of which as much is kept as was asked for.
    ///
    /// # Errors
    /// [`PowerCut`].
    ///
    /// # Panics
    /// When a NAND rule is broken.
    #[inline]
    pub fn program(&mut self, at: Ns, page: Ppn, oob: Oob, content: &[u8], cause: Cause) -> Done {
        let done = self.place(at, page, oob, cause)?;
        self.content.store(page.index(), content);
        Ok(done)
    }

    /// Programs a map page: `changes` are the entries (logical page and raw number of its physical
    /// page) in which it differs from the one that it replaces.
    ///
    /// # Errors
    /// [`PowerCut`].
    ///
    /// # Panics
    /// When a NAND rule is broken.
    pub fn program_map(
        &mut self,
        at: Ns,
        page: Ppn,
        oob: Oob,
        changes: impl Iterator<Item = (usize, u32)>,
    ) -> Done {
        let done = self.place(at, page, oob, Cause::Map)?;
        if self.map_entries.is_empty() {
            self.map_entries = vec![u32::MAX; self.geometry.logical_pages() as usize];
        }
        changes.for_each(|(lpn, entry)| self.map_entries[lpn] = entry);
        Ok(done)
    }

    /// What the newest map page says of a logical page; `u32::MAX` if it was never mapped.
    #[inline]
    pub fn map_entry(&self, lpn: usize) -> u32 {
        self.map_entries.get(lpn).copied().unwrap_or(u32::MAX)
    }

    /// Reads a page and programs another with it, its out-of-band part included.
    ///
    /// # Errors
    /// [`PowerCut`].
    ///
    /// # Panics
    /// When a NAND rule is broken.
    #[inline]
    pub fn copy(&mut self, at: Ns, from: Ppn, to: Ppn, cause: Cause) -> Done {
        let oob = self.oob(from).expect("only programmed pages are copied");
        let read = self.read(at, from, cause)?;
        let done = self.place(read, to, oob, cause)?;
        self.content.copy(from.index(), to.index());
        Ok(done)
    }

    #[inline]
    fn place(&mut self, at: Ns, page: Ppn, oob: Oob, cause: Cause) -> Done {
        let (block, offset) = (self.geometry.block_of(page), self.geometry.offset_of(page));
        let state = &mut self.blocks[block.index()];
        assert!(!state.spoilt, "a block whose erase was torn is erased again first");
        assert!(offset >= state.next, "pages of an erase block are programmed in ascending order");
        assert!(oob.lpn < TORN, "these numbers mean that there is nothing");
        assert!(oob.sequence < 1 << 48, "sequences have 48 bits");
        let torn = match &mut self.fuse {
            None => false,
            Some(0) => return Err(PowerCut),
            Some(left) => {
                *left -= 1;
                *left == 0
            }
        };
        self.writes += 1;
        state.next = offset + 1;
        state.written = self.writes;
        let erase_due = state.erase_due.take();
        if torn {
            self.lpns[page.index()] = TORN;
            return Err(PowerCut);
        }
        self.lpns[page.index()] = oob.lpn;
        self.sequences_low[page.index()] = oob.sequence as u32;
        self.sequences_high[page.index()] = (oob.sequence >> 32) as u16;
        self.counters.programs.count(cause);
        if let Some(due) = erase_due {
            self.time.erase(at.max(due), block);
        }
        Ok(self.time.program(at, block, offset))
    }

    /// Erases an erase block. Its die is busy with that when the block is first programmed again, as
    /// in drives that erase when they open a block: so nobody waits for a die that itself waits until
    /// the victim's pages have been moved.
    ///
    /// # Errors
    /// [`PowerCut`].
    ///
    /// # Panics
    /// When nothing was programmed since the last erase: an FTL that wears flash for nothing is
    /// broken.
    pub fn erase(&mut self, at: Ns, block: EraseBlock) -> Done {
        let torn = self.burn()?;
        let state = &mut self.blocks[block.index()];
        assert!(state.next > 0 || state.spoilt, "an empty erase block is not erased");
        let label = Label { role: 0, opened: 0 };
        let erases = state.erases + 1;
        *state =
            BlockState { next: 0, erases, spoilt: torn, label, erase_due: Some(at), written: 0 };
        let first = self.geometry.page(block, 0).index();
        let count = self.geometry.pages_per_block as usize;
        self.lpns[first..first + count].fill(if torn { TORN } else { FREE });
        self.content.clear(first, count);
        if torn {
            return Err(PowerCut);
        }
        self.counters.erases += 1;
        Ok(at)
    }

    /// Says what an empty erase block will be used for. Lost with the power if no page is
    /// programmed there.
    pub fn label(&mut self, block: EraseBlock, role: u8) {
        let state = &mut self.blocks[block.index()];
        assert!(state.next == 0, "a label is written with the first page");
        self.opened += 1;
        state.label = Label { role, opened: self.opened };
    }

    /// What an erase block is used for.
    pub fn label_of(&self, block: EraseBlock) -> Label {
        self.blocks[block.index()].label
    }

    /// When an erase block was last programmed: higher is later. A copy of a page lies in an erase
    /// block that was programmed later than its source's.
    pub fn written(&self, block: EraseBlock) -> u64 {
        self.blocks[block.index()].written
    }

    /// The out-of-band part of a page; `None` if it is erased or torn.
    #[inline]
    pub fn oob(&self, page: Ppn) -> Option<Oob> {
        let index = page.index();
        let lpn = self.lpns[index];
        let high = u64::from(self.sequences_high[index]) << 32;
        let sequence = high | u64::from(self.sequences_low[index]);
        (lpn < TORN).then_some(Oob { lpn, sequence })
    }

    /// Whether power failed while the page, or its erase block, was written.
    pub fn is_torn(&self, page: Ppn) -> bool {
        self.lpns[page.index()] == TORN
    }

    /// The lowest offset of an erase block that may be programmed.
    #[inline]
    pub fn next_offset(&self, block: EraseBlock) -> u32 {
        self.blocks[block.index()].next
    }

    /// Whether an erase block can be programmed from its first page.
    pub fn is_empty(&self, block: EraseBlock) -> bool {
        let state = &self.blocks[block.index()];
        state.next == 0 && !state.spoilt
    }

    /// How often an erase block was erased.
    pub fn erases(&self, block: EraseBlock) -> u32 {
        self.blocks[block.index()].erases
    }

    /// What is kept of a page.
    #[inline]
    pub fn content(&self, page: Ppn) -> &[u8] {
        self.content.of(page.index())
    }

    /// Whether the host gave up a logical page after it was last programmed.
    #[inline]
    pub fn is_trimmed(&self, page: Lpn) -> bool {
        self.trimmed[page.index() / 64] >> (page.0 % 64) & 1 == 1
    }

    /// Records that the host gave up a logical page.
    ///
    /// # Errors
    /// [`PowerCut`].
    pub fn trim(&mut self, at: Ns, page: Lpn) -> Done {
        if self.burn()? {
            return Err(PowerCut);
        }
        self.trimmed[page.index() / 64] |= 1 << (page.0 % 64);
        self.trim_records += 1;
        if !self.trim_records.is_multiple_of(self.trim_records_per_page) {
            return Ok(at);
        }
        self.counters.programs.count(Cause::Map);
        Ok(self.time.program(at, EraseBlock(0), 0))
    }

    /// Records that the newest program of a logical page is no longer given up.
    #[inline]
    pub(crate) fn untrim(&mut self, page: Lpn) {
        self.trimmed[page.index() / 64] &= !(1 << (page.0 % 64));
    }

    /// The highest sequence of any programmed page; zero if there is none.
    pub(crate) fn sequence_max(&self) -> u64 {
        let pages = (0..self.geometry.pages()).map(Ppn);
        pages.filter_map(|page| self.oob(page)).map(|oob| oob.sequence).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> Nand {
        Nand::new(&Profile::named("tiny").expect("it comes with the crate"), Keep::Tags)
    }

    const OOB: Oob = Oob { lpn: 7, sequence: 1 << 40 };

    #[test]
    fn a_page_holds_what_was_programmed_until_its_block_is_erased() {
        let mut nand = tiny();
        let tags = [1; 16];
        nand.label(EraseBlock(2), 5);
        nand.program(0, Ppn(16), OOB, &tags, Cause::Host).expect("power is on");
        nand.copy(0, Ppn(16), Ppn(9), Cause::Gc).expect("power is on");
        for page in [Ppn(16), Ppn(9)] {
            assert_eq!(nand.oob(page), Some(OOB));
            assert_eq!(nand.content(page), tags);
        }
        assert_eq!(nand.label_of(EraseBlock(2)).role, 5);
        nand.erase(0, EraseBlock(2)).expect("power is on");
        assert_eq!(nand.oob(Ppn(16)), None);
        assert_eq!(nand.content(Ppn(16)), [0; 16]);
        assert_eq!(nand.erases(EraseBlock(2)), 1);
        let done = nand.counters();
        assert_eq!((done.programs.host, done.programs.gc, done.reads.gc), (1, 1, 1));
    }

    #[test]
    #[should_panic(expected = "ascending order")]
    fn a_page_is_not_programmed_twice() {
        let mut nand = tiny();
        nand.program(0, Ppn(3), OOB, &[0; 16], Cause::Host).expect("power is on");
        let _ = nand.program(0, Ppn(3), OOB, &[0; 16], Cause::Host);
    }

    #[test]
    #[should_panic(expected = "ascending order")]
    fn a_lower_page_is_not_programmed_after_a_higher_one() {
        let mut nand = tiny();
        nand.program(0, Ppn(3), OOB, &[0; 16], Cause::Host).expect("power is on");
        let _ = nand.program(0, Ppn(2), OOB, &[0; 16], Cause::Host);
    }

    #[test]
    #[should_panic(expected = "only programmed pages are read")]
    fn an_erased_page_is_not_read() {
        let _ = tiny().read(0, Ppn(0), Cause::Host);
    }

    #[test]
    #[should_panic(expected = "an empty erase block is not erased")]
    fn an_empty_block_is_not_erased() {
        let _ = tiny().erase(0, EraseBlock(0));
    }

    #[test]
    fn power_fails_at_the_given_operation_and_tears_it() {
        let mut nand = tiny();
        nand.cut_power_after(2);
        nand.program(0, Ppn(0), OOB, &[1; 16], Cause::Host).expect("power is on");
        assert_eq!(nand.program(0, Ppn(1), OOB, &[1; 16], Cause::Host), Err(PowerCut));
        assert_eq!(nand.program(0, Ppn(2), OOB, &[1; 16], Cause::Host), Err(PowerCut));
        assert!(nand.is_off());
        nand.power_on(0);
        assert_eq!(nand.oob(Ppn(0)), Some(OOB));
        assert!(nand.is_torn(Ppn(1)));
        assert!(!nand.is_torn(Ppn(2)));
        assert_eq!(nand.next_offset(EraseBlock(0)), 2);

        nand.cut_power_after(1);
        assert_eq!(nand.erase(0, EraseBlock(0)), Err(PowerCut));
        nand.power_on(0);
        assert!(nand.is_torn(Ppn(0)));
        assert!(!nand.is_empty(EraseBlock(0)));
        nand.erase(0, EraseBlock(0)).expect("power is on");
        assert!(nand.is_empty(EraseBlock(0)));
    }

    #[test]
    fn trims_outlive_the_power() {
        let mut nand = tiny();
        nand.trim(0, Lpn(70)).expect("power is on");
        nand.power_on(0);
        assert!(nand.is_trimmed(Lpn(70)));
        nand.untrim(Lpn(70));
        assert!(!nand.is_trimmed(Lpn(70)));
    }
}
