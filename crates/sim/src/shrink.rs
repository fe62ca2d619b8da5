//! Makes a failing plan short: steps are taken out, in ever smaller groups, as long as it still fails.
//!
//! After Zeller and Hildebrandt, *Simplifying and Isolating Failure-Inducing Input* (2002), without the
//! complements: a group that can go, goes. Then single steps are made smaller.

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
    let mut size = best.steps.len() / 2;
    while size > 0 && shrinking.runs < runs_max {
        let mut start = 0;
        let mut removed = false;
        while start < best.steps.len() && shrinking.runs < runs_max {
            let mut shorter = best.clone();
            let end = (start + size).min(shorter.steps.len());
            shorter.steps.drain(start..end);
            if let Some(now) = shrinking.fails(&shorter) {
                (best, what, removed) = (shorter, now, true);
            } else {
                start += size;
            }
        }
        if !removed || size > 1 {
            size /= 2;
        }
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
        Step::Discard { lba, count } if *count > 1 => Step::Discard { lba: *lba, count: count / 2 },
        Step::Read { lba, count } if *count > 1 => Step::Read { lba: *lba, count: count / 2 },
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
