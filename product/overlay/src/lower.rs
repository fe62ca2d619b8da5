//! The directory below an overlay, as far as an overlay needs one.

use coulter_files::{AllocateMode, NewNode, RenameFlags, Time, Usage, Whence, XattrMode};
use coulter_format::overlay::Fingerprint;
pub use coulter_format::overlay::Handle;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// What the lower file system says, or an error number.
pub type Outcome<T> = Result<T, i32>;

/// What a node of the lower file system is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of `stat`")]
pub struct Status {
    pub number: u64,
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    /// Of 512 bytes.
    pub sectors: u64,
    /// Of a device: which.
    pub device: u32,
    pub accessed: Time,
    pub modified: Time,
    pub changed: Time,
    pub born: Time,
}

impl Status {
    /// Whether it is a file with bytes.
    pub fn is_file(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }

    /// What tells later whether somebody else has changed it.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint { size: self.size, modified: self.modified, changed: self.changed }
    }
}

/// A node that was found or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// What names it from now on.
    pub handle: Handle,
    /// What it is like.
    pub status: Status,
}

/// Attributes to be set; what is `None` stays. No size: see [`Lower::set_size`].
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "named after what is set")]
pub struct Settings {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub accessed: Option<Time>,
    pub modified: Option<Time>,
}

/// Is shown a name: its bytes, number, kind as `d_type`, and where the next listing goes on behind it. Says
/// whether to go on.
pub type ShowName<'a> = &'a mut dyn FnMut(&[u8], u64, u8, u64) -> bool;

/// A directory of the host with all that is in it. Nodes are named by handles, names are bytes.
///
/// # Contract
/// Calls block. What they change is durable after [`Lower::sync`] of the node, or [`Lower::sync_all`]; before
/// that a power cut may take it back, names and data apart from each other. `sync` of a file covers its data,
/// its attributes and the name that it was made with.
pub trait Lower {
    /// The directory itself.
    fn root(&self) -> Handle;
    /// What a name stands for.
    fn lookup(&mut self, directory: &Handle, name: &[u8]) -> Outcome<Found>;
    /// The attributes of a node. `ESTALE` if there is no such node any more.
    fn status(&mut self, node: &Handle) -> Outcome<Status>;
    /// Fills `bytes` from `offset` on as far as the file goes; says how far.
    fn read(&mut self, node: &Handle, offset: u64, bytes: &mut [u8]) -> Outcome<usize>;
    /// Writes all of `bytes`.
    fn write(&mut self, node: &Handle, offset: u64, bytes: &[u8]) -> Outcome<()>;
    /// Cuts a file off, or makes it longer by a hole.
    fn set_size(&mut self, node: &Handle, size: u64) -> Outcome<()>;
    /// Sets attributes.
    fn set(&mut self, node: &Handle, settings: &Settings) -> Outcome<()>;
    /// Makes a node durable.
    fn sync(&mut self, node: &Handle) -> Outcome<()>;
    /// Begins to make a node durable, for who goes on meanwhile. `None`: [`Lower::next_synced`] tells how it
    /// ended. What is changed in the meantime may be durable then or not.
    fn begin_sync(&mut self, node: &Handle, _tag: u64) -> Option<Outcome<()>> {
        Some(self.sync(node))
    }
    /// The same for the whole file system.
    fn begin_sync_all(&mut self, _tag: u64) -> Option<Outcome<()>> {
        Some(self.sync_all())
    }
    /// Begins to write a range of a file to the disk, which makes nothing durable but leaves less to a later
    /// sync. `None`: [`Lower::next_synced`] tells when it has ended.
    fn begin_writing_out(
        &mut self,
        _node: &Handle,
        _range: Range<u64>,
        _tag: u64,
    ) -> Option<Outcome<()>> {
        Some(Ok(()))
    }
    /// What was begun and has ended: its tag, and how.
    fn next_synced(&mut self) -> Option<(u64, Outcome<()>)> {
        None
    }
    /// Readable when one has ended; none while none was ever begun.
    fn synced_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Makes the whole file system durable.
    fn sync_all(&mut self) -> Outcome<()>;
    /// Makes a node with a name.
    fn make(&mut self, directory: &Handle, name: &[u8], new: &NewNode) -> Outcome<Found>;
    /// Makes a file without one. It lives while it is held, which it is.
    fn make_unnamed(&mut self, directory: &Handle, new: &NewNode) -> Outcome<Found>;
    /// Gives a node one more name.
    fn link(&mut self, node: &Handle, directory: &Handle, name: &[u8]) -> Outcome<()>;
    /// Takes a name away: of a directory, or of anything else.
    fn unlink(&mut self, directory: &Handle, name: &[u8], is_directory: bool) -> Outcome<()>;
    /// Moves a name.
    fn rename(
        &mut self,
        from: (&Handle, &[u8]),
        to: (&Handle, &[u8]),
        flags: RenameFlags,
    ) -> Outcome<()>;
    /// Where a symbolic link points.
    fn target(&mut self, node: &Handle) -> Outcome<Vec<u8>>;
    /// Shows names behind a cookie, `.` and `..` among them.
    fn list(&mut self, directory: &Handle, cookie: u64, show: ShowName<'_>) -> Outcome<()>;
    /// The value of an extended attribute.
    fn xattr(&mut self, node: &Handle, name: &[u8]) -> Outcome<Vec<u8>>;
    /// Sets one.
    fn set_xattr(
        &mut self,
        node: &Handle,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Outcome<()>;
    /// Takes one away.
    fn remove_xattr(&mut self, node: &Handle, name: &[u8]) -> Outcome<()>;
    /// Their names, a zero behind each.
    fn xattr_names(&mut self, node: &Handle) -> Outcome<Vec<u8>>;
    /// `fallocate`.
    fn allocate(
        &mut self,
        node: &Handle,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    ) -> Outcome<()>;
    /// `lseek`.
    fn seek(&mut self, node: &Handle, offset: u64, whence: Whence) -> Outcome<u64>;
    /// Copies bytes from one file to another; says how many.
    fn copy(&mut self, from: (&Handle, u64), to: (&Handle, u64), length: u64) -> Outcome<u64>;
    /// How full the file system is.
    fn usage(&mut self) -> Outcome<Usage>;
    /// Keeps a node whatever becomes of its names, until it is let go.
    fn hold(&mut self, node: &Handle) -> Outcome<()>;
    /// Lets it go.
    fn release(&mut self, node: &Handle);
}
