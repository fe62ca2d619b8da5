//! Scrubbing: every block that counts is read and compared with its checksum, and metadata that has another copy is
//! written anew.
//!
//! ```text
//! Blocks      the host's, in the order of their addresses, as the map says where they lie; and the leaf pages
//!             that say so
//! Metadata    both copies of what the newest checkpoint lists: root pages, pages of the segment table, runs,
//!             headers; then its body, and the superblocks
//! Repairs     if any of that was damaged: waits for a checkpoint that writes it anew, and looks again
//! ```
//! It is the map that is gone through, not segments: what is not found there does not count, and nothing that counts
//! is found anywhere else. So damaged headers hide nothing from it.
//!
//! # Does not
//! write. What is to be written anew it leaves to the next checkpoint and to the sweep. Host blocks have no other
//! copy: they are told, and stay as they are until the host writes them.
//!
//! # Invariants
//! - What is told is damaged *now*: it was read twice, and the map still led there afterwards.
//! - The position only moves on, so a scrub ends. Blocks that the host writes behind it are newer than it.
//! - It works for a store that is opened for reading only, and after a failed write.

mod batch;
mod blocks;
mod metadata;
mod orders;
mod report;

use crate::api::{Buffers, IoResult, Phase};
use crate::ios::ScrubPiece;
use crate::memory;
use crate::shared::{Outcome, Shared};
use alloc::vec::Vec;
use batch::{Batch, Progress};
use blocks::LostBlocks;
use coulter_format::Pba;
use coulter_format::superblock::CheckpointLocation;
use metadata::Piece;
use report::Findings;
pub use report::{FINDINGS_MAX, Finding, Part, ScrubReport, ScrubState, Trouble};

/// Batches that may be looked at in one step without a command.
const TURNS_MAX: usize = 4;

/// What is gone through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScrubStage {
    #[default]
    Idle,
    /// Host blocks and leaf pages.
    Blocks,
    /// Waits until so many checkpoints were made, of which the last has written anew what was damaged; `None` before
    /// that was asked for.
    Repairs {
        checkpoints: Option<u64>,
    },
    /// What the checkpoint lists.
    Listed,
    /// The checkpoint's body, or its second copy.
    Body {
        is_copy: bool,
    },
    Superblocks,
}

/// Scrubs.
#[derive(Debug, Default)]
pub(crate) struct Scrubber {
    stage: ScrubStage,
    batch: Batch,
    /// Up to where the batch goes, if it is of host blocks, and which of them the map cannot find.
    batch_end: u64,
    lost: LostBlocks,
    /// How often the map had lost blocks when it began at the first block; `None` if it began further on, or met one.
    losses_before: Option<u64>,
    /// How often it was listed anew because it could not be judged as it was.
    relisted: u32,
    /// The batch in hand is of a scrub that was stopped.
    is_abandoned: bool,
    /// Pieces of metadata to be looked at, and which comes next.
    pieces: Vec<Piece>,
    next_piece: usize,
    /// The generation of the superblock that names the body in hand.
    generation: u64,
    /// Blocks that may still be read; `None` for any number. Negative after a batch that exceeded it.
    allowance: Option<i64>,
    /// It would read, were it allowed to.
    waits: bool,
    /// A map page is waited for.
    parked: bool,
    /// The leaf that was loaded last: its page has just been compared.
    loaded: Option<u64>,
    /// The map page that was waited for could not be read.
    unreadable: Option<i32>,
    /// Leaf pages that are to be written anew from memory.
    leaves: Vec<u64>,
    wants_sweep: bool,
    wants_checkpoint: bool,
    /// The first copy of a body, if it was whole: which, and a hash.
    body_print: Option<(CheckpointLocation, u64)>,
    /// It looks again at what was to be written anew.
    is_second_look: bool,
    /// Blocks of metadata that were damaged then.
    still_damaged: u64,
    report: ScrubReport,
    findings: Findings,
}

impl Scrubber {
    /// Begins at a host block. False without memory for what it lists.
    fn start(&mut self, shared: &Shared, from: u64) -> bool {
        if self.is_running() {
            return true;
        }
        if self.batch.items.capacity() == 0 {
            let Ok(items) = memory::list(crate::api::RECORD_BLOCKS) else { return false };
            self.batch.items = items;
        }
        assert!(
            self.batch.items.is_empty() || self.is_abandoned,
            "nothing is left of the last one"
        );
        let end = shared.superblock.geometry.volume_size;
        self.report = ScrubReport {
            state: ScrubState::Running,
            next: from.min(end),
            end,
            ..ScrubReport::default()
        };
        self.findings.clear();
        self.losses_before = (from == 0).then(|| shared.map.loss_count());
        self.leaves.clear();
        (self.wants_sweep, self.wants_checkpoint) = (false, false);
        (self.is_second_look, self.still_damaged) = (false, 0);
        (self.loaded, self.unreadable, self.relisted) = (None, None, 0);
        self.stage = ScrubStage::Blocks;
        true
    }

    fn is_running(&self) -> bool {
        self.stage != ScrubStage::Idle
    }

    fn end(&mut self, state: ScrubState) {
        assert_ne!(state, ScrubState::Running, "what ends does not go on");
        self.is_abandoned = state == ScrubState::Stopped && self.batch.is_in_hand();
        self.stage = ScrubStage::Idle;
        self.report.state = state;
        self.waits = false;
    }

    /// The page that it waited for is there, or will not come.
    pub(crate) fn resume(&mut self, failed: Option<i32>) {
        self.parked = false;
        // Of a scrub that was stopped nothing was loaded.
        self.unreadable = failed.filter(|_| self.loaded.is_some());
    }

    /// Reads on, if there is reason to.
    pub(crate) fn step(&mut self, shared: &mut Shared, buffers: &mut impl Buffers) -> Outcome {
        let is_open = matches!(shared.phase, Phase::Recovered | Phase::Running);
        if !self.is_running() || !is_open {
            return Outcome::Rests;
        }
        let mut has_changed = false;
        for _ in 0..TURNS_MAX {
            self.waits = false;
            if self.parked || self.batch.is_in_hand() {
                break;
            }
            if self.allowance.is_some_and(|allowance| allowance <= 0) {
                self.waits = true;
                break;
            }
            let before = (self.stage, self.report.next, self.next_piece);
            match self.stage {
                ScrubStage::Idle => break,
                ScrubStage::Blocks => self.list_blocks(shared),
                ScrubStage::Repairs { checkpoints } => self.await_repairs(shared, checkpoints),
                ScrubStage::Listed => self.list_pieces(shared),
                ScrubStage::Body { is_copy } => self.list_body(shared, is_copy),
                ScrubStage::Superblocks => self.list_superblocks(shared),
            }
            self.begin_batch(shared, buffers);
            has_changed |= before != (self.stage, self.report.next, self.next_piece);
        }
        Outcome::of_change(has_changed && !self.batch.is_in_hand())
    }

    /// Begins to read what is listed, if anything is and there is a buffer.
    fn begin_batch(&mut self, shared: &mut Shared, buffers: &mut impl Buffers) {
        if self.batch.items.is_empty() || self.batch.is_in_hand() {
            return;
        }
        let Some(buffer) = shared.log.lend_ahead() else {
            // Listed anew when one has come back.
            self.batch.items.clear();
            return;
        };
        if let Some(allowance) = &mut self.allowance {
            *allowance -= self.batch.items.len() as i64;
        }
        let is_ordered = !matches!(self.stage, ScrubStage::Body { .. });
        if self.batch.begin(shared, buffer, is_ordered) == Progress::IsRead {
            self.judge(shared, buffers);
        }
    }

    /// A piece of the batch has been read.
    pub(crate) fn completed(
        &mut self,
        shared: &mut Shared,
        piece: ScrubPiece,
        result: IoResult,
        buffers: &mut impl Buffers,
    ) {
        if self.batch.completed(shared, piece, result, buffers) == Progress::IsRead {
            self.judge(shared, buffers);
        }
    }

    /// Draws conclusions from what was read.
    fn judge(&mut self, shared: &mut Shared, buffers: &mut impl Buffers) {
        match self.stage {
            _ if core::mem::take(&mut self.is_abandoned) => {}
            ScrubStage::Blocks => self.judge_blocks(shared),
            ScrubStage::Listed => self.judge_pieces(shared, buffers),
            ScrubStage::Body { is_copy } => self.judge_body(shared, is_copy, buffers),
            ScrubStage::Superblocks => self.judge_superblocks(shared),
            ScrubStage::Idle | ScrubStage::Repairs { .. } => {
                unreachable!("nothing is read meanwhile")
            }
        }
        self.batch.end(shared);
    }

    /// Whether anything can be written anew.
    fn can_repair(shared: &Shared) -> bool {
        shared.phase == Phase::Running && shared.poisoned.is_none() && !shared.config.read_only
    }

    /// Notes a block of metadata that is damaged. `is_repaired`: it will be written anew.
    fn note_metadata(&mut self, part: Part, pba: Pba, trouble: Trouble, is_repaired: bool) {
        if self.is_second_look {
            self.still_damaged += 1;
            self.findings.is_not_repaired(pba);
            return;
        }
        self.report.metadata_damaged += 1;
        self.report.metadata_repaired += u64::from(is_repaired);
        self.findings.add(Finding::Metadata { part, pba, trouble, is_repaired });
    }
}

#[cfg(feature = "verify")]
impl Scrubber {
    /// Buffers that it has been lent.
    pub(crate) fn lent(&self) -> usize {
        self.batch.lent()
    }

    /// # Panics
    /// If it waits for other commands than there are, or its counts contradict each other.
    pub(crate) fn assert_invariants(&self, out: usize) {
        self.batch.assert_invariants(out);
        let report = &self.report;
        assert!(report.next <= report.end, "a scrub ends with the volume");
        assert!(
            report.metadata_repaired <= report.metadata_damaged,
            "what is repaired was damaged"
        );
    }
}
