//! Goal: the scenario about blocks that cannot be read fails if a record is dropped for one.

#[path = "../../sim/tests/unreadable_log.rs"]
mod scenarios;

use coulter_engine::canary::{self, Canary};
use std::panic::catch_unwind;

#[test]
fn a_record_that_is_dropped_because_it_cannot_be_read_is_found_out() {
    std::panic::set_hook(Box::new(|_| {}));
    canary::choose(Some(Canary::UnreadableDropped));
    let scenario = scenarios::what_may_have_been_durable_is_not_dropped_because_it_cannot_be_read;
    let is_caught = catch_unwind(scenario).is_err();
    canary::choose(None);
    let _ = std::panic::take_hook();
    assert!(is_caught);
}
