//! Goal: the scenarios about the copies of the superblock fail if only one of them leads to the newest
//! checkpoint, or if one names a copy that is not there.

#[path = "../../sim/tests/superblocks.rs"]
mod scenarios;

use coulter_engine::canary::{self, Canary};
use std::panic::catch_unwind;
use std::sync::Mutex;

/// The hook for panics is one for all threads.
static HOOK: Mutex<()> = Mutex::new(());

fn is_found_out(mistake: Canary, scenario: fn()) -> bool {
    let _held = HOOK.lock().expect("no test fails while it holds it");
    std::panic::set_hook(Box::new(|_| {}));
    canary::choose(Some(mistake));
    let is_caught = catch_unwind(scenario).is_err();
    canary::choose(None);
    let _ = std::panic::take_hook();
    is_caught
}

#[test]
fn a_single_superblock_is_found_out() {
    let scenario = scenarios::either_copy_of_the_superblock_leads_to_all_that_was_acknowledged;
    assert!(is_found_out(Canary::SuperblockSingle, scenario));
}

#[test]
fn a_third_superblock_that_is_named_early_is_found_out() {
    let scenario = scenarios::a_store_that_grows_has_its_third_superblock_first;
    assert!(is_found_out(Canary::ThirdNamedEarly, scenario));
}
