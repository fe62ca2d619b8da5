//! `coulter fs salvage`: what can be taken out of a damaged file system, into a directory.
//!
//! # Invariants
//! - Nothing is written outside of the directory: each thing is made new, and symbolic links come last, so
//!   that no path leads through one.
//! - A name that leads nowhere, and an inode without a name, are told; the latter is put into `lost+found`.

use super::{BLOCK_SIZE, open, read_block, told, told_with_help};
use crate::error::{CliError, DoorError};
use crate::interrupt::Left;
use crate::terminal;
use clap::Args;
use coulter_check::files::{Rescue, Rescued, rescue};
use coulter_daemon::state::StateDirectory;
use coulter_format::files::superblock::MAGIC;
use coulter_format::files::{Inode, ROOT_INODE};
use coulter_system::{private, seekable};
use coulter_terminal::ProgressBar;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, chmodat, chownat, mknodat,
    utimensat,
};
use rustix::fs::{XattrFlags, lsetxattr};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

/// Where inodes without a name are put.
const LOST: &str = "lost+found";

/// Extract the files of a damaged file system, read-only.
///
/// Use it when `coulter fs check` finds damage. DIR gets every file, directory, link and special file that
/// can still be read, with owner, permissions, times and extended attributes. Files whose names are lost go
/// to DIR/lost+found. What is lost of a file reads as zeros, and the file is named. STORE may also be the
/// image that `coulter salvage` makes of a store that cannot be opened. The exit code is 1 if anything is lost.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter fs salvage disk.img rescued
  coulter salvage disk.img volume.img; coulter fs salvage volume.img rescued")]
pub(super) struct Salvage {
    /// Store with the file system, or image of its volume
    #[arg(value_name = "STORE")]
    path: PathBuf,

    /// Directory to make, or an empty one
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

type Read<'a> = dyn FnMut(u64) -> Result<[u8; BLOCK_SIZE], ()> + 'a;

impl Salvage {
    pub(super) fn run(&self, state: Option<&StateDirectory>) -> Result<(), CliError> {
        let is_made = self.prepare()?;
        let why = format!("{} has a part of the files", terminal::path(&self.directory));
        let help = "empty it, and run the same command again".to_owned();
        let _left = Left::take_over(why, help)?;
        self.salvage(state).inspect_err(|_| {
            if is_made {
                // Only if nothing is in it.
                let _ = fs::remove_dir(&self.directory);
            }
        })
    }

    fn salvage(&self, state: Option<&StateDirectory>) -> Result<(), CliError> {
        if let Some(image) = self.image()? {
            let size = image.metadata().map_err(|e| CliError::io("read", &self.path, e))?.len();
            let mut read = |block: u64| {
                let mut bytes = [0; BLOCK_SIZE];
                image.read_exact_at(&mut bytes, block * BLOCK_SIZE as u64).map_err(|_| ())?;
                Ok(bytes)
            };
            return self.extract(&mut read, size / BLOCK_SIZE as u64);
        }
        let volume = open(&self.path, state)?;
        let blocks = volume.size() / BLOCK_SIZE as u64;
        self.extract(&mut |block| read_block(&volume, block), blocks)
    }

    /// Makes the directory; `false` if it was there.
    fn prepare(&self) -> Result<bool, CliError> {
        let failed = |error| CliError::io("make", &self.directory, error);
        let is_made = match private::create_directory(&self.directory) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(failed(error)),
        };
        if fs::read_dir(&self.directory).map_err(failed)?.next().is_some() {
            let why = "it is not empty".to_owned();
            let help = "empty it, or name a directory that is not there yet".to_owned();
            return Err(told_with_help("cannot extract into", &self.directory, why, help));
        }
        Ok(is_made)
    }

    /// The path, if it is no store but the image of a volume.
    fn image(&self) -> Result<Option<File>, CliError> {
        let failed = |error| CliError::io("read", &self.path, error);
        let file = seekable::open(&self.path).map_err(failed)?;
        let mut magic = [0; 8];
        let is_image = file.read_exact_at(&mut magic, 0).is_ok() && magic == MAGIC;
        Ok(is_image.then_some(file))
    }

    fn extract(&self, read: &mut Read<'_>, blocks: u64) -> Result<(), CliError> {
        let bar = terminal::progress_of_reads("reading the tree");
        let found = rescue(&mut counted(&bar, read), blocks);
        bar.finish_and_clear();
        if found.inodes.is_empty() && found.names.is_empty() {
            return Err(DoorError::NoFiles { path: self.path.clone() }.into());
        }
        let mut out = Out {
            root: &self.directory,
            found: &found,
            made: BTreeMap::new(),
            links: Vec::new(),
            directories: Vec::new(),
            faults: Vec::new(),
            count: 0,
        };
        for block in &found.damaged {
            out.faults.push(format!("block {block} of the tree cannot be read"));
        }
        let bar = terminal::progress("taking out files", content_size(&found));
        let mut read = counted(&bar, read);
        out.directories(&mut read);
        out.lost(&mut read);
        out.finish();
        bar.finish_and_clear();
        for fault in &out.faults {
            terminal::print(fault)?;
        }
        let count = out.count;
        terminal::print(&format!(
            "{count} files, directories and links in {}",
            self.directory.display()
        ))?;
        match out.faults.len() {
            0 => Ok(()),
            faults => {
                let why = format!("{faults} in all are told above");
                Err(told("could not extract all of", &self.path, why))
            }
        }
    }
}

/// Moves the bar by each block that is read.
fn counted<'a>(
    bar: &'a ProgressBar,
    read: &'a mut Read<'_>,
) -> impl FnMut(u64) -> Result<[u8; BLOCK_SIZE], ()> + 'a {
    move |block| {
        bar.inc(BLOCK_SIZE as u64);
        read(block)
    }
}

/// Bytes of the content of all files.
fn content_size(found: &Rescue) -> u64 {
    let runs = found.inodes.values().flat_map(|inode| &inode.extents);
    runs.fold(0, |size: u64, (_, run)| {
        size.saturating_add(u64::from(run.count) * BLOCK_SIZE as u64)
    })
}

/// What is being made.
struct Out<'a> {
    root: &'a Path,
    found: &'a Rescue,
    /// Files by inode: the first of their names.
    made: BTreeMap<u64, PathBuf>,
    /// Symbolic links that come last.
    links: Vec<(PathBuf, u64)>,
    /// Directories, whose times are set when all is in them.
    directories: Vec<(PathBuf, u64)>,
    faults: Vec<String>,
    count: u64,
}

impl Out<'_> {
    /// All that a path from the root leads to.
    fn directories(&mut self, read: &mut Read<'_>) {
        self.directories.push((self.root.to_owned(), ROOT_INODE));
        self.below(0, read);
    }

    /// What is in the directories from this one of the list on, and in those that are added.
    fn below(&mut self, first: usize, read: &mut Read<'_>) {
        let mut names: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (index, named) in self.found.names.iter().enumerate() {
            names.entry(named.directory).or_default().push(index);
        }
        let mut at = first;
        while let Some((directory, number)) = self.directories.get(at).cloned() {
            at += 1;
            for index in names.get(&number).into_iter().flatten() {
                let named = &self.found.names[*index];
                let path = directory.join(OsStr::from_bytes(&named.name));
                self.make(path, named.inode, read);
            }
        }
    }

    /// Inodes that no name leads to.
    fn lost(&mut self, read: &mut Read<'_>) {
        let reached: BTreeSet<u64> = self
            .directories
            .iter()
            .map(|(_, number)| *number)
            .chain(self.made.keys().copied())
            .chain(self.links.iter().map(|(_, number)| *number))
            .collect();
        let named: BTreeSet<u64> = self.found.names.iter().map(|named| named.inode).collect();
        let left: Vec<u64> =
            self.found.inodes.keys().copied().filter(|n| !reached.contains(n)).collect();
        if left.is_empty() {
            return;
        }
        let directory = self.root.join(LOST);
        if let Err(error) = private::create_directory(&directory) {
            return self.blame(&directory, &error);
        }
        // Those first that are in no other one.
        let (below, tops): (Vec<u64>, Vec<u64>) = left.into_iter().partition(|n| named.contains(n));
        for number in tops.into_iter().chain(below) {
            let is_made = self.made.contains_key(&number)
                || self.directories.iter().any(|(_, other)| *other == number)
                || self.links.iter().any(|(_, other)| *other == number);
            if is_made {
                continue;
            }
            let path = directory.join(format!("inode-{number}"));
            self.faults.push(format!("inode {number} has lost its name: {}", path.display()));
            let first = self.directories.len();
            self.make(path, number, read);
            self.below(first, read);
        }
    }

    fn blame(&mut self, path: &Path, why: &dyn std::fmt::Display) {
        self.faults.push(format!("{}: {why}", path.display()));
    }

    fn make(&mut self, path: PathBuf, number: u64, read: &mut Read<'_>) {
        let nothing = Rescued::default();
        let rescued = self.found.inodes.get(&number).unwrap_or(&nothing);
        let Some(inode) = rescued.inode else {
            if rescued.extents.is_empty() {
                return self.blame(&path, &format!("inode {number} is lost"));
            }
            self.blame(&path, &"its size and attributes are lost");
            let end = rescued.extents.iter().map(|(first, run)| first + u64::from(run.count)).max();
            let size = end.unwrap_or(0) * BLOCK_SIZE as u64;
            let inode = Inode { mode: 0o100_600, size, ..Inode::default() };
            return self.file(path, number, &inode, rescued, read);
        };
        match FileType::from_raw_mode(inode.mode) {
            FileType::Directory => self.directory(path, number),
            FileType::Symlink => self.links.push((path, number)),
            FileType::RegularFile => self.file(path, number, &inode, rescued, read),
            kind => self.special(path, number, &inode, kind),
        }
    }

    fn directory(&mut self, path: PathBuf, number: u64) {
        if self.directories.iter().any(|(_, other)| *other == number) {
            return self.blame(&path, &"a directory with a second name");
        }
        match private::create_directory(&path) {
            Ok(()) => {
                self.count += 1;
                self.directories.push((path, number));
            }
            Err(error) => self.blame(&path, &error),
        }
    }

    fn special(&mut self, path: PathBuf, number: u64, inode: &Inode, kind: FileType) {
        let mode = Mode::from_raw_mode(inode.mode);
        if self.is_linked(&path, number) {
            return;
        }
        match mknodat(CWD, &path, kind, mode, u64::from(inode.device)) {
            Ok(()) => {
                self.count += 1;
                self.dress(&path, number);
                self.made.insert(number, path);
            }
            Err(error) => self.blame(&path, &error),
        }
    }

    /// Whether it is one more name of something that is made, and now is.
    fn is_linked(&mut self, path: &Path, number: u64) -> bool {
        let Some(first) = self.made.get(&number).cloned() else { return false };
        match fs::hard_link(first, path) {
            Ok(()) => self.count += 1,
            Err(error) => self.blame(path, &error),
        }
        true
    }

    fn file(
        &mut self,
        path: PathBuf,
        number: u64,
        inode: &Inode,
        rescued: &Rescued,
        read: &mut Read<'_>,
    ) {
        if self.is_linked(&path, number) {
            return;
        }
        let lost_extents = rescued.lost_blocks();
        let written = private::create_new(&path).and_then(|file| {
            let lost = write_content(&file, inode.size, rescued, read)?;
            file.set_len(inode.size)?;
            Ok(lost)
        });
        match written.map(|lost| lost + lost_extents) {
            Ok(0) => {}
            Ok(lost) => {
                self.blame(&path, &format!("{lost} of its blocks are lost and read as zeros"))
            }
            Err(error) => return self.blame(&path, &error),
        }
        self.count += 1;
        self.dress(&path, number);
        self.made.insert(number, path);
    }

    /// Owner, permissions, attributes and times, as far as the user may set them.
    fn dress(&mut self, path: &Path, number: u64) {
        let Some(rescued) = self.found.inodes.get(&number) else { return };
        self.tell_lost_attributes(path, number, rescued);
        let Some(inode) = rescued.inode else { return };
        let (uid, gid) = (Uid::from_raw(inode.uid), Gid::from_raw(inode.gid));
        let no_follow = AtFlags::SYMLINK_NOFOLLOW;
        let owned = chownat(CWD, path, Some(uid), Some(gid), no_follow);
        let mut dressed = if rustix::process::geteuid().is_root() { owned } else { Ok(()) };
        let is_link = FileType::from_raw_mode(inode.mode) == FileType::Symlink;
        if !is_link {
            let mode = Mode::from_raw_mode(inode.mode);
            dressed = dressed.and(chmodat(CWD, path, mode, AtFlags::empty()));
        }
        for (name, value) in &rescued.attributes {
            let name = OsStr::from_bytes(name);
            if lsetxattr(path, name, value, XattrFlags::empty()).is_err() {
                self.blame(path, &format!("its attribute {} cannot be set", name.display()));
            }
        }
        let time = |time: coulter_format::files::Time| Timespec {
            tv_sec: time.seconds,
            tv_nsec: i64::from(time.nanoseconds),
        };
        let times = Timestamps {
            last_access: time(inode.accessed),
            last_modification: time(inode.modified),
        };
        dressed = dressed.and(utimensat(CWD, path, &times, no_follow));
        if let Err(error) = dressed {
            self.blame(path, &error);
        }
    }

    fn tell_lost_attributes(&mut self, path: &Path, number: u64, rescued: &Rescued) {
        for name in &rescued.incomplete {
            match name.is_empty() {
                true => self.blame(path, &"an extended attribute of it is lost"),
                false => {
                    let name = OsStr::from_bytes(name).display();
                    self.blame(path, &format!("its extended attribute {name} is lost"));
                }
            }
        }
        for what in rescued.lost_lists() {
            self.blame(path, &format!("its {what} is lost"));
        }
        if self.found.may_lack_attributes(number) {
            self.blame(path, &"extended attributes of it may be lost");
        }
    }

    /// Symbolic links, and then what the directories are to look like.
    fn finish(&mut self) {
        let found = self.found;
        for (path, number) in std::mem::take(&mut self.links) {
            let Some(rescued) = found.inodes.get(&number) else { continue };
            let size = rescued.inode.map_or(0, |inode| inode.size);
            if rescued.target.is_empty() || rescued.target.len() as u64 != size {
                self.blame(&path, &"where it points is lost");
                continue;
            }
            if self.is_linked(&path, number) {
                continue;
            }
            match symlink(OsStr::from_bytes(&rescued.target), &path) {
                Ok(()) => {
                    self.count += 1;
                    self.dress(&path, number);
                    self.made.insert(number, path);
                }
                Err(error) => self.blame(&path, &error),
            }
        }
        for (path, number) in std::mem::take(&mut self.directories).into_iter().rev() {
            self.dress(&path, number);
        }
    }
}

/// Writes a file's blocks; how many of them cannot be read.
fn write_content(
    file: &File,
    size: u64,
    rescued: &Rescued,
    read: &mut Read<'_>,
) -> io::Result<u64> {
    let mut lost = 0;
    for (first, extent) in &rescued.extents {
        for index in 0..u64::from(extent.count) {
            let Some(offset) = (first + index).checked_mul(BLOCK_SIZE as u64) else { break };
            if offset >= size {
                break;
            }
            let length = (size - offset).min(BLOCK_SIZE as u64) as usize;
            match read(extent.block + index) {
                Ok(block) => file.write_all_at(&block[..length], offset)?,
                Err(()) => lost += 1,
            }
        }
    }
    Ok(lost)
}
