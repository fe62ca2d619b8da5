//! The file in a FUSE mount as programs use it: writes from memory that lies anywhere, and what they
//! may not do.

use coulter_attach::point::{AttachPoint, Detach};
use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
use coulter_fuse::{FuseFile, FuseOptions};
use coulter_systems::Scratch;
use coulter_systems::requirement;
use std::fs::File;
use std::os::unix::fs::FileExt;

const MIB: usize = 1 << 20;

#[test]
fn writes_come_from_memory_that_begins_within_a_page_and_nothing_else_is_changed() {
    if !requirement::may_mount() {
        return;
    }
    let service = MemoryService::new(MemoryOptions::new(8 << 20));
    let place = Scratch::on_disk();
    let options = FuseOptions::default();
    let mut point = FuseFile::mount(&service, &place.path("mount"), &options).unwrap();
    let file = File::options().read(true).write(true).open(point.path()).unwrap();
    let content: Vec<u8> = (0..5 * MIB).map(|at| (at / 512 * 7 + at) as u8).collect();
    let page = 4096 - content.as_ptr() as usize % 4096;
    for length in [512, 4096, MIB - 4096, MIB - 512, MIB, MIB + 512, 3 * MIB + 1024] {
        for first in [page, page + 16, page + 512, page + 4080] {
            let written = &content[first..first + length];
            file.write_all_at(written, 1024).unwrap();
            let mut seen = vec![0; length];
            file.read_exact_at(&mut seen, 1024).unwrap();
            assert!(seen == written, "{length} bytes from {} in a page", first - page);
        }
    }
    for length in [1, 511, 513, 4097] {
        let refused = file.write_at(&content[page..page + length], 0).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL), "{length} bytes");
    }
    drop(file);
    // There is one file, and it stays.
    let (path, other) = (point.path(), place.path("mount/other"));
    let refusals = [
        std::fs::remove_file(&path),
        std::fs::rename(&path, &other),
        std::fs::hard_link(&path, &other),
        std::os::unix::fs::symlink(&path, &other),
        std::fs::create_dir(&other),
        File::create(&other).map(drop),
    ];
    for refusal in refusals {
        assert_eq!(refusal.unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
    point.detach(Detach::IfIdle).unwrap();
}
