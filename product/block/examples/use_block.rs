//! Runs the loop of a ublk queue without the driver: random writes over blocks in memory.

use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
use coulter_block::ublk::{Copy, Rehearsal};

fn main() {
    let service = MemoryService::new(MemoryOptions::new(1 << 20));
    let rehearsal = Rehearsal { count: 100, depth: 8, copy: Copy::ByDaemon };
    match rehearsal.run(&service, || println!("begins")) {
        Ok(count) => println!("{count} writes"),
        Err(error) => println!("this kernel has no ring: {error}"),
    }
}
