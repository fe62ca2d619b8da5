//! What is told of a daemon that was killed: one that ends in order takes its entry along.
//!
//! This explains; it takes nothing away, which is `reclaim`'s to do.

use crate::copy::marks;
use crate::error::DaemonError;
use crate::life::daemon_state::DaemonState;
use crate::life::state::{Entry, StateDirectory};
use coulter_system::mounts;
use coulter_terminal as terminal;
use std::fmt;
use std::path::Path;

/// A daemon that was killed.
#[derive(Debug)]
pub struct Killed {
    name: String,
    /// What has become of what it served.
    left: String,
    /// What to do about it.
    remedy: String,
}

impl Killed {
    /// The daemon of `entry`, which is one of [`StateDirectory::killed`].
    pub fn new(state: &StateDirectory, entry: &Entry) -> Killed {
        // With the copy that it was attached with, which would stand still otherwise.
        let words = marks::remembered(&entry.store);
        let copy = words.map(|words| format!(" {words}")).unwrap_or_default();
        let (name, store) = (entry.name.clone(), terminal::word(&entry.store));
        let (left, remedy) = match DaemonState::look(state, entry) {
            DaemonState::Waits { device } => (
                format!("{} waits for the next daemon", device.display()),
                format!("`coulter attach --recover {store}{copy}` goes on"),
            ),
            DaemonState::KilledWithDevice { device } => {
                left_device(&device, &name, &store.to_string(), &copy)
            }
            _ => {
                let attach = || format!("coulter attach {store}{copy}");
                let again = entry.again.clone().unwrap_or_else(attach);
                (
                    format!("No daemon serves {store}"),
                    format!(
                        "`{again}` serves it again; `coulter detach {name}` clears away what is left"
                    ),
                )
            }
        };
        Killed { name, left, remedy }
    }

    /// The same as an error.
    pub fn error(self) -> DaemonError {
        let Killed { name, left, remedy } = self;
        DaemonError::Killed { name, left, remedy }
    }
}

/// The words for a device that gives errors, and for what brings it back.
fn left_device(device: &Path, name: &str, store: &str, copy: &str) -> (String, String) {
    let mounts = mounts::mounts_of(device).unwrap_or_default();
    let device = device.display();
    match mounts.first() {
        Some(mount) => {
            let directory = terminal::word(&mount.mount_point);
            (
                format!("{device}, mounted on {directory}, gives errors"),
                format!(
                    "`coulter umount {directory}`, then `coulter mount {store} {directory}{copy}` \
                     brings it back"
                ),
            )
        }
        None => (
            format!("{device} gives errors"),
            format!("`coulter detach {name}`, then `coulter attach {store}{copy}` brings it back"),
        ),
    }
}

impl fmt::Display for Killed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Killed { name, left, remedy } = self;
        write!(f, "the daemon of '{name}' was killed. What was flushed is safe. {left}: {remedy}")
    }
}
