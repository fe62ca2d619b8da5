//! A block device of the kernel's NBD client, over a server on a socket in the state directory.

use super::kind::{Afterlife, Gives, Ground, Kind, Point};
use super::nbd_server::{shown, socket_in_state};
use crate::error::Error;
use crate::life::state::{Entry, StateDirectory};
use coulter::service::BlockService;
use coulter_attach::point::AttachPoint;
use coulter_block::nbd_device::{self, NbdDevice, NbdDeviceOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Its kind, and the one there is of it.
#[derive(Debug)]
pub struct Nbd;

impl Kind for Nbd {
    fn word(&self) -> &'static str {
        "nbd"
    }

    fn gives(&self) -> Gives {
        Gives::Device
    }

    fn afterlife(&self) -> Afterlife {
        Afterlife::Waits
    }

    fn plain(&self) -> Option<Box<dyn Point>> {
        Some(Box::new(Nbd))
    }

    fn is_automatic(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), String> {
        nbd_device::check().map_err(|error| error.to_string())
    }

    fn has_its_device(&self, _state: &StateDirectory, entry: &Entry, device: &Path) -> bool {
        nbd_device::is_of(device, &identity(entry))
    }

    fn waiting_device(&self, entry: &Entry) -> Option<PathBuf> {
        nbd_device::find(&identity(entry)).map(nbd_device::device_path)
    }

    fn remove_waiting(&self, entry: &Entry) -> Result<(), String> {
        match nbd_device::find(&identity(entry)) {
            Some(index) => nbd_device::remove(index).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }
}

impl Point for Nbd {
    fn kind(&self) -> &'static dyn Kind {
        &Nbd
    }

    fn start(
        &self,
        ground: &Ground<'_>,
        service: Arc<dyn BlockService>,
    ) -> Result<Box<dyn AttachPoint>, Error> {
        assert!(
            !self.outlives(ground.entry.acknowledge),
            "it would go on without what was acknowledged from memory"
        );
        let identity = identity(ground.entry);
        let (export, server) = shown(ground.entry, service);
        let mut options = NbdDeviceOptions::new(export, socket_in_state(ground), identity.clone());
        options.server = server;
        let device = match nbd_device::find(&identity) {
            Some(index) if ground.recover => NbdDevice::recover(index, options),
            Some(index) => return Err(ground.device_waits(&nbd_device::device_path(index))),
            None => NbdDevice::attach(options),
        };
        Ok(Box::new(device.map_err(|error| ground.failed(error))?))
    }
}

/// What the kernel keeps with an NBD device of this entry's store.
fn identity(entry: &Entry) -> String {
    let (device, inode) = entry.store_identity.map_or((0, 0), |file| (file.device, file.inode));
    format!("coulter:{}:{device:x}:{inode:x}", entry.uuid)
}
