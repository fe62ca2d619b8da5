//! How fast a volume is on a file, beside the same file without one.
//!
//! ```text
//! cargo run --release -p coulter --example speed -- DIRECTORY [MIB] [SECONDS] [PHASE…]
//! ```
//! makes a store of so many MiB (2048) in a file in the directory, runs each phase for so many
//! seconds (3), and removes the file. Phases: `raw-write`, `raw-read`, `raw-sequential`, `write`,
//! `read`, `sequential`, and the last three with `local-` before them: on a volume without a thread of
//! its own; all of them if none is named. `write:3` gathers writes while three records are under way,
//! `write@1024` has so many requests out at once instead of 32; `format` makes the store anew,
//! `format:200` with so many percent of spare space. `memory` as directory measures without a disk.

use coulter::buffer::Buffer;
use coulter::service::{BlockService, Operation, Request, Session};
use coulter::{CreateOptions, LocalVolume, OpenOptions, Statistics, Volume, create};
use coulter_device::{self as device, AlignedMemory, Command, Device, MemoryStore, Wait};
use coulter_workload::Random;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

type Error = Box<dyn std::error::Error>;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const DEPTH: usize = 32;

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let directory = arguments.first().ok_or("DIRECTORY [MIB] [SECONDS] [PHASE…]")?;
    let size = arguments.get(1).map_or(Ok(2048), |text| text.parse::<u64>())? * MIB;
    let seconds = arguments.get(2).map_or(Ok(3.0), |text| text.parse::<f64>())?;
    let mut bench = Bench::new(directory, size, Duration::from_secs_f64(seconds))?;
    let all = [
        "raw-write",
        "raw-sequential",
        "write",
        "local-write",
        "sequential",
        "local-sequential",
        "raw-read",
        "read",
        "local-read",
    ]
    .map(String::from);
    let phases = if arguments.len() > 3 { &arguments[3..] } else { &all[..] };
    phases.iter().try_for_each(|phase| bench.run(phase))
}

/// Where the store is.
enum Place {
    File(PathBuf),
    Memory(MemoryStore),
}

/// Requests, bytes, time, processor time of all threads, remarks.
type Measured = (u64, u64, Duration, Duration, String);

struct Bench {
    place: Place,
    size: u64,
    time: Duration,
    random: Random,
    is_formatted: bool,
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Place::File(path) = &self.place {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Bench {
    fn new(directory: &str, size: u64, time: Duration) -> Result<Bench, Error> {
        let place = if directory == "memory" {
            Place::Memory(MemoryStore::new(size))
        } else {
            let path = Path::new(directory).join("coulter-speed.store");
            let options = device::OpenOptions { create_size: Some(size), ..Default::default() };
            let mut device = device::open_path(&path, &options)?;
            // Written once, so that no phase pays for finding room.
            fill(&mut *device, size);
            Place::File(path)
        };
        Ok(Bench { place, size, time, random: Random::new(1), is_formatted: false })
    }

    fn device(&self) -> Result<Box<dyn Device>, Error> {
        Ok(match &self.place {
            Place::File(path) => device::open_path(path, &device::OpenOptions::default())?,
            Place::Memory(store) => Box::new(store.open()?),
        })
    }

    fn run(&mut self, phase: &str) -> Result<(), Error> {
        if let Some(options) = phase.strip_prefix("format") {
            let spare = options.strip_prefix(':').map(str::parse).transpose()?;
            let default = CreateOptions::default();
            let spare_percent = spare.unwrap_or(default.spare_percent);
            create(self.device()?, &CreateOptions { spare_percent, ..default })?;
            self.is_formatted = true;
            return Ok(());
        }
        let (count, bytes, elapsed, cpu, note) = match phase {
            "raw-write" | "raw-read" | "raw-sequential" => {
                self.is_formatted = false;
                self.raw(phase)?
            }
            volume => {
                if !self.is_formatted {
                    self.run("format")?;
                }
                self.volume(volume)?
            }
        };
        let seconds = elapsed.as_secs_f64();
        println!(
            "{phase:15} {:8.0} requests/s {:7.1} MiB/s {:6.2} us of CPU each {note}",
            count as f64 / seconds,
            bytes as f64 / seconds / MIB as f64,
            cpu.as_secs_f64() * 1e6 / count as f64,
        );
        Ok(())
    }

    /// Requests straight to the device.
    fn raw(&mut self, phase: &str) -> Result<Measured, Error> {
        let mut device = self.device()?;
        let length = if phase == "raw-sequential" { MIB } else { BLOCK };
        let depth = if phase == "raw-sequential" { 4 } else { DEPTH };
        let mut memory = AlignedMemory::zeroed(length as usize * depth);
        for chunk in memory.chunks_mut(8) {
            chunk.copy_from_slice(&self.random.bits().to_le_bytes());
        }
        let mut completions = Vec::new();
        let (mut count, mut position) = (0, 0);
        let mut idle: Vec<u64> = (0..depth as u64).collect();
        let (begun, cpu_begun) = (Instant::now(), cpu_time());
        while begun.elapsed() < self.time || idle.len() < depth {
            while begun.elapsed() < self.time
                && let Some(tag) = idle.pop()
            {
                let slots = self.size / length;
                position =
                    if phase == "raw-sequential" { position + 1 } else { self.random.bits() };
                let offset = position % slots * length;
                let start = memory.as_mut_pointer().wrapping_add((tag * length) as usize);
                let command = match phase {
                    "raw-read" => Command::read(tag, offset, length, start),
                    _ => Command::write(tag, offset, length, start),
                };
                // SAFETY: each tag has its own part of the memory, which outlives the device.
                unsafe { device.submit(command) };
            }
            device.poll(&mut completions, Wait::Forever)?;
            for completion in completions.drain(..) {
                completion.result?;
                idle.push(completion.tag);
                count += 1;
            }
        }
        let (elapsed, cpu) = (begun.elapsed(), cpu_time() - cpu_begun);
        drop(device);
        Ok((count, count * length, elapsed, cpu, String::new()))
    }

    /// Requests through a volume.
    fn volume(&mut self, phase: &str) -> Result<Measured, Error> {
        let (phase, batch_depth) = match phase.split_once(':') {
            Some((phase, depth)) => (phase, depth.parse()?),
            None => (phase, OpenOptions::default().batch_depth),
        };
        let (phase, depth) = match phase.split_once('@') {
            Some((phase, depth)) => (phase, depth.parse()?),
            None => (phase, if phase.ends_with("sequential") { 4 } else { DEPTH }),
        };
        let options = OpenOptions { batch_depth, ..OpenOptions::default() };
        if let Some(phase) = phase.strip_prefix("local-") {
            let volume = LocalVolume::open(self.device()?, options)?;
            let session = volume.connect();
            let measured =
                self.load((phase, depth), volume.size(), session, &|| volume.statistics())?;
            volume.close()?;
            return Ok(measured);
        }
        let volume = Volume::open(self.device()?, options)?;
        let session = volume.connect();
        let measured =
            self.load((phase, depth), volume.size(), session, &|| volume.statistics())?;
        volume.close()?;
        Ok(measured)
    }

    /// Requests through a session.
    fn load(
        &mut self,
        (phase, depth): (&str, usize),
        size: u64,
        mut session: Box<dyn Session + '_>,
        statistics: &dyn Fn() -> Statistics,
    ) -> Result<Measured, Error> {
        let length = if phase == "sequential" { MIB } else { BLOCK };
        let slots = size / length;
        let is_read = match phase {
            "read" => true,
            "write" | "sequential" => false,
            other => return Err(format!("{other} is no phase").into()),
        };
        let mut completions = Vec::new();
        if is_read {
            // Only what was written comes from the device.
            for offset in (0..size / MIB).map(|index| index * MIB) {
                let buffer = Buffer::copied_from(&vec![7; MIB as usize]);
                let operation = Operation::Write { fua: false };
                session.submit(Request { tag: 0, operation, offset, length: MIB, buffer });
                session.complete(&mut completions, None);
            }
            while session.outstanding() > 0 {
                session.complete(&mut completions, None);
            }
            completions.drain(..).try_for_each(|completion| completion.result)?;
        }
        let before = statistics();
        let mut buffers: Vec<Buffer> =
            (0..depth).map(|_| Buffer::copied_from(&vec![5; length as usize])).collect();
        let (mut count, mut position) = (0, 0);
        let (begun, cpu_begun) = (Instant::now(), cpu_time());
        while begun.elapsed() < self.time || buffers.len() < depth {
            if begun.elapsed() < self.time {
                while let Some(buffer) = buffers.pop() {
                    position =
                        if phase == "sequential" { position + 1 } else { self.random.bits() };
                    let offset = position % slots * length;
                    let operation =
                        if is_read { Operation::Read } else { Operation::Write { fua: false } };
                    session.submit(Request { tag: 0, operation, offset, length, buffer });
                }
            }
            session.complete(&mut completions, None);
            for completion in completions.drain(..) {
                completion.result?;
                buffers.push(completion.buffer);
                count += 1;
            }
        }
        let (elapsed, cpu) = (begun.elapsed(), cpu_time() - cpu_begun);
        let after = statistics();
        let latency = if is_read { after.read_latency } else { after.write_latency };
        let turns = after.event_loop.turns - before.event_loop.turns;
        let written = after.written.total_bytes() - before.written.total_bytes();
        let records = after.log.records - before.log.records;
        let host = after.written.host_bytes - before.written.host_bytes;
        let note = format!(
            "p50 {} us, p99 {} us, max {} us; {:.1} requests/turn; written {:.3}; {} KiB/record",
            latency.p50_ns / 1000,
            latency.p99_ns / 1000,
            latency.max_ns / 1000,
            count as f64 / turns.max(1) as f64,
            written as f64 / host.max(1) as f64,
            written / 1024 / records.max(1),
        );
        Ok((count, count * length, elapsed, cpu, note))
    }
}

/// Processor time of all threads so far.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the structure that it is given.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "every process has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn fill(device: &mut dyn Device, size: u64) {
    let mut memory = AlignedMemory::zeroed(4 << 20);
    memory.fill(3);
    for offset in (0..size / (4 * MIB)).map(|index| index * 4 * MIB) {
        device::blocking::write(device, offset, &mut memory).expect("the file has room");
    }
    device::blocking::flush(device).expect("the file can be flushed");
}
