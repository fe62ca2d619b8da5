//! What an emulated drive is doing: the emulator's report, in words and in numbers.

use coulter_daemon::status::{Meters, Told};
use coulter_terminal::Size;
use serde_json::{Map, Value};
use std::fmt;
use std::time::Duration;

/// A report of the emulator. It travels as it is, as the library's statistics do.
pub(crate) struct Flash(pub(crate) Map<String, Value>);

impl Flash {
    /// What rates are made of, `uptime` after the beginning.
    pub(crate) fn meters(&self, uptime: Duration) -> Meters {
        Meters {
            seconds: uptime.as_secs_f64(),
            host_bytes: self.written_bytes(),
            writes: self.number(&["drive", "writes"]),
            reads: self.number(&["drive", "reads"]),
            device_bytes: self.programmed_bytes(),
        }
    }

    /// All of it, as it is told with the status of what is attached.
    pub(crate) fn told(self) -> Told {
        Told { text: self.to_string(), report: self.0 }
    }

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
    pub(crate) fn programmed_bytes(&self) -> u64 {
        let programs = self.value(&["nand", "programs"]).and_then(Value::as_object);
        let pages: u64 =
            programs.into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum();
        pages * self.number(&["page_size_bytes"])
    }
}

impl fmt::Display for Flash {
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

#[cfg(test)]
mod tests {
    use super::*;
    use coulter_daemon::status::facts_of;
    use serde_json::json;

    #[test]
    fn meters_count_blocks_written_and_pages_programmed() {
        let flash = Flash(facts_of(&json!({
            "page_size_bytes": 4096, "drive": { "blocks_written": 2, "writes": 1 },
            "nand": { "programs": { "host": 2, "gc": 3 } },
        })));
        let meters = flash.meters(Duration::from_secs(2));
        let expected =
            Meters { seconds: 2.0, host_bytes: 8192, writes: 1, reads: 0, device_bytes: 20_480 };
        assert_eq!(meters, expected);
        let told = flash.told();
        assert!(told.text.contains("host 2, gc 3"), "{}", told.text);
        assert_eq!(told.report["page_size_bytes"], 4096);
    }
}
