//! Measures what cleaning costs on a small volume, and prints it: `cargo run --example use_bench`.

use coulter_bench::cleaning::{Options, run};

fn main() -> Result<(), coulter_bench::BenchError> {
    let mut options = Options { warm_up: 1, passes: 1, ..Options::default() };
    options.shape.blocks = 1 << 16;
    options.workload = "zipf:0.99".parse().expect("it is a pattern");
    let report = run(&options)?;
    print!("{}", report.table());
    // The same options give the same figures, on every machine.
    assert_eq!(report.table(), run(&options)?.table());
    Ok(())
}
