//! What can go wrong on the command line, and how it is told: what, why, and what to do.
//!
//! Invariants:
//! - every error names the thing it happened to;
//! - the exit code follows from the variant: 2 when another command line would be needed, else 1.

mod door;
mod mount;
mod replica;
mod store;
mod system;

pub use coulter_daemon::Error;
pub use coulter_daemon::error::{DaemonError, OpenError, StateError};
pub use door::DoorError;
pub use mount::MountError;
pub use replica::CopyError;
pub use store::StoreError;
pub use system::SystemError;

use coulter_terminal::{OutputError, Report};
use std::io;
use std::path::Path;

/// An error with its context.
#[derive(Debug)]
pub enum CliError {
    /// About daemons, and opening stores for them.
    Service(Error),
    /// About making, growing and looking into stores.
    Store(StoreError),
    /// About file systems on volumes.
    Mount(MountError),
    /// About what one verb does for volumes, file systems and overlays.
    Door(DoorError),
    /// About the system around the program.
    System(SystemError),
    /// About copies elsewhere.
    Copy(CopyError),
}

impl CliError {
    /// An operating-system error on a path. `action` is a verb phrase that the path completes.
    pub fn io(action: &'static str, path: &Path, source: io::Error) -> CliError {
        Error::io(action, path, source).into()
    }

    /// Something that only root may do.
    pub fn needs_root(what: &'static str, help: &'static str) -> CliError {
        SystemError::NeedsRoot { what, help }.into()
    }

    /// What, why, and what to do.
    pub fn report(&self) -> Report {
        match self {
            CliError::Service(error) => error.report(),
            CliError::Store(error) => error.report(),
            CliError::Mount(error) => error.report(),
            CliError::Door(error) => error.report(),
            CliError::System(error) => error.report(),
            CliError::Copy(error) => error.report(),
        }
    }
}

/// Lets `?` wrap errors of the parts.
macro_rules! wrapped {
    ($($part:ident in $variant:ident),+ $(,)?) => { $(
        impl From<$part> for CliError {
            fn from(error: $part) -> CliError {
                CliError::$variant(error.into())
            }
        }
    )+ };
}

wrapped! {
    Error in Service, StateError in Service, OpenError in Service, DaemonError in Service,
    StoreError in Store, MountError in Mount, DoorError in Door, SystemError in System,
    CopyError in Copy,
}

/// For what a daemon calls back.
impl From<CliError> for Error {
    fn from(error: CliError) -> Error {
        match error {
            CliError::Service(error) => error,
            other => Error::Told(other.report()),
        }
    }
}

impl From<OutputError> for CliError {
    fn from(error: OutputError) -> CliError {
        CliError::io("write to", "standard output".as_ref(), error.0)
    }
}

impl std::fmt::Display for CliError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.report().fmt(f)
    }
}

impl std::error::Error for CliError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CliError::Service(error) => std::error::Error::source(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter_daemon::signatures::Signature;
    use std::path::PathBuf;

    #[test]
    fn an_error_says_what_why_and_what_to_do() {
        let signature =
            Signature { what: "an XFS file system", mount_type: None, offset: 0, length: 4 };
        let error =
            StoreError::HoldsData { path: PathBuf::from("/dev/sdb"), signatures: vec![signature] };
        assert_eq!(
            error.report().to_string(),
            "will not format /dev/sdb: it holds an XFS file system (at byte 0) \
             (if that may be destroyed, add --force)"
        );
        assert_eq!(error.report().exit_code, 1);
    }

    #[test]
    fn a_command_line_that_cannot_work_ends_with_2() {
        let error = StoreError::SizeNeeded { path: PathBuf::from("a.img") };
        assert_eq!(error.report().exit_code, 2);
    }

    #[test]
    fn a_busy_volume_names_the_mount_point_to_leave() {
        let error = DaemonError::Busy {
            name: "a".into(),
            device: "/dev/loop0".into(),
            holders: vec!["mounted at /mnt/x".into(), "process 7 (bash)".into()],
            remedy: Some("coulter umount /mnt/x".into()),
        };
        let report = error.report();
        assert_eq!(report.why.as_deref(), Some("mounted at /mnt/x; process 7 (bash)"));
        assert_eq!(report.help.as_deref(), Some("first run `coulter umount /mnt/x`"));
    }
}
