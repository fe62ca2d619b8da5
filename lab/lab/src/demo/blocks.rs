//! Blocks that know who they are: each holds its address, the *sequence number* of the write that
//! put it there, and content that follows from both. So any block can be judged by itself, and
//! after a crash the whole volume can be: it must equal the state after some prefix of the writes,
//! and that prefix must hold every write that was flushed.
//!
//! Invariant: of one block at most one write is under way, so that the order of the writes to it
//! is the order of their sequence numbers.

use super::content::{self, Random};
use super::plan::failed;
use crate::error::LabError;
use coulter::buffer::Buffer;
use coulter::service::{BLOCK_SIZE, Completion, Operation, Request, RequestError, Session};
use coulter_cli::interrupt::Interrupt;
use std::time::{Duration, Instant};

/// 4 KiB requests under way at once.
pub(crate) const QUEUE_DEPTH: usize = 32;

/// Bytes of a request that fills or reads back.
const PIECE_SIZE: u64 = 1 << 20;

/// Pieces under way at once.
const PIECE_DEPTH: usize = 4;

/// Completed writes between two flushes, while a crash is near.
const FLUSH_INTERVAL: u64 = 1000;

/// The tag of a flush; other tags are slots.
const FLUSH_TAG: u64 = u64::MAX;

/// Everything that was written, in order.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    count: u64,
    /// The block that each write went to; write number 1 is the first.
    journal: Vec<u32>,
    /// How many of the writes must survive any crash.
    durable: usize,
    random: Random,
}

/// What a pass over all blocks found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// Bytes that were compared.
    pub(crate) bytes: u64,
    /// Blocks that are not what they have to be.
    pub(crate) mismatches: u64,
    /// Writes that are in the prefix of writes that the volume holds.
    pub(crate) prefix: usize,
}

/// A stretch of random writes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// Writes that completed.
    pub(crate) completed: u64,
    /// How long it took.
    pub(crate) elapsed: Duration,
}

impl Load {
    /// Writes per second.
    pub(crate) fn iops(&self) -> f64 {
        self.completed as f64 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }
}

impl Blocks {
    /// `count` blocks that were never written.
    pub(crate) fn new(count: u64, seed: u64) -> Blocks {
        assert!(count <= u64::from(u32::MAX), "a demonstration stays below 16 TiB");
        assert!(count.is_multiple_of(PIECE_SIZE / BLOCK_SIZE), "the size is whole pieces");
        Blocks { count, journal: Vec::new(), durable: 0, random: Random::new(seed) }
    }

    /// Writes so far.
    #[cfg(test)]
    pub(crate) fn written(&self) -> usize {
        self.journal.len()
    }

    /// Writes that must survive any crash.
    pub(crate) fn durable(&self) -> usize {
        self.durable
    }

    /// Writes every block once, in large pieces, and flushes.
    ///
    /// # Errors
    /// When a request fails; when interrupted.
    pub(crate) fn fill(
        &mut self,
        target: &mut dyn Session,
        interrupt: &Interrupt,
    ) -> Result<(), LabError> {
        let before = self.journal.len() as u64;
        self.journal.extend(0..self.count as u32);
        let mut stamp_all = |first: u64, bytes: &mut [u8]| {
            for (address, block) in (first..).zip(bytes.chunks_mut(BLOCK_SIZE as usize)) {
                stamp(address, before + address + 1, block);
            }
        };
        let write = Operation::Write { fua: false };
        pieces(self.count, target, interrupt, write, &mut stamp_all, &mut |_, _| ())?;
        flush(target)?;
        self.durable = self.journal.len();
        Ok(())
    }

    /// Reads every block and compares the volume with the state after a prefix of the writes: all
    /// of them, or after a crash as many as the newest block found stands for.
    ///
    /// # Errors
    /// When a request fails; when interrupted.
    pub(crate) fn compare(
        &self,
        target: &mut dyn Session,
        interrupt: &Interrupt,
        crashed: bool,
    ) -> Result<Findings, LabError> {
        let mut found = vec![0_u64; self.count as usize];
        let mut look = |first: u64, bytes: &mut [u8]| {
            for (address, block) in (first..).zip(bytes.chunks(BLOCK_SIZE as usize)) {
                // 0 is no write's number, so a damaged block differs from whatever is expected.
                found[address as usize] = sequence_of(address, block).unwrap_or(0);
            }
        };
        pieces(self.count, target, interrupt, Operation::Read, &mut |_, _| (), &mut look)?;
        let newest = found.iter().max().map_or(0, |sequence| *sequence as usize);
        let prefix = if crashed { newest } else { self.journal.len() };
        let expected = self.state_after(prefix);
        let differ = found.iter().zip(&expected).filter(|(found, expected)| found != expected);
        let mismatches = differ.count() as u64;
        Ok(Findings { bytes: self.count * BLOCK_SIZE, mismatches, prefix })
    }

    /// The number of the last write to each block among the first `prefix` writes.
    fn state_after(&self, prefix: usize) -> Vec<u64> {
        let mut state = vec![0; self.count as usize];
        for (sequence, block) in (1..).zip(self.journal.iter().take(prefix)) {
            state[*block as usize] = sequence;
        }
        state
    }

    /// Writes blocks at random for `time`.
    ///
    /// # Errors
    /// When a request fails; when interrupted.
    pub(crate) fn overwrite(
        &mut self,
        target: &mut dyn Session,
        interrupt: &Interrupt,
        time: Duration,
    ) -> Result<Load, LabError> {
        let mut run = Run::new(self, None);
        while run.begin.elapsed() < time {
            interrupt.check()?;
            run.step(target);
            run.error
                .map_or(Ok(()), |error| Err(failed("writing at random", error.to_string())))?;
        }
        let load = run.load();
        run.drain(target);
        match run.error {
            Some(error) => Err(failed("writing at random", error.to_string())),
            None => Ok(load),
        }
    }

    /// Writes blocks at random, and flushes now and then, until requests fail. After `time`, in the
    /// middle of all that, calls `crash` once.
    ///
    /// # Errors
    /// When requests fail before the crash; when interrupted.
    pub(crate) fn overwrite_until_crash(
        &mut self,
        target: &mut dyn Session,
        interrupt: &Interrupt,
        time: Duration,
        crash: &mut dyn FnMut() -> Result<(), LabError>,
    ) -> Result<Load, LabError> {
        let mut run = Run::new(self, Some(FLUSH_INTERVAL));
        let mut crashed = false;
        while run.error.is_none() {
            interrupt.check()?;
            if !crashed && run.begin.elapsed() >= time {
                crash()?;
                crashed = true;
            }
            run.step(target);
        }
        let load = run.load();
        run.drain(target);
        match run.error {
            Some(error) if !crashed => Err(failed("writing under load", error.to_string())),
            _ => Ok(load),
        }
    }
}

/// Random writes under way.
struct Run<'a> {
    blocks: &'a mut Blocks,
    /// The block and the number of the write in each slot.
    flights: Vec<Option<(u32, usize)>>,
    buffers: Vec<Buffer>,
    done: Vec<Completion>,
    begin: Instant,
    completed: u64,
    newest_completed: usize,
    flush: Option<FlushState>,
    error: Option<RequestError>,
}

/// When the next flush is due, and what one under way makes durable.
struct FlushState {
    interval: u64,
    next_at: u64,
    covers: Option<usize>,
}

impl<'a> Run<'a> {
    fn new(blocks: &'a mut Blocks, flush_interval: Option<u64>) -> Run<'a> {
        Run {
            blocks,
            flights: vec![None; QUEUE_DEPTH],
            buffers: (0..QUEUE_DEPTH).map(|_| Buffer::zeroed(BLOCK_SIZE as usize)).collect(),
            done: Vec::new(),
            begin: Instant::now(),
            completed: 0,
            newest_completed: 0,
            flush: flush_interval.map(|interval| FlushState {
                interval,
                next_at: interval,
                covers: None,
            }),
            error: None,
        }
    }

    fn load(&self) -> Load {
        Load { completed: self.completed, elapsed: self.begin.elapsed() }
    }

    /// Fills the queue and takes what has completed.
    fn step(&mut self, target: &mut dyn Session) {
        for slot in 0..QUEUE_DEPTH {
            if self.flights[slot].is_none() {
                self.write(target, slot);
            }
        }
        self.flush_if_due(target);
        self.take(target);
    }

    fn write(&mut self, target: &mut dyn Session, slot: usize) {
        let Some(mut buffer) = self.buffers.pop() else { return };
        let block = loop {
            let block = self.blocks.random.below(self.blocks.count) as u32;
            if !self.flights.iter().flatten().any(|(other, _)| *other == block) {
                break block;
            }
        };
        self.blocks.journal.push(block);
        let sequence = self.blocks.journal.len();
        stamp(u64::from(block), sequence as u64, &mut buffer);
        self.flights[slot] = Some((block, sequence));
        target.submit(Request {
            tag: slot as u64,
            operation: Operation::Write { fua: false },
            offset: u64::from(block) * BLOCK_SIZE,
            length: BLOCK_SIZE,
            buffer,
        });
    }

    fn flush_if_due(&mut self, target: &mut dyn Session) {
        let (completed, newest) = (self.completed, self.newest_completed);
        let Some(flush) = &mut self.flush else { return };
        if flush.covers.is_some() || completed < flush.next_at {
            return;
        }
        // What completed is durable after the flush; and since a volume only ever goes back to a
        // prefix, so is every write before it.
        flush.covers = Some(newest);
        flush.next_at = completed + flush.interval;
        target.submit(flush_request());
    }

    fn take(&mut self, target: &mut dyn Session) {
        let mut done = std::mem::take(&mut self.done);
        target.complete(&mut done, None);
        for completion in done.drain(..) {
            self.settle(completion);
        }
        self.done = done;
    }

    fn settle(&mut self, completion: Completion) {
        if let Err(error) = completion.result {
            self.error.get_or_insert(error);
        }
        let is_ok = completion.result.is_ok();
        if completion.tag == FLUSH_TAG {
            let covers = self.flush.as_mut().and_then(|flush| flush.covers.take());
            if let (true, Some(covers)) = (is_ok, covers) {
                self.blocks.durable = self.blocks.durable.max(covers);
            }
            return;
        }
        let flight = self.flights[completion.tag as usize].take();
        let (_, sequence) = flight.expect("a write completes once");
        self.buffers.push(completion.buffer);
        if is_ok {
            self.completed += 1;
            self.newest_completed = self.newest_completed.max(sequence);
        }
    }

    /// Waits for what is under way.
    fn drain(&mut self, target: &mut dyn Session) {
        let flushing =
            |flush: &Option<FlushState>| flush.as_ref().is_some_and(|flush| flush.covers.is_some());
        while self.flights.iter().any(Option::is_some) || flushing(&self.flush) {
            self.take(target);
        }
    }
}

/// Goes over all blocks in large pieces from start to end. `before` is given each piece's first
/// block and its bytes before they are submitted, `after` when they have come back.
fn pieces(
    count: u64,
    target: &mut dyn Session,
    interrupt: &Interrupt,
    operation: Operation,
    before: &mut dyn FnMut(u64, &mut [u8]),
    after: &mut dyn FnMut(u64, &mut [u8]),
) -> Result<(), LabError> {
    let blocks_each = PIECE_SIZE / BLOCK_SIZE;
    let mut buffers: Vec<Buffer> =
        (0..PIECE_DEPTH).map(|_| Buffer::zeroed(PIECE_SIZE as usize)).collect();
    let mut waiting = (0..count).step_by(blocks_each as usize);
    let mut under_way = 0;
    let mut done = Vec::new();
    loop {
        interrupt.check()?;
        while let Some(mut buffer) = buffers.pop() {
            let Some(first) = waiting.next() else { break };
            before(first, &mut buffer);
            let (offset, length) = (first * BLOCK_SIZE, PIECE_SIZE);
            target.submit(Request { tag: first, operation, offset, length, buffer });
            under_way += 1;
        }
        if under_way == 0 {
            return Ok(());
        }
        target.complete(&mut done, None);
        for mut completion in done.drain(..) {
            under_way -= 1;
            completion
                .result
                .map_err(|error| failed("going over all blocks", error.to_string()))?;
            after(completion.tag, &mut completion.buffer);
            buffers.push(completion.buffer);
        }
    }
}

fn flush_request() -> Request {
    let (offset, length, buffer) = (0, 0, Buffer::empty());
    Request { tag: FLUSH_TAG, operation: Operation::Flush, offset, length, buffer }
}

fn flush(target: &mut dyn Session) -> Result<(), LabError> {
    target.submit(flush_request());
    let mut done = Vec::new();
    while done.is_empty() {
        target.complete(&mut done, None);
    }
    match done[0].result {
        Ok(()) => Ok(()),
        Err(error) => Err(failed("flushing", error.to_string())),
    }
}

/// Makes `block` the one that the write `sequence` puts at `address`.
fn stamp(address: u64, sequence: u64, block: &mut [u8]) {
    let (head, rest) = block.split_at_mut(16);
    head[..8].copy_from_slice(&address.to_le_bytes());
    head[8..].copy_from_slice(&sequence.to_le_bytes());
    content::fill(seed_of(address, sequence), rest);
}

/// The write that `block` is from, if it is wholly what that write put at `address`.
fn sequence_of(address: u64, block: &[u8]) -> Option<u64> {
    let (head, rest) = block.split_at_checked(16)?;
    let number = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
    let sequence = number(&head[8..])?;
    let is_right =
        number(&head[..8])? == address && content::is_whole(seed_of(address, sequence), rest);
    is_right.then_some(sequence)
}

fn seed_of(address: u64, sequence: u64) -> u64 {
    address.rotate_left(32) ^ sequence
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter_bench::BareSession;
    use coulter_device::MemoryStore;

    const COUNT: u64 = 1024;

    fn target(store: &MemoryStore) -> BareSession {
        BareSession::new(Box::new(store.open().expect("nobody has it open")))
            .expect("a descriptor can be had")
    }

    fn filled() -> (MemoryStore, Blocks) {
        let store = MemoryStore::new(COUNT * BLOCK_SIZE);
        let mut blocks = Blocks::new(COUNT, 1);
        blocks.fill(&mut target(&store), &Interrupt::default()).expect("memory does not fail");
        (store, blocks)
    }

    fn compare(store: &MemoryStore, blocks: &Blocks, crashed: bool) -> Findings {
        blocks
            .compare(&mut target(store), &Interrupt::default(), crashed)
            .expect("memory does not fail")
    }

    fn write(store: &MemoryStore, address: u64, bytes: &[u8]) {
        let mut device = store.open().expect("nobody has it open");
        let mut memory = coulter_device::AlignedMemory::zeroed(BLOCK_SIZE as usize);
        memory.copy_from_slice(bytes);
        coulter_device::blocking::write(&mut device, address * BLOCK_SIZE, &mut memory)
            .expect("memory does not fail");
    }

    #[test]
    fn what_was_written_is_found_right() {
        let (store, mut blocks) = filled();
        let time = Duration::from_millis(50);
        let load = blocks
            .overwrite(&mut target(&store), &Interrupt::default(), time)
            .expect("memory does not fail");
        assert!(load.completed > 0);
        let findings = compare(&store, &blocks, false);
        assert_eq!((findings.bytes, findings.mismatches), (COUNT * BLOCK_SIZE, 0));
    }

    #[test]
    fn a_flipped_bit_a_misplaced_block_and_a_stale_block_are_mismatches() {
        let (store, mut blocks) = filled();
        let mut block = vec![0; BLOCK_SIZE as usize];
        stamp(5, 6, &mut block);
        block[4000] ^= 1;
        write(&store, 5, &block);
        stamp(8, 9, &mut block);
        write(&store, 7, &block);
        // Block 9 was written again, but the write never reached the memory.
        blocks.journal.push(9);
        assert_eq!(compare(&store, &blocks, false).mismatches, 3);
    }

    #[test]
    fn after_a_crash_any_prefix_is_right_and_a_gap_is_not() {
        let (store, mut blocks) = filled();
        let first = blocks.written();
        blocks.journal.extend([3, 4, 5]);
        assert_eq!(compare(&store, &blocks, true), Findings { prefix: first, ..all_right() });
        let mut block = vec![0; BLOCK_SIZE as usize];
        stamp(3, first as u64 + 1, &mut block);
        write(&store, 3, &block);
        assert_eq!(compare(&store, &blocks, true), Findings { prefix: first + 1, ..all_right() });
        // The third of them without the second.
        stamp(5, first as u64 + 3, &mut block);
        write(&store, 5, &block);
        assert_eq!(compare(&store, &blocks, true).mismatches, 1);
    }

    fn all_right() -> Findings {
        Findings { bytes: COUNT * BLOCK_SIZE, mismatches: 0, prefix: 0 }
    }

    #[test]
    fn only_what_a_completed_flush_covers_counts_as_durable() {
        let (store, mut blocks) = filled();
        let before = blocks.durable();
        let mut plain = target(&store);
        let mut run = Run::new(&mut blocks, Some(10));
        while run.completed < 100 {
            run.step(&mut plain);
        }
        run.drain(&mut plain);
        let newest = run.newest_completed;
        assert!(blocks.durable() > before);
        assert!(blocks.durable() <= newest);
    }
}
