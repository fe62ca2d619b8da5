//! Random reads by one thread and by two, each with one request at a time, through the volume and straight
//! from the file. What two threads gain straight is what the device and the machine allow.

use super::Bench;
use crate::error::BenchError;
use crate::figures::Figures;
use crate::timing::median;
use coulter::buffer::Buffer;
use coulter::service::{Operation, Request, Session};
use coulter_device::ReadSource;
use coulter_workload::{BLOCK_SIZE, Pattern};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Threads that read.
const THREADS: [usize; 2] = [1, 2];

/// Rounds of which the median counts.
const ROUNDS: usize = 3;

/// 4 KiB random reads by a number of threads at queue depth 1, medians.
#[derive(Clone, Debug, Serialize)]
pub struct ReadThreads {
    /// Threads.
    pub threads: usize,
    /// Reads per second through the volume, all threads together.
    pub volume_iops: f64,
    /// Straight from the file; zero if that cannot be opened once more.
    pub raw_iops: f64,
    /// Volume to what one thread did through the volume.
    pub volume_gain: f64,
    /// File to what one thread did straight.
    pub raw_gain: f64,
}

pub(super) fn add_to(table: &mut Figures, threads: &[ReadThreads]) {
    for measured in threads {
        table.row(
            &format!("reads, {} threads, queue depth 1", measured.threads),
            format!("{:.1} k/s", measured.volume_iops / 1e3),
            format!(
                "{:.2} of one thread; straight {:.1} k/s, {:.2}",
                measured.volume_gain,
                measured.raw_iops / 1e3,
                measured.raw_gain
            ),
        );
    }
}

/// Measures, the sides in turns.
///
/// # Errors
/// What a read met.
pub(super) fn measure(bench: &Bench, seconds: f64) -> Result<Vec<ReadThreads>, BenchError> {
    let time = Duration::from_secs_f64(seconds);
    let blocks = bench.volume_versions.count();
    let source = bench.raw.read_source();
    let (mut volume, mut raw) = (vec![vec![]; THREADS.len()], vec![vec![]; THREADS.len()]);
    for _ in 0..ROUNDS {
        for (index, threads) in THREADS.into_iter().enumerate() {
            let sessions = (0..threads).map(|_| bench.volume.connect()).collect();
            volume[index].push(through_the_volume(sessions, blocks, time)?);
            raw[index].push(match &source {
                Some(source) => straight(source, threads, blocks, time)?,
                None => 0.0,
            });
        }
    }
    let gain = |rates: &[Vec<f64>], index: usize| {
        let ratios = rates[index].iter().zip(&rates[0]).map(|(rate, one)| rate / one.max(1.0));
        median(&ratios.collect::<Vec<_>>())
    };
    let measured = THREADS.into_iter().enumerate().map(|(index, threads)| ReadThreads {
        threads,
        volume_iops: median(&volume[index]),
        raw_iops: median(&raw[index]),
        volume_gain: gain(&volume, index),
        raw_gain: gain(&raw, index),
    });
    Ok(measured.collect())
}

/// Reads per second of all threads, each running `work` with its number.
fn together(
    count: usize,
    work: impl Fn(usize) -> Result<u64, BenchError> + Sync,
) -> Result<f64, BenchError> {
    let begun = Instant::now();
    let reads = std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || work(index))).collect();
        let ended = threads.into_iter().map(|thread| thread.join().expect("a reader ends well"));
        ended.sum::<Result<u64, BenchError>>()
    })?;
    Ok(reads as f64 / begun.elapsed().as_secs_f64())
}

fn through_the_volume(
    sessions: Vec<Box<dyn Session + Send>>,
    blocks: u64,
    time: Duration,
) -> Result<f64, BenchError> {
    let sessions: Vec<_> =
        sessions.into_iter().map(|one| std::sync::Mutex::new(Some(one))).collect();
    together(sessions.len(), |index| {
        let session = sessions[index].lock().ok().and_then(|mut session| session.take());
        let mut session = session.expect("each thread has its own");
        let mut addresses = Pattern::Uniform.over(blocks, 20 + index as u64);
        let (mut buffer, mut completions) = (Buffer::zeroed(BLOCK_SIZE), Vec::new());
        let (begun, mut reads) = (Instant::now(), 0);
        while begun.elapsed() < time {
            let (offset, length) = (addresses.address() * BLOCK_SIZE as u64, BLOCK_SIZE as u64);
            session.submit(Request { tag: 0, operation: Operation::Read, offset, length, buffer });
            session.complete(&mut completions, None);
            let completion = completions.pop().expect("it waits for the only one");
            completion.result.map_err(BenchError::Request)?;
            (buffer, reads) = (completion.buffer, reads + 1);
        }
        Ok(reads)
    })
}

#[expect(unsafe_code, reason = "a device takes memory by pointer")]
fn straight(
    source: &ReadSource,
    threads: usize,
    blocks: u64,
    time: Duration,
) -> Result<f64, BenchError> {
    together(threads, |index| {
        let mut addresses = Pattern::Uniform.over(blocks, 30 + index as u64);
        let mut buffer = Buffer::zeroed(BLOCK_SIZE);
        let (begun, mut reads) = (Instant::now(), 0);
        while begun.elapsed() < time {
            let offset = addresses.address() * BLOCK_SIZE as u64;
            let memory = buffer.as_mut_pointer();
            // SAFETY: the buffer is this thread's own.
            unsafe { source.read_at(memory, BLOCK_SIZE, offset) }.map_err(BenchError::Device)?;
            reads += 1;
        }
        Ok(reads)
    })
}
