//! Hosts in worlds by seed, every short run, and mistakes that must be found.

use coulter_hosts::exhaustive::{search, short_plan};
use coulter_hosts::{Canary, Tally, run_seed};

#[test]
fn no_promise_is_broken_and_everything_happens() {
    let mut total = Tally::default();
    for seed in 0..2000 {
        let tally = run_seed(seed, None).unwrap_or_else(|violation| panic!("{violation}"));
        total.add(&tally);
    }
    let Tally { unanswered, late_carried_out, refused, conflicts, conditions, unread, .. } = total;
    for count in [unanswered, late_carried_out, refused, conflicts, conditions, unread] {
        assert!(count > 500, "each outcome happens often: {total:?}");
    }
    let Tally { killed, power_cuts, claims, fenced, acknowledged, snapshots, .. } = total;
    for count in [killed, power_cuts, claims, fenced, acknowledged, snapshots] {
        assert!(count > 300, "each event happens often: {total:?}");
    }
    println!("{} outcomes: {total:?}", total.outcomes());
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..50 {
        assert_eq!(run_seed(seed, None), run_seed(seed, None));
    }
}

#[test]
fn every_short_run_with_one_difference_keeps_the_promises() {
    let tried = search(&short_plan(), 1, u64::MAX, None);
    let tried = tried.unwrap_or_else(|violation| panic!("{violation}"));
    assert!(tried.is_complete && tried.runs > 80, "{tried:?}");
}

#[test]
fn every_short_run_with_two_differences_keeps_the_promises() {
    let tried = search(&short_plan(), 2, u64::MAX, None);
    let tried = tried.unwrap_or_else(|violation| panic!("{violation}"));
    println!("{} runs, {} outcomes", tried.runs, tried.tally.outcomes());
    assert!(tried.is_complete && tried.runs > 2000, "{tried:?}");
}

#[test]
fn each_mistake_is_found() {
    for canary in Canary::ALL {
        let found = (0..12000).find(|seed| run_seed(*seed, Some(canary)).is_err());
        let seed = found.unwrap_or_else(|| panic!("{canary:?} is not found in 3000 worlds"));
        println!("{canary:?}: {}", run_seed(seed, Some(canary)).expect_err("it was found"));
    }
}
