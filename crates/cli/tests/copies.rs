//! What one does with a copy itself: status, verification, comparison, rollback.

mod sandbox;

use sandbox::Sandbox;
use std::fs;

/// A store with a copy, which `ship` brings up to date.
fn with_copy() -> (Sandbox, String) {
    let sandbox = Sandbox::new();
    sandbox.make_directory("bucket");
    sandbox.ok(&["create", "disk.img", "--store-size", "96M", "--segment-size", "2M"]);
    let url = format!("file://{}", sandbox.path("bucket/vol").display());
    ship(&sandbox, &url);
    (sandbox, url)
}

/// Opening a store writes a checkpoint, so each time ships something.
fn ship(sandbox: &Sandbox, url: &str) {
    attach(sandbox, url);
    sandbox.ok(&["detach", "disk"]);
}

fn attach(sandbox: &Sandbox, url: &str) {
    let words = ["attach", "disk.img", "--via", "nbd-server", "--replicate", url];
    sandbox.ok(&[&words[..], &["--ack", "remote"]].concat());
}

#[test]
fn a_copy_is_described_verified_compared_and_its_damage_named() {
    let (sandbox, url) = with_copy();
    let name = format!("{url}@one");
    sandbox.ok(&["snapshot", "create", &name]);
    let status = sandbox.json(&["replica", "status", &url, "--json"]);
    assert_eq!(status["device_bytes"], 96 << 20, "{status}");
    assert_eq!(status["snapshots"][0]["name"], "one", "{status}");
    assert!(sandbox.ok(&["replica", "status", &url]).contains("snapshot one"));
    let same = sandbox.json(&["diff", &name, &name, "--json"]);
    assert_eq!(same["bytes"], 0, "{same}");
    ship(&sandbox, &url);
    let changed = sandbox.json(&["diff", &name, &url, "--json"]);
    assert!(changed["bytes"].as_u64() > Some(0), "{changed}");
    assert!(sandbox.ok(&["diff", &name, &url]).contains("of the store"));
    sandbox.fails(2, &["diff", &url, "file:///another/copy"]);

    let sound = sandbox.json(&["replica", "verify", &url, "--json"]);
    assert_eq!(sound["is_sound"], true, "{sound}");
    assert!(sandbox.ok(&["replica", "verify", &url]).contains("sound"));
    let (mut data, mut waiting) = (Vec::new(), vec![sandbox.path("bucket/vol/d")]);
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).expect("a directory").flatten() {
            if entry.path().is_dir() { &mut waiting } else { &mut data }.push(entry.path());
        }
    }
    let victim = data.first().expect("data was shipped");
    let bytes = fs::read(victim).expect("it is there");
    let mut damaged = bytes.clone();
    damaged[0] ^= 1;
    fs::write(victim, &damaged).expect("it is ours");
    let object = victim.file_name().expect("a name").to_string_lossy().into_owned();
    let output = sandbox.command(&["replica", "verify", &url]).output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("damaged") && told.contains(&object), "{told}");
    fs::remove_file(victim).expect("it is ours");
    let output = sandbox.command(&["replica", "verify", &url]).output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("missing") && told.contains(&object), "{told}");
    fs::write(victim, &bytes).expect("it is ours");
    sandbox.ok(&["replica", "verify", &url]);
    let error = sandbox.fails(2, &["replica", "status", "ftp://x/y"]);
    assert!(error.contains("neither with s3://"), "{error}");
    sandbox.fails(2, &["replica", "verify", &name]);
    sandbox.fails(1, &["replica", "status", "file:///nowhere/at/all"]);
}

#[test]
fn a_rollback_waits_for_no_host_that_may_write_and_refuses_its_store_afterwards() {
    let (sandbox, url) = with_copy();
    let name = format!("{url}@one");
    sandbox.ok(&["snapshot", "create", &name]);
    attach(&sandbox, &url);
    let error = sandbox.fails(1, &["snapshot", "rollback", &name]);
    assert!(error.contains("may be writing") && error.contains("--take-over"), "{error}");
    sandbox.ok(&["detach", "disk"]);
    let told = sandbox.ok(&["snapshot", "rollback", &name]);
    assert!(told.contains("is the newest state"), "{told}");
    let diff = sandbox.json(&["diff", &name, &url, "--json"]);
    assert_eq!(diff["bytes"], 0, "{diff}");
    let words = ["attach", "disk.img", "--via", "nbd-server", "--replicate", &url];
    let error = sandbox.fails(1, &words);
    assert!(error.contains("not what was shipped last"), "{error}");
    sandbox.fails(1, &["snapshot", "rollback", &format!("{url}@none")]);
    sandbox.fails(2, &["snapshot", "rollback", &url]);
    sandbox.ok(&["restore", &url, "back.img", "--take-over"]);
    sandbox.ok(&["check", "back.img", "--data"]);
}
