//! A disk with a volatile cache, a volume on it, a loop device over the volume, and a power cord.
//!
//! The disk lives in memory and outlives the power; everything else is of one [`Running`]. All of
//! it is in this process: when the power is gone the volume answers every request with an error,
//! so the file system above can be unmounted, which it could not be if the process had died.
//!
//! # Power-loss contract
//! As [`CutDevice`]: for each sector of 512 bytes either what was flushed, or what any later
//! command wrote there.

use crate::error::SystemsError;
use crate::power::Power;
use coulter::{CreateOptions, OpenOptions, Volume, create};
use coulter_attach::loop_device::{LoopDevice, LoopOptions};
use coulter_attach::point::{AttachPoint, Detach};
use coulter_check::{BlockFn, ReadError};
use coulter_device::wrap::{CutDevice, CutHandle, CutPolicy};
use coulter_device::{Device, MemoryDevice, MemoryStore};
use coulter_format::{BLOCK_SIZE, Block, Pba};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of a segment: small, so that cleaning is busy.
const SEGMENT_SIZE: u64 = 2 << 20;
/// Findings that a violation names.
const FINDINGS_MAX: usize = 20;
const PAUSE: Duration = Duration::from_millis(1);

/// Puts something between the volume and the disk with its cache.
pub type Between = fn(CutDevice<MemoryDevice>) -> Box<dyn Device>;

/// When the power goes.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// After so many commands to the disk, those of opening included.
    pub commands: u64,
    /// Decides what of the cache survives.
    pub seed: u64,
}

/// The disk, on which a store was made.
#[derive(Debug)]
pub struct Machine {
    disk: MemoryStore,
    /// Where the attach point is mounted, while there is power.
    point: PathBuf,
    between: Between,
}

/// How turning the power on came out.
// Both are moved once in a round.
#[expect(clippy::large_enum_variant)]
pub enum Start {
    /// It runs.
    Running(Running),
    /// The power went again before it did.
    Cut,
}

/// A volume that is served.
pub struct Running {
    volume: Volume,
    device: LoopDevice,
    cord: CutHandle,
}

impl Machine {
    /// Makes a store whose volume has `volume_size` bytes. `point` is a path in a directory of the
    /// caller's, for the attach point.
    ///
    /// # Errors
    /// A violation: a disk in memory never refuses.
    pub fn new(volume_size: u64, point: PathBuf) -> Result<Machine, SystemsError> {
        let size = (volume_size + volume_size / 4).next_multiple_of(SEGMENT_SIZE);
        let disk = MemoryStore::new(size);
        let options = CreateOptions {
            volume_size: Some(volume_size),
            segment_size: SEGMENT_SIZE,
            ..CreateOptions::default()
        };
        create(Box::new(open(&disk)), &options)
            .map_err(|error| SystemsError::violation(format!("no store can be made: {error}")))?;
        Ok(Machine { disk, point, between: |device| Box::new(device) })
    }

    /// The same with something between volume and disk; for devices that lie.
    pub fn with(self, between: Between) -> Machine {
        Machine { between, ..self }
    }

    /// Turns the power on, opens the volume and attaches it.
    ///
    /// # Errors
    /// A violation if the store does not open while there is power.
    pub fn start(&self, cut: Option<Cut>) -> Result<Start, SystemsError> {
        let (disk, cord) = CutDevice::new(open(&self.disk));
        if let Some(Cut { commands, seed }) = cut {
            cord.cut_after(commands, CutPolicy::Seeded(seed));
        }
        let volume = match Volume::open((self.between)(disk), OpenOptions::default()) {
            Ok(volume) => volume,
            Err(_) if cord.is_cut() => return Ok(Start::Cut),
            Err(error) => return Err(SystemsError::violation(format!("no opening: {error}"))),
        };
        let attached = LoopDevice::attach(&volume, &self.point, &LoopOptions::default());
        match attached {
            Ok(device) => Ok(Start::Running(Running { volume, device, cord })),
            Err(_) if cord.is_cut() => {
                let _ = volume.abandon();
                Ok(Start::Cut)
            }
            Err(error) => Err(SystemsError::Io {
                action: "attach",
                path: self.point.clone(),
                source: std::io::Error::other(error.to_string()),
            }),
        }
    }

    /// Has the independent checker read the disk, all data included.
    ///
    /// # Errors
    /// A violation with its findings.
    pub fn check(&self) -> Result<(), SystemsError> {
        let read = |pba: Pba, block: &mut Block| {
            let offset = u64::from(pba.0) * BLOCK_SIZE as u64;
            let failed = |error: coulter_device::OpenError| std::io::Error::other(error);
            self.disk.read_at(offset, block).map_err(|error| ReadError::Io(failed(error)))
        };
        let mut blocks = BlockFn { size_blocks: self.disk.size() / BLOCK_SIZE as u64, read };
        let mut options = coulter_check::Options { data: true, ..Default::default() };
        let report = coulter_check::check(&mut blocks, &mut options);
        if report.is_sound() && report.complete {
            return Ok(());
        }
        let findings = report.findings.iter().take(FINDINGS_MAX).map(ToString::to_string);
        let findings: Vec<String> = findings.collect();
        Err(SystemsError::violation(format!("the store is not sound: {}", findings.join("; "))))
    }
}

impl Running {
    /// The block device.
    pub fn device(&self) -> &Path {
        self.device.device()
    }

    /// Its power.
    pub fn power(&self) -> Power {
        Power::on(self.cord.clone())
    }

    /// Whether the power is gone.
    pub fn is_cut(&self) -> bool {
        self.cord.is_cut()
    }

    /// Waits until the power is gone by itself; cuts it after `limit`. `seed` decides what
    /// survives.
    pub fn cut_within(&self, limit: Duration, seed: u64) {
        let deadline = Instant::now() + limit;
        while !self.is_cut() && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
        }
        if !self.is_cut() {
            self.cord.cut(CutPolicy::Seeded(seed));
        }
        // An idle volume feels it when it wakes.
        while !self.is_cut() {
            std::thread::sleep(PAUSE);
        }
    }

    /// Takes away what runs without power. Nothing may be mounted from the device any more.
    ///
    /// # Errors
    /// When the attach point cannot be taken away.
    pub fn abandon(mut self) -> Result<(), SystemsError> {
        assert!(self.is_cut(), "who has power is shut down");
        // Says that nothing could be flushed, which is so.
        let detached = self.device.detach(Detach::Always);
        let _ = self.volume.abandon();
        match detached {
            Ok(()) | Err(coulter_attach::point::DetachError::Unflushed { .. }) => Ok(()),
            Err(error) => Err(detach_failed(self.device.device(), &error)),
        }
    }

    /// Detaches and closes in order. Nothing may be mounted from the device any more.
    ///
    /// # Errors
    /// When the attach point cannot be taken away; a violation if the volume does not close.
    pub fn shut_down(mut self) -> Result<(), SystemsError> {
        let detached = self.device.detach(Detach::IfIdle);
        detached.map_err(|error| detach_failed(self.device.device(), &error))?;
        let closed = self.volume.close();
        closed.map_err(|error| SystemsError::violation(format!("it does not close: {error}")))
    }
}

fn open(disk: &MemoryStore) -> MemoryDevice {
    disk.open().expect("one device at a time")
}

fn detach_failed(device: &Path, error: &dyn std::fmt::Display) -> SystemsError {
    SystemsError::io("detach", device, std::io::Error::other(error.to_string()))
}
