//! Remapping above any file system.
//!
//! A directory of the host (the *lower* one) keeps its names, attributes and data. Blocks that are overwritten
//! at random go to a volume instead, in windows of 2 MiB of host addresses, and come home later, in order.
//! Taken away, it leaves the directory as if it had never been there.
//!
//! There is no I/O to the volume, no thread and no clock in here: [`Overlay`] is a
//! [`coulter_files::FileService`], a function of its inputs. What it wants of the lower directory it calls,
//! through [`Lower`]; [`Directory`] is one of the host.
//!
//! # Promise
//! - A file that was synced is whole after a crash of the daemon, of the machine or of the lower file system.
//! - Each block of a file reads as it was written last, or after a crash as it was at the last sync or
//!   written since.
//! - A lower file that somebody else has changed gives an error, never a mixture.
//!
//! # How it is kept
//! The state of a file is one of these, and a transition is a rule:
//!
//! ```text
//!            adopt (R1, R2)            settle begins            home and durable (R8)
//!   plain ------------------> live ------------------> settling ---------------------> settled
//!     ^                        |  \                                                        |
//!     |                        |   `--- last name goes ---> dying                          |
//!     |                        `--- handle or mark wrong --> orphan (R9)                   |
//!     `------------- mark taken away, durable, record forgotten (R5) ----------------------'
//! ```
//!
//! - **R1** A file is known by its mark (an extended attribute) and its handle together; one alone is not
//!   believed.
//! - **R2** The mark is durable before the record is written; the record comes before or with the first block.
//! - **R3** Size and time of modification of a live file are the record's; data and record change in one
//!   atomic write.
//! - **R4** A block that is mapped is only overwritten in the store, until it is settled.
//! - **R5** The store forgets only after the lower change that makes it unnecessary is durable.
//! - **R6** Cutting off is one atomic write: record and discards. The lower file is cut off when it is settled.
//! - **R7** Names, links, permissions and attributes are the lower directory's alone. A file that is renamed
//!   over another is flushed first. That a file loses its last name is durable in its record before it does:
//!   only such a file may be missing after a crash.
//! - **R8** Settling copies, cuts off, sets the time, syncs the lower file, and only then forgets.
//! - **R9** Opening looks at each record: where handle and mark agree it is kept, else it is an orphan, which is
//!   told and never applied.
//! - **R10** A sync is one of the lower file, if that was touched, and one flush, if something is here.
//! - **R11** Before a hole is remapped its space is taken below, so that settling finds it.
//! - **R12** Before a call below changes what a lower file is known by, the record says so durably: a kill may come
//!   before the next call sets it back.
//!
//! # Invariants
//! - A block is mapped only in a window that a live, settling or dying record owns.
//! - Bytes behind a file's end are zero in its last block, and no block behind it is mapped, but for what a
//!   crash left, which opening takes away.
//! - A node that the kernel knows and that has no name any more is held by a descriptor.

mod adopt;
mod ahead;
mod begun;
mod data;
mod directory;
mod invariants;
mod io;
mod lists;
mod locks;
mod lower;
mod mark;
#[cfg(test)]
mod model;
mod names;
mod noted;
mod overlay;
mod queue;
mod recover;
mod remembered;
mod report;
mod resize;
mod settle;
mod store;
mod sync;
mod tick;

pub use coulter_format::overlay::Superblock;
pub use directory::{Directory, OpenError};
pub use lower::{Found, Handle, Lower, Outcome, Settings, ShowName, Status};
pub use overlay::{Options, Overlay, Remap, SettleWhen};
pub use recover::{Blocks, RecoverError, create};
pub use report::{Figures, Shown};

/// The extended attribute that marks a file of which blocks are in a store.
pub const MARK: &str = "trusted.coulter.id";
/// The extended attribute of the mount's root that reads as what the overlay has to tell.
pub const STATUS_ATTRIBUTE: &str = "trusted.coulter.status";
/// The extended attribute of the mount's root that reads and sets what is remapped.
pub const REMAP_ATTRIBUTE: &str = "trusted.coulter.remap";
/// The extended attribute of the mount's root that reads and sets when blocks come home.
pub const SETTLE_ATTRIBUTE: &str = "trusted.coulter.settle";
/// The extended attribute of the mount's root that reads as what is not served: followed by the number of the
/// record to begin with.
pub const ORPHANS_ATTRIBUTE: &str = "trusted.coulter.orphans.";
/// The extended attribute that gives a file of the mount the blocks of a record that is not served.
pub const ADOPT_ATTRIBUTE: &str = "trusted.coulter.adopt";
/// The directory in the lower one that holds what the overlay needs. Nobody sees it through the mount.
pub const HIDDEN: &str = ".coulter";

/// Whether a rule is broken on purpose, to see that the tests find it.
#[cfg(test)]
pub(crate) fn is_broken(rule: &str) -> bool {
    model::BROKEN.with_borrow(|broken| *broken == Some(rule.to_owned()))
}

#[cfg(not(test))]
const fn is_broken(_rule: &str) -> bool {
    false
}
