//! `coulter replicate`: of a volume that is in use, and of a store that is not attached.

mod sandbox;

use sandbox::{Sandbox, wait_until};
use std::fs;
use std::process::Command;

/// A directory as the bucket, and a store that is attached without a copy; the URI of its volume.
fn attached() -> (Sandbox, String, String) {
    attached_in(Sandbox::new())
}

fn attached_in(sandbox: Sandbox) -> (Sandbox, String, String) {
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
fn a_bucket_that_does_not_answer_leaves_the_volume_and_its_old_copy_alive() {
    // It accepts connections, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = silent.local_addr().expect("it is bound");
    let mut sandbox = Sandbox::new();
    sandbox.set_variable("AWS_ENDPOINT_URL", &format!("http://{address}"));
    sandbox.set_variable("AWS_ACCESS_KEY_ID", "key");
    sandbox.set_variable("AWS_SECRET_ACCESS_KEY", "secret");
    let (sandbox, url, uri) = attached_in(sandbox);
    sandbox.ok(&["replicate", "vol", &url, "--ack", "remote"]);
    write(&sandbox, &uri, 1);
    for round in 2..4 {
        let begin = std::time::Instant::now();
        let error = sandbox.fails(1, &["replicate", "vol", "s3://bucket/vol", "--ack", "local"]);
        assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
        for word in ["cannot change how 'vol' is replicated", "goes on as before"] {
            assert!(error.contains(word), "{error}");
        }
        let copy = replica(&sandbox);
        assert_eq!((&copy["url"], &copy["ack"]), (&url.clone().into(), &"remote".into()));
        write(&sandbox, &uri, round);
        assert!(holds(&sandbox, &uri, round));
    }
    drop(silent);
    let error = sandbox.fails(1, &["replicate", "vol", "s3://bucket/vol"]);
    assert!(error.contains("Connection refused"), "{error}");
    sandbox.ok(&["detach", "vol"]);
    assert!(copy_holds(&sandbox, &url, "back.img", 3), "the old copy has what was written since");
}

#[test]
fn a_store_that_is_none_makes_no_copy() {
    let sandbox = Sandbox::new();
    sandbox.make_directory("bucket");
    fs::write(sandbox.path("text"), "no store\n".repeat(1000)).expect("there is room");
    let url = format!("file://{}", sandbox.path("bucket/vol").display());
    let error = sandbox.fails(1, &["replicate", "text", &url]);
    assert!(error.contains("no store here"), "{error}");
    assert!(!sandbox.path("bucket/vol").exists(), "nothing was made for it");
    let file = format!("file://{}", sandbox.path("text").display());
    sandbox.ok(&["create", "a.img", "--store-size", "96M", "--segment-size", "2M"]);
    let error = sandbox.fails(1, &["replicate", "a.img", &file]);
    assert!(error.contains("is not a directory") && error.contains("check the URL"), "{error}");
    sandbox.ok(&["replicate", "a.img", &url]);
    let error = sandbox.fails(1, &["clone", &url, &url]);
    assert!(error.contains("a volume at file://") && error.contains("another URL"), "{error}");
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
