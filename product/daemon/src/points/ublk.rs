//! A block device of the ublk driver.

use super::kind::{Afterlife, Gives, Ground, Kind, Point};
use crate::acknowledge::Acknowledge;
use crate::error::Error;
use crate::life::state::{Entry, StateDirectory};
use coulter::service::BlockService;
use coulter_attach::point::AttachPoint;
use coulter_block::ublk::{self, UblkDevice, UblkOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Its kind, and the one there is of it.
#[derive(Debug)]
pub struct Ublk;

impl Kind for Ublk {
    fn word(&self) -> &'static str {
        "ublk"
    }

    fn gives(&self) -> Gives {
        Gives::Device
    }

    fn afterlife(&self) -> Afterlife {
        Afterlife::WaitsIfAllowed
    }

    fn plain(&self) -> Option<Box<dyn Point>> {
        Some(Box::new(Ublk))
    }

    fn is_automatic(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), String> {
        ublk::check().map_err(|error| error.to_string())
    }

    fn has_its_device(&self, _state: &StateDirectory, entry: &Entry, device: &Path) -> bool {
        ublk::identity_of(device) == Some(identity(entry))
    }

    fn waiting_device(&self, entry: &Entry) -> Option<PathBuf> {
        let identity = identity(entry);
        let mut waiting = ublk::waiting().unwrap_or_default().into_iter();
        waiting.find(|waiting| waiting.identity == identity).map(|waiting| waiting.device)
    }

    fn remove_waiting(&self, entry: &Entry) -> Result<(), String> {
        let identity = identity(entry);
        let waiting = ublk::waiting().unwrap_or_default().into_iter();
        for waiting in waiting.filter(|waiting| waiting.identity == identity) {
            ublk::remove(waiting.id).map_err(|error| error.to_string())?;
        }
        // Without the driver there is none.
        if ublk::check().is_ok() {
            ublk::remove_remnants(identity).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

impl Point for Ublk {
    fn kind(&self) -> &'static dyn Kind {
        &Ublk
    }

    fn start(
        &self,
        ground: &Ground<'_>,
        service: Arc<dyn BlockService>,
    ) -> Result<Box<dyn AttachPoint>, Error> {
        let entry = ground.entry;
        let identity = identity(entry);
        let is_mortal = entry.acknowledge == Acknowledge::Buffered;
        let options = UblkOptions { read_only: entry.read_only, identity, copy: None, is_mortal };
        ublk::remove_remnants(identity).map_err(|error| ground.failed(error))?;
        let waiting = ublk::waiting().map_err(|error| ground.failed(error))?;
        let device = match waiting.into_iter().find(|waiting| waiting.identity == identity) {
            Some(waiting) if ground.recover => UblkDevice::recover(&*service, waiting.id, &options),
            Some(waiting) => return Err(ground.device_waits(&waiting.device)),
            None => UblkDevice::attach(&*service, &options),
        };
        let device = device.map_err(|error| ground.failed(error))?;
        log::info!(copy:? = device.copy(); "ublk device");
        Ok(Box::new(device))
    }
}

/// What the kernel keeps with a ublk device of this entry's store: a copy of it is another store.
fn identity(entry: &Entry) -> u64 {
    let digits: String = entry.uuid.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    let (device, inode) = entry.store_identity.map_or((0, 0), |file| (file.device, file.inode));
    let place =
        device.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ inode.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    u64::from_str_radix(&digits, 16).unwrap_or_default() ^ place
}
