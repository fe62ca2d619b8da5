//! `coulter-lab sim`: the engine in a simulated world, power cuts and all.

use crate::error::{LabError, SystemError, TrialError};
use crate::terminal::{self, GREEN};
use clap::Args;
use coulter_cli::interrupt::Interrupt;
use coulter_sim::exhaustive::{ALPHABET, Search, Tried};
use coulter_sim::lives::{self, Total};
use coulter_sim::plan::Plan;
use coulter_sim::{Outcome, Simulator, generate, shrink};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Plans that are run to make a failing one short.
const SHRINK_RUNS: usize = 2000;

/// Lives, and the seed of the first one, at most: their sum is a seed too.
const SEEDS_MAX: u64 = u64::MAX / 2;

/// Letters of a plan at most, in an exhaustive search without an end.
const LENGTH_MAX: u32 = 12;

/// The stores of an exhaustive search: a dense one, and a sparse one with a list of roots.
const SEARCHES: [fn() -> Search; 2] = [Search::new, Search::root_lists];

/// Simulate the engine under power cuts and device faults; the same seed gives the same run.
///
/// Each seed is one run, a *life*: requests, a device that reorders, tears, loses and fails writes,
/// and about twenty power cuts. After each cut the volume is compared with the promises. A failing
/// run is minimised and printed as a test; the exit code is then 1.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter-lab sim                          a hundred lives
  coulter-lab sim --seeds 10000 --first 5000   ten thousand others
  coulter-lab sim --seed 7 --print         each device command of one life
  coulter-lab sim --plan failing.plan      a plan that was written down
  coulter-lab sim --exhaustive             every short plan, cut after every device command")]
pub(crate) struct Sim {
    /// Number of lives
    #[arg(long, default_value = "100", conflicts_with_all = ["seed", "plan", "exhaustive"])]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=SEEDS_MAX))]
    pub(crate) seeds: u64,

    /// Seed of the first life
    #[arg(long, default_value = "0", conflicts_with_all = ["seed", "plan", "exhaustive"])]
    #[arg(value_parser = clap::value_parser!(u64).range(..=SEEDS_MAX))]
    pub(crate) first: u64,

    /// Run only the life with this seed
    #[arg(long, conflicts_with_all = ["plan", "exhaustive"])]
    pub(crate) seed: Option<u64>,

    /// Run this plan
    #[arg(long, value_name = "FILE", conflicts_with = "exhaustive")]
    pub(crate) plan: Option<PathBuf>,

    /// Print each device command; needs --seed or --plan
    #[arg(long, conflicts_with = "exhaustive")]
    pub(crate) print: bool,

    /// Print the plan instead of running it; needs --seed
    #[arg(long, requires = "seed", conflicts_with = "print")]
    pub(crate) write_plan: bool,

    /// Try all plans with one operation, then with two, and so on
    #[arg(long)]
    pub(crate) exhaustive: bool,

    /// Number of crash points of an exhaustive search
    #[arg(long, default_value = "20000", requires = "exhaustive")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) points: u64,

    /// Print the figures as JSON
    #[arg(long, conflicts_with_all = ["print", "write_plan"])]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct LivesReport {
    /// Seed of the first life; `None` for one plan.
    first: Option<u64>,
    seeds: u64,
    operations: u64,
    commands: u64,
    crash_points: u64,
    cuts_while_opening: u64,
    recoveries: u64,
    checkpoints: u64,
    segments_cleaned: u64,
    references_followed: u64,
    violations: usize,
    seconds: f64,
    cuts_per_minute: f64,
    fingerprint: String,
}

#[derive(Serialize)]
struct ExhaustiveReport {
    plans: u64,
    operations_max: u32,
    crash_points: u64,
    exhausted_points: u64,
    violations: usize,
    seconds: f64,
}

impl Sim {
    pub(crate) fn run(&self) -> Result<(), LabError> {
        let interrupt = Interrupt::take_over()?;
        // The engine's panics are findings; they are told once, with the plan.
        std::panic::set_hook(Box::new(|_| {}));
        let result = if self.exhaustive {
            self.search(&interrupt)
        } else if let Some(path) = &self.plan {
            self.run_plan(&read_plan(path)?, &path.display().to_string())
        } else if let Some(seed) = self.seed {
            let plan = generate::plan(seed);
            if self.write_plan {
                return terminal::print(plan.to_string().trim_end());
            }
            self.run_plan(&plan, &format!("seed {seed}"))
        } else {
            self.run_seeds(&interrupt)
        };
        let _ = std::panic::take_hook();
        result
    }

    fn run_seeds(&self, interrupt: &Interrupt) -> Result<(), LabError> {
        let bar = terminal::progress_of_count("simulating", self.seeds);
        let (start, mut latest) = (Instant::now(), self.first);
        let seeds = self.first..self.first + self.seeds;
        let total = lives::run_seeds(seeds, 1, |seed, total| {
            bar.set_position(total.seeds);
            latest = seed;
            !interrupt.is_raised()
        });
        bar.finish_and_clear();
        self.tell(&total, Some(self.first), start.elapsed().as_secs_f64())?;
        if let Some(failure) = total.failures.first() {
            return Err(found(&format!("seed {}", failure.seed), &failure.plan, &failure.what));
        }
        if total.seeds < self.seeds {
            terminal::note(&format!(
                "interrupted before seed {latest}: go on with --first {latest}"
            ));
            return Err(SystemError::Interrupted.into());
        }
        Ok(())
    }

    fn tell(&self, total: &Total, first: Option<u64>, seconds: f64) -> Result<(), LabError> {
        let Outcome { operations, commands, crash_points, .. } = total.outcome;
        let Outcome { cuts_while_opening, recoveries, checkpoints, .. } = total.outcome;
        let violations = total.failures.len();
        let cuts_per_minute = crash_points as f64 * 60.0 / seconds.max(1e-9);
        if self.json {
            return terminal::print_json(&LivesReport {
                first,
                seeds: total.seeds,
                operations,
                commands,
                crash_points,
                cuts_while_opening,
                recoveries,
                checkpoints,
                segments_cleaned: total.outcome.segments_cleaned,
                references_followed: total.outcome.references_followed,
                violations,
                seconds,
                cuts_per_minute,
                fingerprint: format!("{:016x}", total.outcome.fingerprint),
            });
        }
        let verdict =
            if violations == 0 { "every promise was kept" } else { "a promise was broken" };
        let from = first.map_or_else(String::new, |first| format!(" from seed {first}"));
        terminal::print(&format!(
            "{GREEN}{verdict}{GREEN:#}: {} lives{from}, {operations} operations, \
             {crash_points} power cuts ({cuts_while_opening} while opening; \
             {cuts_per_minute:.0} a minute), {recoveries} recoveries compared",
            total.seeds,
        ))
    }

    fn run_plan(&self, plan: &Plan, name: &str) -> Result<(), LabError> {
        if self.print {
            for line in story(plan) {
                terminal::print(&line)?;
            }
        }
        let start = Instant::now();
        let mut total = Total { seeds: 1, ..Total::default() };
        match lives::run(&mut Simulator::default(), plan) {
            Ok(outcome) => total.outcome = outcome,
            Err(what) => return Err(found(name, plan, &what)),
        }
        self.tell(&total, None, start.elapsed().as_secs_f64())
    }

    fn search(&self, interrupt: &Interrupt) -> Result<(), LabError> {
        let bar = terminal::progress_of_count("crash points", self.points);
        let start = Instant::now();
        let (mut failure, mut length_max, mut current) = (None, 0, Vec::new());
        let mut total = Tried::default();
        // Half of the points, and then the other half.
        for (points, make) in [(self.points.div_ceil(2), SEARCHES[0]), (self.points, SEARCHES[1])] {
            let (mut search, mut length) = (make(), 0);
            search.tried = total;
            while failure.is_none() && length <= LENGTH_MAX {
                let result = search.all_of_length(length, |letters, tried| {
                    bar.set_position(tried.crash_points);
                    current = letters.to_vec();
                    tried.crash_points < points && !interrupt.is_raised()
                });
                failure = result.err();
                if search.tried.crash_points >= points || interrupt.is_raised() {
                    break;
                }
                length += 1;
            }
            total = search.tried;
            length_max = length_max.max(length);
        }
        bar.finish_and_clear();
        self.tell_search(&total, length_max, failure.is_some().into(), start)?;
        if let Some(failure) = failure {
            let reason = failure.to_string();
            return Err(TrialError::PromiseBroken { name: "a plan".to_owned(), reason }.into());
        }
        if interrupt.is_raised() {
            terminal::note(&format!("interrupted at the plan {current:?}"));
            return Err(SystemError::Interrupted.into());
        }
        Ok(())
    }

    fn tell_search(
        &self,
        tried: &Tried,
        operations_max: u32,
        violations: usize,
        start: Instant,
    ) -> Result<(), LabError> {
        let Tried { plans, crash_points, exhausted_points, .. } = *tried;
        let seconds = start.elapsed().as_secs_f64();
        if self.json {
            return terminal::print_json(&ExhaustiveReport {
                plans,
                operations_max,
                crash_points,
                exhausted_points,
                violations,
                seconds,
            });
        }
        terminal::print(&format!(
            "{plans} plans of up to {operations_max} of {} operations, {crash_points} crash points, \
             {violations} violations",
            ALPHABET.len(),
        ))
    }
}

fn read_plan(path: &Path) -> Result<Plan, LabError> {
    let text = std::fs::read_to_string(path).map_err(|error| LabError::io("read", path, error))?;
    let refused = |reason: coulter_sim::plan::PlanError| {
        let (path, reason) = (path.to_owned(), reason.to_string());
        LabError::from(TrialError::PlanRefused { path, reason })
    };
    text.parse().map_err(refused)
}

/// What happens in a plan, as far as it comes.
fn story(plan: &Plan) -> Vec<String> {
    let tell = || Simulator::default().tell(plan, true).1;
    std::panic::catch_unwind(tell).unwrap_or_else(|_| vec!["the engine panics".to_owned()])
}

/// The error for a plan that breaks a promise: made short, and written as a test.
fn found(name: &str, plan: &Plan, what: &str) -> LabError {
    terminal::note(&format!("{name} breaks a promise: {what}; making the plan short"));
    let shrunk = shrink::shrink(plan, SHRINK_RUNS);
    let (plan, what) = shrunk.unwrap_or((plan.clone(), what.to_owned()));
    terminal::note(&shrink::as_test("found_by_the_simulator", &plan, &what));
    TrialError::PromiseBroken { name: name.to_owned(), reason: what }.into()
}
