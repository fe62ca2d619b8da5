//! What is the lower directory's alone: names, links, permissions, attributes (R7).

use crate::io::{Stage, Then};
use crate::lower::{Found, Handle, Lower, Outcome, Settings};
use crate::overlay::{Overlay, Remap, SettleWhen, Work};
use crate::store::Adopted;
use crate::sync::Waiter;
use crate::{
    ADOPT_ATTRIBUTE, HIDDEN, MARK, ORPHANS_ATTRIBUTE, REMAP_ATTRIBUTE, SETTLE_ATTRIBUTE,
    STATUS_ATTRIBUTE,
};
use coulter_files::{
    Changes, Listed, Listing, Name, ROOT, RenameFlags, Reply, Request, SetTime, Time, Whence,
};

/// Bytes of one copy.
const COPY_MAX: u64 = 16 << 20;
/// Bytes in an answer before a name, without and with attributes.
const LISTED_SIZE: usize = 24;
const LISTED_PLUS_SIZE: usize = 152;

/// Changes as they are set below.
pub(crate) fn settings_of(changes: &Changes, now: Time) -> Settings {
    let time = |set: Option<SetTime>| {
        set.map(|set| match set {
            SetTime::Now => now,
            SetTime::To(time) => time,
        })
    };
    Settings {
        mode: changes.mode,
        uid: changes.uid,
        gid: changes.gid,
        accessed: time(changes.accessed),
        modified: time(changes.modified),
    }
}

impl<L: Lower> Overlay<L> {
    /// That a name is not the one that is hidden.
    fn check_name(&self, directory: u64, name: &Name, errno: i32) -> Outcome<Handle> {
        if directory == ROOT && name.bytes() == HIDDEN.as_bytes() {
            return Err(errno);
        }
        self.handle_of(directory)
    }

    pub(crate) fn execute_names(&mut self, work: Work) {
        if matches!(work.request, Request::Rename { .. }) {
            return self.rename(work);
        }
        if matches!(work.request, Request::Unlink { .. }) {
            return self.unlink(work);
        }
        let Work { id, request, now, .. } = work;
        let result = match request {
            Request::SetXattr { inode, ref name, ref value, .. }
                if name.bytes() == ADOPT_ATTRIBUTE.as_bytes() =>
            {
                match self.adopt_orphan(id, inode, value) {
                    Ok(()) => return,
                    Err(errno) => Err(errno),
                }
            }
            Request::Sync => return self.sync_everything(id),
            Request::SyncNode { inode } => {
                let waiter = Waiter { id, reply: Reply::Done };
                return self.syncs.push((waiter, inode));
            }
            Request::Settle => return self.settle_everything(id),
            Request::Lookup { directory, name } => self.lookup(directory, &name),
            Request::Attributes { inode } => self.attributes(inode).map(Reply::Attributes),
            Request::Change { inode, changes } => self
                .change_lower(inode, &changes, now)
                .and_then(|()| self.attributes(inode))
                .map(Reply::Attributes),
            Request::ReadLink { inode } => self
                .handle_of(inode)
                .and_then(|handle| self.lower.target(&handle))
                .map(Reply::Bytes),
            Request::Make { directory, name, new } => {
                self.check_name(directory, &name, libc::EEXIST).and_then(|handle| {
                    let found = self.lower.make(&handle, name.bytes(), &new)?;
                    self.touch(directory);
                    self.know(&found).map(Reply::Entry)
                })
            }
            Request::MakeUnnamed { directory, new } => {
                self.handle_of(directory).and_then(|handle| {
                    let found = self.lower.make_unnamed(&handle, &new)?;
                    let known = self.know(&found)?;
                    if let Some(node) = self.nodes.get_mut(&known.number) {
                        node.is_gone = true;
                    }
                    Ok(Reply::Entry(known))
                })
            }
            Request::Link { inode, directory, name } => self.link(inode, directory, &name),
            Request::RemoveDirectory { directory, name } => {
                self.check_name(directory, &name, libc::ENOENT).and_then(|handle| {
                    let found = self.look_for(&handle, &name)?;
                    self.unlink_below((directory, &handle), &name, found.as_ref(), true)
                })
            }
            Request::List { directory, cookie, size, with_attributes } => {
                self.list(directory, cookie, size as usize, with_attributes)
            }
            Request::Xattr { inode, name } => self.xattr(inode, &name),
            Request::SetXattr { inode, name, value, mode, kills_set_gid } => {
                self.set_xattr(inode, &name, &value, mode, kills_set_gid)
            }
            Request::RemoveXattr { inode, name } => self.remove_xattr(inode, &name),
            Request::XattrNames { inode } => self.xattr_names(inode),
            Request::Statistics => self.lower.usage().map(Reply::Usage),
            request => unreachable!("{request:?} is about content"),
        };
        self.answer(id, result);
    }

    /// Serves a request that takes no lock: a seek at once, any other when the file has come home.
    pub(crate) fn execute_whole(&mut self, record: u32, work: Work) {
        if let Request::Seek { offset, whence, .. } = work.request {
            // That all of it is data is true enough.
            let size = self.store.adopted(record).record.size;
            let result = match whence {
                _ if offset >= size => Err(libc::ENXIO),
                Whence::Data => Ok(Reply::Offset(offset)),
                Whence::Hole => Ok(Reply::Offset(size)),
            };
            return self.answer(work.id, result);
        }
        self.settle_for(record, work);
    }

    /// What touches the content of a file of which nothing is here, reads and writes apart.
    pub(crate) fn execute_other(&mut self, work: Work) {
        let Work { id, request, now, .. } = work;
        let result = match request {
            Request::Change { inode, changes } => self.resize(inode, &changes, now),
            Request::Allocate { inode, offset, length, mode } => {
                self.handle_of(inode).and_then(|handle| {
                    // Here it is root who does it, from whom the lower file system takes none.
                    self.strip_privileges(inode, &handle)?;
                    self.touch(inode);
                    self.lower.allocate(&handle, offset, length, mode)?;
                    Ok(Reply::Done)
                })
            }
            Request::Seek { inode, offset, whence } => self
                .handle_of(inode)
                .and_then(|handle| self.lower.seek(&handle, offset, whence))
                .map(Reply::Offset),
            Request::Copy { from, from_offset, to, to_offset, length } => {
                let handles =
                    self.handle_of(from).and_then(|source| Ok((source, self.handle_of(to)?)));
                match handles {
                    Ok((source, target)) => {
                        if let Some(record) = self.store.record_of(to, &target) {
                            let request =
                                Request::Copy { from, from_offset, to, to_offset, length };
                            return self.settle_for(record, Work::new(id, request, now));
                        }
                        let length = length.min(COPY_MAX);
                        let copied = self.strip_privileges(to, &target).and_then(|()| {
                            self.lower.copy((&source, from_offset), (&target, to_offset), length)
                        });
                        self.touch(to);
                        copied.map(|count| Reply::Written(count as u32, Default::default()))
                    }
                    Err(errno) => Err(errno),
                }
            }
            request => unreachable!("{request:?} is about names"),
        };
        self.answer(id, result);
    }

    fn resize(&mut self, number: u64, changes: &Changes, now: Time) -> Outcome<Reply> {
        let handle = self.handle_of(number)?;
        if let Some(size) = changes.size {
            // A call that fails may have done its work, and what comes behind it may fail.
            self.touch(number);
            self.lower.set_size(&handle, size)?;
        }
        self.change_lower(number, &Changes { size: None, ..*changes }, now)?;
        self.attributes(number).map(Reply::Attributes)
    }

    fn lookup(&mut self, directory: u64, name: &Name) -> Outcome<Reply> {
        if name.bytes() == b"." {
            // A server of files asks so for what it has a number of only.
            let known = self.handle_of(directory).ok();
            let handle = known.or_else(|| self.remembered.handle_of(directory));
            let handle = handle.ok_or(libc::ESTALE)?;
            let found = Found { handle, status: self.lower.status(&handle)? };
            return self.know(&found).map(Reply::Entry);
        }
        let handle = self.check_name(directory, name, libc::ENOENT)?;
        if directory == ROOT && name.bytes() == b".." {
            // What lies above it is none of the mount.
            let found = Found { handle, status: self.lower.status(&handle)? };
            return self.know(&found).map(Reply::Entry);
        }
        let found = self.lower.lookup(&handle, name.bytes())?;
        self.know(&found).map(Reply::Entry)
    }

    /// After a change of our own to a node that may have a record.
    fn note_change(&mut self, number: u64, handle: &Handle) {
        self.touch(number);
        if let Some(record) = self.store.record_of(number, handle) {
            self.note_lower(record);
        }
    }

    fn link(&mut self, inode: u64, directory: u64, name: &Name) -> Outcome<Reply> {
        let handle = self.check_name(directory, name, libc::EEXIST)?;
        let node = self.handle_of(inode)?;
        self.touch(directory);
        self.lower.link(&node, &handle, name.bytes())?;
        if let Some(known) = self.nodes.get_mut(&inode)
            && known.is_gone
        {
            known.is_gone = false;
            self.lower.release(&node);
            self.revive(inode, &node);
        }
        self.note_change(inode, &node);
        let found = Found { handle: node, status: self.lower.status(&node)? };
        self.know(&found).map(Reply::Entry)
    }

    /// A file that was losing its last name has one again.
    fn revive(&mut self, number: u64, handle: &Handle) {
        let Some(record) = self.store.record_of(number, handle) else { return };
        if self.store.adopted(record).record.is_nameless {
            self.store.change(record, |adopted| adopted.record.is_nameless = false);
            self.write_record(record);
        }
    }

    /// The record that has to say durably that its file loses its last name, before this name goes (R7).
    fn doomed(&mut self, found: Option<&Found>, is_saved: bool) -> Option<u32> {
        let found = found?;
        let number = self.number_of(found).ok()?;
        let record = self.store.record_of(number, &found.handle)?;
        if found.status.links != 1 || crate::is_broken("R7") {
            return None;
        }
        let say = |adopted: &mut Adopted| std::mem::replace(&mut adopted.record.is_nameless, true);
        let was_said = self.store.change(record, say);
        (!was_said || !is_saved).then_some(record)
    }

    /// Looks up a name that is about to go: only a known file can be held.
    fn look_for(&mut self, directory: &Handle, name: &Name) -> Outcome<Option<Found>> {
        match self.lower.lookup(directory, name.bytes()) {
            Ok(found) => Ok(Some(found)),
            Err(libc::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Before a name goes: what it stands for is held if the kernel knows it.
    fn before_unlink(&mut self, found: Option<&Found>) -> Outcome<Option<Found>> {
        let Some(found) = found else { return Ok(None) };
        let number = self.number_of(found)?;
        if self.nodes.get(&number).is_none_or(|node| node.handle != found.handle) {
            return Ok(None);
        }
        if let Err(errno) = self.lower.hold(&found.handle) {
            // It keeps its name.
            self.revive(number, &found.handle);
            return Err(errno);
        }
        Ok(Some(*found))
    }

    /// After that: what has no name any more stays held.
    fn after_unlink(&mut self, target: Option<Found>, is_taken: bool) {
        let Some(found) = target else { return };
        let (number, handle) = (found.status.number, found.handle);
        let is_directory = found.status.mode & libc::S_IFMT == libc::S_IFDIR;
        let is_gone = match self.lower.status(&handle) {
            Ok(status) => status.links == 0 || is_directory && status.links < 2,
            // The status before the call tells as well.
            Err(_) => is_taken && (is_directory || found.status.links == 1),
        };
        if is_gone {
            if let Some(node) = self.nodes.get_mut(&number) {
                node.is_gone = true;
            }
        } else {
            let is_held = self.nodes.get(&number).is_some_and(|node| node.is_gone);
            if !is_held {
                self.lower.release(&handle);
            }
            self.revive(number, &handle);
        }
        self.note_change(number, &handle);
    }

    fn unlink(&mut self, work: Work) {
        let Request::Unlink { directory, ref name } = work.request else {
            unreachable!("only files without a name to come come here")
        };
        let handle = match self.check_name(directory, name, libc::ENOENT) {
            Ok(handle) => handle,
            Err(errno) => return self.answer(work.id, Err(errno)),
        };
        let found = match self.look_for(&handle, name) {
            Ok(found) => found,
            Err(errno) => return self.answer(work.id, Err(errno)),
        };
        if let Some(record) = self.doomed(found.as_ref(), work.is_saved) {
            return self.save_first(record, work);
        }
        let result = self.unlink_below((directory, &handle), name, found.as_ref(), false);
        self.answer(work.id, result);
    }

    fn unlink_below(
        &mut self,
        (directory, handle): (u64, &Handle),
        name: &Name,
        found: Option<&Found>,
        is_directory: bool,
    ) -> Outcome<Reply> {
        let target = self.before_unlink(found)?;
        let result = self.lower.unlink(handle, name.bytes(), is_directory);
        self.touch(directory);
        self.after_unlink(target, result.is_ok());
        result.map(|()| Reply::Done)
    }

    /// Makes a record durable, and goes on with the request then.
    fn save_first(&mut self, record: u32, work: Work) {
        self.save_record(record, None, Then::Retry(Box::new(Work { is_saved: true, ..work })));
    }

    fn rename(&mut self, work: Work) {
        let Request::Rename { from, ref name, to, ref new_name, flags } = work.request else {
            unreachable!("only renames come here")
        };
        let handles = self
            .check_name(from, name, libc::ENOENT)
            .and_then(|from| Ok((from, self.check_name(to, new_name, libc::EEXIST)?)));
        let (source, target) = match handles {
            Ok(handles) => handles,
            Err(errno) => return self.answer(work.id, Err(errno)),
        };
        let found = self
            .look_for(&source, name)
            .and_then(|moved| Ok((moved, self.look_for(&target, new_name)?)));
        let (moved, replaced) = match found {
            Ok(found) => found,
            Err(errno) => return self.answer(work.id, Err(errno)),
        };
        let record =
            moved.and_then(|found| self.store.record_of(found.status.number, &found.handle));
        let replaces = replaced.is_some();
        let doomed = match flags {
            RenameFlags::Replace | RenameFlags::Whiteout { .. } => {
                self.doomed(replaced.as_ref(), work.is_saved)
            }
            RenameFlags::NoReplace | RenameFlags::Exchange => None,
        };
        if let Some(doomed) = doomed {
            // The record of the file that replaces it goes with the same flush.
            record.into_iter().for_each(|record| self.write_record(record));
            return self.save_first(doomed, work);
        }
        if let Some(record) = record
            && replaces
            && !self.order.is_clean()
            && !work.is_saved
        {
            // What replaces another file is whole when it does (R7).
            return self.save_first(record, work);
        }
        let result =
            self.rename_below((source, name), (target, new_name), replaced.as_ref(), flags);
        self.touch(from);
        self.touch(to);
        if let Some(found) = moved {
            self.note_change(found.status.number, &found.handle);
        }
        self.answer(work.id, result);
    }

    fn rename_below(
        &mut self,
        from: (Handle, &Name),
        to: (Handle, &Name),
        found: Option<&Found>,
        flags: RenameFlags,
    ) -> Outcome<Reply> {
        let replaced = match flags {
            RenameFlags::NoReplace => None,
            _ => self.before_unlink(found)?,
        };
        let places = ((&from.0, from.1.bytes()), (&to.0, to.1.bytes()));
        let result = self.lower.rename(places.0, places.1, flags);
        self.after_unlink(replaced, result.is_ok() && flags != RenameFlags::Exchange);
        result.map(|()| Reply::Done)
    }

    fn list(
        &mut self,
        directory: u64,
        cookie: u64,
        size: usize,
        with_attributes: bool,
    ) -> Outcome<Reply> {
        let handle = self.handle_of(directory)?;
        let fixed = if with_attributes { LISTED_PLUS_SIZE } else { LISTED_SIZE };
        let (mut listing, mut used) = (Listing::default(), 0);
        self.lower.list(&handle, cookie, &mut |name, inode, kind, cookie| {
            if directory == ROOT && name == HIDDEN.as_bytes() {
                return true;
            }
            used += (fixed + name.len()).next_multiple_of(8);
            if used > size {
                return false;
            }
            let start = listing.names.len() as u32;
            listing.names.extend_from_slice(name);
            let name = (start, name.len() as u8);
            listing.entries.push(Listed { cookie, inode, kind, name, attributes: None });
            true
        })?;
        let entries = std::mem::take(&mut listing.entries);
        for mut entry in entries {
            let name = listing.name(&entry);
            let is_special = name == b"." || name == b"..";
            if directory == ROOT && is_special {
                entry.inode = ROOT;
            } else if with_attributes && !is_special {
                // What cannot be looked at is listed all the same.
                if let Ok(found) = self.lower.lookup(&handle, name)
                    && let Ok(known) = self.know(&found)
                {
                    entry.inode = known.number;
                    entry.attributes = Some(known.inode);
                }
            }
            listing.entries.push(entry);
        }
        Ok(Reply::Listing(listing))
    }

    /// The node, if the attribute is one that its users may change.
    fn marked(&self, inode: u64, name: &Name) -> Outcome<Handle> {
        if name.bytes() == MARK.as_bytes() || name.bytes() == STATUS_ATTRIBUTE.as_bytes() {
            return Err(libc::EPERM);
        }
        self.handle_of(inode)
    }

    fn xattr(&mut self, inode: u64, name: &Name) -> Outcome<Reply> {
        if name.bytes() == MARK.as_bytes() {
            return Err(libc::ENODATA);
        }
        if inode == ROOT && name.bytes() == STATUS_ATTRIBUTE.as_bytes() {
            return Ok(Reply::Bytes(self.report().into_bytes()));
        }
        if inode == ROOT && name.bytes() == REMAP_ATTRIBUTE.as_bytes() {
            return Ok(Reply::Bytes(self.options.remap.word().into()));
        }
        if inode == ROOT && name.bytes() == SETTLE_ATTRIBUTE.as_bytes() {
            return Ok(Reply::Bytes(self.options.settle.word().into()));
        }
        let first = name.bytes().strip_prefix(ORPHANS_ATTRIBUTE.as_bytes());
        if let Some(first) = first.filter(|_| inode == ROOT) {
            let first = std::str::from_utf8(first).ok().and_then(|first| first.parse().ok());
            return Ok(Reply::Bytes(self.orphans_from(first.ok_or(libc::EINVAL)?).into_bytes()));
        }
        let handle = self.handle_of(inode)?;
        self.lower.xattr(&handle, name.bytes()).map(Reply::Bytes)
    }

    fn set_xattr(
        &mut self,
        inode: u64,
        name: &Name,
        value: &[u8],
        mode: coulter_files::XattrMode,
        kills_set_gid: bool,
    ) -> Outcome<Reply> {
        if inode == ROOT && name.bytes() == REMAP_ATTRIBUTE.as_bytes() {
            let named = Remap::NAMED.iter().find(|(word, _)| word.as_bytes() == value);
            self.options.remap = named.ok_or(libc::EINVAL)?.1;
            return Ok(Reply::Done);
        }
        if inode == ROOT && name.bytes() == SETTLE_ATTRIBUTE.as_bytes() {
            let named = SettleWhen::NAMED.iter().find(|(word, _)| word.as_bytes() == value);
            self.options.settle = named.ok_or(libc::EINVAL)?.1;
            return Ok(Reply::Done);
        }
        let handle = self.marked(inode, name)?;
        if let Some(record) = self.store.record_of(inode, &handle) {
            self.store.adopted_mut(record).may_have_capability = true;
            self.store.unnoted.insert(record);
        }
        self.touch(inode);
        self.lower.set_xattr(&handle, name.bytes(), value, mode)?;
        if kills_set_gid {
            let mode = self.lower.status(&handle)?.mode & 0o7777 & !libc::S_ISGID;
            self.lower.set(&handle, &Settings { mode: Some(mode), ..Settings::default() })?;
        }
        self.note_change(inode, &handle);
        Ok(Reply::Done)
    }

    fn remove_xattr(&mut self, inode: u64, name: &Name) -> Outcome<Reply> {
        let handle = self.marked(inode, name)?;
        self.touch(inode);
        self.lower.remove_xattr(&handle, name.bytes())?;
        self.note_change(inode, &handle);
        Ok(Reply::Done)
    }

    fn xattr_names(&mut self, inode: u64) -> Outcome<Reply> {
        let handle = self.handle_of(inode)?;
        let names = self.lower.xattr_names(&handle)?;
        let shown = names.split_inclusive(|byte| *byte == 0);
        let shown = shown.filter(|name| name.strip_suffix(&[0]) != Some(MARK.as_bytes()));
        Ok(Reply::Bytes(shown.flatten().copied().collect()))
    }

    /// The kernel knows so many lookups less.
    pub(crate) fn forget_node(&mut self, number: u64, lookups: u64) {
        if number == ROOT {
            return;
        }
        let Some(node) = self.nodes.get_mut(&number) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups > 0 {
            return;
        }
        let (handle, is_gone) = (node.handle, node.is_gone);
        self.nodes.remove(&number);
        self.owed.remove(&number);
        if !is_gone {
            self.remembered.add(number, handle);
        } else {
            self.lower.release(&handle);
            if let Some(record) = self.store.record_of(number, &handle) {
                self.let_die(record);
            }
        }
    }

    /// Writes a record, and waits for nothing.
    pub(crate) fn write_record(&mut self, record: u32) {
        let mut batch = crate::store::Batch::default();
        self.store.batch_record(&mut batch, record);
        self.push_batch(batch, &[], crate::io::Pending::Silent);
    }

    /// Writes a record, makes it durable with all before it, and goes on.
    pub(crate) fn save_record(&mut self, record: u32, id: Option<u64>, then: Then) {
        let task = self.add_task(id, None, Stage::Flush(then));
        let mut batch = crate::store::Batch::default();
        self.store.batch_record(&mut batch, record);
        self.push_batch(batch, &[], crate::io::Pending::Step { task });
    }
}
