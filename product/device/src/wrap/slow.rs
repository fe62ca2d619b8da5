//! A device that is slow in the way of a cloud volume, in real time: each command takes a while,
//! so many commands pass in a second, and so many bytes.
//!
//! A command is executed at once by the device within; only its completion is held back until the
//! model says that it is due. What the model does not do: burst credits, and a queue that fills
//! up.
//!
//! ```text
//! started    = max(submitted, when the caps have let earlier commands pass)
//! due        = started + max(operations / rate, bytes / bandwidth) + latency
//! operations = the command's length, in units of `operation_size`, rounded up
//! ```

use crate::alarm::Alarm;
use crate::command::{Command, CommandKind, Completion, Properties, Region, Wait};
use crate::contract::Device;
use crate::revocation::Revocation;
use crate::slots::Slots;
use crate::wake::{Deadline, Waker};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowModel {
    /// What every command takes at the least.
    pub latency: Duration,
    /// Operations per second, if there is a cap. Flushes and discards count as one each.
    pub operations_per_second: Option<u64>,
    /// The bytes that count as one operation; cloud volumes count larger transfers more than once.
    pub operation_size: u64,
    /// Bytes per second that are read and written, if there is a cap.
    pub bytes_per_second: Option<u64>,
}

impl SlowModel {
    /// A general-purpose cloud volume: 3000 operations of up to 256 KiB and 125 MiB per second,
    /// at a millisecond each.
    pub const CLOUD_VOLUME: SlowModel = SlowModel {
        latency: Duration::from_millis(1),
        operations_per_second: Some(3000),
        operation_size: 256 << 10,
        bytes_per_second: Some(125 << 20),
    };

    /// What the command takes of the caps.
    fn time_of(&self, command: &Command) -> Duration {
        let transfers = matches!(command.kind, CommandKind::Read | CommandKind::Write);
        let bytes = if transfers { command.length } else { 0 };
        let operations = bytes.div_ceil(self.operation_size).max(1);
        let at = |count, per_second: Option<u64>| {
            per_second.map_or(Duration::ZERO, |per_second| {
                let nanoseconds = u128::from(count) * 1_000_000_000 / u128::from(per_second);
                Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
            })
        };
        at(operations, self.operations_per_second).max(at(bytes, self.bytes_per_second))
    }
}

/// Lets a device be as quick as it is for a while, from wherever; what is prepared for measuring
/// need not take as long as what is measured.
#[derive(Clone, Debug)]
pub struct SlowHandle(Arc<AtomicBool>);

impl SlowHandle {
    /// Whether commands that are submitted from now on are held back. They are at first.
    pub fn hold_back(&self, is_held_back: bool) {
        self.0.store(is_held_back, Ordering::Relaxed);
    }

    fn holds_back(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A device that is slow.
#[derive(Debug)]
pub struct SlowDevice<D> {
    inner: D,
    model: SlowModel,
    handle: SlowHandle,
    /// When the caps let the next command pass.
    free: Instant,
    /// Tag and due time of each command that the inner device has.
    flights: Slots<(u64, Instant)>,
    /// What the inner device has completed, the next to be due on top: the due time, a number
    /// that keeps order among equals, and where the completion is.
    held: BinaryHeap<Reverse<(Instant, u64, u64)>>,
    held_completions: Slots<Completion>,
    held_count: u64,
    scratch: Vec<Completion>,
    /// For callers that sleep elsewhere; made when one first does.
    alarm: Option<Alarm>,
}

impl<D: Device> SlowDevice<D> {
    /// Makes `inner` as slow as `model` says.
    ///
    /// # Panics
    /// When a cap or the operation size is zero: nothing would ever complete.
    pub fn new(inner: D, model: SlowModel) -> SlowDevice<D> {
        assert!(model.operations_per_second != Some(0), "a cap lets something pass");
        assert!(model.bytes_per_second != Some(0), "a cap lets something pass");
        assert!(model.operation_size > 0, "an operation has a size");
        let depth = inner.properties().queue_depth;
        SlowDevice {
            inner,
            model,
            handle: SlowHandle(Arc::new(AtomicBool::new(true))),
            free: Instant::now(),
            flights: Slots::with_capacity(depth),
            held: BinaryHeap::with_capacity(depth),
            held_completions: Slots::with_capacity(depth),
            held_count: 0,
            scratch: Vec::with_capacity(depth),
            alarm: None,
        }
    }

    /// What switches the limits off and on.
    pub fn handle(&self) -> SlowHandle {
        self.handle.clone()
    }

    /// Takes what the inner device has completed.
    fn hold(&mut self) {
        for completion in self.scratch.drain(..) {
            let (tag, due) = self.flights.remove(completion.tag);
            let place = self.held_completions.insert(Completion { tag, ..completion });
            self.held.push(Reverse((due, self.held_count, place)));
            self.held_count += 1;
        }
    }

    /// Gives out what is due.
    fn release(&mut self, out: &mut Vec<Completion>) {
        let now = if self.held.is_empty() { self.free } else { Instant::now() };
        while let Some(Reverse((due, _, place))) = self.held.peek().copied() {
            if due > now {
                break;
            }
            self.held.pop();
            out.push(self.held_completions.remove(place));
        }
    }
}

// SAFETY: what the inner device completes is handed on, once; nothing else touches the memory.
unsafe impl<D: Device> Device for SlowDevice<D> {
    fn properties(&self) -> &Properties {
        self.inner.properties()
    }

    unsafe fn register(&mut self, regions: &[Region]) -> io::Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.register(regions) }
    }

    unsafe fn submit(&mut self, command: Command) {
        let mut due = Instant::now();
        // What is refused takes no time.
        if self.handle.holds_back() && self.properties().check(&command).is_ok() {
            self.free = self.free.max(due) + self.model.time_of(&command);
            due = self.free + self.model.latency;
        }
        let tag = self.flights.insert((command.tag, due));
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.submit(Command { tag, ..command }) };
    }

    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let (before, deadline) = (out.len(), Deadline::after(wait));
        loop {
            self.inner.poll(&mut self.scratch, Wait::No)?;
            self.hold();
            self.release(out);
            let left = deadline.left();
            if out.len() > before || left == Wait::No {
                return Ok(());
            }
            // Until the next is due, or until the inner device has more, whichever is first.
            let due = self.held.peek().map(|Reverse((due, ..))| *due);
            let until = due.map(|due| due.saturating_duration_since(Instant::now()));
            let nap = match (until, left) {
                (None, left) => left,
                (Some(until), Wait::For(left)) => Wait::For(until.min(left)),
                (Some(until), _) => Wait::For(until),
            };
            let start = Instant::now();
            self.inner.poll(&mut self.scratch, nap)?;
            let slept_through = match nap {
                Wait::For(time) => self.scratch.is_empty() && start.elapsed() >= time,
                _ => false,
            };
            if !slept_through {
                // Even if nothing is due: the inner device may have taken a wake beside what it
                // completed, and a wake is to end the caller's sleep.
                self.hold();
                self.release(out);
                return Ok(());
            }
        }
    }

    fn arm(&mut self) -> io::Result<BorrowedFd<'_>> {
        let due = self.held.peek().map(|Reverse((due, ..))| *due);
        let inner = self.inner.arm()?;
        let alarm = match self.alarm.take() {
            Some(alarm) => alarm,
            None => Alarm::beside(inner)?,
        };
        alarm.set(due)?;
        let alarm: &Alarm = self.alarm.insert(alarm);
        Ok(alarm.as_fd())
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
    use crate::memory::MemoryStore;

    const UNLIMITED: SlowModel = SlowModel {
        latency: Duration::ZERO,
        operations_per_second: None,
        operation_size: 4096,
        bytes_per_second: None,
    };

    /// How long `count` writes of `length` bytes take.
    fn time(model: SlowModel, count: u64, length: u64) -> Duration {
        let store = MemoryStore::new(1 << 20);
        let mut device = SlowDevice::new(store.open().expect("nothing has it open"), model);
        let mut memory = AlignedMemory::zeroed(length as usize);
        let start = Instant::now();
        for tag in 0..count {
            let buffer = memory.as_mut_pointer();
            // SAFETY: all completions are taken before `memory` is dropped.
            unsafe { device.submit(Command::write(tag, 0, length, buffer)) };
        }
        let mut completions = Vec::new();
        while (completions.len() as u64) < count {
            device.poll(&mut completions, Wait::Forever).expect("memory can be polled");
        }
        let tags: Vec<u64> = completions.iter().map(|completion| completion.tag).collect();
        assert_eq!(tags, (0..count).collect::<Vec<_>>(), "equals keep their order");
        start.elapsed()
    }

    #[test]
    fn latency_is_paid_once_by_commands_side_by_side() {
        let model = SlowModel { latency: Duration::from_millis(30), ..UNLIMITED };
        let time = time(model, 20, 4096);
        assert!((30..300).contains(&time.as_millis()), "{time:?}");
    }

    #[test]
    fn what_is_not_held_back_is_quick() {
        let store = MemoryStore::new(1 << 20);
        let model = SlowModel { latency: Duration::from_secs(60), ..UNLIMITED };
        let mut device = SlowDevice::new(store.open().expect("nothing has it open"), model);
        let handle = device.handle();
        handle.hold_back(false);
        let mut memory = AlignedMemory::zeroed(4096);
        crate::blocking::write(&mut device, 0, &mut memory).expect("memory does not fail");
        handle.hold_back(true);
        // SAFETY: a flush uses no memory.
        unsafe { device.submit(Command::flush(1)) };
        let mut completions = Vec::new();
        let nap = Wait::For(Duration::from_millis(5));
        device.poll(&mut completions, nap).expect("memory can be polled");
        assert!(completions.is_empty(), "it is held back");
    }

    #[test]
    fn the_cap_on_operations_spaces_commands() {
        let model = SlowModel { operations_per_second: Some(1000), ..UNLIMITED };
        assert!(time(model, 50, 4096) >= Duration::from_millis(50));
        // Larger than an operation: each counts twice.
        assert!(time(model, 50, 8192) >= Duration::from_millis(100));
    }

    #[test]
    fn the_cap_on_bytes_spaces_commands() {
        let model = SlowModel { bytes_per_second: Some(1 << 20), ..UNLIMITED };
        assert!(time(model, 16, 4096) >= Duration::from_micros(62_500));
    }
}
