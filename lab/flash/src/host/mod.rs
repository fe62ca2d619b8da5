//! Hosts: what turns the writes of programs into commands to a drive.
//!
//! A [`Host`] is a page cache over a *layout*, which is a file system's way to choose addresses.
//! Files have numbers and blocks of 4096 bytes; the models keep no names, directories or
//! permissions, since these are metadata blocks like others. What each model leaves out stands at
//! its head.
//!
//! # Time
//! The host has its own threads, each at its own virtual time, and gives commands of all of them
//! through one queue whose depth is the profile's.

mod cow;
mod ext4;
mod log;
mod queue;
mod remap;
mod segments;
mod slfs;

use crate::drive::{CommandError, Drive};
use crate::units::Ns;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

pub use queue::Queue;
pub use remap::{Cleaning, RemapCounters, RemapOptions};

/// What a program asks a file system for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOperation {
    /// Blocks of a file are written, into the page cache.
    Write {
        /// Which file.
        file: u32,
        /// The first block.
        block: u32,
        /// How many.
        count: u32,
    },
    /// Blocks of a file are read.
    Read {
        /// Which file.
        file: u32,
        /// The first block.
        block: u32,
        /// How many.
        count: u32,
    },
    /// A file is made durable (fsync).
    Sync {
        /// Which file.
        file: u32,
    },
    /// A file is removed.
    Delete {
        /// Which file.
        file: u32,
    },
}

/// Why a host could not do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostError {
    /// The drive refused.
    Command(CommandError),
    /// The file system is full.
    Full,
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostError::Command(error) => error.fmt(f),
            HostError::Full => f.write_str("the file system is full"),
        }
    }
}

impl std::error::Error for HostError {}

impl From<CommandError> for HostError {
    fn from(error: CommandError) -> HostError {
        HostError::Command(error)
    }
}

/// What a host did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostCounters {
    /// Blocks that programs wrote.
    pub user_blocks_written: u64,
    /// Blocks that programs read.
    pub user_blocks_read: u64,
    /// Blocks of metadata written: journal, inodes, nodes, checkpoints.
    pub metadata_blocks: u64,
    /// Valid blocks that cleaning wrote elsewhere.
    pub cleaned_blocks: u64,
    /// Valid blocks that were written again in their place so that a flash page is written whole.
    pub padded_blocks: u64,
    /// Segments that were cleaned, or of which holes were filled.
    pub segments_reclaimed: u64,
    /// Checkpoints.
    pub checkpoints: u64,
}

impl HostCounters {
    /// What was added since `earlier`.
    pub fn since(&self, earlier: &HostCounters) -> HostCounters {
        HostCounters {
            user_blocks_written: self.user_blocks_written - earlier.user_blocks_written,
            user_blocks_read: self.user_blocks_read - earlier.user_blocks_read,
            metadata_blocks: self.metadata_blocks - earlier.metadata_blocks,
            cleaned_blocks: self.cleaned_blocks - earlier.cleaned_blocks,
            padded_blocks: self.padded_blocks - earlier.padded_blocks,
            segments_reclaimed: self.segments_reclaimed - earlier.segments_reclaimed,
            checkpoints: self.checkpoints - earlier.checkpoints,
        }
    }
}

/// The ways to lay out files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostKind {
    /// In place, with a journal: ext4-like.
    Ext4,
    /// Every write to a new place, and the tree above it: Btrfs-like.
    Cow,
    /// A log that is cleaned by copying: F2FS-like, as REDO's host.
    Log,
    /// A log threaded through holes: S-LFS.
    Slfs,
}

impl HostKind {
    /// Every kind, in order.
    pub const ALL: [HostKind; 4] = [HostKind::Ext4, HostKind::Cow, HostKind::Log, HostKind::Slfs];

    /// Its name on command lines and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            HostKind::Ext4 => "ext4",
            HostKind::Cow => "cow",
            HostKind::Log => "lfs",
            HostKind::Slfs => "slfs",
        }
    }
}

impl fmt::Display for HostKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for HostKind {
    type Err = String;

    fn from_str(text: &str) -> Result<HostKind, String> {
        let found = HostKind::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("`{text}` is no host; there are ext4 cow lfs slfs"))
    }
}

/// What may be varied in the log-structured hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Segments of data that are open at once and written in turns; one lies on one die.
    pub stripes: u32,
    /// Blocks by which the segments are shifted against the erase blocks. Zero is aligned.
    pub shift: u32,
    /// Whether pages are written whole (S-LFS only): without it a hole smaller than a flash page
    /// is written as it is.
    pub host_padding: bool,
}

/// A file system's way to choose addresses and to keep its metadata.
pub(crate) trait Layout: fmt::Debug {
    /// Writes blocks of a file, in ascending order; `sync` if a program waits for it.
    fn write(
        &mut self,
        queue: &mut Queue<'_>,
        at: Ns,
        file: u32,
        blocks: &[u32],
        sync: bool,
    ) -> Result<Ns, HostError>;

    /// Makes a file durable whose blocks have been written.
    fn commit(&mut self, queue: &mut Queue<'_>, at: Ns, file: u32) -> Result<Ns, HostError>;

    /// Where a block of a file lies; `None` if it was never written.
    fn address(&self, file: u32, block: u32) -> Option<u64>;

    /// Gives up all blocks of a file.
    fn delete(&mut self, queue: &mut Queue<'_>, at: Ns, file: u32) -> Result<Ns, HostError>;

    /// What it did.
    fn counters(&self) -> HostCounters;

    /// Blocks that programs may fill.
    fn capacity(&self) -> u64;
}

/// A page cache over a layout.
#[derive(Debug)]
pub struct Host {
    layout: Box<dyn Layout>,
    dirty: BTreeMap<u32, BTreeSet<u32>>,
    dirty_count: u64,
    /// Dirty blocks beyond which writers have to write out.
    dirty_max: u64,
    outstanding: queue::Outstanding,
    remap: Option<remap::Remap>,
    user_blocks_written: u64,
    user_blocks_read: u64,
}

/// Time to copy a block into the page cache, or out of it.
const COPY_NS: Ns = 1_000;

impl Host {
    /// A host with an empty file system on the drive; `dirty_max` is the size of its page cache in
    /// blocks. With `remap`, a remapping layer lies between the two.
    pub fn new(
        kind: HostKind,
        drive: &Drive,
        options: LogOptions,
        dirty_max: u64,
        remap: Option<RemapOptions>,
    ) -> Host {
        let mut profile = drive.profile().clone();
        let below = profile.geometry;
        if let Some(options) = remap {
            profile.geometry = remap::Remap::exported(&below, options);
        }
        let layout: Box<dyn Layout> = match kind {
            HostKind::Ext4 => Box::new(ext4::Ext4::new(&profile.geometry)),
            HostKind::Cow => Box::new(cow::Cow::new(&profile.geometry)),
            HostKind::Log => Box::new(log::LogFs::new(&profile.geometry, options)),
            HostKind::Slfs => Box::new(slfs::Slfs::new(&profile, options)),
        };
        Host {
            layout,
            dirty: BTreeMap::new(),
            dirty_count: 0,
            dirty_max,
            outstanding: queue::Outstanding::new(profile.queue_depth),
            remap: remap.map(|options| remap::Remap::new(&below, options)),
            user_blocks_written: 0,
            user_blocks_read: 0,
        }
    }

    /// Blocks that programs may fill.
    pub fn capacity(&self) -> u64 {
        self.layout.capacity()
    }

    /// Blocks that programs wrote so far.
    pub fn user_blocks_written(&self) -> u64 {
        self.user_blocks_written
    }

    /// Blocks that programs read so far.
    pub fn user_blocks_read(&self) -> u64 {
        self.user_blocks_read
    }

    /// What it did.
    pub fn counters(&self) -> HostCounters {
        HostCounters {
            user_blocks_written: self.user_blocks_written,
            user_blocks_read: self.user_blocks_read,
            ..self.layout.counters()
        }
    }

    /// What the remapping layer did; zeros if there is none.
    pub fn remap_counters(&self) -> RemapCounters {
        self.remap.as_ref().map_or(RemapCounters::default(), |remap| remap.counters)
    }

    /// Does one operation for a thread whose time is `at`; answers with its time afterwards.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn apply(
        &mut self,
        drive: &mut Drive,
        at: Ns,
        operation: FileOperation,
    ) -> Result<Ns, HostError> {
        match operation {
            FileOperation::Write { file, block, count } => {
                let pages = self.dirty.entry(file).or_default();
                let new = (block..block + count).filter(|block| pages.insert(*block)).count();
                self.dirty_count += new as u64;
                self.user_blocks_written += u64::from(count);
                let now = at + COPY_NS * u64::from(count);
                if self.dirty_count > self.dirty_max {
                    self.write_back(drive, now)
                } else {
                    Ok(now)
                }
            }
            FileOperation::Read { file, block, count } => {
                self.user_blocks_read += u64::from(count);
                self.read(drive, at, file, block..block + count)
            }
            FileOperation::Sync { file } => {
                let mut queue = Queue::new(drive, &mut self.outstanding, self.remap.as_mut());
                let mut now = at;
                if let Some(pages) = self.dirty.remove(&file) {
                    self.dirty_count -= pages.len() as u64;
                    let blocks: Vec<_> = pages.into_iter().collect();
                    now = self.layout.write(&mut queue, now, file, &blocks, true)?;
                }
                self.layout.commit(&mut queue, now, file)
            }
            FileOperation::Delete { file } => {
                if let Some(pages) = self.dirty.remove(&file) {
                    self.dirty_count -= pages.len() as u64;
                }
                self.layout.delete(
                    &mut Queue::new(drive, &mut self.outstanding, self.remap.as_mut()),
                    at,
                    file,
                )
            }
        }
    }

    /// Writes out everything that is dirty, file by file, each in ascending order.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn write_back(&mut self, drive: &mut Drive, at: Ns) -> Result<Ns, HostError> {
        let mut now = at;
        self.dirty_count = 0;
        for (file, pages) in std::mem::take(&mut self.dirty) {
            let blocks: Vec<_> = pages.into_iter().collect();
            let mut queue = Queue::new(drive, &mut self.outstanding, self.remap.as_mut());
            now = now.max(self.layout.write(&mut queue, at, file, &blocks, false)?);
        }
        Ok(now)
    }

    /// Writes out everything and makes it durable.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn sync_all(&mut self, drive: &mut Drive, at: Ns) -> Result<Ns, HostError> {
        let files: Vec<_> = self.dirty.keys().copied().collect();
        let now = self.write_back(drive, at)?;
        let last = files.last().copied().unwrap_or(0);
        let mut queue = Queue::new(drive, &mut self.outstanding, self.remap.as_mut());
        self.layout.commit(&mut queue, now, last)
    }

    fn read(
        &mut self,
        drive: &mut Drive,
        at: Ns,
        file: u32,
        blocks: std::ops::Range<u32>,
    ) -> Result<Ns, HostError> {
        let cached = self.dirty.get(&file);
        let addresses: Vec<_> = blocks
            .filter(|block| cached.is_none_or(|pages| !pages.contains(block)))
            .filter_map(|block| self.layout.address(file, block))
            .collect();
        let mut queue = Queue::new(drive, &mut self.outstanding, self.remap.as_mut());
        Ok(queue.read(at, &addresses)?.max(at + COPY_NS))
    }
}
