//! About the state directory and the names of volumes.

use coulter_terminal::{self as terminal, Report, fault, usage};
use std::path::PathBuf;

/// About the state directory and the names of volumes.
#[derive(Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what its name says of its variant")]
pub enum StateError {
    /// The state directory belongs to somebody else.
    ForeignStateDirectory { path: PathBuf, owner: u32 },
    /// Others may write to the state directory.
    OpenStateDirectory { path: PathBuf },
    /// A volume name with letters that a file name or a shell would trip over.
    NameInvalid { name: String },
    /// The control socket would not fit into a socket address.
    SocketPathTooLong { path: PathBuf },
    /// Another volume has that name.
    NameTaken { name: String, store: PathBuf },
    /// Where the files of that volume would be is somebody else's.
    ForeignFile { name: String, path: PathBuf },
    /// Somebody goes on holding the lock of the directory.
    LockHeld { path: PathBuf },
    /// No volume of that name, store or device.
    NotAttached { name: String, attached: Vec<String> },
    /// Another file lies at the path of an attached store.
    StoreReplaced { name: String, store: PathBuf, is_deleted: bool },
    /// The store of a volume that is to be detached would be gone with that.
    StoreDeleted { name: String, store: PathBuf, device: String },
    /// The store is already served.
    AlreadyAttached { store: PathBuf, name: String, device: Option<String> },
    /// The store's device outlived its daemon.
    DeviceWaits { store: PathBuf, name: Option<String>, device: String },
}

impl StateError {
    /// What, why, and what to do.
    pub fn report(&self) -> Report {
        match self {
            StateError::ForeignStateDirectory { path, owner } => {
                fault(format!("cannot use the state directory {}", path.display()))
                    .why(format!("it belongs to user {owner}"))
                    .help(match owner {
                        0 => "run the command with sudo, or name another one with --state-directory",
                        _ => "run the command as that user, or name another one with --state-directory",
                    })
            }
            StateError::OpenStateDirectory { path } => {
                fault(format!("cannot use the state directory {}", path.display()))
                    .why("other users may write to it, and could pose as a daemon")
                    .help(format!("run `chmod go-w {}`", path.display()))
            }
            StateError::NameInvalid { name } => usage(format!("'{name}' cannot name a volume"))
                .why("a name is 1 to 64 letters, digits or ._-+, and starts with a letter or digit")
                .help("choose one with --name"),
            StateError::SocketPathTooLong { path } => {
                usage(format!("cannot make the control socket {}", path.display()))
                    .why("the path is longer than 107 bytes, the most that a socket can have")
                    .help("choose a shorter --name or --state-directory")
            }
            StateError::NameTaken { name, store } => usage(format!("the name '{name}' is taken"))
                .why(format!("{} is attached under it", store.display()))
                .help("choose another one with --name"),
            StateError::ForeignFile { name, path } => {
                usage(format!("the name '{name}' cannot be used here"))
                    .why(format!("{} was not put there by this program", path.display()))
                    .help("choose another one with --name, or another --state-directory")
            }
            StateError::LockHeld { path } => {
                fault(format!("cannot write to the state directory {}", path.display()))
                    .why("another command holds its lock")
                    .help("end the command that is stopped, or continue it")
            }
            StateError::NotAttached { name, attached } => {
                fault(format!("'{name}' is not attached")).why(what_is(attached)).help(
                    "name a volume, its store, its device or its directory; `coulter list` shows \
                     them",
                )
            }
            StateError::StoreReplaced { name, store, is_deleted } => {
                fault(format!("{} is not the file that is attached", store.display()))
                    .why(format!("it has come to its path since '{name}' was attached from there"))
                    .help(match is_deleted {
                        false => format!("`coulter detach {name}` closes the one that is attached"),
                        true => format!(
                            "the one that is attached was deleted: `coulter status {name}` says how to save \
                             what it holds"
                        ),
                    })
            }
            StateError::StoreDeleted { name, store, device } => {
                fault(format!("'{name}' stays attached: its store was deleted"))
                    .why(format!("{} would be gone for good, with all that it holds", store.display()))
                    .help(format!(
                        "copy what is needed from {device}; then, `coulter detach --force {name}`"
                    ))
            }
            StateError::AlreadyAttached { store, name, device } => {
                let why = match device {
                    Some(device) => format!("it is served as '{name}' at {device}"),
                    None => format!("it is being attached as '{name}'"),
                };
                fault(format!("{} is already attached", store.display()))
                    .why(why)
                    .help(format!("use it there, or first run `coulter detach {name}`"))
            }
            StateError::DeviceWaits { store, name, device } => {
                let path = terminal::word(store);
                let why = format!("its daemon has ended, and {device} waits for a new one");
                let copy = crate::replication::remembered(store);
                let copy = copy.map(|words| format!(" {words}")).unwrap_or_default();
                let recover = format!("`coulter attach --recover {path}{copy}` serves it again");
                let what = format!("{} has a device already", store.display());
                fault(what).why(why).help(match name {
                    Some(name) => format!("{recover}; `coulter detach {name}` gives it up"),
                    None => recover,
                })
            }
        }
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
