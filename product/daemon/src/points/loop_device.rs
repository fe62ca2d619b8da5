//! A loop device over a FUSE file.

use super::kind::{Gives, Ground, Kind, Point, takes_root};
use crate::error::{DaemonError, Error};
use crate::life::state::{Entry, StateDirectory};
use coulter::service::BlockService;
use coulter_attach::point::AttachPoint;
use coulter_block::loop_device::{self, LoopDevice, LoopOptions};
use coulter_fuse::FILE_NAME;
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Its kind, and the one there is of it.
#[derive(Debug)]
pub struct Loop;

impl Kind for Loop {
    fn word(&self) -> &'static str {
        "loop"
    }

    fn gives(&self) -> Gives {
        Gives::Device
    }

    fn plain(&self) -> Option<Box<dyn Point>> {
        Some(Box::new(Loop))
    }

    fn is_automatic(&self) -> bool {
        true
    }

    fn needs_root(&self) -> Option<&'static str> {
        Some("a loop device")
    }

    fn check(&self) -> Result<(), String> {
        takes_root()?;
        for (path, module) in [("/dev/fuse", "fuse"), ("/dev/loop-control", "loop")] {
            let opened = OpenOptions::new().read(true).write(true).open(path);
            opened.map_err(|error| format!("cannot open {path}: {error} (modprobe {module})"))?;
        }
        Ok(())
    }

    fn has_its_device(&self, state: &StateDirectory, entry: &Entry, device: &Path) -> bool {
        loop_device::lies_over(device, &mount(state, &entry.name).join(FILE_NAME))
    }

    fn is_still_there(&self, state: &StateDirectory, entry: &Entry, device: &Path) -> bool {
        // With the mount taken away, which does no harm, the path begins behind it.
        let expected = [mount(state, &entry.name).join(FILE_NAME), Path::new("/").join(FILE_NAME)];
        loop_device::path_below(device).is_some_and(|below| expected.contains(&below))
    }

    fn release_leftovers(&self, state: &StateDirectory, name: &str) -> Result<Vec<PathBuf>, Error> {
        release_leftovers(&mount(state, name))
    }
}

impl Point for Loop {
    fn kind(&self) -> &'static dyn Kind {
        &Loop
    }

    fn start(
        &self,
        ground: &Ground<'_>,
        service: Arc<dyn BlockService>,
    ) -> Result<Box<dyn AttachPoint>, Error> {
        let directory = mount(ground.state, &ground.entry.name);
        let device = LoopDevice::attach(&*service, &directory, &options(ground.entry));
        Ok(Box::new(device.map_err(|error| ground.failed(error))?))
    }

    fn resume(
        &self,
        ground: &Ground<'_>,
        service: Arc<dyn BlockService>,
        descriptor: OwnedFd,
    ) -> Result<Box<dyn AttachPoint>, Error> {
        let Ground { state, entry, .. } = *ground;
        let path = Path::new(entry.device.as_deref().unwrap_or_default());
        let directory = mount(state, &entry.name);
        let device = LoopDevice::resume(&*service, descriptor, path, &directory, &options(entry));
        let device = device.map_err(|error| ground.failed(error))?;
        if let Err(error) = device.take_over_size(service.size()) {
            log::error!(error:%; "hosts do not see the size of the volume");
        }
        Ok(Box::new(device))
    }
}

/// Takes away the FUSE mount at `directory` and the loop device over it, whose process has ended.
/// Gives back the devices that somebody still uses; they go when their users do.
///
/// # Errors
/// When the system refuses a step.
pub fn release_leftovers(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let stale = loop_device::cleanup_stale(Some(directory)).map_err(|error| {
        DaemonError::Attach { store: directory.to_owned(), reason: error.to_string() }
    })?;
    // The daemon may have died before it mounted anything on the directory that it had made.
    let _ = std::fs::remove_dir(directory);
    Ok(stale.into_iter().flat_map(|stale| stale.lingering).collect())
}

/// Where the FUSE file of a volume lies.
fn mount(state: &StateDirectory, name: &str) -> PathBuf {
    state.file(name, "mount")
}

fn options(entry: &Entry) -> LoopOptions {
    LoopOptions {
        read_only: entry.read_only,
        source: entry.store.display().to_string(),
        partitions: true,
    }
}
