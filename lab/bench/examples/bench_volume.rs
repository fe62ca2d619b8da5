//! Prints the figures of a volume on a file: `cargo run --release -p coulter-bench --example
//! bench_volume DIRECTORY [MIB [SECONDS [SPARE_PERCENT]]]`.

use coulter_bench::volume::{Options, run};

fn main() -> Result<(), coulter_bench::BenchError> {
    let mut arguments = std::env::args().skip(1);
    let backing = arguments.next().map(Into::into);
    let mut numbers = arguments.map(|text| text.parse().unwrap_or(1.0));
    let mut options = Options { backing, ..Options::default() };
    options.size = numbers.next().map_or(options.size, |mib: f64| (mib as u64) << 20);
    options.seconds = numbers.next().unwrap_or(options.seconds);
    options.spare_percent = numbers.next().map_or(options.spare_percent, |percent| percent as u32);
    print!("{}", run(&options)?.table());
    Ok(())
}
