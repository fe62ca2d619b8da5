//! Prints the figures of recovery: `cargo run --release -p coulter-bench --example bench_recovery
//! [GiB mapped [MiB of map memory]]`.

use coulter_bench::recovery::{Options, run};

fn main() -> Result<(), coulter_bench::BenchError> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse().unwrap_or(1.0));
    let mut options = Options::default();
    options.mapped = numbers.next().map_or(options.mapped, |gib: f64| (gib * 2f64.powi(30)) as u64);
    options.map_memory = numbers.next().map(|mib| (mib * 2f64.powi(20)) as u64);
    print!("{}", run(&options)?.table());
    Ok(())
}
