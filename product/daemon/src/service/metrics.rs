//! The facts of `status` as Prometheus reads them: its text format, version 0.0.4.
//!
//! Every counter of the library becomes a metric under its own name, so that one that it adds shows
//! up without a change here: `statistics.written.host_bytes` is `coulter_written_host_bytes_total`.
//! Units are Prometheus's: bytes and seconds.

use crate::acknowledge::Acknowledge;
use crate::copy::replication::{ReplicaFacts, UsageFacts};
use crate::life::state::Entry;
use crate::service::scrub::{ScrubFacts, Stage};
use crate::service::status::Facts;
use serde_json::{Map, Value};
use std::fmt::{Display, Write};

/// What goes up and down, of the groups and counters of the library; all others only go up.
const GAUGES: [(&str, &str); 29] = [
    ("overlay", "files"),
    ("overlay", "settled_files"),
    ("overlay", "settle_backlog_files"),
    ("overlay", "orphans"),
    ("overlay", "faults_total"),
    ("overlay", "stored_bytes"),
    ("overlay", "capacity_bytes"),
    ("overlay", "windows"),
    ("overlay", "windows_total"),
    ("overlay", "known_nodes"),
    ("space", "segment_size_bytes"),
    ("space", "segments_total"),
    ("space", "segments_empty"),
    ("space", "valid_bytes"),
    ("space", "charged_bytes"),
    ("space", "charged_limit_bytes"),
    ("space", "touched_bytes"),
    ("space", "touched_limit_bytes"),
    ("cleaning", "defrag_position_bytes"),
    ("map", "memory_bytes"),
    ("map", "memory_peak_bytes"),
    ("map", "memory_limit_bytes"),
    ("read_cache", "memory_bytes"),
    ("log", "may_have_lost"),
    ("log", "applied_sequence"),
    ("log", "durable_sequence"),
    ("log", "runs"),
    ("tuning", ""),
    ("waiting", ""),
];

/// Quantiles of a group of latencies.
const QUANTILES: [(&str, &str); 3] = [("0.5", "p50_ns"), ("0.99", "p99_ns"), ("0.999", "p999_ns")];

const NANOSECONDS: f64 = 1e-9;

/// Writes all metrics of what is attached.
pub(crate) fn render(facts: &Facts) -> String {
    let mut page = Page { text: String::new(), name: facts.entry().name.clone() };
    page.entry(facts.entry());
    match facts {
        Facts::Volume(status) => {
            let running = u8::from(status.entry.failure.is_none());
            page.gauge("running", "1 if it can do all that it was attached for", running);
            let in_doubt = status.entry.in_doubt_bytes;
            let help = "1 if metadata was damaged beyond repair when it was opened";
            page.gauge("degraded", help, u8::from(in_doubt.is_some()));
            let help = "Bytes of the volume that cannot be read for that reason";
            page.gauge("in_doubt_bytes", help, in_doubt.unwrap_or(0));
            page.gauge("uptime_seconds", "Since it was attached", status.uptime_seconds);
            let help = "Bytes written to the device per byte written by the host";
            page.gauge("write_amplification", help, status.write_amplification);
            page.statistics(&status.statistics);
            if let Some(replica) = &status.replica {
                page.replica(replica);
            }
            page.group("overlay", "overlay", &status.overlay);
            if let Some(scrub) = &status.scrub {
                page.scrub(scrub);
            }
        }
        Facts::Other(status) => {
            page.gauge("uptime_seconds", "Since it was attached", status.uptime_seconds);
        }
    }
    page.text
}

struct Page {
    text: String,
    /// The label of every sample.
    name: String,
}

impl Page {
    fn entry(&mut self, entry: &Entry) {
        let Entry { store, via, uuid, .. } = entry;
        let labels = format!(
            "name=\"{}\",store=\"{}\",via=\"{via}\",uuid=\"{}\",version=\"{}\"",
            escape(&entry.name),
            escape(&store.display().to_string()),
            escape(uuid),
            env!("CARGO_PKG_VERSION")
        );
        self.head("info", "gauge", "What is attached");
        self.line(&format!("coulter_info{{{labels}}} 1"));
        self.gauge("volume_size_bytes", "What the host sees", entry.volume_size_bytes);
        self.gauge("read_only", "1 if writes are refused", u8::from(entry.read_only));
        let is_buffered = entry.acknowledge == Acknowledge::Buffered;
        let help = "1 if writes are acknowledged from memory";
        self.gauge("buffered", help, u8::from(is_buffered));
        let help = "When it was attached, in seconds since 1970";
        self.gauge("attached_at_unix_seconds", help, entry.attached_at_unix_seconds);
    }

    /// The latest scrub, whichever daemon began it.
    fn scrub(&mut self, scrub: &ScrubFacts) {
        let is_running = u8::from(scrub.state == Stage::Running);
        self.gauge("scrub_running", "1 while a scrub goes on", is_running);
        let help = "Bytes of the volume up to which the latest scrub has come";
        self.gauge("scrub_position_bytes", help, scrub.position_bytes);
        let help = "Bytes that the latest scrub has read and compared";
        let checked = scrub.checked_bytes + scrub.metadata_checked_bytes;
        self.gauge("scrub_checked_bytes", help, checked);
        let help = "Bytes of the volume that the latest scrub could not read";
        self.gauge("scrub_damaged_bytes", help, scrub.damaged_bytes);
        let help = "Damaged blocks of metadata that the latest scrub could not repair";
        let left = scrub.metadata_damaged.saturating_sub(scrub.metadata_repaired);
        self.gauge("scrub_metadata_damaged_blocks", help, left);
        let help = "Damaged blocks of metadata that the latest scrub repaired";
        self.gauge("scrub_metadata_repaired_blocks", help, scrub.metadata_repaired);
        let help =
            "When the latest scrub had gone through everything, in seconds since 1970; 0 before";
        self.gauge("scrub_finished_at_unix_seconds", help, scrub.finished_at_unix_seconds);
    }

    fn statistics(&mut self, statistics: &Map<String, Value>) {
        for (group, counters) in statistics {
            let Value::Object(counters) = counters else { continue };
            match group.strip_suffix("_latency") {
                Some(kind) => self.latency(kind, counters),
                None => self.group(group, &format!("statistics.{group}"), counters),
            }
        }
    }

    /// Counters; `place` is where they stand in the facts.
    fn group(&mut self, group: &str, place: &str, counters: &Map<String, Value>) {
        for (counter, value) in counters {
            let Some(value) = value.as_u64() else { continue };
            let help = format!("{place}.{counter} of coulter status --json");
            let is_gauge =
                |(of, name): &(&str, &str)| *of == group && (name.is_empty() || name == counter);
            if GAUGES.iter().any(is_gauge) {
                match counter.strip_suffix("_ns") {
                    Some(time) => {
                        let seconds = value as f64 * NANOSECONDS;
                        self.gauge(&format!("{group}_{time}_seconds"), &help, seconds);
                    }
                    None => self.gauge(&format!("{group}_{counter}"), &help, value),
                }
            } else {
                let name = format!("{group}_{counter}_total");
                self.head(&name, "counter", &help);
                self.sample(&name, "", value);
            }
        }
    }

    /// A distribution: quantiles since the opening, sum and count.
    fn latency(&mut self, kind: &str, counters: &Map<String, Value>) {
        let number = |name: &str| counters.get(name).and_then(Value::as_u64).unwrap_or(0);
        let name = format!("{kind}_latency_seconds");
        self.head(&name, "summary", &format!("Times of a {kind} from hand-over to completion"));
        let count = number("count");
        for (quantile, part) in QUANTILES {
            let label = format!(",quantile=\"{quantile}\"");
            self.sample(&name, &label, number(part) as f64 * NANOSECONDS);
        }
        let sum = number("mean_ns") as f64 * count as f64 * NANOSECONDS;
        self.sample(&format!("{name}_sum"), "", sum);
        self.sample(&format!("{name}_count"), "", count);
        let longest = format!("{kind}_latency_max_seconds");
        self.gauge(&longest, "The longest of them", number("max_ns") as f64 * NANOSECONDS);
    }

    /// How the copy of a replicated store stands, and what its bucket was asked.
    fn replica(&mut self, replica: &ReplicaFacts) {
        let help = "Bytes that are in no commit yet";
        self.gauge("replica_lag_bytes", help, replica.lag_bytes);
        let help = "For how long something has waited to be in a commit";
        self.gauge("replica_lag_seconds", help, replica.lag_seconds);
        let help = "For how long the bucket has not answered; 0 if it does";
        self.gauge("replica_outage_seconds", help, replica.outage_seconds.unwrap_or(0.0));
        let help = "1 if another host has taken the volume over";
        self.gauge("replica_fenced", help, u8::from(replica.is_fenced));
        let help = "Bytes that the cache has still to fetch";
        self.gauge("replica_missing_bytes", help, replica.missing_bytes);
        for (name, help, value) in [
            ("commits", "Commits since the opening", replica.commits),
            ("written_bytes", "Bytes written to the device", replica.written_bytes),
            ("shipped_bytes", "Bytes shipped", replica.shipped_bytes),
            ("unreadable_bytes", "Bytes that could not be read back", replica.unreadable_bytes),
        ] {
            let name = format!("replica_{name}_total");
            self.head(&name, "counter", help);
            self.sample(&name, "", value);
        }
        type Count = fn(&UsageFacts) -> u64;
        let counts: [(&str, &str, Count); 6] = [
            ("puts", "Creations and swaps of an object", |usage| usage.puts),
            ("gets", "Reads of an object or of a part of it", |usage| usage.gets),
            ("deletes", "Deletions of an object", |usage| usage.deletes),
            ("lists", "Lists of names", |usage| usage.lists),
            ("sent_bytes", "Bytes of objects sent to the bucket", |usage| usage.sent_bytes),
            ("received_bytes", "Bytes of objects received", |usage| usage.received_bytes),
        ];
        for (name, help, count) in counts {
            let name = format!("replica_bucket_{name}_total");
            self.head(&name, "counter", help);
            for (cause, usage) in &replica.usage {
                self.sample(&name, &format!(",cause=\"{cause}\""), count(usage));
            }
        }
        let help =
            "Cost of the requests at the list price of S3 Standard, without traffic and space";
        self.head("replica_cost_dollars_total", "counter", help);
        self.sample("replica_cost_dollars_total", "", replica.cost_dollars);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "gauge", help);
        self.sample(name, "", value);
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        assert!(!help.contains('\n'), "a help text is one line");
        assert!(kind != "counter" || name.ends_with("_total"), "{name}: counters end in _total");
        self.line(&format!("# HELP coulter_{name} {help}\n# TYPE coulter_{name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let of = escape(&self.name);
        self.line(&format!("coulter_{name}{{name=\"{of}\"{labels}}} {value}"));
    }

    fn line(&mut self, line: &str) {
        writeln!(self.text, "{line}").expect("a string takes all text");
    }
}

/// A label's value, as the format wants it.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::status::{Status, facts_of};
    use coulter::{ReadOnlyReason, State};
    use coulter_system::process::Process;
    use std::collections::BTreeSet;
    use std::path::PathBuf;
    use std::time::Duration;

    fn page() -> String {
        page_of(State::Running)
    }

    fn page_of(state: State) -> String {
        let entry = Entry {
            store: PathBuf::from("/srv/odd \"name\"\n.img"),
            device: Some("/dev/loop0".into()),
            uuid: "u".into(),
            label: String::new(),
            version: String::new(),
            attached_at_unix_seconds: 3,
            ..Entry::sample("a", Process { pid: 1, start_ticks: 2 })
        };
        let mut statistics = facts_of(&coulter::Statistics::default());
        statistics["written"]["host_bytes"] = 8192.into();
        statistics["read_latency"]["count"] = 2.into();
        statistics["read_latency"]["mean_ns"] = 1_500_000_000_u64.into();
        let entry = entry.in_state(&state);
        let status = Status::new(entry, state.to_string(), Duration::from_secs(9), statistics);
        render(&Facts::Volume(status))
    }

    #[test]
    fn every_sample_has_a_type_and_appears_once() {
        let page = page();
        let types: BTreeSet<&str> = page
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "))
            .filter_map(|line| line.split(' ').next())
            .collect();
        let mut seen = BTreeSet::new();
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').expect("a name and a value");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(seen.insert(series), "{series} twice");
            let name = series.split('{').next().expect("a name");
            let base = name.strip_suffix("_sum").or(name.strip_suffix("_count")).unwrap_or(name);
            assert!(types.contains(name) || types.contains(base), "{name} has no type");
        }
        assert!(seen.len() > 70, "{}", seen.len());
    }

    #[test]
    fn a_volume_that_failed_does_not_run_and_one_that_is_only_read_does() {
        let failed = ReadOnlyReason::Failed { errno: 28 };
        for (state, running, read_only) in [
            (State::Running, 1, 0),
            (State::ReadOnly(ReadOnlyReason::Opened), 1, 1),
            (State::ReadOnly(failed), 0, 1),
            (State::Failed("it panicked".into()), 0, 1),
            (State::Degraded { in_doubt_bytes: 8192 }, 0, 0),
        ] {
            let page = page_of(state);
            for (metric, value) in [("running", running), ("read_only", read_only)] {
                let line = format!("coulter_{metric}{{name=\"a\"}} {value}");
                assert!(page.lines().any(|other| other == line), "{line} is not in\n{page}");
            }
        }
    }

    #[test]
    fn a_degraded_volume_tells_how_much_is_in_doubt() {
        let degraded =
            |in_doubt_bytes| State::ReadOnly(ReadOnlyReason::Degraded { in_doubt_bytes });
        for (state, is_degraded, in_doubt) in [
            (State::Running, 0, 0),
            (State::ReadOnly(ReadOnlyReason::Opened), 0, 0),
            (State::Degraded { in_doubt_bytes: 8192 }, 1, 8192),
            (degraded(4096), 1, 4096),
            (degraded(0), 1, 0),
        ] {
            let page = page_of(state);
            for (metric, value) in [("degraded", is_degraded), ("in_doubt_bytes", in_doubt)] {
                let line = format!("coulter_{metric}{{name=\"a\"}} {value}");
                assert!(page.lines().any(|other| other == line), "{line} is not in\n{page}");
            }
        }
    }

    #[test]
    fn counters_are_totals_and_latencies_are_seconds() {
        let page = page();
        for line in [
            "coulter_written_host_bytes_total{name=\"a\"} 8192",
            "# TYPE coulter_written_host_bytes_total counter",
            "# TYPE coulter_space_segments_empty gauge",
            "coulter_read_latency_seconds_sum{name=\"a\"} 3",
            "coulter_read_latency_seconds_count{name=\"a\"} 2",
            "coulter_running{name=\"a\"} 1",
            "coulter_uptime_seconds{name=\"a\"} 9",
        ] {
            assert!(page.lines().any(|other| other == line), "{line} is not in\n{page}");
        }
        assert!(page.contains("store=\"/srv/odd \\\"name\\\"\\n.img\""), "{page}");
    }
}
