//! Runs three lives of the engine, with power cuts, against the oracle.

use coulter_sim::lives;

fn main() {
    let total = lives::run_seeds(0..3, 1, |seed, _| {
        println!("life {seed}");
        true
    });
    assert!(total.failures.is_empty(), "{:?}", total.failures);
    println!("{} power cuts, each survived", total.outcome.crash_points);
}
