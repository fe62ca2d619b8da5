//! What recovery would need of the map's memory, counted while the engine runs.
//!
//! A store must open with as much memory as its superblock says, whenever the power goes. So the
//! engine counts the chunks that recovery would come to hold, and takes no update that would be one
//! too many.
//!
//! # Why a store always opens
//! Recovery loads no page: from the first run to the last record every update goes into a chain.
//!
//! 1. A chain of *n* addresses takes ⌈n / 6⌉ chunks and no more: only its first chunk can have room.
//! 2. Recovery finds an address in a leaf's chain only if a live run or a record says something of
//!    it. Then it changed after the leaf's last sweep before the durable cut, and was counted: as
//!    `pending`, or, if the leaf was swept since, as `swept` or `swept_before_cut`. Or a run says it
//!    once more, because the journal noted it before that sweep: [`RecoveryMemory::emitted`]. A run
//!    says no other address: so what a cut adds to `pending` was `swept` before, and fits.
//! 3. Before it takes a record, replay holds no more than was counted when the record was accepted,
//!    and asks for as much as was asked then. Both together were at most `chunks_max`.
//! 4. It is refused nothing while [`SWEEP_FRAMES`] frames are left beside these chunks. Arrays, which
//!    replay makes for leaves that have no page, leave [`PAGE_FRAMES_MIN`]: the sweep's, those that
//!    the cleaner's updates find when the host's do not, and those that a read may take.

use super::directory::Leaf;
use super::frames::CHUNKS_PER_FRAME;
use super::{ENTRIES_PER_PAGE, FRAME_COUNT_MIN, SWEEP_FRAMES, UPDATES_PER_CHUNK};
use crate::canary::{Canary, sings};
use coulter_format::record::DISCARD_BLOCKS_MAX;

/// Frames that chunks leave to pages at least, also at recovery: more than the host's updates need to
/// find obtainable, or a store that was just opened would stand still.
pub(super) const PAGE_FRAMES_MIN: usize = 3 * SWEEP_FRAMES;

/// Frames for pages with which the sweep, loading ahead and with two records on their way, and the
/// cleaner, which keeps the leaf of every block that it moves, do not wait for each other: with half
/// as many records are written that are not full. A small map has less, but no less than three
/// eighths; a large one a quarter, for pages that are read, and because what recovery holds in chains
/// takes time to be read and sorted in.
const PAGE_FRAMES: usize = 256;

const CHUNKS_MAX_LEAST: usize = chunks_max(FRAME_COUNT_MIN as usize);
const LEAVES_OF_DISCARD: usize = DISCARD_BLOCKS_MAX as usize / ENTRIES_PER_PAGE;

const _: () = assert!(
    CHUNKS_MAX_LEAST.div_ceil(CHUNKS_PER_FRAME) + PAGE_FRAMES_MIN <= FRAME_COUNT_MIN as usize
);
const _: () = assert!(
    CHUNKS_MAX_LEAST > 2 * (LEAVES_OF_DISCARD + 2 * ENTRIES_PER_PAGE),
    "the largest discard is let in when all has been swept"
);

/// Chunks that recovery may take of so many frames.
const fn chunks_max(frame_count: usize) -> usize {
    let large = if frame_count / 4 > PAGE_FRAMES { frame_count / 4 } else { PAGE_FRAMES };
    let small = frame_count * 3 / 8;
    let pages = if small < large { small } else { large };
    (frame_count - pages) * CHUNKS_PER_FRAME
}

/// The account, in chunks.
pub(super) struct RecoveryMemory {
    /// For updates that no swept page contains.
    pending: usize,
    /// For updates that were swept since the last cut, and before it but since the cut that is
    /// durable: recovery from that one knows nothing of the sweep.
    swept: usize,
    swept_before_cut: usize,
    chunks_max: usize,
}

impl RecoveryMemory {
    /// For recovery within so many frames.
    pub(super) fn new(frame_count: usize) -> RecoveryMemory {
        let chunks_max = chunks_max(frame_count.max(FRAME_COUNT_MIN as usize));
        RecoveryMemory { pending: 0, swept: 0, swept_before_cut: 0, chunks_max }
    }

    pub(super) fn chunks_max(&self) -> usize {
        self.chunks_max
    }

    /// Frames that recovery may fill with chunks.
    pub(super) fn frames_max(&self) -> usize {
        self.chunks_max.div_ceil(CHUNKS_PER_FRAME)
    }

    /// Chunks that recovery would need now.
    pub(super) fn needed(&self) -> usize {
        self.pending + self.swept + self.swept_before_cut
    }

    /// A leaf has one more update.
    pub(super) fn count(&mut self, leaf: &mut Leaf) {
        if leaf.unmerged < ENTRIES_PER_PAGE as u16 {
            self.pending += usize::from(leaf.unmerged.is_multiple_of(UPDATES_PER_CHUNK as u16));
            leaf.unmerged += 1;
        }
    }

    /// A leaf is swept.
    pub(super) fn forget(&mut self, leaf: &mut Leaf) {
        let chunks = usize::from(leaf.unmerged).div_ceil(UPDATES_PER_CHUNK);
        self.pending -= chunks;
        self.swept += chunks;
        leaf.unmerged = 0;
    }

    /// A run says so much of a leaf. That can be more than changed since the sweep came by: what the
    /// journal noted before is said again if the array has changed since. It was counted as swept since
    /// the last cut; from now on it is in a run that the sweep has not passed. Recovery comes from the
    /// older checkpoint or from this one, so the sum stays what it was, but for one chunk: of the older
    /// one's last chunk the next updates may find no room where they are counted to find it.
    pub(super) fn emitted(&mut self, leaf: &mut Leaf, entries: usize) {
        let entries = entries.min(ENTRIES_PER_PAGE);
        let counted = usize::from(leaf.unmerged);
        if entries > counted {
            let more = entries.div_ceil(UPDATES_PER_CHUNK) - counted.div_ceil(UPDATES_PER_CHUNK);
            self.pending += more;
            self.swept = self.swept.saturating_sub(more.saturating_sub(1));
            leaf.unmerged = entries as u16;
        }
    }

    /// A checkpoint is cut.
    pub(super) fn cut(&mut self) {
        self.swept_before_cut += core::mem::take(&mut self.swept);
    }

    /// The checkpoint cut last is durable.
    pub(super) fn checkpoint_is_durable(&mut self) {
        self.swept_before_cut = 0;
    }

    /// Whether so many more would be too many. The sweep must catch up first.
    pub(super) fn is_full(&self, chunks: usize) -> bool {
        self.needed() + chunks > self.chunks_max && !sings(Canary::RecoveryOverfilled)
    }

    /// Whether a checkpoint would lower what recovery needs by enough to be worth one. While
    /// little is left, the sweep is urgent until that is so.
    pub(super) fn checkpoint_helps(&self) -> bool {
        self.swept > self.chunks_max / 32
    }

    /// Whether there is so little left that such a checkpoint should not wait.
    pub(super) fn is_short(&self) -> bool {
        self.needed() > self.chunks_max / 16 * 15
    }
}
