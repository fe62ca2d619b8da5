//! About measurements, simulations and the demonstration.

use coulter_terminal::{Report, fault, usage};
use std::path::PathBuf;

/// About measurements, simulations and the demonstration.
#[derive(Debug)]
#[non_exhaustive]
pub(crate) enum TrialError {
    /// A measurement came to no result.
    Bench { name: &'static str, reason: String, is_usage: bool },
    /// A trace cannot be replayed.
    BadTrace { path: PathBuf, reason: String, strict: bool },
    /// The simulator found a life that breaks a promise.
    PromiseBroken { name: String, reason: String },
    /// A plan for the simulator cannot be run.
    PlanRefused { path: PathBuf, reason: String },
    /// A step of the demonstration did not give what it must.
    DemoFailed { step: &'static str, reason: String },
}

impl TrialError {
    /// What, why, and what to do.
    pub(crate) fn report(&self) -> Report {
        match self {
            TrialError::Bench { name, reason, is_usage } => {
                let what = format!("cannot measure {name}");
                let report = if *is_usage { usage(what) } else { fault(what) };
                report.why(reason.as_str())
            }
            TrialError::BadTrace { path, reason, strict } => {
                let report =
                    fault(format!("cannot replay {}", path.display())).why(reason.as_str());
                let help = "without --strict such lines are counted and left out";
                if *strict { report.help(help) } else { report }
            }
            TrialError::PromiseBroken { name, reason } => {
                fault(format!("{name} breaks a promise")).why(reason.as_str())
            }
            TrialError::PlanRefused { path, reason } => {
                usage(format!("cannot run {}", path.display())).why(reason.as_str())
            }
            TrialError::DemoFailed { step, reason } => {
                fault(format!("the demonstration failed at: {step}")).why(reason.as_str())
            }
        }
    }
}
