//! Commands, completions, memory and properties of devices. What they promise is in the
//! [contract](crate::contract).

use crate::device_error::{DeviceError, DeviceErrorKind};
use std::time::Duration;

/// The unit that is written whole or not at all, in bytes.
pub const SECTOR_SIZE: u64 = 512;

/// The largest [`Properties::alignment`], in bytes.
pub const ALIGNMENT_MAX: u64 = 4096;

/// How long [`Device::poll`](crate::Device::poll) sleeps when there is no completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// At most so long. Zero is the same as `No`.
    For(Duration),
    /// Until there is a completion or a waker is used.
    Forever,
}

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CommandKind {
    /// Fill the memory from the device.
    Read,
    /// Store the memory.
    Write,
    /// Make durable every write that completed before; offset, length and memory are ignored.
    Flush,
    /// The range is no longer needed.
    Discard,
    /// The range will be written: do what makes that certain or cheap, see [`Prepare`]. Nothing in it
    /// is needed; it may read as zeros afterwards.
    Prepare,
}

impl CommandKind {
    /// Every kind, in order.
    pub const ALL: [CommandKind; 5] = [
        CommandKind::Read,
        CommandKind::Write,
        CommandKind::Flush,
        CommandKind::Discard,
        CommandKind::Prepare,
    ];

    /// Whether the command alters what the device holds.
    pub fn changes_content(self) -> bool {
        matches!(self, CommandKind::Write | CommandKind::Discard | CommandKind::Prepare)
    }

    /// Whether the command moves bytes between memory and device.
    pub fn transfers(self) -> bool {
        matches!(self, CommandKind::Read | CommandKind::Write)
    }

    /// The name in traces: `read`, `write`, `flush`, `discard` or `prepare`.
    pub fn name(self) -> &'static str {
        match self {
            CommandKind::Read => "read",
            CommandKind::Write => "write",
            CommandKind::Flush => "flush",
            CommandKind::Discard => "discard",
            CommandKind::Prepare => "prepare",
        }
    }
}

/// One command.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// The caller's; comes back with the completion.
    pub tag: u64,
    /// What to do.
    pub kind: CommandKind,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The memory; null for `Flush`, `Discard` and `Prepare`.
    pub buffer: *mut u8,
    /// Of a write: which stream of writes it belongs to, from 1 on; 0 for none. A hint.
    pub stream: u8,
}

// SAFETY: a command is only a description. Whoever follows its pointer does so under the promises
// made to `Device::submit`, which hold on every thread.
unsafe impl Send for Command {}

impl Command {
    /// A command that fills `length` bytes at `buffer` from `offset`.
    pub fn read(tag: u64, offset: u64, length: u64, buffer: *mut u8) -> Command {
        Command { tag, kind: CommandKind::Read, offset, length, buffer, stream: 0 }
    }

    /// A command that stores `length` bytes at `buffer` to `offset`.
    pub fn write(tag: u64, offset: u64, length: u64, buffer: *mut u8) -> Command {
        Command { tag, kind: CommandKind::Write, offset, length, buffer, stream: 0 }
    }

    /// A command that makes completed writes durable.
    pub fn flush(tag: u64) -> Command {
        Command {
            tag,
            kind: CommandKind::Flush,
            offset: 0,
            length: 0,
            buffer: std::ptr::null_mut(),
            stream: 0,
        }
    }

    /// A command that gives up `length` bytes from `offset`.
    pub fn discard(tag: u64, offset: u64, length: u64) -> Command {
        let buffer = std::ptr::null_mut();
        Command { tag, kind: CommandKind::Discard, offset, length, buffer, stream: 0 }
    }

    /// A command that prepares `length` bytes from `offset` to be written.
    pub fn prepare(tag: u64, offset: u64, length: u64) -> Command {
        Command { kind: CommandKind::Prepare, ..Command::discard(tag, offset, length) }
    }
}

/// The end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The command's tag.
    pub tag: u64,
    /// Whether all of it was done.
    pub result: Result<(), DeviceError>,
}

/// Memory that commands will use.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// The first byte.
    pub start: *mut u8,
    /// Bytes.
    pub length: usize,
}

// SAFETY: as for `Command`: a description that is followed only under the promises to `register`.
unsafe impl Send for Region {}

/// What [`CommandKind::Prepare`] does on a device. Where it does nothing it still completes with `Ok`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prepare {
    /// Nothing: every block is as good as any other.
    #[default]
    Nothing,
    /// It writes zeros where nothing was written yet, so that the first write there is as cheap as the
    /// next ones. Of a file of which all space is allocated.
    Blocks,
    /// It allocates space, or fails with [`DeviceErrorKind::NoSpace`]. Of a file with holes.
    Space,
}

/// What a device is and can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Bytes; a multiple of `alignment`.
    pub size: u64,
    /// Offset, length and memory of every command are multiples of it: 512 or 4096 bytes.
    pub alignment: u64,
    /// Whether a completed write may be lost to a power cut before the next flush.
    pub volatile_cache: bool,
    /// Whether `Discard` does anything. Where it does not it still completes with `Ok`.
    pub discard: bool,
    /// What `Prepare` does.
    pub prepare: Prepare,
    /// Bytes of the aligned pages that are written whole or not at all, whatever the power does; 0 if the device
    /// does not say so, as no file and no disk does.
    pub atomic_page: u64,
    /// Whether `Write`, `Discard` and `Prepare` are refused.
    pub read_only: bool,
    /// Commands that are executed at once.
    pub queue_depth: usize,
    /// What the device is and where, for people: a path, or a kind.
    pub description: String,
    /// What people should know of it, such as why it is slower than it might be.
    pub note: Option<String>,
}

impl Properties {
    /// Whether the device may execute `command`.
    ///
    /// # Errors
    /// The error that the command completes with if it may not.
    #[inline]
    pub fn check(&self, command: &Command) -> Result<(), DeviceError> {
        if command.kind == CommandKind::Flush {
            return Ok(());
        }
        let has_memory = command.kind.transfers();
        let address = if has_memory { command.buffer as u64 } else { self.alignment };
        let misaligned = (command.offset | command.length | address) & (self.alignment - 1);
        if misaligned != 0 || command.length == 0 || address == 0 {
            return Err(DeviceError::of(DeviceErrorKind::Misaligned));
        }
        match command.offset.checked_add(command.length) {
            Some(end) if end <= self.size => {}
            _ => return Err(DeviceError::of(DeviceErrorKind::OutOfRange)),
        }
        if self.read_only && command.kind.changes_content() {
            return Err(DeviceError::of(DeviceErrorKind::ReadOnly));
        }
        Ok(())
    }

    /// Stops at properties that contradict each other.
    ///
    /// # Panics
    /// When they do: that is a bug in the device.
    pub fn assert_consistent(&self) {
        assert!(matches!(self.alignment, SECTOR_SIZE | ALIGNMENT_MAX), "512 or 4096");
        assert!(self.size > 0, "a device stores something");
        assert!(self.size.is_multiple_of(self.alignment), "a device ends on a whole sector");
        assert!(self.queue_depth > 0, "a device takes commands");
        assert!(self.atomic_page.is_multiple_of(ALIGNMENT_MAX), "a page has whole blocks");
        assert!(self.atomic_page <= self.size, "and lies on the device");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties() -> Properties {
        Properties {
            size: 1 << 20,
            alignment: 512,
            volatile_cache: false,
            discard: true,
            prepare: Prepare::Nothing,
            atomic_page: 0,
            read_only: false,
            queue_depth: 1,
            description: "test".to_string(),
            note: None,
        }
    }

    fn kind_of(properties: &Properties, command: Command) -> Option<DeviceErrorKind> {
        properties.check(&command).err().map(|error| error.kind)
    }

    #[test]
    fn only_whole_sectors_inside_the_device_pass() {
        let properties = properties();
        let memory = 4096 as *mut u8;
        assert_eq!(kind_of(&properties, Command::read(0, 0, 512, memory)), None);
        assert_eq!(kind_of(&properties, Command::flush(0)), None);
        assert_eq!(kind_of(&properties, Command::discard(0, 512, 1024)), None);
        let misaligned = Some(DeviceErrorKind::Misaligned);
        assert_eq!(kind_of(&properties, Command::read(0, 1, 512, memory)), misaligned);
        assert_eq!(kind_of(&properties, Command::read(0, 0, 511, memory)), misaligned);
        assert_eq!(kind_of(&properties, Command::read(0, 0, 0, memory)), misaligned);
        assert_eq!(kind_of(&properties, Command::read(0, 0, 512, 4097 as *mut u8)), misaligned);
        let null = std::ptr::null_mut();
        assert_eq!(kind_of(&properties, Command::write(0, 0, 512, null)), misaligned);
        let outside = Some(DeviceErrorKind::OutOfRange);
        assert_eq!(kind_of(&properties, Command::read(0, 1 << 20, 512, memory)), outside);
        assert_eq!(kind_of(&properties, Command::discard(0, !511, 1024)), outside);
    }

    #[test]
    fn a_read_only_device_refuses_change() {
        let properties = Properties { read_only: true, ..properties() };
        let memory = 4096 as *mut u8;
        let refused = Some(DeviceErrorKind::ReadOnly);
        assert_eq!(kind_of(&properties, Command::write(0, 0, 512, memory)), refused);
        assert_eq!(kind_of(&properties, Command::discard(0, 0, 512)), refused);
        assert_eq!(kind_of(&properties, Command::read(0, 0, 512, memory)), None);
    }
}
