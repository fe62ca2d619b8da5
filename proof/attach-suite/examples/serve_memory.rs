//! Serves blocks in memory until it is told to end, to try an attach point by hand or to measure
//! what a protocol costs by itself. With a latency, every request takes that many microseconds.
//!
//! ```text
//! serve_memory nbd  unix:/tmp/c.sock 1073741824
//! serve_memory file /tmp/c           1073741824
//! serve_memory loop /tmp/c           1073741824
//! ```

use coulter_attach::point::{AttachPoint, Detach};
use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
use coulter_block::loop_device::{LoopDevice, LoopOptions};
use coulter_fuse::{FuseFile, FuseOptions};
use coulter_net::nbd::{Export, Server, ServerOptions};
use std::error::Error;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (kind, place, size, latency_us) = match &arguments[..] {
        [kind, place, size] => (kind, place, size, 0),
        [kind, place, size, latency] => (kind, place, size, latency.parse()?),
        _ => return Err("usage: serve_memory nbd|file|loop PLACE SIZE [LATENCY-US]".into()),
    };
    let latency = Duration::from_micros(latency_us);
    let options = MemoryOptions { latency, ..MemoryOptions::new(size.parse()?) };
    let service = Arc::new(MemoryService::new(options));
    let mut point: Box<dyn AttachPoint> = match kind.as_str() {
        "nbd" => {
            let exports = vec![Export::new("", service)];
            Box::new(Server::start(&place.parse()?, exports, ServerOptions::default())?)
        }
        "file" => Box::new(FuseFile::mount(&*service, place.as_ref(), &FuseOptions::default())?),
        "loop" => Box::new(LoopDevice::attach(&*service, place.as_ref(), &LoopOptions::default())?),
        _ => return Err(format!("no such attach point: {kind}").into()),
    };
    println!("{}", point.address());
    // Ends with its standard input, so that nothing stays behind when its caller dies.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    point.detach(Detach::Always)?;
    Ok(())
}
