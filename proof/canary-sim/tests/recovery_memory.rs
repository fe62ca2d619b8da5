//! Goal: the scenario about memory that is full fails if the engine lets it overfill.

#[path = "../../sim/tests/recovery_memory.rs"]
mod scenarios;

use coulter_engine::canary::{self, Canary};
use std::panic::catch_unwind;

#[test]
fn a_memory_that_is_overfilled_is_found_out() {
    let scenario = scenarios::a_store_opens_when_the_power_goes_with_its_memory_full;
    std::panic::set_hook(Box::new(|_| {}));
    canary::choose(Some(Canary::RecoveryOverfilled));
    let is_caught = catch_unwind(scenario).is_err();
    canary::choose(None);
    let _ = std::panic::take_hook();
    assert!(is_caught);
}
