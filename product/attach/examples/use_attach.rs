//! Runs a loop over a service's session where the service takes it, as each attach point does.

use coulter::service::{BLOCK_SIZE, Operation, Request};
use coulter_attach::hosting::{self, ThreadShape};
use coulter_attach::pool::BufferPool;
use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
use std::error::Error;

const SHAPE: ThreadShape = ThreadShape { name: "example", stack_size: 256 << 10 };

fn main() -> Result<(), Box<dyn Error>> {
    let service = MemoryService::new(MemoryOptions::new(1 << 20));
    let hosted = hosting::host(&service, &SHAPE, |mut session, place| {
        let mut pool = BufferPool::on_demand(1 << 20, 1 << 20);
        let buffer = pool.take(BLOCK_SIZE as usize);
        let operation = Operation::Read;
        session.submit(Request { tag: 1, operation, offset: 0, length: BLOCK_SIZE, buffer });
        session.kick();
        let mut completions = Vec::new();
        while completions.is_empty() {
            session.complete(&mut completions, None);
        }
        println!("{place:?}: {:?}", completions[0].result);
    })?;
    hosted.await_end();
    Ok(())
}
