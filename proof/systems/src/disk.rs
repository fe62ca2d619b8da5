//! The process of a machine: a disk with a volatile cache, a volume on it, and a loop device over
//! the volume; or over the disk itself, for what brings a volume of its own.
//!
//! It is a process of its own because nobody can be killed who waits for a file system that he
//! serves himself. It does what it is told on its standard input, and ends with it.
//!
//! The disk lives in memory and outlives the power; everything else does not. Without power the
//! volume answers every request with an error, so the file system above can be unmounted.
//!
//! # Power-loss contract
//! As [`CutDevice`]: for each sector of 512 bytes either what was flushed, or what any later
//! command wrote there.

use crate::liar::Liar;
use crate::protocol::{Cut, Reply, Request, receive, send};
use coulter::service::BlockService;
use coulter::{Acknowledge, CloseError, CreateOptions, OpenOptions, Volume, create};
use coulter_attach::point::{AttachPoint, Detach, DetachError};
use coulter_bench::BareService;
use coulter_block::loop_device::{LoopDevice, LoopOptions};
use coulter_check::{BlockFn, ReadError};
use coulter_device::wrap::{CutDevice, CutHandle, CutPolicy};
use coulter_device::{Device, MemoryDevice, MemoryStore};
use coulter_format::{BLOCK_SIZE, Block, Pba};
use std::fs::OpenOptions as FileOptions;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of a segment: small, so that cleaning is busy.
const SEGMENT_SIZE: u64 = 2 << 20;
/// Findings that a violation names.
const FINDINGS_MAX: usize = 20;
/// How long a volume may take to notice that it has no power.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);

/// What the process is to be.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Bytes of the volume, or of the disk if it is plain.
    pub volume_size: u64,
    /// Whether the disk itself is the block device, without a volume.
    pub is_plain: bool,
    /// Where the attach point is mounted, while there is power.
    pub point: PathBuf,
    /// Whether the disk says yes to flushes and does nothing.
    pub lies: bool,
}

/// Does what standard input says, to its end.
///
/// # Errors
/// When nobody listens to the answers, or nothing can be understood.
pub fn serve(options: DiskOptions) -> io::Result<()> {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let mut disk = match Disk::new(options) {
        Ok(disk) => disk,
        Err(reply) => return send(&mut output, &reply),
    };
    send(&mut output, &Reply::Done)?;
    while let Some(request) = receive(&mut input)? {
        let reply = disk.handle(&request).unwrap_or_else(|reply| reply);
        send(&mut output, &reply)?;
    }
    Ok(())
}

/// The disk, on which a store was made.
struct Disk {
    options: DiskOptions,
    content: MemoryStore,
    running: Option<Running>,
}

/// A volume or a plain disk that is served.
struct Running {
    // Goes first, even when it is dropped.
    device: LoopDevice,
    /// `None` if the disk is plain.
    volume: Option<Volume>,
    cord: CutHandle,
}

impl Disk {
    fn new(options: DiskOptions) -> Result<Disk, Reply> {
        let volume_size = options.volume_size;
        if options.is_plain {
            return Ok(Disk { content: MemoryStore::new(volume_size), options, running: None });
        }
        let size = (volume_size + volume_size / 4).next_multiple_of(SEGMENT_SIZE);
        let content = MemoryStore::new(size);
        let shape = CreateOptions {
            volume_size: Some(volume_size),
            segment_size: Some(SEGMENT_SIZE),
            ..CreateOptions::default()
        };
        create(Box::new(open(&content)), &shape)
            .map_err(|error| violation(format!("no store can be made: {error}")))?;
        Ok(Disk { options, content, running: None })
    }

    fn handle(&mut self, request: &Request) -> Result<Reply, Reply> {
        match request {
            Request::Start { cut } => self.start(*cut),
            Request::Power => Ok(Reply::Power { is_on: !self.running()?.cord.is_cut() }),
            Request::Arm { cut } => {
                self.running()?.cord.cut_after(cut.commands, CutPolicy::Seeded(cut.seed));
                Ok(Reply::Done)
            }
            Request::Cut { seed } => self.running()?.cut(*seed),
            Request::Abandon => self.take()?.abandon(),
            Request::ShutDown => self.take()?.shut_down(),
            Request::Check => self.check(),
        }
    }

    fn running(&self) -> Result<&Running, Reply> {
        self.running.as_ref().ok_or_else(not_running)
    }

    fn take(&mut self) -> Result<Running, Reply> {
        self.running.take().ok_or_else(not_running)
    }

    fn start(&mut self, cut: Option<Cut>) -> Result<Reply, Reply> {
        let (device, cord) = CutDevice::new(open(&self.content));
        if let Some(Cut { commands, seed }) = cut {
            cord.cut_after(commands, CutPolicy::Seeded(seed));
        }
        let device: Box<dyn Device> = match self.options.lies {
            false => Box::new(device),
            true => Box::new(Liar::new(device)),
        };
        if self.options.is_plain {
            let service = BareService::new(device).map_err(failed)?;
            let attached = self.attach(&service, &cord);
            return self.run(attached, None, cord);
        }
        // Either kind of volume has its cuts, and the store passes from one to the other.
        let acknowledge = match cut {
            Some(Cut { seed, .. }) if seed % 2 == 1 => Acknowledge::Buffered,
            _ => Acknowledge::Written,
        };
        let options = OpenOptions { acknowledge, ..OpenOptions::default() };
        let volume = match Volume::open(device, options) {
            Ok(volume) => volume,
            Err(_) if cord.is_cut() => return Ok(Reply::Cut),
            Err(error) => return Err(violation(format!("the store does not open: {error}"))),
        };
        let attached = self.attach(&volume, &cord);
        self.run(attached, Some(volume), cord)
    }

    /// The loop device; `None` if the power went before there was one.
    fn attach(
        &self,
        service: &dyn BlockService,
        cord: &CutHandle,
    ) -> Result<Option<LoopDevice>, Reply> {
        match LoopDevice::attach(service, &self.options.point, &LoopOptions::default()) {
            Ok(device) => Ok(Some(device)),
            Err(_) if cord.is_cut() => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    fn run(
        &mut self,
        attached: Result<Option<LoopDevice>, Reply>,
        volume: Option<Volume>,
        cord: CutHandle,
    ) -> Result<Reply, Reply> {
        let Some(device) = attached? else {
            let _ = volume.map(Volume::abandon);
            return Ok(Reply::Cut);
        };
        let path = device.device().to_owned();
        self.running = Some(Running { device, volume, cord });
        Ok(Reply::Running { device: path })
    }

    /// Reads all of the disk, data included.
    fn check(&self) -> Result<Reply, Reply> {
        if self.options.is_plain {
            // What it holds is for others to check.
            return Ok(Reply::Done);
        }
        let read = |pba: Pba, block: &mut Block| {
            let offset = u64::from(pba.0) * BLOCK_SIZE as u64;
            let failed = |error| ReadError::Io(io::Error::other(error));
            self.content.read_at(offset, block).map_err(failed)
        };
        let mut blocks = BlockFn { size_blocks: self.content.size() / BLOCK_SIZE as u64, read };
        let mut options = coulter_check::Options { data: true, ..Default::default() };
        let report = coulter_check::check(&mut blocks, &mut options);
        if report.is_sound() && report.complete {
            return Ok(Reply::Done);
        }
        let findings = report.findings.iter().take(FINDINGS_MAX).map(ToString::to_string);
        let findings: Vec<String> = findings.collect();
        Err(violation(format!("the store is not sound: {}", findings.join("; "))))
    }
}

impl Running {
    fn cut(&self, seed: u64) -> Result<Reply, Reply> {
        if !self.cord.is_cut() {
            self.cord.cut(CutPolicy::Seeded(seed));
        }
        // An idle volume feels it when it wakes; one that has stopped by a bug never does.
        let deadline = Instant::now() + PATIENCE;
        while !self.cord.is_cut() {
            if self.volume.is_none() {
                nudge(self.device.device());
            }
            if Instant::now() >= deadline {
                return Err(violation("the volume stands still".to_owned()));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(Reply::Done)
    }

    fn abandon(mut self) -> Result<Reply, Reply> {
        // Says that nothing could be flushed, which is so.
        let detached = self.device.detach(Detach::Always);
        if let Some(Err(CloseError::Bug(what))) = self.volume.map(Volume::abandon) {
            return Err(violation(format!("a bug: {what}")));
        }
        match detached {
            Ok(()) | Err(DetachError::Unflushed { .. }) => Ok(Reply::Done),
            Err(error) => Err(failed(error)),
        }
    }

    fn shut_down(mut self) -> Result<Reply, Reply> {
        self.device.detach(Detach::IfIdle).map_err(failed)?;
        match self.volume.map(Volume::close) {
            Some(Err(error)) => Err(violation(format!("it does not close: {error}"))),
            _ => Ok(Reply::Done),
        }
    }
}

/// Reads from a plain disk, which feels a cut with the next command only. That it fails is no news.
fn nudge(device: &Path) {
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut memory = coulter_device::AlignedMemory::zeroed(BLOCK_SIZE);
    let _ = FileOptions::new()
        .read(true)
        .custom_flags(direct)
        .open(device)
        .and_then(|file| file.read_at(&mut memory, 0));
}

fn open(content: &MemoryStore) -> MemoryDevice {
    content.open().expect("one device at a time")
}

fn violation(what: String) -> Reply {
    Reply::Violation { what }
}

fn failed(error: impl std::fmt::Display) -> Reply {
    Reply::Failed { what: error.to_string() }
}

fn not_running() -> Reply {
    Reply::Failed { what: "the machine has no power".to_owned() }
}
