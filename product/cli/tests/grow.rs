//! `coulter grow` from the outside: what it takes, refuses and leaves.

mod sandbox;

use sandbox::{Sandbox, can_mount, skipped};
use std::fs::{self, File};
use std::io::Write;
use std::process::Command;

fn with_store() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--store-size", "128M", "--segment-size", "2M"]);
    sandbox
}

#[test]
fn a_file_grows_and_is_sound() {
    let sandbox = with_store();
    let grown = sandbox.json(&["grow", "disk.img", "--store-size", "256M", "--json"]);
    assert_eq!(grown["store_size_bytes"], 256 << 20);
    assert!(grown["volume_size_bytes"].as_u64() > Some(150 << 20), "{grown}");
    assert_eq!(fs::metadata(sandbox.path("disk.img")).expect("it is there").len(), 256 << 20);
    sandbox.ok(&["check", "disk.img", "--data"]);
    let entry = sandbox.json(&["attach", "disk.img", "--via", "nbd-server", "--json"]);
    assert_eq!(entry["volume_size_bytes"], grown["volume_size_bytes"]);
}

#[test]
fn a_size_with_a_plus_sign_is_added_to_what_there_is() {
    let sandbox = with_store();
    let grow = |words: &[&str]| {
        let grown = sandbox.json(&[&["grow"], words, &["--json"]].concat());
        let bytes = |field: &str| grown[field].as_u64().expect("it is a number");
        (bytes("store_size_bytes"), bytes("volume_size_bytes"))
    };
    let (store, volume) = grow(&["disk.img", "--store-size", "+64M"]);
    assert_eq!(store, (128 + 64) << 20);
    let (store, larger) = grow(&["disk.img", "--size", "+8M"]);
    assert_eq!(larger, volume + (8 << 20));
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    assert_eq!(grow(&["disk", "--size", "+8M"]).1, larger + (8 << 20));
    assert!(grow(&["disk", "--store-size", "+64M"]).0 >= store + (64 << 20));
    let error = sandbox.fails(2, &["grow", "disk", "--size", "+-8M"]);
    assert!(error.contains("below zero"), "{error}");
}

/// The size that the kernel shows of a block device.
fn device_size(device: &str) -> u64 {
    let name = device.trim_start_matches("/dev/");
    let sectors = fs::read_to_string(format!("/sys/block/{name}/size")).expect("it is there");
    sectors.trim().parse::<u64>().expect("a number") * 512
}

#[test]
fn an_attached_volume_grows_and_its_device_with_it_while_a_file_system_is_mounted() {
    let Some(_alone) = can_mount("growing while a file system is mounted") else { return };
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "128M", "--segment-size", "2M"]);
    let directory = sandbox.make_directory("mnt").display().to_string();
    sandbox.ok(&["attach", "disk.img", "--via", "loop"]);
    sandbox.ok(&["mount", "disk.img", &directory, "--mkfs", "ext4"]);
    let device = sandbox.listed()[0]["device"].as_str().expect("it has one").to_owned();
    assert_eq!(device_size(&device), 128 << 20);
    let file = sandbox.path("mnt/file");
    fs::write(&file, vec![7; 8 << 20]).expect("there is room");
    let mut open = File::options().append(true).open(&file).expect("it is there");
    let grown = sandbox.json(&["grow", "disk", "--size", "256M", "--json"]);
    assert_eq!(grown["volume_size_bytes"], 256 << 20);
    assert_eq!(device_size(&device), 256 << 20, "hosts see it");
    assert_eq!(sandbox.listed()[0]["volume_size_bytes"], 256 << 20);
    open.write_all(&[8; 4096]).expect("what was open stays open");
    open.sync_all().expect("it is durable");
    drop(open);
    let output = Command::new("resize2fs").arg(&device).output().expect("it is installed");
    let error = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        fs::write(sandbox.path("mnt/large"), vec![9; 150 << 20]).expect("there is room now");
    } else {
        assert!(error.contains("Permission denied to resize"), "{error}");
        skipped("growing the file system itself: it takes CAP_SYS_RESOURCE");
    }
    let mut expected = vec![7; 8 << 20];
    expected.extend([8; 4096]);
    assert!(fs::read(&file).expect("it is there") == expected);
    sandbox.ok(&["umount", &directory]);
    sandbox.ok(&["check", "disk.img", "--data"]);
}

#[test]
fn an_attached_volume_that_does_not_grow_serves_on() {
    let sandbox = with_store();
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    let size = sandbox.listed()[0]["volume_size_bytes"].clone();
    let length = || fs::metadata(sandbox.path("disk.img")).expect("it is there").len();
    let error = sandbox.fails(2, &["grow", "disk", "--store-size", "256M", "--size", "1M"]);
    assert!(error.contains("never shrinks"), "{error}");
    let error = sandbox.fails(2, &["grow", "disk.img", "--store-size", "100M"]);
    assert!(error.contains("never shrinks"), "{error}");
    assert_eq!(length(), 128 << 20, "a refusal leaves the file as it was");
    let status = sandbox.json(&["status", "disk", "--json"]);
    assert_eq!((&status["state"], &status["volume_size_bytes"]), (&"running".into(), &size));
    // The file below became shorter: opened again it would be refused.
    let file = File::options().write(true).open(sandbox.path("disk.img")).expect("it is there");
    file.set_len(120 << 20).expect("it can be cut");
    let error = sandbox.fails(1, &["grow", "disk"]);
    assert!(error.contains("has become shorter"), "{error}");
    file.set_len(128 << 20).expect("it can be made longer");
    assert_eq!(sandbox.json(&["status", "disk", "--json"])["state"], "running");
    sandbox.ok(&["detach", "disk"]);
    let attach = ["attach", "disk.img", "--via", "nbd-server", "--read-only"];
    sandbox.ok(&attach);
    let error = sandbox.fails(1, &["grow", "disk", "--store-size", "256M"]);
    assert!(error.contains("read-only"), "{error}");
    assert_eq!(length(), 128 << 20);
}

#[test]
fn less_than_there_is_and_what_is_no_store_is_refused() {
    let sandbox = with_store();
    let before = fs::read(sandbox.path("disk.img")).expect("it is there");
    let error = sandbox.fails(2, &["grow", "disk.img", "--store-size", "100M"]);
    assert!(error.contains("never shrinks"), "{error}");
    let error = sandbox.fails(2, &["grow", "disk.img", "--store-size", "256M", "--size", "1M"]);
    assert!(error.contains("never shrinks"), "{error}");
    let error = sandbox.fails(2, &["grow", "disk.img", "--store-size", "256M", "--size", "255M"]);
    assert!(error.contains("at most"), "{error}");
    let after = fs::read(sandbox.path("disk.img")).expect("it is there");
    assert!(before == after, "a refusal leaves the file as it was, in length too");
    fs::write(sandbox.path("other"), vec![0; 1 << 20]).expect("there is room");
    let error = sandbox.fails(1, &["grow", "other", "--store-size", "2M"]);
    assert!(error.contains("no store here"), "{error}");
    assert_eq!(fs::metadata(sandbox.path("other")).expect("it is there").len(), 1 << 20);
    sandbox.fails(1, &["grow", "missing", "--store-size", "2M"]);
}

/// Whoever else writes to the file would lose what he appended meanwhile, if it were made longer and
/// then cut again. Here it cannot be made longer.
#[test]
fn a_file_that_is_refused_is_not_touched() {
    let sandbox = with_store();
    fs::write(sandbox.path("other"), vec![7; 1 << 20]).expect("there is room");
    sandbox.make_directory("directory");
    let refusal = |name: &str| {
        let mut command = Command::new("prlimit");
        command.arg("--fsize=134217728").arg(sandbox.command(&[]).get_program());
        command.args(["grow", name, "--store-size", "256M"]).current_dir(sandbox.path("."));
        let output = command.env("COULTER_STATE_DIRECTORY", sandbox.path("state")).output();
        let output = output.expect("it can be run");
        let code = if name == "directory" { 2 } else { 1 };
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let error = refusal("other");
    assert!(error.contains("no store here"), "{error}");
    // Another process lets it grow, or serves it.
    let theirs = File::open(sandbox.path("disk.img")).expect("it is there");
    theirs.lock_shared().expect("nobody has it");
    let error = refusal("disk.img");
    assert!(error.contains("in use"), "{error}");
    let error = refusal("directory");
    assert!(error.contains("it is a directory"), "{error}");
}

/// With holes in place of what is missing it would open, and not be what it was.
#[test]
fn a_store_that_was_cut_short_does_not_grow() {
    let sandbox = with_store();
    let file = File::options().write(true).open(sandbox.path("disk.img")).expect("it is there");
    file.set_len(100 << 20).expect("it is writable");
    for size in [&["--store-size", "256M"][..], &["--store-size", "128M"], &[]] {
        let error = sandbox.fails(1, &[&["grow", "disk.img"][..], size].concat());
        assert!(error.contains("it has 100 MiB but the store has 128 MiB"), "{error}");
        assert!(error.contains("truncated") && error.contains("coulter salvage"), "{error}");
        assert_eq!(file.metadata().expect("it is there").len(), 100 << 20);
    }
}

#[test]
fn a_volume_of_no_size_is_refused_in_words() {
    let sandbox = with_store();
    let error = sandbox.fails(2, &["grow", "disk.img", "--store-size", "256M", "--size", "0"]);
    assert!(error.contains("the volume size must be"), "{error}");
}

#[test]
fn a_store_on_a_full_disk_is_as_it_was_or_as_it_should_be() {
    let Some(_right) = can_mount("a_store_on_a_full_disk_is_as_it_was_or_as_it_should_be") else {
        return;
    };
    let sandbox = Sandbox::new();
    let disk = sandbox.make_directory("disk");
    let mount = ["-t", "tmpfs", "-o", "size=8M", "none"];
    let mounted = Command::new("mount").args(mount).arg(&disk).status();
    assert!(mounted.expect("it can be run").success());
    // Sooner or later in growing, there is no room.
    for free in (0..40 << 10).step_by(4096) {
        let shape = ["--store-size", "60M", "--segment-size", "2M", "--sparse"];
        sandbox.ok(&[&["create", "disk/a.img"], &shape[..]].concat());
        let mut filling = File::create(disk.join("filling")).expect("the directory is writable");
        while filling.write_all(&[1; 4096]).is_ok() {}
        let full = filling.metadata().expect("it is there").len();
        filling.set_len(full - free).expect("it is shorter");
        let grown = sandbox.run(&["grow", "disk/a.img", "--store-size", "150M"]);
        let error = String::from_utf8_lossy(&grown.stderr);
        assert!(grown.status.success() || error.contains("o space left"), "{free}: {error}");
        drop(filling);
        fs::remove_file(disk.join("filling")).expect("it is ours");
        sandbox.ok(&["check", "disk/a.img", "--data"]);
        sandbox.ok(&["grow", "disk/a.img", "--store-size", "150M"]);
        sandbox.ok(&["check", "disk/a.img", "--data"]);
        fs::remove_file(disk.join("a.img")).expect("it is ours");
    }
}

#[test]
fn a_store_that_may_outgrow_its_file_system_grows_with_a_note_of_it() {
    let test = "a_store_that_may_outgrow_its_file_system_grows_with_a_note_of_it";
    let Some(_right) = can_mount(test) else { return };
    let sandbox = Sandbox::new();
    let disk = sandbox.make_directory("disk");
    let mount = ["-t", "tmpfs", "-o", "size=128M", "none"];
    let mounted = Command::new("mount").args(mount).arg(&disk).status();
    assert!(mounted.expect("it can be run").success());
    let shape = ["--store-size", "60M", "--segment-size", "2M", "--sparse"];
    sandbox.ok(&[&["create", "disk/a.img"], &shape[..]].concat());
    let note = |size| {
        let output = sandbox.run(&["grow", "disk/a.img", "--store-size", size]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).expect("it is text")
    };
    assert_eq!(note("80M"), "");
    let told = note("200M");
    assert!(told.contains("disk/a.img may grow by") && told.contains("writes wait"), "{told}");
}

#[test]
fn a_file_system_grows_with_its_volume() {
    let Some(_right) = can_mount("a_file_system_grows_with_its_volume") else { return };
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("mnt");
    sandbox.ok(&["mount", "disk.img", "mnt", "--create", "--store-size", "512M", "--mkfs", "ext4"]);
    let content: Vec<u8> = (0..8_000_000u32).map(|at| (at % 251) as u8).collect();
    fs::write(directory.join("file"), &content).expect("there is room");
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["grow", "disk.img", "--store-size", "1G"]);
    // Without a mount, for resizing one takes rights that not every container gives.
    let device = sandbox.ok(&["attach", "disk.img", "--via", "loop"]);
    for (tool, options) in [("e2fsck", &["-fp"][..]), ("resize2fs", &[])] {
        let output = Command::new(tool).args(options).arg(device.trim()).output();
        let output = output.expect("it comes with mkfs.ext4");
        assert!(output.status.success(), "{output:?}");
    }
    sandbox.ok(&["detach", "disk"]);
    sandbox.ok(&["mount", "disk.img", "mnt"]);
    let space = Command::new("stat").args(["-fc", "%S %b"]).arg(&directory).output();
    let space = String::from_utf8(space.expect("it can be run").stdout).expect("numbers");
    let numbers: Vec<u64> = space.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    assert!(numbers.iter().product::<u64>() > 600 << 20, "{space}");
    assert!(fs::read(directory.join("file")).expect("it is there") == content);
    sandbox.ok(&["umount", "mnt"]);
}
