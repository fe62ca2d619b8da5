//! A directory of the host, reached by file handles.
//!
//! No path is used after a node was found: a handle names an inode for as long as it exists, and costs no
//! descriptor. Descriptors of files in use are kept, the latest few hundred. Those of nodes without a name
//! that the kernel still knows are kept until it forgets them. All of this happens on a mount that no path leads
//! to, so that no name can lead into the overlay itself.

mod apart;
mod data;
mod handles;
mod names;
mod open;
mod syncer;

use crate::lower::{Handle, Outcome, Status};
use coulter_files::Time;
pub use open::OpenError;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;

/// Descriptors of files in use that are kept.
const OPEN_MAX: usize = 512;
/// Descriptors of directories in use that are kept.
const PLACES_MAX: usize = 64;

/// A file that is open.
struct Open {
    descriptor: OwnedFd,
    writes: bool,
    used: u64,
}

/// See the module's documentation.
pub struct Directory {
    root: OwnedFd,
    root_handle: Handle,
    device: (u32, u32),
    open: HashMap<Handle, Open>,
    held: HashMap<Handle, Arc<OwnedFd>>,
    /// Directories in which names were used last: a tree that is made, searched or removed uses the same one
    /// for each of its names.
    places: HashMap<Handle, Arc<OwnedFd>>,
    /// Counts uses, to tell the one that is longest ago.
    uses: u64,
    /// Made when it is first needed.
    syncer: Option<syncer::Syncer>,
}

pub(super) fn errno(error: rustix::io::Errno) -> i32 {
    error.raw_os_error()
}

fn text(name: &[u8]) -> Outcome<CString> {
    CString::new(name).map_err(|_| libc::EINVAL)
}

fn time(at: rustix::fs::StatxTimestamp) -> Time {
    Time { seconds: at.tv_sec, nanoseconds: at.tv_nsec }
}

fn status_of(found: &Statx) -> Status {
    Status {
        number: found.stx_ino,
        mode: found.stx_mode.into(),
        links: found.stx_nlink,
        uid: found.stx_uid,
        gid: found.stx_gid,
        size: found.stx_size,
        sectors: found.stx_blocks,
        device: rustix::fs::makedev(found.stx_rdev_major, found.stx_rdev_minor) as u32,
        accessed: time(found.stx_atime),
        modified: time(found.stx_mtime),
        changed: time(found.stx_ctime),
        born: time(found.stx_btime),
    }
}

impl Directory {
    fn statx(&self, at: impl AsFd, name: &CString, flags: AtFlags) -> Outcome<Status> {
        let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let found = rustix::fs::statx(at, name, flags, mask).map_err(errno)?;
        if (found.stx_dev_major, found.stx_dev_minor) != self.device {
            // Another file system: it is not part of what lies here.
            return Err(libc::EXDEV);
        }
        Ok(status_of(&found))
    }

    fn status_by(&self, descriptor: impl AsFd) -> Outcome<Status> {
        self.statx(descriptor, &CString::default(), AtFlags::EMPTY_PATH)
    }

    /// A descriptor that says where a node is, and no more.
    fn locate(&self, node: &Handle) -> Outcome<Arc<OwnedFd>> {
        if let Some(kept) = self.held.get(node).or_else(|| self.places.get(node)) {
            return Ok(kept.clone());
        }
        handles::open(&self.root, node, libc::O_PATH | libc::O_NOFOLLOW).map(Arc::new)
    }

    /// The same for a directory, to use names in it.
    fn place(&mut self, directory: &Handle) -> Outcome<Arc<OwnedFd>> {
        let place = self.locate(directory)?;
        if !self.places.contains_key(directory) {
            if self.places.len() >= PLACES_MAX {
                self.places.clear();
            }
            self.places.insert(*directory, place.clone());
        }
        Ok(place)
    }

    /// Lets go of directories: one that was removed must be found to be gone.
    fn leave_places(&mut self) {
        self.places.clear();
    }

    fn locate_directory(&self, node: &Handle) -> Outcome<OwnedFd> {
        handles::open(&self.root, node, libc::O_RDONLY | libc::O_DIRECTORY)
    }

    /// The file, open; for writing if that is allowed and wanted.
    fn file(&mut self, node: &Handle, writes: bool) -> Outcome<&OwnedFd> {
        self.uses += 1;
        let is_there = self.open.get(node).is_some_and(|open| open.writes || !writes);
        if !is_there {
            let descriptor = self.open_file(node, writes)?;
            if self.open.len() >= OPEN_MAX {
                self.close_oldest();
            }
            self.open.insert(*node, Open { descriptor, writes, used: 0 });
        }
        let open = self.open.get_mut(node).ok_or(libc::EBADF)?;
        open.used = self.uses;
        Ok(&open.descriptor)
    }

    fn open_file(&self, node: &Handle, writes: bool) -> Outcome<OwnedFd> {
        let access = if writes { libc::O_RDWR } else { libc::O_RDONLY };
        if let Some(held) = self.held.get(node) {
            let path = format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(held));
            let flags = if writes { OFlags::RDWR } else { OFlags::RDONLY };
            return rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).map_err(errno);
        }
        match handles::open(&self.root, node, access | libc::O_NOATIME) {
            // Of a file of somebody else's in a container the time of access is not ours to keep.
            Err(libc::EPERM) => handles::open(&self.root, node, access),
            opened => opened,
        }
    }

    /// A quarter of them at a time, so that the search is paid for.
    fn close_oldest(&mut self) {
        let mut used: Vec<u64> = self.open.values().map(|open| open.used).collect();
        used.sort_unstable();
        let limit = used[used.len() / 4];
        self.open.retain(|_, open| open.used > limit);
    }

    /// A path that leads to the node itself, for calls that take nothing else.
    fn path_of(descriptor: &OwnedFd) -> CString {
        let number = rustix::fd::AsRawFd::as_raw_fd(descriptor);
        CString::new(format!("/proc/self/fd/{number}")).unwrap_or_default()
    }
}

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Directory")
            .field("root", &self.root_handle)
            .field("open", &self.open.len())
            .field("held", &self.held.len())
            .finish_non_exhaustive()
    }
}
