//! A drive that may be opened, with its clock and what was measured: by one device, or one block
//! service, at a time.
//!
//! Every command is carried out under one lock, so that whoever wants to know what the drive does
//! may look at any time. The lock is free but for such looks and for sessions of a service that
//! meet, and costs little beside emulating a command.

use crate::content::Keep;
use crate::drive::{Blocks, CommandError, Drive, WriteOptions};
use crate::drive_report::{CommandLatencies, DriveReport};
use crate::streams::{StreamDetector, StreamHandles};
use crate::units::{BLOCK_SIZE, Ns};
use coulter_device::{OpenError, Prepare, Properties};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// When completions are given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// At once; the drive's clock is virtual.
    Virtual,
    /// When they are due in real time.
    Real,
}

/// A drive that may be opened. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct FlashStore {
    state: Arc<Mutex<State>>,
    properties: Properties,
}

/// The drive and what belongs to it, behind the lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) drive: Drive,
    /// Virtual time.
    pub(crate) now: Ns,
    handles: StreamHandles,
    latencies: CommandLatencies,
    is_open: bool,
}

/// What a host asks of a drive.
pub(crate) enum Work<'a> {
    Read {
        blocks: Blocks,
        bytes: &'a mut [u8],
    },
    /// `stream` is what the host names, or 0.
    Write {
        blocks: Blocks,
        bytes: &'a [u8],
        fua: bool,
        stream: u8,
    },
    Trim {
        blocks: Blocks,
    },
    Flush,
}

impl State {
    /// Carries out a command that comes in at `at`; answers with the virtual time of its end.
    pub(crate) fn carry_out(&mut self, at: Ns, work: Work<'_>) -> Result<Ns, CommandError> {
        self.now = self.now.max(at);
        let (end, latencies) = match work {
            Work::Read { blocks, bytes } => {
                (self.drive.read(at, blocks, bytes)?, &mut self.latencies.read)
            }
            Work::Write { blocks, bytes, fua, stream } => {
                let offset = blocks.first * u64::from(BLOCK_SIZE);
                let handle = self.handles.handle(offset, stream);
                let options = WriteOptions { handle, fua };
                (self.drive.write(at, blocks, bytes, options)?, &mut self.latencies.write)
            }
            Work::Trim { blocks } => (self.drive.trim(at, blocks)?, &mut self.latencies.trim),
            Work::Flush => (self.drive.flush(at)?, &mut self.latencies.flush),
        };
        latencies.record(end - at);
        Ok(end)
    }
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
            prepare: Prepare::Nothing,
            // See the drive's durability contract.
            atomic_page: profile.geometry.page_size.into(),
            read_only: false,
            queue_depth: profile.queue_depth as usize,
            description: format!("emulated {} with {}", profile.name, drive.ftl().kind()),
            note: None,
        };
        properties.assert_consistent();
        let state = State {
            drive,
            now: 0,
            handles: StreamHandles::One,
            latencies: CommandLatencies::default(),
            is_open: false,
        };
        FlashStore { state: Arc::new(Mutex::new(state)), properties }
    }

    /// What a device on it is.
    pub(crate) fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Writes get placement handles by the segment of `segment_size` bytes that they are in, so that
    /// segments that are written at the same time lie in different erase blocks. The drive needs a
    /// [`Placement`](crate::Placement) with handles.
    ///
    /// # Errors
    /// `InUse` while somebody has the drive open.
    ///
    /// # Panics
    /// When the segment size is zero, or there are no handles.
    pub fn detect_streams(&self, segment_size: u64, handles: u8) -> Result<(), OpenError> {
        self.lock_idle()?.handles =
            StreamHandles::Detected(StreamDetector::new(segment_size, handles));
        Ok(())
    }

    /// Writes get placement handles by the stream that the host names
    /// ([`Command::stream`](coulter_device::Command::stream)). The drive needs a
    /// [`Placement`](crate::Placement) with handles.
    ///
    /// # Errors
    /// `InUse` while somebody has the drive open.
    ///
    /// # Panics
    /// When there are no handles.
    pub fn follow_streams(&self, handles: u8) -> Result<(), OpenError> {
        assert!(handles > 0, "a write needs a handle");
        self.lock_idle()?.handles = StreamHandles::Named { handles };
        Ok(())
    }

    /// Looks at the drive, or changes it.
    ///
    /// # Errors
    /// `InUse` while somebody has the drive open.
    pub fn with<R>(&self, work: impl FnOnce(&mut Drive) -> R) -> Result<R, OpenError> {
        Ok(work(&mut self.lock_idle()?.drive))
    }

    /// Virtual time that has passed on the drive.
    pub fn now(&self) -> Ns {
        self.lock().now
    }

    /// What the drive has done since it was made, open or not.
    pub fn report(&self) -> DriveReport {
        let state = self.lock();
        DriveReport::of(&state.drive, state.now, &state.latencies)
    }

    /// Takes the power away, if it is there, and gives it back: what was only buffered is gone.
    ///
    /// # Errors
    /// `InUse` while somebody has the drive open.
    pub fn power_on(&self) -> Result<(), OpenError> {
        let mut state = self.lock_idle()?;
        let now = state.now;
        state.now = state.drive.power_on(now).expect("no further cut was asked for");
        Ok(())
    }

    /// Takes the drive for one user.
    ///
    /// # Errors
    /// `InUse` while somebody else has it.
    pub(crate) fn take(&self) -> Result<MutexGuard<'_, State>, OpenError> {
        let mut state = self.lock_idle()?;
        state.is_open = true;
        Ok(state)
    }

    /// Gives it back, at `now`.
    pub(crate) fn give_back(&self, now: Ns) {
        let mut state = self.lock();
        assert!(state.is_open, "only what was taken is given back");
        state.now = state.now.max(now);
        state.is_open = false;
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // Nobody waits for a drive whose emulation has panicked in another thread's hands: what it
        // asserts of itself holds before and after each command.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_idle(&self) -> Result<MutexGuard<'_, State>, OpenError> {
        let state = self.lock();
        if state.is_open {
            let by = Some("another user of the same drive".to_string());
            return Err(OpenError::InUse { path: PathBuf::from("emulated flash"), by });
        }
        Ok(state)
    }
}

/// How virtual time follows real time, for one opening of a drive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) pacing: Pacing,
    /// Virtual time at the opening, which was at `opened`.
    begin: Ns,
    opened: Instant,
}

impl Clock {
    pub(crate) fn new(pacing: Pacing, begin: Ns) -> Clock {
        Clock { pacing, begin, opened: Instant::now() }
    }

    /// The virtual time that follows from real time; 0 if none does.
    pub(crate) fn real(&self) -> Ns {
        match self.pacing {
            Pacing::Virtual => 0,
            Pacing::Real => {
                let passed = u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.begin.saturating_add(passed)
            }
        }
    }
}
