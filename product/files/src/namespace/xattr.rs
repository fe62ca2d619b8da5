//! Extended attributes: a first part with the name, and more parts if the value is long.

use super::access_list::{ACCESS, AccessList, DEFAULT};
use crate::request::NewNode;
use crate::stop::{Step, fail};
use crate::tree::Tree;
use coulter_format::files::hash::hash;
use coulter_format::files::item::{
    FLAG_ACCESS_LIST, FLAG_CAPABILITY, PART_SIZE, XATTR_SIZE_MAX, XattrHead,
};
use coulter_format::files::key::{ALIKE_BITS, PART_BITS};
use coulter_format::files::node::ITEM_SIZE_MAX;
use coulter_format::files::{Inode, Key, Kind, Time};
use std::ops::ControlFlow;

/// The attribute that gives a program rights.
const CAPABILITY: &[u8] = b"security.capability";
/// Bytes of all names of an inode's attributes together: what `listxattr` may return.
const LIST_SIZE_MAX: usize = 65536;

/// Which of "it must not exist" and "it must exist" is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Neither.
    Any,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

impl Tree {
    /// The first part's key and the value's size; or where a new one would come.
    fn find_xattr(&mut self, inode: u64, name: &[u8]) -> Step<Result<(Key, u32), Option<Key>>> {
        let base = Key::of_xattr(inode, hash(&self.superblock.hash_seed, name));
        let mut free = base;
        for _ in 0..1 << ALIKE_BITS {
            match self.find(free)? {
                None => return Ok(Err(Some(free))),
                Some(item) => {
                    let head = XattrHead::decode(item)?;
                    if head.name == name {
                        let size = head.size;
                        return Ok(Ok((free, size)));
                    }
                }
            }
            free = free.plus(1 << PART_BITS);
        }
        Ok(Err(None))
    }

    /// The value of an attribute.
    pub(crate) fn xattr(&mut self, inode: u64, name: &[u8]) -> Step<Vec<u8>> {
        self.inode(inode)?;
        check_kind(name)?;
        let Ok((key, size)) = self.find_xattr(inode, name)? else { return fail(libc::ENODATA) };
        let mut value = Vec::with_capacity(size as usize);
        for part in 0..parts(size as usize) {
            let Some(item) = self.find(key.plus(part))? else { return fail(libc::EIO) };
            match part {
                0 => value.extend_from_slice(XattrHead::decode(item)?.value),
                _ => value.extend_from_slice(item),
            }
        }
        if value.len() == size as usize { Ok(value) } else { fail(libc::EIO) }
    }

    /// Sets an attribute. An access control list changes the mode with it, and is not kept if it
    /// says no more than the mode does.
    pub(crate) fn set_xattr(
        &mut self,
        number: u64,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        now: Time,
    ) -> Step<()> {
        let mut inode = self.inode(number)?;
        check_name(name, inode.mode)?;
        if name == ACCESS || name == DEFAULT {
            let Some(list) = AccessList::decode(value) else { return fail(libc::EINVAL) };
            if name == ACCESS {
                inode.mode = list.mode_from(inode.mode);
                inode.changed = now;
                self.set_inode(number, &inode)?;
                if list.is_mode() {
                    return self.drop_xattr(number, name, now);
                }
            }
        }
        self.store_xattr(number, name, value, mode)?;
        let mut inode = self.inode(number)?;
        inode.changed = now;
        self.set_inode(number, &inode)
    }

    /// Puts an attribute's parts into the tree, and notes in the inode what kind of attribute it
    /// is.
    fn store_xattr(&mut self, number: u64, name: &[u8], value: &[u8], mode: XattrMode) -> Step<()> {
        let mut inode = self.inode(number)?;
        if value.len() > XATTR_SIZE_MAX {
            return fail(libc::E2BIG);
        }
        let key = match self.find_xattr(number, name)? {
            Ok(_) if mode == XattrMode::Create => return fail(libc::EEXIST),
            Ok((key, size)) => {
                self.remove_parts(key, size)?;
                key
            }
            Err(_) if mode == XattrMode::Replace => return fail(libc::ENODATA),
            Err(Some(free)) => free,
            Err(None) => return fail(libc::ENOSPC),
        };
        let first = &value[..value.len().min(PART_SIZE)];
        let mut bytes = [0; ITEM_SIZE_MAX];
        let head = XattrHead { name, size: value.len() as u32, value: first };
        let size = head.encode(&mut bytes);
        self.put(key, &bytes[..size])?;
        for (part, bytes) in value.chunks(PART_SIZE).enumerate().skip(1) {
            self.put(key.plus(part as u64), bytes)?;
        }
        inode.flags |= flag_of(name);
        self.set_inode(number, &inode)
    }

    /// Takes an attribute away if it is there.
    fn drop_xattr(&mut self, number: u64, name: &[u8], now: Time) -> Step<()> {
        match self.find_xattr(number, name)? {
            Ok(_) => self.remove_xattr(number, name, now),
            Err(_) => Ok(()),
        }
    }

    /// Takes an attribute away. The attributes under the same hash close the gap, so that a search
    /// need not go on behind one.
    pub(crate) fn remove_xattr(&mut self, number: u64, name: &[u8], now: Time) -> Step<()> {
        self.may_use_reserve = true;
        check_kind(name)?;
        let mut inode = self.inode(number)?;
        let Ok((mut key, size)) = self.find_xattr(number, name)? else {
            return fail(libc::ENODATA);
        };
        self.remove_parts(key, size)?;
        for _ in 0..1 << ALIKE_BITS {
            let next = key.plus(1 << PART_BITS);
            let Some(item) = self.find(next)? else { break };
            let size = XattrHead::decode(item)?.size;
            for part in 0..parts(size as usize) {
                let Some(item) = self.find(next.plus(part))? else { return fail(libc::EIO) };
                let copy = item.to_vec();
                self.remove(next.plus(part))?;
                self.put(key.plus(part), &copy)?;
            }
            key = next;
        }
        // The two lists have one flag.
        let other = if name == ACCESS { DEFAULT } else { ACCESS };
        let has_other =
            flag_of(name) == FLAG_ACCESS_LIST && self.find_xattr(number, other)?.is_ok();
        if !has_other {
            inode.flags &= !flag_of(name);
        }
        inode.changed = now;
        self.set_inode(number, &inode)
    }

    fn remove_parts(&mut self, key: Key, size: u32) -> Step<()> {
        for part in 0..parts(size as usize) {
            self.remove(key.plus(part))?;
        }
        Ok(())
    }

    /// All names, each with a zero behind it.
    pub(crate) fn xattr_names(&mut self, inode: u64) -> Step<Vec<u8>> {
        self.inode(inode)?;
        let (mut list, mut damaged) = (Vec::new(), false);
        self.scan(Key::new(inode, Kind::Xattr, 0), |key, item| {
            if !key.is(inode, Kind::Xattr) {
                return ControlFlow::Break(());
            }
            if key.position().is_multiple_of(1 << PART_BITS) {
                match XattrHead::decode(item) {
                    Ok(head) => {
                        list.extend_from_slice(head.name);
                        list.push(0);
                    }
                    Err(_) => damaged = true,
                }
            }
            ControlFlow::Continue(())
        })?;
        if damaged {
            fail(libc::EIO)
        } else if list.len() > LIST_SIZE_MAX {
            fail(libc::E2BIG)
        } else {
            Ok(list)
        }
    }

    fn access_list(&mut self, number: u64, inode: &Inode, name: &[u8]) -> Step<Option<AccessList>> {
        if inode.flags & FLAG_ACCESS_LIST == 0 || self.find_xattr(number, name)?.is_err() {
            return Ok(None);
        }
        let value = self.xattr(number, name)?;
        match AccessList::decode(&value) {
            Some(list) => Ok(Some(list)),
            // Nobody can set such a list.
            None => fail(libc::EIO),
        }
    }

    /// What a new node gets from the default list of its directory, if that has one.
    pub(crate) fn lists_for(
        &mut self,
        directory: u64,
        above: &Inode,
        new: &NewNode,
    ) -> Step<Option<NewLists>> {
        if new.target.is_some() {
            return Ok(None);
        }
        let Some(default) = self.access_list(directory, above, DEFAULT)? else { return Ok(None) };
        let mut access = default.clone();
        access.narrow(new.mode);
        let mode = access.mode_from(new.mode);
        let is_directory = new.mode & libc::S_IFMT == libc::S_IFDIR;
        Ok(Some(NewLists {
            mode,
            access: (!access.is_mode()).then_some(access),
            default: is_directory.then_some(default),
        }))
    }

    /// Gives a new node its lists.
    pub(crate) fn give_lists(&mut self, number: u64, lists: &NewLists) -> Step<Inode> {
        let named = [(ACCESS, &lists.access), (DEFAULT, &lists.default)];
        for (name, list) in named {
            if let Some(list) = list {
                self.store_xattr(number, name, &list.encode(), XattrMode::Create)?;
            }
        }
        self.inode(number)
    }

    /// The mode has changed: the access control list says the same.
    pub(crate) fn set_list_mode(&mut self, number: u64, inode: &Inode) -> Step<()> {
        if let Some(mut list) = self.access_list(number, inode, ACCESS)? {
            list.take_mode(inode.mode);
            self.store_xattr(number, ACCESS, &list.encode(), XattrMode::Replace)?;
        }
        Ok(())
    }

    /// Takes set-gid away.
    pub(crate) fn drop_set_gid(&mut self, number: u64) -> Step<()> {
        let mut inode = self.inode(number)?;
        inode.mode &= !libc::S_ISGID;
        self.set_inode(number, &inode)
    }

    /// A change of content or owner takes the program's rights away, also if root makes it. Returns
    /// true if it had any.
    pub(crate) fn drop_capability(&mut self, number: u64, now: Time) -> Step<bool> {
        let has = self.inode(number)?.flags & FLAG_CAPABILITY != 0;
        if has {
            self.remove_xattr(number, CAPABILITY, now)?;
        }
        Ok(has)
    }
}

/// The access control lists of a new node, and the mode that goes with them.
pub(crate) struct NewLists {
    pub(crate) mode: u32,
    access: Option<AccessList>,
    default: Option<AccessList>,
}

/// The flag of an inode that has an attribute of this name.
fn flag_of(name: &[u8]) -> u32 {
    match name {
        CAPABILITY => FLAG_CAPABILITY,
        ACCESS | DEFAULT => FLAG_ACCESS_LIST,
        _ => 0,
    }
}

/// Parts of a value of so many bytes.
fn parts(size: usize) -> u64 {
    size.div_ceil(PART_SIZE).max(1) as u64
}

/// Attributes have one of the prefixes that Linux knows, and something behind it.
fn check_kind(name: &[u8]) -> Step<()> {
    if name == ACCESS || name == DEFAULT {
        return Ok(());
    }
    let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    match prefixes.iter().find_map(|prefix| name.strip_prefix(*prefix)) {
        None => fail(libc::EOPNOTSUPP),
        Some([]) => fail(libc::EINVAL),
        Some(_) => Ok(()),
    }
}

/// User attributes are for files and directories; default lists are for directories.
fn check_name(name: &[u8], mode: u32) -> Step<()> {
    let is_directory = mode & libc::S_IFMT == libc::S_IFDIR;
    let is_regular = mode & libc::S_IFMT == libc::S_IFREG || is_directory;
    let is_list = name == ACCESS || name == DEFAULT;
    check_kind(name)?;
    if is_list && mode & libc::S_IFMT == libc::S_IFLNK {
        return fail(libc::EOPNOTSUPP);
    }
    if name == DEFAULT && !is_directory {
        return fail(libc::EACCES);
    }
    if name.starts_with(b"user.") && !is_regular {
        return fail(libc::EPERM);
    }
    Ok(())
}
