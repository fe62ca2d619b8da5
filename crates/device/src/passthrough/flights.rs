//! The commands that the drive has: what each looks like, and what an answer means. No system calls.

use super::namespace::Shape;
use crate::aligned::AlignedMemory;
use crate::contract::{Command, CommandKind, Completion};
use crate::device_error::DeviceError;
use crate::slots::Slots;
use coulter_nvme::opcode::io;
use coulter_nvme::range::{DEALLOCATE, RANGE_SIZE, Range};
use coulter_nvme::{Sqe, Status, passthrough};
use io_uring::{opcode, squeue, types};

/// The file is registered with the ring, under this number.
const FILE: types::Fixed = types::Fixed(0);
/// How often a command that was not even begun is begun anew.
const ATTEMPTS_MAX: u8 = 16;
/// The kernel's own time limit for a command.
const DEFAULT_TIMEOUT: u32 = 0;

/// What an answer leads to.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The command has ended.
    Ended(Completion),
    /// This entry takes it further.
    Further(squeue::Entry128),
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    command: Command,
    /// Bytes moved.
    done: u64,
    attempts: u8,
}

/// The commands that the drive has.
#[derive(Debug)]
pub(super) struct Flights {
    slots: Slots<Flight>,
    shape: Shape,
    /// A range for each slot: the drive reads it while the command is under way.
    ranges: AlignedMemory,
}

impl Flights {
    pub(super) fn new(capacity: usize, shape: Shape) -> Flights {
        let ranges = AlignedMemory::zeroed(capacity * RANGE_SIZE);
        Flights { slots: Slots::with_capacity(capacity), shape, ranges }
    }

    pub(super) fn count(&self) -> usize {
        self.slots.len()
    }

    /// Gives up the ranges, which the drive may yet read.
    pub(super) fn leak_ranges(&mut self) {
        std::mem::forget(std::mem::replace(&mut self.ranges, AlignedMemory::zeroed(0)));
    }

    /// Takes a command in and gives the entry that starts it.
    pub(super) fn start(&mut self, command: Command) -> squeue::Entry128 {
        let flight = Flight { command, done: 0, attempts: 0 };
        let index = self.slots.insert(flight);
        self.entry(index, &flight)
    }

    /// Takes in the kernel's answer to the entry numbered `index`.
    pub(super) fn settle(&mut self, index: u64, answer: i32) -> Outcome {
        let piece_max = self.piece_max();
        let flight = self.slots.value_mut(index);
        let Command { kind, length, tag, .. } = flight.command;
        let error = match passthrough::status(answer) {
            Ok(status) if status.is_success() => {
                flight.done += (length - flight.done).min(piece_max);
                if flight.done < length && kind != CommandKind::Flush {
                    let flight = *flight;
                    return Outcome::Further(self.entry(index, &flight));
                }
                self.slots.remove(index);
                return Outcome::Ended(Completion { tag, result: Ok(()) });
            }
            Ok(status) if kind == CommandKind::Read && may_be_tried_again(status) => None,
            Ok(status) => Some(errno_of(status)),
            // Not begun: a signal came first, or a resource was short for a moment.
            Err(libc::EINTR | libc::EAGAIN) => None,
            Err(errno) => Some(errno),
        };
        let errno = match error {
            None if flight.attempts < ATTEMPTS_MAX => {
                flight.attempts += 1;
                let flight = *flight;
                return Outcome::Further(self.entry(index, &flight));
            }
            None => libc::EIO,
            Some(errno) => errno,
        };
        self.slots.remove(index);
        Outcome::Ended(Completion { tag, result: Err(DeviceError::from_errno(errno)) })
    }

    /// Bytes that one command of the drive is for.
    fn piece_max(&self) -> u64 {
        self.shape.transfer_size_max
    }

    /// The command for the drive, with the address and the length of its memory.
    fn sqe(&mut self, index: u64, flight: &Flight) -> (Sqe, u64, u32) {
        let Shape { nsid, block_size_log, transfer_size_max, .. } = self.shape;
        let Command { kind, offset, length, buffer, .. } = flight.command;
        let piece = (length - flight.done).min(transfer_size_max);
        let slba = (offset + flight.done) >> block_size_log;
        let count = (piece >> block_size_log) as u32;
        let memory = buffer as u64 + flight.done;
        match kind {
            CommandKind::Read => {
                (Sqe::new(io::READ, nsid).with_blocks(slba, count), memory, piece as u32)
            }
            CommandKind::Write => {
                (Sqe::new(io::WRITE, nsid).with_blocks(slba, count), memory, piece as u32)
            }
            CommandKind::Discard | CommandKind::Prepare => {
                let place = index as usize * RANGE_SIZE;
                let bytes = &mut self.ranges[place..place + RANGE_SIZE];
                bytes.copy_from_slice(&Range { slba, count }.encode());
                let address = bytes.as_ptr() as u64;
                let sqe = Sqe::new(io::DATASET_MANAGEMENT, nsid).with_dword(11, DEALLOCATE);
                (sqe, address, RANGE_SIZE as u32)
            }
            CommandKind::Flush => (Sqe::new(io::FLUSH, nsid), 0, 0),
        }
    }

    fn entry(&mut self, index: u64, flight: &Flight) -> squeue::Entry128 {
        let (sqe, address, length) = self.sqe(index, flight);
        let mut area = [0; 80];
        let command = passthrough::encode(&sqe, address, length, DEFAULT_TIMEOUT);
        area[..passthrough::COMMAND_SIZE].copy_from_slice(&command);
        let entry = opcode::UringCmd80::new(FILE, passthrough::OPERATION_IO).cmd(area).build();
        entry.user_data(index)
    }
}

/// Whether a status says that nothing was done, for a reason that may pass.
fn may_be_tried_again(status: Status) -> bool {
    const PATH: u8 = 3;
    let passing = [
        Status::DATA_TRANSFER_ERROR,
        Status::ABORTED_BY_REQUEST,
        Status::ABORTED_SQ_DELETION,
        Status::COMMAND_INTERRUPTED,
        Status::NAMESPACE_NOT_READY,
        Status::TRANSIENT_TRANSPORT_ERROR,
    ];
    !status.is_final() && (status.kind() == PATH || passing.contains(&status.code_and_type()))
}

/// What a block device would say.
fn errno_of(status: Status) -> i32 {
    match status.code_and_type() {
        Status::CAPACITY_EXCEEDED => libc::ENOSPC,
        Status::NAMESPACE_WRITE_PROTECTED => libc::EROFS,
        Status::UNRECOVERED_READ => libc::ENODATA,
        Status::INVALID_OPCODE => libc::EOPNOTSUPP,
        _ => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape {
            nsid: 1,
            block_size_log: 12,
            transfer_size_max: 512 << 10,
            volatile_cache: true,
            discard: true,
        }
    }

    /// The command within an entry, as the kernel finds it.
    fn commands(flights: &mut Flights, command: Command) -> Vec<(u8, u64, u32, u64, u32)> {
        let flight = Flight { command, done: 0, attempts: 0 };
        let index = flights.slots.insert(flight);
        let mut found = Vec::new();
        loop {
            let flight = *flights.slots.value_mut(index);
            let (sqe, address, length) = flights.sqe(index, &flight);
            found.push((sqe.opcode(), sqe.slba(), sqe.block_count(), address, length));
            match flights.settle(index, 0) {
                Outcome::Further(_) => {}
                Outcome::Ended(completion) => {
                    assert_eq!(completion, Completion { tag: 9, result: Ok(()) });
                    return found;
                }
            }
        }
    }

    #[test]
    fn a_command_longer_than_the_drive_takes_goes_there_in_pieces() {
        let mut flights = Flights::new(4, shape());
        let memory = 0x10000 as *mut u8;
        let found = commands(&mut flights, Command::write(9, 8192, (1 << 20) + 4096, memory));
        let piece = 512 << 10;
        assert_eq!(
            found,
            [
                (io::WRITE, 2, 128, 0x10000, piece),
                (io::WRITE, 130, 128, 0x10000 + u64::from(piece), piece),
                (io::WRITE, 258, 1, 0x10000 + 2 * u64::from(piece), 4096),
            ]
        );
    }

    #[test]
    fn a_discard_is_a_range_that_the_drive_is_to_read() {
        let mut flights = Flights::new(4, shape());
        let flight = Flight { command: Command::discard(9, 4096, 8192), done: 0, attempts: 0 };
        let index = flights.slots.insert(flight);
        let (sqe, address, length) = flights.sqe(index, &flight);
        assert_eq!((sqe.opcode(), sqe.dword(10), sqe.dword(11), length), (9, 0, 4, 16));
        assert_eq!(address, flights.ranges.as_ptr() as u64);
        assert_eq!(flights.ranges[..16], Range { slba: 1, count: 2 }.encode());
    }

    #[test]
    fn errors_of_the_drive_are_told_and_only_reads_are_tried_again() {
        let memory = 0x10000 as *mut u8;
        let interrupted = i32::from(Status::COMMAND_INTERRUPTED.0);
        let damaged = i32::from(Status::UNRECOVERED_READ.final_one().0);
        let mut flights = Flights::new(4, shape());
        let mut answer = |command: Command, answer: i32| {
            flights.start(command);
            match flights.settle(0, answer) {
                Outcome::Further(_) => {
                    let _ = flights.settle(0, 0);
                    None
                }
                Outcome::Ended(completion) => Some(completion.result.is_ok()),
            }
        };
        assert_eq!(answer(Command::read(9, 0, 4096, memory), interrupted), None);
        assert_eq!(answer(Command::write(9, 0, 4096, memory), interrupted), Some(false));
        assert_eq!(answer(Command::flush(9), interrupted), Some(false));
        assert_eq!(answer(Command::read(9, 0, 4096, memory), damaged), Some(false));
        assert_eq!(answer(Command::write(9, 0, 4096, memory), -libc::EAGAIN), None);
        assert_eq!(answer(Command::write(9, 0, 4096, memory), -libc::EIO), Some(false));
    }
}
