//! Serves blocks in memory over NBD on a free port of this machine, and writes to them as a client.

use coulter::buffer::Buffer;
use coulter::service::{Operation, Request, Session};
use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
use coulter_attach_suite::nbd_client::Client;
use coulter_net::nbd::{ClientOptions, Export, Server, ServerOptions};
use std::error::Error;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let service = Arc::new(MemoryService::new(MemoryOptions::new(1 << 20)));
    let exports = vec![Export::new("", service)];
    let mut server = Server::start(&"tcp:127.0.0.1:0".parse()?, exports, ServerOptions::default())?;
    println!("{}", server.uri());

    let mut client = Client::connect(server.address(), &ClientOptions::default())?;
    let buffer = Buffer::copied_from(&[7; 4096]);
    let operation = Operation::Write { fua: true };
    client.submit(Request { tag: 1, operation, offset: 0, length: 4096, buffer });
    client.kick();
    let mut completions = Vec::new();
    while client.outstanding() > 0 {
        client.complete(&mut completions, None);
    }
    assert_eq!(completions[0].result, Ok(()));
    client.disconnect();
    server.shutdown();
    Ok(())
}
