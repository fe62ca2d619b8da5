//! Serves blocks in memory over NVMe/TCP on a free port of this machine, and connects as a host.

use coulter_attach_suite::initiator::Initiator;
use coulter_attach_suite::initiator::InitiatorOptions;
use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
use coulter_nvme_target::{Disk, Target, TargetOptions};
use std::error::Error;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let service = Arc::new(MemoryService::new(MemoryOptions::new(1 << 20)));
    let disk = Disk { service, read_only: false, block_size: 4096 };
    let target = Target::start(&"tcp:127.0.0.1:0".parse()?, vec![disk], TargetOptions::default())?;
    println!("{} at {}", target.names()[0], target.address());

    let options = InitiatorOptions::new(target.names()[0].clone(), 1);
    let host = Initiator::connect(target.address(), &options)?;
    assert_eq!(host.size(), 1 << 20);
    Ok(())
}
