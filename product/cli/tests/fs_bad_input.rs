//! What `coulter fs` does with what it should not be given: stores that are no file system, full or failing ones,
//! odd names and numbers, a mount that is busy. Needs root and FUSE.

mod sandbox;

use sandbox::{Sandbox, can_mount, is_running, mounts_below, send, wait_until, write_and_sync};
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// Creates a file system of the given size in MiB in `disk.img`, and the directory `mnt`. Mounts nothing.
fn made(size: u32) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    let size = format!("{size}M");
    sandbox.ok(&["fs", "create", "disk.img", "--size", &size, "--segment-size", "2M"]);
    sandbox
}

fn mounted(size: u32) -> Sandbox {
    let sandbox = made(size);
    sandbox.ok(&["fs", "mount", "disk.img", "mnt"]);
    sandbox
}

/// Whether a program can be run and succeeds.
fn tool(words: &[&str]) -> bool {
    let ended = std::process::Command::new(words[0]).args(&words[1..]).status();
    ended.is_ok_and(|status| status.success())
}

#[track_caller]
fn ends_sound(sandbox: &Sandbox) {
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["fs", "check", "disk.img"]);
    sandbox.ok(&["check", "--data", "disk.img"]);
}

#[test]
fn a_store_without_a_file_system_or_with_one_of_another_version_is_refused() {
    let Some(_right) = can_mount("a store without a file system") else { return };
    let sandbox = made(64);
    sandbox.ok(&["create", "plain.img", "--size", "64M"]);
    for verb in ["check", "mount"] {
        let words: &[&str] = &["fs", verb, "plain.img", "mnt"];
        let words = if verb == "check" { &words[..3] } else { words };
        let output = sandbox.run(words);
        let said = [output.stdout, output.stderr].concat();
        assert_eq!(output.status.code(), Some(1), "{verb}");
        let said = String::from_utf8_lossy(&said);
        assert!(
            said.contains("no Coulter file system") || said.contains("magic"),
            "{verb}: {said}"
        );
    }
    fs::write(sandbox.path("text"), "no store at all").expect("it is writable");
    sandbox.fails(1, &["fs", "mount", "text", "mnt"]);

    // The version is at byte 8 of the volume.
    let entry = sandbox.json(&["attach", "disk.img", "--json"]);
    let device = entry["device"].as_str().expect("it is a path").to_owned();
    let disk = File::options().read(true).write(true).open(device).expect("it is there");
    let mut version = [0; 4];
    disk.read_exact_at(&mut version, 8).expect("it is readable");
    disk.write_all_at(&9_u32.to_le_bytes(), 8).expect("it is writable");
    disk.sync_all().expect("it can be synced");
    drop(disk);
    sandbox.ok(&["detach", "disk"]);
    let error = sandbox.fails(1, &["fs", "mount", "disk.img", "mnt"]);
    assert!(error.contains("version 9"), "{error}");
    assert!(mounts_below(&sandbox.path("mnt")).is_empty(), "nothing is left mounted");
}

#[test]
fn a_store_is_mounted_once() {
    let Some(_right) = can_mount("a store is mounted once") else { return };
    let sandbox = mounted(64);
    sandbox.make_directory("other");
    let error = sandbox.fails(1, &["fs", "mount", "disk.img", "other"]);
    assert!(error.contains("already attached"), "{error}");
    let error = sandbox.fails(1, &["fs", "mount", "disk.img", "mnt"]);
    assert!(error.contains("mounted"), "{error}");
    let error = sandbox.fails(1, &["fs", "check", "disk.img"]);
    assert!(error.contains("in use"), "{error}");
    fs::write(sandbox.path("mnt/file"), "text").expect("the first is not disturbed");
    ends_sound(&sandbox);
}

#[test]
fn a_full_file_system_is_left_by_deleting() {
    let Some(_right) = can_mount("a full file system is left by deleting") else { return };
    let sandbox = mounted(32);
    let directory = sandbox.path("mnt");
    let mut files = 0;
    let error = loop {
        let mut content = [0; 300_000];
        content.fill(files as u8);
        match fs::write(directory.join(format!("{files}")), content) {
            Ok(()) => files += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    assert!(files > 50, "{files}");
    // What is there can be read and synced, and goes.
    for number in 0..files {
        let content = fs::read(directory.join(format!("{number}"))).expect("it is whole");
        assert!(content == [number as u8; 300_000], "file {number}");
    }
    File::open(&directory).and_then(|it| it.sync_all()).expect("it can be synced");
    for number in 0..=files / 2 {
        fs::remove_file(directory.join(format!("{number}"))).expect("it can be left by deleting");
    }
    write_and_sync(&directory.join("new"), &[7; 1_000_000]);
    assert!(fs::read(directory.join("new")).expect("it is there") == [7; 1_000_000]);
    ends_sound(&sandbox);
}

#[test]
fn a_device_that_fails_makes_the_mount_read_only_and_that_is_said() {
    let Some(_right) = can_mount("a device that fails") else { return };
    // So few segments, which fill the store: no superblock lies behind them.
    let sandbox = made(96);
    let path = sandbox.path("mnt/kept");
    // Nothing can be written behind this byte of the store.
    let words = ["fs", "mount", "disk.img", "mnt"];
    let status = sandbox.command_with_file_limit(64 << 20, &words).status().expect("it can be run");
    assert!(status.success());
    write_and_sync(&path, &[1; 100_000]);
    let mut file = File::create(sandbox.path("mnt/large")).expect("it is writable");
    let error = (0..400).find_map(|number| {
        let written = file.write_all(&[number as u8; 1 << 20]).and_then(|()| file.sync_data());
        written.err()
    });
    let error = error.expect("the device fails").raw_os_error();
    let refused = [libc::EIO, libc::EROFS, libc::EFBIG].map(Some);
    assert!(refused.contains(&error), "{error:?}");
    let error = fs::write(sandbox.path("mnt/after"), "text")
        .and_then(|()| File::open(sandbox.path("mnt")).and_then(|directory| directory.sync_all()));
    assert!(error.is_err(), "nothing is changed any more");
    assert!(fs::read(&path).expect("reads go on") == [1; 100_000]);
    wait_until("it is said", || sandbox.listed()[0]["failure"].is_string());
    drop(file);
    sandbox.run(&["umount", "mnt"]);
    sandbox.ok(&["fs", "mount", "disk.img", "mnt"]);
    assert!(fs::read(&path).expect("it was synced") == [1; 100_000]);
    ends_sound(&sandbox);
}

#[test]
fn names_are_bytes_and_paths_have_no_end() {
    let Some(_right) = can_mount("names are bytes") else { return };
    let sandbox = mounted(64);
    let directory = sandbox.path("mnt");
    let long = vec![b'n'; 255];
    let names: [&[u8]; 6] =
        [b"with\nnewline", b"\xff\xfe\x80 no text", &long, b" ", b"-rf", "\u{1f600}".as_bytes()];
    for name in names {
        let path = directory.join(OsStr::from_bytes(name));
        fs::write(&path, name).expect("any bytes are a name");
        assert_eq!(fs::read(&path).expect("it is there"), name);
    }
    let mut found: Vec<_> = fs::read_dir(&directory)
        .expect("it can be listed")
        .map(|entry| entry.expect("it is there").file_name().as_bytes().to_vec())
        .collect();
    let mut expected: Vec<_> = names.iter().map(|name| name.to_vec()).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    let error =
        fs::write(directory.join(OsStr::from_bytes(&[b'n'; 256])), "").expect_err("too long");
    assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG));

    // A path that no call can be given at once: each step from the directory before.
    let mut at = OwnedFd::from(File::open(&directory).expect("it is there"));
    let name = CString::new(vec![b'd'; 200]).expect("no zero in it");
    for _ in 0..60 {
        // SAFETY: a descriptor and a text that ends with a zero.
        let made = unsafe { libc::mkdirat(at.as_raw_fd(), name.as_ptr(), 0o755) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the same.
        let opened = unsafe { libc::openat(at.as_raw_fd(), name.as_ptr(), libc::O_DIRECTORY) };
        assert!(opened >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: it was just opened and is nobody else's.
        at = unsafe { OwnedFd::from_raw_fd(opened) };
    }
    File::from(at).sync_all().expect("it can be synced");
    ends_sound(&sandbox);
    sandbox.ok(&["fs", "mount", "disk.img", "mnt"]);
    assert!(tool(&["rm", "-r", &directory.join("d".repeat(200)).display().to_string()]));
    ends_sound(&sandbox);
}

#[test]
fn offsets_at_the_end_of_all_numbers_are_refused_or_read_as_nothing() {
    let Some(_right) = can_mount("offsets at the end of all numbers") else { return };
    let sandbox = mounted(64);
    let path = sandbox.path("mnt/file");
    let file = File::options().read(true).write(true).create_new(true).open(&path);
    let file = file.expect("it is new");
    let end = i64::MAX as u64;
    for offset in [end, end - 1, end - 4096, 1 << 62, (1 << 60) + 4096] {
        let error = file.write_all_at(&[1; 8], offset).expect_err("no file is so long");
        let number = error.raw_os_error();
        assert!([Some(libc::EFBIG), Some(libc::EINVAL)].contains(&number), "{offset}: {error}");
        let error = file.set_len(offset).expect_err("no file is so long");
        let number = error.raw_os_error();
        assert!([Some(libc::EFBIG), Some(libc::EINVAL)].contains(&number), "{offset}: {error}");
        assert!(matches!(file.read_at(&mut [0; 8], offset), Ok(0) | Err(_)), "{offset}");
        // SAFETY: a descriptor and numbers.
        let allocated = unsafe { libc::fallocate(file.as_raw_fd(), 0, offset as i64, 4096) };
        assert_eq!(allocated, -1, "{offset}");
    }
    // The last byte that there can be.
    let last = (1 << 60) - 1;
    file.write_all_at(&[7], last).expect("a file may be so long");
    let mut byte = [0];
    file.read_exact_at(&mut byte, last).expect("it is there");
    assert_eq!((byte, file.metadata().expect("it is open").len()), ([7], 1 << 60));
    drop(file);
    fs::remove_file(&path).expect("it goes");
    ends_sound(&sandbox);
}

#[test]
fn a_busy_mount_stays_and_its_user_is_named() {
    let Some(_right) = can_mount("a busy mount stays") else { return };
    let sandbox = mounted(64);
    let file = File::create(sandbox.path("mnt/file")).expect("it is writable");
    let error = sandbox.fails(1, &["umount", "mnt"]);
    assert!(error.contains("busy") || error.contains("in use"), "{error}");
    assert!(error.contains(&std::process::id().to_string()), "it names the process: {error}");
    (&file).write_all(b"goes on").expect("it is served");
    drop(file);
    ends_sound(&sandbox);
}

fn assert_same(one: &Path, other: &Path) {
    let (a, b) =
        (fs::symlink_metadata(one).expect("there"), fs::symlink_metadata(other).expect("there"));
    assert_eq!((a.mode(), a.uid(), a.gid(), a.nlink()), (b.mode(), b.uid(), b.gid(), b.nlink()));
    assert_eq!((a.mtime(), a.mtime_nsec()), (b.mtime(), b.mtime_nsec()), "{}", other.display());
    if a.is_file() {
        assert!(fs::read(one).expect("readable") == fs::read(other).expect("readable"));
    }
}

#[test]
fn salvage_extracts_files_with_all_that_belongs_to_them() {
    let Some(_right) = can_mount("salvage extracts files") else { return };
    let sandbox = mounted(64);
    let (from, to) = (sandbox.path("mnt"), sandbox.path("rescued"));
    fs::create_dir(from.join("directory")).expect("it is writable");
    write_and_sync(&from.join("directory/file"), &vec![3; 700_000]);
    fs::hard_link(from.join("directory/file"), from.join("linked")).expect("it is writable");
    std::os::unix::fs::symlink("directory/file", from.join("link")).expect("it is writable");
    fs::set_permissions(from.join("linked"), fs::Permissions::from_mode(0o4711))
        .expect("it is ours");
    std::os::unix::fs::chown(from.join("directory"), Some(1234), Some(77)).expect("root may");
    let sparse = File::create(from.join("sparse")).expect("it is writable");
    sparse.set_len(1 << 30).expect("it is writable");
    sparse.write_all_at(b"end", (1 << 30) - 3).expect("it is writable");
    drop(sparse);
    let name = "user.note";
    let linked = from.join("linked").display().to_string();
    let has_attribute = tool(&["setfattr", "-n", name, "-v", "text", &linked]);
    let kept = sandbox.path("kept");
    let (source, target) = (from.display().to_string(), kept.display().to_string());
    assert!(tool(&["cp", "-a", &source, &target]));
    sandbox.ok(&["umount", "mnt"]);
    // From the store, and from the image of the volume that `salvage` makes of it.
    sandbox.ok(&["salvage", "disk.img", "volume.img"]);
    for store in ["disk.img", "volume.img"] {
        let said = sandbox.ok(&["fs", "salvage", store, "rescued"]);
        assert!(said.contains("5 files, directories and links"), "{said}");
        for name in ["directory", "directory/file", "linked", "link", "sparse"] {
            assert_same(&kept.join(name), &to.join(name));
        }
        assert!(
            fs::metadata(to.join("sparse")).expect("it is there").blocks() < 1000,
            "holes stay"
        );
        if has_attribute {
            assert!(tool(&["getfattr", "-n", name, &to.join("linked").display().to_string()]));
        }
        let error = sandbox.fails(1, &["fs", "salvage", store, "rescued"]);
        assert!(error.contains("not empty"), "{error}");
        fs::remove_dir_all(&to).expect("it is ours");
    }
    // Without its superblock, all is found by looking at each block.
    let image = File::options().write(true).open(sandbox.path("volume.img")).expect("it is there");
    image.write_all_at(&[0xff; 4088], 8).expect("it is writable");
    let output = sandbox.run(&["fs", "salvage", "volume.img", "rescued"]);
    assert_eq!(output.status.code(), Some(1), "the damage is told");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("block 0 of the tree"), "{said}");
    for name in ["directory", "directory/file", "linked", "link", "sparse"] {
        assert_same(&kept.join(name), &to.join(name));
    }
}

/// A mount of a sparse store on a file system that is full, and the directories of both.
fn on_a_full_file_system(sandbox: &Sandbox, patience: &str) -> [String; 2] {
    let image = sandbox.path("small.img");
    File::create(&image).and_then(|file| file.set_len(96 << 20)).expect("it is writable");
    let paths = [sandbox.make_directory("mnt"), sandbox.make_directory("small"), image];
    let [mounted, small, image] = paths.map(|path| path.to_str().expect("it is text").to_owned());
    assert!(tool(&["mkfs.ext4", "-q", "-F", "-m", "0", &image]));
    assert!(tool(&["mount", "-o", "loop", &image, &small]));
    let store = format!("{small}/disk.img");
    sandbox.ok(&["fs", "create", &store, "--size", "64M", "--sparse"]);
    sandbox.ok(&["fs", "mount", &store, "mnt", "--tune", patience]);
    write_and_sync(&Path::new(&mounted).join("before"), &[7; 1 << 16]);
    let mut ballast = File::create(format!("{small}/ballast")).expect("it is writable");
    while ballast.write_all(&[1; 1 << 16]).is_ok() {}
    [mounted, small]
}

/// The file system below has no space: reads go on, changes and syncs fail with ENOSPC in time, and
/// with the space all goes on by itself.
#[test]
fn a_full_file_system_below_is_waited_for_and_gone_on_from() {
    let Some(_right) = can_mount("a file system on a full file system") else { return };
    let sandbox = Sandbox::new();
    let [mounted, small] = on_a_full_file_system(&sandbox, "space-patience=2s");
    let (store, ballast) = (format!("{small}/disk.img"), format!("{small}/ballast"));
    let mounted = Path::new(&mounted);
    let write = |name: String| {
        let mut file = File::create(mounted.join(name))?;
        file.write_all(&[2; 1 << 16])?;
        file.sync_all()
    };
    let mut numbers = 0..;
    let error = numbers.find_map(|number| write(format!("file{number}")).err());
    let error = error.expect("what is full at some time refuses");
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    assert_eq!(fs::read(mounted.join("before")).expect("it can be read"), [7; 1 << 16]);
    assert_eq!(write("none".to_owned()).map_err(|error| error.kind()), Err(ErrorKind::StorageFull));
    fs::remove_file(ballast).expect("it is there");
    wait_until("there is space again", || write("after".to_owned()).is_ok());
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["fs", "mount", &store, "mnt"]);
    assert_eq!(fs::read(mounted.join("after")).expect("it can be read"), [2; 1 << 16]);
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["fs", "check", &store]);
    assert!(tool(&["umount", &small]));
}

/// A daemon that is told to end does not wait for space as long as programs may.
#[test]
fn a_daemon_without_space_below_ends_in_time() {
    let Some(_right) = can_mount("the end of a file system on a full file system") else { return };
    let sandbox = Sandbox::new();
    let [mounted, small] = on_a_full_file_system(&sandbox, "space-patience=1h");
    let writer = std::thread::spawn(move || {
        let write = |number: u32| {
            let mut file = File::create(format!("{mounted}/file{number}"))?;
            file.write_all(&[2; 1 << 16])?;
            file.sync_all()
        };
        (0..).find_map(|number| write(number).err())
    });
    let waits = || {
        let status = sandbox.run(&["status", "disk", "--json"]).stdout;
        let status: serde_json::Value = serde_json::from_slice(&status).expect("it is JSON");
        status["statistics"]["waiting"]["for_space"] == true
    };
    wait_until("it waits for space", waits);
    let pid = sandbox.listed()[0]["pid"].as_u64().expect("it runs") as u32;
    let begun = std::time::Instant::now();
    send(pid, "TERM");
    wait_until("it ends", || !is_running(pid));
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
    assert!(writer.join().expect("it does not panic").is_some(), "what was not durable is refused");
    assert!(tool(&["umount", "-l", sandbox.path("mnt").to_str().expect("it is text")]));
    assert!(tool(&["umount", &small]));
}
