//! Runs seeds of one plan and prints what happened.
use coulter_sim::{Plan, World};

fn main() {
    let arguments: Vec<u64> =
        std::env::args().skip(1).map(|word| word.parse().expect("a number")).collect();
    let [first, count, segments] = arguments[..] else { panic!("first seed, count, segments") };
    for seed in first..first + count {
        let little = std::env::var_os("LITTLE_MAP").is_some();
        let map_size = little.then(|| coulter_engine::create::map_size_min(256 * segments));
        let plan = Plan { map_size, device_size: 256 * segments, ..Plan::small(seed) };
        let result = std::panic::catch_unwind(|| World::new(plan).run());
        match result {
            Ok(Ok(outcome)) => println!("{seed} {outcome:?}"),
            Ok(Err(violation)) => println!("{seed} VIOLATION {}", violation.what),
            Err(_) => println!("{seed} PANIC"),
        }
    }
}
