//! Overwrites a small emulated drive at random, and prints what it counted.

use coulter_flash::{FtlKind, Profile, Run, Workload, run};
use coulter_workload::Pattern;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let workload = Workload::Blocks { pattern: Pattern::Uniform, count: 1, reads_percent: 0 };
    let report = run(&Run::new(Profile::named("tiny")?, FtlKind::PageMapped, workload))?;
    print!("{}", report.table());
    Ok(())
}
