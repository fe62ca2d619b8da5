//! About file systems on volumes.

use crate::dead_loops::DeadLoop;
use coulter_system::mounts;
use coulter_terminal::{self as terminal, Report, fault, usage};
use std::path::{Path, PathBuf};

coulter_terminal::reports! {
    /// About file systems on volumes.
    pub enum MountError {
        /// Nothing, or nothing of ours, is mounted there.
        NotOurMount { directory: PathBuf, source: Option<PathBuf> } =>
            by(not_ours(directory, source.as_deref()));
        /// The directory to mount on is no directory.
        MountPointUnfit { directory: PathBuf, reason: &'static str, help: String } =>
            fault("cannot mount on {}", directory.display())
            .why("{reason}")
            .help("{help}");
        /// Something is mounted on it.
        MountPointTaken { directory: PathBuf, kind: String, source: PathBuf, is_ours: bool } =>
            fault("cannot mount on {}", directory.display())
            .why("{kind} is mounted there already, from {}", source.display())
            .help("name another directory, or run `{} {}` first",
                if *is_ours { "coulter umount" } else { "umount" }, terminal::word(directory));
        /// Processes use files of the mounted file system.
        MountBusy { directory: PathBuf, holders: Vec<String> } =>
            fault("{} is busy", directory.display())
            .why("{}", match holders.is_empty() {
                true => "something uses it that is not to be seen from here".to_owned(),
                false => holders.join("; "),
            })
            .help("end what uses it, or leave the directory, and try again");
        /// There is no store, and none was asked for.
        NothingToMount { store: PathBuf } =>
            fault("cannot mount {}", store.display())
            .why("there is no such file or disk")
            .help("check the path; or, to make a new and empty store, add --create --size 10G \
                --mkfs ext4");
        /// The volume holds no file system, and none was asked for.
        NoFileSystem { store: PathBuf, device: String } =>
            fault("cannot mount {}", store.display())
            .why("its volume at {device} holds no file system")
            .help("add --mkfs ext4, --mkfs xfs or --mkfs btrfs to make one");
        /// `--mkfs` on a volume that holds something else than a file system.
        VolumeHoldsData { store: PathBuf, device: String, what: &'static str } =>
            fault("cannot mount {}", store.display())
            .why("its volume at {device} holds {what}")
            .help("attach it and use the device instead");
        /// A volume with data on it, but no file system that is known.
        VolumeHoldsSomething { store: PathBuf, device: String, offset: u64 } =>
            fault("cannot mount {}", store.display())
            .why("its volume at {device} holds data of an unknown kind (at byte {offset})")
            .help("use the device of `coulter attach {}`: mount that if it is a file system; if \
                what it holds may be destroyed, `blkdiscard` makes it blank first",
                terminal::word(store));
        /// `--mkfs` on a volume that is open for reading only.
        ReadOnlyVolume { store: PathBuf } =>
            usage("cannot make a file system in {}", store.display())
            .why("its volume is open for reading only")
            .help("leave --read-only away; if it was attached so, detach it first");
        /// `--read-only` of a store that would have to be made.
        ReadOnlyNewStore { store: PathBuf } =>
            usage("cannot mount {}", store.display())
            .why("there is no store yet, and a new one holds nothing that could be read")
            .help("leave --read-only away, or name a store that holds a file system");
        /// `--read-only` of a store that is attached for writing.
        AttachedForWriting { name: String } =>
            usage("cannot mount '{name}' by --read-only")
            .why("it is attached for writing")
            .help("first run `coulter detach {name}`; or mount it with `--options ro`, which lets \
                the volume stay writable, and the file system write its journal out");
        /// No `--read-only` of a store that is attached to be read only, or has failed.
        AttachedForReading { name: String, failure: Option<String> } =>
            by(attached_for_reading(name, failure.as_deref()));
        /// A file system that could not be mounted from a volume that is only read; `option` does
        /// without its journal.
        ReadOnlyRefused { store: PathBuf, cause: Box<Report>, option: &'static str } =>
            by(Report::clone(cause))
            .help("if it was not unmounted in order, as before a crash, its journal has to be \
                written out: mount {} once without --read-only; or add `--options {option}`, which \
                shows it without what only the journal holds", store.display());
        /// `mkfs` gave up because of other devices of the machine, which lie on dead volumes.
        DeadLoopDevices { device: PathBuf, cause: Box<Report>, dead: Vec<DeadLoop> } =>
            fault("cannot make a file system on {}", device.display())
            .why("{cause}. It looks at every mounted loop device, and these lie on volumes whose \
                daemon has ended: {}", joined(dead, DeadLoop::to_string, ", "))
            .help("take them away and try again: {}", joined(dead, DeadLoop::remedy, "; "));
        /// The volume is reached over a socket, so that nothing can be mounted from it.
        NotABlockDevice { name: String, device: String } =>
            fault("cannot mount '{name}'")
            .why("it is served at {device}, which is no block device")
            .help("run `coulter detach {name}`, then mount it as root");
    }
}

fn attached_for_reading(name: &str, failure: Option<&str>) -> Report {
    let what = format!("cannot mount '{name}' for writing");
    match failure {
        None => usage(what)
            .why("it is attached to be read only")
            .help(format!("add --read-only, or first run `coulter detach {name}`")),
        Some(failure) => fault(what)
            .why(format!("it has failed, {failure}"))
            .help(format!("mend that, and run `coulter detach {name}` first")),
    }
}

/// The mount of ours that a path lies in: what is mounted, and where.
fn covering(path: &Path) -> Option<(String, PathBuf)> {
    let mount = mounts::covering(path).ok().flatten()?;
    let is_ours = mount.kind == "fuse.coulter";
    is_ours.then(|| (terminal::path(&mount.source), mount.mount_point))
}

fn joined(dead: &[DeadLoop], told: fn(&DeadLoop) -> String, between: &str) -> String {
    dead.iter().map(told).collect::<Vec<_>>().join(between)
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
    if let Some((mount, at)) = covering(directory).filter(|_| source.is_none()) {
        return fault(format!("{} is not a mount point of a volume", directory.display()))
            .why(format!("it lies on {mount}, which is mounted on {}", terminal::path(&at)))
            .help(format!("`coulter umount {}` unmounts all of that", terminal::word(&at)));
    }
    let root = match rustix::process::geteuid().is_root() {
        true => "",
        false => "; what root has mounted takes sudo",
    };
    fault(format!("{} is not a mount point of a volume", directory.display()))
        .why(why)
        .help(format!("`coulter list` shows the volumes, `findmnt` what is mounted{root}"))
}
