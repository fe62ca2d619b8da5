//! Scenes that more than one test plays.

use super::{Mount, name};
use coulter::buffer::Buffer;
use coulter_files::{AllocateMode, Changes, ROOT, Reply, Request};

/// A large directory lists each name once, also while it is emptied.
pub fn directory_emptied_while_it_is_listed() {
    let mut mount = Mount::new(8192, 64, 3);
    let directory = mount.mkdir("d").unwrap();
    for number in 0..3000 {
        mount.create(&format!("d/a name that is a little longer {number}")).unwrap();
    }
    let mut seen = std::collections::BTreeSet::new();
    let mut cookie = 0;
    loop {
        let request = Request::List { directory, cookie, size: 4096, with_attributes: false };
        let Reply::Listing(listing) = mount.run(request).unwrap() else { panic!("a listing") };
        let Some(last) = listing.entries.last() else { break };
        cookie = last.cookie;
        for entry in &listing.entries {
            let bytes = listing.name(entry).to_vec();
            if bytes != b"." && bytes != b".." {
                let name = coulter_files::Name::new(&bytes).unwrap();
                mount.run(Request::Unlink { directory, name }).unwrap();
            }
            assert!(seen.insert(bytes), "a name is listed once");
        }
    }
    assert_eq!(seen.len(), 3002);
    let parent = ROOT;
    mount.run(Request::RemoveDirectory { directory: parent, name: name("d") }).unwrap();
    mount.settle();
    let usage = mount.run(Request::Statistics).unwrap();
    let Reply::Usage(usage) = usage else { panic!("usage") };
    assert_eq!(usage.inodes, 1);
    assert_eq!(usage.free, 8192 - 3, "all that was taken is given back");
}

/// A file that is open has its content when its name is gone, and goes when it is closed.
pub fn file_unlinked_while_it_is_open() {
    let mut mount = Mount::new(2048, 64, 5);
    mount.create("file").expect("made");
    let request = Request::Lookup { directory: ROOT, name: name("file") };
    let Ok(Reply::Entry(open)) = mount.run(request) else { panic!("it has a name") };
    mount.write(open.number, 0, &[1; 10_000]).expect("written");
    mount.sync();
    let unlink = Request::Unlink { directory: ROOT, name: name("file") };
    mount.run(unlink).expect("unlinked");
    mount.settle();
    mount.write(open.number, 5000, &[2; 5000]).expect("still open");
    let found = mount.read(open.number, 0, 10_000).expect("still open");
    assert_eq!((found[4999], found[5000], found.len()), (1, 2, 10_000));
    mount.sync();
    assert_eq!(super::orphan_count(mount.volume()), 1, "it waits to be closed");
    mount.files.forget(open.number, 1);
    mount.sync();
    assert_eq!(super::orphan_count(mount.volume()), 0, "it is closed");
    assert!(super::check(mount.volume()).is_empty());
}

/// Data is submitted before the set that makes the file longer. Where the file had blocks behind
/// its end already, a crash between both leaves it there.
pub fn write_behind_the_end_that_was_lost() {
    const LENGTH: u64 = 40 * 4096;
    let mut mount = Mount::new(1024, 300, 1);
    let inode = mount.create("foo").expect("room");
    let mode = AllocateMode::Allocate { keep_size: true };
    mount.run(Request::Allocate { inode, offset: 0, length: LENGTH, mode }).expect("room");
    mount.sync();
    let before = mount.volume().log.len();
    mount.write(inode, 0, &[7; LENGTH as usize]).expect("room");
    mount.sync();
    let cuts = before..mount.volume().log.len();
    assert!(cuts.len() > 1, "the data comes before the set");
    for kept in cuts {
        let grown = |request: &dyn Fn() -> Request| {
            let mut mount = Mount::of(mount.volume().cut(kept), 300, 1);
            mount.run(request()).expect("room");
            let size = mount.attributes(inode).expect("it is there").inode.size;
            assert!(size >= LENGTH);
            let found = mount.read(inode, 0, LENGTH as u32).expect("sound");
            assert!(found.iter().all(|byte| *byte == 0), "cut after {kept}: {:?}", request());
            mount.sync();
            assert!(super::check(mount.volume()).is_empty());
        };
        let changes = Changes { size: Some(LENGTH), ..Changes::default() };
        grown(&|| Request::Change { inode, changes });
        for (offset, length) in [(LENGTH - 1, 1), (LENGTH + 5000, 9000)] {
            let mode = AllocateMode::Allocate { keep_size: false };
            grown(&|| Request::Allocate { inode, offset, length, mode });
        }
        let (offset, kills_privileges, sync) = (LENGTH, false, false);
        grown(&|| {
            let buffer = Buffer::copied_from(&[1; 100]);
            Request::Write { inode, offset, buffer, kills_privileges, sync }
        });
    }
}
