//! Names and attributes: one step each.

use crate::canary::{Canary, sings};
use crate::namespace::tree::is_directory;
use crate::namespace::{Namespace, Place};
use crate::parts::Parts;
use crate::request::{Attributes, Listed, Listing, Reply, Request, Usage, Whence};
use crate::stop::{Settled, settle};
use crate::stop::{Step, fail};
use crate::task::{Progress, Task};
use crate::traffic::Traffic;
use crate::tree::Tree;
use coulter_format::BLOCK_SIZE;
use coulter_format::files::{Inode, ROOT_INODE};

/// Bytes of an entry of a listing beside the name, without attributes and with.
const ENTRY_SIZE: usize = 24;
const FULL_ENTRY_SIZE: usize = 152;
/// Cookies of the two names that every directory has.
const COOKIE_SELF: u64 = 1;
const COOKIE_PARENT: u64 = 2;
const KIND_DIRECTORY: u8 = 4;

impl Parts {
    pub(crate) fn run_meta(
        &mut self,
        id: usize,
        task: &mut Task,
        request: &mut Request,
    ) -> Progress {
        let now = task.now;
        match request {
            Request::Lookup { directory, name } => {
                let place = Place { directory: *directory, name };
                self.entry(id, false, |tree, _| tree.lookup(place))
            }
            Request::Attributes { inode } => {
                let found = settle!(self.step(id, |tree, _| tree.attributes(*inode)));
                Progress::Ends(Ok(Reply::Attributes(found)))
            }
            Request::Make { directory, name, new } => {
                let place = Place { directory: *directory, name };
                self.entry(id, true, |tree, _| tree.make(place, new, now))
            }
            Request::MakeUnnamed { directory, new } => {
                let progress =
                    self.entry(id, true, |tree, _| tree.make_unnamed(*directory, new, now));
                if let Progress::Ends(Ok(Reply::Entry(made))) = &progress {
                    self.let_die(made.number);
                }
                progress
            }
            Request::Link { inode, directory, name } => {
                let place = Place { directory: *directory, name };
                let progress = self.entry(id, true, |tree, _| tree.link(*inode, place, now));
                if let Progress::Ends(Ok(_)) = progress {
                    self.nodes.let_live(*inode);
                }
                progress
            }
            Request::Change { inode, changes } => {
                self.make_room();
                let changed = settle!(self.step(id, |tree, _| {
                    if changes.kills_privileges || changes.uid.is_some() || changes.gid.is_some() {
                        tree.drop_capability(*inode, now)?;
                    }
                    tree.change(*inode, changes, now)
                }));
                self.note_change();
                Progress::Ends(Ok(Reply::Attributes(changed)))
            }
            Request::Seek { inode, offset, whence } => {
                let found = settle!(self.step(id, |tree, _| seek(tree, *inode, *offset, *whence)));
                Progress::Ends(Ok(Reply::Offset(found)))
            }
            Request::List { directory, cookie, size, with_attributes } => {
                self.list(id, *directory, *cookie, *size as usize, *with_attributes)
            }
            Request::Statistics => {
                let tree = self.tree();
                let (superblock, reserve) = (tree.superblock, tree.space.reserve());
                Progress::Ends(Ok(Reply::Usage(Usage {
                    blocks: superblock.block_count,
                    free: superblock.free_blocks,
                    available: superblock.free_blocks.saturating_sub(reserve),
                    inodes: superblock.inode_count,
                })))
            }
            _ => self.run_names(id, task, request),
        }
    }

    fn run_names(&mut self, id: usize, task: &mut Task, request: &mut Request) -> Progress {
        let now = task.now;
        match request {
            Request::ReadLink { inode } => self.bytes(id, |tree, _| tree.target(*inode)),
            Request::Xattr { inode, name } => {
                self.bytes(id, |tree, _| tree.xattr(*inode, name.bytes()))
            }
            Request::XattrNames { inode } => self.bytes(id, |tree, _| tree.xattr_names(*inode)),
            Request::Unlink { directory, name } => {
                let place = Place { directory: *directory, name };
                self.unlink(id, |tree, _| tree.unlink(place, false, now).map(Some))
            }
            Request::RemoveDirectory { directory, name } => {
                let place = Place { directory: *directory, name };
                self.unlink(id, |tree, _| tree.unlink(place, true, now).map(Some))
            }
            Request::Rename { from, name, to, new_name, flags } => {
                let source = Place { directory: *from, name };
                let target = Place { directory: *to, name: new_name };
                self.unlink(id, |tree, _| tree.rename(source, target, *flags, now))
            }
            Request::SetXattr { inode, name, value, mode, kills_set_gid } => {
                self.change(id, |tree, _| {
                    tree.set_xattr(*inode, name.bytes(), value, *mode, now)?;
                    if *kills_set_gid { tree.drop_set_gid(*inode) } else { Ok(()) }
                })
            }
            Request::RemoveXattr { inode, name } => {
                self.change(id, |tree, _| tree.remove_xattr(*inode, name.bytes(), now))
            }
            _ => unreachable!("other requests are other work"),
        }
    }

    fn change(
        &mut self,
        id: usize,
        mut step: impl FnMut(&mut Tree, &Traffic) -> Step<()>,
    ) -> Progress {
        self.make_room();
        settle!(self.step(id, &mut step));
        self.note_change();
        Progress::Ends(Ok(Reply::Done))
    }

    fn bytes(
        &mut self,
        id: usize,
        mut step: impl FnMut(&mut Tree, &Traffic) -> Step<Vec<u8>>,
    ) -> Progress {
        let bytes = settle!(self.step(id, &mut step));
        Progress::Ends(Ok(Reply::Bytes(bytes)))
    }

    /// A step that gives a node, which the kernel knows once more then.
    fn entry(
        &mut self,
        id: usize,
        changes: bool,
        mut step: impl FnMut(&mut Tree, &Traffic) -> Step<Attributes>,
    ) -> Progress {
        if changes {
            self.make_room();
        }
        let found = settle!(self.step(id, &mut step));
        if changes {
            self.note_change();
        }
        self.nodes.know(found.number);
        Progress::Ends(Ok(Reply::Entry(found)))
    }

    /// A step that may take the last name of a node.
    fn unlink(
        &mut self,
        id: usize,
        mut step: impl FnMut(&mut Tree, &Traffic) -> Step<Option<crate::namespace::Unlinked>>,
    ) -> Progress {
        self.make_room();
        let lost = settle!(self.step(id, &mut step));
        self.note_change();
        if let Some(lost) = lost.filter(|lost| lost.is_last) {
            self.let_die(lost.inode);
        }
        Progress::Ends(Ok(Reply::Done))
    }

    fn list(
        &mut self,
        id: usize,
        directory: u64,
        cookie: u64,
        size: usize,
        with_attributes: bool,
    ) -> Progress {
        let fixed = if with_attributes { FULL_ENTRY_SIZE } else { ENTRY_SIZE };
        let mut listing =
            settle!(self.step(id, |tree, _| names(tree, directory, cookie, size, fixed)));
        if with_attributes && !self.add_attributes(id, &mut listing) {
            return Progress::Waits;
        }
        Progress::Ends(Ok(Reply::Listing(listing)))
    }

    /// Finds the attributes of all that is listed. What is missing is loaded at once, not one node
    /// after the other; false if the listing has to wait for that.
    fn add_attributes(&mut self, id: usize, listing: &mut Listing) -> bool {
        let mut waits = false;
        for entry in &mut listing.entries {
            loop {
                match self.step(id, |tree, _| tree.inode(entry.inode)) {
                    Settled::Done(Ok(inode)) => entry.attributes = Some(inode),
                    // It is listed all the same; who looks it up hears what is wrong.
                    Settled::Done(Err(_)) => entry.attributes = None,
                    Settled::Again => continue,
                    Settled::Later => waits = true,
                }
                break;
            }
        }
        if !waits {
            let counted = listing.entries.iter().filter(|entry| entry.cookie > COOKIE_PARENT);
            let counted = counted.filter(|entry| entry.attributes.is_some());
            counted.for_each(|entry| self.nodes.know(entry.inode));
        }
        !waits
    }
}

fn names(tree: &mut Tree, directory: u64, cookie: u64, size: usize, fixed: usize) -> Step<Listing> {
    let inode = tree.inode(directory)?;
    if !is_directory(&inode) {
        return fail(libc::ENOTDIR);
    }
    let mut listing = Listing::default();
    let mut used = 0;
    let mut push = |listing: &mut Listing, cookie, inode, kind, name: &[u8]| {
        used += (fixed + name.len()).next_multiple_of(8);
        if used > size {
            return false;
        }
        let start = listing.names.len() as u32;
        listing.names.extend_from_slice(name);
        let name = (start, name.len() as u8);
        listing.entries.push(Listed { cookie, inode, kind, name, attributes: None });
        true
    };
    if cookie < COOKIE_SELF && !push(&mut listing, COOKIE_SELF, directory, KIND_DIRECTORY, b".") {
        return Ok(listing);
    }
    let parent = if directory == ROOT_INODE { ROOT_INODE } else { inode.parent };
    if cookie < COOKIE_PARENT && !push(&mut listing, COOKIE_PARENT, parent, KIND_DIRECTORY, b"..") {
        return Ok(listing);
    }
    if sings(Canary::CookieByIndex) {
        let mut index = COOKIE_PARENT;
        tree.names(directory, COOKIE_PARENT, &mut |_, inode, kind, name| {
            index += 1;
            index <= cookie || push(&mut listing, index, inode, kind, name)
        })?;
        return Ok(listing);
    }
    tree.names(directory, cookie.max(COOKIE_PARENT), &mut |cookie, inode, kind, name| {
        push(&mut listing, cookie, inode, kind, name)
    })?;
    Ok(listing)
}

fn seek(tree: &mut Tree, number: u64, offset: u64, whence: Whence) -> Step<u64> {
    let inode: Inode = tree.inode(number)?;
    if inode.mode & libc::S_IFMT != libc::S_IFREG {
        return fail(libc::EINVAL);
    }
    if offset >= inode.size {
        return fail(libc::ENXIO);
    }
    let size = BLOCK_SIZE as u64;
    let first = offset / size;
    match whence {
        Whence::Data => match tree.next_mapped(number, first)? {
            Some(block) if block * size < inode.size => Ok(offset.max(block * size)),
            _ => fail(libc::ENXIO),
        },
        Whence::Hole => {
            let (mut at, end) = (first, inode.size.div_ceil(size));
            let mut segments = Vec::new();
            while at < end {
                segments.clear();
                tree.segments(number, at, (end - at).min(1 << 20), &mut segments)?;
                for segment in &segments {
                    if segment.block.is_none() {
                        return Ok(offset.max(segment.first * size));
                    }
                    at = segment.first + segment.count;
                }
            }
            Ok(inode.size)
        }
    }
}
