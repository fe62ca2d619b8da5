//! Every run of a short plan that differs from the undisturbed one in a few decisions.

use crate::canary::Canary;
use crate::chooser::Chooser;
use crate::plan::{Op, Plan};
use crate::service::Weights;
use crate::tally::Tally;
use crate::world::{Violation, run};
use std::collections::BTreeMap;

/// Everything may happen.
const WEIGHTS: Weights = [1; 6];

/// What was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// Runs.
    pub runs: u64,
    /// What happened in them.
    pub tally: Tally,
    /// Whether nothing was left out.
    pub is_complete: bool,
}

/// Two hosts and six steps: one ships, the other takes over, and the first goes on.
pub fn short_plan() -> Plan {
    let first = vec![Op::Write(0), Op::Flush, Op::Write(1), Op::Flush];
    let second = vec![Op::Write(2), Op::Flush];
    Plan { hosts: vec![first, second] }
}

/// Runs `plan` with every choice of up to `differences_max` decisions that differ from the first choice,
/// `runs_max` runs at most.
///
/// # Errors
/// The first [`Violation`], with the decisions that lead to it.
pub fn search(
    plan: &Plan,
    differences_max: usize,
    runs_max: u64,
    canary: Option<Canary>,
) -> Result<Tried, Violation> {
    let mut tried = Tried { is_complete: true, ..Tried::default() };
    let mut left: Vec<BTreeMap<usize, usize>> = vec![BTreeMap::new()];
    while let Some(script) = left.pop() {
        if tried.runs == runs_max {
            tried.is_complete = false;
            break;
        }
        let (outcome, chooser) = run(plan, Chooser::of_script(script.clone()), WEIGHTS, canary);
        tried.runs += 1;
        let tally = outcome.map_err(|what| {
            let what = format!("{what}; decisions {script:?}");
            Violation { what, seed: None }
        })?;
        tried.tally.add(&tally);
        if script.len() == differences_max {
            continue;
        }
        let Chooser::Script { counts, .. } = chooser else { unreachable!("a script was given") };
        let first = script.last_key_value().map_or(0, |(last, _)| last + 1);
        for (decision, count) in counts.iter().enumerate().skip(first) {
            for choice in 1..*count {
                let mut next = script.clone();
                next.insert(decision, choice);
                left.push(next);
            }
        }
    }
    Ok(tried)
}
