//! About what one verb does for volumes, file systems and overlays.

use coulter_terminal::{self as terminal, Report, fault, usage};
use std::path::{Path, PathBuf};

/// About what one verb does for volumes, file systems and overlays.
#[derive(Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what its name says of its variant")]
pub enum DoorError {
    /// A volume was named that is mounted on more than one directory.
    MountedOften { name: String, directories: Vec<PathBuf> },
    /// A volume was named that is mounted nowhere.
    NotMounted { name: String },
    /// An option that would not be true of the mount.
    OptionRefused { option: String, reason: &'static str },
    /// The volume holds a file system of Coulter's own.
    HoldsFiles { store: PathBuf },
    /// A volume of Coulter files was to be mounted by options that only a block device has.
    FilesTakeNo { store: PathBuf, option: &'static str },
    /// The store of an overlay was to be mounted.
    OverlayStore { store: PathBuf },
    /// `grow` of what is mounted as files.
    GrowMounted { path: PathBuf, directory: PathBuf, is_overlay: bool },
    /// `grow` of the store of an overlay.
    GrowOverlay { path: PathBuf },
    /// `scrub` of a store that no daemon serves.
    ScrubDetached { path: PathBuf },
    /// `fs check` of a volume without a file system of Coulter's own.
    NoFiles { path: PathBuf },
    /// NVMe was to be served on a unix socket.
    NvmeOverUnix { address: String },
}

impl DoorError {
    /// What, why, and what to do.
    pub fn report(&self) -> Report {
        match self {
            DoorError::MountedOften { name, directories } => {
                let listed: Vec<_> = directories.iter().map(|it| terminal::path(it)).collect();
                usage(format!("cannot tell where to unmount '{name}'"))
                    .why(format!("it is mounted on {}", listed.join(", ")))
                    .help("name the directory")
            }
            DoorError::NotMounted { name } => fault(format!("cannot unmount '{name}'"))
                .why("it is attached, and mounted nowhere")
                .help(format!("`coulter detach {name}` ends its daemon")),
            DoorError::OptionRefused { option, reason } => {
                usage(format!("cannot mount with the option {option}")).why(*reason).help(
                    "leave it away; the options are ro, nosuid, nodev, noexec, acl, user_xattr",
                )
            }
            DoorError::HoldsFiles { store } => cannot("mount the device of", store)
                .why("it holds a Coulter file system, which needs no block device")
                .help("detach it, and mount it again"),
            DoorError::FilesTakeNo { store, option } => {
                usage(format!("cannot mount {} with {option}", store.display()))
                    .why("it holds a Coulter file system, and the option is for a block device")
                    .help(format!("leave {option} away"))
            }
            DoorError::OverlayStore { store } => cannot("mount", store)
                .why("it is the store of an overlay, with parts of files of another directory")
                .help("`coulter overlay DIR` mounts it over its directory"),
            DoorError::GrowMounted { path, directory, is_overlay } => {
                grow_mounted(path, &terminal::word(directory), *is_overlay)
            }
            DoorError::GrowOverlay { path } => cannot("grow", path)
                .why("it is the store of an overlay, which keeps its size")
                .help(
                    "mount the overlay and run `coulter overlay detach DIR`, then `coulter overlay \
                     DIR` with a larger --store-size",
                ),
            DoorError::ScrubDetached { path } => {
                let word = terminal::word(path);
                cannot("scrub", path)
                    .why("it is not attached, and a scrub is the work of a volume's daemon")
                    .help(format!(
                        "`coulter check --data {word}` reads all of it now; or first run `coulter \
                         attach {word}`"
                    ))
            }
            DoorError::NoFiles { path } => no_files(path),
            DoorError::NvmeOverUnix { address } => usage(format!("cannot serve NVMe at {address}"))
                .why("NVMe is spoken over TCP only")
                .help("name tcp:ADDRESS:PORT, such as tcp:127.0.0.1:4420; or serve it by --nbd"),
        }
    }
}

fn cannot(action: &str, path: &Path) -> Report {
    fault(format!("cannot {action} {}", path.display()))
}

fn no_files(path: &Path) -> Report {
    cannot("look at", path).why("its volume holds no Coulter file system").help(format!(
        "`coulter check {}` checks the store; tools such as fsck check another file system, on the \
         device of `coulter attach`",
        terminal::word(path)
    ))
}

fn grow_mounted(path: &Path, directory: &str, is_overlay: bool) -> Report {
    let report = cannot("grow", path);
    if is_overlay {
        return report.why(format!("it is the store of the overlay over {directory}")).help(
            format!(
                "run `coulter overlay detach {directory}`, and then `coulter overlay {directory}` \
                 with a larger --store-size"
            ),
        );
    }
    let store = terminal::word(path);
    report.why(format!("its file system is mounted on {directory}, and grows unmounted")).help(
        format!(
            "run `coulter umount {directory}`, then this command, and `coulter fs mount {store} \
             {directory}` again"
        ),
    )
}
