//! Files in the store whose file below is gone, was replaced by a restored one, or was changed.

use crate::overlaid::{BLOCK, OVERWRITTEN, Overlaid, assert_holds, content, put_over};
use crate::sandbox::{can_mount, send};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

fn orphans(overlaid: &Overlaid, options: &[&str]) -> Vec<Value> {
    let words = ["overlay", "list-orphans", "data", "--json"];
    let listed = overlaid.sandbox.json(&[&words[..], options].concat());
    listed.as_array().cloned().expect("it is a list")
}

/// The orphan with the seed that its file was made with, which is its number of blocks of time apart.
fn number_of(orphans: &[Value], inode: u64) -> String {
    let found = orphans.iter().find(|orphan| orphan["inode"] == inode);
    found.expect("it is listed")["record"].to_string()
}

#[test]
fn blocks_of_a_file_that_is_gone_come_back_as_a_file_or_over_the_restored_one() {
    let Some(_right) = can_mount("orphans") else { return };
    let mut overlaid = Overlaid::new();
    let names = ["restored", "removed", "changed", "sound"];
    let mut expected = Vec::new();
    let mut inodes = Vec::new();
    for (seed, name) in names.iter().enumerate() {
        let (file, bytes) = overlaid.scattered(name, seed as u8);
        inodes.push(file.metadata().expect("it is open").ino());
        expected.push(bytes);
    }
    // Grown in the store alone.
    let file = crate::open(&overlaid.path("restored"));
    file.write_all_at(b"tail", (300 * BLOCK) as u64).expect("it is writable");
    expected[0].resize(300 * BLOCK, 0);
    expected[0].extend_from_slice(b"tail");
    drop(file);
    send(overlaid.pid, "KILL");
    overlaid.sandbox.ok(&["umount", "data"]);
    let [whole, backup] = ["restored", "backup"].map(|name| overlaid.path(name));
    let words = [whole.display().to_string(), backup.display().to_string()];
    crate::tool(&["cp", "-a", &words[0], &words[1]]);
    fs::remove_file(&whole).expect("it is there");
    crate::tool(&["cp", "-a", &words[1], &words[0]]);
    fs::remove_file(&backup).expect("it is there");
    fs::remove_file(overlaid.path("removed")).expect("it is there");
    crate::open(&overlaid.path("changed")).write_all_at(&[1; 10], 5000).expect("it is plain");
    overlaid.pid = put_over(&overlaid.sandbox, "data", &[]);

    let listed = orphans(&overlaid, &["--search"]);
    assert_eq!(listed.len(), 3, "{listed:?}");
    let gone = |name: &str, at: usize| {
        let found = listed.iter().find(|orphan| orphan["inode"] == inodes[at]);
        assert_eq!(found.expect("it is listed")["is_gone"], name != "changed", "{name}");
    };
    names[..3].iter().enumerate().for_each(|(at, name)| gone(name, at));
    let restored = listed.iter().find(|orphan| orphan["inode"] == inodes[0]);
    let candidates = restored.expect("it is listed")["candidates"].to_string();
    assert!(candidates.contains("/data/restored\""), "a copy looks like it: {candidates}");
    let sandbox = &overlaid.sandbox;
    let lines = sandbox.ok(&["overlay", "list-orphans", "data"]);
    assert_eq!(lines.matches("its file is not there any more").count(), 2, "{lines}");

    let adopt = |inode: u64, name: &str| {
        let number = number_of(&listed, inode);
        sandbox.ok(&["overlay", "adopt-orphan", "data", &number, &format!("data/{name}")]);
    };
    // The restored file is below, its newer blocks lie over it.
    fs::read(&whole).expect("its pages are in memory");
    adopt(inodes[0], "restored");
    assert_holds(&crate::open(&whole), &expected[0]);
    // Without any file the rest is zeros.
    let mut alone = vec![0; expected[1].len()];
    for block in OVERWRITTEN {
        let range = block * BLOCK..(block + 1) * BLOCK;
        alone[range.clone()].copy_from_slice(&expected[1][range]);
    }
    adopt(inodes[1], "found");
    assert_holds(&crate::open(&overlaid.path("found")), &alone);
    // One that was changed is refused, unless the two are to be mixed.
    let number = number_of(&listed, inodes[2]);
    let words = ["overlay", "adopt-orphan", "data", &number, "data/changed"];
    let error = sandbox.fails(1, &words);
    assert!(error.contains("--force"), "it says what to do: {error}");
    sandbox.ok(&[&words[..], &["--force"]].concat());
    expected[2][5000..5010].fill(1);
    assert_holds(&crate::open(&overlaid.path("changed")), &expected[2]);
    let error = sandbox.fails(1, &words);
    assert!(error.contains("list-orphans"), "it is none any more: {error}");
    sandbox.ok(&["overlay", "check", "data"]);

    // They are files like any other: after a kill, and at home.
    send(overlaid.pid, "KILL");
    overlaid.pid = put_over(&overlaid.sandbox, "data", &[]);
    assert!(orphans(&overlaid, &[]).is_empty());
    assert_holds(&crate::open(&overlaid.path("found")), &alone);
    overlaid.detach();
    let at_home = [("restored", &expected[0]), ("found", &alone), ("changed", &expected[2])];
    for (name, bytes) in at_home {
        assert_holds(&File::open(overlaid.path(name)).expect("it is there"), bytes);
    }
    assert_holds(&File::open(overlaid.path("sound")).expect("it is there"), &expected[3]);
    let mode = fs::metadata(overlaid.path("found")).expect("it is there").mode();
    assert_eq!(mode & 0o777, 0o600, "whose it was is not known");
}

#[test]
fn a_directory_that_is_restored_under_a_mounted_overlay_is_no_mixture_and_loses_no_blocks() {
    let Some(_right) = can_mount("a directory restored in use") else { return };
    let mut overlaid = Overlaid::new();
    let bound = overlaid.sandbox.make_directory("bound");
    overlaid.sandbox.ok(&["overlay", "detach", "data"]);
    crate::bind(&overlaid.directory, &bound);
    overlaid.pid = put_over(&overlaid.sandbox, "data", &[]);
    let (file, _) = overlaid.scattered("restored", 1);
    drop(file);
    let (file, sound) = overlaid.scattered("sound", 2);
    drop(file);
    // The backup is older: other bytes, another file, the same name.
    fs::write(bound.join("backup"), content(9)).expect("it is plain");
    fs::rename(bound.join("backup"), bound.join("restored")).expect("both are there");
    fs::write("/proc/sys/vm/drop_caches", "3").expect("root may");
    match fs::read(overlaid.path("restored")) {
        Ok(found) => assert!(found == content(9), "it is the restored file and no mixture"),
        Err(error) => assert!(
            [libc::EIO, libc::ESTALE].contains(&error.raw_os_error().unwrap_or(0)),
            "{error}"
        ),
    }
    assert_holds(&crate::open(&overlaid.path("sound")), &sound);
    // What has no file any more cannot come home: that is told, and the store stays.
    let error = overlaid.sandbox.fails(1, &["overlay", "detach", "data"]);
    assert!(
        ["input/output", "stale"].iter().any(|why| error.to_lowercase().contains(why)),
        "{error}"
    );
    overlaid.sandbox.ok(&["overlay", "detach", "data", "--keep"]);
    overlaid.pid = put_over(&overlaid.sandbox, "data", &[]);
    assert_eq!(orphans(&overlaid, &[]).len(), 1, "its blocks are listed");
    assert_holds(&crate::open(&overlaid.path("restored")), &content(9));
    assert_holds(&crate::open(&overlaid.path("sound")), &sound);
}

#[test]
fn what_does_not_fit_an_orphan_is_refused_and_left_as_it_was() {
    let Some(_right) = can_mount("what does not fit an orphan") else { return };
    let mut overlaid = Overlaid::new();
    let (file, _) = overlaid.scattered("removed", 1);
    drop(file);
    let (file, other) = overlaid.scattered("other", 2);
    drop(file);
    send(overlaid.pid, "KILL");
    overlaid.sandbox.ok(&["umount", "data"]);
    fs::remove_file(overlaid.path("removed")).expect("it is there");
    fs::write(overlaid.path("another"), content(7)).expect("it is plain");
    overlaid.pid = put_over(&overlaid.sandbox, "data", &[]);
    let number = orphans(&overlaid, &[])[0]["record"].to_string();
    let sandbox = &overlaid.sandbox;
    let refused = |words: &[&str], why: &str| {
        let error = sandbox.fails(1, &[&["overlay", "adopt-orphan", "data"], words].concat());
        assert!(error.contains(why), "{error}");
    };
    refused(&[&number, "data/another"], "--force");
    refused(&[&number, "data/other", "--force"], "in the store already");
    refused(&["4000", "data/new"], "no orphan 4000");
    fs::write(sandbox.path("outside"), "text").expect("it is writable");
    refused(&[&number, "outside"], "not below");
    refused(&[&number, "elsewhere"], "not below");
    assert!(!sandbox.path("elsewhere").exists() && !overlaid.path("new").exists());
    assert_eq!(orphans(&overlaid, &[]).len(), 1, "it is one still");
    assert_holds(&crate::open(&overlaid.path("another")), &content(7));
    assert_holds(&crate::open(&overlaid.path("other")), &other);
}
