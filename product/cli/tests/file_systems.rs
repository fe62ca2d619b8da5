//! ext4, XFS and Btrfs on a volume of the daemon's, and the daemon killed under load. With writes acknowledged
//! from memory, which is what file systems flush for, and without.
//!
//! In short in every run of the tests; for long by `make filesystems`, whose table is quoted in
//! docs/attach.md. Needs root, FUSE, loop devices and fio.

mod sandbox;

use coulter_systems::{FileSystem, Files, Power, Verified, Workload};
use sandbox::{Sandbox, can_mount, skipped, wait_until};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How much is done.
struct Scale {
    /// Size of the store, as `--size` takes it.
    store: &'static str,
    /// MiB that each pass of fio writes and reads back.
    pass_mib: u64,
    kills: u64,
    /// Time of load before each.
    load: Duration,
}

impl Scale {
    /// When writes are acknowledged: each way, if there is time for it, else one or the other.
    fn acknowledges(&self, kind: FileSystem) -> &'static [&'static str] {
        match kind {
            _ if self.kills > 1 => &["written", "buffered"],
            FileSystem::Xfs => &["written"],
            FileSystem::Ext4 | FileSystem::Btrfs => &["buffered"],
        }
    }
}

const SHORT: Scale =
    Scale { store: "768M", pass_mib: 48, kills: 1, load: Duration::from_millis(700) };
const LONG: Scale = Scale { store: "4G", pass_mib: 384, kills: 5, load: Duration::from_secs(4) };

/// What was seen.
struct Figures {
    verified_mib: u64,
    trimmed_mib: u64,
    /// After kills.
    durable: Verified,
    /// Attached and mounted again: the longest.
    recovery: Duration,
    checked_mib: u64,
}

struct Trial<'a> {
    sandbox: &'a Sandbox,
    kind: FileSystem,
    /// When writes are.
    acknowledge: &'static str,
    directory: PathBuf,
    device: PathBuf,
    scale: &'a Scale,
}

/// How the volume is mounted whenever it is.
const MOUNT: [&str; 6] = ["mount", "disk.img", "mnt", "--options", "discard", "--json"];

impl Trial<'_> {
    fn new<'a>(
        sandbox: &'a Sandbox,
        kind: FileSystem,
        acknowledge: &'static str,
        scale: &'a Scale,
    ) -> Trial<'a> {
        let directory = sandbox.make_directory("mnt");
        let device = PathBuf::new();
        let mut trial = Trial { sandbox, kind, acknowledge, directory, device, scale };
        let shape =
            ["--create", "--mkfs", kind.name(), "--size", scale.store, "--segment-size", "4M"];
        trial.mount(&shape);
        trial
    }

    /// Attaches the store and mounts what is on it.
    fn mount(&mut self, more: &[&str]) {
        let acknowledge = ["--acknowledge", self.acknowledge];
        let entry = self.sandbox.json(&[&MOUNT[..], &acknowledge, more].concat());
        assert_eq!(entry["acknowledge"], self.acknowledge);
        self.device = entry["device"].as_str().expect("it has a device").into();
    }

    fn fio(&self, file: &str, arguments: &[&str]) -> Command {
        let mut fio = Command::new("fio");
        fio.args(["--name=f", "--thread", "--randseed=7", "--verify_state_save=0"]);
        fio.arg(format!("--filename={}", self.directory.join(file).display()));
        fio.args(arguments).stdin(Stdio::null());
        fio
    }

    /// One pass over a file, verified; gives back the MiB.
    fn pass(&self, file: &str, arguments: &[&str]) -> u64 {
        let size = format!("--size={}M", self.scale.pass_mib);
        let verify = ["--verify=crc32c", "--verify_fatal=1", &size];
        let output = self.fio(file, &[arguments, &verify].concat()).output();
        let output = output.expect("fio can be run");
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{} {file}: {said}", self.kind);
        self.scale.pass_mib
    }

    fn valid_mib(&self) -> u64 {
        let status = self.sandbox.json(&["status", "disk", "--json"]);
        status["statistics"]["space"]["valid_bytes"].as_u64().expect("a number") >> 20
    }

    fn remount(&self) {
        FileSystem::unmount(&self.directory).expect("nobody uses it");
        self.kind.mount(&self.device, &self.directory).expect("it was just mounted");
    }

    /// Everything that fio knows to verify; the MiB.
    fn verify(&self) -> u64 {
        let direct = ["--direct=1", "--ioengine=io_uring", "--iodepth=16", "--rw=randwrite"];
        let mixed = self.pass("mixed", &[&direct[..], &["--bsrange=4k-1M"]].concat());
        let buffered = ["--rw=randwrite", "--bsrange=512-256k", "--fsync=64"];
        let buffered = self.pass("buffered", &buffered);
        let blocks = [&direct[..], &["--bs=4k"]].concat();
        self.pass("blocks", &[&blocks[..], &["--do_verify=0", "--end_fsync=1"]].concat());
        // From the volume, not from a cache.
        self.remount();
        mixed + buffered + self.pass("blocks", &[&blocks[..], &["--verify_only=1"]].concat())
    }

    /// Removes two files, and sees their blocks given back; the MiB.
    fn trim(&self) -> u64 {
        let before = self.valid_mib();
        for name in ["mixed", "buffered"] {
            fs::remove_file(self.directory.join(name)).expect("it was written");
        }
        // XFS frees removed files in the background.
        let mut trimmed = 0;
        wait_until("removed files are trimmed", || {
            run(Command::new("sync").arg("--file-system").arg(&self.directory));
            run(Command::new("fstrim").arg(&self.directory));
            trimmed = before.saturating_sub(self.valid_mib());
            trimmed >= 2 * self.scale.pass_mib
        });
        trimmed
    }

    /// Unmounts, has the file system's checker look, detaches, has ours look; the MiB it compared.
    fn check(&self) -> u64 {
        FileSystem::unmount(&self.directory).expect("nobody uses it");
        if let Err(error) = self.kind.check(&self.device) {
            panic!("{error}");
        }
        self.sandbox.ok(&["detach", "disk"]);
        let report = self.sandbox.json(&["check", "disk.img", "--data", "--json"]);
        report["counters"]["data_blocks"].as_u64().expect("a number") >> 8
    }

    fn load(&self) -> Child {
        let random = ["--rw=randwrite", "--bs=4k", "--direct=1", "--norandommap", "--time_based"];
        let more = ["--ioengine=io_uring", "--iodepth=32", "--runtime=600", "--size=64M"];
        let mut fio = self.fio("load", &[&random[..], &more].concat());
        fio.stdout(Stdio::null()).stderr(Stdio::null());
        fio.spawn().expect("fio can be run")
    }

    /// Kills the daemon under load, and comes back; how long that took.
    fn kill(&mut self, files: &mut Files, durable: &mut Verified) -> Duration {
        let power = Power::switch();
        let mut load = self.load();
        files.start(&self.directory.join("files"), &power).expect("it can work");
        std::thread::sleep(self.scale.load);
        power.turn_off();
        self.sandbox.signal("disk", "KILL");
        files.stop();
        let _ = load.kill();
        load.wait().expect("it is our child");
        // The kernel may still be giving up what it had begun.
        let unmounted = || self.sandbox.run(&["umount", "mnt"]).status.success();
        wait_until("the dead file system is unmounted", unmounted);

        let begin = Instant::now();
        self.mount(&[]);
        let recovery = begin.elapsed();
        match files.verify(&self.directory.join("files")) {
            Ok(verified) => *durable += verified,
            Err(error) => panic!("{}: {error}", self.kind),
        }
        FileSystem::unmount(&self.directory).expect("nobody uses it");
        if let Err(error) = self.kind.check(&self.device) {
            panic!("{error}");
        }
        files.settle();
        self.kind.mount(&self.device, &self.directory).expect("it was just mounted");
        recovery
    }
}

#[track_caller]
fn run(command: &mut Command) {
    let output = command.output().expect("it can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

fn live(kind: FileSystem, acknowledge: &'static str, scale: &Scale) -> Figures {
    let sandbox = Sandbox::new();
    let mut trial = Trial::new(&sandbox, kind, acknowledge, scale);
    let verified_mib = trial.verify();
    let trimmed_mib = trial.trim();
    trial.check();
    trial.mount(&[]);

    let files = trial.directory.join("files");
    fs::create_dir(&files).expect("it is new");
    let mut workload = Files::new(3);
    workload.prepare(&files).expect("there is room");
    let (mut durable, mut recovery) = (Verified::default(), Duration::ZERO);
    for _ in 0..scale.kills {
        recovery = recovery.max(trial.kill(&mut workload, &mut durable));
    }
    let checked_mib = trial.check();
    assert!(durable.durable > 0, "nothing was durable before the kill");
    Figures { verified_mib, trimmed_mib, durable, recovery, checked_mib }
}

fn live_all(test: &str, scale: &Scale) {
    let Some(_right) = can_mount(test) else { return };
    if Command::new("fio").arg("--version").output().is_err() {
        return skipped(&format!("{test}: fio is not installed"));
    }
    println!(
        "file system | acknowledged | verified | trimmed | kills | durable things whole | back within | check"
    );
    for kind in FileSystem::ALL {
        if !kind.is_installed() {
            skipped(&format!("{test}: the programs of {kind} are not installed"));
            continue;
        }
        for acknowledge in scale.acknowledges(kind) {
            let figures = live(kind, acknowledge, scale);
            println!(
                "{:<11} | {acknowledge:<12} | {:>4} MiB | {:>3} MiB | {:>5} | {:>20} | {:>9.2} s | {} MiB, clean",
                kind.name(),
                figures.verified_mib,
                figures.trimmed_mib,
                scale.kills,
                figures.durable.durable,
                figures.recovery.as_secs_f64(),
                figures.checked_mib,
            );
        }
    }
}

#[test]
fn file_systems_live_on_a_volume_and_survive_its_daemon() {
    live_all("file_systems_live_on_a_volume_and_survive_its_daemon", &SHORT);
}

#[test]
#[ignore = "minutes: make filesystems"]
fn file_systems_live_long() {
    live_all("file_systems_live_long", &LONG);
}
