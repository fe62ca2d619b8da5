//! Bytes: mapped, appended, sparse, copied, direct.

use crate::overlaid::{BLOCK, BLOCKS, Overlaid, assert_holds, scatter};
use crate::sandbox::can_mount;
use coulter::buffer::Buffer;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

#[test]
fn a_mapped_file_shows_what_is_written_and_the_other_way_round() {
    let Some(_right) = can_mount("mmap") else { return };
    let overlaid = Overlaid::new();
    let (file, mut expected) = overlaid.scattered("file", 1);
    let size = BLOCKS * BLOCK;
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
    // SAFETY: the kernel chooses where, and nothing but this test knows of it.
    let mapped = unsafe {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        rustix::mm::mmap(std::ptr::null_mut(), size, access, MapFlags::SHARED, &file, 0)
    };
    let start = mapped.expect("it can be mapped");
    // SAFETY: it is mapped so long, readable and writable, until `munmap` below; the file is not cut.
    let mapped = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), size) };
    assert!(mapped == &expected[..], "it is as it was read");
    scatter(&file, &mut expected, 2);
    assert!(mapped == &expected[..], "it is as it was written");
    for block in [120, 9, 64] {
        mapped[block * BLOCK + 5..][..100].fill(block as u8);
        expected[block * BLOCK + 5..][..100].fill(block as u8);
    }
    assert_holds(&file, &expected);
    // SAFETY: these are the bounds of what is mapped.
    unsafe { rustix::mm::msync(start, size, MsyncFlags::SYNC).expect("it is written back") };
    let direct =
        OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(overlaid.path("file"));
    let mut found = Buffer::zeroed(size);
    direct.expect("it is there").read_exact_at(&mut found, 0).expect("it is readable");
    assert!(found[..] == expected, "what was mapped has arrived");
    // SAFETY: as above; the slice is not used any more.
    unsafe { rustix::mm::munmap(start, size).expect("it is mapped") };
    drop(file);
    overlaid.detach();
    assert_holds(&File::open(overlaid.path("file")).expect("it is there"), &expected);
}

/// Who appends, and how often.
const WRITERS: usize = 4;
const LINES: usize = 100;

#[test]
fn several_who_append_never_overlap() {
    let Some(_right) = can_mount("O_APPEND") else { return };
    let overlaid = Overlaid::new();
    let (file, mut expected) = overlaid.scattered("log", 1);
    let start = expected.len();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let path = overlaid.path("log");
            scope.spawn(move || {
                let mut log = OpenOptions::new().append(true).open(path).expect("it is there");
                for line in 0..LINES {
                    let text = format!("{writer} {line:04} {}\n", "x".repeat(line * 7 % 90));
                    log.write_all(text.as_bytes()).expect("it is writable");
                }
            });
        }
        // Others overwrite it meanwhile.
        scatter(&file, &mut expected, 2);
    });
    let check = || {
        let found = fs::read(overlaid.path("log")).expect("it is readable");
        assert!(found[..start] == expected[..start], "what was there before");
        let text = String::from_utf8(found[start..].to_vec()).expect("it is text");
        let lines: BTreeSet<&str> = text.lines().collect();
        assert_eq!(lines.len(), WRITERS * LINES, "each line is there once");
        for (writer, line) in (0..WRITERS).flat_map(|w| (0..LINES).map(move |l| (w, l))) {
            let text = format!("{writer} {line:04} {}", "x".repeat(line * 7 % 90));
            assert!(lines.contains(&*text), "{text}");
        }
    };
    check();
    drop(file);
    overlaid.detach();
    check();
}

#[test]
fn holes_are_punched_allocated_and_found() {
    let Some(_right) = can_mount("holes") else { return };
    let overlaid = Overlaid::new();
    let (file, mut expected) = overlaid.scattered("file", 1);
    // As long as blocks are in the store all of it is data.
    let size = expected.len() as u64;
    assert_eq!(seek(&file, SeekFrom::Data(5000)), Ok(5000));
    assert_eq!(seek(&file, SeekFrom::Hole(5000)), Ok(size));
    assert_eq!(seek(&file, SeekFrom::Data(size)), Err(Errno::NXIO));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let (from, length) = (8 * BLOCK, 100 * BLOCK);
    fallocate(&file, punch, from as u64, length as u64).expect("a hole can be punched");
    expected[from..][..length].fill(0);
    assert_holds(&file, &expected);
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(from as u64));
    assert_eq!(seek(&file, SeekFrom::Data(from as u64)), Ok((from + length) as u64));
    // Into the hole, out of order.
    scatter(&file, &mut expected, 3);
    assert_holds(&file, &expected);
    file.set_len(3 << 20).expect("it grows");
    expected.resize(3 << 20, 0);
    file.write_all_at(b"far", 2_500_000).expect("it is writable");
    expected[2_500_000..][..3].copy_from_slice(b"far");
    assert_holds(&file, &expected);
    let (from, to) = (overlaid.path("file"), overlaid.path("copy"));
    let words = ["--sparse=always", &from.display().to_string(), &to.display().to_string()];
    crate::tool(&[&["cp"], &words[..]].concat());
    assert_holds(&File::open(&to).expect("it was made"), &expected);
    drop(file);
    overlaid.detach();
    assert_holds(&File::open(&from).expect("it is there"), &expected);
}

#[test]
fn a_file_that_is_open_for_writing_only_can_be_allocated() {
    let Some(_right) = can_mount("posix_fallocate") else { return };
    let overlaid = Overlaid::new();
    let (file, mut expected) = overlaid.scattered("file", 1);
    let writing = OpenOptions::new().write(true).open(overlaid.path("file")).expect("it is there");
    let more = FallocateFlags::COLLAPSE_RANGE;
    assert_eq!(fallocate(&writing, more, 0, BLOCK as u64), Err(Errno::OPNOTSUPP));
    fallocate(&writing, FallocateFlags::empty(), 0, 2 << 20)
        .expect("one mode that is refused refuses no other");
    expected.resize(2 << 20, 0);
    assert_holds(&file, &expected);
}

#[test]
fn a_range_is_copied_from_and_to_files_with_blocks_in_the_store() {
    let Some(_right) = can_mount("copy_file_range") else { return };
    let overlaid = Overlaid::new();
    let (from, source) = overlaid.scattered("from", 1);
    let (to, mut expected) = overlaid.scattered("to", 2);
    let (mut read_at, mut write_at) = (3 * BLOCK as u64 + 100, 76 * BLOCK as u64 + 9);
    let (first, second) = (read_at as usize, write_at as usize);
    let length = 90 * BLOCK;
    let mut left = length;
    while left > 0 {
        let (at, into) = (Some(&mut read_at), Some(&mut write_at));
        left -= rustix::fs::copy_file_range(&from, at, &to, into, left).expect("it is copied");
    }
    expected[second..][..length].copy_from_slice(&source[first..][..length]);
    assert_holds(&to, &expected);
    assert_holds(&from, &source);
    scatter(&to, &mut expected, 5);
    drop((from, to));
    overlaid.detach();
    assert_holds(&File::open(overlaid.path("to")).expect("it is there"), &expected);
}

#[test]
fn direct_and_cached_reads_and_writes_agree() {
    let Some(_right) = can_mount("O_DIRECT") else { return };
    let overlaid = Overlaid::new();
    let (file, mut expected) = overlaid.scattered("file", 1);
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(overlaid.path("file"))
        .expect("it is there");
    assert_holds(&file, &expected);
    let bytes = Buffer::copied_from(&[77; 2 * BLOCK]);
    for block in [90, 4, 8, 201] {
        direct.write_all_at(&bytes, (block * BLOCK) as u64).expect("it is writable");
        expected[block * BLOCK..][..2 * BLOCK].fill(77);
    }
    assert_holds(&file, &expected);
    scatter(&file, &mut expected, 3);
    let mut found = Buffer::zeroed(BLOCKS * BLOCK);
    direct.read_exact_at(&mut found, 0).expect("it is readable");
    assert!(found[..] == expected);
    drop((file, direct));
    overlaid.detach();
    assert_holds(&File::open(overlaid.path("file")).expect("it is there"), &expected);
}

#[test]
fn a_file_that_is_cut_and_grown_shows_zeros_behind_the_cut() {
    let Some(_right) = can_mount("cut and grown") else { return };
    let overlaid = Overlaid::new();
    let (file, mut expected) = overlaid.scattered("file", 1);
    for size in [77 * BLOCK + 100, 9 * BLOCK + 1, 3 * BLOCK] {
        file.set_len(size as u64).expect("it is cut");
        file.set_len((BLOCKS * BLOCK) as u64).expect("it is grown");
        expected[size..].fill(0);
        assert_holds(&file, &expected);
        scatter(&file, &mut expected, size as u8);
    }
    let again = OpenOptions::new().write(true).truncate(true).open(overlaid.path("file"));
    again.expect("it is there").write_all_at(b"short", 0).expect("it is writable");
    assert_holds(&file, b"short");
    drop(file);
    overlaid.detach();
    assert_holds(&File::open(overlaid.path("file")).expect("it is there"), b"short");
}
