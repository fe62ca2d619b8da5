//! Goal: the scenarios about scrubbing fail if it passes over a segment, or takes a damaged block for a good one.

#[path = "../../sim/tests/scrub.rs"]
mod scenarios;

use coulter_engine::canary::{self, Canary};
use std::panic::catch_unwind;

#[test]
fn a_scrub_that_skips_a_segment_and_one_that_believes_what_it_reads_are_found_out() {
    let found = scenarios::every_damaged_block_is_found_and_no_other;
    let busy = scenarios::writes_cleaning_and_power_cuts_hide_no_damage_and_make_none_up;
    let mended = scenarios::either_copy_of_any_metadata_is_written_anew_while_the_store_is_in_use;
    std::panic::set_hook(Box::new(|_| {}));
    let caught = [Canary::ScrubSkipsSegment, Canary::ScrubBelieves].map(|canary| {
        canary::choose(Some(canary));
        let is_caught = [found, busy, mended].map(|scenario| catch_unwind(scenario).is_err());
        canary::choose(None);
        is_caught
    });
    let _ = std::panic::take_hook();
    assert_eq!(caught, [[true; 3]; 2]);
}
