//! The first turns, on a device that is held back to what a cloud volume is allowed: there, and not
//! on a disk that is quick at random writes by itself, is where a log wins.
//!
//! Both sides get the same device with the same limits and go the same way to it. They live in
//! this process: what is measured takes little of the machine.

use super::figures::{HeldBack, Speed};
use super::fio::{Fio, Work};
use super::plan::{Plan, Which, announce, failed};
use super::scratch::{Scratch, Undo};
use crate::error::LabError;
use coulter::service::BlockService;
use coulter::{OpenOptions, Volume};
use coulter_attach::point::{AttachPoint, Detach};
use coulter_bench::BareService;
use coulter_block::loop_device::{LoopDevice, LoopOptions};
use coulter_cli::file_system;
use coulter_cli::store;
use coulter_device::Device;
use coulter_device::wrap::{SlowDevice, SlowModel};
use std::path::{Path, PathBuf};

/// A general-purpose volume of the large clouds.
const MODEL: SlowModel = SlowModel::CLOUD_VOLUME;

/// Turns of each side. The device gives all of them the same; what shares the machine does not.
pub(crate) const TURNS: u32 = 4;

/// Says what comes.
pub(crate) fn announce_it() {
    announce(
        "on a device that is held back, as volumes of clouds are: 4 KiB random writes, in turns",
    );
}

/// What is at `path`, held back.
///
/// # Errors
/// When it cannot be opened.
pub(crate) fn device(path: &Path) -> Result<Box<dyn Device>, LabError> {
    Ok(Box::new(SlowDevice::new(store::open_device(path, false)?, MODEL)))
}

/// The volume of the store at `path`, held back.
///
/// # Errors
/// When it cannot be opened.
pub(crate) fn volume(path: &Path) -> Result<Volume, LabError> {
    let volume = Volume::open(device(path)?, OpenOptions::default());
    volume.map_err(|error| failed("opening the store again", error.to_string()))
}

/// The turns on ext4, both file systems on a loop device over FUSE. The store and the file
/// hold a file system each, whose data was written once.
///
/// # Errors
/// Whatever one of its steps cannot do.
pub(crate) fn on_loop(
    plan: &Plan,
    scratch: &mut Scratch,
    fio: &Fio,
    store: &Path,
    plain: &Path,
) -> Result<HeldBack, LabError> {
    announce_it();
    let volume = volume(store)?;
    let bare = BareService::new(device(plain)?)
        .map_err(|source| LabError::io("wait for", plain, source))?;
    let coulter = Side::new(scratch, "coulter-held-back", &volume)?;
    let plain = Side::new(scratch, "plain-held-back", &bare)?;
    let speed = plan.take_turns(TURNS, |which| {
        let side = match which {
            Which::Plain => &plain,
            Which::Coulter => &coulter,
        };
        Ok(fio.run(&side.mount_point.join("data"), plan.size, Work::Random(plan.turn))?.write_iops)
    })?;
    plain.end()?;
    coulter.end()?;
    volume.close().map_err(|error| failed("closing the store again", error.to_string()))?;
    Ok(figures(speed))
}

/// What came of it.
pub(crate) fn figures(speed: Speed) -> HeldBack {
    HeldBack {
        operations_per_second: MODEL.operations_per_second.expect("the model has such a cap"),
        bytes_per_second: MODEL.bytes_per_second.expect("the model has such a cap"),
        latency_ms: MODEL.latency.as_secs_f64() * 1e3,
        speed,
    }
}

/// A file system on a loop device. Dropping it takes both away.
struct Side {
    mount_point: PathBuf,
    device: LoopDevice,
    is_mounted: bool,
}

impl Side {
    fn new(
        scratch: &mut Scratch,
        name: &str,
        service: &dyn BlockService,
    ) -> Result<Side, LabError> {
        let mount_point = scratch.make_directory(name)?;
        let below = scratch.path(&format!("{name}.file"));
        let device = LoopDevice::attach(service, &below, &LoopOptions::default())
            .map_err(|error| failed("attaching", error.to_string()))?;
        let mut side = Side { mount_point, device, is_mounted: false };
        file_system::mount("ext4", side.device.device(), &side.mount_point, "")?;
        side.is_mounted = true;
        scratch.note(Undo::Unmount(side.mount_point.clone()));
        Ok(side)
    }

    fn unmount(&mut self) -> Result<(), LabError> {
        if !std::mem::take(&mut self.is_mounted) {
            return Ok(());
        }
        Ok(file_system::unmount(&self.mount_point)?)
    }

    fn end(mut self) -> Result<(), LabError> {
        self.unmount()?;
        self.device.detach(Detach::IfIdle).map_err(|error| failed("detaching", error.to_string()))
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // The device goes with it, after this; what cannot be unmounted is the scratch's to tell.
        let _ = self.unmount();
    }
}
