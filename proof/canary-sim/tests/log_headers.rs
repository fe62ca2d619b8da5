//! Goal: the scenarios about damaged headers fail if none is rebuilt, or one of which the payload is damaged.

#[path = "../../sim/tests/log_headers.rs"]
mod scenarios;

use coulter_engine::canary::{self, Canary};
use std::panic::catch_unwind;

#[test]
fn a_header_that_is_not_rebuilt_and_one_that_is_believed_too_easily_are_found_out() {
    let all: [(Canary, fn()); 2] = [
        (Canary::CopyUnused, scenarios::each_header_but_the_last_is_rebuilt),
        (
            Canary::EchoUnverified,
            scenarios::a_header_of_which_the_payload_is_damaged_too_is_not_believed,
        ),
    ];
    std::panic::set_hook(Box::new(|_| {}));
    let caught = all.map(|(canary, scenario)| {
        canary::choose(Some(canary));
        let is_caught = catch_unwind(scenario).is_err();
        canary::choose(None);
        is_caught
    });
    let _ = std::panic::take_hook();
    assert_eq!(caught, [true, true]);
}
