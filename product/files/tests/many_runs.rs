//! Files of more runs of blocks than one step takes away, the last block that a file can have among
//! them: wherever the power goes meanwhile, the checker finds nothing, and all of it goes after the
//! next opening.

mod common;

use common::{Backend, Fails, Mount, Volume, check, name, orphan_count};
use coulter_files::{AllocateMode, Changes, IoError, ROOT, Reply, Request};
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

/// A truncation of many runs that ends in its midst leaves blocks to be taken away: those, and no
/// others. Returns how often it ended so.
fn written_after_a_truncation_that_was_broken_off(
    breaks: fn(&mut Mount),
    mends: fn(&mut Mount),
) -> u32 {
    let (mut made, inode) = sparse();
    let free = free_blocks(&mut made);
    let mut broken = 0;
    for completions in 0..24 {
        let mut mount = Mount::of(made.volume().clone(), CACHE, 2);
        let changes = Changes { size: Some(0), ..Changes::default() };
        let request = mount.submit(Request::Change { inode, changes });
        (0..completions).for_each(|_| mount.complete_one());
        breaks(&mut mount);
        mount.settle();
        let answer = mount.answer(request).expect("it was answered");
        mends(&mut mount);
        let size = mount.attributes(inode).expect("it is there").inode.size;
        broken += u32::from(answer.is_err() && size == 0);
        mount.write(inode, 0, &[7; 20 * BLOCK_SIZE]).expect("room");
        mount.sync();
        mount.settle();
        assert_eq!(check(mount.volume()), Vec::<String>::new(), "after {completions}");
        let mut mount = Mount::of(mount.volume().cut(mount.volume().log.len()), CACHE, 2);
        mount.settle();
        let found = mount.read(inode, 0, 20 * BLOCK_SIZE as u32).expect("it is there");
        assert!(found.iter().all(|byte| *byte == 7), "after {completions}: what was written stays");
        let changes = Changes { size: Some(0), ..Changes::default() };
        mount.run(Request::Change { inode, changes }).expect("made empty");
        mount.sync();
        mount.settle();
        assert_eq!(orphan_count(mount.volume()), 0);
        assert!(free_blocks(&mut mount) >= free + RUNS, "after {completions}: all of it went");
    }
    broken
}

#[test]
fn a_shortage_in_the_midst_of_a_truncation_takes_nothing_that_is_written_later() {
    let broken = written_after_a_truncation_that_was_broken_off(
        |mount| {
            mount.files.handle_space(true);
            mount.poll();
        },
        |mount| mount.files.handle_space(false),
    );
    assert_eq!(broken, 0, "what takes blocks away goes on");
}

#[test]
fn a_read_error_in_the_midst_of_a_truncation_takes_nothing_that_is_written_later() {
    let broken = written_after_a_truncation_that_was_broken_off(
        |mount| mount.backend.fails = Some(Fails::Reads(IoError::Failed(libc::EIO))),
        |mount| mount.backend.fails = None,
    );
    assert!(broken > 2, "{broken} were broken off");
}
