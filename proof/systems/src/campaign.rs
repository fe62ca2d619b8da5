//! Many rounds of: work, lose power, come back, compare.
//!
//! ```text
//! start ─► mount ─► work ─┤ the power goes, at any of these ├─► unmount ─► check the store
//!   ▲                                                                           │
//!   └── settle ◄── fsck ◄── unmount ◄── verify ◄── mount (log replay) ◄── start ◄┘
//! ```
//! One cut in four comes within the first commands after the power is back: while the volume
//! recovers, while the file system replays its log, or soon after.

use crate::error::SystemsError;
use crate::file_system::FileSystem;
use crate::machine::{Machine, Running, Shape, Start};
use crate::protocol::Cut;
use crate::scratch::Scratch;
use crate::workload::{Verified, Workload};
use coulter_workload::Random;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// One cut in so many comes soon after the power is back.
const EARLY_SHARE: u64 = 4;
/// Commands after which such a cut comes, at the most.
const EARLY_COMMANDS_MAX: u64 = 192;

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is mounted.
    pub file_system: FileSystem,
    /// How often the power goes.
    pub cuts: u64,
    /// What is drawn: moments, and what survives.
    pub seed: u64,
    /// The machine.
    pub shape: Shape,
    /// Commands to the disk after which the power goes, at the most.
    pub commands_max: u64,
    /// Time of work after which it goes anyway, at the most.
    pub work_max: Duration,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// What used the file system.
    pub workload: &'static str,
    /// What was mounted.
    pub file_system: FileSystem,
    /// How often the power went.
    pub cuts: u64,
    /// How often of these before the file system was mounted.
    pub cuts_while_opening: u64,
    /// What was compared and found right.
    #[serde(flatten)]
    pub verified: Verified,
    /// All in all.
    pub seconds: f64,
    /// From turning the power on until the file system was mounted, its log replayed: the longest.
    pub recovery_seconds_max: f64,
}

/// Where it ended, and why.
#[derive(Debug)]
pub struct Failure {
    /// The workload and the file system.
    pub what: String,
    /// The cut after which it was found.
    pub cut: u64,
    /// The plan's seed.
    pub seed: u64,
    /// What was found.
    pub error: SystemsError,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, seed {}, after cut {}: {}", self.what, self.seed, self.cut, self.error)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Runs `plan` with `workload` in a directory of its own below `scratch`. `tell` hears of each
/// round.
///
/// # Errors
/// The first violation, or what kept it from going on.
pub fn run(
    plan: &Plan,
    workload: &mut dyn Workload,
    scratch: &Scratch,
    tell: &mut dyn FnMut(&Outcome),
) -> Result<Outcome, Failure> {
    let what = format!("{} on {}", workload.name(), plan.file_system);
    let failed = |cut, error| Failure { what: what.clone(), cut, seed: plan.seed, error };
    let mut campaign = Campaign::new(plan, workload, scratch).map_err(|error| failed(0, error))?;
    let begin = Instant::now();
    while campaign.outcome.cuts < plan.cuts {
        let round = campaign.round();
        campaign.outcome.seconds = begin.elapsed().as_secs_f64();
        round.map_err(|error| failed(campaign.outcome.cuts, error))?;
        tell(&campaign.outcome);
    }
    campaign.machine.check().map_err(|error| failed(plan.cuts, error))?;
    Ok(campaign.outcome)
}

struct Campaign<'a> {
    plan: &'a Plan,
    workload: &'a mut dyn Workload,
    machine: Machine,
    directory: PathBuf,
    random: Random,
    outcome: Outcome,
}

/// Takes the file system away when a round ends early, so that its device can go.
struct UnmountGuard<'a>(&'a PathBuf);

impl UnmountGuard<'_> {
    fn unmount(self) -> Result<(), SystemsError> {
        let directory = self.0;
        std::mem::forget(self);
        FileSystem::unmount(directory)
    }
}

impl Drop for UnmountGuard<'_> {
    fn drop(&mut self) {
        if let Err(error) = FileSystem::unmount(self.0) {
            eprintln!("left behind: {error}");
        }
    }
}

impl<'a> Campaign<'a> {
    fn new(
        plan: &'a Plan,
        workload: &'a mut dyn Workload,
        scratch: &Scratch,
    ) -> Result<Campaign<'a>, SystemsError> {
        let label = format!("{}-{}", workload.name(), plan.file_system);
        let directory = scratch.make_directory(&label)?;
        let machine = Machine::new(&plan.shape, &scratch.path(&format!("{label}.point")))?;
        let outcome = Outcome {
            workload: workload.name(),
            file_system: plan.file_system,
            cuts: 0,
            cuts_while_opening: 0,
            verified: Verified::default(),
            seconds: 0.0,
            recovery_seconds_max: 0.0,
        };
        let random = Random::new(plan.seed);
        let campaign = Campaign { plan, workload, machine, directory, random, outcome };
        campaign.prepare()
    }

    fn prepare(self) -> Result<Campaign<'a>, SystemsError> {
        let running = self.start_for_good()?;
        self.plan.file_system.make(running.device())?;
        self.plan.file_system.mount(running.device(), &self.directory)?;
        let mounted = UnmountGuard(&self.directory);
        self.workload.prepare(&self.directory)?;
        mounted.unmount()?;
        running.shut_down()?;
        Ok(self)
    }

    /// One cut, and what comes of it.
    fn round(&mut self) -> Result<(), SystemsError> {
        let early = self.random.below(EARLY_SHARE) == 0;
        let limit = if early { EARLY_COMMANDS_MAX } else { self.plan.commands_max };
        let cut = Cut { commands: self.random.below(limit), seed: self.random.bits() };
        self.work_until(cut)?;
        self.outcome.cuts += 1;
        self.machine.check()?;
        self.compare()
    }

    fn work_until(&mut self, cut: Cut) -> Result<(), SystemsError> {
        let Start::Running(running) = self.machine.start(Some(cut))? else {
            self.outcome.cuts_while_opening += 1;
            return Ok(());
        };
        match self.plan.file_system.mount(running.device(), &self.directory) {
            Ok(()) => {}
            Err(_) if !running.power().is_on() => {
                self.outcome.cuts_while_opening += 1;
                return running.abandon();
            }
            Err(error) => return Err(SystemsError::violation(format!("no mount: {error}"))),
        }
        let mounted = UnmountGuard(&self.directory);
        let started = self.workload.start(&self.directory, &running.power());
        let limit = self.random.below(1 + self.plan.work_max.as_millis() as u64);
        if let Err(error) = started
            && running.power().is_on()
        {
            self.workload.stop();
            return Err(error);
        }
        let cut = running.cut_within(Duration::from_millis(limit), cut.seed);
        self.workload.stop();
        cut?;
        mounted.unmount()?;
        running.abandon()
    }

    fn compare(&mut self) -> Result<(), SystemsError> {
        let begin = Instant::now();
        let running = self.start_for_good()?;
        let mounted = self.plan.file_system.mount(running.device(), &self.directory);
        mounted.map_err(|error| SystemsError::violation(format!("no mount: {error}")))?;
        let mounted = UnmountGuard(&self.directory);
        let seconds = begin.elapsed().as_secs_f64();
        self.outcome.recovery_seconds_max = self.outcome.recovery_seconds_max.max(seconds);
        let verified = self.workload.verify(&self.directory)?;
        mounted.unmount()?;
        self.plan.file_system.check(running.device())?;
        running.shut_down()?;
        self.outcome.verified += verified;
        self.workload.settle();
        Ok(())
    }

    fn start_for_good(&self) -> Result<Running, SystemsError> {
        match self.machine.start(None)? {
            Start::Running(running) => Ok(running),
            Start::Cut => unreachable!("nobody cuts it"),
        }
    }
}
