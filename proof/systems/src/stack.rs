//! What a daemon of Coulter's own mounts stand on, and how they are brought up, taken away and checked.
//!
//! ```text
//! fs                disk ─► loop ─► coulter fs
//! overlay together  disk ─► loop ─► ext4, the store in it ─► coulter overlay
//! overlay apart     disk ─► loop ─► ext4 ─────────────────► coulter overlay ◄─ loop ◄─ disk, the store
//! ```
//! The disks are plain: what was not flushed is lost, torn or in another order. The daemons are the program's.

use crate::error::SystemsError;
use crate::file_system::FileSystem;
use crate::machine::{Machine, Running, Shape, Start};
use crate::power::Power;
use crate::program::{Coulter, Daemon, text};
use crate::protocol::Cut;
use crate::scratch::Scratch;
use crate::tool;
use rustix::io::Errno;
use std::fmt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of the disk of a file system of Coulter's own.
const FS_SIZE: u64 = 384 << 20;
/// Bytes of the disk of a lower file system, with the store in it or without.
const LOWER_SIZE: u64 = 640 << 20;
/// Bytes of an overlay's store: so small that it fills up.
const STORE_SIZE: u64 = 160 << 20;

/// What is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// `coulter fs`.
    Fs,
    /// `coulter overlay`.
    Overlay {
        /// The file system below.
        lower: FileSystem,
        /// Whether the store is on a disk of its own, which loses its power by itself.
        is_apart: bool,
    },
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layer::Fs => f.write_str("coulter fs"),
            Layer::Overlay { lower, is_apart } => {
                write!(f, "overlay over {lower}{}", if *is_apart { ", two disks" } else { "" })
            }
        }
    }
}

/// Disks, directories and the program.
pub(crate) struct Stack {
    layer: Layer,
    coulter: Coulter,
    shape: Shape,
    points: Vec<PathBuf>,
    machines: Vec<Machine>,
    /// Where the lower file system is mounted.
    lower: PathBuf,
    /// Where the workload works.
    directory: PathBuf,
    /// A name of the store's disk that stays: that of its device is another one each time.
    store: PathBuf,
}

/// Disks with power.
pub(crate) struct Powered {
    pub(crate) running: Vec<Running>,
}

/// A mount that is served.
pub(crate) struct Up {
    pub(crate) daemon: Daemon,
}

impl Powered {
    pub(crate) fn power(&self) -> Power {
        Power::all(self.running.iter().map(Running::power))
    }
}

impl Stack {
    pub(crate) fn new(
        layer: Layer,
        program: &Path,
        shape: &Shape,
        scratch: &Scratch,
    ) -> Result<Stack, SystemsError> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let count = if matches!(layer, Layer::Overlay { is_apart: true, .. }) { 2 } else { 1 };
        let lower = scratch.make_directory(&format!("mount-{number}"))?;
        let directory = match layer {
            Layer::Fs => lower.clone(),
            Layer::Overlay { .. } => lower.join("data"),
        };
        let mut stack = Stack {
            layer,
            coulter: Coulter::new(program, scratch.path(&format!("state-{number}"))),
            shape: Shape { is_plain: true, ..shape.clone() },
            points: (0..count).map(|disk| scratch.path(&format!("disk-{number}-{disk}"))).collect(),
            machines: Vec::new(),
            lower,
            directory,
            store: scratch.path(&format!("store-{number}")),
        };
        for disk in 0..count {
            let machine = stack.machine(disk)?;
            stack.machines.push(machine);
        }
        Ok(stack)
    }

    fn machine(&self, disk: usize) -> Result<Machine, SystemsError> {
        let volume_size = match self.layer {
            Layer::Fs => FS_SIZE,
            Layer::Overlay { .. } if disk == 0 => LOWER_SIZE,
            Layer::Overlay { .. } => STORE_SIZE,
        };
        Machine::new(&Shape { volume_size, ..self.shape.clone() }, &self.points[disk])
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn disks(&self) -> usize {
        self.machines.len()
    }

    pub(crate) fn coulter(&self) -> &Coulter {
        &self.coulter
    }

    /// Turns all disks on; `cut` says when each loses its power.
    pub(crate) fn power_on(&self, cut: &[Option<Cut>]) -> Result<Powered, SystemsError> {
        let mut running = Vec::new();
        for (machine, cut) in self.machines.iter().zip(cut) {
            match machine.start(*cut)? {
                Start::Running(one) => running.push(one),
                Start::Cut => unreachable!("a plain disk is not used while it starts"),
            }
        }
        Ok(Powered { running })
    }

    /// Makes what is below for the first time.
    pub(crate) fn make(&self, powered: &Powered) -> Result<(), SystemsError> {
        let device = powered.running[0].device();
        match self.layer {
            Layer::Fs => {
                let words = ["fs", "create", text(device), "--segment-size", "2M", "--force"];
                self.coulter.run(&words).map(drop)
            }
            Layer::Overlay { lower, .. } => {
                lower.make(device)?;
                self.mount_lower(lower, device)?;
                let made = std::fs::create_dir(&self.directory);
                made.map_err(crate::program::failed("make", &self.directory))?;
                FileSystem::unmount(&self.lower)
            }
        }
    }

    fn mount_lower(&self, lower: FileSystem, device: &Path) -> Result<(), SystemsError> {
        let mut command = tool::command("mount");
        command.args(["-t", lower.name()]).args([device, &self.lower]);
        tool::run(&mut command, "mount").map(drop)
    }

    /// Mounts all of it. `words` are further options of the mount.
    pub(crate) fn up(&self, powered: &Powered, words: &[&str]) -> Result<Up, SystemsError> {
        let device = powered.running[0].device();
        let first: Vec<&str> = match self.layer {
            Layer::Fs => vec!["fs", "mount", text(device), text(&self.directory), "--json"],
            Layer::Overlay { lower, .. } => {
                let mounted = self.mount_lower(lower, device);
                mounted.map_err(|error| SystemsError::violation(format!("no mount: {error}")))?;
                vec!["overlay", text(&self.directory), "--json"]
            }
        };
        let size = STORE_SIZE.to_string();
        let store = match (self.layer, powered.running.get(1)) {
            (Layer::Fs, _) => Vec::new(),
            (_, None) => vec!["--store-size", &size],
            (_, Some(disk)) => {
                let _ = std::fs::remove_file(&self.store);
                let linked = std::os::unix::fs::symlink(disk.device(), &self.store);
                linked.map_err(crate::program::failed("make", &self.store))?;
                if !self.directory.join(".coulter").exists() {
                    // A kill between the end of the note and that of the store leaves it to its owner.
                    clear_signature(disk.device())?;
                }
                vec!["--store", text(&self.store)]
            }
        };
        let daemon = self.coulter.start(&[&first[..], &store, words].concat())?;
        Ok(Up { daemon })
    }

    /// Kills the daemon, takes everything away, and turns off those disks that have power, in order.
    pub(crate) fn fall(
        &self,
        powered: Powered,
        daemon: Option<Daemon>,
    ) -> Result<(), SystemsError> {
        if let Some(daemon) = daemon {
            daemon.kill()?;
        }
        if self.directory != self.lower {
            FileSystem::unmount(&self.directory).or_else(gone)?;
        }
        FileSystem::unmount(&self.lower)?;
        for running in powered.running {
            match running.power().is_on() {
                true => running.shut_down()?,
                false => running.abandon()?,
            }
        }
        Ok(())
    }

    /// Unmounts in order, waits for the daemon, checks everything, and turns the disks off.
    pub(crate) fn down(&self, powered: Powered) -> Result<(), SystemsError> {
        self.coulter.run(&["umount", text(&self.directory)])?;
        self.check_and_turn_off(powered)
    }

    /// After the daemon has ended.
    pub(crate) fn check_and_turn_off(&self, powered: Powered) -> Result<(), SystemsError> {
        let device = powered.running[0].device();
        match self.layer {
            Layer::Fs => {
                self.coulter.run(&["fs", "check", text(device)])?;
                self.coulter.run(&["check", "--data", text(device)])?;
            }
            Layer::Overlay { lower, .. } => {
                let own = self.directory.join(".coulter/store");
                let store = powered.running.get(1).map_or(&*own, Running::device);
                if self.directory.join(".coulter").exists() {
                    self.coulter.run(&["check", "--data", text(store)])?;
                }
                FileSystem::unmount(&self.lower)?;
                lower.check(device)?;
            }
        }
        powered.running.into_iter().try_for_each(Running::shut_down)
    }

    /// What a crash left is sound as it is.
    pub(crate) fn check_crashed(&self, powered: &Powered) -> Result<(), SystemsError> {
        match self.layer {
            Layer::Fs => {
                let device = powered.running[0].device();
                self.coulter.run(&["fs", "check", text(device)]).map(drop)
            }
            Layer::Overlay { .. } => Ok(()),
        }
    }

    /// What a mount has to say about itself is that it is sound.
    pub(crate) fn check_mounted(&self) -> Result<(), SystemsError> {
        match self.layer {
            Layer::Fs => Ok(()),
            Layer::Overlay { .. } => {
                self.coulter.run(&["overlay", "check", text(&self.directory)]).map(drop)
            }
        }
    }

    /// Takes an overlay away for good.
    pub(crate) fn detach(&self) -> Result<(), SystemsError> {
        self.coulter.run(&["overlay", "detach", text(&self.directory)])?;
        let hidden = self.directory.join(".coulter");
        if hidden.exists() {
            return Err(SystemsError::violation("something is left after detaching"));
        }
        Ok(())
    }

    /// Takes away what is mounted, whatever it is.
    pub(crate) fn clear(&self) {
        let mut command = tool::command("umount");
        let _ = command.args(["--lazy", "--quiet"]).args([&self.directory, &self.lower]).output();
    }
}

/// Takes away what says that a disk is a store.
fn clear_signature(device: &Path) -> Result<(), SystemsError> {
    let opened = std::fs::File::options().write(true).open(device);
    let cleared = opened.and_then(|disk| {
        disk.write_all_at(&[0; 4096], 0)?;
        disk.sync_all()
    });
    // A disk that has just lost its power is found out by what comes next.
    cleared.or_else(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::IO) => Ok(()),
        _ => Err(crate::program::failed("clear", device)(error)),
    })
}

/// A directory whose file system is gone has nothing mounted on it.
fn gone(error: SystemsError) -> Result<(), SystemsError> {
    let number = match &error {
        SystemsError::Io { source, .. } => source.raw_os_error(),
        _ => None,
    };
    match number.map(Errno::from_raw_os_error) {
        Some(Errno::IO | Errno::NOENT) => Ok(()),
        _ => Err(error),
    }
}
