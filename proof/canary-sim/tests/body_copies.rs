//! Goal: the scenario about the copies of the checkpoint's body fails if the second one is not written.

#[path = "../../sim/tests/body_copies.rs"]
mod scenarios;

use coulter_engine::canary::{self, Canary};
use std::panic::catch_unwind;

#[test]
fn a_missing_copy_of_the_body_is_found_out() {
    let scenario = scenarios::a_store_with_either_copy_of_the_body_damaged_is_opened_and_whole;
    std::panic::set_hook(Box::new(|_| {}));
    canary::choose(Some(Canary::BodyCopyMissing));
    let is_caught = catch_unwind(scenario).is_err();
    canary::choose(None);
    let _ = std::panic::take_hook();
    assert!(is_caught);
}
