//! The two sides of a comparison: a volume, and the bare file. One load drives either of them, so
//! whatever the load itself costs, it costs both.

mod raw;
mod versions;
mod volume;

pub(crate) use raw::RawSide;
pub(crate) use versions::Versions;
pub(crate) use volume::VolumeSide;

use crate::error::BenchError;
use crate::timing::CpuClock;
use coulter_workload::{Addresses, BLOCK_SIZE, Content, Origin};
use std::time::{Duration, Instant};

/// Bytes of the largest request of a load.
pub(crate) const REQUEST_SIZE_MAX: usize = 1 << 20;

/// The first slots take requests of [`REQUEST_SIZE_MAX`]; the others those of a block.
pub(crate) const LARGE_SLOTS: usize = 4;

/// Bytes of a slot's memory.
pub(crate) fn slot_size(slot: usize) -> usize {
    if slot < LARGE_SLOTS { REQUEST_SIZE_MAX } else { BLOCK_SIZE }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Something with blocks that takes many requests at a time. Requests are named by slots, each with
/// memory of its own.
pub(crate) trait Side {
    /// The memory of a slot that has no request out.
    fn memory(&mut self, slot: usize) -> &mut [u8];

    /// Queues a request on the first `length` bytes of the slot's memory.
    fn submit(&mut self, slot: usize, access: Access, offset: u64, length: usize);

    /// Starts what is queued, waits until a request has ended, and adds the slots of all that have.
    ///
    /// # Errors
    /// What a request met.
    fn wait(&mut self, done: &mut Vec<usize>) -> Result<(), BenchError>;

    /// Makes durable what was written. No request is out.
    ///
    /// # Errors
    /// What the flush met.
    fn flush(&mut self) -> Result<(), BenchError>;
}

/// What to do, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) access: Access,
    /// Blocks of a request.
    pub(crate) count: u64,
    /// Requests out at once.
    pub(crate) depth: usize,
    pub(crate) limit: Limit,
    pub(crate) data: Data,
}

/// When the bytes of a write are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// Whole blocks, for each write, in its time.
    Filled,
    /// Before the load begins, once for each slot; a write only stamps them.
    Stamped,
}

/// When a load ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    Time(Duration),
    Requests(u64),
}

/// What a load came to, the flush at its end included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
    /// The longest time in which no request ended though some were out.
    pub(crate) longest_stall: f64,
    /// CPU time of the process.
    pub(crate) cpu_seconds: f64,
}

impl Outcome {
    pub(crate) fn per_second(&self) -> f64 {
        self.requests as f64 / self.seconds
    }

    /// Microseconds of CPU time for each request.
    pub(crate) fn cpu_us(&self) -> f64 {
        self.cpu_seconds * 1e6 / self.requests as f64
    }
}

/// Runs a load. Addresses are those of requests: they are multiplied by the blocks of one. No two
/// requests on the same blocks are out at once, since their order would be anybody's guess.
///
/// # Errors
/// What a request met.
pub(crate) fn run(
    side: &mut dyn Side,
    load: &Load,
    addresses: &mut Addresses,
    versions: &mut Versions,
    content: &Content,
) -> Result<Outcome, BenchError> {
    run_watched(side, load, addresses, versions, content, |_| ())
}

/// The same, and tells how long each request took.
///
/// # Errors
/// What a request met.
pub(crate) fn run_watched(
    side: &mut dyn Side,
    load: &Load,
    addresses: &mut Addresses,
    versions: &mut Versions,
    content: &Content,
    mut took: impl FnMut(Duration),
) -> Result<Outcome, BenchError> {
    let length = load.count as usize * BLOCK_SIZE;
    let mut idle: Vec<usize> = (0..load.depth).collect();
    let mut places = vec![u64::MAX; load.depth];
    let mut begun = vec![Instant::now(); load.depth];
    let mut done = Vec::with_capacity(load.depth);
    if load.access == Access::Write && load.data == Data::Stamped {
        prepare(side, load, content);
    }
    let (mut submitted, mut ended) = (0, 0);
    let mut longest_stall = Duration::ZERO;
    let (start, cpu) = (Instant::now(), CpuClock::start_of_process());
    let mut latest = start;
    loop {
        let goes_on = match load.limit {
            Limit::Time(time) => latest - start < time,
            Limit::Requests(count) => submitted < count,
        };
        while goes_on && let Some(slot) = idle.pop() {
            let place = free_address(addresses, &places);
            places[slot] = place;
            let first = place * load.count;
            if load.access == Access::Write {
                let memory = side.memory(slot);
                match load.data {
                    Data::Filled => fill(memory, first, load.count, versions, content),
                    Data::Stamped => stamp(memory, slot, first, load.count, versions, content),
                }
            }
            begun[slot] = latest;
            side.submit(slot, load.access, first * BLOCK_SIZE as u64, length);
            submitted += 1;
            if matches!(load.limit, Limit::Requests(count) if submitted == count) {
                break;
            }
        }
        if idle.len() == load.depth {
            break;
        }
        side.wait(&mut done)?;
        let now = Instant::now();
        longest_stall = longest_stall.max(now - latest);
        latest = now;
        ended += done.len() as u64;
        for slot in done.drain(..) {
            took(now - begun[slot]);
            places[slot] = u64::MAX;
            idle.push(slot);
        }
    }
    if load.access == Access::Write {
        side.flush()?;
    }
    Ok(Outcome {
        requests: ended,
        seconds: start.elapsed().as_secs_f64(),
        longest_stall: longest_stall.as_secs_f64(),
        cpu_seconds: cpu.seconds(),
    })
}

/// An address that no request is out for. There are far more addresses than requests.
fn free_address(addresses: &mut Addresses, places: &[u64]) -> u64 {
    assert!(addresses.range() > 2 * places.len() as u64, "more addresses than requests");
    loop {
        let address = addresses.address();
        if !places.contains(&address) {
            return address;
        }
    }
}

fn fill(memory: &mut [u8], first: u64, count: u64, versions: &mut Versions, content: &Content) {
    let (blocks, _) = memory.as_chunks_mut::<BLOCK_SIZE>();
    for (block, bytes) in (first..first + count).zip(blocks) {
        let version = versions.written(block);
        content.fill(bytes, Origin { block, version });
    }
}

/// Fills the memory of all slots, for blocks that are only stamped later.
fn prepare(side: &mut dyn Side, load: &Load, content: &Content) {
    for slot in 0..load.depth {
        let (blocks, _) = side.memory(slot).as_chunks_mut::<BLOCK_SIZE>();
        assert!(blocks.len() as u64 >= load.count, "a request fits into its slot");
        for (index, bytes) in blocks.iter_mut().take(load.count as usize).enumerate() {
            content.prepare(bytes, number(slot, index));
        }
    }
}

/// The number of one block in a slot's memory. Every slot has numbers for the largest request.
fn number(slot: usize, index: usize) -> u32 {
    (slot * (REQUEST_SIZE_MAX / BLOCK_SIZE) + index) as u32
}

fn stamp(
    memory: &mut [u8],
    slot: usize,
    first: u64,
    count: u64,
    versions: &mut Versions,
    content: &Content,
) {
    let (blocks, _) = memory.as_chunks_mut::<BLOCK_SIZE>();
    for (index, (block, bytes)) in (first..first + count).zip(blocks).enumerate() {
        let version = versions.written(block);
        content.stamp(bytes, Origin { block, version }, number(slot, index));
    }
}

/// Writes every block once, in order.
///
/// # Errors
/// What a request met.
pub(crate) fn write_all(
    side: &mut dyn Side,
    versions: &mut Versions,
    content: &Content,
    mut told: impl FnMut(f64),
) -> Result<(), BenchError> {
    let (mut idle, mut done): (Vec<usize>, _) = ((0..LARGE_SLOTS).collect(), Vec::new());
    let step = (REQUEST_SIZE_MAX / BLOCK_SIZE) as u64;
    let mut next = 0;
    loop {
        while next < versions.count()
            && let Some(slot) = idle.pop()
        {
            let count = step.min(versions.count() - next);
            fill(side.memory(slot), next, count, versions, content);
            let offset = next * BLOCK_SIZE as u64;
            side.submit(slot, Access::Write, offset, count as usize * BLOCK_SIZE);
            next += count;
        }
        if idle.len() == LARGE_SLOTS {
            break;
        }
        side.wait(&mut done)?;
        idle.append(&mut done);
        told(next as f64 / versions.count() as f64);
    }
    side.flush()
}

/// Reads every block, in order, and compares it with what was written last. Returns how many did
/// not match.
///
/// # Errors
/// What a request met.
pub(crate) fn verify_all(
    side: &mut dyn Side,
    versions: &Versions,
    content: &Content,
    mut told: impl FnMut(f64),
) -> Result<u64, BenchError> {
    let (mut idle, mut done): (Vec<usize>, _) = ((0..LARGE_SLOTS).collect(), Vec::new());
    let mut firsts = [0; LARGE_SLOTS];
    let step = (REQUEST_SIZE_MAX / BLOCK_SIZE) as u64;
    let (mut next, mut mismatches) = (0, 0);
    loop {
        while next < versions.count()
            && let Some(slot) = idle.pop()
        {
            let count = step.min(versions.count() - next);
            firsts[slot] = next;
            let offset = next * BLOCK_SIZE as u64;
            side.submit(slot, Access::Read, offset, count as usize * BLOCK_SIZE);
            next += count;
        }
        if idle.len() == LARGE_SLOTS {
            return Ok(mismatches);
        }
        side.wait(&mut done)?;
        for slot in done.drain(..) {
            let first = firsts[slot];
            let end = (first + step).min(versions.count());
            let (blocks, _) = side.memory(slot).as_chunks::<BLOCK_SIZE>();
            for (block, bytes) in (first..end).zip(blocks) {
                let expected = Origin { block, version: versions.latest(block) };
                let found = content.origin(bytes).or_else(|| content.stamped_origin(bytes));
                mismatches += u64::from(found != Some(expected));
            }
            idle.push(slot);
        }
        told(next as f64 / versions.count() as f64);
    }
}
