//! About the state directory and the names of volumes.

use coulter_terminal as terminal;
use std::path::{Path, PathBuf};

coulter_terminal::reports! {
    /// About the state directory and the names of volumes.
    pub enum StateError {
        /// The state directory belongs to somebody else.
        ForeignStateDirectory { path: PathBuf, owner: u32 } =>
            fault("cannot use the state directory {}", path.display())
            .why("it belongs to user {owner}")
            .help("run the command {}, or name another one with --state-directory", match owner {
                0 => "with sudo",
                _ => "as that user",
            });
        /// Others may write to the state directory.
        OpenStateDirectory { path: PathBuf } =>
            fault("cannot use the state directory {}", path.display())
            .why("other users may write to it, and could pose as a daemon")
            .help("run `chmod go-w {}`", path.display());
        /// A volume name with letters that a file name or a shell would trip over.
        NameInvalid { name: String } =>
            usage("'{name}' cannot name a volume")
            .why("a name is 1 to 64 letters, digits or ._-+, and starts with a letter or digit")
            .help("choose one with --name");
        /// The control socket would not fit into a socket address.
        SocketPathTooLong { path: PathBuf } =>
            usage("cannot make the control socket {}", path.display())
            .why("the path is longer than 107 bytes, the most that a socket can have")
            .help("choose a shorter --name or --state-directory");
        /// Another volume has that name.
        NameTaken { name: String, store: PathBuf } =>
            fault("the name '{name}' is taken")
            .why("{} is attached under it", store.display())
            .help("choose another one with --name");
        /// Where the files of that volume would be is somebody else's.
        ForeignFile { name: String, path: PathBuf } =>
            fault("the name '{name}' cannot be used here")
            .why("{} was not put there by this program", path.display())
            .help("choose another one with --name, or another --state-directory");
        /// Somebody goes on holding the lock of the directory.
        LockHeld { path: PathBuf } =>
            fault("cannot write to the state directory {}", path.display())
            .why("another command holds its lock")
            .help("end the command that is stopped, or continue it");
        /// No volume of that name, store or device.
        NotAttached { name: String, attached: Vec<String> } =>
            fault("'{name}' is not attached")
            .why("{}", what_is(attached))
            .help("name a volume, its store, its device or its directory; `coulter list` shows \
                them");
        /// Another file lies at the path of an attached store.
        StoreReplaced { name: String, store: PathBuf, is_deleted: bool } =>
            fault("{} is not the file that is attached", store.display())
            .why("it has come to its path since '{name}' was attached from there")
            .help("{}", match is_deleted {
                false => format!("`coulter detach {name}` closes the one that is attached"),
                true => format!("the one that is attached was deleted: `coulter status {name}` \
                    says how to save what it holds"),
            });
        /// The store of a volume that is to be detached would be gone with that.
        StoreDeleted { name: String, store: PathBuf, device: String } =>
            fault("'{name}' stays attached: its store was deleted")
            .why("{} would be gone for good, with all that it holds", store.display())
            .help("copy what is needed from {device}; then, `coulter detach --force {name}`");
        /// The store is already served.
        AlreadyAttached { store: PathBuf, name: String, device: Option<String> } =>
            fault("{} is already attached", store.display())
            .why("{}", match device {
                Some(device) => format!("it is served as '{name}' at {device}"),
                None => format!("it is being attached as '{name}'"),
            })
            .help("use it there, or first run `coulter detach {name}`");
        /// The store's device outlived its daemon.
        DeviceWaits { store: PathBuf, name: Option<String>, device: String } =>
            fault("{} has a device already", store.display())
            .why("its daemon has ended, and {device} waits for a new one")
            .help("`coulter attach --recover {}` serves it again{}", recovery(store), match name {
                Some(name) => format!("; `coulter detach {name}` gives it up"),
                None => String::new(),
            });
    }
}

fn what_is(attached: &[String]) -> String {
    match attached {
        [] if !rustix::process::geteuid().is_root() => {
            "nothing is attached; volumes of other users, root included, are not seen".to_owned()
        }
        [] => "nothing is attached".to_owned(),
        names => format!("attached are: {}", names.join(", ")),
    }
}

/// The store as a word, and how it is replicated if that is remembered.
fn recovery(store: &Path) -> String {
    let copy = crate::copy::marks::remembered(store);
    let copy = copy.map(|words| format!(" {words}")).unwrap_or_default();
    format!("{}{copy}", terminal::word(store))
}
