//! What an emulated drive is doing. The emulator's report travels as it is, as the library's
//! statistics do.

use super::Meters;
use crate::size::Size;
use crate::state::Entry;
use crate::terminal::BOLD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

/// The facts of one moment about a drive by itself; totals run from its beginning. Documented in
/// `docs/flash.md`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DriveStatus {
    /// What `list --json` shows.
    #[serde(flatten)]
    pub(crate) entry: Entry,
    /// Since it was attached.
    pub(crate) uptime_seconds: f64,
    /// The emulator's report.
    pub(crate) flash: Map<String, Value>,
}

impl DriveStatus {
    pub(super) fn meters(&self) -> Meters {
        let flash = Flash(&self.flash);
        Meters {
            seconds: self.uptime_seconds,
            host_bytes: flash.written_bytes(),
            writes: flash.number(&["drive", "writes"]),
            reads: flash.number(&["drive", "reads"]),
            device_bytes: flash.programmed_bytes(),
        }
    }
}

/// A report of the emulator.
pub(super) struct Flash<'a>(pub(super) &'a Map<String, Value>);

impl Flash<'_> {
    fn value(&self, path: &[&str]) -> Option<&Value> {
        let mut value = self.0.get(*path.first()?);
        for name in &path[1..] {
            value = value.and_then(|value| value.get(name));
        }
        value
    }

    fn number(&self, path: &[&str]) -> u64 {
        self.value(path).and_then(Value::as_u64).unwrap_or(0)
    }

    fn ratio(&self, name: &str) -> f64 {
        self.value(&[name]).and_then(Value::as_f64).unwrap_or(0.0)
    }

    fn text(&self, name: &str) -> &str {
        self.value(&[name]).and_then(Value::as_str).unwrap_or("-")
    }

    fn written_bytes(&self) -> u64 {
        self.number(&["drive", "blocks_written"]) * 4096
    }

    /// Bytes programmed, whatever the cause.
    pub(super) fn programmed_bytes(&self) -> u64 {
        let programs = self.value(&["nand", "programs"]).and_then(Value::as_object);
        let pages: u64 =
            programs.into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum();
        pages * self.number(&["page_size_bytes"])
    }
}

impl fmt::Display for Flash<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |ns: u64| ns as f64 / 1e9;
        writeln!(
            f,
            "  drive      {} with {}, {:.3} s of its time, {} pace",
            self.text("profile"),
            self.text("ftl"),
            seconds(self.number(&["virtual_ns"])),
            self.text("pace")
        )?;
        writeln!(
            f,
            "  flash      {} written to the drive, amplified {:.3} times, {} erases; dies {:.0} % \
             busy",
            Size(self.written_bytes()),
            self.ratio("device_write_amplification"),
            self.number(&["nand", "erases"]),
            self.ratio("die_utilisation") * 100.0
        )?;
        let programs = |cause| self.number(&["nand", "programs", cause]);
        writeln!(
            f,
            "  programs   host {}, gc {}, merge {}, pad {}, map {}, rmw {}",
            programs("host"),
            programs("gc"),
            programs("merge"),
            programs("pad"),
            programs("map"),
            programs("rmw")
        )?;
        let merges = |kind| self.number(&["ftl_counters", kind]);
        write!(
            f,
            "  merges     {} switch, {} partial, {} full; {} pages trimmed",
            merges("merges_switch"),
            merges("merges_partial"),
            merges("merges_full"),
            merges("pages_trimmed")
        )
    }
}

impl fmt::Display for DriveStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { name, device, via, process, volume_size_bytes, .. } = &self.entry;
        writeln!(
            f,
            "{BOLD}{name}{BOLD:#}  {} at {} ({via}, process {}), emulated",
            Size(*volume_size_bytes),
            device.as_deref().unwrap_or("-"),
            process.pid,
        )?;
        Flash(&self.flash).fmt(f)
    }
}
