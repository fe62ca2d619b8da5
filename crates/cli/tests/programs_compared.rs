//! What programs come to on a volume, and beside it: databases, mail, files. Both sides have a device of
//! the same size and an ext4 on all of it, by the same way: loop over FUSE; one has a log in between.
//!
//! That they work, for a moment, in every run of the tests; what it gives, for long, by `make programs`,
//! on the disk as it is and on one held back as a cloud volume is, whose tables are quoted in
//! docs/benchmarking.md. Needs root, FUSE, loop devices, and the programs.
//!
//! What is read lies mostly in the page cache, as on a host whose memory fits its data.

mod programs;
mod sandbox;

use coulter::service::BlockService;
use coulter::{OpenOptions, Volume};
use coulter_attach::loop_device::{LoopDevice, LoopOptions};
use coulter_attach::point::{AttachPoint, Detach};
use coulter_bench::BareService;
use coulter_device::wrap::{CountingDevice, Counts, SlowDevice, SlowHandle, SlowModel};
use coulter_device::{CommandKind, Device, open_path};
use coulter_systems::{FileSystem, Scratch};
use nix::sys::statvfs::statvfs;
use programs::{Program, Running};
use sandbox::{Sandbox, can_mount, skipped};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Bytes of either device.
const SIZE_MIB: u64 = 2048;
/// Of the room on the volume.
const FILL_PERCENT: u64 = 60;
const TURNS: u32 = 2;
const KIND: FileSystem = FileSystem::Ext4;

/// What lies below a file system.
enum Below {
    Plain(BareService),
    Volume(Volume),
}

impl Below {
    fn service(&self) -> &dyn BlockService {
        match self {
            Below::Plain(service) => service,
            Below::Volume(volume) => volume,
        }
    }
}

/// Where a file system is mounted, until this goes.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = FileSystem::unmount(&self.0);
    }
}

/// A file system with a program on it. What goes first when a test fails stands first.
struct Side {
    running: Option<Running>,
    mounted: Mounted,
    device: LoopDevice,
    below: Below,
    limits: Option<SlowHandle>,
    counts: Counts,
    /// Where the program keeps what is not measured.
    outside: Scratch,
    operations: f64,
    seconds: f64,
    commands: u64,
    written: u64,
}

impl Side {
    fn new(sandbox: &Sandbox, name: &str, model: Option<SlowModel>, is_volume: bool) -> Side {
        let file = sandbox.path(&format!("{name}.img"));
        if is_volume {
            let size = format!("{SIZE_MIB}M");
            sandbox.ok(&["create", &file.to_string_lossy(), "--size", &size]);
        } else {
            let made = File::create_new(&file).and_then(|file| file.set_len(SIZE_MIB << 20));
            made.expect("there is room");
        }
        let opened = open_path(&file, &coulter_device::OpenOptions::default());
        let opened = opened.expect("nobody else has it");
        let (opened, limits): (Box<dyn Device>, _) = match model {
            None => (opened, None),
            Some(model) => {
                let slow = SlowDevice::new(opened, model);
                let handle = slow.handle();
                (Box::new(slow), Some(handle))
            }
        };
        let (counting, counts) = CountingDevice::new(opened);
        let below = if is_volume {
            let volume = Volume::open(Box::new(counting), OpenOptions::default());
            Below::Volume(volume.expect("it is sound"))
        } else {
            let bare = BareService::new(Box::new(counting));
            Below::Plain(bare.expect("descriptors are left"))
        };
        let point = sandbox.path(&format!("{name}.point"));
        let device = LoopDevice::attach(below.service(), &point, &LoopOptions::default());
        let device = device.expect("loop devices can be had");
        let side = Side {
            running: None,
            mounted: Mounted(sandbox.make_directory(name)),
            device,
            below,
            limits,
            counts,
            outside: Scratch::new(Path::new("/var/tmp")).expect("a directory can be made"),
            operations: 0.0,
            seconds: 0.0,
            commands: 0,
            written: 0,
        };
        side.hold_back(false);
        KIND.make(side.device.device()).expect("there is room");
        KIND.mount(side.device.device(), &side.mounted.0).expect("it was just made");
        side
    }

    fn hold_back(&self, is_held_back: bool) {
        if let Some(limits) = &self.limits {
            limits.hold_back(is_held_back);
        }
    }

    /// Bytes that files may take.
    fn room(&self) -> u64 {
        let found = statvfs(&self.mounted.0).expect("it is mounted");
        found.blocks_available() * found.fragment_size()
    }

    fn prepare(&mut self, program: Program, bytes: u64) {
        let running = Running::prepare(program, &self.mounted.0, &self.outside, bytes);
        self.running = Some(running);
        self.settle();
        self.hold_back(true);
    }

    /// Works for so long; until what was written has reached the device, the time counts.
    fn turn(&mut self, time: Duration) {
        let (commands, written) = self.passed();
        let begun = Instant::now();
        self.operations += self.running.as_mut().expect("it is prepared").run(time);
        self.settle();
        self.seconds += begun.elapsed().as_secs_f64();
        let (commands_after, written_after) = self.passed();
        self.commands += commands_after - commands;
        self.written += written_after - written;
    }

    /// Commands to the device so far, and bytes written to it.
    fn passed(&self) -> (u64, u64) {
        let kinds = [CommandKind::Read, CommandKind::Write, CommandKind::Flush];
        let commands = kinds.map(|kind| self.counts.of(kind).commands).iter().sum();
        (commands, self.counts.of(CommandKind::Write).bytes)
    }

    /// Writes out what is dirty.
    fn settle(&self) {
        let synced = Command::new("sync").arg("--file-system").arg(&self.mounted.0).status();
        assert!(synced.expect("sync can be run").success());
    }

    fn rate(&self) -> f64 {
        self.operations / self.seconds
    }

    /// Unmounts, has the file system's checker look, and gives up the device.
    fn end(mut self) {
        self.hold_back(false);
        self.running.take().expect("it is prepared").end();
        FileSystem::unmount(&self.mounted.0).expect("nobody uses it");
        KIND.check(self.device.device()).expect("it is whole");
        self.device.detach(Detach::IfIdle).expect("nobody uses it");
        std::fs::remove_dir(&self.mounted.0).expect("nothing is mounted on it");
        if let Below::Volume(volume) = self.below {
            volume.close().expect("all was written");
        }
    }
}

/// Has a program work on both in turns; how many times as fast it is on the volume.
fn compare(
    sandbox: &Sandbox,
    program: Program,
    model: Option<SlowModel>,
    fill_percent: u64,
    time: Duration,
) -> f64 {
    let mut volume = Side::new(sandbox, "volume", model, true);
    let mut plain = Side::new(sandbox, "plain", model, false);
    let bytes = volume.room() * fill_percent / 100;
    for side in [&mut plain, &mut volume] {
        side.prepare(program, bytes);
    }
    for _ in 0..TURNS {
        for side in [&mut plain, &mut volume] {
            side.turn(time);
        }
    }
    let ratio = volume.rate() / plain.rate();
    let per_operation = |count: u64, side: &Side| count as f64 / side.operations;
    println!(
        "{:<13} | {:>9.1} | {:>9.1} | {ratio:>5.2} | {:>8.2} | {:>8.2} | {:>8.1} | {:>8.1}",
        program.name(),
        plain.rate(),
        volume.rate(),
        per_operation(plain.commands, &plain),
        per_operation(volume.commands, &volume),
        per_operation(plain.written, &plain) / 1024.0,
        per_operation(volume.written, &volume) / 1024.0,
    );
    volume.end();
    plain.end();
    sandbox.ok(&["check", "volume.img", "--data"]);
    for name in ["volume.img", "plain.img"] {
        std::fs::remove_file(sandbox.path(name)).expect("it is ours");
    }
    ratio
}

fn compare_all(test: &str, model: Option<SlowModel>) {
    let Some(_right) = can_mount(test) else { return };
    let seconds = std::env::var("COULTER_PROGRAM_SECONDS").ok();
    let seconds = seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or(10);
    let sandbox = Sandbox::new();
    sandbox.let_others_in();
    println!(
        "{:<13} | {:>9} | {:>9} | {:>5} | {:>8} | {:>8} | {:>8} | {:>8}",
        "program", "plain/s", "volume/s", "ratio", "I/Os", "I/Os", "KiB", "KiB"
    );
    for program in programs::chosen() {
        if let Some(missing) = program.missing() {
            skipped(&format!("{test}: {missing} is not installed"));
            continue;
        }
        compare(&sandbox, program, model, FILL_PERCENT, Duration::from_secs(seconds));
    }
}

#[test]
fn a_program_works_on_a_volume_and_beside_it() {
    let test = "a_program_works_on_a_volume_and_beside_it";
    let Some(_right) = can_mount(test) else { return };
    let sandbox = Sandbox::new();
    let cloud = Some(SlowModel::CLOUD_VOLUME);
    let program = Program::Generated("varmail");
    let ratio = compare(&sandbox, program, cloud, 4, Duration::from_secs(1));
    assert!(ratio.is_finite() && ratio > 0.0, "{ratio}");
}

#[test]
#[ignore = "ten minutes: make programs"]
fn programs_on_the_disk_as_it_is() {
    compare_all("programs_on_the_disk_as_it_is", None);
}

#[test]
#[ignore = "ten minutes: make programs"]
fn programs_on_a_disk_that_is_held_back() {
    compare_all("programs_on_a_disk_that_is_held_back", Some(SlowModel::CLOUD_VOLUME));
}
