//! The calls that the lower directory in memory answers.

use super::lower::{BLOCK, Begun, FIRST, File, ModelLower, ROOT, blocks, handle, key, time};
use super::trace;
use crate::lower::{Found, Handle, Lower, Outcome, Settings, ShowName, Status};
use coulter_files::{AllocateMode, NewNode, RenameFlags, Usage, Whence, XattrMode};
use std::ops::Range;
use std::rc::Rc;

impl Lower for ModelLower {
    fn root(&self) -> Handle {
        handle((ROOT, 0))
    }

    fn lookup(&mut self, _: &Handle, name: &[u8]) -> Outcome<Found> {
        let key = *self.now.names.get(name).ok_or(libc::ENOENT)?;
        let handle = handle(key);
        Ok(Found { handle, status: self.status(&handle)? })
    }

    fn status(&mut self, node: &Handle) -> Outcome<Status> {
        self.fail()?;
        let (number, _) = key(node);
        let zero = time(0);
        let directory = File { links: 2, ..File::default() };
        let (file, kind) = match number {
            ROOT => (&directory, libc::S_IFDIR | 0o755),
            _ => (&**self.file(node)?, libc::S_IFREG),
        };
        let size = file.data.size() as u64;
        Ok(Status {
            number,
            mode: kind | file.mode,
            links: file.links,
            uid: 0,
            gid: 0,
            size,
            sectors: size.div_ceil(512),
            device: 0,
            accessed: zero,
            modified: time(file.modified),
            changed: time(file.changed),
            born: zero,
        })
    }

    fn read(&mut self, node: &Handle, offset: u64, bytes: &mut [u8]) -> Outcome<usize> {
        self.fail()?;
        Ok(self.file(node)?.data.read(offset as usize, bytes))
    }

    fn write(&mut self, node: &Handle, offset: u64, bytes: &[u8]) -> Outcome<()> {
        if let Err(errno) = self.fail() {
            // Some of the first blocks, and no part of one nor of the size.
            let end = (offset + bytes.len() as u64 / 2) / BLOCK * BLOCK;
            let is_within = self.file(node).is_ok_and(|file| end <= file.data.size() as u64);
            if end > offset && is_within && self.half() {
                self.put(node, offset, &bytes[..(end - offset) as usize])?;
            }
            return Err(errno);
        }
        self.put(node, offset, bytes)
    }

    fn set_size(&mut self, node: &Handle, size: u64) -> Outcome<()> {
        self.fail()?;
        trace(|| format!("  below {:?} of size {size}", key(node)));
        self.change(node, |file| {
            file.data.resize(size as usize);
            file.allocated.retain(|block| *block < size.div_ceil(BLOCK));
            file.modified = file.changed;
        })?;
        if let Some(lost) = self.lost.get_mut(&key(node)) {
            // The block that is cut is written again; what lies behind it is gone.
            lost.retain(|block, _| *block < size / BLOCK);
        }
        Ok(())
    }

    fn set(&mut self, node: &Handle, settings: &Settings) -> Outcome<()> {
        self.fail()?;
        self.change(node, |file| {
            file.mode = settings.mode.unwrap_or(file.mode);
            file.modified = settings.modified.map_or(file.modified, |time| time.seconds);
        })
    }

    fn sync(&mut self, node: &Handle) -> Outcome<()> {
        let serial = self.serial;
        self.fail().inspect_err(|_| self.lose(key(node), serial))?;
        self.make_durable(key(node), serial);
        Ok(())
    }

    fn begin_sync(&mut self, node: &Handle, tag: u64) -> Option<Outcome<()>> {
        self.begun.push_back((tag, self.serial, Begun::Sync(key(node))));
        None
    }

    fn begin_sync_all(&mut self, tag: u64) -> Option<Outcome<()>> {
        self.begun.push_back((tag, self.serial, Begun::SyncAll));
        None
    }

    fn begin_writing_out(&mut self, _: &Handle, _: Range<u64>, tag: u64) -> Option<Outcome<()>> {
        self.begun.push_back((tag, self.serial, Begun::WriteOut));
        None
    }

    fn next_synced(&mut self) -> Option<(u64, Outcome<()>)> {
        self.ended.pop_front()
    }

    fn sync_all(&mut self) -> Outcome<()> {
        self.fail()?;
        self.make_all_durable(self.serial);
        Ok(())
    }

    fn unlink(&mut self, _: &Handle, name: &[u8], _: bool) -> Outcome<()> {
        self.fail()?;
        let key = *self.now.names.get(name).ok_or(libc::ENOENT)?;
        self.note_history();
        self.rename_now(vec![(name.to_vec(), None)]);
        self.drop_link(key)
    }

    fn xattr(&mut self, node: &Handle, name: &[u8]) -> Outcome<Vec<u8>> {
        self.fail()?;
        self.file(node)?.xattrs.get(name).cloned().ok_or(libc::ENODATA)
    }

    fn set_xattr(&mut self, node: &Handle, name: &[u8], value: &[u8], _: XattrMode) -> Outcome<()> {
        self.fail()?;
        self.change(node, |file| drop(file.xattrs.insert(name.to_vec(), value.to_vec())))
    }

    fn remove_xattr(&mut self, node: &Handle, name: &[u8]) -> Outcome<()> {
        self.fail()?;
        if !self.file(node)?.xattrs.contains_key(name) {
            return Err(libc::ENODATA);
        }
        self.change(node, |file| drop(file.xattrs.remove(name)))
    }

    fn allocate(
        &mut self,
        node: &Handle,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    ) -> Outcome<()> {
        let failed = self.fail();
        if failed.is_err() && !self.half() {
            return failed;
        }
        // Some of the first blocks.
        let length = if failed.is_err() { length / 2 / BLOCK * BLOCK } else { length };
        let is_zeroed = matches!(mode, AllocateMode::Punch | AllocateMode::Zero { .. });
        self.change(node, |file| {
            file.allocated.extend(blocks(offset, length));
            if is_zeroed {
                let end = file.data.size().min((offset + length) as usize);
                let start = end.min(offset as usize);
                file.data.write(start, &vec![0; end - start]);
            }
            file.modified = file.changed;
        })?;
        failed
    }

    fn seek(&mut self, node: &Handle, offset: u64, whence: Whence) -> Outcome<u64> {
        self.fail()?;
        let file = self.file(node)?;
        let size = file.data.size() as u64;
        let hole = blocks(offset, size.saturating_sub(offset))
            .find(|block| !file.allocated.contains(block))
            .map_or(size, |block| (block * BLOCK).max(offset));
        match whence {
            _ if offset >= size => Err(libc::ENXIO),
            Whence::Data => Ok(offset),
            Whence::Hole => Ok(hole),
        }
    }

    fn hold(&mut self, node: &Handle) -> Outcome<()> {
        self.fail()?;
        self.file(node)?;
        self.held.insert(key(node));
        Ok(())
    }

    fn release(&mut self, node: &Handle) {
        self.held.remove(&key(node));
        self.reap(key(node));
    }

    fn make(&mut self, _: &Handle, name: &[u8], new: &NewNode) -> Outcome<Found> {
        self.fail()?;
        if self.now.names.contains_key(name) {
            return Err(libc::EEXIST);
        }
        // A number comes again as soon as it is free.
        let is_free = |number: &u64| self.now.files.keys().all(|key| key.0 != *number);
        let number = (FIRST..).find(is_free).expect("there are enough");
        self.generation += 1;
        self.clock += 1;
        self.note_history();
        let (key, clock) = ((number, self.generation), self.clock);
        let mode = new.mode & 0o7777;
        let file = File { links: 1, mode, modified: clock, changed: clock, ..File::default() };
        self.now.files.insert(key, Rc::new(file));
        self.note_version(key);
        self.rename_now(vec![(name.to_vec(), Some(key))]);
        let faults = self.faults.take();
        let found = self.lookup(&self.root(), name);
        self.faults = faults;
        found
    }

    fn make_unnamed(&mut self, _: &Handle, _: &NewNode) -> Outcome<Found> {
        Err(libc::EOPNOTSUPP)
    }

    fn link(&mut self, _: &Handle, _: &Handle, _: &[u8]) -> Outcome<()> {
        Err(libc::EOPNOTSUPP)
    }

    fn rename(
        &mut self,
        from: (&Handle, &[u8]),
        to: (&Handle, &[u8]),
        flags: RenameFlags,
    ) -> Outcome<()> {
        self.fail()?;
        let moved = *self.now.names.get(from.1).ok_or(libc::ENOENT)?;
        let replaced = self.now.names.get(to.1).copied();
        if flags == RenameFlags::NoReplace && replaced.is_some() {
            return Err(libc::EEXIST);
        }
        let exchanged =
            if flags == RenameFlags::Exchange { Some(replaced.ok_or(libc::ENOENT)?) } else { None };
        if replaced == Some(moved) {
            return Ok(());
        }
        self.touched(moved)?;
        self.rename_now(vec![(from.1.to_vec(), exchanged), (to.1.to_vec(), Some(moved))]);
        self.note_version(moved);
        match replaced {
            Some(replaced) if exchanged.is_none() => self.drop_link(replaced),
            _ => Ok(()),
        }
    }

    fn target(&mut self, _: &Handle) -> Outcome<Vec<u8>> {
        Err(libc::EINVAL)
    }

    fn list(&mut self, _: &Handle, _: u64, _: ShowName<'_>) -> Outcome<()> {
        Err(libc::EOPNOTSUPP)
    }

    fn xattr_names(&mut self, _: &Handle) -> Outcome<Vec<u8>> {
        Err(libc::EOPNOTSUPP)
    }

    fn copy(&mut self, _: (&Handle, u64), _: (&Handle, u64), _: u64) -> Outcome<u64> {
        Err(libc::EOPNOTSUPP)
    }

    fn usage(&mut self) -> Outcome<Usage> {
        Err(libc::EOPNOTSUPP)
    }
}
