//! Connects to an NVMe/TCP target as a host does, and reads its first block. It needs no root and
//! no kernel driver.
//!
//! ```text
//! coulter serve disk.img --nvme 127.0.0.1:4420      prints nvme+tcp:127.0.0.1:4420/nqn.…
//! nvme_host nvme+tcp:127.0.0.1:4420/nqn.… [KEY]
//! ```

use coulter::buffer::Buffer;
use coulter::service::{Operation, Request, Session};
use coulter_attach_suite::initiator::{Authentication, Initiator, InitiatorOptions};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [target] => read_first(target, None),
        [target, key] => read_first(target, Some(key)),
        _ => Err("usage: nvme_host nvme+tcp:ADDRESS:PORT/NQN [KEY]".into()),
    }
}

/// Reads the first block of what a target serves.
pub(crate) fn read_first(target: &str, key: Option<&str>) -> Result<(), Box<dyn Error>> {
    let parts = target.strip_prefix("nvme+").and_then(|rest| rest.split_once('/'));
    let (address, subsystem) = parts.ok_or("a target is nvme+tcp:ADDRESS:PORT/NQN")?;
    let authentication = key.map(|key| key.parse().map(Authentication::new)).transpose()?;
    let options = InitiatorOptions { authentication, ..InitiatorOptions::new(subsystem, 1) };

    let mut initiator = Initiator::connect(&address.parse()?, &options)?;
    println!("{} bytes, controller {}", initiator.size(), initiator.cntlid);
    let buffer = Buffer::zeroed(4096);
    let operation = Operation::Read;
    initiator.submit(Request { tag: 1, operation, offset: 0, length: 4096, buffer });
    initiator.kick();
    let mut completions = Vec::new();
    while initiator.outstanding() > 0 {
        initiator.complete(&mut completions, None);
    }
    completions[0].result?;
    println!("the first bytes: {:02x?}", &completions[0].buffer[..16]);
    Ok(())
}
