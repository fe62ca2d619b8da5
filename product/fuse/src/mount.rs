//! The mount of the one file: mounting and unmounting.

use super::node::Nodes;
use super::pump::Pump;
use coulter::service::BlockService;
use coulter_attach::hosting::{self, Hosted, ThreadShape};
use coulter_attach::point::{AttachPoint, Detach, DetachError};
use coulter_system::holders;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The name of the file in the mount.
pub const FILE_NAME: &str = "volume";
/// The type of the mount, as `/proc/self/mountinfo` shows it.
pub const FILE_SYSTEM_TYPE: &str = "fuse.coulter";

/// Name of the pump's thread, if the pump cannot run on the service's thread.
const THREAD: ThreadShape = ThreadShape { name: "fuse", stack_size: 512 << 10 };
/// How long a mount may stay busy after its last use; the kernel releases it a little later.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// How a file is mounted.
#[derive(Clone, Debug, Default)]
pub struct FuseOptions {
    /// Refuse writes whatever the service allows.
    pub read_only: bool,
    /// The source in the mount table, usually the path of the store.
    pub source: String,
}

/// Why a file could not be mounted.
#[derive(Debug)]
#[non_exhaustive]
pub enum FuseError {
    /// Mounting takes privileges that this process does not have.
    NeedsRoot,
    /// The kernel has no FUSE.
    NoFuse(io::Error),
    /// The directory cannot be mounted on.
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The system refused something else.
    System {
        /// Which step.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl fmt::Display for FuseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FuseError::NeedsRoot => {
                write!(
                    f,
                    "mounting takes root (CAP_SYS_ADMIN); serve over NBD instead, or use sudo"
                )
            }
            FuseError::NoFuse(error) => {
                write!(f, "cannot open /dev/fuse: {error}; is the module loaded (modprobe fuse)?")
            }
            FuseError::Directory { path, source } => {
                write!(f, "cannot mount on {}: {source}", path.display())
            }
            FuseError::System { step, source } => write!(f, "cannot {step}: {source}"),
        }
    }
}

impl std::error::Error for FuseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            FuseError::NeedsRoot => None,
            FuseError::NoFuse(source)
            | FuseError::Directory { source, .. }
            | FuseError::System { source, .. } => Some(source),
        }
    }
}

/// A mounted file. Dropping it unmounts it, used or not.
pub struct FuseFile {
    mount_point: PathBuf,
    /// Whether the directory was made for the mount, and goes with it.
    made_directory: bool,
    /// Whether the mount is still ours to undo.
    mounted: bool,
    stop: OwnedFd,
    /// The pump's descriptor again; it keeps the mount alive during a handover.
    device: Option<OwnedFd>,
    /// The pump, until it is over.
    pump: Option<Hosted>,
}

impl FuseFile {
    /// Mounts `service` as the file [`FILE_NAME`] in `directory`, and makes the directory if it is
    /// missing.
    pub fn mount(
        service: &dyn BlockService,
        directory: &Path,
        options: &FuseOptions,
    ) -> Result<FuseFile, FuseError> {
        require_root()?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())
            .map_err(|error| FuseError::NoFuse(error.into()))?;
        let (mount_point, made_directory) = prepare(directory)
            .map_err(|source| FuseError::Directory { path: directory.to_owned(), source })?;
        let read_only = options.read_only || service.read_only();
        if let Err(source) = mount(&device, &mount_point, read_only, &options.source) {
            remove_made(&mount_point, made_directory);
            return Err(FuseError::Directory { path: mount_point, source });
        }
        let mounted = Mounted { mount_point, made_directory };
        FuseFile::serve(service, device, mounted, read_only)
    }

    /// Continues a mount that was handed over. `device` is the descriptor from
    /// [`AttachPoint::hand_over`]; `directory` is the mount point, which was made for it. The
    /// service has the same size and content as before.
    ///
    /// # Errors When no thread can be started; the mount is then gone.
    pub fn resume(
        service: &dyn BlockService,
        device: OwnedFd,
        directory: &Path,
        options: &FuseOptions,
    ) -> Result<FuseFile, FuseError> {
        let read_only = options.read_only || service.read_only();
        let mounted = Mounted { mount_point: directory.to_owned(), made_directory: true };
        FuseFile::serve(service, device, mounted, read_only)
    }

    fn serve(
        service: &dyn BlockService,
        device: OwnedFd,
        mounted: Mounted,
        read_only: bool,
    ) -> Result<FuseFile, FuseError> {
        let Mounted { mount_point, made_directory } = mounted;
        let system = |step| move |error: Errno| FuseError::System { step, source: error.into() };
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = made.map_err(system("make an event descriptor"))?;
        let duplicate = |descriptor: &OwnedFd| {
            rustix::io::fcntl_dupfd_cloexec(descriptor, 0).map_err(system("duplicate a descriptor"))
        };
        let (stop_for_pump, kept) = (duplicate(&stop)?, duplicate(&device)?);
        let nodes = Nodes::new(service.size(), read_only);
        let device_kept = Some(kept);
        let mut file = FuseFile {
            mount_point,
            made_directory,
            mounted: true,
            stop,
            device: device_kept,
            pump: None,
        };
        // On failure the drop of `file` unmounts.
        let hosted = hosting::host(service, &THREAD, move |session, place| {
            Pump::new(device, stop_for_pump, session, place, nodes).run();
        });
        let failed = |source| FuseError::System { step: "start a thread", source };
        file.pump = Some(hosted.map_err(failed)?);
        Ok(file)
    }

    /// The file's path.
    pub fn path(&self) -> PathBuf {
        self.mount_point.join(FILE_NAME)
    }

    /// The directory that it is mounted on.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    fn unmount(&self, how: Detach) -> Result<(), DetachError> {
        let flags = match how {
            Detach::IfIdle => UnmountFlags::empty(),
            Detach::Always => UnmountFlags::DETACH,
        };
        let limit = Instant::now() + BUSY_PATIENCE;
        loop {
            let mut holders = match how {
                // The kernel speaks for this mount namespace only.
                Detach::IfIdle => holders::openers_below(&self.mount_point),
                Detach::Always => Vec::new(),
            };
            if holders.is_empty() {
                match rustix::mount::unmount(&self.mount_point, flags) {
                    Ok(()) => return Ok(()),
                    // Somebody else unmounted it already.
                    Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
                    Err(Errno::BUSY) => holders = holders::of_directory(&self.mount_point),
                    Err(error) => {
                        let target = self.mount_point.display().to_string();
                        let source = error.into();
                        return Err(DetachError::System { step: "unmount", target, source });
                    }
                }
            }
            if Instant::now() >= limit {
                return Err(DetachError::Busy { address: self.address(), holders });
            }
            std::thread::sleep(BUSY_PAUSE);
        }
    }
}

impl AttachPoint for FuseFile {
    fn kind(&self) -> &'static str {
        "file"
    }

    fn address(&self) -> String {
        self.path().display().to_string()
    }

    fn detach(&mut self, how: Detach) -> Result<(), DetachError> {
        if !self.mounted {
            return Ok(());
        }
        self.unmount(how)?;
        self.mounted = false;
        self.device = None;
        // The file system may live on: where it was open after a lazy unmount, and in mount namespaces
        // that have a copy of the mount. The pump's end closes the device, which ends it everywhere.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(pump) = self.pump.take() {
            pump.await_end();
        }
        remove_made(&self.mount_point, self.made_directory);
        Ok(())
    }

    fn hand_over(&mut self) -> io::Result<OwnedFd> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let device = self.device.take().filter(|_| self.mounted).ok_or_else(gone)?;
        // Whether the pump ends is all that matters, and an eventfd takes one write.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(pump) = self.pump.take() {
            pump.await_end();
        }
        self.mounted = false;
        Ok(device)
    }
}

/// A mount that is there already.
struct Mounted {
    mount_point: PathBuf,
    made_directory: bool,
}

impl Drop for FuseFile {
    fn drop(&mut self) {
        // A destructor cannot report an error.
        let _ = self.detach(Detach::Always);
    }
}

/// Fails unless this process may mount.
pub fn require_root() -> Result<(), FuseError> {
    let capabilities = rustix::thread::capabilities(None);
    let admin = rustix::thread::CapabilitySet::SYS_ADMIN;
    match capabilities {
        Ok(sets) if sets.effective.contains(admin) => Ok(()),
        _ => Err(FuseError::NeedsRoot),
    }
}

/// The canonical path of the directory, and whether it had to be made.
fn prepare(directory: &Path) -> io::Result<(PathBuf, bool)> {
    let made = match std::fs::create_dir(directory) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(error),
    };
    let canonical = directory.canonicalize()?;
    if !made && std::fs::read_dir(&canonical)?.next().is_some() {
        // A mount would hide what is there, and a second one over a first would hide that.
        return Err(io::ErrorKind::DirectoryNotEmpty.into());
    }
    Ok((canonical, made))
}

fn remove_made(mount_point: &Path, made: bool) {
    if made {
        let _ = std::fs::remove_dir(mount_point);
    }
}

fn mount(device: &OwnedFd, target: &Path, read_only: bool, source: &str) -> io::Result<()> {
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    if read_only {
        flags |= MountFlags::RDONLY;
    }
    let descriptor = device.as_raw_fd();
    let data = format!("fd={descriptor},rootmode=40000,user_id=0,group_id=0,default_permissions");
    let data = CString::new(data)?;
    let source = if source.is_empty() { "coulter" } else { source };
    rustix::mount::mount(source, target, FILE_SYSTEM_TYPE, flags, data.as_c_str())?;
    Ok(())
}
