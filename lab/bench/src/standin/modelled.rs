//! How long a device would have taken: a fixed time for each command, and one bus for all bytes.
//!
//! Commands that are out together overlap in the fixed time and queue for the bus, so what counts
//! is how many are issued at once and how many bytes they move. Time is virtual, nothing sleeps: it
//! moves on with the CPU time of the thread that drives the device, and to the next completion when
//! that thread has nothing to do.

use coulter_engine::{Command, Io};
use coulter_format::BLOCK_SIZE;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A device's speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DeviceModel {
    /// Seconds from a command to its first byte.
    pub(crate) latency: f64,
    /// Bytes per second, all commands together.
    pub(crate) bandwidth: f64,
}

impl DeviceModel {
    /// A plain SSD: 100 microseconds, 2 GB/s.
    pub(crate) const SSD: DeviceModel = DeviceModel { latency: 100e-6, bandwidth: 2e9 };
}

/// Commands on their way, in virtual nanoseconds.
pub(super) struct Modelled {
    model: DeviceModel,
    now: u64,
    waited: u64,
    bus_free: u64,
    /// End of each command, and the order of issue among equals.
    out: BinaryHeap<Reverse<(u64, u64)>>,
    ios: Vec<Option<Io>>,
    issued: u64,
    pub(super) depth_max: usize,
}

impl Modelled {
    pub(super) fn new(model: DeviceModel) -> Modelled {
        Modelled {
            model,
            now: 0,
            waited: 0,
            bus_free: 0,
            out: BinaryHeap::new(),
            ios: Vec::new(),
            issued: 0,
            depth_max: 0,
        }
    }

    /// Seconds since the start.
    pub(super) fn seconds(&self) -> f64 {
        self.now as f64 * 1e-9
    }

    /// Seconds of those in which there was nothing to do but wait.
    pub(super) fn seconds_waited(&self) -> f64 {
        self.waited as f64 * 1e-9
    }

    /// The thread that drives the device has worked for so many seconds; whatever was on its way
    /// has come nearer.
    pub(super) fn work(&mut self, seconds: f64) {
        self.now += (seconds * 1e9) as u64;
    }

    /// Issues a command now.
    pub(super) fn issue(&mut self, io: Io) {
        let blocks = match io.command {
            Command::Read { count, .. } | Command::Write { count, .. } => count,
            Command::Flush | Command::Discard { .. } | Command::Prepare { .. } => 0,
        };
        let bytes = f64::from(blocks) * BLOCK_SIZE as f64;
        let first_byte = self.now + (self.model.latency * 1e9) as u64;
        let transfer = (bytes / self.model.bandwidth * 1e9) as u64;
        let end = self.bus_free.max(first_byte) + transfer;
        if blocks > 0 {
            self.bus_free = end;
        }
        self.out.push(Reverse((end, self.issued)));
        self.ios.push(Some(io));
        self.issued += 1;
        self.depth_max = self.depth_max.max(self.out.len());
    }

    /// The next command to end. If it has not ended yet, time moves on to its end.
    pub(super) fn next_end(&mut self) -> Option<Io> {
        let Reverse((end, number)) = self.out.pop()?;
        self.waited += end.saturating_sub(self.now);
        self.now = self.now.max(end);
        self.ios[number as usize].take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter_engine::{IoId, PageRef, Target};
    use coulter_format::Pba;

    fn read(id: u32, count: u32) -> Io {
        let target = Target::Page(PageRef(0));
        Io { id: IoId(id), command: Command::Read { pba: Pba(0), count, target } }
    }

    #[test]
    fn commands_overlap_in_latency_and_queue_for_the_bus() {
        let model = DeviceModel { latency: 100e-6, bandwidth: 4096e6 };
        let mut device = Modelled::new(model);
        // A block takes one microsecond on the bus.
        device.issue(read(0, 10));
        device.issue(read(1, 10));
        assert_eq!(device.next_end().map(|io| io.id), Some(IoId(0)));
        assert!((device.seconds() - 110e-6).abs() < 1e-9, "{}", device.seconds());
        assert_eq!(device.next_end().map(|io| io.id), Some(IoId(1)));
        assert!((device.seconds() - 120e-6).abs() < 1e-9, "{}", device.seconds());
        device.issue(read(2, 0));
        assert_eq!(device.next_end().map(|io| io.id), Some(IoId(2)));
        assert!((device.seconds() - 220e-6).abs() < 1e-9, "{}", device.seconds());
        assert!(device.next_end().is_none());
        assert_eq!(device.depth_max, 2);
        assert_eq!(device.seconds_waited(), device.seconds(), "nobody worked");
    }

    #[test]
    fn work_overlaps_with_commands_on_their_way() {
        let model = DeviceModel { latency: 100e-6, bandwidth: 4096e6 };
        let mut device = Modelled::new(model);
        device.issue(read(0, 0));
        device.work(60e-6);
        assert_eq!(device.next_end().map(|io| io.id), Some(IoId(0)));
        assert!((device.seconds() - 100e-6).abs() < 1e-9, "{}", device.seconds());
        assert!((device.seconds_waited() - 40e-6).abs() < 1e-9);
        device.issue(read(1, 0));
        device.work(150e-6);
        assert_eq!(device.next_end().map(|io| io.id), Some(IoId(1)));
        assert!((device.seconds() - 250e-6).abs() < 1e-9, "it had ended long before");
    }
}
