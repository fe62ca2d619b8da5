//! Goal: the scenario about second copies fails if they lie where the first do, or are not used.

#[path = "../../sim/tests/copies.rs"]
mod scenarios;

use coulter_engine::canary::{self, Canary};
use std::panic::catch_unwind;

/// Which of the mistakes the scenario finds.
fn caught(canaries: &[Canary], scenario: fn()) -> Vec<bool> {
    std::panic::set_hook(Box::new(|_| {}));
    let is_caught = canaries.iter().map(|canary| {
        canary::choose(Some(*canary));
        let is_caught = catch_unwind(scenario).is_err();
        canary::choose(None);
        is_caught
    });
    let is_caught = is_caught.collect();
    let _ = std::panic::take_hook();
    is_caught
}

#[test]
fn a_copy_in_the_place_of_the_first_and_one_that_is_not_used_are_found_out() {
    let scenario =
        scenarios::a_store_with_either_copy_of_a_listed_block_damaged_is_opened_and_whole;
    assert_eq!(caught(&[Canary::CopyInPlace, Canary::CopyUnused], scenario), [true, true]);
    let scenario = scenarios::a_store_with_a_header_that_is_referred_to_or_its_parity_damaged_is_opened_and_whole;
    assert_eq!(caught(&[Canary::ParityIncomplete, Canary::CopyUnused], scenario), [true, true]);
}
