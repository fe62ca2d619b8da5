//! The demonstration as root: ext4 on a volume against ext4 on a plain loop device.

use super::crash::{self, Survivors, Writer};
use super::figures::Figures;
use super::fio::{Fio, Outcome, Work};
use super::held_back;
use super::plan::{self, Plan, Which, announce, failed};
use super::scratch::{Scratch, Undo};
use crate::error::LabError;
use coulter_cli::file_system::{self, FileSystem};
use coulter_cli::output::Output;
use coulter_cli::tool;
use coulter_cli::via::ViaChoice;
use coulter_daemon::detach::detach;
use coulter_daemon::points::Loop;
use coulter_daemon::state::Entry;
use rustix::process::Signal;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// ext4 does all its work now, so that neither side is measured while it still formats.
pub(super) const MKFS_OPTIONS: [&str; 2] = ["-E", "lazy_itable_init=0,lazy_journal_init=0"];

/// How long the load runs before the daemon is killed.
const LOAD: Duration = Duration::from_millis(2500);

/// Bytes that the random load of the crash writes to; not the file that is verified afterwards.
const LOAD_SIZE: u64 = 128 << 20;

/// How long a file system whose device is gone may take to let go.
pub(super) const LET_GO: Duration = Duration::from_secs(20);

/// One side: a mounted file system with a file to write to.
struct Side {
    mount_point: PathBuf,
    data: PathBuf,
}

impl Side {
    fn new(scratch: &mut Scratch, name: &str, device: &Path) -> Result<Side, LabError> {
        FileSystem::Ext4.make(device, &MKFS_OPTIONS)?;
        let mount_point = scratch.make_directory(name)?;
        let data = mount_point.join("data");
        let side = Side { mount_point, data };
        side.mount(scratch, device)?;
        Ok(side)
    }

    fn mount(&self, scratch: &mut Scratch, device: &Path) -> Result<(), LabError> {
        file_system::mount("ext4", device, &self.mount_point, "")?;
        scratch.note(Undo::Unmount(self.mount_point.clone()));
        Ok(())
    }
}

/// Runs it from start to end.
///
/// # Errors
/// Whatever one of its steps cannot do; figures that are bad are no error here.
pub(crate) fn run(
    plan: &Plan,
    mut scratch: Scratch,
    picture: &Output,
) -> Result<Figures, LabError> {
    let scratch = &mut scratch;
    let fio = Fio::find(scratch.directory(), &plan.interrupt)?;
    announce("two files of equal size, ext4 on both: one through Coulter, one on a plain loop");
    let store = plan.make_store(scratch)?;
    let entry = plan::attach(scratch, &store, ViaChoice::Kind(&Loop))?;
    let coulter = Side::new(scratch, "coulter", &device_of(&entry)?)?;
    let plain_path = scratch.path("plain.img");
    let plain_loop = plain_device(scratch, &plain_path, Some(entry.volume_size_bytes))?;
    let plain = Side::new(scratch, "plain", &plain_loop)?;
    for side in [&plain, &coulter] {
        fio.run(&side.data, plan.size, Work::Fill)?;
        file_system::unmount(&side.mount_point)?;
    }
    detach(scratch.state(), &entry, false)?;
    release(&plain_loop)?;
    let held_back = held_back::on_loop(plan, scratch, &fio, &store, &plain_path)?;

    announce("the disk as it is");
    let entry = plan::attach(scratch, &store, ViaChoice::Kind(&Loop))?;
    coulter.mount(scratch, &device_of(&entry)?)?;
    let plain_loop = plain_device(scratch, &plain_path, None)?;
    plain.mount(scratch, &plain_loop)?;
    announce("4 KiB random writes on either side, in turns");
    plan::start_trace(scratch, &entry)?;
    let speed = plan.take_turns(plan.turns, |which| {
        let side = match which {
            Which::Plain => &plain,
            Which::Coulter => &coulter,
        };
        Ok(fio.run(&side.data, plan.size, Work::Random(plan.turn))?.write_iops)
    })?;
    let trace = plan::take_trace(scratch, &entry)?;
    let write_amplification = plan::status(scratch, &entry)?.write_amplification;

    announce("every block written once more with a checksum, and read back");
    fio.run(&coulter.data, plan.size, Work::WriteVerified)?;
    let before = read_back(plan, &fio, &coulter)?;

    announce("files written and fsynced under load, and the daemon killed");
    let durable = crash_under_load(&fio, &coulter, &entry)?;
    let found = recover(plan, scratch, &fio, &coulter, &store, durable)?;

    file_system::unmount(&plain.mount_point)?;
    release(&plain_loop)?;

    let setting = "fio, 4 KiB random writes, queue depth 32, on ext4";
    plan.draw(&trace, &entry, setting, "plain loop", (&held_back.speed, &speed), picture)?;
    let mismatches = before.mismatches + found.data.mismatches;
    Ok(Figures {
        mode: "ext4-on-loop",
        baseline: "plain loop",
        size_bytes: plan.size,
        speed,
        held_back,
        write_amplification,
        verified_bytes: before.read_bytes + found.data.read_bytes + found.files.bytes,
        mismatches: mismatches + (durable - found.files.whole),
        durable_before_crash: durable,
        durable_after_crash: found.files.whole,
        seconds_to_recover: found.seconds,
        file_system_clean: Some(found.clean),
        store_sound: found.sound,
        recovered: found.is_good(durable),
        picture: picture.path().to_owned(),
    })
}

/// What was there after the crash.
struct Recovered {
    /// From the start of attaching until the file system was mounted.
    seconds: f64,
    /// Whether `e2fsck` found nothing.
    clean: bool,
    /// Whether `check` found nothing.
    sound: bool,
    files: Survivors,
    data: Outcome,
}

impl Recovered {
    fn is_good(&self, durable: u64) -> bool {
        let nothing_lost = self.files.whole == durable && self.data.mismatches == 0;
        self.clean && self.sound && nothing_lost
    }
}

/// Attaches and mounts again, and looks at everything.
fn recover(
    plan: &Plan,
    scratch: &mut Scratch,
    fio: &Fio,
    side: &Side,
    store: &Path,
    durable: u64,
) -> Result<Recovered, LabError> {
    let begin = Instant::now();
    let entry = plan::attach(scratch, store, ViaChoice::Kind(&Loop))?;
    let device = device_of(&entry)?;
    side.mount(scratch, &device)?;
    let seconds = begin.elapsed().as_secs_f64();

    announce("everything read back again");
    file_system::unmount(&side.mount_point)?;
    let clean = is_clean(&device)?;
    file_system::mount("ext4", &device, &side.mount_point, "")?;
    let files = crash::survivors(&side.mount_point.join("fsynced"), durable);
    let data = read_back(plan, fio, side)?;
    file_system::unmount(&side.mount_point)?;
    detach(scratch.state(), &entry, false)?;
    let sound = plan::is_sound(store)?;
    Ok(Recovered { seconds, clean, sound, files, data })
}

pub(super) fn device_of(entry: &Entry) -> Result<PathBuf, LabError> {
    let device = entry.device.as_ref().map(PathBuf::from);
    device.ok_or_else(|| failed("attaching", "the daemon names no device"))
}

/// A loop device over a file, as one would make it without Coulter. The file is made, with `size` bytes, if
/// there is a size.
fn plain_device(
    scratch: &mut Scratch,
    path: &Path,
    size: Option<u64>,
) -> Result<PathBuf, LabError> {
    if let Some(size) = size {
        let file = File::create_new(path).map_err(|e| LabError::io("make", path, e))?;
        file.set_len(size).map_err(|e| LabError::io("make", path, e))?;
    }
    let options = ["--find", "--show", "--direct-io=on", "--sector-size=4096"];
    let mut arguments: Vec<&std::ffi::OsStr> = options.iter().map(AsRef::as_ref).collect();
    arguments.push(path.as_os_str());
    let output = tool::run("losetup", "mount", &arguments)?;
    let device = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    scratch.note(Undo::Loop { device: device.clone(), file: path.to_owned() });
    Ok(device)
}

/// Takes a plain loop device away.
fn release(device: &Path) -> Result<(), LabError> {
    tool::run("losetup", "mount", &["--detach".as_ref(), device.as_os_str()])?;
    Ok(())
}

/// Reads the verified file with cold caches.
fn read_back(plan: &Plan, fio: &Fio, side: &Side) -> Result<Outcome, LabError> {
    // Refused in some containers; fio reads past the page cache anyway.
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
    let outcome = fio.run(&side.data, plan.size, Work::ReadVerified)?;
    if outcome.read_bytes < plan.size {
        let reason = format!("{} of {} bytes were read", outcome.read_bytes, plan.size);
        return Err(failed("reading back", reason));
    }
    Ok(outcome)
}

/// Kills the daemon in the middle of a write load, and unmounts what that leaves. Gives back how
/// many files were durable.
fn crash_under_load(fio: &Fio, side: &Side, entry: &Entry) -> Result<u64, LabError> {
    let directory = side.mount_point.join("fsynced");
    fs::create_dir(&directory).map_err(|e| LabError::io("make", &directory, e))?;
    let writer = Writer::start(&directory)?;
    let load = side.mount_point.join("load");
    let mut load = fio.start(&load, LOAD_SIZE, Work::Random(LOAD * 20))?;
    let waited = fio.interrupt().sleep(LOAD);
    let count = writer.durable_count();
    let killed = entry.process.signal(Signal::KILL);
    let gone = entry.process.wait_for_end(LET_GO);
    let deadline = Instant::now() + LET_GO;
    while matches!(load.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = load.kill();
    let _ = load.wait();
    let durable = writer.wait_for_failure();
    waited?;
    killed.map_err(|errno| failed("killing the daemon", errno.to_string()))?;
    if !gone {
        return Err(failed("killing the daemon", "it does not end"));
    }
    if count == 0 {
        return Err(failed("writing under load", "no file was fsynced before the crash"));
    }
    unmount_dead(&side.mount_point)?;
    Ok(durable)
}

/// A file system whose device is gone may be busy for a moment with giving up.
pub(super) fn unmount_dead(mount_point: &Path) -> Result<(), LabError> {
    let deadline = Instant::now() + LET_GO;
    loop {
        match file_system::unmount(mount_point) {
            Err(_) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(50));
            }
            result => return Ok(result?),
        }
    }
}

/// Whether `e2fsck` finds nothing to complain of; it only reads.
pub(super) fn is_clean(device: &Path) -> Result<bool, LabError> {
    let output = tool::command("e2fsck")
        .args(["-f", "-n"])
        .arg(device)
        .output()
        .map_err(|error| tool::not_started("e2fsck", "e2fsprogs", error))?;
    if !output.status.success() {
        log::error!("e2fsck: {}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(output.status.success())
}
