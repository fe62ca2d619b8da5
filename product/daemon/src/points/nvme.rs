//! A block device of the kernel's NVMe/TCP initiator, over a target on the loopback.

use super::kind::{Afterlife, Gives, Ground, Kind, Point};
use super::visitors::observer;
use crate::error::Error;
use crate::life::state::{Entry, StateDirectory};
use coulter::service::BlockService;
use coulter_attach::point::AttachPoint;
use coulter_block::nvme_device::{self, NvmeDevice};
use coulter_nvme_target::{Disk, TargetOptions, subsystem_name};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Its kind, and the one there is of it.
#[derive(Debug)]
pub struct Nvme;

impl Kind for Nvme {
    fn word(&self) -> &'static str {
        "nvme"
    }

    fn gives(&self) -> Gives {
        Gives::Device
    }

    fn afterlife(&self) -> Afterlife {
        Afterlife::Waits
    }

    fn plain(&self) -> Option<Box<dyn Point>> {
        Some(Box::new(Nvme))
    }

    fn check(&self) -> Result<(), String> {
        nvme_device::check().map_err(|error| error.to_string())
    }

    fn has_its_device(&self, _state: &StateDirectory, entry: &Entry, device: &Path) -> bool {
        let found = nvme_device::find(&name(entry));
        found.is_some_and(|found| found.device().as_deref() == Some(device))
    }

    fn waiting_device(&self, entry: &Entry) -> Option<PathBuf> {
        nvme_device::find(&name(entry)).and_then(|found| found.device())
    }

    fn remove_waiting(&self, entry: &Entry) -> Result<(), String> {
        match nvme_device::find(&name(entry)) {
            Some(waiting) => nvme_device::remove(&waiting).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }
}

impl Point for Nvme {
    fn kind(&self) -> &'static dyn Kind {
        &Nvme
    }

    fn start(
        &self,
        ground: &Ground<'_>,
        service: Arc<dyn BlockService>,
    ) -> Result<Box<dyn AttachPoint>, Error> {
        let name = subsystem_name(&service.describe().identity);
        let (disk, options) = target(ground.entry, service);
        let device = match nvme_device::find(&name) {
            Some(waiting) if ground.recover => NvmeDevice::recover(waiting, disk, options),
            Some(waiting) => {
                let device = waiting.device().unwrap_or(waiting.path);
                return Err(ground.device_waits(&device));
            }
            None => NvmeDevice::attach(disk, options),
        };
        Ok(Box::new(device.map_err(|error| ground.failed(error))?))
    }

    fn resume(
        &self,
        ground: &Ground<'_>,
        service: Arc<dyn BlockService>,
        descriptor: OwnedFd,
    ) -> Result<Box<dyn AttachPoint>, Error> {
        let (disk, options) = target(ground.entry, service);
        let device = NvmeDevice::resume(descriptor, disk, options);
        Ok(Box::new(device.map_err(|error| ground.failed(error))?))
    }
}

/// What the target below shows and how it behaves.
fn target(entry: &Entry, service: Arc<dyn BlockService>) -> (Disk, TargetOptions) {
    let disk = Disk { service, read_only: entry.read_only, block_size: 4096 };
    (disk, TargetOptions { observer: observer("nvme"), ..TargetOptions::default() })
}

/// The name of the subsystem that this entry's store is served as.
fn name(entry: &Entry) -> String {
    format!("nqn.2014-08.org.nvmexpress:uuid:{}", entry.uuid)
}
