//! Names and attributes: what a mount shows, whatever keeps them.
//!
//! Each method is a step: it does all that it says, or stops and leaves no trace. A step that stops
//! for something other than an error is done again later, from the start.
//!
//! Permissions are the kernel's to check (`default_permissions`); what POSIX says of names, links
//! and kinds is checked here.

mod access_list;
pub(crate) mod tree;
pub(crate) mod xattr;

use crate::request::{Attributes, Changes, Name, NewNode, RenameFlags};
use crate::stop::Step;
use coulter_format::files::Time;

/// Two names, for operations that have two.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) directory: u64,
    pub(crate) name: &'a Name,
}

/// What a name that went away leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unlinked {
    pub(crate) inode: u64,
    /// No name is left.
    pub(crate) is_last: bool,
}

/// Is shown a name: cookie, number, kind, bytes. Says whether to go on.
pub(crate) type ShowName<'a> = &'a mut dyn FnMut(u64, u64, u8, &[u8]) -> bool;

/// See the module's documentation. A directory tree on a volume is one; a directory of the host is
/// another.
pub(crate) trait Namespace {
    /// Attributes of a node.
    fn attributes(&mut self, inode: u64) -> Step<Attributes>;
    /// What a name stands for.
    fn lookup(&mut self, place: Place<'_>) -> Step<Attributes>;
    /// A new file, directory or anything else, with one name; none if `place` has none.
    fn make(&mut self, place: Place<'_>, new: &NewNode, now: Time) -> Step<Attributes>;
    /// A new file without a name.
    fn make_unnamed(&mut self, directory: u64, new: &NewNode, now: Time) -> Step<Attributes>;
    /// One more name.
    fn link(&mut self, inode: u64, place: Place<'_>, now: Time) -> Step<Attributes>;
    /// Takes a name away: of a directory, or of anything else.
    fn unlink(&mut self, place: Place<'_>, is_directory: bool, now: Time) -> Step<Unlinked>;
    /// Moves a name; what the new one stood for before loses it.
    fn rename(
        &mut self,
        from: Place<'_>,
        to: Place<'_>,
        flags: RenameFlags,
        now: Time,
    ) -> Step<Option<Unlinked>>;
    /// Changes all but the size.
    fn change(&mut self, inode: u64, changes: &Changes, now: Time) -> Step<Attributes>;
    /// Where a symbolic link points.
    fn target(&mut self, inode: u64) -> Step<Vec<u8>>;
    /// Shows names behind a cookie until told to stop: cookie, number, kind, name.
    fn names(&mut self, directory: u64, cookie: u64, each: ShowName<'_>) -> Step<()>;
}
