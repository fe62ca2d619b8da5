//! An emulated drive as a [`Device`], so that a Coulter volume, or an attach point, runs on it.
//!
//! The drive belongs to a [`FlashStore`]. Opening it moves the drive into the [`FlashDevice`],
//! dropping the device moves it back: so opening twice is refused, as with a file, and commands need
//! no lock.
//!
//! # Time contract
//! - [`Pacing::Virtual`]: nothing waits. The device's clock stands still while commands are
//!   submitted and jumps to the earliest answer when completions are taken; so commands that are
//!   outstanding together work at once on the drive, as they would on a real one.
//! - [`Pacing::Real`]: a completion is held until its virtual time has passed on the clock of this
//!   machine. A host that is slower than the drive leaves it idle.
//!
//! # Power-loss contract
//! A drive that loses power (see [`Drive::cut_power_after`]) fails every command with `Gone`. It
//! comes back with [`FlashStore::power_on`].

#![allow(unsafe_code)]

use crate::content::Keep;
use crate::drive::{Blocks, CommandError, Drive, WriteOptions};
use crate::units::{BLOCK_SIZE, Ns};
use coulter_device::alarm::Alarm;
use coulter_device::wake::{Awake, Deadline, Sleeper};
use coulter_device::{
    Command, CommandKind, Completion, Device, DeviceError, DeviceErrorKind, OpenError, Properties,
    Region, Wait, Waker,
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// When completions are given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// At once; the drive's clock is virtual.
    Virtual,
    /// When they are due in real time.
    Real,
}

/// Gives writes of one segment one placement handle, and segments that are written at the same time
/// different ones: what a host with placement hints would say, or a drive guess that looks for
/// sequential streams.
#[derive(Clone, Debug)]
struct StreamDetector {
    segment_size: u64,
    /// The segment that each handle was last used for, and when.
    handles: Vec<(u64, u64)>,
    clock: u64,
}

impl StreamDetector {
    fn new(segment_size: u64, handles: u8) -> StreamDetector {
        StreamDetector { segment_size, handles: vec![(u64::MAX, 0); handles.into()], clock: 0 }
    }

    fn handle(&mut self, offset: u64) -> u8 {
        self.clock += 1;
        let segment = offset / self.segment_size;
        let known = self.handles.iter().position(|(used_for, _)| *used_for == segment);
        let oldest = || {
            let ages = self.handles.iter().enumerate();
            ages.min_by_key(|(_, (_, at))| *at).map_or(0, |(handle, _)| handle)
        };
        let handle = known.unwrap_or_else(oldest);
        if let Some(entry) = self.handles.get_mut(handle) {
            *entry = (segment, self.clock);
        }
        handle as u8
    }
}

/// A drive while no device is open, and between two that are. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct FlashStore {
    /// `None` while a device is open.
    parked: Arc<Mutex<Option<Parked>>>,
    properties: Properties,
}

#[derive(Debug)]
struct Parked {
    drive: Drive,
    /// Virtual time at which the drive was given back.
    now: Ns,
    detector: StreamDetector,
}

impl FlashStore {
    /// A store for a drive that keeps all bytes.
    ///
    /// # Panics
    /// When it does not.
    pub fn new(drive: Drive) -> FlashStore {
        assert_eq!(drive.keep(), Keep::Bytes, "a device gives back what it was given");
        let profile = drive.profile();
        let properties = Properties {
            size: profile.geometry.exported_bytes(),
            alignment: u64::from(BLOCK_SIZE),
            volatile_cache: profile.buffer_pages > 0,
            discard: true,
            read_only: false,
            queue_depth: profile.queue_depth as usize,
            description: format!("emulated {} with {}", profile.name, drive.ftl().kind()),
            note: None,
        };
        properties.assert_consistent();
        let parked = Arc::new(Mutex::new(Some(Parked {
            drive,
            now: 0,
            detector: StreamDetector::new(1, 0),
        })));
        FlashStore { parked, properties }
    }

    /// Writes get placement handles by the segment of `segment_size` bytes that they are in, so that
    /// segments that are written at the same time lie in different erase blocks. The drive needs a
    /// [`Placement`](crate::Placement) with handles.
    ///
    /// # Errors
    /// `InUse` while a device has the drive.
    ///
    /// # Panics
    /// When the segment size is zero.
    pub fn detect_streams(&self, segment_size: u64, handles: u8) -> Result<(), OpenError> {
        assert!(segment_size > 0, "a segment has a size");
        let mut parked = self.lock();
        let parked = parked.as_mut().ok_or_else(in_use)?;
        parked.detector = StreamDetector::new(segment_size, handles);
        Ok(())
    }

    /// A device for reading and writing.
    ///
    /// # Errors
    /// `InUse` while another device has it.
    pub fn open(&self, pacing: Pacing) -> Result<FlashDevice, OpenError> {
        self.open_as(pacing, false)
    }

    /// A device for reading. It excludes others all the same.
    ///
    /// # Errors
    /// `InUse` while another device has it.
    pub fn open_read_only(&self, pacing: Pacing) -> Result<FlashDevice, OpenError> {
        self.open_as(pacing, true)
    }

    fn open_as(&self, pacing: Pacing, read_only: bool) -> Result<FlashDevice, OpenError> {
        let parked = self.lock().take().ok_or_else(in_use)?;
        Ok(FlashDevice {
            properties: Properties { read_only, ..self.properties.clone() },
            begin: parked.now,
            now: parked.now,
            opened: Instant::now(),
            parked: Some(parked),
            store: self.clone(),
            pacing,
            held: BinaryHeap::new(),
            held_count: 0,
            sleeper: Sleeper::new(),
            alarm: None,
        })
    }

    /// Looks at the drive, or changes it.
    ///
    /// # Errors
    /// `InUse` while a device has it.
    pub fn with<R>(&self, work: impl FnOnce(&mut Drive) -> R) -> Result<R, OpenError> {
        Ok(work(&mut self.lock().as_mut().ok_or_else(in_use)?.drive))
    }

    /// Virtual time that has passed on the drive.
    ///
    /// # Errors
    /// `InUse` while a device has it.
    pub fn now(&self) -> Result<Ns, OpenError> {
        Ok(self.lock().as_ref().ok_or_else(in_use)?.now)
    }

    /// Takes the power away, if it is there, and gives it back: what was only buffered is gone.
    ///
    /// # Errors
    /// `InUse` while a device has it.
    pub fn power_on(&self) -> Result<(), OpenError> {
        let mut parked = self.lock();
        let parked = parked.as_mut().ok_or_else(in_use)?;
        parked.now = parked.drive.power_on(parked.now).expect("no further cut was asked for");
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Parked>> {
        // The drive is only moved under the lock, or changed by a closure of the caller.
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn in_use() -> OpenError {
    let by = Some("another device on the same drive".to_string());
    OpenError::InUse { path: PathBuf::from("emulated flash"), by }
}

/// A completion that is held back; the earliest is the greatest.
#[derive(Debug)]
struct Held {
    due: Ns,
    /// Keeps order among equals.
    number: u64,
    completion: Completion,
}

impl Held {
    fn order(&self) -> Reverse<(Ns, u64)> {
        Reverse((self.due, self.number))
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Held) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Held) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

/// A device on the drive of a [`FlashStore`].
#[derive(Debug)]
pub struct FlashDevice {
    /// `None` only while dropping.
    parked: Option<Parked>,
    store: FlashStore,
    properties: Properties,
    pacing: Pacing,
    /// Virtual time when the device was opened, which was at `opened`.
    begin: Ns,
    opened: Instant,
    now: Ns,
    held: BinaryHeap<Held>,
    held_count: u64,
    sleeper: Sleeper,
    /// For callers that sleep elsewhere; made when one first does.
    alarm: Option<Alarm>,
}

impl FlashDevice {
    fn clock(&mut self) -> Ns {
        if self.pacing == Pacing::Real {
            let passed = u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.now = self.now.max(self.begin.saturating_add(passed));
        }
        self.now
    }

    /// Executes a command; answers with the virtual time of its completion.
    ///
    /// # Safety
    /// As for [`Device::submit`].
    unsafe fn execute(&mut self, now: Ns, command: &Command) -> Result<Ns, DeviceError> {
        self.properties.check(command)?;
        let Parked { drive, detector, .. } =
            self.parked.as_mut().expect("an open device has its drive");
        let length = command.length as usize;
        let block = u64::from(BLOCK_SIZE);
        let first = command.offset / block;
        let count = command.length / block;
        let whole = |count: u64| u32::try_from(count).expect("a drive has fewer than 2^32 blocks");
        let answer = match command.kind {
            CommandKind::Read => {
                // SAFETY: the caller promises memory that is valid and not looked at by others; it
                // may be uninitialised to the compiler's eye only if the caller made it so.
                let bytes = unsafe { std::slice::from_raw_parts_mut(command.buffer, length) };
                drive.read(now, Blocks { first, count: whole(count) }, bytes)
            }
            CommandKind::Write => {
                // SAFETY: the caller promises memory that is valid and written to by no one.
                let bytes = unsafe { std::slice::from_raw_parts(command.buffer, length) };
                let blocks = Blocks { first, count: whole(count) };
                let handle = detector.handle(command.offset);
                drive.write(now, blocks, bytes, WriteOptions { handle, fua: false })
            }
            CommandKind::Discard => drive.trim(now, Blocks { first, count: whole(count) }),
            CommandKind::Flush => drive.flush(now),
        };
        answer.map_err(|error| {
            DeviceError::of(match error {
                CommandError::PowerCut => DeviceErrorKind::Gone,
                CommandError::OutOfRange => DeviceErrorKind::OutOfRange,
            })
        })
    }

    /// Gives out what is due; answers when the next will be.
    fn release(&mut self, out: &mut Vec<Completion>) -> Option<Ns> {
        if self.pacing == Pacing::Virtual
            && let Some(next) = self.held.peek()
        {
            self.now = self.now.max(next.due);
        }
        let now = self.clock();
        while let Some(next) = self.held.peek() {
            if next.due > now {
                return Some(next.due - now);
            }
            out.extend(self.held.pop().map(|held| held.completion));
        }
        None
    }
}

impl Device for FlashDevice {
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
        let due = answer.unwrap_or(now);
        self.held.push(Held { due, number: self.held_count, completion });
        self.held_count += 1;
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
        let now = if self.pacing == Pacing::Virtual { Ns::MAX } else { self.clock() };
        let left = |held: &Held| Duration::from_nanos(held.due.saturating_sub(now));
        let due = self.held.peek().map(|held| Instant::now() + left(held));
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
        let last = self.held.iter().map(|held| held.due).max().unwrap_or(0);
        if let Some(parked) = &mut self.parked {
            parked.now = self.now.max(last);
        }
        *self.store.lock() = self.parked.take();
    }
}
