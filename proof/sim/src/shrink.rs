//! Makes a failing plan short: steps are taken out, in ever smaller groups, as long as it still fails.
//!
//! After Zeller and Hildebrandt, *Simplifying and Isolating Failure-Inducing Input* (2002), without the
//! complements: a group that can go, goes. Then single steps are made simpler and smaller.

use crate::lives;
use crate::plan::{Plan, Step};
use crate::world::Simulator;

/// The shortest plan found that still fails, after running at most `runs_max` plans, and what it says.
/// `None` if the plan does not fail.
pub fn shrink(plan: &Plan, runs_max: usize) -> Option<(Plan, String)> {
    let mut shrinking = Shrinking { simulator: Simulator::default(), runs: 0 };
    shrinking.simulator.audit_data_every = 1;
    let mut what = shrinking.fails(plan)?;
    let mut best = plan.clone();
    shrinking.cut_off(&mut best, &mut what);
    let half = best.steps.len() / 2;
    shrinking.remove(&mut best, &mut what, half, runs_max);
    if shrinking.settle(&mut best, &mut what, runs_max) {
        shrinking.remove(&mut best, &mut what, 1, runs_max);
    }
    shrinking.make_smaller(&mut best, &mut what, runs_max);
    Some((best, what))
}

struct Shrinking {
    simulator: Simulator,
    runs: usize,
}

impl Shrinking {
    fn fails(&mut self, plan: &Plan) -> Option<String> {
        self.runs += 1;
        lives::run(&mut self.simulator, plan).err()
    }

    /// Cuts off what comes after the failure, by halving: it costs a run for each doubling of the plan,
    /// where taking steps out costs many.
    fn cut_off(&mut self, best: &mut Plan, what: &mut String) {
        let mut holds = 0;
        while best.steps.len() - holds > 1 {
            let mut shorter = best.clone();
            shorter.steps.truncate(holds.midpoint(best.steps.len()));
            match self.fails(&shorter) {
                Some(now) => (*best, *what) = (shorter, now),
                None => holds = shorter.steps.len(),
            }
        }
    }

    /// Takes steps out, so many at a time at first.
    fn remove(&mut self, best: &mut Plan, what: &mut String, mut size: usize, runs_max: usize) {
        while size > 0 && self.runs < runs_max {
            let mut start = 0;
            let mut removed = false;
            while start < best.steps.len() && self.runs < runs_max {
                let mut shorter = best.clone();
                let end = (start + size).min(shorter.steps.len());
                shorter.steps.drain(start..end);
                if let Some(now) = self.fails(&shorter) {
                    (*best, *what, removed) = (shorter, now, true);
                } else {
                    start += size;
                }
            }
            if !removed || size > 1 {
                size /= 2;
            }
        }
    }

    /// Lets everything come to its end where it went on for a number of events: such a number holds
    /// steps in place that only pass the time. Returns whether anything changed.
    fn settle(&mut self, best: &mut Plan, what: &mut String, runs_max: usize) -> bool {
        let mut changed = false;
        for index in 0..best.steps.len() {
            if self.runs < runs_max && matches!(best.steps[index], Step::Run { .. }) {
                let mut settled = best.clone();
                settled.steps[index] = Step::Drain;
                if let Some(now) = self.fails(&settled) {
                    (*best, *what, changed) = (settled, now, true);
                }
            }
        }
        changed
    }

    fn make_smaller(&mut self, best: &mut Plan, what: &mut String, runs_max: usize) {
        for index in 0..best.steps.len() {
            while self.runs < runs_max {
                let Some(step) = smaller(&best.steps[index]) else { break };
                let mut simpler = best.clone();
                simpler.steps[index] = step;
                let Some(now) = self.fails(&simpler) else { break };
                (*best, *what) = (simpler, now);
            }
        }
    }
}

fn smaller(step: &Step) -> Option<Step> {
    Some(match step {
        Step::Write { lba, count, fua } if *count > 1 => {
            Step::Write { lba: *lba, count: count / 2, fua: *fua }
        }
        Step::WriteMany { changes, fua } if changes.len() > 1 => {
            let changes = changes[..changes.len() - 1].to_vec();
            Step::WriteMany { changes, fua: *fua }
        }
        Step::Discard { lba, count } if *count > 1 => Step::Discard { lba: *lba, count: count / 2 },
        Step::Read { lba, count } if *count > 1 => Step::Read { lba: *lba, count: count / 2 },
        Step::Ruin(ruin, number) if *number > 0 => Step::Ruin(*ruin, number / 2),
        Step::Run { events, seed } if *events > 1 => Step::Run { events: events / 2, seed: *seed },
        Step::Cut { loss, seed, again } if !again.is_empty() => {
            let again = again[..again.len() - 1].to_vec();
            Step::Cut { loss: *loss, seed: *seed, again }
        }
        _ => return None,
    })
}

/// The plan as a test that can be pasted into `tests/plans.rs`.
pub fn as_test(name: &str, plan: &Plan, what: &str) -> String {
    let lines: String = plan.to_string().lines().map(|line| format!("        {line}\n")).collect();
    format!(
        "/// {what}\n#[test]\nfn {name}() {{\n    holds(\n        \"\\\n{lines}\",\n    );\n}}\n"
    )
}
