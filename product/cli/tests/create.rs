//! `create`: what it makes, and what it will not overwrite.

mod sandbox;

use sandbox::{Sandbox, can_mount, skipped};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn a_new_file_is_private_as_large_as_was_asked_and_sparse_if_that_was_asked() {
    let sandbox = Sandbox::new();
    let made = sandbox.json(&["create", "disk.img", "--store-size", "1G", "--sparse", "--json"]);
    let file = fs::metadata(sandbox.path("disk.img")).expect("it was made");
    assert_eq!(file.len(), 1 << 30);
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    assert!(file.blocks() * 512 < 64 << 20, "{} bytes are allocated", file.blocks() * 512);
    assert_eq!(made["store_size_bytes"], 1 << 30);
    assert_eq!(made["segment_size_bytes"], 4 << 20);
    let volume = made["volume_size_bytes"].as_u64().expect("a number");
    assert!((500 << 20..900 << 20).contains(&volume), "{volume}");
    let uuid = made["uuid"].as_str().expect("a text");
    assert_eq!(uuid.len(), 36, "{uuid}");
}

#[test]
fn a_store_that_may_outgrow_its_file_system_is_made_with_a_note_of_it() {
    let test = "a_store_that_may_outgrow_its_file_system_is_made_with_a_note_of_it";
    let Some(_right) = can_mount(test) else { return };
    let sandbox = Sandbox::new();
    let disk = sandbox.make_directory("disk");
    let mount = ["-t", "tmpfs", "-o", "size=64M", "none"];
    let mounted = Command::new("mount").args(mount).arg(&disk).status();
    assert!(mounted.expect("it can be run").success());
    let note = |words: &[&str]| {
        let output = sandbox.run(words);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{error}");
        error
    };
    let create = |size| {
        let shape = ["--store-size", size, "--segment-size", "2M", "--sparse"];
        note(&[&["create", "disk/a.img"], &shape[..]].concat())
    };
    assert_eq!(create("60M"), "");
    fs::remove_file(disk.join("a.img")).expect("it is ours");
    let told = create("128M");
    assert!(told.contains("disk/a.img may grow by") && told.contains("writes wait"), "{told}");
    let told = note(&["attach", "disk/a.img", "--via", "nbd-server"]);
    assert!(told.contains("may grow by"), "{told}");
    note(&["detach", "a"]);
    let told = note(&["attach", "disk/a.img", "--via", "nbd-server", "--read-only"]);
    assert_eq!(told, "");
    note(&["detach", "a"]);
}

#[test]
fn a_symbolic_link_to_nothing_is_said_to_be_one() {
    let sandbox = Sandbox::new();
    std::os::unix::fs::symlink("gone.img", sandbox.path("link")).expect("it is writable");
    sandbox.ok(&["create", "disk.img", "--store-size", "256M"]);
    for words in
        ["create link --store-size 256M", "create link", "check link", "salvage disk.img link"]
    {
        let error = sandbox.fails(1, &words.split(' ').collect::<Vec<_>>());
        assert!(error.contains("a symbolic link"), "{words}: {error}");
        assert!(error.contains("gone.img"), "{words}: {error}");
    }
    assert!(!sandbox.path("gone.img").exists());
}

#[test]
fn sizes_that_are_told_can_be_read_and_are_exact() {
    let sandbox = Sandbox::new();
    let error = sandbox.fails(2, &["create", "disk.img", "--store-size", "1"]);
    assert!(error.contains("the device has 1 byte,"), "{error}");
    sandbox.ok(&["create", "disk.img", "--store-size", "1G"]);
    let attach = ["attach", "disk.img", "--via", "nbd-server", "--map-memory", "1M"];
    let error = sandbox.fails(1, &attach);
    assert!(error.contains(" MiB (") && error.contains(" bytes) of map memory"), "{error}");
}

#[test]
fn what_json_cannot_name_is_refused_before_anything_is_made() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("").join(OsStr::from_bytes(b"d\xff.img"));
    let words = ["create", "--store-size", "256M", "--segment-size", "2M"];
    let output = sandbox.command(&words).arg("--json").arg(&path).output();
    let output = output.expect("it can be started");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("without --json"), "{error}");
    assert!(!path.exists());
    let made = sandbox.command(&words).arg(&path).status().expect("it can be started");
    assert!(made.success() && path.exists());
}

#[test]
fn two_stores_differ_in_identity() {
    let sandbox = Sandbox::new();
    let uuid =
        |name| sandbox.json(&["create", name, "--store-size", "1G", "--json"])["uuid"].clone();
    assert_ne!(uuid("a.img"), uuid("b.img"));
}

#[test]
fn a_file_that_may_not_become_so_large_is_refused_in_words_and_not_left() {
    let sandbox = Sandbox::new();
    let words = ["create", "disk.img", "--store-size", "64M", "--segment-size", "2M"];
    let output = sandbox.command_with_file_limit(1 << 20, &words).output();
    let output = output.expect("the shell can be started");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{:?}: {error}", output.status);
    assert!(error.contains("file too large") && error.contains("`ulimit -f`"), "{error}");
    assert!(!sandbox.path("disk.img").exists());
}

#[test]
fn root_is_told_of_files_that_even_root_cannot_change() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("disk.img");
    fs::write(&path, b"").expect("the directory is writable");
    let chattr = |attribute| {
        let status = Command::new("chattr").arg(attribute).arg(&path).status();
        status.is_ok_and(|status| status.success())
    };
    if !chattr("+i") {
        skipped("immutable files: needs root, chattr and a file system that has them");
        return;
    }
    let error = sandbox.fails(1, &["create", "disk.img", "--store-size", "64M"]);
    assert!(chattr("-i"), "the file is still immutable");
    assert!(error.contains("`lsattr -d disk.img`"), "{error}");
    assert!(!error.contains("run as root"), "{error}");
}

#[test]
fn the_space_of_a_file_is_reserved_unless_it_is_to_be_sparse_also_when_it_grows() {
    let sandbox = Sandbox::new();
    let size = ["--store-size", "128M", "--segment-size", "2M"];
    let reserved = |name| fs::metadata(sandbox.path(name)).expect("it was made").blocks() * 512;
    sandbox.ok(&[&["create", "disk.img"], &size[..]].concat());
    assert!(reserved("disk.img") >= 128 << 20);
    sandbox.ok(&["grow", "disk.img", "--store-size", "256M"]);
    assert!(reserved("disk.img") >= 256 << 20);
    sandbox.ok(&[&["create", "sparse.img", "--sparse"], &size[..]].concat());
    assert!(reserved("sparse.img") < 16 << 20, "{}", reserved("sparse.img"));
    sandbox.ok(&["grow", "sparse.img", "--store-size", "256M"]);
    assert!(reserved("sparse.img") < 32 << 20, "{}", reserved("sparse.img"));
}

#[test]
fn what_holds_something_is_refused_and_force_erases_its_marks() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("disk.img");
    let file = fs::File::create(&path).expect("the directory is writable");
    file.set_len(256 << 20).expect("it can be extended");
    // A Btrfs mark lies where a store writes nothing at first.
    file.write_all_at(b"_BHRfS_M", 0x1_0040).expect("it is writable");
    let error = sandbox.fails(1, &["create", "disk.img", "--segment-size", "2M"]);
    assert!(error.contains("a Btrfs file system (at byte 65600)"), "{error}");
    assert!(error.contains("--force"), "{error}");
    sandbox.ok(&["create", "disk.img", "--segment-size", "2M", "--force"]);
    let mut mark = [0; 8];
    fs::File::open(&path).expect("it is there").read_exact_at(&mut mark, 0x1_0040).expect("it is");
    assert_ne!(&mark, b"_BHRfS_M");
}

#[test]
fn a_file_of_no_known_kind_stays_as_it_is() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("notes.txt");
    let text = "worth keeping\n";
    fs::write(&path, text).expect("the directory is writable");
    for arguments in [&["--store-size", "1G"][..], &[], &["--store-size", "1G", "--sparse"]] {
        let error = sandbox.fails(1, &[&["create", "notes.txt"], arguments].concat());
        assert!(error.contains("data of an unknown kind (at byte 0)"), "{error}");
        assert!(error.contains("--force"), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), text);
    }
    sandbox.ok(&["create", "notes.txt", "--store-size", "1G", "--force"]);
    sandbox.ok(&["check", "notes.txt"]);
}

#[test]
fn a_disk_without_a_signature_is_formatted_whatever_was_on_it() {
    let Some(_alone) = can_mount("formatting a disk that was in use") else { return };
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("disk"), vec![0xa5; 256 << 20]).expect("the directory is writable");
    let device = disk_on(&sandbox.path("disk"));
    sandbox.ok(&["create", &device, "--segment-size", "2M"]);
    sandbox.ok(&["check", &device]);
}

#[test]
fn a_disk_on_which_the_store_cannot_be_keeps_what_it_has() {
    let Some(_alone) = can_mount("a store that cannot be on a disk") else { return };
    let sandbox = Sandbox::new();
    let path = make_file(&sandbox, "disk", 64 << 20, None);
    let file = fs::File::options().write(true).open(&path).expect("it is there");
    file.write_all_at(b"_BHRfS_M", 0x1_0040).expect("it is writable");
    let device = disk_on(&path);
    for wish in [["--segment-size", "1G"], ["--size", "1T"], ["--label", "a\nb"]] {
        sandbox.fails(2, &[&["create", &device, "--force"], &wish[..]].concat());
        let error = sandbox.fails(1, &["create", &device]);
        assert!(error.contains("a Btrfs file system (at byte 65600)"), "{wish:?}: {error}");
    }
    sandbox.ok(&["create", &device, "--force"]);
    sandbox.ok(&["check", &device]);
}

/// A disk that lies in a file; the sandbox detaches it.
fn disk_on(file: &Path) -> String {
    let attached = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
    let device = String::from_utf8(attached.expect("losetup is there").stdout);
    device.expect("it is text").trim().to_owned()
}

#[test]
fn no_file_is_made_where_a_device_is_missing() {
    let sandbox = Sandbox::new();
    let device = "/dev/no-such-disk";
    for arguments in
        [&["create", device][..], &["create", device, "--store-size", "64M"], &["attach", device]]
    {
        let error = sandbox.fails(1, arguments);
        assert!(error.contains("there is no such device"), "{error}");
        assert!(!error.contains("--store-size"), "{error}");
    }
    assert!(!std::path::Path::new(device).exists());
}

#[test]
fn a_store_is_not_formatted_again_by_mistake() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--store-size", "256M", "--segment-size", "2M"]);
    let before = fs::read(sandbox.path("disk.img")).expect("it is readable");
    let error = sandbox.fails(1, &["create", "disk.img"]);
    assert!(error.contains("a Coulter store (at byte 0)"), "{error}");
    let after = fs::read(sandbox.path("disk.img")).expect("it is readable");
    assert!(before == after, "a refused format has written");
}

#[test]
fn a_file_system_made_by_its_own_tool_is_refused() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("disk.img");
    let file = fs::File::create(&path).expect("the directory is writable");
    file.set_len(256 << 20).expect("it can be extended");
    let made = Command::new("/usr/sbin/mkfs.ext4").arg("-q").arg(&path).status();
    if !made.is_ok_and(|status| status.success()) {
        skipped("refusing a real ext4: mkfs.ext4 is not installed");
        return;
    }
    let error = sandbox.fails(1, &["create", "disk.img"]);
    assert!(error.contains("ext4"), "{error}");
}

#[test]
fn sizes_that_cannot_be_are_explained_and_leave_nothing_behind() {
    let sandbox = Sandbox::new();
    for (arguments, words) in [
        (&["--store-size", "1M"][..], "larger device"),
        (&["--store-size", "1G", "--segment-size", "3M"], "power of two"),
        (&["--store-size", "1G", "--size", "2G"], "volume"),
    ] {
        let error = sandbox.fails(2, &[&["create", "disk.img"], arguments].concat());
        assert!(error.contains(words), "{arguments:?}: {error}");
        assert!(!sandbox.path("disk.img").exists(), "{arguments:?} leaves a file");
    }
}

/// A file of `size` bytes that are zeros, save for one.
fn make_file(sandbox: &Sandbox, name: &str, size: u64, at: Option<u64>) -> PathBuf {
    let path = sandbox.path(name);
    let file = fs::File::create(&path).expect("the directory is writable");
    file.set_len(size).expect("it can be extended");
    if let Some(at) = at {
        file.write_all_at(b"x", at).expect("it is writable");
    }
    path
}

/// Runs what must fail, and must leave the file as it was.
#[track_caller]
fn fails_without_a_trace(sandbox: &Sandbox, path: &Path, code: i32, arguments: &[&str]) -> String {
    let before = fs::read(path).expect("it is readable");
    let room = fs::metadata(path).expect("it is there").blocks();
    let name = path.file_name().and_then(|name| name.to_str()).expect("it has a plain name");
    let error = sandbox.fails(code, &[&["create", name], arguments].concat());
    assert!(before == fs::read(path).expect("it is readable"), "{arguments:?}: {error}");
    assert_eq!(room, fs::metadata(path).expect("it is there").blocks(), "{arguments:?}");
    error
}

#[test]
fn data_between_blank_ends_is_seen() {
    let sandbox = Sandbox::new();
    let path = make_file(&sandbox, "raw.img", 256 << 20, Some(100 << 20));
    let error = fails_without_a_trace(&sandbox, &path, 1, &[]);
    assert!(error.contains("data of an unknown kind (at byte 104857600)"), "{error}");
    sandbox.ok(&["create", "raw.img", "--force"]);
}

#[test]
fn a_file_that_was_written_full_of_zeros_is_blank() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("disk.img"), vec![0; 64 << 20]).expect("the directory is writable");
    sandbox.ok(&["create", "disk.img"]);
    sandbox.ok(&["check", "disk.img"]);
}

/// What people type, and what they are told: which size is which, and why one cannot be.
#[test]
fn sizes_are_those_of_the_volume_and_wrong_ones_say_why() {
    let sandbox = Sandbox::new();
    let made = sandbox.json(&["create", "a.img", "--size", "1G", "--json"]);
    assert_eq!(made["volume_size_bytes"], 1 << 30);
    let store = made["store_size_bytes"].as_u64().expect("it is a number");
    assert!((1200 << 20..1400 << 20).contains(&store), "{store}: a fifth and what metadata take");
    let more = ["create", "b.img", "--size", "1G", "--over-provisioning", "50%", "--json"];
    let more = sandbox.json(&more)["store_size_bytes"].as_u64().expect("it is a number");
    assert!(more > store + (256 << 20), "{more}");
    let both = ["create", "c.img", "--store-size", "2G", "--size", "1G"];
    let told = sandbox.ok(&both);
    assert!(told.contains("a store of 2 GiB for a volume of 1 GiB"), "{told}");
    sandbox.ok(&["grow", "c.img", "--size", "3G"]);
    let grown = sandbox.json(&["dump", "c.img", "superblock", "--json"]).to_string();
    assert!(grown.contains(&format!("{}", (3u64 << 30) / 4096)), "{grown}");
    fs::write(sandbox.path("empty.img"), "").expect("it is writable");
    for (words, said) in [
        (&["create", "x.img", "--size", "500T"][..], "16 TiB"),
        (&["create", "x.img", "--size", "-1G"], "below zero"),
        (&["create", "x.img", "--size", "0"], "not zero"),
        (&["create", "x.img", "--size", "10GB"], "ambiguous"),
        (&["create", "empty.img"], "it is empty"),
    ] {
        let error = sandbox.fails(2, words);
        assert!(error.contains(said), "{words:?}: {error}");
        assert!(!sandbox.path("x.img").exists());
    }
}

#[test]
fn wishes_that_cannot_be_leave_what_was_there() {
    let sandbox = Sandbox::new();
    let marked = make_file(&sandbox, "marked.img", 64 << 20, None);
    let file = fs::File::options().write(true).open(&marked).expect("it is there");
    // The mark of ext4.
    file.write_all_at(&[0x53, 0xef], 1080).expect("it is writable");
    sandbox.ok(&["create", "store.img", "--store-size", "64M"]);
    let blank = make_file(&sandbox, "blank.img", 64 << 20, None);
    let long = "x".repeat(65);
    for wish in [
        &["--segment-size", "1G"][..],
        &["--size", "500T"],
        &["--label", &long],
        &["--label", "two\nlines"],
        &["--label", "\u{1b}[2J"],
        &["--map-memory", "1K"],
    ] {
        for (path, force) in
            [(&marked, &["--force"][..]), (&sandbox.path("store.img"), &["--force"]), (&blank, &[])]
        {
            fails_without_a_trace(&sandbox, path, 2, &[wish, force].concat());
            let longer = [wish, force, &["--store-size", "200M"]].concat();
            fails_without_a_trace(&sandbox, path, 2, &longer);
            fails_without_a_trace(&sandbox, path, 2, &[&longer[..], &["--sparse"]].concat());
        }
    }
    sandbox.ok(&["check", "store.img"]);
}

#[test]
fn the_file_of_a_store_that_is_in_use_becomes_no_longer() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--store-size", "64M"]);
    let address = format!("unix:{}", sandbox.path("socket").display());
    let (mut server, _) = sandbox.start(&["serve", "disk.img", "--nbd", &address]);
    let error = sandbox.fails(1, &["create", "disk.img", "--force", "--store-size", "2G"]);
    let by = format!("in use by process {} (", server.id());
    let length = fs::metadata(sandbox.path("disk.img")).expect("it is there").len();
    sandbox::send(server.id(), "TERM");
    server.wait().expect("it is our child");
    assert!(error.contains(&by), "{error}");
    assert_eq!(length, 64 << 20);
}

#[test]
fn room_that_is_not_there_is_not_taken() {
    let Some(_alone) = can_mount("preallocating on a full disk") else { return };
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("small");
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=320m", "none"])
        .arg(&directory)
        .status();
    // The sandbox unmounts it.
    assert!(mount.expect("mount is there").success());
    let used = || used_in(&directory);
    let before = used();
    let create = |name, size| {
        let error = sandbox.fails(1, &["create", name, "--store-size", size]);
        assert!(error.contains("no space left"), "{error}");
    };
    create("small/new.img", "500M");
    assert!(!directory.join("new.img").exists(), "a file stays behind");
    assert_eq!(used(), before);
    make_file(&sandbox, "small/blank.img", 300 << 20, None);
    let before = used();
    create("small/blank.img", "500M");
    assert_eq!(fs::metadata(directory.join("blank.img")).expect("it is there").len(), 300 << 20);
    assert_eq!(used(), before);
}

/// What `df` says is used below a directory, in KiB.
fn used_in(directory: &Path) -> String {
    let output = Command::new("df").args(["-k", "--output=used"]).arg(directory).output();
    String::from_utf8(output.expect("df is there").stdout).expect("it is text")
}

#[test]
fn a_size_that_is_too_small_is_told_the_smallest_one_which_works() {
    let sandbox = Sandbox::new();
    for size in ["0", "1", "4095"] {
        let error = sandbox.fails(2, &["create", "disk.img", "--store-size", size]);
        assert!(!sandbox.path("disk.img").exists(), "{size} leaves a file");
        let needed = error.split(" needs ").nth(1).and_then(|rest| rest.split(" MiB").next());
        let smallest: u64 = needed.expect(&error).parse().expect(&error);
        let less = format!("{}M", smallest - 1);
        sandbox.fails(2, &["create", "less.img", "--store-size", &less]);
        let name = format!("{size}.img");
        sandbox.ok(&["create", &name, "--store-size", &format!("{smallest}M")]);
        sandbox.ok(&["check", &name]);
    }
}

#[test]
fn nobody_is_told_to_format_what_may_have_been_a_store() {
    let sandbox = Sandbox::new();
    let address = format!("unix:{}", sandbox.path("socket").display());
    let serve = |name| sandbox.fails(1, &["serve", name, "--nbd", &address]);
    make_file(&sandbox, "raw.img", 64 << 20, Some(30 << 20));
    let error = serve("raw.img");
    assert!(error.contains("no store here"), "{error}");
    assert!(
        error.contains("do not format it with `coulter create` if it may have been"),
        "{error}"
    );
    assert!(!error.contains("makes one"), "{error}");
    make_file(&sandbox, "blank.img", 64 << 20, None);
    let error = serve("blank.img");
    assert!(error.contains("no store here"), "{error}");
    assert!(error.contains("`coulter create "), "{error}");
    assert!(error.contains("makes one"), "{error}");
}

#[test]
fn what_is_longer_than_any_store_is_said_to_be() {
    let sandbox = Sandbox::new();
    for more in [&[][..], &["--segment-size", "1G"]] {
        let words = [&["create", "disk.img", "--store-size", "17T"], more].concat();
        let error = sandbox.fails(2, &words);
        assert!(error.contains("a store can have 16 TiB at most"), "{error}");
        assert!(!sandbox.path("disk.img").exists(), "nothing is left of it");
    }
}

#[test]
fn a_volume_may_have_more_addresses_than_it_can_store() {
    let sandbox = Sandbox::new();
    let create = ["create", "disk.img", "--segment-size", "2M", "--size"];
    let made = sandbox.json(&[&create[..], &["1T", "--capacity", "64M", "--json"]].concat());
    assert_eq!(made["volume_size_bytes"], 1_u64 << 40);
    assert_eq!(made["capacity_bytes"], 64 << 20);
    assert!(made["store_size_bytes"].as_u64() < Some(256 << 20), "{made}");
    let uri = sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    let status = sandbox.json(&["status", "disk", "--json"]);
    assert_eq!(status["volume_size_bytes"], 1_u64 << 40);
    let space = &status["statistics"]["space"];
    assert!(space["charged_limit_bytes"].as_u64() >= Some(64 << 20), "{space}");
    let write = |at: &str, size: &str| {
        let command = format!("write -P 1 {at} {size}");
        let output = std::process::Command::new("qemu-io")
            .args(["-f", "raw", "-c", &command, uri.trim_end()])
            .output();
        output.ok().map(|output| {
            let text =
                String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
            output.status.success() && !text.contains("failed")
        })
    };
    let Some(first) = write("900G", "48M") else {
        return sandbox::skipped("writes to a sparse volume: qemu-io is not installed");
    };
    assert!(first, "there is room for it");
    assert_eq!(write("100G", "48M"), Some(false), "there is no room for it");
    assert_eq!(write("900G", "48M"), Some(true), "an overwrite always has room");
    let text = sandbox.ok(&["status", "disk"]);
    assert!(text.contains("  capacity   "), "{text}");
    sandbox.ok(&["detach", "disk"]);
    sandbox.ok(&["check", "disk.img", "--data"]);
}

/// More than 32 TiB of addresses in use: the roots are in a list of their own, and everybody says how many there may be.
#[test]
fn a_sparse_volume_may_be_touched_in_very_many_places() {
    let sandbox = Sandbox::new();
    let create = ["create", "disk.img", "--sparse", "--size", "1P", "--capacity", "4G", "--json"];
    let made = sandbox.json(&[&create[..], &["--touched-limit", "40T"]].concat());
    assert_eq!(made["touched_limit_bytes"], 40_u64 << 40);
    let probed = sandbox.ok(&["probe", "disk.img"]);
    let has = |line: &str| assert!(probed.lines().any(|it| it == line), "{line}: {probed}");
    has(&format!("COULTER_TOUCHED_LIMIT={}", 40_u64 << 40));
    has(&format!("COULTER_CAPACITY={}", 4_u64 << 30));
    let dumped = sandbox.json(&["dump", "disk.img", "superblock", "--json"]);
    let dumped = dumped.to_string();
    assert!(dumped.contains(&format!("\"root_limit\":{}", 40 << 10)), "{dumped}");
    let checked = sandbox.ok(&["check", "disk.img"]);
    assert!(checked.contains("(0 of 40960 stretches of 1 GiB touched)"), "{checked}");
    let checked = sandbox.json(&["check", "disk.img", "--json"]);
    assert_eq!(checked["store"]["root_limit"], 40 << 10);
    assert_eq!(checked["counters"]["roots_in_use"], 0);
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    let space = &sandbox.json(&["status", "disk", "--json"])["statistics"]["space"];
    assert_eq!(
        (&space["touched_limit_bytes"], &space["touched_bytes"]),
        (&(40_u64 << 40).into(), &0.into())
    );
    let text = sandbox.ok(&["status", "disk"]);
    assert!(text.contains("  touched    0 B of 40 TiB of addresses"), "{text}");
    sandbox.ok(&["detach", "disk"]);
}

#[test]
fn a_limit_of_touched_addresses_that_makes_no_sense_is_refused_and_says_what_to_give() {
    let sandbox = Sandbox::new();
    let create = ["create", "disk.img", "--sparse"];
    for (words, said) in [
        (&["--size", "1T", "--touched-limit", "40T"][..], "--capacity"),
        (&["--size", "1T", "--capacity", "4G", "--touched-limit", "0"], "such as 1 GiB"),
        (&["--size", "1T", "--capacity", "4G", "--touched-limit", "1500M"], "such as 2 GiB"),
        (&["--size", "1T", "--capacity", "4G", "--touched-limit", "-1G"], "--touched-limit"),
        (&["--size", "1T", "--capacity", "4G", "--touched-limit", "2T"], "give 1 TiB at most"),
        (&["--size", "1T", "--capacity", "4G", "--touched-limit", "3G"], "give 4 GiB at least"),
        (&["--size", "6P", "--capacity", "4G", "--touched-limit", "5P"], "give 4 PiB at most"),
        (&["--size", "1T", "--capacity", "4G", "--touched-limit", "many"], "--touched-limit"),
    ] {
        let error = sandbox.fails(2, &[&create[..], words].concat());
        assert!(error.contains(said), "{words:?}: {error}");
        assert!(!sandbox.path("disk.img").exists(), "{words:?}");
    }
}

#[test]
fn a_capacity_that_makes_no_sense_is_refused() {
    let sandbox = Sandbox::new();
    let create = ["create", "disk.img", "--segment-size", "2M"];
    for words in [
        // More than there are addresses; without addresses; more than the file has; of other data; no block.
        &["--size", "64M", "--capacity", "128M"][..],
        &["--capacity", "64M"],
        &["--size", "1T", "--capacity", "1G", "--store-size", "256M"],
        &["--size", "1T", "--capacity", "64M", "--from", "other.img"],
        &["--size", "1T", "--capacity", "0"],
        &["--size", "1T", "--capacity", "1000"],
        &["--size", "1T", "--capacity", "-1"],
    ] {
        sandbox.fails(2, &[&create[..], words].concat());
        assert!(!sandbox.path("disk.img").exists(), "{words:?}");
    }
}
