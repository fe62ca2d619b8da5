//! Writes that the device refused for want of space beneath it.
//!
//! A store with holes secures the space of a segment before anything is written to it (see
//! `coulter_engine::prepare`). Some space escapes that: a segment of which a copying tool made holes,
//! a file system that gives each write a new place, a thin volume. Such a write has not failed: nothing
//! of it was acknowledged. It is held, and goes to the device again as soon as there may be space.
//!
//! No request waits for ever behind such a write, or for room in the engine: a client that has to
//! end, such as a file system that is unmounted, would wait with it. After [`SpacePatience`] all
//! writes and flushes are refused with ENOSPC. The volume stays as it is, and takes writes again
//! as soon as there is space. A session may have its writes held instead
//! ([`crate::service::Session::hold_writes`]); it is told when the time is over.
//!
//! Invariants:
//! - to the engine a held write is one that takes long: what follows it in the log waits;
//! - its memory is the pool's, and stays as it is until the write completes.

use super::jobs::{Job, JobIndex, Stage};
use super::{Driver, Finished};
use crate::service::{Operation, RequestError};
use crate::tuning::SpacePatience;
use coulter_device::{Command, CommandKind, Completion};

/// How often space is asked for that was not there, in nanoseconds.
const ASK_AGAIN_NS: u64 = 250_000_000;

/// Writes that wait for space, and when it is asked for next.
#[derive(Default)]
pub(super) struct ShortOfSpace {
    /// The newest command of each tag.
    commands: Vec<Option<Command>>,
    /// Writes that found no space. The device does not have them.
    held: Vec<Command>,
    /// When space was found to be short, or was asked for again.
    since_ns: Option<u64>,
    /// Since when it has been short without a pause.
    short_since_ns: Option<u64>,
    /// It has been short for longer than writes wait.
    is_patience_over: bool,
    /// How long writes wait before they are refused.
    pub(super) patience: SpacePatience,
}

impl ShortOfSpace {
    /// A command goes to the device.
    #[inline]
    pub(super) fn note(&mut self, command: &Command) {
        let index = command.tag as usize;
        if self.commands.len() <= index {
            self.commands.resize(index + 1, None);
        }
        self.commands[index] = Some(*command);
    }

    /// Holds a write that found no space. False if it was another command, or ended in another way.
    pub(super) fn takes_note_of(&mut self, completion: &Completion) -> bool {
        let Err(error) = completion.result else { return false };
        // A limit on the size of a file does not go away by itself.
        let may_pass = matches!(error.errno, libc::ENOSPC | libc::EDQUOT);
        let command = self.commands[completion.tag as usize].expect("it was noted");
        if !may_pass || command.kind != CommandKind::Write {
            return false;
        }
        self.held.push(command);
        true
    }
}

/// True if a request that waits for space may be refused: nothing uses its memory any more.
fn is_refusable(job: &Job) -> bool {
    if job.is_held || job.is_answered {
        return false;
    }
    match job.stage {
        // The engine reads into its memory, or is about to. The read ends, and then the job is
        // refused.
        Stage::Fetching => false,
        // It copies what it takes of a write. A read goes on.
        Stage::Issuing => !matches!(job.operation, Operation::Read | Operation::Extents),
        Stage::Blocked | Stage::Guarding | Stage::Awaiting => true,
    }
}

impl Driver {
    /// Whether the device had no space beneath it when it was last asked.
    pub(crate) fn lacks_space(&self) -> bool {
        !self.space.held.is_empty() || self.engine.lacks_space()
    }

    /// Whether it lacks space, or did a moment ago.
    pub(crate) fn was_short_of_space(&self) -> bool {
        self.lacks_space() || self.space.short_since_ns.is_some()
    }

    /// Whether requests are left that only space would help.
    pub(crate) fn stands_still_for_space(&self) -> bool {
        let held = self.space.held.len();
        let waits = self.jobs.count() > 0 && self.engine.lacks_space();
        self.commands_out == held && (held > 0 || waits)
    }

    /// Answers every request that waits for space. Parts that the engine has taken go on, and may
    /// take effect later, as after any error.
    fn refuse_what_waits(&mut self) {
        let waits = self.jobs.each().filter(|(_, job)| is_refusable(job));
        let waiting: Vec<JobIndex> = waits.map(|(index, _)| index).collect();
        // Jobs of which the engine has nothing are done.
        waiting.iter().for_each(|index| self.jobs.job(*index).is_refused = true);
        let (lined_up, mut done) = (std::mem::take(&mut self.writes), Vec::new());
        for index in lined_up {
            let job = self.jobs.job(index);
            if !job.is_refused {
                self.writes.push_back(index);
                continue;
            }
            // The rest of it is not begun any more.
            job.cursor = job.span.end;
            if job.pending == 0 {
                done.push(index);
            }
        }
        for index in waiting {
            let job = self.jobs.job(index);
            let result = Err(RequestError::Device { errno: libc::ENOSPC });
            job.is_answered = true;
            self.counters.finish(job.offset, result);
            self.finished.push(Finished::of(job, result));
            self.bounces.give(std::mem::take(&mut job.bounce));
        }
        done.into_iter().for_each(|index| self.finish(index));
    }

    /// True while writes have waited for space for longer than they may.
    pub(crate) fn is_patience_over(&self) -> bool {
        self.space.is_patience_over
    }

    /// Asks for space again when it is time to. If space is short: for how long to sleep at most.
    pub(crate) fn seek_space(&mut self, now_ns: u64) -> Option<u64> {
        if !self.lacks_space() {
            // It may be short again as soon as it is asked for: a pause is longer than that.
            self.space.is_patience_over = false;
            let asked_ns = self.space.since_ns.unwrap_or(0);
            if now_ns.saturating_sub(asked_ns) > 2 * ASK_AGAIN_NS {
                (self.space.since_ns, self.space.short_since_ns) = (None, None);
            }
            return None;
        }
        let short_since_ns = *self.space.short_since_ns.get_or_insert(now_ns);
        let short_ns = now_ns.saturating_sub(short_since_ns);
        if u128::from(short_ns) > self.space.patience.time().as_nanos() {
            self.space.is_patience_over = true;
            self.refuse_what_waits();
        }
        let since_ns = *self.space.since_ns.get_or_insert(now_ns);
        let passed_ns = now_ns.saturating_sub(since_ns);
        if passed_ns < ASK_AGAIN_NS {
            return Some(ASK_AGAIN_NS - passed_ns);
        }
        self.space.since_ns = Some(now_ns);
        self.engine.try_for_space();
        for command in std::mem::take(&mut self.space.held) {
            // SAFETY: as when it was submitted first. It has not completed, so the engine leaves its
            // memory alone.
            unsafe { self.device.submit(command) };
        }
        Some(ASK_AGAIN_NS)
    }
}
