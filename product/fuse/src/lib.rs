//! FUSE mounts of a volume: its blocks as the file `DIRECTORY/volume`, at the root of this crate;
//! the file system on it, or an overlay, in [`files`].
//!
//! The one file carries a loop device (`coulter-block`) on kernels with neither ublk nor nbd, and
//! can be read and written directly too, with `O_DIRECT` or not: nothing is cached.
//!
//! It serves `/dev/fuse` without a library. One file needs a dozen of the protocol's messages. So
//! one thread can sleep on the kernel and on the session at once, read a payload into the session's
//! buffer, and submit many requests with one kick.
//!
//! # Invariants
//! - Every message of the kernel that wants an answer gets one, once.
//! - A mount goes with its owner: dropping one unmounts it.
//!
//! # What it does not do
//! Writes that are not multiples of 512 are refused (`EINVAL`), as with
//! `O_DIRECT` on a disk. Long writes from memory that is not page-aligned may be short writes. The
//! size never changes, and there are no other files.
//!
//! # Layers
//! ```text
//! mount    the mount point, and whether it can be left
//! pump     one thread: device and session, asleep in one poll
//! node     the two inodes: what is not input or output
//! wire     bytes <-> values
//! ```

pub mod files;
pub mod wire;

mod mount;
mod node;
mod pump;

pub use mount::{FILE_NAME, FILE_SYSTEM_TYPE, FuseError, FuseFile, FuseOptions, require_root};
