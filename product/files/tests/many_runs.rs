//! Files of more runs of blocks than one step takes away, the last block that a file can have among
//! them: wherever the power goes meanwhile, the checker finds nothing, and all of it goes after the
//! next opening.

mod common;

use common::{Backend, Mount, Volume, check, name, orphan_count};
use coulter_files::{AllocateMode, Changes, ROOT, Reply, Request};
use coulter_format::BLOCK_SIZE;
use coulter_format::files::FILE_SIZE_MAX;

const BLOCKS: u64 = 4096;
const CACHE: usize = 64;

/// Runs of the file: more than are taken away in one set.
const RUNS: u64 = 600;

/// A file with every other block, from the first to far behind it, and the last one that a file can
/// have.
fn sparse() -> (Mount, u64) {
    let mut mount = Mount::new(BLOCKS, CACHE, 1);
    let inode = mount.create("file").expect("there is room");
    let places = (1..RUNS).map(|run| run * 2 * BLOCK_SIZE as u64);
    for offset in places.chain([FILE_SIZE_MAX - 1]) {
        let mode = AllocateMode::Allocate { keep_size: false };
        let taken = mount.run(Request::Allocate { inode, offset, length: 1, mode });
        assert!(taken.is_ok(), "{offset}: {taken:?}");
    }
    mount.sync();
    mount.settle();
    let found = mount.attributes(inode).expect("it is there").inode;
    assert_eq!((found.size, found.blocks), (FILE_SIZE_MAX, RUNS));
    // Opened anew it waits for each node of the tree, and others come between.
    let mut mount = Mount::of(mount.volume().clone(), CACHE, 2);
    mount.settle();
    (mount, inode)
}

/// Answers a request, while others want all to be durable whenever something completes.
fn run_among_others(mount: &mut Mount, request: Request) {
    mount.submit(request);
    loop {
        mount.submit(Request::Sync);
        let Some((io, buffer)) = mount.backend.complete() else { return };
        let result = mount.backend.result(io);
        mount.files.handle_completion(io, result, buffer);
    }
}

fn free_blocks(mount: &mut Mount) -> u64 {
    match mount.run(Request::Statistics) {
        Ok(Reply::Usage(usage)) => usage.free,
        other => panic!("{other:?}"),
    }
}

/// After each step that followed the first `before`.
fn holds_at_each_cut(volume: &Volume, before: usize) {
    let mut orphans = 0;
    for count in before..=volume.log.len() {
        let cut = volume.cut(count);
        assert_eq!(check(&cut), Vec::<String>::new(), "cut after {count} steps");
        orphans += orphan_count(&cut);
        let mut mount = Mount::of(cut, CACHE, 2);
        mount.settle();
        mount.sync();
        assert_eq!(check(mount.volume()), Vec::<String>::new(), "opened after {count} steps");
        assert_eq!(orphan_count(mount.volume()), 0, "opened after {count} steps");
    }
    assert!(orphans > 1, "some cuts come in the midst of it");
}

#[test]
fn a_file_without_a_name_goes_with_its_last_block() {
    let (mut mount, _) = sparse();
    let (before, free) = (mount.volume().log.len(), free_blocks(&mut mount));
    run_among_others(&mut mount, Request::Unlink { directory: ROOT, name: name("file") });
    mount.settle();
    mount.sync();
    assert_eq!(orphan_count(mount.volume()), 0);
    assert!(free_blocks(&mut mount) >= free + RUNS);
    holds_at_each_cut(mount.volume(), before);
}

#[test]
fn a_file_that_is_cut_to_nothing_loses_its_last_block() {
    let (mut mount, inode) = sparse();
    let (before, free) = (mount.volume().log.len(), free_blocks(&mut mount));
    let changes = Changes { size: Some(0), ..Changes::default() };
    run_among_others(&mut mount, Request::Change { inode, changes });
    mount.settle();
    mount.sync();
    assert_eq!(mount.attributes(inode).expect("it is there").inode.blocks, 0);
    assert!(free_blocks(&mut mount) >= free + RUNS);
    holds_at_each_cut(mount.volume(), before);
}
