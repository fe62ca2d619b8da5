//! The file system on the volume, mounted; or an overlay over a directory.

use super::kind::{Gives, Ground, Kind, Point, takes_root};
use crate::error::{DaemonError, Error};
use crate::life::state::{Entry, StateDirectory};
use coulter::service::{BLOCK_SIZE, BlockService};
use coulter_attach::point::AttachPoint;
use coulter_fuse::files::{FilesMount, MountError, MountOptions};
use coulter_system::mounts::Mount;
use coulter_system::{dead_mounts, mounts};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Its kind: a directory with files.
#[derive(Debug)]
pub struct DirectoryKind {
    word: &'static str,
}

impl DirectoryKind {
    /// See [`crate::life::state::Via::FS`].
    pub const FS: DirectoryKind = DirectoryKind { word: "fs" };
    /// See [`crate::life::state::Via::OVERLAY`].
    pub const OVERLAY: DirectoryKind = DirectoryKind { word: "overlay" };
}

impl Kind for DirectoryKind {
    fn word(&self) -> &'static str {
        self.word
    }

    fn gives(&self) -> Gives {
        Gives::Directory
    }

    fn check(&self) -> Result<(), String> {
        takes_root()
    }

    // That it was unmounted ends its daemon, unless that was done lazily and files of it are
    // open. Another file system may be mounted on the same directory.
    fn is_still_there(&self, _state: &StateDirectory, entry: &Entry, _directory: &Path) -> bool {
        let is_it = |it: &Mount| it.kind == "fuse.coulter" && it.source == entry.store;
        mounts::mounts().map_or(true, |all| all.iter().any(is_it))
    }

    fn has_its_device(&self, _state: &StateDirectory, entry: &Entry, directory: &Path) -> bool {
        is_mounted(entry, directory)
    }

    fn covers_a_directory(&self, entry: &Entry) -> bool {
        entry.device.as_deref().is_some_and(|directory| is_mounted(entry, Path::new(directory)))
    }

    fn remove_waiting(&self, entry: &Entry) -> Result<(), String> {
        // What is left of it answers with errors; programs in it see it go.
        let directory = entry.device.as_deref().map(Path::new);
        match directory.filter(|directory| is_mounted(entry, directory)) {
            Some(directory) => dead_mounts::take_away(directory)
                .map_err(|error| format!("cannot unmount {}: {error}", directory.display())),
            None => Ok(()),
        }
    }
}

/// One that is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsPoint {
    /// Where.
    pub directory: PathBuf,
    /// How.
    pub options: FsOptions,
    /// The command line that mounts it like this.
    pub again: String,
}

/// How a file system is mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsOptions {
    /// Gather writes in the page cache.
    pub writes_back: bool,
    /// Memory for names, attributes and places, in bytes; `None` for the default.
    pub cache_size: Option<u64>,
    /// No set-uid programs, devices, programs.
    pub no_suid: bool,
    /// See above.
    pub no_dev: bool,
    /// See above.
    pub no_exec: bool,
    /// It is an overlay over the directory, and how that works.
    pub overlay: Option<coulter_overlay::Options>,
}

impl Point for FsPoint {
    fn kind(&self) -> &'static dyn Kind {
        match self.options.overlay {
            None => &DirectoryKind::FS,
            Some(_) => &DirectoryKind::OVERLAY,
        }
    }

    fn again(&self) -> Option<String> {
        Some(self.again.clone())
    }

    fn start(
        &self,
        ground: &Ground<'_>,
        service: Arc<dyn BlockService>,
    ) -> Result<Box<dyn AttachPoint>, Error> {
        let (directory, options) = (&self.directory, self.mount_options(ground.entry));
        let mount = match self.options.overlay {
            None => FilesMount::mount(&*service, directory, &options),
            Some(overlay) => FilesMount::mount_overlay(&*service, directory, &options, overlay),
        };
        let mount = mount.map_err(|error| match error {
            MountError::NoFileSystem(corrupt) => {
                let store = ground.entry.store.clone();
                DaemonError::NoFiles { store, reason: corrupt.to_string() }.into()
            }
            error => ground.failed(error),
        })?;
        Ok(Box::new(mount))
    }
}

impl FsPoint {
    fn mount_options(&self, entry: &Entry) -> MountOptions {
        let options = &self.options;
        MountOptions {
            read_only: entry.read_only,
            writes_back: options.writes_back,
            no_suid: options.no_suid,
            no_dev: options.no_dev,
            no_exec: options.no_exec,
            cache_blocks: options.cache_size.map(|size| (size / BLOCK_SIZE) as usize),
            source: entry.store.display().to_string(),
        }
    }
}

/// Whether the file system of this entry's store is what is mounted there.
pub fn is_mounted(entry: &Entry, directory: &Path) -> bool {
    let mount = mounts::mount_at(directory).ok().flatten();
    mount.is_some_and(|mount| mount.kind == "fuse.coulter" && mount.source == entry.store)
}
