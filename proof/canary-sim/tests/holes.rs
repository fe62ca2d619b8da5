//! Goal: the scenarios about holes fail if what they are about goes wrong.

#[path = "../../sim/tests/holes.rs"]
mod scenarios;

use coulter_engine::canary::{self, Canary};
use std::panic::catch_unwind;

#[test]
fn the_scenarios_about_holes_catch_their_mistakes() {
    std::panic::set_hook(Box::new(|_| {}));
    let with = |mistake, scenario: fn()| {
        canary::choose(Some(mistake));
        let caught = catch_unwind(scenario).is_err();
        canary::choose(None);
        caught
    };
    let reader: fn() = scenarios::a_hole_is_not_filled_while_its_old_content_is_read;
    let header: fn() = scenarios::the_header_of_an_older_version_at_the_same_place_is_not_believed;
    let caught =
        [with(Canary::HoleReaderIgnored, reader), with(Canary::StaleHeaderBelieved, header)];
    let sound = [reader, header].map(|scenario| catch_unwind(scenario).is_ok());
    let _ = std::panic::take_hook();
    assert_eq!((caught, sound), ([true; 2], [true; 2]));
}
