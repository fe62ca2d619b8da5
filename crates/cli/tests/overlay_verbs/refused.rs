//! Directories and stores that are refused, and a store that is full, which nobody hears of.

use crate::overlaid::{Overlaid, put_over, status};
use crate::sandbox::{Sandbox, can_mount, mounts_below};
use std::fs;
use std::os::unix::fs::FileExt;

#[test]
fn a_store_in_the_directory_or_below_it_is_refused() {
    let Some(_right) = can_mount("a store in the directory") else { return };
    let sandbox = Sandbox::new();
    let data = sandbox.make_directory("data");
    sandbox.make_directory("data/below");
    // It would be one of the files that it serves.
    for store in ["data/store", "data/below/store", "data/../data/store"] {
        let words = ["overlay", "data", "--store", store, "--store-size", "256M"];
        let error = sandbox.fails(1, &words);
        assert!(error.contains("lies in it"), "{store}: {error}");
        assert!(error.contains("--store"), "it says what to do: {error}");
    }
    let left = || fs::read_dir(&data).expect("it is there").count();
    assert_eq!(left(), 1, "a refusal leaves nothing");

    // A directory whose own disk is on the store, by the file and by the disk.
    sandbox.ok(&["create", "volume.img", "--size", "400M"]);
    let disk = sandbox.ok(&["attach", "volume.img"]).trim().to_owned();
    let point = sandbox.make_directory("point").display().to_string();
    crate::tool(&["mkfs.ext4", "-q", &disk]);
    crate::tool(&["mount", &disk, &point]);
    for store in ["volume.img", &disk] {
        sandbox.fails(1, &["overlay", "point", "--store", store]);
        assert!(!sandbox.path("point/.coulter").exists(), "a refusal leaves nothing");
    }
    fs::write(sandbox.path("point/file"), "text").expect("it is as it was");
    crate::tool(&["umount", &point]);
    sandbox.ok(&["detach", "volume.img"]);
    sandbox.ok(&["check", "volume.img"]);
    assert!(mounts_below(&sandbox.path(".")).is_empty());
}

#[test]
fn a_directory_whose_files_cannot_be_known_again_is_refused() {
    let Some(_right) = can_mount("no handles, no attributes") else { return };
    let sandbox = Sandbox::new();
    let error = sandbox.fails(1, &["overlay", "/proc/sys", "--store-size", "256M"]);
    assert!(error.contains("no file handles"), "{error}");
    let data = sandbox.make_directory("data").display().to_string();
    crate::tool(&["chattr", "+i", &data]);
    let error = sandbox.run(&["overlay", "data", "--store-size", "256M"]);
    crate::tool(&["chattr", "-i", &data]);
    let error = String::from_utf8_lossy(&error.stderr).into_owned();
    assert!(error.contains("no extended attributes"), "{error}");
    assert_eq!(fs::read_dir(&data).expect("it is there").count(), 0, "a refusal leaves nothing");
    put_over(&sandbox, "data", &[]);
    sandbox.ok(&["overlay", "detach", "data"]);
}

#[test]
fn writers_to_a_full_store_wait_until_blocks_are_home_and_never_hear_of_it() {
    let Some(_right) = can_mount("a full store") else { return };
    let overlaid = Overlaid::new();
    overlaid.sandbox.ok(&["overlay", "detach", "data"]);
    put_over(&overlaid.sandbox, "data", &["--remap", "all"]);
    let told = status(&overlaid.sandbox, "data");
    let capacity = told["capacity_bytes"].as_u64().expect("it is a number");
    const CHUNK: u64 = 256 << 10;
    // Together they are more than the store can hold.
    let names = ["one", "two", "three"];
    let files = names.map(|name| fs::File::create_new(overlaid.path(name)).expect("it is new"));
    let chunks = capacity / 2 / CHUNK;
    let byte_of = |chunk: u64, file: usize| (chunk * 3 + file as u64) as u8 | 1;
    for chunk in 0..chunks {
        // From the end, so that no write goes on where another ended.
        let at = (chunks - 1 - chunk) * CHUNK;
        for (number, file) in files.iter().enumerate() {
            let bytes = vec![byte_of(chunk, number); CHUNK as usize];
            file.write_all_at(&bytes, at).expect("there is room below");
        }
    }
    files.iter().for_each(|file| file.sync_all().expect("there is room below"));
    let told = status(&overlaid.sandbox, "data");
    assert!(told["bytes_brought_home"].as_u64() > Some(capacity / 8), "{told}");
    drop(files);
    overlaid.detach();
    for (number, name) in names.iter().enumerate() {
        let found = fs::read(overlaid.path(name)).expect("it is there");
        assert_eq!(found.len() as u64, chunks * CHUNK);
        for (place, bytes) in found.chunks(CHUNK as usize).enumerate() {
            let expected = byte_of(chunks - 1 - place as u64, number);
            assert!(bytes.iter().all(|byte| *byte == expected), "{name}, chunk {place}");
        }
    }
}
