//! A file system on a volume, as a mount.
//!
//! # Layers
//! ```text
//! mount    the mount point, and how it goes
//! overlay  opening an overlay, which the pump serves as well
//! pump     one thread: the kernel's messages, the file system and the volume's session
//! requests what a message asks of the file system
//! commands what the file system asks of the volume
//! answers  what the file system answered -> bytes
//! writers  which attributes the kernel may keep
//! message  the kernel's bytes -> what it asks
//! sync     what another process asks the mount
//! watchdog ends a daemon whose mount waits for itself
//! ```
//!
//! # What the kernel keeps
//! Only this mount changes the file system, so the kernel may cache names,
//! attributes, pages and listings for any time; `writers` has the exceptions. The kernel checks permissions
//! (`default_permissions`) and keeps locks. Files and directories have no handles: the kernel opens
//! them without a message.

mod answers;
mod commands;
mod message;
mod mount;
pub mod overlay;
mod pump;
mod requests;
mod sync;
mod watchdog;
mod writers;

pub use message::{SETTLE_IOCTL, SYNC_IOCTL};
pub use mount::{FilesMount, MountError, MountOptions};
pub use sync::sync;
