//! Single operations and the node after each: modes, rights, handles, whiteouts.

mod common;

use common::{Mount, name};
use coulter::buffer::Buffer;
use coulter_files::{
    AllocateMode, Changes, Name, NewNode, ROOT, RenameFlags, Reply, Request, XattrMode,
};

fn set_attribute(mount: &mut Mount, inode: u64, name: &[u8], value: &[u8]) -> Result<(), i32> {
    let (name, value, mode) = (Name::of_attribute(name)?, value.into(), XattrMode::Any);
    let request = Request::SetXattr { inode, name, value, mode, kills_set_gid: false };
    mount.run(request).map(drop)
}

fn attribute(mount: &mut Mount, inode: u64, name: &[u8]) -> Result<Vec<u8>, i32> {
    let name = Name::of_attribute(name)?;
    match mount.run(Request::Xattr { inode, name })? {
        Reply::Bytes(bytes) => Ok(bytes),
        other => panic!("{other:?}"),
    }
}

fn mode(mount: &mut Mount, inode: u64) -> u32 {
    mount.attributes(inode).expect("it is there").inode.mode
}

/// A list: owner, a named user, group, mask and others.
fn list() -> Vec<u8> {
    let entries =
        [(1, 7, u32::MAX), (2, 6, 12), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 1, u32::MAX)];
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend_from_slice(&u16::to_le_bytes(tag));
        value.extend_from_slice(&u16::to_le_bytes(permissions));
        value.extend_from_slice(&u32::to_le_bytes(id));
    }
    value
}

#[test]
fn a_directory_made_in_a_set_gid_directory_is_set_gid_also_with_a_default_list() {
    let mut mount = Mount::new(1024, 100, 1);
    let plain = mount.make("plain", libc::S_IFDIR | 0o2775).unwrap();
    let listed = mount.make("listed", libc::S_IFDIR | 0o2775).unwrap();
    set_attribute(&mut mount, listed, b"system.posix_acl_default", &list()).unwrap();
    for directory in ["plain", "listed"] {
        let below = mount.mkdir(&format!("{directory}/below")).unwrap();
        let file = mount.create(&format!("{directory}/file")).unwrap();
        assert_eq!(mode(&mut mount, below) & 0o7000, 0o2000, "{directory}");
        assert_eq!(mode(&mut mount, file) & 0o7000, 0, "{directory}");
    }
    assert_eq!(mode(&mut mount, plain) & 0o7777, 0o2775);
}

/// Makes a request that changes the content of a file.
type Changing = fn(u64) -> Request;

#[test]
fn every_change_of_content_takes_rights_away() {
    const CAPABILITY: &[u8] = b"security.capability";
    let changes: [(&str, Changing); 5] = [
        ("write", |inode| {
            let buffer = Buffer::copied_from(b"x");
            Request::Write { inode, offset: 0, buffer, kills_privileges: true, sync: false }
        }),
        ("truncate", |inode| {
            let changes = Changes { size: Some(1), kills_privileges: true, ..Changes::default() };
            Request::Change { inode, changes }
        }),
        ("fallocate", |inode| {
            let mode = AllocateMode::Allocate { keep_size: false };
            Request::Allocate { inode, offset: 0, length: 9000, mode }
        }),
        ("punch", |inode| {
            let mode = AllocateMode::Punch;
            Request::Allocate { inode, offset: 0, length: 5000, mode }
        }),
        ("copy", |inode| Request::Copy {
            from: inode,
            from_offset: 0,
            to: inode,
            to_offset: 9000,
            length: 10,
        }),
    ];
    for (what, change) in changes {
        let mut mount = Mount::new(1024, 100, 1);
        let file = mount.create("file").unwrap();
        mount.write(file, 0, &[1; 8000]).unwrap();
        set_attribute(&mut mount, file, CAPABILITY, b"rights").unwrap();
        let changes = Changes { mode: Some(0o6755), ..Changes::default() };
        mount.run(Request::Change { inode: file, changes }).unwrap();
        assert_eq!(mode(&mut mount, file) & 0o7777, 0o6755);
        mount.run(change(file)).unwrap();
        assert_eq!(mode(&mut mount, file) & 0o7777, 0o755, "{what}");
        assert_eq!(attribute(&mut mount, file, CAPABILITY), Err(libc::ENODATA), "{what}");
    }
    // Root's own write leaves the bits, and takes the capability.
    let mut mount = Mount::new(1024, 100, 1);
    let file = mount.make("file", libc::S_IFREG | 0o4755).unwrap();
    set_attribute(&mut mount, file, CAPABILITY, b"rights").unwrap();
    mount.write(file, 0, b"x").unwrap();
    assert_eq!(mode(&mut mount, file) & 0o7777, 0o4755);
    assert_eq!(attribute(&mut mount, file, CAPABILITY), Err(libc::ENODATA));
}

#[test]
fn attributes_have_the_names_that_linux_allows() {
    let mut mount = Mount::new(1024, 100, 1);
    let file = mount.create("file").unwrap();
    let long = [&b"user."[..], &[b'x'; 250]].concat();
    for good in [&b"user.a/b"[..], b"user.x", b"trusted.overlay.opaque", b"security.selinux", &long]
    {
        set_attribute(&mut mount, file, good, b"1").unwrap();
        assert_eq!(attribute(&mut mount, file, good).unwrap(), b"1");
    }
    for (bad, errno) in [
        (&b"foo.bar"[..], libc::EOPNOTSUPP),
        (b"system.x", libc::EOPNOTSUPP),
        (b"user", libc::EOPNOTSUPP),
        (b"user.", libc::EINVAL),
        (b"", libc::EINVAL),
        (&[b'x'; 256], libc::ERANGE),
    ] {
        assert_eq!(set_attribute(&mut mount, file, bad, b"1"), Err(errno));
        assert_eq!(attribute(&mut mount, file, bad), Err(errno));
        let removed = Name::of_attribute(bad)
            .and_then(|name| mount.run(Request::RemoveXattr { inode: file, name }));
        assert_eq!(removed.unwrap_err(), errno);
    }
}

#[test]
fn a_handle_finds_any_node_that_has_a_name_also_after_a_new_mount() {
    let mut mount = Mount::new(1024, 100, 1);
    let directory = mount.mkdir("d").unwrap();
    let file = mount.create("d/file").unwrap();
    let gone = mount.create("gone").unwrap();
    mount.run(Request::Unlink { directory: ROOT, name: name("gone") }).unwrap();
    mount.sync();
    mount.settle();
    let volume = mount.volume().cut(mount.volume().log.len());
    let mut later = Mount::of(volume, 100, 1);
    for mount in [&mut mount, &mut later] {
        assert_eq!(mount.lookup(file, ".").unwrap().number, file);
        assert_eq!(mount.lookup(directory, ".").unwrap().number, directory);
        assert_eq!(mount.lookup(directory, "..").unwrap().number, ROOT);
        assert_eq!(mount.lookup(gone, ".").unwrap_err(), libc::ESTALE);
        assert_eq!(mount.lookup(file, "..").unwrap_err(), libc::ENOTDIR);
    }
}

#[test]
fn what_is_moved_leaves_a_whiteout_if_that_is_asked_for() {
    let mut mount = Mount::new(1024, 100, 1);
    let directory = mount.mkdir("d").unwrap();
    let file = mount.create("file").unwrap();
    let other = mount.mkdir("other").unwrap();
    for (text, new_name, moved) in [("file", "moved", file), ("other", "moved too", other)] {
        let request = Request::Rename {
            from: ROOT,
            name: name(text),
            to: directory,
            new_name: name(new_name),
            flags: RenameFlags::Whiteout { uid: 7, gid: 8 },
        };
        mount.run(request).unwrap();
        assert_eq!(mount.lookup(directory, new_name).unwrap().number, moved);
        let whiteout = mount.lookup(ROOT, text).unwrap().inode;
        assert_eq!((whiteout.mode, whiteout.device), (libc::S_IFCHR, 0));
        assert_eq!((whiteout.uid, whiteout.gid, whiteout.links), (7, 8, 1));
    }
    // And takes the place of what is there.
    let new = NewNode { mode: libc::S_IFREG | 0o644, ..NewNode::default() };
    mount.run(Request::Make { directory: ROOT, name: name("third"), new }).unwrap();
    let flags = RenameFlags::Whiteout { uid: 0, gid: 0 };
    let (from, to) = (ROOT, ROOT);
    let request = Request::Rename { from, name: name("third"), to, new_name: name("file"), flags };
    mount.run(request).unwrap();
    assert_eq!(mount.lookup(ROOT, "file").unwrap().inode.mode, libc::S_IFREG | 0o644);
    mount.sync();
    mount.settle();
    assert!(common::check(mount.volume()).is_empty());
}
