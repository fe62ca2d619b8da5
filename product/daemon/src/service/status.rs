//! What is attached is doing, as its daemon tells it and `status` prints it.
//!
//! The library's statistics travel as they are, so that a counter that it adds shows up without a
//! change here; this file only adds the ratios that people ask for.

#[cfg(test)]
mod tests;
mod waiting;

use crate::acknowledge::Acknowledge;
use crate::copy::replication::{ReplicaFacts, UsageFacts};
use crate::life::degraded;
use crate::life::state::Entry;
use crate::life::trouble::Trouble;
use crate::service::scrub::{ScrubFacts, Stage};
use coulter_format::BLOCK_SIZE;
use coulter_terminal::Size;
use coulter_terminal::{self as terminal, BOLD};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;
use std::time::Duration;

/// How long a request waits before people are told.
const SILENCE_TOLD: Duration = Duration::from_secs(1);

/// What `status` knows of something that is attached.
#[derive(Clone, Debug, Serialize, Deserialize)]
// Each has fields that the other lacks.
#[serde(untagged)]
pub enum Facts {
    /// A volume.
    Volume(Status),
    /// Something that is no volume.
    Other(Other),
}

impl Facts {
    /// How it is attached.
    pub fn entry(&self) -> &Entry {
        match self {
            Facts::Volume(status) => &status.entry,
            Facts::Other(other) => &other.entry,
        }
    }

    /// Takes note of what is wrong outside of what serves it.
    pub(crate) fn tell_trouble(&mut self, trouble: Trouble) {
        let (entry, state) = match self {
            Facts::Volume(status) => (&mut status.entry, Some(&mut status.state)),
            Facts::Other(other) => (&mut other.entry, None),
        };
        if let (true, Some(state)) = (trouble.goes_before(&entry.failure), state) {
            state.clone_from(&trouble.words);
        }
        trouble.tell(&mut entry.failure, &mut entry.cut_off_bytes);
    }

    /// Takes note of the latest scrub.
    pub(crate) fn tell_scrub(&mut self, scrub: &ScrubFacts) {
        if let Facts::Volume(status) = self {
            status.scrub = Some(Box::new(scrub.clone()));
        }
    }

    fn meters(&self) -> Meters {
        match self {
            Facts::Volume(status) => status.meters(),
            Facts::Other(other) => other.meters,
        }
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Facts::Volume(status) => status.fmt(f),
            Facts::Other(other) => other.fmt(f),
        }
    }
}

/// Counters as an object.
pub fn facts_of(counters: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(counters) {
        Ok(Value::Object(counters)) => counters,
        other => unreachable!("statistics are an object of counters, not {other:?}"),
    }
}

/// The figures of an overlay as an object.
pub(crate) fn overlay_facts(figures: &coulter_overlay::Figures) -> Map<String, Value> {
    figures.named().iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect()
}

/// What rates are made of: totals from the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meters {
    /// Seconds since it was attached.
    pub seconds: f64,
    /// Bytes that the host has written.
    pub host_bytes: u64,
    /// Writes of the host.
    pub writes: u64,
    /// Reads of the host.
    pub reads: u64,
    /// Bytes written to what lies below.
    pub device_bytes: u64,
}

/// The facts of one moment about something that is no volume. What it is only its [`crate::Source`]
/// knows, which tells it in words and as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Other {
    /// What `list --json` shows.
    #[serde(flatten)]
    pub entry: Entry,
    /// Since it was attached.
    pub uptime_seconds: f64,
    /// For rates.
    pub meters: Meters,
    /// What it tells.
    #[serde(flatten)]
    pub told: Told,
}

/// What a [`crate::Backing`] tells of what lies below it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// For people: lines that are indented by two.
    #[serde(rename = "flash_text")]
    pub text: String,
    /// For programs. The key is that of the emulated drives, the first that told anything.
    #[serde(rename = "flash")]
    pub report: Map<String, Value>,
}

/// The facts of one moment about a volume; totals run from the opening of the store. Documented in
/// `docs/json.md`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// What `list --json` shows.
    #[serde(flatten)]
    pub entry: Entry,
    /// `running`, or why it can do less.
    pub state: String,
    /// Since it was attached.
    pub uptime_seconds: f64,
    /// Bytes written to the device per byte written by the host; 1 before the first write.
    pub write_amplification: f64,
    /// The parts that add up to it.
    pub write_amplification_by_cause: Causes,
    /// Metadata per byte written to the device.
    pub metadata_fraction: f64,
    /// The library's: `requests`, `device`, `written`, `space`, `map`, `log`, ….
    pub statistics: Map<String, Value>,
    /// Its copy elsewhere, if one is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<Box<ReplicaFacts>>,
    /// The words that ask for a copy that the store has, and that does not follow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_copy: Option<String>,
    /// The figures of the overlay that it is the store of; empty for other volumes.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub overlay: Map<String, Value>,
    /// The latest scrub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub: Option<Box<ScrubFacts>>,
    /// What lies below it, where that tells something.
    #[serde(flatten)]
    pub below: Option<Below>,
}

/// What lies below a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Below {
    /// Bytes written to the medium itself per byte written by the host; 0 before the first.
    pub total_write_amplification: f64,
    /// What it tells.
    #[serde(flatten)]
    pub told: Told,
}

/// Write amplification by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Causes {
    /// The host's own writes: 1.
    pub host: f64,
    /// Blocks that cleaning wrote again.
    pub cleaning: f64,
    /// Blocks written again at their places, so that flash pages with holes were written as a
    /// whole.
    #[serde(default)]
    pub padding: f64,
    /// Headers of records.
    pub headers: f64,
    /// The map, its runs included.
    pub map: f64,
    /// Segment tables, checkpoints and superblocks.
    pub checkpoints: f64,
}

impl Status {
    /// Puts the daemon's view together.
    pub fn new(
        entry: Entry,
        state: String,
        uptime: Duration,
        statistics: Map<String, Value>,
    ) -> Status {
        let mut status = Status {
            entry,
            state,
            uptime_seconds: uptime.as_secs_f64(),
            write_amplification: 1.0,
            write_amplification_by_cause: Causes { host: 1.0, ..Causes::default() },
            metadata_fraction: 0.0,
            statistics,
            replica: None,
            left_copy: None,
            overlay: Map::new(),
            scrub: None,
            below: None,
        };
        let written = |name| status.number(&["written", name]) as f64;
        let host = written("host_bytes");
        let headers = written("header_bytes");
        let map = written("map_bytes") + written("run_bytes");
        let checkpoints = written("checkpoint_bytes");
        let cleaned_metadata = written("relocated_metadata_bytes");
        let cleaning = written("relocated_bytes") + cleaned_metadata;
        let padding = written("padded_bytes");
        let total = host + cleaning + padding + headers + map + checkpoints;
        if host > 0.0 {
            status.write_amplification = total / host;
            assert!(status.write_amplification >= 1.0, "less was written than by the host");
            status.write_amplification_by_cause = Causes {
                host: 1.0,
                cleaning: cleaning / host,
                padding: padding / host,
                headers: headers / host,
                map: map / host,
                checkpoints: checkpoints / host,
            };
        }
        if total > 0.0 {
            let metadata = headers + map + checkpoints + cleaned_metadata;
            status.metadata_fraction = metadata / total;
        }
        status
    }

    /// The same on something that has written `medium_bytes` in all, and tells this of itself.
    #[must_use]
    pub fn on(mut self, medium_bytes: u64, told: Told) -> Status {
        let host = self.number(&["written", "host_bytes"]);
        let total = if host == 0 { 0.0 } else { medium_bytes as f64 / host as f64 };
        self.below = Some(Below { total_write_amplification: total, told });
        self
    }

    fn meters(&self) -> Meters {
        Meters {
            seconds: self.uptime_seconds,
            host_bytes: self.number(&["written", "host_bytes"]),
            writes: self.number(&["requests", "writes"]),
            reads: self.number(&["requests", "reads"]),
            device_bytes: self.number(&["device", "write_bytes"]),
        }
    }

    /// A counter of the library, or 0 if this version has none of that name.
    pub fn number(&self, path: &[&str]) -> u64 {
        let mut value = path.first().and_then(|name| self.statistics.get(*name));
        for name in &path[1..] {
            value = value.and_then(|value| value.get(name));
        }
        value.and_then(Value::as_u64).unwrap_or(0)
    }

    fn latency(&self, kind: &str) -> String {
        let name = format!("{kind}_latency");
        let part = |part| Microseconds(self.number(&[&name, part]));
        match self.number(&[&name, "count"]) {
            0 => format!("{kind} -"),
            _ => format!("{kind} {} / {} / {}", part("p50_ns"), part("p99_ns"), part("max_ns")),
        }
    }
}

/// What happened between two moments, per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Seconds between the moments.
    pub interval_seconds: f64,
    /// Bytes.
    pub host_written_bytes_per_second: f64,
    /// Requests.
    pub host_writes_per_second: f64,
    /// Requests.
    pub host_reads_per_second: f64,
    /// Bytes.
    pub device_written_bytes_per_second: f64,
    /// Of this interval alone.
    pub write_amplification: f64,
}

impl Rates {
    /// From `before` to `after`.
    pub fn between(before: &Facts, after: &Facts) -> Rates {
        let (before, after) = (before.meters(), after.meters());
        let interval = (after.seconds - before.seconds).max(1e-3);
        let growth = |counter: fn(&Meters) -> u64| {
            counter(&after).saturating_sub(counter(&before)) as f64 / interval
        };
        let host = growth(|meters| meters.host_bytes);
        let device = growth(|meters| meters.device_bytes);
        Rates {
            interval_seconds: interval,
            host_written_bytes_per_second: host,
            host_writes_per_second: growth(|meters| meters.writes),
            host_reads_per_second: growth(|meters| meters.reads),
            device_written_bytes_per_second: device,
            write_amplification: if host > 0.0 { device / host } else { 1.0 },
        }
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>9.0} writes/s {:>9.0} reads/s   host {:>8.1} MiB/s   device {:>8.1} MiB/s   \
             WAF {:.2}",
            self.host_writes_per_second,
            self.host_reads_per_second,
            self.host_written_bytes_per_second / f64::from(1 << 20),
            self.device_written_bytes_per_second / f64::from(1 << 20),
            self.write_amplification,
        )
    }
}

impl fmt::Display for ReplicaFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_replica(f, self)
    }
}

fn write_replica(f: &mut fmt::Formatter<'_>, replica: &ReplicaFacts) -> fmt::Result {
    let ReplicaFacts { url, ack, lag_bytes, lag_seconds, commit, .. } = replica;
    writeln!(
        f,
        "  replica    {url}, --ack {ack}: {} and {lag_seconds:.1} s behind, commit {commit}, {} shipped",
        Size(*lag_bytes),
        Size(replica.shipped_bytes)
    )?;
    let sum = |count: fn(&UsageFacts) -> u64| replica.usage.values().map(count).sum::<u64>();
    writeln!(
        f,
        "  requests   {} PUT, {} GET, {} DELETE; {} sent, {} received; ${:.4} at the list price of S3",
        sum(|usage| usage.puts),
        sum(|usage| usage.gets),
        sum(|usage| usage.deletes),
        Size(sum(|usage| usage.sent_bytes)),
        Size(sum(|usage| usage.received_bytes)),
        replica.cost_dollars
    )?;
    if replica.is_fenced {
        writeln!(
            f,
            "  fenced     another host has taken the volume over; this one serves nothing"
        )?;
    }
    if replica.missing_bytes > 0 {
        write!(f, "  cache      {} are still to be fetched", Size(replica.missing_bytes))?;
        match &replica.fill_error {
            Some(error) => writeln!(f, "; some cannot be: {error}")?,
            None => writeln!(f)?,
        }
    }
    for caution in &replica.cautions {
        writeln!(f, "  caution    {caution}")?;
    }
    if let (Some(seconds), Some(outage)) = (replica.outage_seconds, &replica.outage) {
        writeln!(f, "  outage     for {}: {outage}", Age(seconds as u64))?;
    }
    let (flushes, writes) = (replica.waiting_flushes, replica.waiting_writes);
    if flushes + writes > 0 {
        let remedy = match replica.ack.as_str() {
            "remote" if replica.outage_seconds.is_some() => {
                "; `coulter replicate NAME --ack local` lets flushes go on without it"
            }
            _ => "",
        };
        writeln!(f, "  waits      {flushes} flushes and {writes} writes for the copy{remedy}")?;
    }
    Ok(())
}

impl Status {
    /// The lines about writes and space.
    fn write_work(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |group, counter| self.number(&[group, counter]);
        let causes = self.write_amplification_by_cause;
        writeln!(
            f,
            "  written    {} by the host, WAF {:.2}: cleaning {:.3}, {}headers {:.4}, \
             map {:.4}, checkpoints {:.4}",
            Size(number("written", "host_bytes")),
            self.write_amplification,
            causes.cleaning,
            if causes.padding > 0.0 {
                format!("padding {:.3}, ", causes.padding)
            } else {
                String::new()
            },
            causes.headers,
            causes.map,
            causes.checkpoints
        )?;
        let (empty, segment) =
            (number("space", "segments_empty"), number("space", "segment_size_bytes"));
        writeln!(
            f,
            "  space      {} in use, {empty} of {} segments empty ({}), {} cleaned",
            Size(number("space", "valid_bytes")),
            number("space", "segments_total"),
            Size(empty * segment),
            number("space", "segments_cleaned"),
        )?;
        self.write_limits(f)?;
        writeln!(
            f,
            "  map        {} of {} memory, {} lookups hit, {} missed",
            Size(number("map", "memory_bytes")),
            Size(number("map", "memory_limit_bytes")),
            number("map", "hits"),
            number("map", "misses")
        )?;
        if number("read_cache", "memory_bytes") > 0 {
            writeln!(
                f,
                "  reads      {} hits in the read cache ({} of memory), {} misses",
                number("read_cache", "hits"),
                Size(number("read_cache", "memory_bytes")),
                number("read_cache", "misses")
            )?;
        }
        writeln!(
            f,
            "  log        {} flushes by hosts, {} of the device, {} checkpoints, {} damaged blocks",
            number("log", "flushes_answered"),
            number("log", "device_flushes"),
            number("log", "checkpoints"),
            number("log", "corrupt_blocks"),
        )?;
        Ok(())
    }

    /// The lines about limits of space, and about what is written anew.
    fn write_limits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |group, counter| self.number(&[group, counter]);
        let limit = number("space", "charged_limit_bytes");
        if limit > 0 {
            let used = Size(number("space", "charged_bytes"));
            writeln!(f, "  capacity   {used} of {} in use, map pages included", Size(limit))?;
            let touched = Size(number("space", "touched_bytes"));
            let limit = Size(number("space", "touched_limit_bytes"));
            writeln!(f, "  touched    {touched} of {limit} of addresses, in stretches of 1 GiB")?;
        }
        let position = number("cleaning", "defrag_position_bytes");
        if (1..self.entry.volume_size_bytes).contains(&position) {
            let moved = Size(number("cleaning", "defragmented_bytes"));
            writeln!(f, "  defrag     at {} of the volume, {moved} moved", Size(position))?;
        }
        Ok(())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { name, store, device, via, process, .. } = &self.entry;
        let device = coulter_terminal::line(device.as_deref().unwrap_or("-"));
        writeln!(
            f,
            "{BOLD}{name}{BOLD:#}  {} at {device} ({via}, process {}), {}, up {}, from {}",
            Size(self.entry.told_size()),
            process.pid,
            self.state,
            Age(self.uptime_seconds as u64),
            terminal::path(store)
        )?;
        let Entry { uuid, label, version, .. } = &self.entry;
        let label = if label.is_empty() { String::new() } else { format!(", LABEL={label}") };
        writeln!(f, "  identity   UUID={uuid}{label}, coulter {version}")?;
        if let Some(in_doubt) = self.entry.in_doubt_bytes {
            let blocks = in_doubt / BLOCK_SIZE as u64;
            let remedy = degraded::remedy(&self.entry, in_doubt);
            writeln!(f, "  degraded   {blocks} blocks in doubt: {remedy}")?;
        }
        if self.entry.in_doubt_bytes.is_none() && self.number(&["log", "may_have_lost"]) > 0 {
            writeln!(
                f,
                "  lost       earlier damage took some of the data: `coulter scrub {name}` says which cannot be read, or \
                 that all can again"
            )?;
        }
        if self.entry.acknowledge == Acknowledge::Buffered {
            writeln!(
                f,
                "  writeback  writes are acknowledged from memory (buffered); only a flush makes them last"
            )?;
        }
        if let Some(scrub) = self.scrub.as_ref().filter(|scrub| scrub.state != Stage::Never) {
            scrub.write_lines(f)?;
        }
        if let Some(replica) = &self.replica {
            write_replica(f, replica)?;
        }
        if let Some(words) = &self.left_copy {
            writeln!(f, "  copy       does not follow the store: attach it with {words}")?;
        }
        self.write_work(f)?;
        self.write_waiting(f)?;
        let latencies = ["read", "write", "flush"].map(|kind| self.latency(kind)).join(", ");
        write!(f, "  latency    {latencies} (p50 / p99 / max)")?;
        let Some(Below { total_write_amplification: total, told }) = &self.below else {
            return Ok(());
        };
        write!(f, "\n{}\n  in all     WAF {total:.3}", told.text)
    }
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { name, device, via, process, volume_size_bytes, .. } = &self.entry;
        writeln!(
            f,
            "{BOLD}{name}{BOLD:#}  {} at {} ({via}, process {}), emulated",
            Size(*volume_size_bytes),
            coulter_terminal::line(device.as_deref().unwrap_or("-")),
            process.pid,
        )?;
        f.write_str(&self.told.text)
    }
}

/// Nanoseconds, printed as microseconds or milliseconds.
struct Microseconds(u64);

impl fmt::Display for Microseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..10_000_000 => write!(f, "{} µs", self.0 / 1000),
            longer => write!(f, "{} ms", longer / 1_000_000),
        }
    }
}

/// Seconds, printed as `up 3 d 4 h`.
struct Age(u64);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
        let first = units.iter().position(|(seconds, _)| self.0 >= *seconds).unwrap_or(3);
        let mut rest = self.0;
        for (place, (seconds, unit)) in units.iter().skip(first).take(2).enumerate() {
            write!(f, "{}{} {unit}", if place > 0 { " " } else { "" }, rest / seconds)?;
            rest %= seconds;
        }
        Ok(())
    }
}
