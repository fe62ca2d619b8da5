//! Runs seeds and prints what happened: first seed, count.
use coulter_sim::{generate, lives, world::Simulator};

fn main() {
    let arguments: Vec<u64> =
        std::env::args().skip(1).map(|word| word.parse().expect("a number")).collect();
    let [first, count] = arguments[..] else { panic!("first seed, count") };
    let mut simulator = Simulator::default();
    for seed in first..first + count {
        let start = std::time::Instant::now();
        let plan = generate::plan(seed);
        let outcome = lives::run(&mut simulator, &plan);
        println!("{seed} {:?} {:?} {}", start.elapsed(), outcome, plan.shape);
    }
}
