//! The commands that the drive has: what each looks like, and what an answer means. No system calls.

use super::namespace::Shape;
use crate::aligned::AlignedMemory;
use crate::command::{Command, CommandKind, Completion};
use crate::device_error::DeviceError;
use crate::ring::FILE;
use crate::slots::Slots;
use coulter_nvme::opcode::io;
use coulter_nvme::range::{DEALLOCATE, RANGE_COUNT_MAX, RANGE_SIZE, Range};
use coulter_nvme::{Sqe, Status, passthrough, sqe};
use io_uring::{opcode, squeue};

/// How often a command that was not even begun is begun anew.
const ATTEMPTS_MAX: u8 = 16;
/// The kernel's own time limit for a command.
const DEFAULT_TIMEOUT: u32 = 0;

/// Bytes of the ranges of one command.
const RANGES_SIZE: usize = RANGE_COUNT_MAX * RANGE_SIZE;
/// Bytes of the longest range: drives take their time for longer ones.
pub(super) const RANGE_BYTES_MAX: u64 = 1 << 30;

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
    /// The ranges of each slot: the drive reads them while the command is under way.
    ranges: AlignedMemory,
    /// The discards that go to the drive with that of a slot, in one command.
    companions: Vec<Vec<u64>>,
}

impl Flights {
    pub(super) fn new(capacity: usize, shape: Shape) -> Flights {
        // Drives that discard nothing need no room for ranges.
        let size = if shape.discard { capacity * RANGES_SIZE } else { 0 };
        let companions = (0..capacity).map(|_| Vec::new()).collect();
        let ranges = AlignedMemory::zeroed(size);
        Flights { slots: Slots::with_capacity(capacity), shape, ranges, companions }
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

    /// Takes in as many of these discards as one command of the drive can carry, the last ones, and gives the
    /// entry that starts them.
    ///
    /// # Panics
    /// When there are none.
    pub(super) fn start_discards(&mut self, discards: &mut Vec<Command>) -> squeue::Entry128 {
        let command = discards.pop().expect("there is a discard");
        if command.length > RANGE_BYTES_MAX {
            return self.start(command);
        }
        let index = self.slots.insert(Flight { command, done: 0, attempts: 0 });
        let companions = &mut self.companions[index as usize];
        let block_size_log = self.shape.block_size_log;
        let first = index as usize * RANGES_SIZE;
        while companions.len() + 1 < RANGE_COUNT_MAX
            && let Some(next) = discards.pop_if(|next| next.length <= RANGE_BYTES_MAX)
        {
            companions.push(next.tag);
            let place = first + companions.len() * RANGE_SIZE;
            let (slba, count) = (next.offset >> block_size_log, next.length >> block_size_log);
            let range = Range { slba, count: count as u32 };
            self.ranges[place..place + RANGE_SIZE].copy_from_slice(&range.encode());
        }
        let flight = *self.slots.value_mut(index);
        self.entry(index, &flight)
    }

    /// Takes in the kernel's answer to the entry numbered `index`: what has ended goes to `out`; or an entry
    /// comes back that takes the command further.
    pub(super) fn settle(
        &mut self,
        index: u64,
        answer: i32,
        out: &mut Vec<Completion>,
    ) -> Option<squeue::Entry128> {
        let flight = self.slots.value_mut(index);
        let Command { kind, length, .. } = flight.command;
        let piece_max = piece_max(&self.shape, kind);
        let error = match passthrough::status(answer) {
            Ok(status) if status.is_success() => {
                flight.done += (length - flight.done).min(piece_max);
                if flight.done < length && kind != CommandKind::Flush {
                    let flight = *flight;
                    return Some(self.entry(index, &flight));
                }
                self.end(index, Ok(()), out);
                return None;
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
                return Some(self.entry(index, &flight));
            }
            None => libc::EIO,
            Some(errno) => errno,
        };
        self.end(index, Err(DeviceError::from_errno(errno)), out);
        None
    }

    /// Ends a command, and the discards that went with it.
    fn end(&mut self, index: u64, result: Result<(), DeviceError>, out: &mut Vec<Completion>) {
        let tag = self.slots.remove(index).command.tag;
        out.push(Completion { tag, result });
        let companions = self.companions[index as usize].drain(..);
        out.extend(companions.map(|tag| Completion { tag, result }));
    }

    /// The command for the drive, with the address and the length of its memory.
    fn sqe(&mut self, index: u64, flight: &Flight) -> (Sqe, u64, u32) {
        let Shape { nsid, block_size_log, .. } = self.shape;
        let Command { kind, offset, length, buffer, stream, .. } = flight.command;
        let piece = (length - flight.done).min(piece_max(&self.shape, kind));
        let slba = (offset + flight.done) >> block_size_log;
        let count = (piece >> block_size_log) as u32;
        let memory = buffer as u64 + flight.done;
        match kind {
            CommandKind::Read => {
                (Sqe::new(io::READ, nsid).with_blocks(slba, count), memory, piece as u32)
            }
            CommandKind::Write => {
                let sqe = Sqe::new(io::WRITE, nsid).with_blocks(slba, count);
                (self.placed(sqe, stream), memory, piece as u32)
            }
            CommandKind::Discard | CommandKind::Prepare => {
                let place = index as usize * RANGES_SIZE;
                let range_count = 1 + self.companions[index as usize].len();
                let bytes = &mut self.ranges[place..place + RANGES_SIZE];
                bytes[..RANGE_SIZE].copy_from_slice(&Range { slba, count }.encode());
                let sqe = Sqe::new(io::DATASET_MANAGEMENT, nsid)
                    .with_dword(10, range_count as u32 - 1)
                    .with_dword(11, DEALLOCATE);
                (sqe, bytes.as_ptr() as u64, (range_count * RANGE_SIZE) as u32)
            }
            CommandKind::Flush => (Sqe::new(io::FLUSH, nsid), 0, 0),
        }
    }

    /// A write with the placement handle of its stream, where the drive has handles.
    fn placed(&self, write: Sqe, stream: u8) -> Sqe {
        let Some(handle) = self.shape.placement.handle(stream) else { return write };
        let directive = write.dword(12) | sqe::control::DIRECTIVE_PLACEMENT;
        write.with_dword(12, directive).with_dword(13, u32::from(handle) << 16)
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

/// Bytes that one command of the drive is for.
fn piece_max(shape: &Shape, kind: CommandKind) -> u64 {
    match kind {
        CommandKind::Discard | CommandKind::Prepare => RANGE_BYTES_MAX,
        CommandKind::Read | CommandKind::Write | CommandKind::Flush => shape.transfer_size_max,
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
    use super::super::placement::Placement;
    use super::*;

    fn shape() -> Shape {
        Shape {
            nsid: 1,
            block_size_log: 12,
            transfer_size_max: 512 << 10,
            volatile_cache: true,
            discard: true,
            placement: Placement::default(),
        }
    }

    const MEMORY: *mut u8 = 0x10000 as *mut u8;

    /// The command within an entry, as the kernel finds it.
    fn commands(flights: &mut Flights, command: Command) -> Vec<(u8, u64, u32, u64, u32)> {
        let flight = Flight { command, done: 0, attempts: 0 };
        let index = flights.slots.insert(flight);
        let (mut found, mut ended) = (Vec::new(), Vec::new());
        while ended.is_empty() {
            let flight = *flights.slots.value_mut(index);
            let (sqe, address, length) = flights.sqe(index, &flight);
            found.push((sqe.opcode(), sqe.slba(), sqe.block_count(), address, length));
            flights.settle(index, 0, &mut ended);
        }
        assert_eq!(ended, [Completion { tag: 9, result: Ok(()) }]);
        found
    }

    #[test]
    fn a_command_longer_than_the_drive_takes_goes_there_in_pieces() {
        let mut flights = Flights::new(4, shape());
        let found = commands(&mut flights, Command::write(9, 8192, (1 << 20) + 4096, MEMORY));
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

    /// The ranges of the command in slot `index`, and how many it says there are.
    fn ranges(flights: &mut Flights, index: u64) -> (u32, Vec<Range>) {
        let flight = *flights.slots.value_mut(index);
        let (sqe, address, length) = flights.sqe(index, &flight);
        assert_eq!((sqe.opcode(), sqe.dword(11)), (io::DATASET_MANAGEMENT, DEALLOCATE));
        let start = address as usize - flights.ranges.as_ptr() as usize;
        let bytes = flights.ranges[start..start + length as usize].chunks_exact(RANGE_SIZE);
        let ranges = bytes.map(|bytes| Range::decode(bytes.first_chunk().expect("it is whole")));
        (sqe.dword(10), ranges.collect())
    }

    #[test]
    fn discards_that_wait_together_go_to_the_drive_in_commands_of_256_ranges() {
        let mut flights = Flights::new(4, shape());
        let discard = |tag: u64| Command::discard(tag, tag << 20, 8192);
        let mut waiting: Vec<Command> = (0..300).map(discard).collect();
        flights.start_discards(&mut waiting);
        flights.start_discards(&mut waiting);
        assert!(waiting.is_empty(), "300 ranges are two commands");
        let (first, second) = (ranges(&mut flights, 0), ranges(&mut flights, 1));
        assert_eq!((first.0, second.0), (255, 43), "counts begin at zero");
        let mut slbas: Vec<u64> = first.1.iter().chain(&second.1).map(|range| range.slba).collect();
        assert!(first.1.iter().chain(&second.1).all(|range| range.count == 2));
        slbas.sort_unstable();
        assert_eq!(slbas, (0..300).map(|tag| tag << 8).collect::<Vec<u64>>());
        let mut ended = Vec::new();
        assert!(flights.settle(0, 0, &mut ended).is_none());
        assert_eq!(ended.len(), 256);
        assert!(ended.iter().all(|completion| completion.result.is_ok()));
        let refused = i32::from(Status::INVALID_FIELD.final_one().0);
        assert!(flights.settle(1, refused, &mut ended).is_none());
        assert!(ended[256..].iter().all(|completion| completion.result.is_err()));
        let mut tags: Vec<u64> = ended.iter().map(|completion| completion.tag).collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..300).collect::<Vec<u64>>(), "each ends once");
        // A slot that is used again carries no companions of before.
        flights.start_discards(&mut vec![discard(7)]);
        assert_eq!(ranges(&mut flights, 1), (0, vec![Range { slba: 7 << 8, count: 2 }]));
    }

    #[test]
    fn a_discard_longer_than_a_range_goes_alone_and_in_pieces() {
        let mut flights = Flights::new(4, shape());
        let long = Command::discard(9, 0, RANGE_BYTES_MAX + 4096);
        let mut waiting = vec![Command::discard(8, 1 << 40, 4096), long];
        flights.start_discards(&mut waiting);
        assert_eq!(waiting.len(), 1, "the other one waits for a command of its own");
        let blocks = (RANGE_BYTES_MAX >> 12) as u32;
        assert_eq!(ranges(&mut flights, 0), (0, vec![Range { slba: 0, count: blocks }]));
        let mut ended = Vec::new();
        assert!(flights.settle(0, 0, &mut ended).is_some(), "there is more of it");
        assert_eq!(ranges(&mut flights, 0), (0, vec![Range { slba: blocks.into(), count: 1 }]));
        assert!(flights.settle(0, 0, &mut ended).is_none());
        assert_eq!(ended, [Completion { tag: 9, result: Ok(()) }]);
    }

    #[test]
    fn the_streams_of_writes_become_placement_handles_and_reads_have_none() {
        let placement = Placement::of(&[3, 5, 7]);
        let mut flights = Flights::new(4, Shape { placement, ..shape() });
        let mut handle = |command: Command| {
            let (sqe, ..) = flights.sqe(0, &Flight { command, done: 0, attempts: 0 });
            let is_placed = sqe.dword(12) & (0xf << 20) == sqe::control::DIRECTIVE_PLACEMENT;
            is_placed.then_some(sqe.dword(13) >> 16)
        };
        let write = |stream| Command { stream, ..Command::write(9, 0, 4096, MEMORY) };
        let handles: Vec<_> = (0..5).map(|stream| handle(write(stream))).collect();
        assert_eq!(handles, [Some(3), Some(5), Some(7), Some(3), Some(5)]);
        assert_eq!(handle(Command::read(9, 0, 4096, MEMORY)), None);
        let mut without = Flights::new(4, shape());
        let flight = Flight { command: write(2), done: 0, attempts: 0 };
        let (sqe, ..) = without.sqe(0, &flight);
        assert_eq!((sqe.dword(12), sqe.dword(13)), (0, 0), "a drive without them hears nothing");
    }

    #[test]
    fn errors_of_the_drive_are_told_and_only_reads_are_tried_again() {
        let interrupted = i32::from(Status::COMMAND_INTERRUPTED.0);
        let damaged = i32::from(Status::UNRECOVERED_READ.final_one().0);
        let mut flights = Flights::new(4, shape());
        let mut answer = |command: Command, answer: i32| {
            let mut ended = Vec::new();
            flights.start(command);
            if flights.settle(0, answer, &mut ended).is_some() {
                flights.settle(0, 0, &mut ended);
                return None;
            }
            Some(ended[0].result.is_ok())
        };
        assert_eq!(answer(Command::read(9, 0, 4096, MEMORY), interrupted), None);
        assert_eq!(answer(Command::write(9, 0, 4096, MEMORY), interrupted), Some(false));
        assert_eq!(answer(Command::flush(9), interrupted), Some(false));
        assert_eq!(answer(Command::read(9, 0, 4096, MEMORY), damaged), Some(false));
        assert_eq!(answer(Command::write(9, 0, 4096, MEMORY), -libc::EAGAIN), None);
        assert_eq!(answer(Command::write(9, 0, 4096, MEMORY), -libc::EIO), Some(false));
    }
}
