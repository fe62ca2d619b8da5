//! Builds a Write command as a host does, and reads it as a target does.

use coulter_nvme::{Sqe, opcode};

fn main() {
    let command = Sqe::new(opcode::io::WRITE, 1).with_cid(9).with_blocks(4096, 8);
    let Sqe(bytes) = command;

    let received = Sqe(bytes);
    assert_eq!(received.opcode(), opcode::io::WRITE);
    assert_eq!((received.slba(), received.block_count()), (4096, 8));
    println!(
        "command {}: write {} blocks from block {} of namespace {}",
        received.cid(),
        received.block_count(),
        received.slba(),
        received.nsid()
    );
}
