//! Many short random lives, each with power cuts.

use coulter_engine::create::map_size_min;
use coulter_sim::{Plan, World};

fn run(plan: Plan) {
    let seed = plan.seed;
    match World::new(plan).run() {
        Ok(_) => {}
        Err(violation) => panic!("seed {seed}: {}", violation.what),
    }
}

#[test]
fn random_lives_keep_every_promise() {
    for seed in 0..40 {
        run(Plan::small(seed));
    }
}

#[test]
fn lives_with_little_map_memory_keep_every_promise() {
    for seed in 1000..1020 {
        let map_size = Some(map_size_min(256 * 400));
        run(Plan { map_size, device_size: 256 * 400, ..Plan::small(seed) });
    }
}

#[test]
fn the_same_seed_gives_the_same_commands() {
    let outcome = |seed| World::new(Plan::small(seed)).run().map_err(|v| v.what);
    assert_eq!(outcome(7), outcome(7));
    assert_ne!(outcome(7).map(|o| o.fingerprint), outcome(8).map(|o| o.fingerprint));
}

/// An array that is as its page was written into a run as "no longer counted in the page", because
/// an address of it had been noted before the sweep came by. A later discard of the whole leaf
/// believed that after a crash, and the page's locations stayed counted for ever.
#[test]
fn what_the_page_counts_is_not_said_to_be_released() {
    for seed in [2, 51] {
        let map_size = Some(map_size_min(256 * 400));
        run(Plan { map_size, device_size: 256 * 400, ..Plan::small(seed) });
    }
}

/// The cleaner's list of a victim described the segment's former life: the same address had lain at
/// the same place, so the old bytes were copied over the new ones.
#[test]
fn a_victim_that_was_freed_and_written_anew_is_left_alone() {
    run(Plan { device_size: 256 * 28, ..Plan::small(1155) });
}
