//! One side of a comparison, as a process of its own: a device held back or not, a log on it or not, and a
//! loop device over that.
//!
//! It is a process of its own because nobody can be killed who waits for a file system that he
//! serves himself. It does what it is told on its standard input, and ends with it.

use crate::protocol::{receive, send};
use coulter::service::BlockService;
use coulter::{CreateOptions, OpenOptions, Volume, create};
use coulter_attach::point::{AttachPoint, Detach};
use coulter_bench::BareService;
use coulter_block::loop_device::{LoopDevice, LoopOptions};
use coulter_device::wrap::{CountingDevice, Counts, SlowDevice, SlowHandle, SlowModel};
use coulter_device::{CommandKind, Device, open_path};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

/// What the process is to be.
#[derive(Clone, Debug)]
pub struct SideOptions {
    /// The device: a file that has its size already.
    pub file: PathBuf,
    /// Where the attach point is mounted.
    pub point: PathBuf,
    /// Whether there is a volume on it.
    pub is_volume: bool,
    /// How it is held back.
    pub model: Option<SlowModel>,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SideRequest {
    /// Whether commands are held back from now on. At first they are not.
    HoldBack(bool),
    /// What has passed to the device so far.
    Passed,
    /// Detach and close in order.
    End,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SideReply {
    /// It runs, and this is the block device.
    Running { device: PathBuf },
    /// It is done.
    Done,
    /// What has passed to the device so far.
    Passed(Passed),
    /// It cannot be done.
    Failed { what: String },
}

/// What has passed to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Passed {
    /// Reads, writes and flushes.
    pub(crate) commands: u64,
    /// Bytes written.
    pub(crate) written: u64,
}

/// Does what standard input says, to its end.
///
/// # Errors
/// When nobody listens to the answers, or nothing can be understood.
pub fn serve_side(options: &SideOptions) -> io::Result<()> {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let side = match ServedSide::new(options) {
        Ok(side) => side,
        Err(error) => return send(&mut output, &failed(&*error)),
    };
    let device = side.device.device().to_owned();
    send(&mut output, &SideReply::Running { device })?;
    while let Some(request) = receive(&mut input)? {
        let reply = match request {
            SideRequest::HoldBack(is_held_back) => {
                side.hold_back(is_held_back);
                SideReply::Done
            }
            SideRequest::Passed => SideReply::Passed(side.passed()),
            SideRequest::End => {
                let reply = side.end().map_or_else(|error| failed(&*error), |()| SideReply::Done);
                return send(&mut output, &reply);
            }
        };
        send(&mut output, &reply)?;
    }
    Ok(())
}

struct ServedSide {
    // Goes first, even when it is dropped.
    device: LoopDevice,
    below: Below,
    limits: Option<SlowHandle>,
    counts: Counts,
}

enum Below {
    Bare(BareService),
    Volume(Volume),
}

impl Below {
    fn service(&self) -> &dyn BlockService {
        match self {
            Below::Bare(service) => service,
            Below::Volume(volume) => volume,
        }
    }
}

impl ServedSide {
    fn new(options: &SideOptions) -> Result<ServedSide, Box<dyn Error>> {
        if options.is_volume {
            create(open(&options.file)?, &CreateOptions::default())?;
        }
        let device = open(&options.file)?;
        let (device, limits): (Box<dyn Device>, _) = match options.model {
            None => (device, None),
            Some(model) => {
                let slow = SlowDevice::new(device, model);
                let handle = slow.handle();
                handle.hold_back(false);
                (Box::new(slow), Some(handle))
            }
        };
        let (device, counts) = CountingDevice::new(device);
        let device = Box::new(device);
        let below = match options.is_volume {
            true => Below::Volume(Volume::open(device, OpenOptions::default())?),
            false => Below::Bare(BareService::new(device)?),
        };
        let device = LoopDevice::attach(below.service(), &options.point, &LoopOptions::default())?;
        Ok(ServedSide { device, below, limits, counts })
    }

    fn hold_back(&self, is_held_back: bool) {
        if let Some(limits) = &self.limits {
            limits.hold_back(is_held_back);
        }
    }

    fn passed(&self) -> Passed {
        let kinds = [CommandKind::Read, CommandKind::Write, CommandKind::Flush];
        Passed {
            commands: kinds.map(|kind| self.counts.of(kind).commands).iter().sum(),
            written: self.counts.of(CommandKind::Write).bytes,
        }
    }

    fn end(mut self) -> Result<(), Box<dyn Error>> {
        self.hold_back(false);
        self.device.detach(Detach::IfIdle)?;
        match self.below {
            Below::Volume(volume) => Ok(volume.close()?),
            Below::Bare(_) => Ok(()),
        }
    }
}

fn open(file: &Path) -> Result<Box<dyn Device>, Box<dyn Error>> {
    Ok(open_path(file, &coulter_device::OpenOptions::default())?)
}

fn failed(error: &dyn Error) -> SideReply {
    SideReply::Failed { what: error.to_string() }
}
