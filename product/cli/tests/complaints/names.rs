//! Names, links and nodes.

use crate::overlaid::{Overlaid, assert_holds, content, scatter};
use crate::sandbox::can_mount;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, fallocate, linkat, renameat_with,
};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

fn rename(from: &Path, to: &Path, flags: RenameFlags) -> Result<(), Errno> {
    renameat_with(CWD, from, CWD, to, flags)
}

#[test]
fn a_change_through_one_hard_link_is_seen_by_the_other() {
    let Some(_right) = can_mount("hard links") else { return };
    let overlaid = Overlaid::new();
    let (file, mut expected) = overlaid.scattered("one", 1);
    let number = file.metadata().expect("it is open").ino();
    fs::hard_link(overlaid.path("one"), overlaid.path("two")).expect("links are allowed");
    let other = OpenOptions::new().read(true).write(true).open(overlaid.path("two"));
    let other = other.expect("it is there");
    scatter(&other, &mut expected, 2);
    assert_holds(&file, &expected);
    for name in ["one", "two"] {
        let found = fs::metadata(overlaid.path(name)).expect("it is there");
        assert_eq!((found.ino(), found.nlink()), (number, 2), "{name}");
    }
    fs::remove_file(overlaid.path("one")).expect("it is there");
    assert_eq!(other.metadata().expect("it is open").nlink(), 1);
    scatter(&other, &mut expected, 3);
    assert_holds(&file, &expected);
    drop((file, other));
    overlaid.detach();
    let home = File::open(overlaid.path("two")).expect("it is there");
    assert_eq!(home.metadata().expect("it is open").ino(), number, "as below");
    assert_holds(&home, &expected);
}

#[test]
fn an_unlinked_file_that_is_open_is_read_written_and_synced() {
    let Some(_right) = can_mount("an unlinked file that is open") else { return };
    let overlaid = Overlaid::new();
    fs::create_dir(overlaid.path("below")).expect("it is new");
    let (file, mut expected) = overlaid.scattered("below/file", 1);
    let synced = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_SYNC)
        .open(overlaid.path("below/file"))
        .expect("it is there");
    fs::remove_file(overlaid.path("below/file")).expect("it is there");
    fs::remove_dir(overlaid.path("below")).expect("nothing hidden is in it");
    synced.write_all_at(b"after", 5 * 4096 + 7).expect("it is open");
    expected[5 * 4096 + 7..][..5].copy_from_slice(b"after");
    scatter(&file, &mut expected, 2);
    assert_holds(&file, &expected);
    assert_eq!(file.metadata().expect("it is open").nlink(), 0);
    // What needs all of it in one place, too.
    fallocate(&file, FallocateFlags::ZERO_RANGE, 0, 8192).expect("it is open");
    expected[..8192].fill(0);
    scatter(&file, &mut expected, 3);
    file.set_len(150 * 4096 + 5).expect("it is open");
    expected.truncate(150 * 4096 + 5);
    assert_holds(&file, &expected);
    drop((file, synced));
    overlaid.detach();
    assert_eq!(fs::read_dir(&overlaid.directory).expect("it is there").count(), 0);
}

#[test]
fn a_file_that_another_is_renamed_over_stays_whole_for_those_who_have_it_open() {
    let Some(_right) = can_mount("rename over an open file") else { return };
    let overlaid = Overlaid::new();
    let (old, mut old_content) = overlaid.scattered("old", 1);
    let (new, mut new_content) = overlaid.scattered("new", 2);
    let number = new.metadata().expect("it is open").ino();
    fs::rename(overlaid.path("new"), overlaid.path("old")).expect("both are there");
    scatter(&old, &mut old_content, 3);
    scatter(&new, &mut new_content, 4);
    assert_holds(&old, &old_content);
    let found = File::open(overlaid.path("old")).expect("it is there");
    assert_eq!(found.metadata().expect("it is open").ino(), number);
    assert_holds(&found, &new_content);
    drop((old, new, found));
    overlaid.detach();
    assert_holds(&File::open(overlaid.path("old")).expect("it is there"), &new_content);
}

#[test]
fn renames_keep_the_rules_of_the_file_system_below() {
    let Some(_right) = can_mount("rules of renames") else { return };
    let overlaid = Overlaid::new();
    let (one, one_content) = overlaid.scattered("one", 1);
    let (two, two_content) = overlaid.scattered("two", 2);
    drop((one, two));
    let path = |name: &str| overlaid.path(name);
    for name in ["a", "b", "a/below", "b/below"] {
        fs::create_dir(path(name)).expect("it is new");
    }
    let refused = rename(&path("one"), &path("two"), RenameFlags::NOREPLACE);
    assert_eq!(refused, Err(Errno::EXIST));
    let refused = rename(&path("a"), &path("b"), RenameFlags::empty());
    assert_eq!(refused, Err(Errno::NOTEMPTY));
    let refused = rename(&path("a"), &path("a/below/a"), RenameFlags::empty());
    assert_eq!(refused, Err(Errno::INVAL));
    rename(&path("one"), &path("two"), RenameFlags::EXCHANGE).expect("both are there");
    rename(&path("a"), &path("b/below"), RenameFlags::empty()).expect("that is empty");
    assert!(path("b/below/below").is_dir() && !path("a").exists());
    fs::rename(path("two"), path("b/below/one")).expect("it is there");
    overlaid.detach();
    assert_holds(&File::open(path("one")).expect("it is there"), &two_content);
    assert_holds(&File::open(path("b/below/one")).expect("it is there"), &one_content);
}

#[test]
fn thousands_of_files_do_not_use_up_the_descriptors() {
    let Some(_right) = can_mount("thousands of files") else { return };
    let overlaid = Overlaid::new();
    let files: Vec<File> = (0..2000)
        .map(|number| {
            let mut file = File::create(overlaid.path(&format!("{number}"))).expect("it is new");
            file.write_all(b"text").expect("there is room");
            file
        })
        .collect();
    let descriptors = fs::read_dir(format!("/proc/{}/fd", overlaid.pid)).expect("it runs").count();
    assert!(descriptors < 1000, "{descriptors} descriptors");
    for (number, file) in files.iter().enumerate() {
        assert_eq!(file.metadata().expect("it is open").len(), 4);
        fs::remove_file(overlaid.path(&format!("{number}"))).expect("it is there");
    }
    // Files without a name cost one each, and the limit is high enough for them.
    assert!(files.iter().all(|file| file.metadata().is_ok_and(|found| found.nlink() == 0)));
    drop(files);
    overlaid.detach();
}

#[test]
fn a_file_without_a_name_gets_one() {
    let Some(_right) = can_mount("O_TMPFILE") else { return };
    let overlaid = Overlaid::new();
    let flags = libc::O_TMPFILE;
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(&overlaid.directory);
    let file = file.expect("it can be made without a name");
    let mut expected = content(1);
    file.write_all_at(&expected, 0).expect("it is writable");
    scatter(&file, &mut expected, 2);
    assert_eq!(file.metadata().expect("it is open").nlink(), 0);
    assert_eq!(fs::read_dir(&overlaid.directory).expect("it is there").count(), 0);
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let to = overlaid.path("named");
    linkat(CWD, &*path, CWD, &to, AtFlags::SYMLINK_FOLLOW).expect("it can be given a name");
    scatter(&file, &mut expected, 3);
    drop(file);
    assert_holds(&File::open(&to).expect("it has a name"), &expected);
    overlaid.detach();
    assert_holds(&File::open(&to).expect("it has a name"), &expected);
}

#[test]
fn a_directory_is_listed_whole_while_it_changes() {
    let Some(_right) = can_mount("a directory that changes") else { return };
    let overlaid = Overlaid::new();
    let stays: BTreeSet<String> = (0..1000).map(|number| format!("stays-{number}")).collect();
    for name in &stays {
        fs::write(overlaid.path(name), "").expect("it is new");
        fs::write(overlaid.path(&format!("goes-{name}")), "").expect("it is new");
    }
    let mut seen = Vec::new();
    for (at, entry) in fs::read_dir(&overlaid.directory).expect("it is there").enumerate() {
        let name = entry.expect("it can be read").file_name().into_string().expect("it is text");
        if name.starts_with("goes-") {
            fs::remove_file(overlaid.path(&name)).expect("it is there");
        }
        if at % 10 == 0 {
            fs::write(overlaid.path(&format!("new-{at}")), "").expect("it is new");
        }
        seen.push(name);
    }
    let once: BTreeSet<String> = seen.iter().cloned().collect();
    assert_eq!(once.len(), seen.len(), "no name comes twice");
    assert!(stays.is_subset(&once), "and none is left out that was there all the time");
    assert!(!once.contains(".coulter"));
    fs::remove_dir_all(&overlaid.directory).expect_err("a mount point stays");
    assert_eq!(fs::read_dir(&overlaid.directory).expect("it is there").count(), 0, "all else goes");
    overlaid.detach();
}

#[test]
fn what_is_hidden_cannot_be_reached_made_or_replaced() {
    let Some(_right) = can_mount("what is hidden") else { return };
    let overlaid = Overlaid::new();
    let (_file, expected) = overlaid.scattered("file", 1);
    let hidden = overlaid.path(".coulter");
    assert!(fs::metadata(&hidden).is_err() && fs::read(hidden.join("state")).is_err());
    assert!(fs::create_dir(&hidden).is_err() && fs::remove_dir_all(&hidden).is_err());
    assert!(fs::rename(overlaid.path("file"), &hidden).is_err());
    assert!(fs::rename(&hidden, overlaid.path("other")).is_err());
    let open = rustix::fs::open(&hidden, OFlags::CREATE | OFlags::RDWR, Mode::RUSR);
    assert!(open.is_err());
    drop(_file);
    overlaid.detach();
    assert_holds(&File::open(overlaid.path("file")).expect("it is there"), &expected);
}
