//! `cargo run --package coulter-hosts -- [WORLDS [FIRST]]`: worlds by seed, and what happened in them.
//! Ends with 1 at the first broken promise.

use coulter_hosts::{Tally, run_seed};
use std::process::ExitCode;

/// Worlds, if nobody says how many.
const WORLDS: u64 = 5000;

fn main() -> ExitCode {
    let numbers: Result<Vec<u64>, _> = std::env::args().skip(1).map(|word| word.parse()).collect();
    let (count, first) = match numbers.as_deref() {
        Ok([]) => (WORLDS, 0),
        Ok([count]) => (*count, 0),
        Ok([count, first]) => (*count, *first),
        _ => {
            eprintln!("usage: coulter-hosts [WORLDS [FIRST]]");
            return ExitCode::from(2);
        }
    };
    let mut total = Tally::default();
    for seed in first..first.saturating_add(count) {
        match run_seed(seed, None) {
            Ok(tally) => total.add(&tally),
            Err(violation) => {
                eprintln!("{violation}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{count} worlds from seed {first}: {} outcomes, 0 violations", total.outcomes());
    println!("{total:#?}");
    ExitCode::SUCCESS
}
