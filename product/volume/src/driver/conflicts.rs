//! Order between requests that touch the same blocks: writes to parts of a block, and whoever waits for
//! writes to end.
//!
//! A request that covers a block in part must read it, merge, and write it back. It sees the
//! writes that came before, and the ones that come after must not be merged away. So it *guards*
//! its partial blocks from admission to its end:
//! - a later write that touches a guarded block is *blocked* until the guard is gone;
//! - the guarding request reads only when the earlier writes that touch its guarded blocks have
//!   ended;
//! - a request of several blocks that is blocked is *overtaken* by every later one that is given a
//!   guard among them. Only so often: one or another of its blocks might be guarded for ever.
//!
//! Everybody waits for requests that were admitted or blocked earlier, and for so many later ones at
//! most, so nobody waits for ever.
//!
//! Besides, somebody may *await* all writes to some blocks that were admitted so far and may be answered
//! early, before they have ended. He is in nobody's way: later writes are admitted, and not waited for.
//!
//! While no guard is held and nobody awaits a write, it pays for empty lists and for noting its range.

use super::footprint::Footprint;
use super::jobs::JobIndex;
use super::span::Span;

/// How often a blocked request is overtaken. More than never, because of writes that follow one another
/// and share their edges: every other one goes ahead.
const OVERTAKEN_MAX: u32 = 16;

/// A request that holds blocks against all others.
#[derive(Clone, Copy, Debug)]
struct Guard {
    job: JobIndex,
    blocks: [Option<u64>; 2],
    /// Earlier writes to these blocks that have not ended.
    waits_for: u32,
}

impl Guard {
    fn touches(&self, footprint: &Footprint) -> bool {
        self.blocks.iter().flatten().any(|block| footprint.contains(*block))
    }
}

/// A write that was admitted, or is to be.
#[derive(Clone, Debug, Default)]
struct Admitted {
    /// Its place among all; zero for none.
    ticket: u64,
    /// Empty until it is admitted.
    footprint: Footprint,
    /// Its place among those that were admitted.
    admission: u64,
    /// Whether it may be answered before it has ended.
    is_early: bool,
    /// Whether somebody waits for its end.
    is_awaited: bool,
}

/// A request that goes on when the early writes that were admitted before it have ended.
#[derive(Clone, Debug)]
struct Waiter {
    job: JobIndex,
    /// Only writes to these blocks; `None` for all.
    footprint: Option<Footprint>,
    /// Only those that were admitted up to here.
    last_admission: u64,
    /// Those of them that have not ended.
    waits_for: u32,
}

impl Waiter {
    fn awaits(&self, write: &Admitted) -> bool {
        write.is_early
            && write.admission <= self.last_admission
            && self.footprint.as_ref().is_none_or(|own| own.overlaps(&write.footprint))
    }
}

/// A write of several blocks that was not admitted.
#[derive(Clone, Debug)]
struct Blocked {
    ticket: u64,
    footprint: Footprint,
    overtaken: u32,
}

/// What a write may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Go on.
    Free,
    /// It holds its guards, and must wait until [`Conflicts::leave`] names it.
    Waits,
    /// It touches a guarded block, was not admitted, and must come again.
    Blocked,
}

/// The writes that were admitted, and the guards that some of them hold.
#[derive(Debug, Default)]
pub(super) struct Conflicts {
    /// By job.
    admitted: Vec<Admitted>,
    /// Those of them that may be answered early.
    early_count: usize,
    last_ticket: u64,
    last_admission: u64,
    guards: Vec<Guard>,
    waiters: Vec<Waiter>,
    /// In the order in which they came. Not those of a single block: they go on as soon as it is
    /// guarded no longer.
    blocked: Vec<Blocked>,
    /// The canary: a bug that the tests of the driver must catch.
    #[cfg(test)]
    pub(super) forgets_guards: bool,
    /// Another one: nobody awaits writes.
    #[cfg(test)]
    pub(super) forgets_waiters: bool,
}

impl Conflicts {
    /// Admits a write over `footprint`, early or not, unless it touches a guarded block, or would overtake
    /// another once too often.
    pub(super) fn try_enter(
        &mut self,
        job: JobIndex,
        footprint: Footprint,
        is_early: bool,
    ) -> Admission {
        let ticket = self.ticket(job);
        let span = footprint.hull();
        let is_guarded = self.guards.iter().any(|guard| guard.touches(&footprint));
        if is_guarded || !self.try_overtake(ticket, span) {
            return Admission::Blocked;
        }
        let waits = !span.is_whole() && self.guard(job, span);
        self.early_count += usize::from(is_early);
        self.last_admission += 1;
        let admission = self.last_admission;
        self.admitted[job.0 as usize] =
            Admitted { ticket, footprint, admission, is_early, is_awaited: false };
        if waits { Admission::Waits } else { Admission::Free }
    }

    /// Whether early writes that were admitted, to the blocks of `footprint` or to any, have not ended. If
    /// so, [`Conflicts::leave`] names `job` when they have.
    pub(super) fn awaits(&mut self, job: JobIndex, footprint: Option<Footprint>) -> bool {
        #[cfg(test)]
        if self.forgets_waiters {
            return false;
        }
        if self.early_count == 0 {
            return false;
        }
        let last_admission = self.last_admission;
        let mut waiter = Waiter { job, footprint, last_admission, waits_for: 0 };
        for write in &mut self.admitted {
            if waiter.awaits(write) {
                write.is_awaited = true;
                waiter.waits_for += 1;
            }
        }
        let waits = waiter.waits_for > 0;
        if waits {
            self.waiters.push(waiter);
        }
        waits
    }

    /// Whether no write that may be answered early is under way.
    pub(super) fn are_all_late(&self) -> bool {
        self.early_count == 0
    }

    /// A job's place among all, which it has from when it first came.
    fn ticket(&mut self, job: JobIndex) -> u64 {
        let index = job.0 as usize;
        if self.admitted.len() <= index {
            self.admitted.resize(index + 1, Admitted::default());
        }
        let known = &mut self.admitted[index];
        assert!(known.footprint.hull().is_empty(), "a job is admitted once");
        if known.ticket == 0 {
            self.last_ticket += 1;
            known.ticket = self.last_ticket;
        }
        known.ticket
    }

    /// Lines up a write that was blocked and will come again, before all that come later.
    pub(super) fn line_up(&mut self, job: JobIndex, footprint: Footprint) {
        let ticket = self.admitted[job.0 as usize].ticket;
        if footprint.hull().count() > 1
            && self.blocked.iter().all(|blocked| blocked.ticket != ticket)
        {
            self.blocked.push(Blocked { ticket, footprint, overtaken: 0 });
        }
    }

    /// Whether a write that finds none of its blocks guarded may go ahead of those that came earlier
    /// and are blocked. If so it is not blocked itself any longer.
    fn try_overtake(&mut self, ticket: u64, span: Span) -> bool {
        let guards_in = |blocked: &Blocked| {
            blocked.ticket < ticket && span.edges().any(|block| blocked.footprint.contains(block))
        };
        if self
            .blocked
            .iter()
            .any(|blocked| blocked.overtaken == OVERTAKEN_MAX && guards_in(blocked))
        {
            return false;
        }
        for blocked in self.blocked.iter_mut().filter(|blocked| guards_in(blocked)) {
            blocked.overtaken += 1;
        }
        self.blocked.retain(|blocked| blocked.ticket != ticket);
        true
    }

    /// Guards the partial blocks of `span`; whether earlier writes must end first.
    fn guard(&mut self, job: JobIndex, span: Span) -> bool {
        #[cfg(test)]
        if self.forgets_guards {
            return false;
        }
        let mut edges = span.edges();
        let blocks = [edges.next(), edges.next()];
        let mut guard = Guard { job, blocks, waits_for: 0 };
        for earlier in &mut self.admitted {
            if guard.touches(&earlier.footprint) {
                earlier.is_awaited = true;
                guard.waits_for += 1;
            }
        }
        self.guards.push(guard);
        guard.waits_for > 0
    }

    /// A write has ended. Pushes the requests that need not wait any longer; returns whether guards
    /// are gone, so that blocked requests may come again.
    pub(super) fn leave(&mut self, job: JobIndex, freed: &mut Vec<JobIndex>) -> bool {
        let Some(slot) = self.admitted.get_mut(job.0 as usize) else { return false };
        let write = std::mem::take(slot);
        let Admitted { is_awaited, is_early, .. } = write;
        self.early_count -= usize::from(is_early);
        if is_awaited {
            self.waiters.retain_mut(|waiter| {
                waiter.waits_for -= u32::from(waiter.awaits(&write));
                if waiter.waits_for == 0 {
                    freed.push(waiter.job);
                }
                waiter.waits_for > 0
            });
            for guard in &mut self.guards {
                // Its own guards have waited for none of it.
                if guard.job != job && guard.touches(&write.footprint) {
                    guard.waits_for -= 1;
                    if guard.waits_for == 0 {
                        freed.push(guard.job);
                    }
                }
            }
        }
        let before = self.guards.len();
        if !write.footprint.hull().is_whole() {
            self.guards.retain(|guard| guard.job != job);
        }
        self.guards.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTOR: u64 = 512;

    fn enter(conflicts: &mut Conflicts, job: u32, offset: u64, length: u64) -> Admission {
        conflicts.try_enter(JobIndex(job), Span::of(offset, length).into(), true)
    }

    fn leave(conflicts: &mut Conflicts, job: u32) -> (bool, Vec<u32>) {
        let mut freed = Vec::new();
        let gone = conflicts.leave(JobIndex(job), &mut freed);
        (gone, freed.iter().map(|job| job.0).collect())
    }

    #[test]
    fn whole_writes_never_wait_for_each_other() {
        let mut conflicts = Conflicts::default();
        assert_eq!(enter(&mut conflicts, 0, 0, 8192), Admission::Free);
        assert_eq!(enter(&mut conflicts, 1, 4096, 4096), Admission::Free);
        assert_eq!(leave(&mut conflicts, 0), (false, vec![]));
        assert_eq!(leave(&mut conflicts, 1), (false, vec![]));
    }

    #[test]
    fn a_partial_write_waits_for_all_earlier_ones_to_its_block() {
        let mut conflicts = Conflicts::default();
        assert_eq!(enter(&mut conflicts, 0, 0, 4096), Admission::Free);
        assert_eq!(enter(&mut conflicts, 1, 0, 8192), Admission::Free);
        assert_eq!(enter(&mut conflicts, 2, 8192, 4096), Admission::Free);
        assert_eq!(enter(&mut conflicts, 3, SECTOR, SECTOR), Admission::Waits);
        assert_eq!(leave(&mut conflicts, 2), (false, vec![]));
        assert_eq!(leave(&mut conflicts, 0), (false, vec![]));
        assert_eq!(leave(&mut conflicts, 1), (false, vec![3]));
        assert_eq!(leave(&mut conflicts, 3), (true, vec![]));
    }

    #[test]
    fn a_guarded_block_blocks_every_later_write_to_it_and_no_other() {
        let mut conflicts = Conflicts::default();
        assert_eq!(enter(&mut conflicts, 0, 4096 + SECTOR, SECTOR), Admission::Free);
        assert_eq!(enter(&mut conflicts, 1, 0, 1 << 20), Admission::Blocked);
        assert_eq!(enter(&mut conflicts, 1, 4096, SECTOR), Admission::Blocked);
        assert_eq!(enter(&mut conflicts, 1, 8192, SECTOR), Admission::Free);
        assert_eq!(leave(&mut conflicts, 0), (true, vec![]));
        assert_eq!(enter(&mut conflicts, 0, 4096, SECTOR), Admission::Free);
    }

    #[test]
    fn a_blocked_write_of_several_blocks_is_overtaken_only_so_often() {
        let mut conflicts = Conflicts::default();
        assert_eq!(enter(&mut conflicts, 0, SECTOR, SECTOR), Admission::Free);
        assert_eq!(enter(&mut conflicts, 1, 0, 12288), Admission::Blocked);
        conflicts.line_up(JobIndex(1), Span::of(0, 12288).into());
        for _ in 0..OVERTAKEN_MAX {
            assert_eq!(enter(&mut conflicts, 2, 4096, SECTOR), Admission::Free);
            assert_eq!(leave(&mut conflicts, 2), (true, vec![]));
        }
        assert_eq!(enter(&mut conflicts, 2, 4096, SECTOR), Admission::Blocked);
        // Neither beside it, nor without a guard.
        assert_eq!(enter(&mut conflicts, 3, 12288, SECTOR), Admission::Free);
        assert_eq!(enter(&mut conflicts, 4, 8192, 4096), Admission::Free);
        assert_eq!(leave(&mut conflicts, 0), (true, vec![]));
        assert_eq!(enter(&mut conflicts, 1, 0, 12288), Admission::Free);
        assert_eq!(enter(&mut conflicts, 2, 4096, SECTOR), Admission::Waits);
    }

    /// It would not be told when the other one goes on, which need not hold a guard.
    #[test]
    fn nobody_waits_for_a_blocked_write_that_came_later() {
        let mut conflicts = Conflicts::default();
        assert_eq!(enter(&mut conflicts, 0, SECTOR, SECTOR), Admission::Free);
        assert_eq!(enter(&mut conflicts, 1, SECTOR, SECTOR), Admission::Blocked);
        conflicts.line_up(JobIndex(1), Span::of(SECTOR, SECTOR).into());
        assert_eq!(enter(&mut conflicts, 2, 0, 8192), Admission::Blocked);
        conflicts.line_up(JobIndex(2), Span::of(0, 8192).into());
        for _ in 0..OVERTAKEN_MAX {
            assert_eq!(enter(&mut conflicts, 3, 4096, SECTOR), Admission::Free);
            assert_eq!(leave(&mut conflicts, 3), (true, vec![]));
        }
        assert_eq!(leave(&mut conflicts, 0), (true, vec![]));
        assert_eq!(enter(&mut conflicts, 1, SECTOR, SECTOR), Admission::Free);
    }

    #[test]
    fn of_writes_that_share_their_edges_every_other_one_goes_ahead() {
        let mut conflicts = Conflicts::default();
        for job in 0..10 {
            let offset = u64::from(job) * 4096 + SECTOR;
            let goes_ahead = job % 2 == 0;
            let wanted = if goes_ahead { Admission::Free } else { Admission::Blocked };
            assert_eq!(enter(&mut conflicts, job, offset, 4096), wanted);
            if !goes_ahead {
                conflicts.line_up(JobIndex(job), Span::of(offset, 4096).into());
            }
        }
    }

    #[test]
    fn who_awaits_writes_awaits_those_that_came_before_and_touch_his_blocks() {
        let mut conflicts = Conflicts::default();
        let span = || Some(Span::of(4096, 8192).into());
        assert!(!conflicts.awaits(JobIndex(9), span()));
        assert_eq!(enter(&mut conflicts, 0, 0, 4096), Admission::Free);
        assert!(!conflicts.awaits(JobIndex(9), span()));
        assert_eq!(enter(&mut conflicts, 1, 0, 8192), Admission::Free);
        assert_eq!(enter(&mut conflicts, 2, 8192, 4096), Admission::Free);
        assert!(conflicts.awaits(JobIndex(7), span()));
        assert!(conflicts.awaits(JobIndex(8), None));
        // It is later, though it touches them.
        assert_eq!(enter(&mut conflicts, 3, 4096, 4096), Admission::Free);
        assert_eq!(leave(&mut conflicts, 3), (false, vec![]));
        assert_eq!(leave(&mut conflicts, 2), (false, vec![]));
        assert_eq!(leave(&mut conflicts, 1), (false, vec![7]));
        assert_eq!(leave(&mut conflicts, 0), (false, vec![8]));
    }

    #[test]
    fn a_write_with_two_edges_is_counted_once_and_frees_once() {
        let mut conflicts = Conflicts::default();
        assert_eq!(enter(&mut conflicts, 0, 0, 16384), Admission::Free);
        assert_eq!(enter(&mut conflicts, 1, SECTOR, 8192), Admission::Waits);
        assert_eq!(leave(&mut conflicts, 0), (false, vec![1]));
        assert_eq!(leave(&mut conflicts, 1), (true, vec![]));
    }

    #[test]
    fn a_partial_write_inside_a_wide_one_waits_for_it() {
        let mut conflicts = Conflicts::default();
        assert_eq!(enter(&mut conflicts, 0, SECTOR, 40960), Admission::Free);
        assert_eq!(enter(&mut conflicts, 1, 8192, SECTOR), Admission::Waits);
        assert_eq!(leave(&mut conflicts, 0), (true, vec![1]));
        assert_eq!(leave(&mut conflicts, 1), (true, vec![]));
    }
}
