//! Other people's test suites on a volume of the daemon's: fsx on the block device and on ext4, XFS
//! and Btrfs, and stress-ng's stressors of file systems, which verify what they read.
//!
//! Minutes, so only by `make suites`. Needs root, FUSE, loop devices, and the two programs; `FSX` says
//! where fsx is.

mod sandbox;

use coulter_systems::FileSystem;
use sandbox::{Sandbox, can_mount, skipped};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

const TEST: &str = "other_peoples_suites_find_nothing";
const SEEDS: [u32; 3] = [1, 2, 3];
const OPERATIONS: &str = "40000";

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

const ON_FILE_SYSTEM: &str = "
flen = 33554432
[opsize]
max = 262144
[weights]
close_open = 1
posix_fadvise = 8
read = 10
write = 10
mapread = 5
mapwrite = 5
truncate = 2
fsync = 1
fdatasync = 1
posix_fallocate = 1
punch_hole = 4
copy_file_range = 2
sendfile = 1
";

struct Fsx<'a> {
    sandbox: &'a Sandbox,
    program: PathBuf,
}

impl Fsx<'_> {
    /// Runs every seed on `target`; what it finds wrong fails the test.
    fn run(&self, target: &Path, settings: &str) {
        let config = self.sandbox.path("fsx.toml");
        fs::write(&config, settings).expect("the directory is writable");
        for seed in SEEDS {
            let mut fsx = Command::new(&self.program);
            fsx.arg("-q").args(["-N", OPERATIONS, "-S", &seed.to_string()]);
            fsx.arg("-f").arg(&config).arg("-P").arg(self.sandbox.path("")).arg(target);
            let output = fsx.output().expect("it can be run");
            let said =
                String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert!(output.status.success(), "{fsx:?}: {said}");
        }
    }
}

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
        fsx.run(&device, &format!("{ON_DEVICE}{sizes}"));
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

/// Exit codes of stress-ng that find nothing wrong: all well; something is missing for a stressor, in
/// the system or in stress-ng.
const HARMLESS: [i32; 3] = [0, 3, 4];

/// Not run: they are about other file systems; fanotify is told of all that happens on the machine, and
/// hardly ends while much does.
const STRESSORS_EXCLUDED: &str = "binderfs,procfs,verity,fanotify";

/// Seconds that the stressors may take, of which each gets one.
const STRESS_MAX: &str = "900";

/// Runs the stressors of file systems; how many of them there were.
fn stress(directory: &Path) -> usize {
    let mut stress = Command::new("timeout");
    stress.args(["--kill-after=10", STRESS_MAX, "stress-ng"]);
    stress.args(["--class", "filesystem", "--exclude", STRESSORS_EXCLUDED]);
    stress.args(["--sequential", "2", "--timeout", "1s", "--verify", "--metrics-brief"]);
    stress.arg("--temp-path").arg(directory);
    let output = stress.output().expect("it can be run");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let is_harmless = output.status.code().is_some_and(|code| HARMLESS.contains(&code));
    let is_whole = said.contains("successful run completed") && !said.contains(" fail: ");
    assert!(is_harmless && is_whole, "{stress:?}, {}: {said}", output.status);
    let dispatched = said.lines().find_map(|line| line.split_once("dispatching hogs: "));
    dispatched.map_or(0, |(_, hogs)| hogs.split(',').count())
}

fn on_file_system(fsx: &Fsx<'_>, kind: FileSystem) {
    let sandbox = fsx.sandbox;
    let directory = sandbox.make_directory("mnt");
    let mount = ["mount", "disk.img", "mnt", "--mkfs", kind.name(), "--json"];
    let shape = ["--size", "2G", "--segment-size", "4M", "--options", "discard"];
    let entry = sandbox.json(&[&mount[..], &shape].concat());
    let device = PathBuf::from(entry["device"].as_str().expect("it has a device"));
    fsx.run(&directory.join("fsx"), ON_FILE_SYSTEM);
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
