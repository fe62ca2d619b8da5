//! An NVMe target on a loopback port, and hosts that connect to it.

use crate::initiator::{Initiator, InitiatorOptions};
use coulter::service::BlockService;
use coulter_net::Address;
use coulter_nvme_target::{Disk, Target, TargetOptions};
use std::sync::Arc;
use std::time::Duration;

/// Serves one disk with blocks of 4096 bytes.
pub fn serve(service: Arc<dyn BlockService>, options: TargetOptions) -> Target {
    let disk = Disk { service, read_only: false, block_size: 4096 };
    let address = Address::Tcp { host: "127.0.0.1".into(), port: 0 };
    Target::start(&address, vec![disk], options).expect("the target starts")
}

/// Host `number`, which waits for answers for as long as a busy machine may take.
pub fn connect(target: &Target, number: u8) -> Initiator {
    let options = InitiatorOptions::new(target.names()[0].clone(), number);
    let options = InitiatorOptions { timeout: Duration::from_secs(20), ..options };
    Initiator::connect(target.address(), &options).expect("a host can connect")
}
