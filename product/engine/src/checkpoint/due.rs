//! Whether a checkpoint is due: a pure function of what can be seen. It changes nothing.

use crate::api::Phase;
use crate::shared::Shared;
use crate::units::{Origin, Sequence};
use coulter_format::checkpoint::{
    BODY_SIZE_MAX, COPY_SIZE, GROUP_SIZE, PARITY_SIZE, REFERENCE_SIZE,
};

/// Blocks in holes for which a checkpoint is worth a block of what it writes.
const HOLES_FOR_CHECKPOINT: u64 = 16;

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) is_due: bool,
    /// Whether the oldest run must die before another one is written, so that the sweep hurries; `None`
    /// if nothing has changed.
    pub(super) runs_are_too_many: Option<bool>,
}

impl Due {
    const NO: Due = Due { is_due: false, runs_are_too_many: None };
}

/// Blocks of log, headers and all else included, after which a checkpoint is due although the journal
/// is not full: records of one block take recovery twice as long to read as full ones.
fn log_blocks_max(journal_size: usize) -> u64 {
    assert!(journal_size > 1, "some updates come between two checkpoints");
    journal_size as u64 / 2 * 3
}

/// Decides, `latest_cut` being the sequence of the latest one.
pub(super) fn decide(shared: &Shared, latest_cut: Sequence) -> Due {
    if shared.requests.shutdown.is_some() {
        let quiet = shared.phase == Phase::ShuttingDown
            && shared.log.is_quiet(Origin::User)
            && !shared.requests.discard_under_way;
        if !quiet {
            return Due::NO;
        }
        assert!(shared.log.is_quiet(Origin::User), "the last checkpoint has all that was written");
        let too_many = runs_are_too_many(shared);
        return Due { is_due: !too_many, runs_are_too_many: Some(too_many) };
    }
    if shared.log.applied == latest_cut && !shared.signals.checkpoint {
        return Due::NO;
    }
    // The sweep's share comes first: so runs never become too many for another one.
    let too_many = runs_are_too_many(shared);
    let waits_for_sweep = too_many || shared.signals.sweep_quota > 0;
    Due { is_due: !waits_for_sweep && is_called_for(shared), runs_are_too_many: Some(too_many) }
}

fn is_called_for(shared: &Shared) -> bool {
    let journal_size = shared.superblock.budget.journal_size as usize;
    shared.signals.checkpoint
        || shared.map.recovery_calls_for_checkpoint(shared.signals.recovery_memory)
        || shared.map.journal_length() >= journal_size
        || shared.log.blocks_since_cut >= log_blocks_max(journal_size)
        || segments_are_scarce(shared)
        // What it frees is given back to the device, which then has space.
        || (shared.lacks_space() && shared.segments.freed_count() > 0)
        || shared.holes_are_worth(HOLES_FOR_CHECKPOINT * cost(shared))
}

/// Whether segments are wanted that only a checkpoint makes usable. Not before they are needed: one for
/// every freed segment would cost more than some segments give.
fn segments_are_scarce(shared: &Shared) -> bool {
    let segments = &shared.segments;
    let marks = shared.pacing.marks();
    let freed = segments.freed_count();
    assert!(freed <= segments.empty_count(), "what was freed is empty");
    let is_worth_it =
        u64::from(freed) * u64::from(shared.superblock.geometry.segment_blocks) >= 2 * cost(shared);
    let at_the_floor = segments.usable_count() <= marks.kept_by_cleaning as usize;
    let comes = at_the_floor && freed + segments.gone_through_count() > 0;
    let scarce = segments.empty_count() - freed <= marks.wanted_by_user && (is_worth_it || comes);
    // Of those that are listed and not prepared a checkpoint would make no more usable.
    let queue_is_short = segments.listed_count() <= marks.wanted_by_user as usize;
    scarce || (queue_is_short && segments.queue_could_grow())
}

/// Blocks that a checkpoint would write now, about.
fn cost(shared: &Shared) -> u64 {
    let run = shared.map.run_length() / coulter_format::run::ENTRIES_PER_RUN_BLOCK + 1;
    let body = shared.lists.body.1 as usize;
    (2 * (run + shared.lists.table.len()) + body + 4) as u64
}

/// Whether the oldest run must die before another one is written.
fn runs_are_too_many(shared: &Shared) -> bool {
    let (count, blocks) = shared.lists.runs.alive(shared.map.sweep_position());
    assert!(count <= shared.lists.runs.len(), "those alive are some of them");
    let limit = shared.superblock.budget.run_count_limit as usize;
    count > 0 && (count >= limit || !lists_fit(shared, count, blocks))
}

/// Whether the body will have room for so many runs and one more, which comes from the journal
/// as it is. With something to spare, since a whole leaf in the journal may become many entries.
fn lists_fit(shared: &Shared, runs: usize, blocks: usize) -> bool {
    let run = shared.map.run_length() / coulter_format::run::ENTRIES_PER_RUN_BLOCK + 2;
    let references = (REFERENCE_SIZE + GROUP_SIZE + PARITY_SIZE) * shared.lists.references.count();
    let roots = match shared.superblock.geometry.root_lists {
        true => (8 + COPY_SIZE) * shared.map.root_list_count(),
        false => (16 + COPY_SIZE) * shared.map.root_count(),
    };
    let pages = roots + (8 + COPY_SIZE) * shared.lists.table.len();
    let size = pages + references + 32 * (runs + 1) + (8 + COPY_SIZE) * (blocks + run);
    size <= BODY_SIZE_MAX as usize / 4 * 3
}
