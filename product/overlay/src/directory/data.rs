//! Bytes and attributes of nodes.

use super::syncer::{Job, Syncer, Work};
use super::{Directory, errno, handles};
use crate::lower::{Found, Handle, Lower, Outcome, Settings, ShowName, Status};
use coulter_files::{AllocateMode, NewNode, RenameFlags, Usage, Whence, XattrMode};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FallocateFlags, Gid, Mode, SeekFrom, Timespec, Timestamps, Uid};
use std::ops::Range;
use std::sync::Arc;

/// Bytes that one call copies inside the kernel.
const COPY_MAX: u64 = 16 << 20;

impl Directory {
    /// A descriptor of its own to make a node durable by; none for what cannot be opened without being used.
    fn descriptor_to_sync(&mut self, node: &Handle) -> Outcome<Option<OwnedFd>> {
        let copy =
            |file: &OwnedFd| file.try_clone().map_err(|e| e.raw_os_error().unwrap_or(libc::EIO));
        if let Some(open) = self.open.get(node) {
            return copy(&open.descriptor).map(Some);
        }
        match self.status(node)?.mode & libc::S_IFMT {
            libc::S_IFREG => copy(self.file(node, false)?).map(Some),
            libc::S_IFDIR => self.locate_directory(node).map(Some),
            _ => Ok(None),
        }
    }

    /// Has a thread do it; without threads it is done at once.
    fn begin(&mut self, job: Job) -> Option<Outcome<()>> {
        if self.syncer.is_none() {
            self.syncer = Syncer::start().ok();
        }
        match &self.syncer {
            Some(syncer) => syncer.begin(job),
            None => return Some(job.work.carry_out(&job.file)),
        }
        None
    }
}

impl Lower for Directory {
    fn root(&self) -> Handle {
        self.root_handle
    }

    fn lookup(&mut self, directory: &Handle, name: &[u8]) -> Outcome<Found> {
        self.find(directory, name)
    }

    fn status(&mut self, node: &Handle) -> Outcome<Status> {
        if let Some(open) = self.open.get(node) {
            return self.status_by(&open.descriptor);
        }
        let place = self.locate(node)?;
        self.status_by(&place)
    }

    fn read(&mut self, node: &Handle, offset: u64, bytes: &mut [u8]) -> Outcome<usize> {
        let file = self.file(node, false)?;
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pread(file, &mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(errno(error)),
            }
        }
        Ok(done)
    }

    fn write(&mut self, node: &Handle, offset: u64, bytes: &[u8]) -> Outcome<()> {
        let file = self.file(node, true)?;
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(file, &bytes[done..], offset + done as u64) {
                Ok(0) => return Err(libc::EIO),
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(errno(error)),
            }
        }
        Ok(())
    }

    fn set_size(&mut self, node: &Handle, size: u64) -> Outcome<()> {
        rustix::fs::ftruncate(self.file(node, true)?, size).map_err(errno)
    }

    fn set(&mut self, node: &Handle, settings: &Settings) -> Outcome<()> {
        let place = self.locate(node)?;
        if settings.uid.is_some() || settings.gid.is_some() {
            let uid = settings.uid.map(Uid::from_raw);
            let gid = settings.gid.map(Gid::from_raw);
            rustix::fs::chownat(&place, "", uid, gid, AtFlags::EMPTY_PATH).map_err(errno)?;
        }
        let path = Directory::path_of(&place);
        // After the owner, whose change takes set-uid away.
        if let Some(mode) = settings.mode {
            rustix::fs::chmod(&path, Mode::from_raw_mode(mode & 0o7777)).map_err(errno)?;
        }
        if settings.accessed.is_some() || settings.modified.is_some() {
            let spec = |time: Option<coulter_files::Time>| match time {
                Some(time) => Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() },
                None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
            };
            let times = Timestamps {
                last_access: spec(settings.accessed),
                last_modification: spec(settings.modified),
            };
            rustix::fs::utimensat(rustix::fs::CWD, &path, &times, AtFlags::empty())
                .map_err(errno)?;
        }
        Ok(())
    }

    fn sync(&mut self, node: &Handle) -> Outcome<()> {
        match self.descriptor_to_sync(node)? {
            Some(file) => rustix::fs::fsync(file).map_err(errno),
            None => self.sync_all(),
        }
    }

    fn begin_sync(&mut self, node: &Handle, tag: u64) -> Option<Outcome<()>> {
        match self.descriptor_to_sync(node) {
            Ok(Some(file)) => self.begin(Job { tag, file, work: Work::Sync }),
            Ok(None) => self.begin_sync_all(tag),
            Err(errno) => Some(Err(errno)),
        }
    }

    fn begin_sync_all(&mut self, tag: u64) -> Option<Outcome<()>> {
        match rustix::io::fcntl_dupfd_cloexec(&self.root, 0) {
            Ok(file) => self.begin(Job { tag, file, work: Work::SyncAll }),
            Err(error) => Some(Err(errno(error))),
        }
    }

    fn begin_writing_out(
        &mut self,
        node: &Handle,
        range: Range<u64>,
        tag: u64,
    ) -> Option<Outcome<()>> {
        match self.descriptor_to_sync(node) {
            Ok(Some(file)) => self.begin(Job { tag, file, work: Work::WriteOut(range) }),
            Ok(None) => Some(Ok(())),
            Err(errno) => Some(Err(errno)),
        }
    }

    fn next_synced(&mut self) -> Option<(u64, Outcome<()>)> {
        self.syncer.as_ref()?.next()
    }

    fn synced_fd(&self) -> Option<BorrowedFd<'_>> {
        self.syncer.as_ref().map(Syncer::wake)
    }

    fn sync_all(&mut self) -> Outcome<()> {
        rustix::fs::syncfs(&self.root).map_err(errno)
    }

    fn make(&mut self, directory: &Handle, name: &[u8], new: &NewNode) -> Outcome<Found> {
        self.make_named(directory, name, new)
    }

    fn make_unnamed(&mut self, directory: &Handle, new: &NewNode) -> Outcome<Found> {
        self.make_nameless(directory, new)
    }

    fn link(&mut self, node: &Handle, directory: &Handle, name: &[u8]) -> Outcome<()> {
        let (node, directory) = (self.locate(node)?, self.place(directory)?);
        let name = super::text(name)?;
        rustix::fs::linkat(&node, "", &directory, &name, AtFlags::EMPTY_PATH).map_err(errno)
    }

    fn unlink(&mut self, directory: &Handle, name: &[u8], is_directory: bool) -> Outcome<()> {
        let directory = self.place(directory)?;
        if is_directory {
            self.leave_places();
        }
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        rustix::fs::unlinkat(&directory, &super::text(name)?, flags).map_err(errno)
    }

    fn rename(
        &mut self,
        from: (&Handle, &[u8]),
        to: (&Handle, &[u8]),
        flags: RenameFlags,
    ) -> Outcome<()> {
        let (old, new) = (self.place(from.0)?, self.place(to.0)?);
        self.leave_places();
        let flags = match flags {
            RenameFlags::Replace => rustix::fs::RenameFlags::empty(),
            RenameFlags::NoReplace => rustix::fs::RenameFlags::NOREPLACE,
            RenameFlags::Exchange => rustix::fs::RenameFlags::EXCHANGE,
            RenameFlags::Whiteout { .. } => rustix::fs::RenameFlags::WHITEOUT,
        };
        let (name, new_name) = (super::text(from.1)?, super::text(to.1)?);
        rustix::fs::renameat_with(&old, &name, &new, &new_name, flags).map_err(errno)
    }

    fn target(&mut self, node: &Handle) -> Outcome<Vec<u8>> {
        let place = self.locate(node)?;
        rustix::fs::readlinkat(&place, "", Vec::new())
            .map(std::ffi::CString::into_bytes)
            .map_err(errno)
    }

    fn list(&mut self, directory: &Handle, cookie: u64, show: ShowName<'_>) -> Outcome<()> {
        self.show_names(directory, cookie, show)
    }

    fn xattr(&mut self, node: &Handle, name: &[u8]) -> Outcome<Vec<u8>> {
        let (place, name) = (self.locate(node)?, super::text(name)?);
        let path = Directory::path_of(&place);
        let mut value = vec![0; 256];
        loop {
            match rustix::fs::getxattr(&path, &name, &mut value[..]) {
                Ok(size) => {
                    value.truncate(size);
                    return Ok(value);
                }
                Err(rustix::io::Errno::RANGE) if value.len() < 1 << 16 => value.resize(1 << 16, 0),
                // Where the lower keeps no access control lists, the kernel takes the mode.
                Err(rustix::io::Errno::OPNOTSUPP) if is_access_list(&name) => {
                    return Err(libc::ENODATA);
                }
                Err(error) => return Err(errno(error)),
            }
        }
    }

    fn set_xattr(
        &mut self,
        node: &Handle,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Outcome<()> {
        let (place, name) = (self.locate(node)?, super::text(name)?);
        let flags = match mode {
            XattrMode::Any => rustix::fs::XattrFlags::empty(),
            XattrMode::Create => rustix::fs::XattrFlags::CREATE,
            XattrMode::Replace => rustix::fs::XattrFlags::REPLACE,
        };
        rustix::fs::setxattr(Directory::path_of(&place), &name, value, flags).map_err(errno)
    }

    fn remove_xattr(&mut self, node: &Handle, name: &[u8]) -> Outcome<()> {
        let (place, name) = (self.locate(node)?, super::text(name)?);
        rustix::fs::removexattr(Directory::path_of(&place), &name).map_err(errno)
    }

    fn xattr_names(&mut self, node: &Handle) -> Outcome<Vec<u8>> {
        let place = self.locate(node)?;
        let mut names = vec![0; 1 << 16];
        let size = rustix::fs::listxattr(Directory::path_of(&place), &mut names[..]);
        names.truncate(size.map_err(errno)?);
        Ok(names)
    }

    fn allocate(
        &mut self,
        node: &Handle,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    ) -> Outcome<()> {
        let keep = |keep: bool| {
            if keep { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() }
        };
        let flags = match mode {
            AllocateMode::Allocate { keep_size } => keep(keep_size),
            AllocateMode::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            AllocateMode::Zero { keep_size } => FallocateFlags::ZERO_RANGE | keep(keep_size),
        };
        rustix::fs::fallocate(self.file(node, true)?, flags, offset, length).map_err(errno)
    }

    fn seek(&mut self, node: &Handle, offset: u64, whence: Whence) -> Outcome<u64> {
        let to = match whence {
            Whence::Data => SeekFrom::Data(offset),
            Whence::Hole => SeekFrom::Hole(offset),
        };
        rustix::fs::seek(self.file(node, false)?, to).map_err(errno)
    }

    fn copy(&mut self, from: (&Handle, u64), to: (&Handle, u64), length: u64) -> Outcome<u64> {
        let source = rustix::io::fcntl_dupfd_cloexec(self.file(from.0, false)?, 0);
        let (source, target) = (source.map_err(errno)?, self.file(to.0, true)?);
        let (mut read_at, mut write_at) = (from.1, to.1);
        let length = length.min(COPY_MAX) as usize;
        let copied = rustix::fs::copy_file_range(
            &source,
            Some(&mut read_at),
            target,
            Some(&mut write_at),
            length,
        );
        copied.map(|count| count as u64).map_err(errno)
    }

    fn usage(&mut self) -> Outcome<Usage> {
        let found = rustix::fs::fstatvfs(&self.root).map_err(errno)?;
        let blocks = |count: u64| count.saturating_mul(found.f_frsize) / 4096;
        Ok(Usage {
            blocks: blocks(found.f_blocks),
            free: blocks(found.f_bfree),
            available: blocks(found.f_bavail),
            inodes: found.f_files.saturating_sub(found.f_ffree),
        })
    }

    fn hold(&mut self, node: &Handle) -> Outcome<()> {
        if !self.held.contains_key(node) {
            let place = handles::open(&self.root, node, libc::O_PATH | libc::O_NOFOLLOW)?;
            self.held.insert(*node, Arc::new(place));
        }
        Ok(())
    }

    fn release(&mut self, node: &Handle) {
        self.held.remove(node);
        self.open.remove(node);
    }
}

fn is_access_list(name: &std::ffi::CStr) -> bool {
    [c"system.posix_acl_access", c"system.posix_acl_default"].contains(&name)
}
