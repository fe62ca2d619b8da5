//! Real file systems and real programs on an emulated drive by itself, and on a volume on such a
//! drive.
//!
//! Whether what is written comes back right, in every run of the tests; what it costs the flash, for
//! long, by `make flash-stacks`, whose table is quoted in docs/flash.md. Needs root, FUSE, loop devices
//! and fio.

mod sandbox;

use coulter_systems::{
    AtWork, FileSystem, Program, Scratch, is_on_path, settle, with_a_small_cache,
};
use rustix::fs::statvfs;
use sandbox::{Sandbox, can_mount, skipped};
use serde_json::Value;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What lies below a file system. Drives have the same flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stack {
    /// The drive by itself.
    Drive,
    /// The same, with a file system no larger than the volume: the rest of it was never written.
    DriveUsedAsFar,
    /// A volume on it, in one process.
    Volume,
    /// A volume on the drive's block device, in two.
    Store,
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Stack::Drive => "drive",
            Stack::DriveUsedAsFar => "drive, used as far",
            Stack::Volume => "volume on it",
            Stack::Store => "store on its device",
        })
    }
}

/// A drive and what is written to it.
struct Scale {
    size: &'static str,
    pace: &'static str,
    /// Files in percent of the room for them.
    fill_percent: u64,
    /// Time that is measured.
    time: Duration,
}

const SHORT: Scale =
    Scale { size: "512M", pace: "virtual", fill_percent: 8, time: Duration::from_secs(1) };
const LONG: Scale =
    Scale { size: "512M", pace: "real", fill_percent: 65, time: Duration::from_secs(8) };
/// Instead, for fio: an aged drive with little space that nobody uses.
const FILL_PERCENT_FIO: u64 = 85;
/// The same on Btrfs, which commits after every few writes when its own space is short.
const FILL_PERCENT_FIO_BTRFS: u64 = 40;

/// Counters of the drive at one moment.
#[derive(Clone, Copy, Debug)]
struct Counters {
    /// By the file system.
    host_bytes: u64,
    drive_bytes: u64,
    programmed_bytes: u64,
    collected_pages: u64,
    erases: u64,
    die_busy_ns: u64,
}

/// A file system on a stack.
struct Trial<'a> {
    sandbox: &'a Sandbox,
    stack: Stack,
    kind: FileSystem,
    device: PathBuf,
    directory: PathBuf,
    /// Bytes of the file system.
    size: u64,
}

fn number(value: &Value, path: &str) -> u64 {
    value.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path} in {value}"))
}

impl Trial<'_> {
    fn new<'a>(
        sandbox: &'a Sandbox,
        stack: Stack,
        kind: FileSystem,
        scale: &Scale,
        limit: Option<u64>,
    ) -> Trial<'a> {
        let attach = ["flash", "attach", "--name", "drive", "--via", "loop", "--json"];
        let drive = ["--size", scale.size, "--pace", scale.pace];
        let volume: &[&str] = match stack {
            Stack::Volume => &["--volume"],
            Stack::Store | Stack::Drive | Stack::DriveUsedAsFar => &[],
        };
        let mut entry = sandbox.json(&[&attach[..], &drive, volume].concat());
        if stack == Stack::Store {
            let below = entry["device"].as_str().expect("it has a device").to_owned();
            sandbox.ok(&["create", &below, "--segment-size", "4M"]);
            entry = sandbox.json(&["attach", &below, "--name", "volume", "--json"]);
        }
        let device = PathBuf::from(entry["device"].as_str().expect("it has a device"));
        let whole = number(&entry, "/volume_size_bytes");
        let size = limit.unwrap_or(whole).min(whole);
        make(kind, &device, (size < whole).then_some(size));
        let directory = sandbox.path("mnt");
        std::fs::create_dir_all(&directory).expect("the place is ours");
        kind.mount(&device, &directory).expect("it was just made");
        Trial { sandbox, stack, kind, device, directory, size }
    }

    fn status(&self, name: &str) -> Value {
        self.sandbox.json(&["status", name, "--json"])
    }

    fn counters(&self) -> Counters {
        let status = self.status("drive");
        let pages = number(&status, "/flash/page_size_bytes");
        let programs = status["flash"]["nand"]["programs"].as_object().expect("by cause");
        let programs: u64 = programs.values().filter_map(Value::as_u64).sum();
        let drive_bytes = number(&status, "/flash/drive/blocks_written") * 4096;
        let written = "/statistics/written/host_bytes";
        Counters {
            host_bytes: match self.stack {
                Stack::Drive | Stack::DriveUsedAsFar => drive_bytes,
                Stack::Volume => number(&status, written),
                Stack::Store => number(&self.status("volume"), written),
            },
            drive_bytes,
            programmed_bytes: programs * pages,
            collected_pages: number(&status, "/flash/nand/programs/gc"),
            erases: number(&status, "/flash/nand/erases"),
            die_busy_ns: number(&status, "/flash/die_busy_ns"),
        }
    }

    fn fio(&self, arguments: &[&str]) {
        let mut fio = Command::new("fio");
        fio.args(["--name=f", "--thread", "--randseed=7", "--verify_state_save=0"]);
        fio.args(["--verify=crc32c", "--verify_fatal=1", "--ioengine=io_uring", "--iodepth=16"]);
        fio.arg(format!("--filename={}", self.directory.join("f").display()));
        let output = fio.args(arguments).stdin(Stdio::null()).output().expect("fio can be run");
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(output.status.success(), "{} on {}: {said}", self.kind, self.stack);
    }

    /// Writes every block of a file in random order, and reads it back from the device; the bytes.
    fn verify(&self, bytes: u64) -> u64 {
        let size = format!("--size={bytes}");
        let work = ["--rw=randwrite", "--bs=4k", "--direct=1", &size];
        self.fio(&[&work[..], &["--do_verify=0", "--end_fsync=1"]].concat());
        FileSystem::unmount(&self.directory).expect("nobody uses it");
        self.kind.mount(&self.device, &self.directory).expect("it was just mounted");
        self.fio(&[&work[..], &["--verify_only=1"]].concat());
        bytes
    }

    /// Bytes that files may take.
    fn room(&self) -> u64 {
        let found = statvfs(&self.directory).expect("it is mounted");
        found.f_bavail * found.f_frsize
    }

    /// Unmounts, has the file system's checker look, detaches, and has ours look where it can.
    fn end(self) {
        FileSystem::unmount(&self.directory).expect("nobody uses it");
        if let Err(error) = self.kind.check(&self.device) {
            panic!("{} on {}: {error}", self.kind, self.stack);
        }
        if self.stack == Stack::Store {
            let list = self.sandbox.json(&["list", "--json"]);
            let entries = list.as_array().expect("an array");
            let drive = entries.iter().find(|entry| entry["name"] == "drive").expect("attached");
            let below = drive["device"].as_str().expect("it has a device").to_owned();
            self.sandbox.ok(&["detach", "volume"]);
            self.sandbox.ok(&["check", &below, "--data"]);
        }
        self.sandbox.ok(&["detach", "drive"]);
    }
}

/// Makes a file system, of `size` bytes if that is given.
fn make(kind: FileSystem, device: &Path, size: Option<u64>) {
    let Some(size) = size else { return kind.make(device).expect("there is room") };
    let mut mkfs = Command::new(format!("mkfs.{}", kind.name()));
    mkfs.arg("-q");
    match kind {
        FileSystem::Ext4 => mkfs.arg(device).arg(format!("{}k", size >> 10)),
        FileSystem::Xfs => mkfs.arg(format!("-dsize={size}")).arg(device),
        FileSystem::Btrfs => mkfs.arg(format!("-b{size}")).arg(device),
    };
    let output = mkfs.output().expect("mkfs can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The volume's size on a drive of this scale.
fn volume_size(sandbox: &Sandbox, scale: &Scale) -> u64 {
    let attach = ["flash", "attach", "--name", "probe", "--via", "nbd-server", "--json"];
    let entry = sandbox.json(&[&attach[..], &["--size", scale.size, "--volume"]].concat());
    sandbox.ok(&["detach", "probe"]);
    number(&entry, "/volume_size_bytes")
}

fn can_run(test: &str) -> bool {
    let there = is_on_path("fio");
    if !there {
        skipped(&format!("{test}: fio is not installed"));
    }
    there
}

#[test]
fn file_systems_keep_their_files_on_drives_and_on_volumes_on_drives() {
    let test = "file_systems_keep_their_files_on_drives_and_on_volumes_on_drives";
    let Some(_right) = can_mount(test) else { return };
    if !can_run(test) {
        return;
    }
    let sandbox = Sandbox::new();
    for kind in FileSystem::ALL {
        if !kind.is_installed() {
            skipped(&format!("{test}: the programs of {kind} are not installed"));
            continue;
        }
        // The store on a device says the same of every file system.
        let stacks = match kind {
            FileSystem::Ext4 => &[Stack::Drive, Stack::Volume, Stack::Store][..],
            _ => &[Stack::Drive, Stack::Volume],
        };
        for stack in stacks.iter().copied() {
            let trial = Trial::new(&sandbox, stack, kind, &SHORT, None);
            let before = trial.counters();
            let bytes = trial.verify(trial.size * SHORT.fill_percent / 100 / 4096 * 4096);
            settle(&trial.directory).expect("it is mounted");
            let after = trial.counters();
            let written = after.host_bytes - before.host_bytes;
            assert!(written >= bytes, "{kind} on {stack}: {written} of {bytes}");
            assert!(after.drive_bytes - before.drive_bytes >= bytes, "{kind} on {stack}");
            assert!(
                after.programmed_bytes - before.programmed_bytes >= bytes / 2,
                "{kind} {stack}"
            );
            trial.end();
        }
    }
}

/// What a program came to on a stack.
struct Figures {
    operations_per_second: f64,
    /// For each operation, whatever the host and the volume make of it.
    programmed_kib: f64,
    host_amplification: f64,
    device_amplification: f64,
    collected_percent: f64,
    erases: u64,
    /// Die time for each operation.
    die_us: f64,
}

fn measure(
    sandbox: &Sandbox,
    stack: Stack,
    kind: FileSystem,
    program: Program,
    scale: &Scale,
    limit: Option<u64>,
) -> Figures {
    let limit = limit.filter(|_| stack == Stack::DriveUsedAsFar);
    let trial = Trial::new(sandbox, stack, kind, scale, limit);
    let outside = Scratch::new(Path::new("/var/tmp")).expect("a directory can be made");
    let fill_percent = match (program, kind) {
        (Program::Fio { .. }, FileSystem::Ext4 | FileSystem::Xfs) => FILL_PERCENT_FIO,
        (Program::Fio { .. }, FileSystem::Btrfs) => FILL_PERCENT_FIO_BTRFS,
        _ => scale.fill_percent,
    };
    let bytes = trial.room() * fill_percent / 100;
    let at_work = AtWork::prepare(program, &trial.directory, outside.directory(), bytes);
    let mut at_work = at_work.expect("there is room");
    settle(&trial.directory).expect("it is mounted");
    let (before, begin) = (trial.counters(), Instant::now());
    let operations = with_a_small_cache(&trial.directory, || at_work.run(scale.time));
    let operations = operations.expect("there is room");
    settle(&trial.directory).expect("it is mounted");
    let (after, seconds) = (trial.counters(), begin.elapsed().as_secs_f64());
    at_work.end().expect("it ends in order");
    drop(outside);
    trial.end();
    let growth = |counter: fn(&Counters) -> u64| (counter(&after) - counter(&before)) as f64;
    let (host, drive) = (growth(|c| c.host_bytes), growth(|c| c.drive_bytes));
    let programmed = growth(|c| c.programmed_bytes);
    Figures {
        operations_per_second: operations / seconds,
        programmed_kib: programmed / 1024.0 / operations,
        host_amplification: drive / host,
        device_amplification: programmed / drive,
        collected_percent: growth(|c| c.collected_pages) * 4096.0 / programmed * 100.0,
        erases: after.erases - before.erases,
        die_us: growth(|c| c.die_busy_ns) / 1e3 / operations,
    }
}

fn print_head() {
    println!(
        "{:<13} | {:<5} | {:<18} | {:>9} | {:>12} | {:>6} | {:>6} | {:>5} | {:>9} | {:>6} | {:>9}",
        "program",
        "on",
        "over",
        "per s",
        "KiB flash/op",
        "volume",
        "drive",
        "total",
        "collected",
        "erases",
        "die us/op"
    );
}

fn print_row(program: Program, kind: FileSystem, stack: Stack, figures: &Figures) {
    println!(
        "{:<13} | {:<5} | {stack:<18} | {:>9.1} | {:>12.2} | {:>6.3} | {:>6.3} | {:>5.2} | \
         {:>7.1} % | {:>6} | {:>9.1}",
        program.name(),
        kind.name(),
        figures.operations_per_second,
        figures.programmed_kib,
        figures.host_amplification,
        figures.device_amplification,
        figures.host_amplification * figures.device_amplification,
        figures.collected_percent,
        figures.erases,
        figures.die_us,
    );
}

/// The programs that are run, if not all: a list of names in `COULTER_PROGRAMS`.
fn chosen() -> Vec<Program> {
    let names = std::env::var("COULTER_PROGRAMS").unwrap_or_default();
    let names: Vec<&str> = names.split(',').filter(|name| !name.is_empty()).collect();
    let is_chosen = |program: &Program| names.is_empty() || names.contains(&program.name());
    Program::ALL.into_iter().filter(is_chosen).collect()
}

#[test]
#[ignore = "a quarter of an hour: make flash-stacks"]
fn programs_on_drives_and_on_volumes_on_drives() {
    let test = "programs_on_drives_and_on_volumes_on_drives";
    let Some(_right) = can_mount(test) else { return };
    let sandbox = Sandbox::new();
    sandbox.let_others_in();
    let limit = volume_size(&sandbox, &LONG);
    print_head();
    for program in chosen() {
        if let Some(missing) = program.missing() {
            skipped(&format!("{test}: {missing} is not installed"));
            continue;
        }
        // The others are as far from the drive whatever the file system.
        let kinds = match program {
            Program::Fio { direct: true } => &FileSystem::ALL[..],
            _ => &[FileSystem::Ext4],
        };
        for kind in kinds.iter().copied().filter(|kind| kind.is_installed()) {
            for stack in [Stack::Drive, Stack::DriveUsedAsFar, Stack::Volume] {
                let figures = measure(&sandbox, stack, kind, program, &LONG, Some(limit));
                print_row(program, kind, stack, &figures);
            }
        }
    }
}
