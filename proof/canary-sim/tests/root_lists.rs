//! Goal: the scenarios about the list of roots fail if its pages are not written anew, or their second copies not used.

#[path = "../../sim/tests/root_lists.rs"]
mod scenarios;

use coulter_engine::canary::{self, Canary};
use std::panic::catch_unwind;

#[test]
fn a_page_that_is_not_written_anew_and_a_copy_that_is_not_used_are_found_out() {
    let follow = scenarios::pages_of_the_list_follow_their_roots;
    let copies = scenarios::a_page_of_the_list_that_is_damaged_in_one_place_costs_nothing;
    std::panic::set_hook(Box::new(|_| {}));
    let caught = |canary, scenario: fn()| {
        canary::choose(Some(canary));
        let is_caught = catch_unwind(scenario).is_err();
        canary::choose(None);
        is_caught
    };
    let found = [
        caught(Canary::RootListStale, follow),
        caught(Canary::CopyUnused, copies),
        caught(Canary::CopyInPlace, copies),
    ];
    let _ = std::panic::take_hook();
    assert_eq!(found, [true; 3]);
}
