//! Many short lives, each with power cuts; `coulter-lab sim` runs more of them.

use coulter_sim::plan::Plan;
use coulter_sim::{Simulator, generate, lives, shrink};

#[test]
fn lives_keep_every_promise() {
    let total = lives::run_seeds(0..40, 1, |_, _| true);
    if let Some(failure) = total.failures.first() {
        let shrunk = shrink::shrink(&failure.plan, 300);
        let (plan, what) = shrunk.unwrap_or((failure.plan.clone(), failure.what.clone()));
        panic!("seed {}: {what}\n{}", failure.seed, shrink::as_test("found", &plan, &what));
    }
    let outcome = total.outcome;
    assert!(outcome.crash_points > 1000, "{outcome:?}");
    assert!(outcome.cuts_while_opening > 200, "{outcome:?}");
    assert!(outcome.segments_cleaned > 100, "{outcome:?}");
    assert!(outcome.references_followed > 1000, "{outcome:?}");
    assert!(outcome.writes_of_many > 1000, "{outcome:?}");
}

#[test]
fn the_same_seed_gives_the_same_commands_and_bytes() {
    let mut simulator = Simulator::default();
    let mut run = |seed| lives::run(&mut simulator, &generate::plan(seed)).map(|o| o.fingerprint);
    for seed in [7, 10, 25] {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(7), run(8));
}

/// A plan runs by its text alone.
#[test]
fn a_plan_file_runs_like_the_plan_it_was_written_from() {
    let plan = generate::plan(9);
    let read: Plan = plan.to_string().parse().expect("it was written by the same version");
    let mut simulator = Simulator::default();
    assert_eq!(simulator.run(&read).ok(), simulator.run(&plan).ok());
}
