//! What programs come to on a volume, and beside it. Both sides have a block device of the same size and a
//! file system on all of it, by the same way, loop over FUSE; one has a log in between.
//!
//! ```text
//! program ─► ext4 ─► loop ─► FUSE ─► volume ─► limits ─► file
//! program ─► ext4 ─► loop ─► FUSE ──────────► limits ─► file
//! ```
//!
//! The sides take turns, and a turn ends when all that was written has reached the device. What is read
//! lies mostly in the page cache, as on a host whose memory holds its data. The files below are written
//! beforehand, so that none has to find room while it is measured; and they differ in size by what the
//! volume keeps for itself, since ext4 chooses the size of its journal by that of its device.
//!
//! # Does not
//! drop caches, or measure without a file system: that is `coulter-lab bench volume`.

use crate::error::SystemsError;
use crate::file_system::FileSystem;
use crate::programs::{AtWork, Program};
use crate::protocol::{receive, send};
use crate::scratch::{Scratch, end_with_parent};
use crate::side::{Passed, SideReply, SideRequest};
use crate::tool;
use coulter_check::FileBlocks;
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// What is compared.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The program `programs`, which is the sides' process too.
    pub executable: PathBuf,
    /// Bytes of the device below the volume.
    pub size: u64,
    /// How much of the room on the volume files take.
    pub fill_percent: u64,
    /// Whether devices are held back as a cloud volume is.
    pub is_held_back: bool,
    /// The file system on both.
    pub file_system: FileSystem,
    /// Turns of each side.
    pub turns: u32,
    /// How long one takes, without what follows until all is on the device.
    pub turn: Duration,
}

/// What one side came to.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct SideFigures {
    /// Operations or transactions of the program.
    pub operations: f64,
    /// How long they took, until all that they wrote was on the device.
    pub seconds: f64,
    /// Commands to the device: reads, writes and flushes.
    pub device_commands: u64,
    /// Bytes written to the device.
    pub device_written_bytes: u64,
}

impl SideFigures {
    /// Operations a second.
    pub fn rate(&self) -> f64 {
        self.operations / self.seconds
    }
}

/// What a program came to on both sides.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Compared {
    /// Beside the volume.
    pub plain: SideFigures,
    /// On it.
    pub volume: SideFigures,
}

impl Compared {
    /// How many times as fast the program is on the volume.
    pub fn ratio(&self) -> f64 {
        self.volume.rate() / self.plain.rate()
    }
}

/// Has a program work on both sides in turns; then both file systems and the store are checked.
///
/// # Errors
/// What the program or the system says; a violation when a checker finds anything.
pub fn compare(
    comparison: &Comparison,
    program: Program,
    scratch: &Scratch,
) -> Result<Compared, SystemsError> {
    let mut volume = Side::new(comparison, program, scratch, Which::Volume, comparison.size)?;
    let size = File::open(&volume.device)
        .and_then(|mut device| device.seek(SeekFrom::End(0)))
        .map_err(|error| SystemsError::io("look at", &volume.device, error))?;
    let mut plain = Side::new(comparison, program, scratch, Which::Plain, size)?;
    let bytes = volume.room()? * comparison.fill_percent / 100;
    for side in [&mut plain, &mut volume] {
        side.prepare(program, scratch, bytes)?;
    }
    for _ in 0..comparison.turns {
        for side in [&mut plain, &mut volume] {
            side.turn(comparison.turn)?;
        }
    }
    let compared = Compared { plain: plain.figures, volume: volume.figures };
    plain.end()?;
    volume.end()?;
    Ok(compared)
}

/// Makes a file of `size` zeros that has its place on the disk.
fn write_whole(file: &Path, size: u64) -> io::Result<()> {
    let mut made = File::create_new(file)?;
    io::copy(&mut io::repeat(0).take(size), &mut made)?;
    made.sync_all()
}

/// Which side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Plain,
    Volume,
}

/// Where a file system is mounted, until this goes.
#[derive(Debug)]
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // Of a comparison that failed. What stays is the scratch's to take away.
        let _ = FileSystem::unmount(&self.0);
    }
}

/// A file system with a program on it. What goes first after a failure stands first.
#[derive(Debug)]
struct Side {
    at_work: Option<AtWork>,
    mounted: Mounted,
    process: Process,
    device: PathBuf,
    file: PathBuf,
    kind: Which,
    file_system: FileSystem,
    figures: SideFigures,
}

impl Side {
    fn new(
        comparison: &Comparison,
        program: Program,
        scratch: &Scratch,
        kind: Which,
        size: u64,
    ) -> Result<Side, SystemsError> {
        let is_volume = kind == Which::Volume;
        let name = if is_volume { "volume" } else { "plain" };
        let name = format!("{name}-{program}").replace(':', "-");
        let file = scratch.path(&format!("{name}.img"));
        write_whole(&file, size).map_err(|error| SystemsError::io("make", &file, error))?;
        let mut command = Command::new(&comparison.executable);
        command.arg("side").arg("--file").arg(&file);
        command.arg("--point").arg(scratch.path(&format!("{name}.point")));
        for (flag, is_set) in [("--volume", is_volume), ("--held-back", comparison.is_held_back)] {
            if is_set {
                command.arg(flag);
            }
        }
        let (process, device) = Process::start(command)?;
        let file_system = comparison.file_system;
        let mounted = Mounted(scratch.make_directory(&name)?);
        file_system.make(&device)?;
        file_system.mount(&device, &mounted.0)?;
        let (at_work, figures) = (None, SideFigures::default());
        Ok(Side { at_work, mounted, process, device, file, kind, file_system, figures })
    }

    /// Bytes that files may take.
    fn room(&self) -> Result<u64, SystemsError> {
        let path = &self.mounted.0;
        let found = rustix::fs::statvfs(path)
            .map_err(|error| SystemsError::io("look at", path, error.into()))?;
        Ok(found.f_bavail * found.f_frsize)
    }

    fn prepare(
        &mut self,
        program: Program,
        scratch: &Scratch,
        bytes: u64,
    ) -> Result<(), SystemsError> {
        let name = self.mounted.0.file_name().expect("it lies in the scratch").to_string_lossy();
        let outside = scratch.make_directory(&format!("{name}.outside"))?;
        self.at_work = Some(AtWork::prepare(program, &self.mounted.0, &outside, bytes)?);
        self.settle()?;
        self.process.ask(SideRequest::HoldBack(true)).map(drop)
    }

    fn turn(&mut self, time: Duration) -> Result<(), SystemsError> {
        let before = self.passed()?;
        let begun = Instant::now();
        let at_work = self.at_work.as_mut().expect("it is prepared");
        self.figures.operations += at_work.run(time)?;
        self.settle()?;
        self.figures.seconds += begun.elapsed().as_secs_f64();
        let after = self.passed()?;
        self.figures.device_commands += after.commands - before.commands;
        self.figures.device_written_bytes += after.written - before.written;
        Ok(())
    }

    fn passed(&mut self) -> Result<Passed, SystemsError> {
        match self.process.ask(SideRequest::Passed)? {
            SideReply::Passed(passed) => Ok(passed),
            other => Err(gone(io::Error::other(format!("{other:?} is no count")))),
        }
    }

    /// Writes out what is dirty.
    fn settle(&self) -> Result<(), SystemsError> {
        let mut sync = tool::command("sync");
        tool::run(sync.arg("--file-system").arg(&self.mounted.0), "coreutils").map(drop)
    }

    /// Unmounts, has the checkers look, and gives up the device and its file.
    fn end(mut self) -> Result<(), SystemsError> {
        self.process.ask(SideRequest::HoldBack(false))?;
        if let Some(at_work) = self.at_work.take() {
            at_work.end()?;
        }
        FileSystem::unmount(&self.mounted.0)?;
        self.file_system.check(&self.device)?;
        self.process.ask(SideRequest::End)?;
        drop(self.process);
        if self.kind == Which::Volume {
            check_store(&self.file)?;
        }
        std::fs::remove_file(&self.file)
            .map_err(|error| SystemsError::io("remove", &self.file, error))
    }
}

/// Reads all of a store with the independent checker.
fn check_store(file: &Path) -> Result<(), SystemsError> {
    let blocks = FileBlocks::open(file);
    let mut blocks = blocks.map_err(|error| SystemsError::io("read", file, error))?;
    let mut options = coulter_check::Options { data: true, ..Default::default() };
    let report = coulter_check::check(&mut blocks, &mut options);
    match report.findings.first() {
        None if report.complete => Ok(()),
        finding => Err(SystemsError::violation(format!("the store is not sound: {finding:?}"))),
    }
}

/// The process of a side.
#[derive(Debug)]
struct Process {
    /// `None` once it is told to end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    child: Child,
}

impl Process {
    /// Starts it; the block device that it serves.
    fn start(mut command: Command) -> Result<(Process, PathBuf), SystemsError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = end_with_parent(&mut command)
            .spawn()
            .map_err(|error| tool::not_started(&command, "coulter", error))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let mut process = Process { input, output, child };
        match process.receive()? {
            SideReply::Running { device } => Ok((process, device)),
            other => Err(gone(io::Error::other(format!("{other:?} is no device")))),
        }
    }

    fn ask(&mut self, request: SideRequest) -> Result<SideReply, SystemsError> {
        let input = self.input.as_mut().expect("it was not told to end");
        send(input, &request).map_err(gone)?;
        self.receive()
    }

    fn receive(&mut self) -> Result<SideReply, SystemsError> {
        let reply = receive(&mut self.output).map_err(gone)?;
        match reply.ok_or_else(|| gone(io::ErrorKind::UnexpectedEof.into()))? {
            SideReply::Failed { what } => Err(gone(io::Error::other(what))),
            reply => Ok(reply),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It takes everything away when it has nobody to listen to.
        self.input = None;
        let _ = self.child.wait();
    }
}

fn gone(source: io::Error) -> SystemsError {
    SystemsError::io("use", Path::new("the side's process"), source)
}
