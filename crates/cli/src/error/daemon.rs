//! About attach points and the processes that serve them.

use super::report::{Report, fault, listed, mount_point, usage};
use crate::holders::Holder;
use std::path::PathBuf;

/// About attach points and the processes that serve them.
#[derive(Debug)]
#[non_exhaustive]
pub(crate) enum DaemonError {
    /// A request for an attach point that this version has not.
    ViaUnsupported { via: &'static str },
    /// The attach point could not be set up.
    Attach { store: PathBuf, reason: String, help: Option<String> },
    /// An address for the NBD server that cannot be understood.
    AddressInvalid { text: String },
    /// Somebody uses the volume.
    Busy { name: String, device: String, holders: Vec<Holder> },
    /// The daemon told what went wrong.
    Daemon(Report),
    /// The daemon ended without a word.
    DaemonDied { directory: PathBuf, how: String },
    /// A trace is asked of a daemon that keeps none.
    NotTracing { name: String },
    /// The daemon does not answer.
    DaemonSilent { name: String, pid: u32 },
}

impl DaemonError {
    /// What, why, and what to do.
    pub(crate) fn report(&self) -> Report {
        match self {
            DaemonError::ViaUnsupported { via } => {
                usage(format!("--via {via} is not supported by this version"))
                    .help("use --via auto, loop or nbd")
            }
            DaemonError::Attach { store, reason, help } => {
                fault(format!("cannot attach {}", store.display()))
                    .why(reason.as_str())
                    .maybe_help(help.as_ref())
            }
            DaemonError::AddressInvalid { text } => usage(format!("'{text}' is not an address"))
                .help("write unix:/path/to/socket or tcp:127.0.0.1:10809"),
            DaemonError::Busy { name, device, holders } => {
                let held = if holders.is_empty() {
                    "somebody uses it whom only root, or another mount namespace, can see".into()
                } else {
                    listed(holders)
                };
                fault(format!("'{name}' is in use at {device}")).why(held).help(
                    match mount_point(holders) {
                        Some(path) => format!("first run `coulter umount {}`", path.display()),
                        None => "end what uses it, or add --force, which fails its I/O".to_owned(),
                    },
                )
            }
            DaemonError::Daemon(report) => report.clone(),
            DaemonError::DaemonDied { directory, how } => {
                fault("the daemon ended before it served")
                    .why(how.as_str())
                    .help(format!("its log, if it got so far, is in {}", directory.display()))
            }
            DaemonError::NotTracing { name } => {
                fault(format!("'{name}' records no trace")).help("attach it with --trace")
            }
            DaemonError::DaemonSilent { name, pid } => fault(format!(
                "the daemon of '{name}' (process {pid}) does not answer"
            ))
            .help(format!(
                "look at its log, or end it with `kill -9 {pid}`; no flushed write is lost"
            )),
        }
    }
}
