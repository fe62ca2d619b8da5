//! Prints the figures of the engine alone:
//! `cargo run --release -p coulter-bench --example bench_engine [SECONDS [WARM_UP [SPARE [MIB
//! [AMPLE_SPARE]]]]]`.
//! With next to no seconds and a long warm-up, a profiler sees nothing but random writes.

fn main() -> Result<(), coulter_bench::BenchError> {
    let mut options = coulter_bench::engine::Options::default();
    let mut numbers = std::env::args().skip(1).map(|text| text.parse().unwrap_or(0.0));
    options.seconds = numbers.next().unwrap_or(options.seconds);
    options.warm_up = numbers.next().unwrap_or(options.warm_up);
    options.spare_percent = numbers.next().map_or(options.spare_percent, |spare| spare as u32);
    options.size = numbers.next().map_or(options.size, |mib: f64| (mib as u64) << 20);
    options.ample_spare_percent =
        numbers.next().map_or(options.ample_spare_percent, |spare| spare as u32);
    print!("{}", coulter_bench::engine::run(&options)?.table());
    Ok(())
}
