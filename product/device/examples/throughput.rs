//! What a path gives through this crate, and beside it what fio gets from the same path.
//!
//! ```text
//! cargo run --release -p coulter-device --example throughput -- PATH [--size MIB]
//!     [--seconds N] [--rounds N] [--threads] [--fio]
//! ```
//! Overwrites what is at PATH, or makes a file there and removes it. The file is filled first, so
//! that neither side pays for allocation. Rounds alternate between the two sides; the medians and
//! the median of the rounds' ratios are printed, because a shared machine is never quiet.

use coulter_device::{
    AlignedMemory, Command, Device, Engine, OpenOptions, Region, Wait, blocking, open_path,
};
use coulter_workload::Random;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, process};

struct Settings {
    path: PathBuf,
    size: u64,
    seconds: u64,
    rounds: usize,
    engine: Engine,
    with_fio: bool,
}

/// What is measured.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    fio_mode: &'static str,
    is_random: bool,
    is_write: bool,
    length: u64,
    depth: usize,
}

const LOADS: [Load; 3] = [
    Load {
        name: "4 KiB random write, depth 32",
        fio_mode: "randwrite",
        is_random: true,
        is_write: true,
        length: 4 << 10,
        depth: 32,
    },
    Load {
        name: "4 KiB random read, depth 32",
        fio_mode: "randread",
        is_random: true,
        is_write: false,
        length: 4 << 10,
        depth: 32,
    },
    Load {
        name: "1 MiB sequential write, depth 8",
        fio_mode: "write",
        is_random: false,
        is_write: true,
        length: 1 << 20,
        depth: 8,
    },
];

fn main() {
    let outcome = settings().and_then(|settings| run(&settings));
    if let Err(error) = outcome {
        eprintln!("throughput: {error}");
        process::exit(1);
    }
}

fn settings() -> Result<Settings, Box<dyn Error>> {
    let mut settings = Settings {
        path: PathBuf::new(),
        size: 1 << 30,
        seconds: 3,
        rounds: 5,
        engine: Engine::Uring,
        with_fio: false,
    };
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || -> Result<u64, Box<dyn Error>> {
            let text = arguments.next().ok_or_else(|| format!("{argument} wants a number"))?;
            Ok(text.parse().map_err(|error| format!("{argument} {text}: {error}"))?)
        };
        match argument.as_str() {
            "--size" => settings.size = number()? << 20,
            "--seconds" => settings.seconds = number()?,
            "--rounds" => settings.rounds = number()?.max(1) as usize,
            "--threads" => settings.engine = Engine::Threads,
            "--fio" => settings.with_fio = true,
            path => settings.path = PathBuf::from(path),
        }
    }
    if settings.path.as_os_str().is_empty() {
        return Err("name a file or a disk; what it holds is overwritten".into());
    }
    Ok(settings)
}

fn run(settings: &Settings) -> Result<(), Box<dyn Error>> {
    let is_ours = !settings.path.exists();
    let result =
        prepare(settings).and_then(|()| LOADS.iter().try_for_each(|load| compare(load, settings)));
    if is_ours {
        fs::remove_file(&settings.path)?;
    }
    result
}

fn options(settings: &Settings) -> OpenOptions {
    OpenOptions {
        engine: settings.engine,
        create_size: Some(settings.size),
        size_min: settings.size,
        ..OpenOptions::default()
    }
}

/// Fills the range with bytes that do not compress, and says what it is.
fn prepare(settings: &Settings) -> Result<(), Box<dyn Error>> {
    let mut device = open_path(&settings.path, &options(settings))?;
    let mut memory = AlignedMemory::zeroed(4 << 20);
    fill(&mut memory);
    for offset in (0..settings.size).step_by(memory.len()) {
        blocking::write(&mut device, offset, &mut memory)?;
    }
    blocking::flush(&mut device)?;
    let properties = device.properties();
    println!("{}, {} MiB used", properties.description, settings.size >> 20);
    if let Some(note) = &properties.note {
        println!("note: {note}");
    }
    Ok(())
}

fn compare(load: &Load, settings: &Settings) -> Result<(), Box<dyn Error>> {
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..settings.rounds {
        // Each side goes first in turn, for what went before is felt.
        let their_early = if round % 2 == 1 { fio_rate(load, settings)? } else { None };
        let our_rate = measure(load, settings)?;
        ours.push(our_rate);
        let their_late = if round % 2 == 0 { fio_rate(load, settings)? } else { None };
        if let Some(their_rate) = their_early.or(their_late) {
            theirs.push(their_rate);
            ratios.push(our_rate.commands_per_second / their_rate.commands_per_second);
        }
    }
    println!("{}", load.name);
    print_rate("device", load, &ours);
    if settings.with_fio {
        print_rate("fio", load, &theirs);
        ratios.sort_by(f64::total_cmp);
        let at = |quarter: usize| ratios[(ratios.len() - 1) * quarter / 4];
        let (low, middle, high) = (at(1), at(2), at(3));
        println!("  ratio   {middle:.3}, half of the rounds between {low:.3} and {high:.3}");
    }
    Ok(())
}

fn fio_rate(load: &Load, settings: &Settings) -> Result<Option<Rate>, Box<dyn Error>> {
    settings.with_fio.then(|| measure_fio(load, settings)).transpose()
}

fn print_rate(side: &str, load: &Load, rates: &[Rate]) {
    let median_of =
        |value: fn(&Rate) -> f64| median(&mut rates.iter().map(value).collect::<Vec<_>>());
    let rate = median_of(|rate| rate.commands_per_second);
    let megabytes = rate * load.length as f64 / 1e6;
    let (user, kernel) = (median_of(|rate| rate.user_ns), median_of(|rate| rate.kernel_ns));
    println!(
        "  {side:7} {rate:9.0} IOPS  {megabytes:7.0} MB/s  \
         {user:6.0} + {kernel:6.0} ns of processor per command"
    );
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Processor time that this process has used, in user mode and in the kernel.
fn processor_seconds() -> (f64, f64) {
    // SAFETY: all zeros is a value of this plain structure, and the call fills it in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime), seconds(usage.ru_stime))
}

/// What a load did.
#[derive(Clone, Copy)]
struct Rate {
    commands_per_second: f64,
    /// Processor time per command, in nanoseconds, in user mode and in the kernel.
    user_ns: f64,
    kernel_ns: f64,
}

/// Runs a load through a device.
fn measure(load: &Load, settings: &Settings) -> Result<Rate, Box<dyn Error>> {
    let mut memory = AlignedMemory::zeroed(load.length as usize * load.depth);
    fill(&mut memory);
    let mut device = open_path(&settings.path, &options(settings))?;
    let region = Region { start: memory.as_mut_pointer(), length: memory.len() };
    // SAFETY: the device is dropped before the memory, which was made first.
    unsafe { device.register(&[region]) }?;
    let mut offsets = Offsets { load: *load, size: settings.size, random: Random::new(1), next: 0 };
    for lane in 0..load.depth {
        submit(&mut *device, load, &mut memory, lane as u64, offsets.next());
    }
    let (start, time) = (Instant::now(), Duration::from_secs(settings.seconds));
    let processor_start = processor_seconds();
    let (mut count, mut completions, mut outstanding) = (0, Vec::new(), load.depth);
    while outstanding > 0 {
        device.poll(&mut completions, Wait::Forever)?;
        let is_over = start.elapsed() >= time;
        for completion in completions.drain(..) {
            completion.result?;
            count += 1;
            if is_over {
                outstanding -= 1;
            } else {
                submit(&mut *device, load, &mut memory, completion.tag, offsets.next());
            }
        }
    }
    // Up to the last completion, as fio counts.
    let (elapsed, processor) = (start.elapsed(), processor_seconds());
    let count = f64::from(count);
    Ok(Rate {
        commands_per_second: count / elapsed.as_secs_f64(),
        user_ns: (processor.0 - processor_start.0) * 1e9 / count,
        kernel_ns: (processor.1 - processor_start.1) * 1e9 / count,
    })
}

fn submit(
    device: &mut dyn Device,
    load: &Load,
    memory: &mut AlignedMemory,
    lane: u64,
    offset: u64,
) {
    let buffer = memory.as_mut_pointer().wrapping_add((lane * load.length) as usize);
    let command = match load.is_write {
        true => Command::write(lane, offset, load.length, buffer),
        false => Command::read(lane, offset, load.length, buffer),
    };
    // SAFETY: each lane has its own part of the memory, which outlives the device.
    unsafe { device.submit(command) };
}

struct Offsets {
    load: Load,
    size: u64,
    random: Random,
    next: u64,
}

impl Offsets {
    fn next(&mut self) -> u64 {
        let count = self.size / self.load.length;
        if self.load.is_random {
            self.random.below(count) * self.load.length
        } else {
            self.next += 1;
            self.next % count * self.load.length
        }
    }
}

/// Commands per second through fio, with what this crate uses: direct transfers, registered
/// memory, a registered file.
fn measure_fio(load: &Load, settings: &Settings) -> Result<Rate, Box<dyn Error>> {
    let output = process::Command::new("fio")
        .args(["--name=throughput", "--ioengine=io_uring", "--direct=1", "--fixedbufs"])
        .args(["--registerfiles", "--norandommap", "--time_based", "--minimal"])
        .arg(format!("--filename={}", filename(&settings.path)))
        .arg(format!("--size={}", settings.size))
        .arg(format!("--rw={}", load.fio_mode))
        .arg(format!("--bs={}", load.length))
        .arg(format!("--iodepth={}", load.depth))
        .arg(format!("--runtime={}", settings.seconds))
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    // Fields of fio's terse output, version 3: commands per second of reads and of writes, and
    // processor time in percent.
    let fields: Vec<&str> = text.trim().split(';').collect();
    let number = |index: usize| fields.get(index)?.trim_end_matches('%').parse::<f64>().ok();
    let rate = number(if load.is_write { 48 } else { 7 });
    let (Some(rate), Some(user), Some(kernel)) = (rate, number(87), number(88)) else {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("fio failed: {text}{errors}").into());
    };
    let per_command = |percent: f64| percent / 100.0 * 1e9 / rate;
    Ok(Rate {
        commands_per_second: rate,
        user_ns: per_command(user),
        kernel_ns: per_command(kernel),
    })
}

/// fio takes a colon for the end of a name.
fn filename(path: &Path) -> String {
    path.display().to_string().replace(':', "\\:")
}

fn fill(memory: &mut AlignedMemory) {
    Random::new(1).fill(memory);
}
