//! Other people's test suites on a volume of the daemon's: fsx on the block device and on ext4, XFS
//! and Btrfs, and stress-ng's stressors of file systems, which verify what they read.
//!
//! Minutes, so only by `make suites`. Needs root, FUSE, loop devices, and the two programs; `FSX` says
//! where fsx is.

mod others;
mod sandbox;

use coulter_systems::FileSystem;
use others::{Fsx, ON_FILE_SYSTEM, stress};
use sandbox::{Sandbox, can_mount, skipped};
use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

const TEST: &str = "other_peoples_suites_find_nothing";
const SEEDS: Range<u32> = 1..4;
const OPERATIONS: u32 = 40_000;

/// Of what fsx writes to.
const SIZE: usize = 32 << 20;

/// On the device itself, which never gets shorter, through the page cache: what the device gets is what
/// writeback makes of it. `posix_fadvise` throws pages out of the cache, so that reads come from below.
const ON_DEVICE: &str = "
flen = 33554432
blockmode = true
[weights]
truncate = 0
posix_fadvise = 8
read = 10
write = 10
mapread = 2
mapwrite = 2
fsync = 1
fdatasync = 1
";

/// Sizes of operations there: whole blocks, of which a hole is a discard; and any.
const SIZES_ON_DEVICE: [&str; 2] =
    ["punch_hole = 8\n[opsize]\nmax = 1048576\nalign = 4096\n", "[opsize]\nmax = 65536\n"];

/// What fsx has verified last, perhaps in the page cache only.
fn content_of(path: &Path) -> Vec<u8> {
    let mut content = Vec::with_capacity(SIZE);
    let file = File::open(path).expect("fsx has written to it");
    file.take(SIZE as u64).read_to_end(&mut content).expect("it can be read");
    assert!(content.iter().any(|byte| *byte != 0), "fsx has written something");
    content
}

/// Detaches, and has everything looked at; the blocks that were compared.
fn check(sandbox: &Sandbox) -> u64 {
    sandbox.ok(&["detach", "disk"]);
    let report = sandbox.json(&["check", "disk.img", "--data", "--json"]);
    report["counters"]["data_blocks"].as_u64().expect("a number")
}

fn on_device(fsx: &Fsx<'_>) {
    let sandbox = fsx.sandbox;
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    let entry = sandbox.json(&["attach", "disk.img", "--via", "loop", "--json"]);
    let device = PathBuf::from(entry["device"].as_str().expect("it has a device"));
    for sizes in SIZES_ON_DEVICE {
        fsx.run(&device, &format!("{ON_DEVICE}{sizes}"), SEEDS, OPERATIONS);
    }
    let content = content_of(&device);
    let blocks = check(sandbox);
    assert!(blocks > 0, "fsx wrote to something else");
    let entry = sandbox.json(&["attach", "disk.img", "--via", "loop", "--json"]);
    let device = PathBuf::from(entry["device"].as_str().expect("it has a device"));
    assert!(content_of(&device) == content, "the store keeps something else than fsx has seen");
    sandbox.ok(&["detach", "disk"]);
    println!("block device: fsx, {} seeds of {OPERATIONS}: {blocks} blocks sound", SEEDS.len());
    fs::remove_file(sandbox.path("disk.img")).expect("it was detached");
}

fn on_file_system(fsx: &Fsx<'_>, kind: FileSystem) {
    let sandbox = fsx.sandbox;
    let directory = sandbox.make_directory("mnt");
    let mount = ["mount", "disk.img", "mnt", "--mkfs", kind.name(), "--json"];
    let shape = ["--size", "2G", "--segment-size", "4M", "--options", "discard"];
    let entry = sandbox.json(&[&mount[..], &shape].concat());
    let device = PathBuf::from(entry["device"].as_str().expect("it has a device"));
    fsx.run(&directory.join("fsx"), ON_FILE_SYSTEM, SEEDS, OPERATIONS);
    let content = content_of(&directory.join("fsx"));
    let stressors = stress(&directory);
    assert!(stressors > 0, "stress-ng ran nothing");
    FileSystem::unmount(&directory).expect("nobody uses it");
    if let Err(error) = kind.check(&device) {
        panic!("{error}");
    }
    kind.mount(&device, &directory).expect("it was just mounted");
    let kept = content_of(&directory.join("fsx"));
    assert!(kept == content, "{kind} keeps something else than fsx has seen");
    FileSystem::unmount(&directory).expect("nobody uses it");
    let blocks = check(sandbox);
    println!("{}: fsx, {stressors} stressors, its checker: {blocks} blocks sound", kind.name());
    fs::remove_file(sandbox.path("disk.img")).expect("it was detached");
    fs::remove_dir(directory).expect("it is empty");
}

#[test]
#[ignore = "minutes: make suites"]
fn other_peoples_suites_find_nothing() {
    let Some(_right) = can_mount(TEST) else { return };
    let program = PathBuf::from(std::env::var_os("FSX").unwrap_or_else(|| "fsx".into()));
    for tool in [program.as_os_str(), "stress-ng".as_ref()] {
        if Command::new(tool).arg("--version").output().is_err() {
            return skipped(&format!("{TEST}: {} is not installed", tool.display()));
        }
    }
    let sandbox = Sandbox::new();
    let fsx = Fsx { sandbox: &sandbox, program };
    on_device(&fsx);
    for kind in FileSystem::ALL {
        if kind.is_installed() {
            on_file_system(&fsx, kind);
        } else {
            skipped(&format!("{TEST}: the programs of {kind} are not installed"));
        }
    }
}
