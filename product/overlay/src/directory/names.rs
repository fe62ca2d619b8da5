//! Names: finding, making and listing.

use super::{Directory, Open, errno, handles, text};
use crate::lower::{Found, Handle, Outcome, ShowName};
use coulter_files::NewNode;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RawDir, SeekFrom, Uid};
use rustix::io::Errno;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Bytes of names that are read at a time.
const LIST_SIZE: usize = 32 << 10;

impl Directory {
    pub(super) fn find(&mut self, directory: &Handle, name: &[u8]) -> Outcome<Found> {
        let (directory, name) = (self.place(directory)?, text(name)?);
        self.find_in(&directory, &name)
    }

    fn find_in(&self, directory: &OwnedFd, name: &CString) -> Outcome<Found> {
        let status = self.statx(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let handle = handles::handle_of(directory, name)?;
        Ok(Found { handle, status })
    }

    pub(super) fn make_named(
        &mut self,
        directory: &Handle,
        name: &[u8],
        new: &NewNode,
    ) -> Outcome<Found> {
        let (place, name) = (self.place(directory)?, text(name)?);
        let permissions = permissions(&place, new);
        let is_directory = new.mode & libc::S_IFMT == libc::S_IFDIR;
        if let Some(target) = &new.target {
            rustix::fs::symlinkat(text(target)?, &place, &name).map_err(errno)?;
        } else if is_directory {
            rustix::fs::mkdirat(&place, &name, permissions).map_err(errno)?;
        } else {
            let kind = FileType::from_raw_mode(new.mode);
            let device = new.device.into();
            rustix::fs::mknodat(&place, &name, kind, permissions, device).map_err(errno)?;
        }
        self.give_owner(&place, &name, new).inspect_err(|_| {
            let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            // It was never seen; if it cannot be taken away it stays, empty and root's.
            let _ = rustix::fs::unlinkat(&place, &name, flags);
        })?;
        self.find_in(&place, &name)
    }

    /// Who asked owns it; its group is the directory's where that has set-gid.
    fn give_owner(&self, place: &OwnedFd, name: &CString, new: &NewNode) -> Outcome<()> {
        let parent = self.status_by(place)?;
        let gid = (parent.mode & libc::S_ISGID == 0).then(|| Gid::from_raw(new.gid));
        let uid = Some(Uid::from_raw(new.uid));
        rustix::fs::chownat(place, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(errno)?;
        if new.target.is_some() {
            return Ok(());
        }
        let made = self.statx(place, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match missing_bits(place, made.mode, permissions(place, new).as_raw_mode()) {
            Some(mode) => rustix::fs::chmodat(place, name, mode, AtFlags::empty()).map_err(errno),
            None => Ok(()),
        }
    }

    pub(super) fn make_nameless(&mut self, directory: &Handle, new: &NewNode) -> Outcome<Found> {
        let place = self.place(directory)?;
        let parent = self.status_by(&place)?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let permissions = permissions(&place, new);
        let path = Directory::path_of(&place);
        let descriptor = rustix::fs::open(path, flags, permissions).map_err(errno)?;
        let gid = (parent.mode & libc::S_ISGID == 0).then(|| Gid::from_raw(new.gid));
        rustix::fs::fchown(&descriptor, Some(Uid::from_raw(new.uid)), gid).map_err(errno)?;
        let made = self.status_by(&descriptor)?.mode;
        if let Some(mode) = missing_bits(&place, made, permissions.as_raw_mode()) {
            rustix::fs::fchmod(&descriptor, mode).map_err(errno)?;
        }
        let handle = handles::handle_of(&descriptor, c"")?;
        let status = self.status_by(&descriptor)?;
        let held = rustix::io::fcntl_dupfd_cloexec(&descriptor, 0).map_err(errno)?;
        self.held.insert(handle, Arc::new(held));
        self.uses += 1;
        self.open.insert(handle, Open { descriptor, writes: true, used: self.uses });
        Ok(Found { handle, status })
    }

    pub(super) fn show_names(
        &mut self,
        directory: &Handle,
        cookie: u64,
        show: ShowName<'_>,
    ) -> Outcome<()> {
        let place = self.locate_directory(directory)?;
        if cookie != 0 {
            rustix::fs::seek(&place, SeekFrom::Start(cookie)).map_err(errno)?;
        }
        let mut buffer = [MaybeUninit::uninit(); LIST_SIZE];
        let mut entries = RawDir::new(&place, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(errno)?;
            let kind = (entry.file_type().as_raw_mode() >> 12) as u8 & 15;
            let name = entry.file_name().to_bytes();
            if !show(name, entry.ino(), kind, entry.next_entry_cookie()) {
                break;
            }
        }
        Ok(())
    }
}

/// The permissions to ask the lower for: without the caller's umask, unless the directory `place` has a
/// default access control list, which decides instead.
fn permissions(place: &OwnedFd, new: &NewNode) -> Mode {
    let (asked, masked) = (new.mode & 0o7777, new.mode & 0o7777 & !(new.umask & 0o777));
    Mode::from_raw_mode(if masked != asked && has_default_list(place) { asked } else { masked })
}

/// The mode to set where bits that were asked for are not there: the umask of this process took them, the
/// caller's is in what was asked for; or the change of owner took set-uid. What the default access control
/// list of the directory `place` took stays away: the umask has no effect there.
fn missing_bits(place: &OwnedFd, made: u32, asked: u32) -> Option<Mode> {
    let mut missing = asked & 0o7777 & !made;
    if missing & 0o777 != 0 && has_default_list(place) {
        missing &= 0o7000;
    }
    (missing != 0).then(|| Mode::from_raw_mode((made | missing) & 0o7777))
}

fn has_default_list(place: &OwnedFd) -> bool {
    let path = Directory::path_of(place);
    let found = rustix::fs::getxattr(path, "system.posix_acl_default", &mut [0_u8; 4]);
    // It may be longer than what is read of it: that it is there is enough.
    !matches!(found, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::XattrFlags;

    #[test]
    fn what_a_default_list_takes_away_is_not_given_back() {
        let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let place = rustix::fs::open(folder.path(), flags, Mode::empty()).expect("it is there");
        assert_eq!(missing_bits(&place, 0o600, 0o4664), Some(Mode::from_raw_mode(0o4664)));
        assert_eq!(missing_bits(&place, 0o664, 0o660), None);
        // Version 2; owner rwx, group r-x, others nothing.
        let list = [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 5, 0, 255, 255, 255, 255]
            .iter()
            .chain(&[0x20, 0, 0, 0, 255, 255, 255, 255])
            .copied()
            .collect::<Vec<u8>>();
        let name = "system.posix_acl_default";
        rustix::fs::setxattr(folder.path(), name, &list, XattrFlags::empty())
            .expect("the file system keeps lists");
        assert_eq!(missing_bits(&place, 0o640, 0o664), None);
        assert_eq!(missing_bits(&place, 0o640, 0o4664), Some(Mode::from_raw_mode(0o4640)));
    }
}
