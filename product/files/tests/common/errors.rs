//! Every kind of operation with every kind of error.

use super::{Fails, Mount, Volume, name};
use coulter::buffer::Buffer;
use coulter_files::{
    AllocateMode, Changes, IoError, Name, NewNode, ROOT, RenameFlags, Request, Whence, XattrMode,
    read_span,
};

const EIO: IoError = IoError::Failed(libc::EIO);
/// More than any file may have.
const FAR: u64 = 1 << 62;

/// The error that an operation meets.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    Nothing,
    NoSpace,
    Commands(Fails),
    /// A write has failed before, and nothing is changed any more.
    Failed,
}

const WRONG: [Wrong; 8] = [
    Wrong::Nothing,
    Wrong::NoSpace,
    Wrong::Commands(Fails::Reads(EIO)),
    Wrong::Commands(Fails::Reads(IoError::Corrupt)),
    Wrong::Commands(Fails::Writes(EIO)),
    Wrong::Commands(Fails::Writes(IoError::Failed(libc::ENOSPC))),
    Wrong::Commands(Fails::Flushes(EIO)),
    Wrong::Failed,
];

/// The nodes that operations are about: a file with holes, another, a directory, a link, and none.
struct Nodes {
    all: Vec<u64>,
    file: u64,
}

fn volumes() -> (Volume, Volume, Nodes) {
    let mut mount = Mount::new(1024, 300, 1);
    let file = mount.create("file").expect("room");
    let other = mount.create("other").expect("room");
    let directory = mount.mkdir("directory").expect("room");
    for inode in [file, other] {
        for block in [0, 3, 4, 9] {
            mount.write(inode, block * 4096, &[7; 4000]).expect("room");
        }
        let (name, value) = (name("user.a"), [1; 300].into());
        let mode = XattrMode::Any;
        let request = Request::SetXattr { inode, name, value, mode, kills_set_gid: false };
        mount.run(request).expect("room");
    }
    let new = NewNode {
        mode: libc::S_IFLNK | 0o777,
        target: Some((*b"to").into()),
        ..NewNode::default()
    };
    mount.run(Request::Make { directory: ROOT, name: name("link"), new }).expect("room");
    let link = mount.path("link").expect("it is there");
    mount.sync();
    mount.settle();
    let empty = mount.volume().cut(mount.volume().log.len());
    let filler = mount.create("filler").expect("room");
    let mut end = 0;
    // The last blocks one by one, up to what only operations get that free others.
    for length in [1 << 18, 4096] {
        while mount.write(filler, end, &vec![1; length]).is_ok() {
            end += length as u64;
        }
    }
    mount.sync();
    mount.settle();
    let full = mount.volume().cut(mount.volume().log.len());
    (empty, full, Nodes { all: vec![file, directory, link, 999], file })
}

/// Requests about one node.
fn about(inode: u64, other: u64) -> Vec<Request> {
    let attribute = |text: &str| Name::new(text.as_bytes()).expect("a name");
    let mut requests = vec![
        Request::Attributes { inode },
        Request::ReadLink { inode },
        Request::XattrNames { inode },
        Request::Xattr { inode, name: attribute("user.a") },
        Request::RemoveXattr { inode, name: attribute("user.a") },
        Request::Change { inode, changes: Changes { mode: Some(0o600), ..Changes::default() } },
        Request::Link { inode, directory: ROOT, name: name("linked") },
        Request::SyncNode { inode },
        Request::Sync,
        Request::Settle,
        Request::Statistics,
    ];
    for length in [10, 60_000, 70_000] {
        let (name, value, mode) = (attribute("user.b"), vec![1; length].into(), XattrMode::Any);
        requests.push(Request::SetXattr { inode, name, value, mode, kills_set_gid: true });
    }
    for size in [0, 100, 5000, 50_000, FAR, u64::MAX] {
        let changes = Changes { size: Some(size), ..Changes::default() };
        requests.push(Request::Change { inode, changes });
    }
    for offset in [0, 100, 30_000, FAR, u64::MAX - 10] {
        for whence in [Whence::Data, Whence::Hole] {
            requests.push(Request::Seek { inode, offset, whence });
        }
        for length in [0, 5000, 200_000, 1 << 20] {
            // None is larger than what a mount asks for.
            let buffer = Buffer::zeroed(read_span(offset.min(FAR), length as u32));
            requests.push(Request::Read { inode, offset, length: length as u32, buffer });
            for sync in [false, true] {
                let buffer = Buffer::copied_from(&vec![9; length]);
                let kills_privileges = sync;
                requests.push(Request::Write { inode, offset, buffer, kills_privileges, sync });
            }
            let (length, keep_size) = (length as u64, false);
            for mode in [
                AllocateMode::Punch,
                AllocateMode::Allocate { keep_size },
                AllocateMode::Zero { keep_size },
            ] {
                requests.push(Request::Allocate { inode, offset, length, mode });
            }
            for (from_offset, to_offset) in [(0, offset), (offset, 100)] {
                let (from, to) = (other, inode);
                requests.push(Request::Copy { from, from_offset, to, to_offset, length });
            }
        }
    }
    requests
}

/// Requests about names in one directory.
fn in_directory(directory: u64) -> Vec<Request> {
    let mut requests = Vec::new();
    for text in ["file", "directory", "missing"] {
        let name = name(text);
        for mode in [libc::S_IFREG | 0o644, libc::S_IFDIR | 0o755] {
            let new = NewNode { mode, ..NewNode::default() };
            requests.push(Request::Make { directory, name, new: new.clone() });
            requests.push(Request::MakeUnnamed { directory, new });
        }
        requests.push(Request::Lookup { directory, name });
        requests.push(Request::Unlink { directory, name });
        requests.push(Request::RemoveDirectory { directory, name });
        for flags in [RenameFlags::Replace, RenameFlags::NoReplace, RenameFlags::Exchange] {
            let (from, to, new_name) = (directory, ROOT, super::name("other"));
            requests.push(Request::Rename { from, name, to, new_name, flags });
        }
        for with_attributes in [false, true] {
            requests.push(Request::List { directory, cookie: 0, size: 4096, with_attributes });
        }
    }
    requests
}

/// Each kind of operation on each kind of node with each error, twice: it is answered, with its
/// buffer, and nothing is left under way.
pub fn every_operation_with_every_error() {
    let (empty, full, nodes) = volumes();
    let mut failed = 0;
    for wrong in WRONG {
        for inode in &nodes.all {
            let requests = || about(*inode, nodes.file).into_iter().chain(in_directory(*inode));
            for (one, two) in requests().zip(requests()) {
                // Each begins on the same file system.
                let mut at = begin(wrong, &empty, &full);
                let what = format!("{:.200} on {inode} with {wrong:?}", format!("{one:?}"));
                for request in [one, two] {
                    let id = at.submit(request);
                    let answer = at.wait(id);
                    failed += u32::from(answer.is_err());
                    at.settle();
                    assert!(at.files.is_quiet(), "{what}: nothing is left under way");
                }
            }
        }
    }
    assert!(failed > 500, "{failed} failed");
}

fn begin(wrong: Wrong, empty: &Volume, full: &Volume) -> Mount {
    let volume = if matches!(wrong, Wrong::NoSpace) { full } else { empty };
    let mut mount = Mount::of(volume.clone(), 8, 3);
    match wrong {
        Wrong::Nothing | Wrong::NoSpace => {}
        Wrong::Commands(fails) => mount.backend.fails = Some(fails),
        Wrong::Failed => {
            mount.backend.fails = Some(Fails::Writes(EIO));
            let _ = mount.create("fails");
            let _ = mount.run(Request::Sync);
            mount.settle();
            assert!(mount.files.read_only(), "a write that fails is the last one");
        }
    }
    mount
}

/// All of a tree can be read after reads of its blocks have failed for a while.
pub fn metadata_that_cannot_be_read_once() {
    const FILES: u64 = 200;
    let mut mount = Mount::new(1024, 300, 1);
    for file in 0..FILES {
        mount.create(&format!("a file with a name {file}")).expect("room");
    }
    mount.sync();
    let volume = mount.volume().cut(mount.volume().log.len());
    let mut mount = Mount::of(volume, 8, 1);
    mount.backend.fails = Some(Fails::Reads(EIO));
    let failed = (0..FILES).filter(|file| {
        let found = mount.lookup(ROOT, &format!("a file with a name {file}"));
        found.is_err_and(|errno| errno == libc::EIO)
    });
    assert!(failed.count() > 10, "blocks of the tree are read");
    mount.backend.fails = None;
    for file in 0..FILES {
        mount.lookup(ROOT, &format!("a file with a name {file}")).expect("what failed has passed");
    }
    assert!(mount.files.damaged_blocks().is_empty(), "nothing is damaged");
}
