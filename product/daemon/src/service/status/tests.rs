use super::*;
use coulter_system::process::Process;
use serde_json::json;
use std::path::PathBuf;

fn status(seconds: u64, written: Value) -> Status {
    let entry = Entry {
        store: PathBuf::from("/srv/a.img"),
        device: Some("/dev/loop0".to_owned()),
        volume_size_bytes: 1 << 30,
        store_size_bytes: 0,
        ..Entry::sample("a", Process { pid: 7, start_ticks: 1 })
    };
    let mut statistics = Map::new();
    statistics.insert("written".to_owned(), written);
    Status::new(entry, "running".to_owned(), Duration::from_secs(seconds), statistics)
}

#[test]
fn the_causes_add_up_to_the_amplification() {
    let status = status(
        1,
        json!({
            "host_bytes": 1000, "relocated_bytes": 300, "relocated_metadata_bytes": 20,
            "padded_bytes": 58, "header_bytes": 4, "map_bytes": 5, "run_bytes": 6, "checkpoint_bytes": 7,
        }),
    );
    assert!((status.write_amplification - 1.4).abs() < 1e-9);
    let Causes { host, cleaning, padding, headers, map, checkpoints } =
        status.write_amplification_by_cause;
    let sum = host + cleaning + padding + headers + map + checkpoints;
    assert!((sum - status.write_amplification).abs() < 1e-9);
    assert!((status.metadata_fraction - 42.0 / 1400.0).abs() < 1e-9);
    assert!(status.to_string().contains("padding 0.058"), "{status}");
}

#[test]
fn before_the_first_write_the_amplification_is_one() {
    let status = status(1, json!({ "host_bytes": 0, "checkpoint_bytes": 8192 }));
    assert_eq!(status.write_amplification, 1.0);
    assert_eq!(status.metadata_fraction, 1.0);
}

#[test]
fn rates_are_what_two_moments_differ_by() {
    let device = |bytes: u64| json!({ "write_bytes": bytes });
    let mut before = status(10, json!({ "host_bytes": 1 << 20 }));
    before.statistics.insert("device".to_owned(), device(1 << 20));
    let mut after = status(12, json!({ "host_bytes": 5 << 20 }));
    after.statistics.insert("device".to_owned(), device(7 << 20));
    let rates = Rates::between(&Facts::Volume(before), &Facts::Volume(after));
    assert_eq!(rates.host_written_bytes_per_second, f64::from(2 << 20));
    assert_eq!(rates.write_amplification, 1.5);
}

#[test]
fn a_status_survives_the_control_socket() {
    let sent = status(3, json!({ "host_bytes": 4096 }));
    let text = serde_json::to_string(&sent).expect("it is JSON");
    let received: Facts = serde_json::from_str(&text).expect("it is a status");
    let Facts::Volume(received) = received else { panic!("not a volume: {received:?}") };
    assert_eq!(received.number(&["written", "host_bytes"]), 4096);
    assert_eq!(received.entry, sent.entry);
}

fn told() -> Told {
    let report = facts_of(&json!({ "nand": { "programs": { "host": 2 } } }));
    Told { text: "  drive      quick".to_owned(), report }
}

#[test]
fn what_is_no_volume_survives_the_control_socket_and_has_rates() {
    let entry = status(3, json!({})).entry;
    let other = |seconds: f64| {
        let done = if seconds > 0.0 { 1 } else { 0 };
        let host_bytes = 8192 * done;
        let device_bytes = 20_480 * done;
        let meters =
            Meters { seconds, host_bytes, device_bytes, writes: done, ..Meters::default() };
        let (entry, told) = (entry.clone(), told());
        Facts::Other(Other { entry, uptime_seconds: seconds, meters, told })
    };
    let text = serde_json::to_string(&other(2.0)).expect("it is JSON");
    assert_eq!(text.matches("\"name\"").count(), 1, "{text}");
    let received: Facts = serde_json::from_str(&text).expect("it is a status");
    assert!(matches!(&received, Facts::Other(other) if other.told == told()), "{received:?}");
    assert!(received.to_string().ends_with("emulated\n  drive      quick"), "{received}");
    let rates = Rates::between(&other(0.0), &received);
    assert_eq!(rates.host_written_bytes_per_second, 4096.0);
    assert_eq!(rates.write_amplification, 2.5);
}

#[test]
fn above_something_that_tells_both_amplifications_count() {
    let status = status(3, json!({ "host_bytes": 4096, "header_bytes": 4096 }));
    let status = status.on(20_480, told());
    assert_eq!(status.write_amplification, 2.0);
    let text = serde_json::to_string(&status).expect("it is JSON");
    let received: Status = serde_json::from_str(&text).expect("it is a status");
    let below = received.below.expect("something lies below");
    assert_eq!(below, Below { total_write_amplification: 5.0, told: told() });
}

#[test]
fn ages_have_two_units() {
    let text = |seconds| Age(seconds).to_string();
    assert_eq!(text(0), "0 s");
    assert_eq!(text(59), "59 s");
    assert_eq!(text(3660), "1 h 1 min");
    assert_eq!(text(90_000), "1 d 1 h");
}
