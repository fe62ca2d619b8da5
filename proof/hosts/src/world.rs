//! A run: hosts with their plans, and the checks at its end.

use crate::canary::Canary;
use crate::chooser::Chooser;
use crate::host::{self, Host};
use crate::plan::{HOST_COUNT_MAX, Plan};
use crate::service::{Once, Shared, Truth, Weights};
use crate::tally::Tally;
use coulter_object::history::takeover;
use std::fmt;
use std::sync::Arc;

/// A promise was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// How.
    pub what: String,
    /// The seed, if one made the run.
    pub seed: Option<u64>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seed {
            Some(seed) => write!(f, "seed {seed}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl std::error::Error for Violation {}

/// Weathers by weight: fair, bad, murderous.
const WEATHERS: [Weights; 3] = [[100, 1, 1, 1, 1, 1], [100, 8, 8, 6, 6, 2], [100, 3, 6, 2, 2, 10]];

/// A run of a seed.
///
/// # Errors
/// [`Violation`].
pub fn run_seed(seed: u64, canary: Option<Canary>) -> Result<Tally, Violation> {
    let mut chooser = Chooser::of_seed(seed);
    let weights = WEATHERS[chooser.any(WEATHERS.len())];
    let (tally, _) = run(&Plan::of_seed(seed), chooser, weights, canary);
    tally.map_err(|what| Violation { what, seed: Some(seed) })
}

/// A run of a plan. Returns the chooser, too, which knows what could have been chosen.
///
/// # Errors
/// What is broken.
pub fn run(
    plan: &Plan,
    chooser: Chooser,
    weights: Weights,
    canary: Option<Canary>,
) -> (Result<Tally, String>, Chooser) {
    let count = plan.hosts.len();
    assert!((1..=HOST_COUNT_MAX).contains(&count), "a world has one to three hosts");
    let shared = Arc::new(Shared::new(count, chooser, weights, canary));
    std::thread::scope(|scope| {
        for (index, ops) in plan.hosts.iter().enumerate() {
            let shared = &shared;
            scope.spawn(move || {
                let _end = End { shared, host: index };
                shared.begin(index);
                Host::new(shared.clone(), index).run(ops);
            });
        }
    });
    if shared.violation().is_none() {
        shared.carry_out_all_late();
        check_end(&shared);
    }
    let outcome = shared.violation().map_or_else(|| Ok(shared.lock().tally), Err);
    let chooser = shared.lock().chooser.clone();
    (outcome, chooser)
}

/// Hands the turn on, also when the host has panicked.
struct End<'a> {
    shared: &'a Shared,
    host: usize,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.lock().violated("a host panicked: see above".to_string());
        }
        self.shared.end(self.host);
    }
}

/// Somebody opens the volume when all is over.
fn check_end(shared: &Arc<Shared>) {
    let truth = Truth(shared.clone());
    match takeover::claim(&truth, "the end", 0, &Once) {
        Ok(claim) => host::check_claim(shared, &claim),
        Err(coulter_object::ReplicaError::NoVolume) => {}
        Err(error) => shared.lock().violated(format!("the end cannot be opened: {error}")),
    }
    host::check_pins(shared);
}
