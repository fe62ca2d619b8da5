//! About what one verb does for volumes, file systems and overlays.

use coulter_terminal::{self as terminal, Report, fault};
use std::path::{Path, PathBuf};

coulter_terminal::reports! {
    /// About what one verb does for volumes, file systems and overlays.
    pub enum DoorError {
        /// A volume was named that is mounted on more than one directory.
        MountedOften { name: String, directories: Vec<PathBuf> } =>
            usage("cannot tell where to unmount '{name}'")
            .why("it is mounted on {}",
                directories.iter().map(|it| terminal::path(it)).collect::<Vec<_>>().join(", "))
            .help("name the directory");
        /// A volume was named that is mounted nowhere.
        NotMounted { name: String } =>
            fault("cannot unmount '{name}'")
            .why("it is attached, and mounted nowhere")
            .help("`coulter detach {name}` ends its daemon");
        /// An option that would not be true of the mount.
        OptionRefused { option: String, reason: &'static str } =>
            usage("cannot mount with the option {option}")
            .why("{reason}")
            .help("leave it away; the options are ro, nosuid, nodev, noexec, noatime, \
                acl, user_xattr");
        /// The volume holds a file system of Coulter's own.
        HoldsFiles { store: PathBuf } =>
            fault("cannot mount the device of {}", store.display())
            .why("it holds a Coulter file system, which needs no block device")
            .help("detach it, and mount it again");
        /// A volume of Coulter files was to be mounted by options that only a block device has.
        FilesTakeNo { store: PathBuf, option: &'static str } =>
            usage("cannot mount {} with {option}", store.display())
            .why("it holds a Coulter file system, and the option is for a block device")
            .help("leave {option} away");
        /// The store of an overlay was to be mounted.
        OverlayStore { store: PathBuf } =>
            fault("cannot mount {}", store.display())
            .why("it is the store of an overlay, with parts of files of another directory")
            .help("`coulter overlay DIR` mounts it over its directory");
        /// `grow` of what is mounted as files.
        GrowMounted {
            path: PathBuf,
            directory: PathBuf,
            is_overlay: bool,
            options: String,
            again: String,
        } =>
            by(grow_mounted(path, &terminal::word(directory), *is_overlay, (options, again)));
        /// A mount of files cannot have its daemon replaced.
        UpgradeMounted { name: String, directory: PathBuf, again: String } =>
            fault("cannot upgrade '{name}'")
            .why("it is mounted on {}, and a mount cannot wait for another daemon",
                terminal::path(directory))
            .help("run `coulter umount {}`, and mount it with the new program: `{again}`",
                terminal::word(directory));
        /// A mount of files cannot change its replication.
        CopyMounted {
            name: String,
            store: PathBuf,
            directory: PathBuf,
            again: String,
            url: String,
        } =>
            fault("cannot change how '{name}' is replicated")
            .why("it is mounted on {}, and a mount is not replicated", terminal::path(directory))
            .help("run `coulter umount {}`, `coulter replicate {} {url}`, which ships it once, and \
                `{again}`", terminal::word(directory), terminal::word(store));
        /// `grow` of the store of an overlay.
        GrowOverlay { path: PathBuf } =>
            fault("cannot grow {}", path.display())
            .why("it is the store of an overlay, which keeps its size")
            .help("mount the overlay and run `coulter overlay detach DIR`, then `coulter overlay \
                DIR` with a larger --store-size");
        /// `scrub` of a store that no daemon serves.
        ScrubDetached { path: PathBuf } =>
            fault("cannot scrub {}", path.display())
            .why("it is not attached, and a scrub is the work of a volume's daemon")
            .help("`coulter check --data {0}` reads all of it now; or first run `coulter attach \
                {0}`", terminal::word(path));
        /// `fs check` of a volume without a file system of Coulter's own.
        NoFiles { path: PathBuf } =>
            fault("cannot look at {}", path.display())
            .why("its volume holds no Coulter file system")
            .help("`coulter check {}` checks the store; tools such as fsck check another file \
                system, on the device of `coulter attach`", terminal::word(path));
        /// NVMe was to be served on a unix socket.
        NvmeOverUnix { address: String } =>
            usage("cannot serve NVMe at {address}")
            .why("NVMe is spoken over TCP only")
            .help("name tcp:ADDRESS:PORT, such as tcp:127.0.0.1:4420; or serve it by --nbd");
    }
}

fn grow_mounted(
    path: &Path,
    directory: &str,
    is_overlay: bool,
    (options, again): (&str, &str),
) -> Report {
    let report = fault(format!("cannot grow {}", path.display()));
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
            "run `coulter umount {directory}`, then `coulter grow {store}{options}`, and `{again}`"
        ),
    )
}
