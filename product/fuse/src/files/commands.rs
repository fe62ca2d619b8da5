//! What the file system asks of the volume.

use coulter::buffer::Buffer;
use coulter::service::{self, BLOCK_SIZE, Operation, RequestError, Session, WriteMany};
use coulter_files::{Change, Command, IoError};

/// Submits a command to the session. Returns its buffer if the service does not support the
/// command.
pub(super) fn submit(session: &mut dyn Session, id: u32, command: Command) -> Result<(), Buffer> {
    let tag = u64::from(id);
    let (operation, block, count, buffer) = match command {
        Command::Read { block, buffer } => {
            (Operation::Read, block, buffer.len() as u64 / BLOCK_SIZE, buffer)
        }
        Command::Write { block, buffer } => {
            let count = buffer.len() as u64 / BLOCK_SIZE;
            (Operation::Write { fua: false }, block, count, buffer)
        }
        Command::Discard { block, count } => (Operation::Discard, block, count, Buffer::empty()),
        Command::Flush => (Operation::Flush, 0, 0, Buffer::empty()),
        Command::WriteMany { changes, buffer, fua } => {
            let changes = changes.iter().map(change).collect();
            let request = WriteMany { tag, changes, buffer, fua };
            return session.submit_many(request).map_err(|refused| refused.buffer);
        }
    };
    let (offset, length) = (block * BLOCK_SIZE, count * BLOCK_SIZE);
    session.submit(service::Request { tag, operation, offset, length, buffer });
    Ok(())
}

fn change(change: &Change) -> service::Change {
    let (offset, length) = (change.block * BLOCK_SIZE, change.count * BLOCK_SIZE);
    if change.discard {
        service::Change::Discard { offset, length }
    } else {
        service::Change::Write { offset, length }
    }
}

pub(super) fn io_error(error: RequestError) -> IoError {
    match error {
        RequestError::Corrupt { .. } => IoError::Corrupt,
        error => IoError::Failed(error.errno()),
    }
}
