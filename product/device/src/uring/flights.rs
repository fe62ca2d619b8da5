//! The commands that the kernel has: what each looks like as a ring entry, and what an answer
//! means. No system calls.

use super::pinned::Pinned;
use crate::aligned::AlignedMemory;
use crate::command::{Command, CommandKind, Completion, Prepare};
use crate::device_error::DeviceError;
use crate::medium::TargetKind;
use crate::ring::FILE;
use crate::slots::Slots;
use crate::transfer::{PIECE_SIZE_MAX, Progress, Step, ZEROS_SIZE};
use io_uring::{opcode, squeue, types};

/// The kernel's number for discarding by a ring command (Linux 6.12): `_IO(0x12, 0)`, whose
/// upper bits differ between architectures and are those of any other request of that family.
const BLOCK_URING_CMD_DISCARD: u32 = (libc::BLKSSZGET as u32) & !0xff;

/// How discards are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiscardMethod {
    /// By the ring command for disks.
    Command,
    /// By punching a hole. On a disk the kernel zeroes the range, without writing if it can.
    PunchHole,
    /// Not at all.
    Nothing,
}

impl DiscardMethod {
    pub(super) fn of(kind: TargetKind, is_supported: bool) -> DiscardMethod {
        match kind {
            _ if !is_supported => DiscardMethod::Nothing,
            TargetKind::Disk => DiscardMethod::Command,
            TargetKind::File => DiscardMethod::PunchHole,
        }
    }

    /// What is left once the kernel refused this method.
    fn next(self, kind: TargetKind) -> DiscardMethod {
        match (self, kind) {
            (DiscardMethod::Command, TargetKind::Disk) => DiscardMethod::PunchHole,
            _ => DiscardMethod::Nothing,
        }
    }
}

/// A command that the kernel has.
#[derive(Clone, Copy, Debug)]
struct Flight {
    command: Command,
    progress: Progress,
    /// The method that a discard was tried by.
    method: DiscardMethod,
}

/// The commands that the kernel has.
#[derive(Debug)]
pub(super) struct Flights {
    slots: Slots<Flight>,
    pub(super) pinned: Pinned,
    method: DiscardMethod,
    prepare: Prepare,
    /// What is written to prepare blocks; empty if that is not done.
    zeros: AlignedMemory,
    kind: TargetKind,
    alignment: u64,
}

impl Flights {
    pub(super) fn new(
        capacity: usize,
        kind: TargetKind,
        alignment: u64,
        method: DiscardMethod,
        prepare: Prepare,
    ) -> Flights {
        let slots = Slots::with_capacity(capacity);
        let zeros_size = if prepare == Prepare::Blocks { ZEROS_SIZE } else { 0 };
        let zeros = AlignedMemory::zeroed(zeros_size as usize);
        Flights { slots, pinned: Pinned::default(), method, prepare, zeros, kind, alignment }
    }

    pub(super) fn count(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn method(&self) -> DiscardMethod {
        self.method
    }

    /// Takes a command in and gives the entry that starts it.
    #[inline]
    pub(super) fn start(&mut self, command: Command) -> squeue::Entry {
        let flight = Flight { command, progress: Progress::default(), method: self.method };
        let entry = self.entry(&flight);
        entry.user_data(self.slots.insert(flight))
    }

    /// Takes the kernel's answer to the entry `index`. A completion goes to `out`; an entry is
    /// returned if it takes the command further.
    #[inline]
    pub(super) fn settle(
        &mut self,
        index: u64,
        answer: i32,
        out: &mut Vec<Completion>,
    ) -> Option<squeue::Entry> {
        let (alignment, flight) = (self.alignment, self.slots.value_mut(index));
        let command = flight.command;
        // The kernel answers with a count, or with a negated error number.
        let answer = u64::try_from(answer).map_err(|_| -answer);
        let step = match command.kind {
            CommandKind::Read | CommandKind::Write => {
                flight.progress.advance(command.kind, command.length, alignment, answer)
            }
            CommandKind::Flush => answer
                .map_or_else(|errno| Step::Fail(DeviceError::from_errno(errno)), |_| Step::Finish),
            CommandKind::Discard => self.settle_discard(index, answer),
            CommandKind::Prepare if self.prepare == Prepare::Blocks => {
                flight.progress.advance(command.kind, command.length, alignment, answer)
            }
            CommandKind::Prepare => match answer {
                Ok(_) => Step::Finish,
                // A file system that cannot promise space does not get in the way.
                Err(libc::EOPNOTSUPP) => Step::Finish,
                Err(errno) => Step::Fail(DeviceError::from_errno(errno)),
            },
        };
        let result = match step {
            Step::Finish => Ok(()),
            Step::Fail(error) => Err(error),
            Step::Continue => {
                let method = self.method;
                let flight = self.slots.value_mut(index);
                flight.method = method;
                let flight = *flight;
                return Some(self.entry(&flight).user_data(index));
            }
        };
        self.slots.remove(index);
        out.push(Completion { tag: command.tag, result });
        None
    }

    fn settle_discard(&mut self, index: u64, answer: Result<u64, i32>) -> Step {
        let Err(errno) = answer else { return Step::Finish };
        // A kernel that does not know the ring's command calls it invalid.
        let is_refusal = matches!(errno, libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS);
        if !is_refusal {
            return Step::Fail(DeviceError::from_errno(errno));
        }
        if self.slots.value_mut(index).method == self.method {
            self.method = self.method.next(self.kind);
        }
        match self.method {
            DiscardMethod::Nothing => Step::Finish,
            _ => Step::Continue,
        }
    }

    fn entry(&mut self, flight: &Flight) -> squeue::Entry {
        let Command { kind, offset, length, buffer, .. } = flight.command;
        let done = flight.progress.done;
        let piece = (length - done).min(PIECE_SIZE_MAX);
        // In bounds: `done` is less than the length of the command's memory.
        let memory = buffer.wrapping_add(done as usize);
        let offset = offset + done;
        match kind {
            CommandKind::Read => match self.pinned.index_of(memory, piece) {
                Some(index) => {
                    opcode::ReadFixed::new(FILE, memory, piece as u32, index).offset(offset).build()
                }
                None => opcode::Read::new(FILE, memory, piece as u32).offset(offset).build(),
            },
            CommandKind::Write => match self.pinned.index_of(memory, piece) {
                Some(index) => opcode::WriteFixed::new(FILE, memory, piece as u32, index)
                    .offset(offset)
                    .build(),
                None => opcode::Write::new(FILE, memory, piece as u32).offset(offset).build(),
            },
            CommandKind::Flush => {
                opcode::Fsync::new(FILE).flags(types::FsyncFlags::DATASYNC).build()
            }
            CommandKind::Discard => discard_entry(flight.method, offset, length),
            CommandKind::Prepare if self.prepare == Prepare::Blocks => {
                let piece = piece.min(ZEROS_SIZE) as u32;
                opcode::Write::new(FILE, self.zeros.as_mut_pointer(), piece).offset(offset).build()
            }
            CommandKind::Prepare => {
                let mode = libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(FILE, length).offset(offset).mode(mode).build()
            }
        }
    }
}

fn discard_entry(method: DiscardMethod, offset: u64, length: u64) -> squeue::Entry {
    if method == DiscardMethod::Command {
        let mut argument = [0; 16];
        argument[..8].copy_from_slice(&length.to_ne_bytes());
        return opcode::UringCmd16::new(FILE, BLOCK_URING_CMD_DISCARD)
            .addr(Some(offset))
            .cmd(argument)
            .build();
    }
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    opcode::Fallocate::new(FILE, length).offset(offset).mode(mode).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flights(kind: TargetKind) -> Flights {
        Flights::new(4, kind, 512, DiscardMethod::of(kind, true), Prepare::Space)
    }

    /// The completion that an answer leads to; `None` if the command goes on.
    fn ended(flights: &mut Flights, index: u64, answer: i32) -> Option<Completion> {
        let mut out = Vec::new();
        let further = flights.settle(index, answer, &mut out);
        assert_eq!(out.len() + usize::from(further.is_some()), 1, "it ends or goes on");
        out.pop()
    }

    #[test]
    fn a_refused_discard_tries_what_is_left_and_ends_well() {
        let mut flights = flights(TargetKind::Disk);
        let first = flights.start(Command::discard(1, 0, 4096)).get_user_data();
        let second = flights.start(Command::discard(2, 4096, 4096)).get_user_data();
        assert_eq!(ended(&mut flights, first, -libc::EINVAL), None);
        // The second was under way by the old method; its refusal says nothing of the new one.
        assert_eq!(ended(&mut flights, second, -libc::EINVAL), None);
        assert_eq!(flights.method(), DiscardMethod::PunchHole);
        let done = |tag| Some(Completion { tag, result: Ok(()) });
        assert_eq!(ended(&mut flights, first, 0), done(1));
        assert_eq!(ended(&mut flights, second, -libc::EOPNOTSUPP), done(2));
        assert_eq!(flights.method(), DiscardMethod::Nothing);
        assert_eq!(flights.count(), 0);
    }

    #[test]
    fn a_failed_discard_is_told() {
        let mut flights = flights(TargetKind::File);
        let index = flights.start(Command::discard(7, 0, 4096)).get_user_data();
        let completion = ended(&mut flights, index, -libc::EIO).expect("it ends");
        assert_eq!(completion.tag, 7);
        assert_eq!(completion.result, Err(DeviceError::from_errno(libc::EIO)));
    }

    #[test]
    fn a_flush_that_fails_is_told_once_and_not_retried() {
        let mut flights = flights(TargetKind::File);
        let index = flights.start(Command::flush(3)).get_user_data();
        let completion = ended(&mut flights, index, -libc::EINTR).expect("it ends");
        assert_eq!(completion.result, Err(DeviceError::from_errno(libc::EINTR)));
    }
}
