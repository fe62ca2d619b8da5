//! About file systems on volumes.

use crate::dead_loops::DeadLoop;
use coulter_terminal::{self as terminal, Report, fault, usage};
use std::path::{Path, PathBuf};

/// About file systems on volumes.
#[derive(Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what its name says of its variant")]
pub enum MountError {
    /// Nothing, or nothing of ours, is mounted there.
    NotOurMount { directory: PathBuf, source: Option<PathBuf> },
    /// The directory to mount on is no directory.
    MountPointUnfit { directory: PathBuf, reason: &'static str },
    /// Something is mounted on it.
    MountPointTaken { directory: PathBuf },
    /// Processes use files of the mounted file system.
    MountBusy { directory: PathBuf, holders: Vec<String> },
    /// There is no store, and none was asked for.
    NothingToMount {
        /// Where it should be.
        store: PathBuf,
    },
    /// The volume holds no file system, and none was asked for.
    NoFileSystem { store: PathBuf, device: String },
    /// `--mkfs` on a volume that holds something else than a file system.
    VolumeHoldsData { store: PathBuf, device: String, what: &'static str },
    /// A volume with data on it, but no file system that is known.
    VolumeHoldsSomething { store: PathBuf, device: String, offset: u64 },
    /// `--mkfs` on a volume that is open for reading only.
    ReadOnlyVolume { store: PathBuf },
    /// `--read-only` of a store that would have to be made.
    ReadOnlyNewStore { store: PathBuf },
    /// `--read-only` of a store that is attached for writing.
    AttachedForWriting { name: String },
    /// No `--read-only` of a store that is attached to be read only, or has failed.
    AttachedForReading { name: String, failure: Option<String> },
    /// A file system that could not be mounted from a volume that is only read; `option` does without
    /// its journal.
    ReadOnlyRefused { store: PathBuf, cause: Box<Report>, option: &'static str },
    /// `mkfs` gave up because of other devices of the machine, which lie on dead volumes.
    DeadLoopDevices { device: PathBuf, cause: Box<Report>, dead: Vec<DeadLoop> },
    /// The volume is reached over a socket, so that nothing can be mounted from it.
    NotABlockDevice { name: String, device: String },
}

impl MountError {
    /// What, why, and what to do.
    pub fn report(&self) -> Report {
        match self {
            MountError::NotOurMount { directory, source } => {
                not_ours(directory, source.as_deref())
            }
            MountError::MountPointUnfit { directory, reason } => {
                usage(format!("cannot mount on {}", directory.display()))
                    .why(*reason)
                    .help("name a directory that nothing is mounted on")
            }
            MountError::MountPointTaken { directory } => {
                let path = terminal::word(directory);
                usage(format!("cannot mount on {}", directory.display()))
                    .why("something is mounted there already")
                    .help(format!(
                        "name another directory; `coulter umount {path}` takes away a volume's file \
                         system, a dead one too"
                    ))
            }
            MountError::MountBusy { directory, holders } => {
                let held = if holders.is_empty() {
                    "something uses it that is not to be seen from here".to_owned()
                } else {
                    holders.join("; ")
                };
                fault(format!("{} is busy", directory.display()))
                    .why(held)
                    .help("end what uses it, or leave the directory, and try again")
            }
            MountError::NothingToMount { store } => {
                fault(format!("cannot mount {}", store.display()))
                    .why("there is no such file or disk")
                    .help(
                        "check the path; or, to make a new and empty store, add --create --size 10G \
                         --mkfs ext4",
                    )
            }
            MountError::NoFileSystem { store, device } => {
                fault(format!("cannot mount {}", store.display()))
                    .why(format!("its volume at {device} holds no file system"))
                    .help("add --mkfs ext4, --mkfs xfs or --mkfs btrfs to make one")
            }
            MountError::VolumeHoldsData { store, device, what } => {
                fault(format!("cannot mount {}", store.display()))
                    .why(format!("its volume at {device} holds {what}"))
                    .help("attach it and use the device instead")
            }
            MountError::VolumeHoldsSomething { store, device, offset } => fault(format!(
                "cannot mount {}",
                store.display()
            ))
            .why(format!("its volume at {device} holds data of an unknown kind (at byte {offset})"))
            .help(format!(
                "use the device of `coulter attach {}`: mount that if it is a file system; if what it \
                 holds may be destroyed, `blkdiscard` makes it blank first",
                terminal::word(store)
            )),
            MountError::ReadOnlyVolume { store } => {
                usage(format!("cannot make a file system in {}", store.display()))
                    .why("its volume is open for reading only")
                    .help("leave --read-only away; if it was attached so, detach it first")
            }
            MountError::ReadOnlyNewStore { store } => {
                usage(format!("cannot mount {}", store.display()))
                    .why("there is no store yet, and a new one holds nothing that could be read")
                    .help("leave --read-only away, or name a store that holds a file system")
            }
            MountError::AttachedForWriting { name } => {
                usage(format!("cannot mount '{name}' by --read-only"))
                    .why("it is attached for writing")
                    .help(format!(
                        "first run `coulter detach {name}`; or mount it with `--options ro`, which lets \
                         the volume stay writable, and the file system write its journal out"
                    ))
            }
            MountError::AttachedForReading { name, failure: None } => {
                usage(format!("cannot mount '{name}' for writing"))
                    .why("it is attached to be read only")
                    .help(format!("add --read-only, or first run `coulter detach {name}`"))
            }
            MountError::AttachedForReading { name, failure: Some(failure) } => {
                fault(format!("cannot mount '{name}' for writing"))
                    .why(format!("it has failed, {failure}"))
                    .help(format!("mend that, and run `coulter detach {name}` first"))
            }
            MountError::ReadOnlyRefused { store, cause, option } => Report {
                help: Some(format!(
                    "if it was not unmounted in order, as before a crash, its journal has to be written \
                     out: mount {} once without --read-only; or add `--options {option}`, which shows \
                     it without what only the journal holds",
                    store.display()
                )),
                ..Report::clone(cause)
            },
            MountError::DeadLoopDevices { device, cause, dead } => {
                let listed = dead.iter().map(DeadLoop::to_string).collect::<Vec<_>>().join(", ");
                let remedy = dead.iter().map(DeadLoop::remedy).collect::<Vec<_>>().join("; ");
                fault(format!("cannot make a file system on {}", device.display()))
                    .why(format!(
                        "{cause}. It looks at every mounted loop device, and these lie on volumes whose \
                         daemon has ended: {listed}"
                    ))
                    .help(format!("take them away and try again: {remedy}"))
            }
            MountError::NotABlockDevice { name, device } => fault(format!("cannot mount '{name}'"))
                .why(format!("it is served at {device}, which is no block device"))
                .help(format!("run `coulter detach {name}`, then mount it as root")),
        }
    }
}

fn not_ours(directory: &Path, source: Option<&Path>) -> Report {
    let why = match source {
        Some(source) => format!("{} is mounted there", source.display()),
        None if std::fs::symlink_metadata(directory).is_ok() => {
            "nothing is mounted there".to_owned()
        }
        None => {
            "nothing is mounted there: there is no such file or directory, and no volume of that \
                 name is mounted"
                .to_owned()
        }
    };
    let root = match rustix::process::geteuid().is_root() {
        true => "",
        false => "; what root has mounted takes sudo",
    };
    fault(format!("{} is not a mount point of a volume", directory.display()))
        .why(why)
        .help(format!("`coulter list` shows the volumes, `findmnt` what is mounted{root}"))
}
