//! Volumes with more addresses than blocks: full is said exactly when it is so, and nothing is lost.

use coulter_sim::{Simulator, generate, lives, shrink};

/// Lives of sparse volumes alone, of which some are full all the time.
#[test]
fn lives_of_sparse_volumes_keep_every_promise() {
    let mut simulator = Simulator::default();
    let (mut refused, mut crash_points) = (0, 0);
    for seed in (10..12 * 7).step_by(12) {
        let plan = generate::plan(seed);
        if plan.shape.sparse.is_none() {
            continue;
        }
        match lives::run(&mut simulator, &plan) {
            Ok(outcome) => {
                refused += outcome.writes_refused;
                crash_points += outcome.crash_points;
            }
            Err(what) => {
                let shrunk = shrink::shrink(&plan, 600);
                let (plan, what) = shrunk.unwrap_or((plan, what));
                panic!("seed {seed}: {what}\n{}", shrink::as_test("found", &plan, &what));
            }
        }
    }
    assert!(refused > 20, "{refused} writes were refused");
    assert!(crash_points > 100, "{crash_points} crash points");
}
