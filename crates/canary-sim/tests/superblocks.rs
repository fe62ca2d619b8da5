//! Goal: the scenario about the copies of the superblock fails if only one of them leads to the newest
//! checkpoint.

#[path = "../../sim/tests/superblocks.rs"]
mod scenarios;

use coulter_engine::canary::{self, Canary};
use std::panic::catch_unwind;

#[test]
fn a_single_superblock_is_found_out() {
    let scenario = scenarios::either_copy_of_the_superblock_leads_to_all_that_was_acknowledged;
    std::panic::set_hook(Box::new(|_| {}));
    canary::choose(Some(Canary::SuperblockSingle));
    let is_caught = catch_unwind(scenario).is_err();
    canary::choose(None);
    let _ = std::panic::take_hook();
    assert!(is_caught);
}
