//! A device that counts what passes through, for status reports and tests.

use crate::command::{Command, CommandKind, Completion, Properties, Region, Wait};
use crate::contract::Device;
use crate::revocation::Revocation;
use crate::slots::Slots;
use crate::wake::Waker;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device that counts what passes through.
#[derive(Debug)]
pub struct CountingDevice<D> {
    inner: D,
    counters: Arc<[KindCounters; CommandKind::ALL.len()]>,
    flights: Slots<Command>,
}

/// Reads the counts, from any thread, while the device is at work and after it was dropped.
#[derive(Clone, Debug)]
pub struct Counts {
    counters: Arc<[KindCounters; CommandKind::ALL.len()]>,
}

#[derive(Debug, Default)]
struct KindCounters {
    commands: AtomicU64,
    bytes: AtomicU64,
    failures: AtomicU64,
}

/// What happened to commands of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindCounts {
    /// Commands that succeeded.
    pub commands: u64,
    /// Bytes that these moved or gave up.
    pub bytes: u64,
    /// Commands that failed.
    pub failures: u64,
}

impl Counts {
    /// What happened to commands of this kind so far.
    pub fn of(&self, kind: CommandKind) -> KindCounts {
        let counters = &self.counters[kind as usize];
        KindCounts {
            commands: counters.commands.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
            failures: counters.failures.load(Ordering::Relaxed),
        }
    }
}

impl<D: Device> CountingDevice<D> {
    /// Counts what passes to and from `inner`.
    pub fn new(inner: D) -> (CountingDevice<D>, Counts) {
        let counters = Arc::<[KindCounters; CommandKind::ALL.len()]>::default();
        let flights = Slots::with_capacity(inner.properties().queue_depth);
        let counts = Counts { counters: counters.clone() };
        (CountingDevice { inner, counters, flights }, counts)
    }

    fn count(&self, command: &Command, is_ok: bool) {
        let counters = &self.counters[command.kind as usize];
        // Only this thread writes, so plain loads and stores would do; these cost as little.
        if is_ok {
            counters.commands.fetch_add(1, Ordering::Relaxed);
            counters.bytes.fetch_add(command.length, Ordering::Relaxed);
        } else {
            counters.failures.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// SAFETY: what the inner device completes is handed on, once; nothing else touches the memory.
unsafe impl<D: Device> Device for CountingDevice<D> {
    fn properties(&self) -> &Properties {
        self.inner.properties()
    }

    unsafe fn register(&mut self, regions: &[Region]) -> io::Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.register(regions) }
    }

    unsafe fn submit(&mut self, command: Command) {
        let tag = self.flights.insert(command);
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.submit(Command { tag, ..command }) };
    }

    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let before = out.len();
        self.inner.poll(out, wait)?;
        for completion in &mut out[before..] {
            let command = self.flights.remove(completion.tag);
            completion.tag = command.tag;
            self.count(&command, completion.result.is_ok());
        }
        Ok(())
    }

    fn arm(&mut self) -> io::Result<BorrowedFd<'_>> {
        self.inner.arm()
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn revocation(&self) -> Option<Revocation> {
        self.inner.revocation()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aligned::AlignedMemory;
    use crate::blocking;
    use crate::memory::MemoryStore;

    #[test]
    fn each_kind_is_counted_apart_and_failures_too() {
        let store = MemoryStore::new(1 << 20);
        let inner = store.open().expect("nothing has it open");
        let (mut device, counts) = CountingDevice::new(inner);
        let mut memory = AlignedMemory::zeroed(8192);
        blocking::write(&mut device, 0, &mut memory).expect("in range");
        blocking::write(&mut device, 8192, &mut memory).expect("in range");
        blocking::read(&mut device, 1 << 20, &mut memory).expect_err("out of range");
        blocking::flush(&mut device).expect("a flush");
        drop(device);
        let writes = KindCounts { commands: 2, bytes: 16384, failures: 0 };
        assert_eq!(counts.of(CommandKind::Write), writes);
        let reads = KindCounts { commands: 0, bytes: 0, failures: 1 };
        assert_eq!(counts.of(CommandKind::Read), reads);
        assert_eq!(counts.of(CommandKind::Flush).commands, 1);
        assert_eq!(counts.of(CommandKind::Discard), KindCounts::default());
    }
}
