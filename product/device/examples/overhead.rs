//! What a device in memory, and each wrapper around it, costs per command.
//!
//! ```text
//! cargo run --release -p coulter-device --example overhead
//! ```
//! 4 KiB writes and reads at depth 32 over 64 MiB, one thread.

use coulter_device::wrap::{
    CountingDevice, FaultyDevice, SlowDevice, SlowModel, TraceRecord, TracedDevice,
};
use coulter_device::{AlignedMemory, Command, Device, MemoryStore, Wait};
use coulter_workload::Random;
use std::time::{Duration, Instant};

const SIZE: u64 = 64 << 20;
const DEPTH: u64 = 32;
const LENGTH: u64 = 4096;

fn main() {
    let dense = || MemoryStore::new(SIZE).open().expect("nothing has it open");
    let sparse = || MemoryStore::sparse(SIZE).open().expect("nothing has it open");
    let unlimited = SlowModel {
        latency: Duration::ZERO,
        operations_per_second: None,
        operation_size: LENGTH,
        bytes_per_second: None,
    };
    let ignore = |_: &TraceRecord| {};
    report("memory", dense());
    report("sparse memory", sparse());
    report("counting", CountingDevice::new(dense()).0);
    report("traced, records ignored", TracedDevice::new(dense(), ignore));
    report("faulty, without faults", FaultyDevice::new(dense(), 1).0);
    report("slow, without limits", SlowDevice::new(dense(), unlimited));
}

fn report(name: &str, mut device: impl Device) {
    // Once to allocate.
    run(&mut device, true);
    let (write, read) = (run(&mut device, true), run(&mut device, false));
    println!("{name:24} {write:6.0} ns per write {read:6.0} ns per read");
}

/// Nanoseconds per command.
fn run(device: &mut impl Device, is_write: bool) -> f64 {
    const COUNT: u64 = 1 << 20;
    let mut memory = AlignedMemory::zeroed((DEPTH * LENGTH) as usize);
    memory.fill(0xa5);
    let start = memory.as_mut_pointer();
    let mut completions = Vec::with_capacity(DEPTH as usize);
    let (mut random, time) = (Random::new(1), Instant::now());
    for _ in 0..COUNT / DEPTH {
        for lane in 0..DEPTH {
            let offset = random.below(SIZE / LENGTH) * LENGTH;
            let buffer = start.wrapping_add((lane * LENGTH) as usize);
            let command = match is_write {
                true => Command::write(lane, offset, LENGTH, buffer),
                false => Command::read(lane, offset, LENGTH, buffer),
            };
            // SAFETY: all completions are taken before the memory is used again or dropped.
            unsafe { device.submit(command) };
        }
        while completions.len() < DEPTH as usize {
            device.poll(&mut completions, Wait::Forever).expect("memory can be polled");
        }
        assert!(completions.drain(..).all(|completion| completion.result.is_ok()));
    }
    time.elapsed().as_nanos() as f64 / COUNT as f64
}
