//! Whether a directory can be below an overlay, and opening it.

use super::{Directory, apart, errno, handles};
use crate::MARK;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags, StatVfsMountFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::Path;

/// File systems whose `fsync` or handles mean too little, or which other hosts change: their number and name.
const UNFIT: [(i64, &str); 15] = [
    (0x6573_5546, "FUSE"),
    (0x6969, "NFS"),
    (0xff53_4d42, "SMB"),
    (0xfe53_4d42, "SMB"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x7461_636f, "OCFS2"),
    (0x0116_1970, "GFS2"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x794c_7630, "overlayfs"),
];

/// Why a directory cannot be below an overlay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A call failed: which, and the error number.
    #[error("cannot {}: {}", .0, text(.1))]
    System(&'static str, i32),
    /// Its file system is of a kind whose `fsync` or handles mean too little.
    #[error("it lies on {0}, which keeps too few promises for an overlay")]
    Kind(&'static str),
    /// It is mounted read-only.
    #[error("its file system is read-only")]
    ReadOnly,
    /// It has no file handles, or they take privileges.
    #[error(
        "its file system gives no file handles ({}), by which an overlay knows its files",
        text(.0)
    )]
    NoHandles(i32),
    /// It keeps no extended attributes.
    #[error(
        "its file system keeps no extended attributes ({}), by which an overlay marks files",
        text(.0)
    )]
    NoAttributes(i32),
}

fn text(errno: &i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(*errno)
}

impl Directory {
    /// Opens the directory at `path`. What is mounted over it later does not matter: all that is asked of it
    /// goes through a mount of its own.
    ///
    /// # Errors
    /// [`OpenError`]: why it cannot be below an overlay.
    pub fn open(path: &Path) -> Result<Directory, OpenError> {
        let system = |step| move |error| OpenError::System(step, errno(error));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty()).map_err(system("open it"))?;
        check_kind(&root)?;
        let root = apart::own_mount(&root).map_err(system("make a mount of its own of it"))?;
        let handle = handles::handle_of(&root, c"").map_err(OpenError::NoHandles)?;
        handles::open(&root, &handle, libc::O_PATH).map_err(OpenError::NoHandles)?;
        match rustix::fs::fsetxattr(&root, MARK, &[0; 16], rustix::fs::XattrFlags::empty()) {
            Ok(()) => {
                rustix::fs::fremovexattr(&root, MARK).map_err(system("remove an attribute"))?;
            }
            // A full file system must be served too: what cannot be marked stays in place.
            Err(Errno::NOSPC | Errno::DQUOT) => {}
            Err(error) => return Err(OpenError::NoAttributes(errno(error))),
        }
        let found = rustix::fs::statx(&root, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
        let found = found.map_err(system("look at it"))?;
        Ok(Directory {
            root,
            root_handle: handle,
            device: (found.stx_dev_major, found.stx_dev_minor),
            open: HashMap::new(),
            held: HashMap::new(),
            places: HashMap::new(),
            uses: 0,
            syncer: None,
        })
    }
}

fn check_kind(root: &OwnedFd) -> Result<(), OpenError> {
    let system = |step| move |error| OpenError::System(step, errno(error));
    let found = rustix::fs::fstatfs(root).map_err(system("look at its file system"))?;
    if let Some(name) = unfit(found.f_type as i64) {
        return Err(OpenError::Kind(name));
    }
    let found = rustix::fs::fstatvfs(root).map_err(system("look at its file system"))?;
    if found.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(OpenError::ReadOnly);
    }
    Ok(())
}

/// The name of a kind of file system that cannot be below.
fn unfit(kind: i64) -> Option<&'static str> {
    UNFIT.iter().find(|(number, _)| *number == kind & 0xffff_ffff).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_unfit_and_those_that_are_named_are_not() {
        assert_eq!(unfit(libc::NFS_SUPER_MAGIC), Some("NFS"));
        assert_eq!(unfit(libc::AFS_SUPER_MAGIC), Some("AFS"));
        // Where the field has 32 bits the sign comes along.
        assert_eq!(unfit(i64::from(0xff53_4d42_u32 as i32)), Some("SMB"));
        let fit = [libc::EXT4_SUPER_MAGIC, libc::XFS_SUPER_MAGIC, libc::BTRFS_SUPER_MAGIC];
        assert!(fit.into_iter().all(|kind| unfit(kind).is_none()));
    }
}
