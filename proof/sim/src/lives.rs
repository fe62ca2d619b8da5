//! Many seeds, one life each.

use crate::generate;
use crate::plan::Plan;
use crate::world::{Outcome, Simulator};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A plan that went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed that it was made from.
    pub seed: u64,
    /// The plan.
    pub plan: Plan,
    /// What is wrong: a violation, or a panic's message.
    pub what: String,
}

/// What many lives came to.
#[derive(Clone, Debug, Default)]
pub struct Total {
    /// Seeds run.
    pub seeds: u64,
    /// All outcomes together.
    pub outcome: Outcome,
    /// The failures.
    pub failures: Vec<Failure>,
}

/// Runs a plan; a panic of the engine is a failure like any other.
///
/// # Errors
/// What went wrong.
pub fn run(simulator: &mut Simulator, plan: &Plan) -> Result<Outcome, String> {
    match catch_unwind(AssertUnwindSafe(|| simulator.run(plan))) {
        Ok(Ok(outcome)) => Ok(outcome),
        Ok(Err(violation)) => Err(violation.what),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("panic: {}", text.unwrap_or("without a message")))
        }
    }
}

/// Runs the seeds of a range until `failures_max` have failed. `progress` is told each seed before it
/// is run; if it returns false, that is the end.
pub fn run_seeds(
    seeds: Range<u64>,
    failures_max: usize,
    mut progress: impl FnMut(u64, &Total) -> bool,
) -> Total {
    let mut simulator = Simulator::default();
    let mut total = Total::default();
    for seed in seeds {
        if !progress(seed, &total) || total.failures.len() >= failures_max {
            break;
        }
        let plan = generate::plan(seed);
        total.seeds += 1;
        match run(&mut simulator, &plan) {
            Ok(outcome) => total.outcome.add(&outcome),
            Err(what) => total.failures.push(Failure { seed, plan, what }),
        }
    }
    total
}
