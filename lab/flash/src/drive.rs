//! A drive: flash, an FTL and a write buffer behind read, write, trim and flush commands, all in
//! virtual time.
//!
//! A command is given with the time at which the host issues it and returns the time at which it
//! is answered. Commands have to be given in the order of their times. Addresses are host blocks of
//! 4096 bytes.
//!
//! # Command contract
//! - Commands larger than the drive takes are cut, and each piece costs a command.
//! - A trim covers those pages that lie in its range whole; the rest of the range stays.
//! - What was never written, or trimmed, reads as zeros.
//!
//! # Durability contract
//! - A flush is answered when everything that was answered before it is on flash, a write with
//!   `fua` when all of it is. Other writes may be lost to a power cut while they are in the buffer.
//! - A page is written whole or not at all; of a command that power cuts short, any pages may
//!   survive. Trims are durable when they are answered.

use crate::buffer::{Buffer, Waiting};
use crate::content::Keep;
use crate::counters::{Cause, FtlCounters};
use crate::ftl::{self, Ftl, FtlError, FtlKind, FtlOptions, MapMemory, PageWrite};
use crate::nand::{Done, Nand, PowerCut};
use crate::profile::Profile;
use crate::units::{BLOCK_SIZE, Lpn, Ns};
use serde::Serialize;
use std::fmt;

/// Why a command was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommandError {
    /// Power failed.
    PowerCut,
    /// It names blocks that the drive does not have.
    OutOfRange,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CommandError::PowerCut => "the power was cut",
            CommandError::OutOfRange => "the range is not on the drive",
        })
    }
}

impl std::error::Error for CommandError {}

impl From<PowerCut> for CommandError {
    fn from(_: PowerCut) -> CommandError {
        CommandError::PowerCut
    }
}

/// How a write is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// The placement handle (stream); 0 if there is none.
    pub handle: u8,
    /// Answer only when it is on flash.
    pub fua: bool,
}

/// Host blocks from one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The first.
    pub first: u64,
    /// How many.
    pub count: u32,
}

/// What the host asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DriveCounters {
    /// Read commands, after cutting.
    pub reads: u64,
    /// Write commands, after cutting.
    pub writes: u64,
    /// Trim commands.
    pub trims: u64,
    /// Flush commands.
    pub flushes: u64,
    /// Host blocks read.
    pub blocks_read: u64,
    /// Host blocks written.
    pub blocks_written: u64,
    /// Host blocks in trims.
    pub blocks_trimmed: u64,
    /// Pages read or written again while they waited in the buffer.
    pub buffer_hits: u64,
    /// Pages of which the host wrote only a part, when they went to flash.
    pub partial_pages: u64,
}

impl DriveCounters {
    /// What was added since `earlier`.
    pub fn since(&self, earlier: &DriveCounters) -> DriveCounters {
        DriveCounters {
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            trims: self.trims - earlier.trims,
            flushes: self.flushes - earlier.flushes,
            blocks_read: self.blocks_read - earlier.blocks_read,
            blocks_written: self.blocks_written - earlier.blocks_written,
            blocks_trimmed: self.blocks_trimmed - earlier.blocks_trimmed,
            buffer_hits: self.buffer_hits - earlier.buffer_hits,
            partial_pages: self.partial_pages - earlier.partial_pages,
        }
    }
}

/// An emulated drive.
#[derive(Debug)]
pub struct Drive {
    profile: Profile,
    options: FtlOptions,
    keep: Keep,
    nand: Nand,
    ftl: Box<dyn Ftl>,
    buffer: Buffer,
    sequence: u64,
    counters: DriveCounters,
}

/// Part of a page that a command touches: blocks `first..first + count` of it.
#[derive(Clone, Copy, Debug)]
struct Piece {
    lpn: Lpn,
    first: u32,
    count: u32,
    /// Blocks of the command before this piece.
    before: usize,
}

impl Piece {
    fn mask(self) -> u64 {
        let ones = if self.count == 64 { u64::MAX } else { (1 << self.count) - 1 };
        ones << self.first
    }
}

impl Drive {
    /// A new drive, never written.
    ///
    /// # Errors
    /// If the FTL cannot work on it.
    pub fn new(
        profile: Profile,
        kind: FtlKind,
        options: FtlOptions,
        keep: Keep,
    ) -> Result<Drive, FtlError> {
        let ftl = ftl::create(kind, &profile, options)?;
        let nand = Nand::new(&profile, keep);
        Ok(Drive {
            profile,
            options,
            keep,
            nand,
            ftl,
            buffer: Buffer::empty(),
            sequence: 0,
            counters: DriveCounters::default(),
        })
    }

    /// Writes; `content` is what is kept of the blocks.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn write(
        &mut self,
        at: Ns,
        blocks: Blocks,
        content: &[u8],
        options: WriteOptions,
    ) -> Result<Ns, CommandError> {
        self.check(blocks)?;
        let block_bytes = self.keep.block_bytes();
        assert_eq!(content.len(), block_bytes * blocks.count as usize, "content for every block");
        let mut answered = at;
        for (command, skipped) in self.commands(blocks) {
            self.counters.writes += 1;
            self.counters.blocks_written += u64::from(command.count);
            let arrived = self.arrive(at, command);
            let content = &content[skipped * block_bytes..];
            for piece in self.pieces(command) {
                let bytes = piece.count as usize * block_bytes;
                let content = &content[piece.before * block_bytes..][..bytes];
                answered = answered.max(self.put(arrived, piece, content, options)?);
            }
        }
        Ok(answered)
    }

    /// Reads; `content` is filled with what is kept of the blocks.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn read(&mut self, at: Ns, blocks: Blocks, content: &mut [u8]) -> Result<Ns, CommandError> {
        self.check(blocks)?;
        let block_bytes = self.keep.block_bytes();
        assert_eq!(content.len(), block_bytes * blocks.count as usize, "room for every block");
        let mut answered = at;
        for (command, skipped) in self.commands(blocks) {
            self.counters.reads += 1;
            self.counters.blocks_read += u64::from(command.count);
            let pages = self.pieces(command).count() as u32;
            let arrived = self.nand.time.command(at, pages);
            let mut ready = arrived;
            for piece in self.pieces(command) {
                let bytes = piece.count as usize * block_bytes;
                let start = (skipped + piece.before) * block_bytes;
                let done = self.fetch(arrived, piece, &mut content[start..start + bytes])?;
                ready = ready.max(done);
            }
            let bytes = u64::from(command.count) * u64::from(BLOCK_SIZE);
            answered = answered.max(self.nand.time.transfer(ready, bytes));
        }
        Ok(answered)
    }

    /// Gives up pages.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn trim(&mut self, at: Ns, blocks: Blocks) -> Result<Ns, CommandError> {
        self.check(blocks)?;
        self.counters.trims += 1;
        self.counters.blocks_trimmed += u64::from(blocks.count);
        let per_page = u64::from(self.profile.geometry.blocks_per_page());
        let first = blocks.first.div_ceil(per_page);
        let end = (blocks.first + u64::from(blocks.count)) / per_page;
        let mut now = self.nand.time.command(at, 0);
        for lpn in (first..end).map(|page| Lpn(page as u32)) {
            if let Some(page) = self.buffer.remove(lpn) {
                self.buffer.recycle(page.content);
            }
            if self.ftl.peek(&self.nand, lpn).is_some() {
                now = now.max(self.nand.trim(now, lpn)?);
                now = now.max(self.ftl.trim(&mut self.nand, now, lpn)?);
            }
        }
        Ok(now)
    }

    /// Puts on flash what was written before.
    ///
    /// # Errors
    /// [`CommandError::PowerCut`].
    pub fn flush(&mut self, at: Ns) -> Result<Ns, CommandError> {
        self.counters.flushes += 1;
        let arrived = self.nand.time.command(at, 0);
        while let Some(page) = self.buffer.pop() {
            let done = self.drain(arrived, page)?;
            self.buffer.fly(done);
        }
        Ok(self.buffer.wait_for_fewer(arrived, 1))
    }

    /// Power comes back after a cut, or goes and comes back: whatever was in memory is gone.
    /// Answers when the drive is ready.
    ///
    /// # Errors
    /// [`CommandError::PowerCut`] if another cut was asked for.
    pub fn power_on(&mut self, at: Ns) -> Result<Ns, CommandError> {
        let at = at.max(self.nand.time.idle_at());
        self.nand.power_on(at);
        self.recover(at)
    }

    /// As [`Drive::power_on`], with another cut after `operations` operations of the recovery.
    ///
    /// # Errors
    /// [`CommandError::PowerCut`].
    pub fn power_on_and_cut(&mut self, at: Ns, operations: u64) -> Result<Ns, CommandError> {
        let at = at.max(self.nand.time.idle_at());
        self.nand.power_on(at);
        self.nand.cut_power_after(operations);
        self.recover(at)
    }

    fn recover(&mut self, at: Ns) -> Result<Ns, CommandError> {
        self.buffer = Buffer::empty();
        let kind = self.ftl.kind();
        let (ftl, ready) = ftl::recover(kind, &self.profile, self.options, &mut self.nand, at)?;
        self.ftl = ftl;
        self.sequence = self.nand.sequence_max();
        Ok(ready)
    }

    /// Power fails at the flash operation after `operations` more.
    pub fn cut_power_after(&mut self, operations: u64) {
        self.nand.cut_power_after(operations);
    }

    fn check(&self, blocks: Blocks) -> Result<(), CommandError> {
        let end = blocks.first.checked_add(u64::from(blocks.count));
        match end {
            Some(end) if end <= self.profile.geometry.host_blocks() => Ok(()),
            _ => Err(CommandError::OutOfRange),
        }
    }

    /// The commands that blocks are cut into, each with the number of blocks before it.
    fn commands(&self, blocks: Blocks) -> impl Iterator<Item = (Blocks, usize)> + use<> {
        let most = self.profile.command_size_max / BLOCK_SIZE;
        (0..blocks.count.div_ceil(most)).map(move |index| {
            let skipped = index * most;
            let count = most.min(blocks.count - skipped);
            (Blocks { first: blocks.first + u64::from(skipped), count }, skipped as usize)
        })
    }

    /// The pages that a command touches.
    fn pieces(&self, command: Blocks) -> impl Iterator<Item = Piece> + use<> {
        let per_page = u64::from(self.profile.geometry.blocks_per_page());
        let end = command.first + u64::from(command.count);
        (command.first / per_page..end.div_ceil(per_page)).map(move |page| {
            let from = command.first.max(page * per_page);
            let to = end.min((page + 1) * per_page);
            Piece {
                lpn: Lpn(page as u32),
                first: (from - page * per_page) as u32,
                count: (to - from) as u32,
                before: (from - command.first) as usize,
            }
        })
    }

    /// When a write command and its data have come in.
    fn arrive(&mut self, at: Ns, command: Blocks) -> Ns {
        let pages = self.pieces(command).count() as u32;
        let taken = self.nand.time.command(at, pages);
        self.nand.time.transfer(taken, u64::from(command.count) * u64::from(BLOCK_SIZE))
    }

    /// Takes part of a page from the host, and answers when the host need wait no longer.
    fn put(&mut self, at: Ns, piece: Piece, content: &[u8], options: WriteOptions) -> Done {
        let start = piece.first as usize * self.keep.block_bytes();
        if let Some(page) = self.buffer.find_mut(piece.lpn) {
            page.mask |= piece.mask();
            page.content[start..start + content.len()].copy_from_slice(content);
            self.counters.buffer_hits += 1;
            return if options.fua { self.drain_now(at, piece.lpn) } else { Ok(at) };
        }
        let bytes = self.keep.block_bytes() * self.profile.geometry.blocks_per_page() as usize;
        let mut whole = self.buffer.content(bytes);
        whole[start..start + content.len()].copy_from_slice(content);
        let page =
            Waiting { lpn: piece.lpn, mask: piece.mask(), content: whole, handle: options.handle };
        let capacity = self.profile.buffer_pages as usize;
        if capacity == 0 || options.fua {
            return self.drain(at, page);
        }
        if !self.profile.buffer_combines {
            let now = self.buffer.wait_for_fewer(at, capacity);
            let done = self.drain(now, page)?;
            self.buffer.fly(done);
            return Ok(now);
        }
        let waiting_max = capacity / 2;
        while self.buffer.waiting_count() >= waiting_max {
            let oldest = self.buffer.pop().expect("pages wait");
            let done = self.drain(at, oldest)?;
            self.buffer.fly(done);
        }
        let now = self.buffer.wait_for_fewer(at, capacity - waiting_max + 1);
        self.buffer.insert(page);
        Ok(now)
    }

    fn drain_now(&mut self, at: Ns, lpn: Lpn) -> Done {
        let page = self.buffer.remove(lpn).expect("the caller found it");
        self.drain(at, page)
    }

    /// Puts a page on flash, with what it held before where the host did not write it.
    fn drain(&mut self, at: Ns, mut page: Waiting) -> Done {
        let blocks = self.profile.geometry.blocks_per_page();
        let full = if blocks == 64 { u64::MAX } else { (1 << blocks) - 1 };
        let (mut now, mut cause) = (at, Cause::Host);
        if page.mask != full {
            self.counters.partial_pages += 1;
            let (old, known) = self.ftl.locate(&mut self.nand, at, page.lpn)?;
            now = known;
            if let Some(old) = old {
                now = self.nand.read(known, old, Cause::Rmw)?;
                cause = Cause::Rmw;
                let bytes = self.keep.block_bytes();
                let content = self.nand.content(old);
                for block in (0..blocks as usize).filter(|block| page.mask >> block & 1 == 0) {
                    let range = block * bytes..(block + 1) * bytes;
                    page.content[range.clone()].copy_from_slice(&content[range]);
                }
            }
        }
        self.sequence += 1;
        let write = PageWrite {
            lpn: page.lpn,
            sequence: self.sequence,
            content: &page.content,
            handle: page.handle,
            cause,
        };
        let done = self.ftl.write(&mut self.nand, now, write)?;
        self.nand.untrim(page.lpn);
        self.buffer.recycle(page.content);
        Ok(done)
    }

    /// Reads part of a page, from the buffer as far as it is there.
    fn fetch(&mut self, at: Ns, piece: Piece, content: &mut [u8]) -> Done {
        let bytes = self.keep.block_bytes();
        let start = piece.first as usize * bytes;
        let end = start + piece.count as usize * bytes;
        let waiting = self.buffer.find(piece.lpn).map_or(0, |page| page.mask);
        let mut now = at;
        if waiting & piece.mask() != piece.mask() {
            let (page, known) = self.ftl.locate(&mut self.nand, at, piece.lpn)?;
            now = known;
            match page {
                Some(page) => {
                    now = self.nand.read(known, page, Cause::Host)?;
                    content.copy_from_slice(&self.nand.content(page)[start..end]);
                }
                None => content.fill(0),
            }
        }
        let Some(page) = self.buffer.find(piece.lpn) else { return Ok(now) };
        self.counters.buffer_hits += 1;
        for block in (0..piece.count).filter(|b| page.mask >> (piece.first + b) & 1 == 1) {
            let from = (piece.first + block) as usize * bytes;
            let to = block as usize * bytes;
            content[to..to + bytes].copy_from_slice(&page.content[from..from + bytes]);
        }
        Ok(now)
    }

    /// Whether anything is kept for a block: the host wrote it, or another of its page, and did not
    /// give the page up.
    ///
    /// # Panics
    /// When the drive has no such block.
    pub fn is_mapped(&self, block: u64) -> bool {
        assert!(block < self.profile.geometry.host_blocks(), "the block is on the drive");
        let lpn = Lpn((block / u64::from(self.profile.geometry.blocks_per_page())) as u32);
        self.buffer.find(lpn).is_some() || self.ftl.peek(&self.nand, lpn).is_some()
    }

    /// The profile.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The flash.
    pub fn nand(&self) -> &Nand {
        &self.nand
    }

    /// The FTL.
    pub fn ftl(&self) -> &dyn Ftl {
        &*self.ftl
    }

    /// What the host asked for.
    pub fn counters(&self) -> &DriveCounters {
        &self.counters
    }

    /// What the FTL did since power came on last.
    pub fn ftl_counters(&self) -> &FtlCounters {
        self.ftl.counters()
    }

    /// What the map needs.
    pub fn map_memory(&self) -> MapMemory {
        self.ftl.memory()
    }

    /// What is kept of each block's content.
    pub fn keep(&self) -> Keep {
        self.keep
    }

    /// When the drive has nothing left to do, unless commands come.
    pub fn idle_at(&self) -> Ns {
        self.nand.time.idle_at()
    }

    /// Time that all dies, and all channels, were in use, added up.
    pub fn busy_ns(&self) -> (Ns, Ns) {
        self.nand.time.busy_ns()
    }
}
