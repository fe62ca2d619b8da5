//! Whether the log pays for itself on a device.
//!
//! The model of a device has two numbers: what a write costs that does not continue another, and
//! bytes per second. Before, the host's runs are written where the host wants them; after, the log's
//! are, with all that cleaning and metadata add. Whether that is quicker depends on the first number
//! against the second, and the break-even says where the line is.
//!
//! # What it leaves out
//! Reads, queues, caches, and what the device does inside, such as an SSD's own garbage collection,
//! which sequential writing makes cheaper still.

use crate::sequentiality::RunLengths;
use coulter_format::BLOCK_SIZE;
use serde::Serialize;

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DeviceClass {
    /// What it is.
    pub name: &'static str,
    /// Microseconds that a write costs which does not continue another one.
    pub run_microseconds: f64,
    /// Bytes written per second in one run.
    pub bytes_per_second: f64,
}

/// Devices that people have, in round numbers. Of a cloud volume with so many I/Os a second each
/// one costs its share of the second; of an NVMe drive many are under way at once.
pub const DEVICE_CLASSES: [DeviceClass; 6] = [
    DeviceClass { name: "hard disk", run_microseconds: 8000.0, bytes_per_second: 150e6 },
    DeviceClass { name: "SD card, eMMC", run_microseconds: 2000.0, bytes_per_second: 40e6 },
    DeviceClass {
        name: "cloud volume, 3000 I/O/s",
        run_microseconds: 333.0,
        bytes_per_second: 125e6,
    },
    DeviceClass { name: "virtual disk", run_microseconds: 30.0, bytes_per_second: 2e9 },
    DeviceClass { name: "SATA SSD", run_microseconds: 15.0, bytes_per_second: 500e6 },
    DeviceClass { name: "NVMe SSD", run_microseconds: 2.0, bytes_per_second: 3e9 },
];

/// Times as fast from which the log is worth it, and below which it is not.
const WORTH_FROM: f64 = 1.2;
const NOT_BELOW: f64 = 0.83;

/// The answer for one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Worth {
    /// At least a fifth faster.
    Yes,
    /// About the same.
    Even,
    /// A sixth slower, or worse.
    No,
}

/// What a device gains.
#[derive(Clone, Debug, Serialize)]
pub struct Gain {
    /// The device.
    pub device: DeviceClass,
    /// How many times as fast it takes the host's writes.
    pub times_as_fast: f64,
    /// Whether that is worth it.
    pub worth: Worth,
}

/// What was written, before or after.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Load {
    /// Blocks per block that the host wrote.
    pub(super) amplification: f64,
    pub(super) writes: RunLengths,
}

impl Load {
    /// Microseconds that a block of the host takes.
    fn microseconds(&self, device: &DeviceClass) -> f64 {
        let transfer = BLOCK_SIZE as f64 / device.bytes_per_second * 1e6;
        let runs = 1.0 / self.writes.run_blocks_mean.max(1e-3);
        self.amplification * (transfer + runs * device.run_microseconds)
    }
}

/// What each kind of device gains.
pub(super) fn gains(before: &Load, after: &Load) -> Vec<Gain> {
    let gain = |device: DeviceClass| {
        let times_as_fast = before.microseconds(&device) / after.microseconds(&device);
        let worth = match times_as_fast {
            times if times >= WORTH_FROM => Worth::Yes,
            times if times < NOT_BELOW => Worth::No,
            _ => Worth::Even,
        };
        Gain { device, times_as_fast, worth }
    };
    DEVICE_CLASSES.map(gain).to_vec()
}

/// Blocks that a device has to be able to write in the time of one write that does not continue
/// another, for both sides to be equally fast; `None` if the log never is as fast.
pub(super) fn break_even_blocks(before: &Load, after: &Load) -> Option<f64> {
    let runs = |load: &Load| load.amplification / load.writes.run_blocks_mean.max(1e-3);
    let saved = runs(before) - runs(after);
    let added = after.amplification - before.amplification;
    (saved > 0.0).then(|| (added / saved).max(0.0))
}

/// The gains in a sentence.
pub(super) fn sentence(gains: &[Gain], host: RunLengths) -> String {
    let named = |worth| {
        let names: Vec<_> =
            gains.iter().filter(|gain| gain.worth == worth).map(|gain| gain.device.name).collect();
        names.join("; ")
    };
    let (yes, even, no) = (named(Worth::Yes), named(Worth::Even), named(Worth::No));
    let mut sentence = match (yes.is_empty(), no.is_empty()) {
        (true, _) => "Not worth it for its writes on any device.".to_string(),
        (false, true) if even.is_empty() => "Worth it on every device.".to_string(),
        (false, _) => format!("Worth it on: {yes}."),
    };
    if !yes.is_empty() && !even.is_empty() {
        sentence += &format!(" About even on: {even}.");
    }
    if !yes.is_empty() && !no.is_empty() {
        sentence += &format!(" Not worth it on: {no}.");
    }
    if host.run_blocks_mean >= 64.0 {
        sentence += " Its writes are sequential as they are.";
    }
    sentence
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(amplification: f64, run_blocks_mean: f64) -> Load {
        Load { amplification, writes: RunLengths { run_blocks_mean, ..RunLengths::default() } }
    }

    #[test]
    fn random_writes_gain_on_slow_devices_and_sequential_ones_nowhere() {
        let log = load(2.0, 1000.0);
        let random = gains(&load(1.0, 1.0), &log);
        assert_eq!(random[0].worth, Worth::Yes);
        assert!(random[0].times_as_fast > 50.0, "{random:?}");
        let sequential = gains(&load(1.0, 1000.0), &log);
        assert!(sequential.iter().all(|gain| gain.worth == Worth::No), "{sequential:?}");
    }

    #[test]
    fn at_the_break_even_both_sides_take_the_same_time() {
        let (before, after) = (load(1.0, 2.0), load(1.5, 100.0));
        let blocks = break_even_blocks(&before, &after).expect("there are runs to be saved");
        let bytes_per_second = 1e9;
        let block_microseconds = BLOCK_SIZE as f64 / bytes_per_second * 1e6;
        let device = DeviceClass {
            name: "in between",
            run_microseconds: blocks * block_microseconds,
            bytes_per_second,
        };
        let ratio = before.microseconds(&device) / after.microseconds(&device);
        assert!((ratio - 1.0).abs() < 1e-9, "{ratio}");
        assert_eq!(break_even_blocks(&load(1.0, 200.0), &after), None);
    }
}
