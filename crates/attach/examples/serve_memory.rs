//! Serves blocks in memory until it is told to end, to try an attach point by hand or to measure
//! what a protocol costs by itself.
//!
//! ```text
//! serve_memory nbd unix:/tmp/c.sock 1073741824
//! ```

use coulter_attach::memory::{MemoryOptions, MemoryService};
use coulter_attach::nbd::{Export, Server, ServerOptions};
use coulter_attach::point::{AttachPoint, Detach};
use std::error::Error;
use std::io::Read;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, place, size] = &arguments[..] else {
        return Err("usage: serve_memory nbd ADDRESS SIZE".into());
    };
    let service = Arc::new(MemoryService::new(MemoryOptions::new(size.parse()?)));
    let mut point: Box<dyn AttachPoint> = match kind.as_str() {
        "nbd" => {
            let exports = vec![Export::new("", service)];
            Box::new(Server::start(&place.parse()?, exports, ServerOptions::default())?)
        }
        _ => return Err(format!("no such attach point: {kind}").into()),
    };
    println!("{}", point.address());
    // Ends with its standard input, so that nothing stays behind when its caller dies.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    point.detach(Detach::Always)?;
    Ok(())
}
