//! An emulated drive as a [`Device`], so that a Coulter volume runs on it.
//!
//! The drive belongs to a [`FlashStore`], which one device at a time may have open, as with a file.
//!
//! # Time contract
//! - [`Pacing::Virtual`]: nothing waits. The device's clock stands still while commands are
//!   submitted and jumps to the earliest answer when completions are taken; so commands that are
//!   outstanding together work at once on the drive, as they would on a real one.
//! - [`Pacing::Real`]: a completion is held until its virtual time has passed on the clock of this
//!   machine. A host that is slower than the drive leaves it idle.
//!
//! # Power-loss contract
//! A drive that loses power (see [`Drive::cut_power_after`](crate::Drive::cut_power_after)) fails
//! every command with `Gone`. It comes back with [`FlashStore::power_on`].

#![expect(unsafe_code, reason = "commands of the device contract point to the caller's memory")]

use crate::drive::{Blocks, CommandError};
use crate::held::HeldQueue;
use crate::store::{Clock, FlashStore, Pacing, Work};
use crate::units::{BLOCK_SIZE, Ns};
use coulter_device::alarm::Alarm;
use coulter_device::wake::{Awake, Deadline, Sleeper};
use coulter_device::{
    Command, CommandKind, Completion, Device, DeviceError, DeviceErrorKind, OpenError, Properties,
    Region, Wait, Waker,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// A device on the drive of a [`FlashStore`].
#[derive(Debug)]
pub struct FlashDevice {
    store: FlashStore,
    properties: Properties,
    clock: Clock,
    now: Ns,
    held: HeldQueue<Completion>,
    sleeper: Sleeper,
    /// For callers that sleep elsewhere; made when one first does.
    alarm: Option<Alarm>,
}

impl FlashStore {
    /// A device for reading and writing.
    ///
    /// # Errors
    /// `InUse` while somebody else has the drive.
    pub fn open(&self, pacing: Pacing) -> Result<FlashDevice, OpenError> {
        self.open_as(pacing, false)
    }

    /// A device for reading. It excludes others all the same.
    ///
    /// # Errors
    /// `InUse` while somebody else has the drive.
    pub fn open_read_only(&self, pacing: Pacing) -> Result<FlashDevice, OpenError> {
        self.open_as(pacing, true)
    }

    fn open_as(&self, pacing: Pacing, read_only: bool) -> Result<FlashDevice, OpenError> {
        let now = self.take()?.now;
        Ok(FlashDevice {
            store: self.clone(),
            properties: Properties { read_only, ..self.properties().clone() },
            clock: Clock::new(pacing, now),
            now,
            held: HeldQueue::new(),
            sleeper: Sleeper::new(),
            alarm: None,
        })
    }
}

impl FlashDevice {
    fn clock(&mut self) -> Ns {
        self.now = self.now.max(self.clock.real());
        self.now
    }

    /// Executes a command; answers with the virtual time of its completion.
    ///
    /// # Safety
    /// As for [`Device::submit`].
    unsafe fn execute(&mut self, now: Ns, command: &Command) -> Result<Ns, DeviceError> {
        self.properties.check(command)?;
        let length = command.length as usize;
        let block = u64::from(BLOCK_SIZE);
        let count = u32::try_from(command.length / block);
        let count = count.expect("a drive has fewer than 2^32 blocks");
        let blocks = Blocks { first: command.offset / block, count };
        let work = match command.kind {
            // A drive has all its space.
            CommandKind::Prepare => return Ok(now),
            CommandKind::Read => {
                // SAFETY: the caller promises memory that is valid and not looked at by others; it
                // may be uninitialised to the compiler's eye only if the caller made it so.
                let bytes = unsafe { std::slice::from_raw_parts_mut(command.buffer, length) };
                Work::Read { blocks, bytes }
            }
            CommandKind::Write => {
                // SAFETY: the caller promises memory that is valid and written to by no one.
                let bytes = unsafe { std::slice::from_raw_parts(command.buffer, length) };
                Work::Write { blocks, bytes, fua: false, stream: command.stream }
            }
            CommandKind::Discard => Work::Trim { blocks },
            CommandKind::Flush => Work::Flush,
        };
        self.store.lock().carry_out(now, work).map_err(|error| {
            DeviceError::of(match error {
                CommandError::PowerCut => DeviceErrorKind::Gone,
                CommandError::OutOfRange => DeviceErrorKind::OutOfRange,
            })
        })
    }

    /// Gives out what is due; answers when the next will be.
    fn release(&mut self, out: &mut Vec<Completion>) -> Option<Ns> {
        if self.clock.pacing == Pacing::Virtual
            && let Some(due) = self.held.due()
        {
            self.now = self.now.max(due);
        }
        let now = self.clock();
        self.held.release(now, out);
        self.held.due().map(|due| due - now)
    }
}

// SAFETY: memory is touched while a command is submitted, and its completion is told after that.
unsafe impl Device for FlashDevice {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    unsafe fn register(&mut self, _regions: &[Region]) -> io::Result<()> {
        Ok(())
    }

    unsafe fn submit(&mut self, command: Command) {
        let now = self.clock();
        // SAFETY: the caller's promises are the same.
        let answer = unsafe { self.execute(now, &command) };
        let completion = Completion { tag: command.tag, result: answer.map(|_| ()) };
        // What is refused takes no time.
        self.held.hold(answer.unwrap_or(now), completion);
    }

    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        self.sleeper.disarm();
        let (before, deadline) = (out.len(), Deadline::after(wait));
        loop {
            let due = self.release(out);
            let left = deadline.left();
            if out.len() > before || left == Wait::No {
                return Ok(());
            }
            let sleep = match (due.map(Duration::from_nanos), left) {
                (None, left) => left,
                (Some(due), Wait::For(left)) => Wait::For(due.min(left)),
                (Some(due), _) => Wait::For(due),
            };
            if self.sleeper.sleep(sleep) == Awake::Woken {
                return Ok(());
            }
        }
    }

    fn arm(&mut self) -> io::Result<BorrowedFd<'_>> {
        // In virtual time the next poll goes to when it is due.
        let now = if self.clock.pacing == Pacing::Virtual { Ns::MAX } else { self.clock() };
        let left = |due: Ns| Duration::from_nanos(due.saturating_sub(now));
        let due = self.held.due().map(|due| Instant::now() + left(due));
        let called = self.sleeper.arm()?;
        let alarm = match self.alarm.take() {
            Some(alarm) => alarm,
            None => Alarm::beside(called)?,
        };
        alarm.set(due)?;
        let alarm: &Alarm = self.alarm.insert(alarm);
        Ok(alarm.as_fd())
    }

    fn waker(&self) -> Waker {
        self.sleeper.waker()
    }
}

impl Drop for FlashDevice {
    fn drop(&mut self) {
        self.store.give_back(self.now.max(self.held.last_due().unwrap_or(0)));
    }
}
