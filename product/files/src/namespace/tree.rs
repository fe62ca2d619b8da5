//! The names of a file system on a volume: items of its tree.
//!
//! A directory's names are ordered by their hashes, and a cookie of `readdir` is a name's position:
//! it stays what it is, whatever else comes and goes.

use super::{Namespace, Place, ShowName, Unlinked};
use crate::request::{Attributes, Changes, Name, NewNode, RenameFlags, SetTime};
use crate::stop::{Step, fail};
use crate::tree::Tree;
use coulter_format::files::hash::hash;
use coulter_format::files::item::{NAME_ITEM_MAX, PART_SIZE};
use coulter_format::files::key::ALIKE_BITS;
use coulter_format::files::superblock::INODE_LIMIT;
use coulter_format::files::{Inode, Key, Kind, NameEntry, ROOT_INODE, Time};
use std::ops::ControlFlow;

/// Names that one inode may have.
pub(crate) const LINKS_MAX: u32 = i32::MAX as u32;
/// Directories above each other, as far as a rename looks for a loop.
const DEPTH_MAX: u32 = 1 << 20;

pub(crate) fn is_directory(inode: &Inode) -> bool {
    inode.mode & libc::S_IFMT == libc::S_IFDIR
}

/// A kind as directories tell it.
fn kind_of(mode: u32) -> u8 {
    ((mode & libc::S_IFMT) >> 12) as u8
}

/// A name that was found.
struct Found {
    key: Key,
    inode: u64,
}

impl Tree {
    fn directory(&mut self, number: u64) -> Step<Inode> {
        let inode = self.inode(number)?;
        if is_directory(&inode) { Ok(inode) } else { fail(libc::ENOTDIR) }
    }

    /// A directory in which names may be made: one that still has its own.
    fn live_directory(&mut self, number: u64) -> Step<Inode> {
        let inode = self.directory(number)?;
        if inode.links == 0 { fail(libc::ENOENT) } else { Ok(inode) }
    }

    /// The name's item, or the first free position for it.
    fn find_name(&mut self, place: Place<'_>) -> Step<Result<Found, Option<Key>>> {
        let Place { directory, name } = place;
        let bytes = name.bytes();
        let base = Key::of_name(directory, hash(&self.superblock.hash_seed, bytes));
        let end = base.plus((1 << ALIKE_BITS) - 1);
        let (mut found, mut free, mut damaged) = (None, base, false);
        self.scan(base, |key, item| {
            if key > end {
                return ControlFlow::Break(());
            }
            match NameEntry::decode(item) {
                Ok(entry) if entry.name == bytes => {
                    found = Some(Found { key, inode: entry.inode });
                    return ControlFlow::Break(());
                }
                Ok(_) => {}
                Err(_) => damaged = true,
            }
            if key == free {
                free = free.next();
            }
            ControlFlow::Continue(())
        })?;
        match found {
            Some(found) => Ok(Ok(found)),
            None if damaged => fail(libc::EIO),
            None => Ok(Err((free <= end).then_some(free))),
        }
    }

    fn existing(&mut self, place: Place<'_>) -> Step<Found> {
        match self.find_name(place)? {
            Ok(found) => Ok(found),
            Err(_) => fail(libc::ENOENT),
        }
    }

    fn put_name(&mut self, key: Key, name: &Name, inode: u64, mode: u32) -> Step<()> {
        let entry = NameEntry { inode, kind: kind_of(mode), name: name.bytes() };
        let mut bytes = [0; NAME_ITEM_MAX];
        let size = entry.encode(&mut bytes);
        self.put(key, &bytes[..size])
    }

    /// A directory has got a name more, or lost one.
    fn touch_directory(
        &mut self,
        number: u64,
        names: i64,
        directories: i32,
        now: Time,
    ) -> Step<()> {
        let mut inode = self.inode(number)?;
        inode.size = inode.size.saturating_add_signed(names);
        inode.links = match inode.links.checked_add_signed(directories) {
            Some(links) if links <= LINKS_MAX => links,
            _ => return fail(libc::EMLINK),
        };
        (inode.modified, inode.changed) = (now, now);
        self.set_inode(number, &inode)
    }

    fn has_names(&mut self, directory: u64) -> Step<bool> {
        let mut any = false;
        self.scan(Key::new(directory, Kind::Name, 0), |key, _| {
            any = key.is(directory, Kind::Name);
            ControlFlow::Break(())
        })?;
        Ok(any)
    }

    fn new_inode(
        &mut self,
        new: &NewNode,
        parent: u64,
        links: u32,
        now: Time,
    ) -> Step<(u64, Inode)> {
        let number = self.superblock.next_inode;
        if number + 1 >= INODE_LIMIT {
            return fail(libc::ENOSPC);
        }
        let above = self.inode(parent)?;
        let mut inode = Inode {
            mode: new.mode,
            uid: new.uid,
            gid: new.gid,
            links,
            device: new.device,
            parent: 0,
            generation: (now.seconds as u32) ^ now.nanoseconds.rotate_left(7),
            accessed: now,
            modified: now,
            changed: now,
            born: now,
            ..Inode::default()
        };
        if above.mode & libc::S_ISGID != 0 {
            inode.gid = above.gid;
            if is_directory(&inode) {
                inode.mode |= libc::S_ISGID;
            }
        }
        if is_directory(&inode) {
            inode.parent = parent;
        }
        let lists = self.lists_for(parent, &above, new)?;
        match &lists {
            // Set-gid comes from the directory, and no list speaks of it.
            Some(lists) => inode.mode = lists.mode | inode.mode & libc::S_ISGID,
            None if new.target.is_none() => inode.mode &= !(new.umask & 0o777),
            None => {}
        }
        self.superblock.next_inode += 1;
        self.superblock.inode_count += 1;
        if let Some(target) = &new.target {
            inode.size = target.len() as u64;
            for (part, bytes) in target.chunks(PART_SIZE).enumerate() {
                self.put(Key::new(number, Kind::Target, part as u64), bytes)?;
            }
        }
        self.set_inode(number, &inode)?;
        if let Some(lists) = &lists {
            inode = self.give_lists(number, lists)?;
        }
        Ok((number, inode))
    }

    /// An inode lost a name; with the last one it becomes an orphan.
    fn drop_link(&mut self, number: u64, now: Time) -> Step<Unlinked> {
        let mut inode = self.inode(number)?;
        inode.links = match inode.links.checked_sub(1) {
            Some(_) if is_directory(&inode) => 0,
            Some(links) => links,
            None => return fail(libc::EIO),
        };
        inode.changed = now;
        self.set_inode(number, &inode)?;
        let is_last = inode.links == 0;
        if is_last {
            self.add_orphan(number, 0)?;
        }
        Ok(Unlinked { inode: number, is_last })
    }

    /// Whether `directory` lies in `above`, or is it.
    fn is_within(&mut self, directory: u64, above: u64) -> Step<bool> {
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            if at == above {
                return Ok(true);
            }
            if at == ROOT_INODE {
                return Ok(false);
            }
            at = self.inode(at)?.parent;
        }
        fail(libc::EIO)
    }

    fn exchange(&mut self, from: Place<'_>, to: Place<'_>, now: Time) -> Step<()> {
        let (one, other) = (self.existing(from)?, self.existing(to)?);
        if one.inode == other.inode {
            return Ok(());
        }
        let (mut a, mut b) = (self.inode(one.inode)?, self.inode(other.inode)?);
        if from.directory != to.directory {
            let a_loops = is_directory(&a) && self.is_within(to.directory, one.inode)?;
            let b_loops = is_directory(&b) && self.is_within(from.directory, other.inode)?;
            if a_loops || b_loops {
                return fail(libc::EINVAL);
            }
        }
        self.put_name(one.key, from.name, other.inode, b.mode)?;
        self.put_name(other.key, to.name, one.inode, a.mode)?;
        (a.changed, b.changed) = (now, now);
        if is_directory(&a) {
            a.parent = to.directory;
        }
        if is_directory(&b) {
            b.parent = from.directory;
        }
        self.set_inode(one.inode, &a)?;
        self.set_inode(other.inode, &b)?;
        let balance = i32::from(is_directory(&b)) - i32::from(is_directory(&a));
        self.touch_directory(from.directory, 0, balance, now)?;
        if to.directory != from.directory {
            self.touch_directory(to.directory, 0, -balance, now)?;
        } else if balance != 0 {
            self.touch_directory(from.directory, 0, -balance, now)?;
        }
        Ok(())
    }

    /// What `to` stands for gives way to `moved`, if it may.
    fn replace(&mut self, to: Place<'_>, old: &Found, moved: &Inode, now: Time) -> Step<Unlinked> {
        let target = self.inode(old.inode)?;
        match (is_directory(moved), is_directory(&target)) {
            (true, false) => return fail(libc::ENOTDIR),
            (false, true) => return fail(libc::EISDIR),
            (true, true) if self.has_names(old.inode)? => return fail(libc::ENOTEMPTY),
            _ => {}
        }
        if is_directory(&target) {
            self.touch_directory(to.directory, 0, -1, now)?;
        }
        self.drop_link(old.inode, now)
    }
}

impl Namespace for Tree {
    fn attributes(&mut self, inode: u64) -> Step<Attributes> {
        Ok(Attributes { number: inode, inode: self.inode(inode)? })
    }

    fn lookup(&mut self, place: Place<'_>) -> Step<Attributes> {
        if place.name.bytes() == b"." {
            // A handle of any node that has a name, which the kernel does not know any more.
            let found = self.attributes(place.directory)?;
            return if found.inode.links > 0 { Ok(found) } else { fail(libc::ESTALE) };
        }
        let directory = self.directory(place.directory)?;
        match place.name.bytes() {
            b".." if place.directory == ROOT_INODE => self.attributes(ROOT_INODE),
            b".." => self.attributes(directory.parent),
            _ => {
                let found = self.existing(place)?;
                self.attributes(found.inode)
            }
        }
    }

    fn make(&mut self, place: Place<'_>, new: &NewNode, now: Time) -> Step<Attributes> {
        let directory = self.live_directory(place.directory)?;
        let Err(free) = self.find_name(place)? else { return fail(libc::EEXIST) };
        let Some(key) = free else { return fail(libc::ENOSPC) };
        let is_dir = new.mode & libc::S_IFMT == libc::S_IFDIR;
        if is_dir && directory.links >= LINKS_MAX {
            return fail(libc::EMLINK);
        }
        let links = if is_dir { 2 } else { 1 };
        let (number, inode) = self.new_inode(new, place.directory, links, now)?;
        self.put_name(key, place.name, number, inode.mode)?;
        let size = place.name.size();
        self.touch_directory(place.directory, size, i32::from(is_dir), now)?;
        Ok(Attributes { number, inode })
    }

    fn make_unnamed(&mut self, directory: u64, new: &NewNode, now: Time) -> Step<Attributes> {
        self.live_directory(directory)?;
        let (number, inode) = self.new_inode(new, directory, 0, now)?;
        self.add_orphan(number, 0)?;
        Ok(Attributes { number, inode })
    }

    fn link(&mut self, inode: u64, place: Place<'_>, now: Time) -> Step<Attributes> {
        self.live_directory(place.directory)?;
        let mut attributes = self.inode(inode)?;
        if is_directory(&attributes) {
            return fail(libc::EPERM);
        }
        if attributes.links >= LINKS_MAX {
            return fail(libc::EMLINK);
        }
        let Err(free) = self.find_name(place)? else { return fail(libc::EEXIST) };
        let Some(key) = free else { return fail(libc::ENOSPC) };
        if attributes.links == 0 {
            // Made without a name, which it gets now.
            self.remove_orphan(inode)?;
        }
        attributes.links += 1;
        attributes.changed = now;
        self.set_inode(inode, &attributes)?;
        self.put_name(key, place.name, inode, attributes.mode)?;
        self.touch_directory(place.directory, place.name.size(), 0, now)?;
        Ok(Attributes { number: inode, inode: attributes })
    }

    fn unlink(&mut self, place: Place<'_>, is_rmdir: bool, now: Time) -> Step<Unlinked> {
        self.may_use_reserve = true;
        match place.name.bytes() {
            b"." if is_rmdir => return fail(libc::EINVAL),
            b".." if is_rmdir => return fail(libc::ENOTEMPTY),
            _ => {}
        }
        self.directory(place.directory)?;
        let found = self.existing(place)?;
        let inode = self.inode(found.inode)?;
        match (is_rmdir, is_directory(&inode)) {
            (true, false) => return fail(libc::ENOTDIR),
            (false, true) => return fail(libc::EISDIR),
            (true, true) if self.has_names(found.inode)? => return fail(libc::ENOTEMPTY),
            _ => {}
        }
        self.remove(found.key)?;
        self.touch_directory(place.directory, -place.name.size(), -i32::from(is_rmdir), now)?;
        self.drop_link(found.inode, now)
    }

    fn rename(
        &mut self,
        from: Place<'_>,
        to: Place<'_>,
        flags: RenameFlags,
        now: Time,
    ) -> Step<Option<Unlinked>> {
        for name in [from.name.bytes(), to.name.bytes()] {
            if matches!(name, b"." | b"..") {
                return fail(libc::EBUSY);
            }
        }
        self.directory(from.directory)?;
        self.live_directory(to.directory)?;
        if flags == RenameFlags::Exchange {
            return self.exchange(from, to, now).map(|()| None);
        }
        let moved = self.existing(from)?;
        let mut inode = self.inode(moved.inode)?;
        let is_dir = is_directory(&inode);
        let crosses = from.directory != to.directory;
        if is_dir && crosses && self.is_within(to.directory, moved.inode)? {
            return fail(libc::EINVAL);
        }
        let (key, lost) = match self.find_name(to)? {
            Ok(_) if flags == RenameFlags::NoReplace => return fail(libc::EEXIST),
            Ok(old) if old.inode == moved.inode => return Ok(None),
            Ok(old) => (old.key, Some(self.replace(to, &old, &inode, now)?)),
            Err(Some(free)) => (free, None),
            Err(None) => return fail(libc::ENOSPC),
        };
        let gone = self.existing(from)?.key;
        let shrinks = match flags {
            RenameFlags::Whiteout { uid, gid } => {
                let new = NewNode { mode: libc::S_IFCHR, uid, gid, ..NewNode::default() };
                let (number, whiteout) = self.new_inode(&new, from.directory, 1, now)?;
                self.put_name(gone, from.name, number, whiteout.mode)?;
                0
            }
            _ => {
                self.remove(gone)?;
                from.name.size()
            }
        };
        self.put_name(key, to.name, moved.inode, inode.mode)?;
        inode.changed = now;
        if is_dir {
            inode.parent = to.directory;
        }
        self.set_inode(moved.inode, &inode)?;
        let moves = i32::from(is_dir && crosses);
        self.touch_directory(from.directory, -shrinks, -moves, now)?;
        let grows = if lost.is_some() { 0 } else { to.name.size() };
        self.touch_directory(to.directory, grows, moves, now)?;
        Ok(lost)
    }

    fn change(&mut self, number: u64, changes: &Changes, now: Time) -> Step<Attributes> {
        let mut inode = self.inode(number)?;
        if let Some(mode) = changes.mode {
            inode.mode = inode.mode & libc::S_IFMT | mode & 0o7777;
            self.set_list_mode(number, &inode)?;
        }
        if let Some(uid) = changes.uid {
            inode.uid = uid;
        }
        if let Some(gid) = changes.gid {
            inode.gid = gid;
        }
        if changes.kills_privileges && changes.mode.is_none() {
            clear_privileges(&mut inode);
        }
        let time = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        if let Some(set) = changes.accessed {
            inode.accessed = time(set);
        }
        if let Some(set) = changes.modified {
            inode.modified = time(set);
        }
        inode.changed = changes.changed.unwrap_or(now);
        self.set_inode(number, &inode)?;
        Ok(Attributes { number, inode })
    }

    fn target(&mut self, number: u64) -> Step<Vec<u8>> {
        let inode = self.inode(number)?;
        if inode.mode & libc::S_IFMT != libc::S_IFLNK {
            return fail(libc::EINVAL);
        }
        let mut target = Vec::with_capacity(inode.size as usize % (1 << 16));
        self.scan(Key::new(number, Kind::Target, 0), |key, item| {
            if !key.is(number, Kind::Target) {
                return ControlFlow::Break(());
            }
            target.extend_from_slice(item);
            ControlFlow::Continue(())
        })?;
        if target.len() as u64 == inode.size { Ok(target) } else { fail(libc::EIO) }
    }

    fn names(&mut self, directory: u64, cookie: u64, each: ShowName<'_>) -> Step<()> {
        let mut damaged = false;
        self.scan(Key::new(directory, Kind::Name, cookie).next(), |key, item| {
            if !key.is(directory, Kind::Name) {
                return ControlFlow::Break(());
            }
            let Ok(entry) = NameEntry::decode(item) else {
                damaged = true;
                return ControlFlow::Break(());
            };
            if each(key.position(), entry.inode, entry.kind, entry.name) {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        if damaged { fail(libc::EIO) } else { Ok(()) }
    }
}

/// A change of content or owner takes the right to run as somebody else away.
pub(crate) fn clear_privileges(inode: &mut Inode) {
    if inode.mode & libc::S_IFMT == libc::S_IFDIR {
        // Set-gid of a directory gives nobody privileges.
        return;
    }
    inode.mode &= !libc::S_ISUID;
    if inode.mode & libc::S_IXGRP != 0 {
        inode.mode &= !libc::S_ISGID;
    }
}
