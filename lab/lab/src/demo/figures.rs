//! What the demonstration found, as JSON and as a short table.

use crate::terminal::{BAD, GREEN};
use coulter_terminal::Size;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

/// One turn of either side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Round {
    /// 4 KiB random writes per second without Coulter.
    pub(crate) baseline_iops: f64,
    /// The same with it.
    pub(crate) coulter_iops: f64,
}

/// The turns and what they come to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Speed {
    /// The turns.
    pub(crate) rounds: Vec<Round>,
    /// Mean of the turns.
    pub(crate) baseline_iops: f64,
    /// Mean of the turns.
    pub(crate) coulter_iops: f64,
    /// `coulter_iops / baseline_iops`.
    pub(crate) ratio: f64,
}

impl Speed {
    /// The means of `rounds`, of which there is at least one.
    pub(crate) fn of(rounds: Vec<Round>) -> Speed {
        assert!(!rounds.is_empty(), "each side has at least one turn");
        let mean =
            |side: fn(&Round) -> f64| rounds.iter().map(side).sum::<f64>() / rounds.len() as f64;
        let baseline_iops = mean(|round| round.baseline_iops);
        let coulter_iops = mean(|round| round.coulter_iops);
        Speed { ratio: coulter_iops / baseline_iops, rounds, baseline_iops, coulter_iops }
    }

    /// The ratio, and the smallest and largest of a single turn.
    fn words(&self) -> String {
        let ratios = self.rounds.iter().map(|round| round.coulter_iops / round.baseline_iops);
        let (least, most) = ratios.fold((f64::INFINITY, 0.0_f64), |(least, most), ratio| {
            (least.min(ratio), most.max(ratio))
        });
        let turns = self.rounds.len();
        format!(
            "{GREEN}{:.2} times{GREEN:#} ({least:.2} to {most:.2} in {turns} turns)",
            self.ratio
        )
    }
}

/// The same turns on a device that is held back, as volumes of clouds are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct HeldBack {
    /// Reads, writes and flushes that it takes per second.
    pub(crate) operations_per_second: u64,
    /// Bytes that it takes and gives per second.
    pub(crate) bytes_per_second: u64,
    /// What each takes at the least.
    pub(crate) latency_ms: f64,
    /// How fast either side was.
    #[serde(flatten)]
    pub(crate) speed: Speed,
}

/// Everything. Field names are documented in `docs/json.md`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Figures {
    /// `ext4-on-loop` or `nbd`.
    pub(crate) mode: &'static str,
    /// What the other side was.
    pub(crate) baseline: &'static str,
    /// Bytes written to on either side.
    pub(crate) size_bytes: u64,
    /// How fast either side was.
    #[serde(flatten)]
    pub(crate) speed: Speed,
    /// How fast either side is where the device is held back.
    pub(crate) held_back: HeldBack,
    /// Blocks written to the device per block written by the host.
    pub(crate) write_amplification: f64,
    /// Bytes that were read back and compared, before and after the crash.
    pub(crate) verified_bytes: u64,
    /// Blocks, or files, that were not what they had to be.
    pub(crate) mismatches: u64,
    /// What the crash must not lose: fsynced files, or flushed blocks.
    pub(crate) durable_before_crash: u64,
    /// How many of these were whole afterwards.
    pub(crate) durable_after_crash: u64,
    /// From the start of the attach command until the volume could be used again.
    pub(crate) seconds_to_recover: f64,
    /// Whether the file system's own checker found nothing; null without a file system.
    pub(crate) file_system_clean: Option<bool>,
    /// Whether `check --data` finds nothing wrong with the store at the end.
    pub(crate) store_sound: bool,
    /// Whether nothing was lost and nothing was wrong after the crash, the store included.
    pub(crate) recovered: bool,
    /// Where the picture is.
    pub(crate) picture: PathBuf,
}

impl Figures {
    /// Whether the demonstration shows what it is meant to.
    pub(crate) fn is_good(&self) -> bool {
        self.recovered && self.mismatches == 0
    }

    /// The table for people.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "4 KiB random writes      IOPS     MiB/s");
        let HeldBack { operations_per_second, bytes_per_second, latency_ms, speed } =
            &self.held_back;
        let bandwidth = Size(*bytes_per_second);
        let _ = writeln!(
            text,
            "the disk held back like a cloud volume: {operations_per_second} operations and {bandwidth} \
             a second, {latency_ms} ms each"
        );
        self.sides(&mut text, speed);
        let _ = writeln!(text, "the disk as it is");
        self.sides(&mut text, &self.speed);
        let (verified, wrong) = (Size(self.verified_bytes), self.mismatches);
        let colour = if wrong == 0 { GREEN } else { BAD };
        let _ = writeln!(text, "read back            {verified}, {colour}{wrong} wrong{colour:#}");
        let _ = writeln!(text, "write amplification  {:.2}", self.write_amplification);
        let _ = writeln!(text, "killed under load    {}", self.crash_words());
        let _ = write!(text, "picture              {}", self.picture.display());
        text
    }

    fn sides(&self, text: &mut String, speed: &Speed) {
        let mib = |iops: f64| iops * 4096.0 / f64::from(1 << 20);
        for (name, iops) in [(self.baseline, speed.baseline_iops), ("coulter", speed.coulter_iops)]
        {
            let _ = write!(text, "  {name:<18} {iops:>8.0}  {:>8.1}", mib(iops));
            let ratio = match name {
                "coulter" => format!("   {}", speed.words()),
                _ => String::new(),
            };
            let _ = writeln!(text, "{ratio}");
        }
    }

    fn crash_words(&self) -> String {
        let colour = if self.recovered { GREEN } else { BAD };
        let (before, after) = (self.durable_before_crash, self.durable_after_crash);
        let what =
            if self.file_system_clean.is_some() { "fsynced files" } else { "flushed writes" };
        let fsck = match self.file_system_clean {
            Some(true) => ", e2fsck clean",
            Some(false) => ", e2fsck found damage",
            None => "",
        };
        let check = if self.store_sound { "store sound" } else { "store damaged" };
        format!(
            "usable again in {:.2} s{fsck}, {check}, \
             {colour}{after} of {before} {what} whole{colour:#}",
            self.seconds_to_recover
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Figures {
        Figures {
            mode: "ext4-on-loop",
            baseline: "plain loop",
            size_bytes: 1 << 30,
            speed: Speed::of(vec![
                Round { baseline_iops: 500.0, coulter_iops: 5000.0 },
                Round { baseline_iops: 1500.0, coulter_iops: 3000.0 },
            ]),
            held_back: HeldBack {
                operations_per_second: 3000,
                bytes_per_second: 125 << 20,
                latency_ms: 1.0,
                speed: Speed::of(vec![
                    Round { baseline_iops: 3000.0, coulter_iops: 13_000.0 },
                    Round { baseline_iops: 3000.0, coulter_iops: 14_000.0 },
                ]),
            },
            write_amplification: 1.25,
            verified_bytes: 3 << 30,
            mismatches: 0,
            durable_before_crash: 12,
            durable_after_crash: 12,
            seconds_to_recover: 0.25,
            file_system_clean: Some(true),
            store_sound: true,
            recovered: true,
            picture: PathBuf::from("a.svg"),
        }
    }

    #[test]
    fn every_field_is_documented() {
        let documentation = include_str!("../../../../docs/json.md");
        let json = serde_json::to_value(figures()).expect("figures are JSON");
        for name in json.as_object().expect("figures are an object").keys() {
            assert!(documentation.contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn the_table_holds_the_figures() {
        let table = anstream::adapter::strip_str(&figures().table()).to_string();
        let expected = "\
4 KiB random writes      IOPS     MiB/s
the disk held back like a cloud volume: 3000 operations and 125 MiB a second, 1 ms each
  plain loop             3000      11.7
  coulter               13500      52.7   4.50 times (4.33 to 4.67 in 2 turns)
the disk as it is
  plain loop             1000       3.9
  coulter                4000      15.6   4.00 times (2.00 to 10.00 in 2 turns)
read back            3 GiB, 0 wrong
write amplification  1.25
killed under load    usable again in 0.25 s, e2fsck clean, store sound, 12 of 12 fsynced files whole
picture              a.svg";
        assert_eq!(table, expected);
    }
}
