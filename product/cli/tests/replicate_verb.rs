//! `coulter replicate`: of a volume that is in use, and of a store that is not attached.

mod sandbox;

use sandbox::{Sandbox, wait_until};
use std::fs;
use std::process::Command;

/// A directory as the bucket, and a store that is attached without a copy; the URI of its volume.
fn attached() -> (Sandbox, String, String) {
    let sandbox = Sandbox::new();
    sandbox.make_directory("bucket");
    sandbox.ok(&["create", "disk.img", "--store-size", "96M", "--segment-size", "2M"]);
    let url = format!("file://{}", sandbox.path("bucket/vol").display());
    let words = ["attach", "disk.img", "--via", "nbd-server", "--name", "vol"];
    let uri = sandbox.ok(&words).trim_end().to_owned();
    (sandbox, url, uri)
}

fn content(seed: u8) -> Vec<u8> {
    (0..4_u32 << 20).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed).collect()
}

fn nbdcopy(sandbox: &Sandbox, words: &[&str]) -> bool {
    // A volume that does not answer must be a failure here, not a test without an end.
    let mut copy = Command::new("timeout");
    let output = copy.args(["100", "nbdcopy"]).args(words).current_dir(sandbox.path(".")).output();
    output.expect("libnbd's programs are installed").status.success()
}

fn write(sandbox: &Sandbox, uri: &str, seed: u8) {
    fs::write(sandbox.path("written"), content(seed)).expect("there is room");
    assert!(nbdcopy(sandbox, &["--flush", "written", uri]));
}

fn holds(sandbox: &Sandbox, uri: &str, seed: u8) -> bool {
    assert!(nbdcopy(sandbox, &[uri, "read"]));
    fs::read(sandbox.path("read")).expect("it was read").starts_with(&content(seed))
}

/// Restores a copy and looks whether its volume begins with content.
fn copy_holds(sandbox: &Sandbox, url: &str, file: &str, seed: u8) -> bool {
    sandbox.ok(&["restore", url, file]);
    sandbox.ok(&["check", file, "--data"]);
    let words = ["attach", file, "--via", "nbd-server", "--name", "back"];
    let uri = sandbox.ok(&words).trim_end().to_owned();
    let holds = holds(sandbox, &uri, seed);
    sandbox.ok(&["detach", "back"]);
    holds
}

fn replica(sandbox: &Sandbox) -> serde_json::Value {
    sandbox.json(&["status", "vol", "--json"])["replica"].clone()
}

#[test]
fn a_volume_in_use_begins_changes_and_ends_its_replication() {
    let (sandbox, url, uri) = attached();
    write(&sandbox, &uri, 1);
    let told = sandbox.ok(&["replicate", "vol", &url, "--ack", "remote", "--every", "50ms"]);
    assert!(told.contains("is replicated to"), "{told}");
    write(&sandbox, &uri, 2);
    let status = sandbox.json(&["replicate", "vol", "--status", "--json"]);
    assert_eq!((&status["url"], &status["ack"]), (&url.clone().into(), &"remote".into()));
    assert!(sandbox.ok(&["replicate", "vol", "--status"]).contains("--ack remote"));
    assert!(sandbox.ok(&["replicate", "vol", "--verify"]).contains("sound"));
    assert!(sandbox.ok(&["replicate", &url, "--status"]).contains("commit"));

    // An upgraded daemon is started with the first words, which say nothing of a copy.
    sandbox.ok(&["upgrade", "vol"]);
    assert_eq!(replica(&sandbox)["ack"], "remote");
    sandbox.ok(&["replicate", "vol", "--ack", "local"]);
    assert_eq!(replica(&sandbox)["ack"], "local");
    sandbox.ok(&["replicate", "vol", "--reseed"]);
    wait_until("all of it is shipped anew", || replica(&sandbox)["lag_bytes"] == 0);

    let told = sandbox.ok(&["replicate", "vol", "--stop"]);
    assert!(told.contains("not replicated any more"), "{told}");
    assert!(replica(&sandbox).is_null());
    write(&sandbox, &uri, 3);
    sandbox.ok(&["upgrade", "vol"]);
    assert!(replica(&sandbox).is_null(), "it stays so");
    assert!(holds(&sandbox, &uri, 3));
    assert!(copy_holds(&sandbox, &url, "old.img", 2), "the copy stays what it was");
    let error = sandbox.fails(1, &["replicate", "vol", "--stop"]);
    assert!(error.contains("it is not replicated"), "{error}");

    sandbox.ok(&["replicate", "vol", &url]);
    sandbox.ok(&["detach", "vol"]);
    assert!(copy_holds(&sandbox, &url, "new.img", 3), "it is kept up again");
}

#[test]
fn a_copy_that_cannot_be_leaves_the_volume_as_it_was() {
    let (sandbox, url, uri) = attached();
    write(&sandbox, &uri, 1);
    let error = sandbox.fails(1, &["replicate", "vol", "file:///nowhere/at/all"]);
    assert!(error.contains("No such file or directory"), "{error}");
    assert!(holds(&sandbox, &uri, 1), "it serves as before");
    assert!(replica(&sandbox).is_null());
    sandbox.ok(&["replicate", "vol", &url]);
    // The copy of another store.
    let other = format!("file://{}", sandbox.path("bucket/other").display());
    sandbox.ok(&["create", "b.img", "--store-size", "96M", "--segment-size", "2M"]);
    let told = sandbox.ok(&["replicate", "b.img", &other]);
    assert!(told.contains("has all of"), "{told}");
    let error = sandbox.fails(1, &["replicate", "vol", &other]);
    assert!(error.contains("another store's volume"), "{error}");
    assert_eq!(replica(&sandbox)["url"], url, "it is replicated as before");
    write(&sandbox, &uri, 2);
    sandbox.fails(2, &["replicate", "vol", "ftp://x/y"]);
    sandbox.fails(2, &["replicate", &url]);
    sandbox.fails(2, &["replicate", "vol", "--stop", "--status"]);
    sandbox.fails(2, &["replicate", "vol", &url, "--stop"]);
    sandbox.fails(1, &["replicate", "nothing", &url]);
    sandbox.ok(&["detach", "vol"]);
    assert!(copy_holds(&sandbox, &url, "back.img", 2));
}

#[test]
fn a_store_that_is_not_attached_is_shipped_once_and_again() {
    let (sandbox, url, uri) = attached();
    write(&sandbox, &uri, 1);
    sandbox.ok(&["detach", "vol"]);
    let told = sandbox.ok(&["replicate", "disk.img", &url]);
    assert!(told.contains("commit"), "{told}");
    assert!(copy_holds(&sandbox, &url, "one.img", 1));
    let words = ["attach", "disk.img", "--via", "nbd-server", "--name", "vol"];
    let uri = sandbox.ok(&words).trim_end().to_owned();
    write(&sandbox, &uri, 2);
    sandbox.ok(&["detach", "vol"]);
    sandbox.ok(&["replicate", "disk.img", &url]);
    assert!(copy_holds(&sandbox, &url, "two.img", 2));
    sandbox.fails(1, &["replicate", "disk.img", "--stop"]);
}
