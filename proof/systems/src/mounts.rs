//! Many rounds of: work, lose power or the daemon, come back, compare; for what `coulter fs` and
//! `coulter overlay` mount.
//!
//! ```text
//! power on ─► mount ─► work, settle, detach ─┤ the power goes, or the daemon is killed ├─► take away
//!   ▲                                                                                         │
//!   └─ settle ◄─ checkers ◄─ unmount, or detach ◄─ verify ◄─ mount ◄─ checker ◄─ power on ◄───┘
//! ```
//! A round of an overlay is one of three: it works, or it brings blocks home all the time, or it is detached
//! when the blow falls. Of two disks one loses its power, or the other, or both.

use crate::error::SystemsError;
use crate::machine::Shape;
use crate::protocol::Cut;
use crate::scratch::Scratch;
use crate::stack::{Layer, Powered, Stack};
use crate::workload::{Verified, Workload};
use coulter_workload::Random;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// One blow in so many falls soon after the power is back.
const EARLY_SHARE: u64 = 4;
/// Commands after which such a cut comes at the most.
const EARLY_COMMANDS_MAX: u64 = 250;
/// Commands that detaching may have before the power of a disk goes: fewer of each if there are two.
const DETACH_COMMANDS_MAX: u64 = 400;
/// Time that detaching may have before the daemon is killed.
const DETACH_TIME_MAX: Duration = Duration::from_millis(200);
/// One comparison in so many ends with detaching, and is done again in the plain directory.
const DETACH_SHARE: u64 = 4;
const PAUSE: Duration = Duration::from_millis(1);

/// What falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Blow {
    /// The power of the disks.
    Cut,
    /// The daemon alone.
    Kill,
}

/// What to do.
#[derive(Clone, Debug)]
pub struct MountPlan {
    /// What is mounted.
    pub layer: Layer,
    /// What falls.
    pub blow: Blow,
    /// How often.
    pub blows: u64,
    /// What is drawn.
    pub seed: u64,
    /// The disks; their size is the layer's.
    pub shape: Shape,
    /// The program `coulter`.
    pub program: PathBuf,
    /// Commands to a disk after which its power goes at the most.
    pub commands_max: u64,
    /// Time of work at the most.
    pub work_max: Duration,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct MountOutcome {
    /// What was mounted.
    pub layer: Layer,
    /// What fell.
    pub blow: Blow,
    /// How often.
    pub blows: u64,
    /// How often before all was mounted.
    pub while_opening: u64,
    /// How often while blocks were brought home.
    pub while_settling: u64,
    /// How often while an overlay was being detached.
    pub while_detaching: u64,
    /// What was compared and found right.
    #[serde(flatten)]
    pub verified: Verified,
    /// All in all.
    pub seconds: f64,
    /// From the power until everything was mounted: the longest.
    pub recovery_seconds_max: f64,
}

impl fmt::Display for MountOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.blow {
            Blow::Cut => "cuts",
            Blow::Kill => "kills",
        };
        write!(
            f,
            "{:<26} {:>4} {what} ({} while opening, {} while settling, {} while detaching)  {:>8} durable \
             things, {:>6} MiB compared  slowest recovery {:.2} s  {:>4.0} s",
            self.layer.to_string(),
            self.blows,
            self.while_opening,
            self.while_settling,
            self.while_detaching,
            self.verified.durable,
            self.verified.bytes >> 20,
            self.recovery_seconds_max,
            self.seconds
        )
    }
}

/// Where it ended, and why.
#[derive(Debug)]
pub struct MountFailure {
    /// What was mounted.
    pub layer: Layer,
    /// The blow after which it was found.
    pub blow: u64,
    /// The plan's seed.
    pub seed: u64,
    /// What was found.
    pub error: SystemsError,
    /// What the daemons said.
    pub logs: String,
}

impl fmt::Display for MountFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MountFailure { layer, blow, seed, error, logs } = self;
        write!(f, "{layer}, seed {seed}, after blow {blow}: {error}\n{logs}")
    }
}

impl std::error::Error for MountFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// What a round does when the blow falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Work,
    Settle,
    Detach,
}

struct Campaign<'a> {
    plan: &'a MountPlan,
    workload: &'a mut dyn Workload,
    stack: Stack,
    random: Random,
    outcome: MountOutcome,
}

/// Runs `plan` with `workload`. `tell` hears of each round.
///
/// # Errors
/// The first violation, or what kept it from going on.
pub fn run_mounts(
    plan: &MountPlan,
    workload: &mut dyn Workload,
    scratch: &Scratch,
    tell: &mut dyn FnMut(&MountOutcome),
) -> Result<MountOutcome, Box<MountFailure>> {
    let failed = |blow, error, logs| {
        Box::new(MountFailure { layer: plan.layer, blow, seed: plan.seed, error, logs })
    };
    let stack = Stack::new(plan.layer, &plan.program, &plan.shape, scratch);
    let stack = stack.map_err(|error| failed(0, error, String::new()))?;
    let outcome = MountOutcome {
        layer: plan.layer,
        blow: plan.blow,
        blows: 0,
        while_opening: 0,
        while_settling: 0,
        while_detaching: 0,
        verified: Verified::default(),
        seconds: 0.0,
        recovery_seconds_max: 0.0,
    };
    let random = Random::new(plan.seed);
    let mut campaign = Campaign { plan, workload, stack, random, outcome };
    let begin = Instant::now();
    let mut result = campaign.prepare();
    while result.is_ok() && campaign.outcome.blows < plan.blows {
        result = campaign.round();
        campaign.outcome.seconds = begin.elapsed().as_secs_f64();
        if result.is_ok() {
            tell(&campaign.outcome);
        }
    }
    if let Err(error) = result {
        campaign.workload.stop();
        campaign.stack.clear();
        return Err(failed(campaign.outcome.blows, error, campaign.stack.coulter().logs()));
    }
    Ok(campaign.outcome)
}

impl Campaign<'_> {
    fn prepare(&mut self) -> Result<(), SystemsError> {
        let powered = self.power_on()?;
        self.stack.make(&powered)?;
        self.stack.up(&powered, &[])?;
        self.workload.prepare(self.stack.directory())?;
        self.stack.down(powered)
    }

    fn power_on(&self) -> Result<Powered, SystemsError> {
        self.stack.power_on(&vec![None; self.stack.disks()])
    }

    fn round(&mut self) -> Result<(), SystemsError> {
        let phase = match (self.plan.layer, self.outcome.blows % 3) {
            (Layer::Fs, _) | (_, 0) => Phase::Work,
            (_, 1) => Phase::Settle,
            _ => Phase::Detach,
        };
        match self.plan.blow {
            Blow::Cut => self.work_until_cut(phase)?,
            Blow::Kill => self.work_until_killed(phase)?,
        }
        self.outcome.blows += 1;
        self.compare()
    }

    /// When each disk loses its power: one of them does, or the other, or both, at the same time or nearly.
    fn draw_cuts(&mut self, limit: u64) -> Vec<Option<Cut>> {
        let disks = self.stack.disks();
        let chosen = 1 + self.random.below((1 << disks) - 1);
        let cuts = (0..disks).map(|disk| {
            let cut = Cut { commands: self.random.below(limit), seed: self.random.bits() };
            (chosen >> disk & 1 == 1).then_some(cut)
        });
        cuts.collect()
    }

    fn limit(&mut self) -> Duration {
        Duration::from_millis(self.random.below(1 + self.plan.work_max.as_millis() as u64))
    }

    /// Further options of the mount, by lot.
    fn options(&mut self) -> Vec<&'static str> {
        match self.plan.layer {
            Layer::Overlay { .. } if self.random.below(3) == 0 => vec!["--remap", "all"],
            _ => Vec::new(),
        }
    }

    fn work_until_cut(&mut self, phase: Phase) -> Result<(), SystemsError> {
        let is_early = self.random.below(EARLY_SHARE) == 0;
        let early = self.draw_cuts(EARLY_COMMANDS_MAX);
        let (limit, options) = (self.limit(), self.options());
        let none = vec![None; self.stack.disks()];
        let powered = self.stack.power_on(if is_early { &early } else { &none })?;
        let power = powered.power();
        let up = match self.stack.up(&powered, &options) {
            Ok(up) => up,
            Err(_) if !power.is_on() => {
                self.outcome.while_opening += 1;
                return self.stack.fall(powered, None);
            }
            Err(error) => return Err(error),
        };
        let late = self.draw_cuts(match phase {
            Phase::Detach => DETACH_COMMANDS_MAX / (2 * self.stack.disks() as u64 - 1),
            _ => self.plan.commands_max,
        });
        let cuts = if is_early { early } else { late };
        let arm = |powered: &Powered| -> Result<(), SystemsError> {
            let pairs = powered.running.iter().zip(&cuts);
            pairs.filter_map(|(disk, cut)| Some((disk, (*cut)?))).try_for_each(|(d, c)| d.arm(c))
        };
        if !is_early && phase != Phase::Detach {
            arm(&powered)?;
        }
        let started = self.workload.start(self.stack.directory(), &power);
        if power.is_on() {
            started?;
        }
        let deadline = Instant::now() + limit;
        match phase {
            Phase::Settle => {
                self.outcome.while_settling += 1;
                while power.is_on() && Instant::now() < deadline {
                    let settled = self.overlay("settle");
                    if power.is_on() {
                        settled?;
                    }
                }
            }
            _ => {
                while power.is_on() && Instant::now() < deadline {
                    std::thread::sleep(PAUSE);
                }
            }
        }
        if phase == Phase::Detach {
            self.workload.stop();
            if !is_early {
                arm(&powered)?;
            }
            let detached = self.stack.detach();
            if power.is_on() {
                detached?;
            } else {
                self.outcome.while_detaching += 1;
            }
        }
        for (disk, cut) in powered.running.iter().zip(&cuts) {
            if let Some(cut) = cut {
                disk.cut_within(Duration::ZERO, cut.seed)?;
            }
        }
        self.workload.stop();
        self.stack.fall(powered, Some(up.daemon))
    }

    fn work_until_killed(&mut self, phase: Phase) -> Result<(), SystemsError> {
        let (limit, options) = (self.limit(), self.options());
        let powered = self.power_on()?;
        let up = self.stack.up(&powered, &options)?;
        self.workload.start(self.stack.directory(), &powered.power())?;
        let daemon = up.daemon;
        if phase == Phase::Detach {
            std::thread::sleep(limit / 2);
            self.workload.stop();
        }
        let pause = match phase {
            Phase::Detach => DETACH_TIME_MAX.mul_f64(self.random.below(1000) as f64 / 1000.0),
            _ => limit / 2,
        };
        let killer = std::thread::spawn(move || {
            std::thread::sleep(pause);
            daemon.kill()
        });
        let killed = match phase {
            Phase::Work => killer.join(),
            Phase::Settle => {
                while !killer.is_finished() && self.overlay("settle").is_ok() {}
                self.outcome.while_settling += 1;
                killer.join()
            }
            Phase::Detach => {
                if self.stack.detach().is_err() {
                    self.outcome.while_detaching += 1;
                }
                killer.join()
            }
        };
        killed.expect("it does not panic")?;
        self.workload.stop();
        self.stack.fall(powered, None)
    }

    fn overlay(&self, verb: &str) -> Result<(), SystemsError> {
        let directory = crate::program::text(self.stack.directory());
        self.stack.coulter().run(&["overlay", verb, directory]).map(drop)
    }

    fn compare(&mut self) -> Result<(), SystemsError> {
        let powered = self.power_on()?;
        self.stack.check_crashed(&powered)?;
        let begin = Instant::now();
        self.stack.up(&powered, &[]).map_err(violation)?;
        let seconds = begin.elapsed().as_secs_f64();
        self.outcome.recovery_seconds_max = self.outcome.recovery_seconds_max.max(seconds);
        self.stack.check_mounted()?;
        let verified = self.workload.verify(self.stack.directory())?;
        let is_overlay = matches!(self.plan.layer, Layer::Overlay { .. });
        if is_overlay && self.outcome.blows.is_multiple_of(DETACH_SHARE) {
            self.stack.detach()?;
            // The plain directory holds the same.
            self.workload.settle();
            self.workload.verify(self.stack.directory())?;
            self.stack.check_and_turn_off(powered)?;
        } else {
            self.stack.down(powered)?;
        }
        self.outcome.verified += verified;
        self.workload.settle();
        Ok(())
    }
}

fn violation(error: SystemsError) -> SystemsError {
    match error.is_violation() {
        true => error,
        false => SystemsError::violation(error.to_string()),
    }
}
