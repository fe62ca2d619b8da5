//! A store with metadata damaged beyond repair: attached degraded, and told so by every verb.

mod sandbox;

use sandbox::{Sandbox, skipped};
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const BLOCK_SIZE: u64 = 4096;

/// Runs qemu-io on a volume; `None` where it is missing, else whether all was well.
fn qemu(uri: &str, commands: &[&str]) -> Option<bool> {
    let mut qemu = Command::new("qemu-io");
    let writes = commands.iter().any(|command| command.starts_with("write"));
    qemu.args(if writes { &["-f", "raw"][..] } else { &["-r", "-f", "raw"] });
    commands.iter().for_each(|command| _ = qemu.args(["-c", command]));
    let output = qemu.arg(uri.trim_end()).output().ok()?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(output.status.success() && !told.contains("failed"))
}

/// A closed store with a pattern in it, of which both copies of the segment table are damaged.
fn damaged() -> Option<Sandbox> {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "64M", "--segment-size", "2M"]);
    let uri = sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    let written = qemu(&uri, &["write -P 0x42 0 8M", "flush"]);
    sandbox.ok(&["detach", "disk"]);
    if written != Some(true) {
        skipped("degraded volumes: qemu-io is not installed");
        return None;
    }
    let checkpoint = sandbox.json(&["dump", "disk.img", "checkpoint", "--json"]);
    let file = File::options().write(true).open(sandbox.path("disk.img")).expect("it is there");
    let places = table_blocks(&checkpoint);
    assert!(places.len() >= 2, "both copies: {checkpoint}");
    for block in places {
        file.write_all_at(&[0x5a; 100], block * BLOCK_SIZE).expect("it is writable");
    }
    Some(sandbox)
}

/// Where both copies of the segment table lie.
fn table_blocks(checkpoint: &Value) -> Vec<u64> {
    let listed = |name: &str| checkpoint[name].as_array().cloned().unwrap_or_default();
    let copies = listed("second_copies");
    let copies = copies.into_iter().filter(|copy| copy["kind"] == "table_copy");
    listed("table").into_iter().chain(copies).filter_map(|it| it["block"].as_u64()).collect()
}

#[test]
fn a_degraded_volume_is_read_only_and_every_verb_says_so() {
    let Some(sandbox) = damaged() else { return };
    let attach = ["attach", "disk.img", "--via", "nbd-server"];
    let error = sandbox.fails(1, &[&attach[..], &["--degraded", "refuse"]].concat());
    assert!(error.contains("`coulter salvage` takes out what is left"), "{error}");
    // That counts are lost is beyond what may be written to.
    for words in [&[][..], &["--degraded", "rw"]] {
        let output = sandbox.run(&[&attach[..], words].concat());
        assert!(output.status.success(), "{output:?}");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains("'disk' is degraded: "), "{told}");
        let uri = String::from_utf8(output.stdout).expect("it is text");
        assert_eq!(qemu(&uri, &["write 0 4k"]), Some(false), "it refuses writes");
        assert_eq!(qemu(&uri, &["read -P 0x42 0 8M"]), Some(true), "all of it is there");
        for verb in ["list", "status"] {
            let error = sandbox.fails(1, &[verb]);
            assert!(error.contains("degraded: metadata is damaged beyond repair"), "{error}");
            assert!(error.contains("copy the volume to a new store"), "{error}");
        }
        let (json, text, _) = status_of(&sandbox);
        assert_eq!((&json["in_doubt_bytes"], &json["read_only"]), (&0.into(), &true.into()));
        assert!(text.contains("0 blocks in doubt: copy the volume to a new store"), "{text}");
        let error = sandbox.fails(1, &["check", "disk"]);
        assert!(error.contains("all data can be read; unrepaired blocks of metadata"), "{error}");
        assert!(error.contains("nothing need be restored"), "{error}");
        sandbox.ok(&["detach", "disk"]);
    }
    let output = sandbox.run(&["check", "disk.img"]);
    assert_eq!(output.status.code(), Some(1), "it is damaged");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("segment table page 0"), "{told}");
    assert!(told.contains("attaching: the store opens degraded: all data can be read"), "{told}");
    assert!(!told.contains("cannot be opened"), "{told}");
}

/// A store that was killed after some writes of four blocks, each flushed, of which the header of the third and its
/// payload are damaged.
fn missing_a_record() -> Option<Sandbox> {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "64M", "--segment-size", "2M"]);
    let uri = sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    for number in 0..6u32 {
        let write = format!("write -P {} {}k 16k", number + 1, 16 * number);
        if qemu(&uri, &[&write, "flush"]) != Some(true) {
            skipped("degraded volumes: qemu-io is not installed");
            sandbox.ok(&["detach", "disk"]);
            return None;
        }
    }
    sandbox.signal("disk", "KILL");
    sandbox.ok(&["detach", "disk", "--force"]);
    let output = sandbox.run(&["dump", "disk.img", "records", "--json"]);
    let records: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let mut of_host: Vec<(u64, u64)> = Vec::new();
    for record in records.as_array().expect("it is a list") {
        let number = |name: &str| record[name].as_u64().expect("it is a number");
        if number("stream") == 0 && number("payload_blocks") == 4 {
            of_host.push((number("sequence"), number("block")));
        }
    }
    of_host.sort_unstable();
    assert_eq!(of_host.len(), 6, "{records}");
    let file = File::options().write(true).open(sandbox.path("disk.img")).expect("it is there");
    file.write_all_at(&[0x5a; 2 * 4096], of_host[2].1 * BLOCK_SIZE).expect("it is writable");
    Some(sandbox)
}

/// What `status` tells, as JSON and for people, with its error.
fn status_of(sandbox: &Sandbox) -> (Value, String, String) {
    let output = sandbox.run(&["status", "disk", "--json"]);
    let json = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let output = sandbox.run(&["status", "disk"]);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it is text");
    (json, text(output.stdout), text(output.stderr))
}

/// The value of a metric of the only volume.
fn metric(sandbox: &Sandbox, name: &str) -> Option<u64> {
    let address = sandbox.listed()[0]["metrics"].as_str().expect("it has metrics").to_owned();
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("it hears");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("it answers");
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("coulter_{name}{{")))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[test]
fn a_degraded_volume_that_takes_writes_says_what_is_in_doubt_until_it_is_written() {
    let Some(sandbox) = missing_a_record() else { return };
    let attach = ["attach", "disk.img", "--via", "nbd-server", "--metrics", "127.0.0.1:0"];
    let output = sandbox.run(&[&attach[..], &["--degraded", "rw"]].concat());
    let warning = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(warning.contains("'disk' is degraded: ") && warning.contains("16 KiB"), "{warning}");
    let uri = String::from_utf8(output.stdout).expect("it is text");
    let (json, text, error) = status_of(&sandbox);
    assert_eq!((&json["in_doubt_bytes"], &json["read_only"]), (&16384.into(), &false.into()));
    let state = json["state"].as_str().expect("it is text");
    assert!(state.starts_with("degraded: ") && state.contains("16 KiB are in doubt"), "{state}");
    assert!(text.contains("4 blocks in doubt: overwrite them from a copy"), "{text}");
    assert!(error.contains("'disk' is damaged") && error.contains("salvage"), "{error}");
    assert_eq!(metric(&sandbox, "degraded"), Some(1));
    assert_eq!(metric(&sandbox, "in_doubt_bytes"), Some(16384));
    assert_eq!(metric(&sandbox, "running"), Some(0));
    assert_eq!(qemu(&uri, &["read -P 2 16k 16k", "read -P 4 48k 16k"]), Some(true));
    assert_eq!(qemu(&uri, &["read 32k 4k"]), Some(false), "it is in doubt");
    // A write ends the doubt, and so does a discard.
    assert_eq!(qemu(&uri, &["write -P 9 32k 4k", "read -P 9 32k 4k"]), Some(true));
    assert_eq!(status_of(&sandbox).0["in_doubt_bytes"], 12288);
    assert_eq!(qemu(&uri, &["write -z -u 36k 8k", "write -P 9 44k 4k"]), Some(true));
    let (json, text, error) = status_of(&sandbox);
    assert_eq!((&json["in_doubt_bytes"], &json["state"]), (&Value::Null, &"running".into()));
    assert!(!text.contains("degraded") && error.is_empty(), "{text}{error}");
    assert_eq!(metric(&sandbox, "degraded"), Some(0));
    assert_eq!(metric(&sandbox, "running"), Some(1));
    let until = Instant::now() + Duration::from_secs(20);
    while !sandbox.run(&["list"]).status.success() {
        assert!(Instant::now() < until, "lists show it within two seconds");
        thread::sleep(Duration::from_millis(100));
    }
    sandbox.ok(&["detach", "disk"]);
    // Nothing is lost in the map any more. The header stays damaged for its segment cannot be cleaned.
    let output = sandbox.run(&["check", "disk.img", "--data"]);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let faults: Vec<&str> = told.lines().filter(|line| line.starts_with("fault")).collect();
    assert!(
        matches!(faults[..], [fault] if fault.contains("a record header is damaged")),
        "{told}"
    );
}

#[test]
fn what_is_lost_is_told_of_at_later_openings_until_a_scrub_meets_none() {
    let Some(sandbox) = missing_a_record() else { return };
    let attach = ["attach", "disk.img", "--via", "nbd-server", "--metrics", "127.0.0.1:0"];
    sandbox.ok(&[&attach[..], &["--degraded", "rw"]].concat());
    let (_, text, _) = status_of(&sandbox);
    assert!(!text.contains("earlier damage"), "how much is in doubt is known: {text}");
    sandbox.ok(&["detach", "disk"]);
    let uri = sandbox.ok(&attach);
    let told = |sandbox: &Sandbox| {
        let (json, text, error) = status_of(sandbox);
        assert_eq!((&json["state"], &*error), (&"running".into(), ""));
        let is_told = text
            .contains("  lost       earlier damage took some of the data: `coulter scrub disk`");
        assert_eq!(json["statistics"]["log"]["may_have_lost"], u64::from(is_told), "{text}");
        assert_eq!(metric(sandbox, "log_may_have_lost"), Some(is_told.into()));
        is_told
    };
    assert!(told(&sandbox));
    let error = sandbox.fails(1, &["scrub", "disk"]);
    assert!(error.contains("16 KiB"), "{error}");
    assert_eq!(qemu(&uri, &["write -P 9 32k 16k", "flush"]), Some(true));
    assert!(told(&sandbox), "nobody has looked since");
    sandbox.run(&["scrub", "disk"]);
    assert!(!told(&sandbox));
    sandbox.ok(&["detach", "disk"]);
    sandbox.ok(&attach);
    assert!(!told(&sandbox));
    sandbox.ok(&["detach", "disk"]);
}
