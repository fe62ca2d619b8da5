//! Prints the figures of a full volume: `cargo run --release -p coulter-bench --example bench_fill
//! DIRECTORY [MIB [PASSES [SPARE_PERCENT [PATTERN]]]]`.

use coulter_bench::fill::{Options, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let backing = arguments.next().map(Into::into);
    let mut options = Options { backing, ..Options::default() };
    if let Some(mib) = arguments.next() {
        options.size = mib.parse::<u64>()? << 20;
    }
    if let Some(passes) = arguments.next() {
        options.passes = passes.parse()?;
    }
    if let Some(percent) = arguments.next() {
        options.spare_percent = percent.parse()?;
    }
    if let Some(pattern) = arguments.next() {
        options.pattern = pattern.parse()?;
    }
    let report = run(&options)?;
    print!("{}", report.table());
    let rates: Vec<_> = report.interval_iops.iter().map(|rate| format!("{rate:.0}")).collect();
    println!("intervals: {}", rates.join(" "));
    Ok(())
}
