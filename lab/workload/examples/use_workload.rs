//! Draws addresses of a skewed workload: the same ones for the same seed, on every machine.

use coulter_workload::Pattern;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let pattern: Pattern = "zipf:0.99".parse()?;
    let [first, second] = [1, 1].map(|seed| {
        let mut addresses = pattern.over(1 << 20, seed);
        (0..8).map(|_| addresses.address()).collect::<Vec<u64>>()
    });
    assert_eq!(first, second);
    println!("{first:?}");
    Ok(())
}
