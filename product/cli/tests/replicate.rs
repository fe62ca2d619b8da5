//! Copies elsewhere, from the outside: kept, restored, kept as snapshots, taken over, refused.

mod sandbox;

use coulter_object::bucket::MemoryBucket;
use coulter_object::service::{Conditions, Fault, Proxy, Service};
use sandbox::{Sandbox, skipped, wait_until};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

/// A directory as the bucket, and a store.
fn with_store() -> (Sandbox, String) {
    let sandbox = Sandbox::new();
    sandbox.make_directory("bucket");
    sandbox.ok(&["create", "disk.img", "--store-size", "96M", "--segment-size", "2M"]);
    let url = format!("file://{}", sandbox.path("bucket/vol").display());
    (sandbox, url)
}

/// Attaches a store and keeps a copy, which each flush waits for; returns the URI of its volume.
fn attach(sandbox: &Sandbox, store: &str, url: &str) -> String {
    let words = ["attach", store, "--via", "nbd-server", "--replicate", url];
    let more = ["--ack", "remote", "--every", "50ms", "--name", "vol"];
    sandbox.ok(&[&words[..], &more[..]].concat()).trim_end().to_owned()
}

/// Kills the daemon, as the loss of its host does.
fn kill(sandbox: &Sandbox) {
    let status = sandbox.json(&["status", "--json"]);
    let pid = status[0]["pid"].as_u64().expect("a process");
    let pid = u32::try_from(pid).expect("a process");
    sandbox::send(pid, "KILL");
    wait_until("it has ended", || !sandbox::is_running(pid));
}

fn content(seed: u8) -> Vec<u8> {
    (0..4_u32 << 20).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed).collect()
}

fn nbdcopy(sandbox: &Sandbox, words: &[&str]) {
    // A volume that does not answer must be a failure here, not a test without an end.
    let mut copy = Command::new("timeout");
    let output = copy.args(["100", "nbdcopy"]).args(words).current_dir(sandbox.path(".")).output();
    let output = output.expect("libnbd's programs are installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Writes content to the start of a volume and flushes it.
fn write(sandbox: &Sandbox, uri: &str, seed: u8) {
    fs::write(sandbox.path("written"), content(seed)).expect("there is room");
    nbdcopy(sandbox, &["--flush", "written", uri]);
}

/// Whether a volume begins with content.
fn holds(sandbox: &Sandbox, uri: &str, seed: u8) -> bool {
    nbdcopy(sandbox, &[uri, "read"]);
    let read = fs::read(sandbox.path("read")).expect("it was read");
    read.starts_with(&content(seed))
}

#[test]
fn what_was_flushed_survives_the_loss_of_the_host_and_the_volume_goes_on_elsewhere() {
    let (sandbox, url) = with_store();
    let uri = attach(&sandbox, "disk.img", &url);
    write(&sandbox, &uri, 1);
    let status = sandbox.json(&["status", "--json"]);
    let replica = &status[0]["replica"];
    assert_eq!(
        (&replica["url"], &replica["ack"]),
        (&url.clone().into(), &"remote".into()),
        "{status}"
    );
    assert!(replica["shipped_bytes"].as_u64() >= Some(4 << 20), "{status}");
    let data = &replica["usage"]["data"];
    assert!(data["puts"].as_u64() >= Some(1), "{status}");
    assert!(data["sent_bytes"].as_u64() >= Some(4 << 20), "{status}");
    assert_eq!(replica["usage"]["records"]["lists"], 0, "{status}");
    assert!(replica["cost_dollars"].as_f64() > Some(0.0), "{status}");
    let told = sandbox.ok(&["status"]);
    assert!(told.contains("--ack remote") && told.contains("list price"), "{told}");
    kill(&sandbox);
    fs::remove_file(sandbox.path("disk.img")).expect("the host is lost");

    let told = sandbox.ok(&["restore", &url, "moved.img", "--take-over"]);
    assert!(told.contains("coulter attach moved.img --replicate"), "{told}");
    let uri = attach(&sandbox, "moved.img", &url);
    assert!(holds(&sandbox, &uri, 1), "everything that was flushed is there");
    write(&sandbox, &uri, 2);
    sandbox.ok(&["detach", "vol"]);
    sandbox.ok(&["restore", &url, "copy.img"]);
    sandbox.ok(&["check", "copy.img", "--data"]);
    let copy = sandbox.ok(&["attach", "copy.img", "--via", "nbd-server"]).trim_end().to_owned();
    assert!(holds(&sandbox, &copy, 2), "the copy followed");
}

#[test]
fn what_was_written_while_nothing_was_shipped_is_in_the_copy_once_it_is_shipped_again() {
    let (sandbox, url) = with_store();
    for seed in [1, 2] {
        let uri = attach(&sandbox, "disk.img", &url);
        write(&sandbox, &uri, seed);
        // Until the marks of what was written first are off.
        for _ in 0..8 {
            write(&sandbox, &uri, seed);
        }
        sandbox.ok(&["detach", "vol"]);
    }
    let words = ["attach", "disk.img", "--via", "nbd-server", "--name", "vol"];
    let uri = sandbox.ok(&words).trim_end().to_owned();
    write(&sandbox, &uri, 3);
    sandbox.ok(&["detach", "vol"]);
    attach(&sandbox, "disk.img", &url);
    sandbox.ok(&["detach", "vol"]);
    sandbox.ok(&["restore", &url, "copy.img"]);
    sandbox.ok(&["check", "copy.img", "--data"]);
    let copy = sandbox.ok(&["attach", "copy.img", "--via", "nbd-server"]).trim_end().to_owned();
    assert!(holds(&sandbox, &copy, 3), "the copy is what the store is");
}

#[test]
fn a_host_that_was_taken_over_is_fenced_and_told_so() {
    let (sandbox, url) = with_store();
    let uri = attach(&sandbox, "disk.img", &url);
    write(&sandbox, &uri, 1);
    sandbox.ok(&["restore", &url, "moved.img", "--take-over"]);
    fs::write(sandbox.path("written"), content(2)).expect("there is room");
    let words = ["--flush", "written", &uri];
    let refused = Command::new("nbdcopy").args(words).current_dir(sandbox.path(".")).output();
    assert!(!refused.expect("libnbd's programs are installed").status.success(), "it is fenced");
    let status = sandbox.command(&["status", "--json"]).output().expect("it runs");
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(
        status.contains("\"is_fenced\": true") || status.contains("\"is_fenced\":true"),
        "{status}"
    );
    let _ = sandbox.command(&["detach", "vol"]).output();
    // The new host need not have begun: the take-over itself counts, and what comes back changes nothing.
    let before = sandbox.ok(&["replica", "status", &url]);
    let words = ["attach", "disk.img", "--via", "nbd-server", "--replicate", &url];
    let error = sandbox.fails(1, &[&words[..], &["--ack", "remote", "--name", "vol"]].concat());
    assert!(error.contains("with the store") && error.contains("moved.img"), "{error}");
    assert!(error.contains("--reseed"), "{error}");
    assert_eq!(sandbox.ok(&["replica", "status", &url]), before);
    // Its store is of the past from now on: the new host has written.
    let uri = attach(&sandbox, "moved.img", &url);
    assert!(holds(&sandbox, &uri, 1), "what was flushed before is there");
    write(&sandbox, &uri, 3);
    sandbox.ok(&["detach", "vol"]);
    let words = ["attach", "disk.img", "--via", "nbd-server", "--replicate", &url];
    let error = sandbox.fails(1, &words);
    assert!(error.contains("another host has written since"), "{error}");
    assert!(error.contains("coulter restore") && error.contains("--reseed"), "{error}");
    sandbox.ok(&[&words[..], &["--reseed"]].concat());
    sandbox.ok(&["detach", "disk"]);
    sandbox.ok(&["restore", &url, "copy.img"]);
    sandbox.ok(&["check", "copy.img", "--data"]);
}

#[test]
fn snapshots_are_kept_named_restored_and_given_up() {
    let (sandbox, url) = with_store();
    let uri = attach(&sandbox, "disk.img", &url);
    write(&sandbox, &uri, 1);
    let name = format!("{url}@before the upgrade");
    sandbox.ok(&["snapshot", "create", &name]);
    write(&sandbox, &uri, 2);
    let error = sandbox.fails(1, &["snapshot", "create", &name]);
    assert!(error.contains("a snapshot of that name already"), "{error}");
    assert!(error.contains("do:"), "{error}");
    let list = sandbox.json(&["snapshot", "list", &url, "--json"]);
    assert_eq!(list[0]["name"], "before the upgrade");
    sandbox.ok(&["restore", &name, "old.img"]);
    let old = sandbox.ok(&["attach", "old.img", "--via", "nbd-server"]).trim_end().to_owned();
    assert!(holds(&sandbox, &old, 1), "the state of that time");
    sandbox.ok(&["snapshot", "delete", &name]);
    let error = sandbox.fails(1, &["restore", &name, "gone.img"]);
    assert!(error.contains("no snapshot 'before the upgrade'"), "{error}");
    assert!(sandbox.ok(&["snapshot", "list", &url]).contains("No snapshots"));
    sandbox.fails(1, &["snapshot", "delete", &name]);
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let (sandbox, url) = with_store();
    let is_told = |code: i32, words: &[&str], reason: &str| {
        let error = sandbox.fails(code, words);
        assert!(error.contains(reason), "{words:?}: {error}");
    };
    let attach = ["attach", "disk.img", "--via", "nbd-server"];
    let with = |words: &[&'static str]| [&attach[..], words].concat();
    is_told(2, &with(&["--replicate", "/tmp/x"]), "neither with s3://");
    is_told(2, &with(&["--replicate", "file://relative/x"]), "not absolute");
    is_told(2, &with(&["--replicate", "s3://bucket"]), "no prefix");
    is_told(2, &with(&["--ack", "remote"]), "--replicate");
    is_told(2, &with(&["--replicate", "s3://bucket/x", "--every", "0s"]), "10ms");
    is_told(1, &with(&["--replicate", "file:///nowhere/at/all"]), "No such file or directory");
    is_told(1, &["restore", &url, "x.img"], "no such bucket");
    is_told(1, &["restore", &url, "disk.img"], "something is there already");
    is_told(2, &["restore", &format!("{url}@one"), "x.img", "--take-over"], "of the past");
    is_told(2, &["snapshot", "create", &url], "URL@NAME");
    is_told(2, &["snapshot", "create", &format!("{url}@a/b")], "must not hold");
    assert!(!sandbox.path("x.img").exists() && !sandbox.path("x.img.part").exists());
    // A directory in which another store's copy is.
    sandbox.ok(&[&attach[..], &["--replicate", &url]].concat());
    sandbox.ok(&["detach", "disk"]);
    sandbox.ok(&["create", "other.img", "--store-size", "96M", "--segment-size", "2M"]);
    let words = ["attach", "other.img", "--via", "nbd-server", "--replicate", &url];
    is_told(1, &words, "another store's volume");
    // Damage is named, and nothing is restored from it.
    let volume = sandbox.path("bucket/vol/volume");
    let newest = fs::read_dir(sandbox.path("bucket/vol")).expect("a directory").flatten();
    for entry in newest.filter(|entry| entry.file_name().to_string_lossy().starts_with("volume")) {
        fs::write(entry.path(), b"damage").expect("it is ours");
    }
    assert!(volume.exists());
    is_told(1, &["restore", &url, "x.img"], "'volume' is damaged");
}

#[test]
fn an_upgraded_daemon_does_not_ship_everything_anew() {
    let (sandbox, url) = with_store();
    let words = ["attach", "disk.img", "--via", "nbd-server", "--replicate", &url, "--reseed"];
    let more = ["--ack", "remote", "--every", "10ms", "--name", "vol"];
    let uri = sandbox.ok(&[&words[..], &more[..]].concat()).trim_end().to_owned();
    // All over the store; afterwards the little that is written leaves most of it in peace.
    let large: Vec<u8> = (0..10).flat_map(content).collect();
    fs::write(sandbox.path("large"), &large).expect("there is room");
    nbdcopy(&sandbox, &["--flush", "large", &uri]);
    for seed in 0..12 {
        write(&sandbox, &uri, seed);
    }
    sandbox.ok(&["restart", "vol"]);
    let shipped = || {
        let status = sandbox.json(&["status", "--json"]);
        let replica = &status[0]["replica"];
        (replica["lag_bytes"].as_u64(), replica["shipped_bytes"].as_u64())
    };
    wait_until("everything is shipped", || shipped().0 == Some(0));
    let bytes = shipped().1.expect("it is told");
    assert!(bytes < large.len() as u64 / 2, "{bytes} bytes of {} were shipped anew", large.len());
    sandbox.ok(&["detach", "vol"]);
}

#[test]
fn a_bucket_of_s3_carries_a_volume_to_another_host_through_faults() {
    let (mut sandbox, _) = with_store();
    let service = Service::start("bucket", Arc::new(MemoryBucket::new())).expect("a free port");
    let proxy = Proxy::start(service.address(), 1).expect("a free port");
    sandbox.set_variable("AWS_ENDPOINT_URL", &proxy.endpoint());
    sandbox.set_variable("AWS_ACCESS_KEY_ID", "key");
    sandbox.set_variable("AWS_SECRET_ACCESS_KEY", "secret");
    let url = "s3://bucket/vol";
    let uri = attach(&sandbox, "disk.img", url);
    let faults = [Fault::SlowDown, Fault::ErrorAfter, Fault::Conflict, Fault::Cut, Fault::Lost];
    let rates = faults.map(|fault| (fault, 30)).to_vec();
    proxy.set_conditions(Conditions { rates, ..Conditions::default() });
    write(&sandbox, &uri, 1);
    sandbox.ok(&["snapshot", "create", "s3://bucket/vol@one"]);
    write(&sandbox, &uri, 2);
    kill(&sandbox);
    fs::remove_file(sandbox.path("disk.img")).expect("the host is lost");
    sandbox.ok(&["restore", url, "moved.img", "--take-over"]);
    sandbox.ok(&["restore", "s3://bucket/vol@one", "old.img"]);
    assert!(proxy.counts().1 > 0, "faults were met: {:?}", proxy.counts());
    let uri = attach(&sandbox, "moved.img", url);
    assert!(holds(&sandbox, &uri, 2), "everything that was flushed is there");
    // While the bucket refuses, `status` says why.
    proxy.set_conditions(Conditions {
        rates: vec![(Fault::Expired, 1000)],
        ..Conditions::default()
    });
    // Its first write may wait for the flush of the opening, which the outage holds.
    let mut copy = Command::new("nbdcopy");
    let copy = copy.args(["written", &uri]).current_dir(sandbox.path(".")).spawn();
    let mut copy = copy.expect("libnbd's programs are installed");
    wait_until("the outage is told", || {
        let status = sandbox.json(&["status", "--json"]);
        status[0]["replica"]["outage"].as_str().is_some_and(|why| why.contains("ExpiredToken"))
    });
    proxy.set_conditions(Conditions::default());
    assert!(copy.wait().expect("it was started").success(), "no request fails in an outage");
    sandbox.ok(&["detach", "vol"]);
    let old = sandbox.ok(&["attach", "old.img", "--via", "nbd-server"]).trim_end().to_owned();
    assert!(holds(&sandbox, &old, 1), "the state of the snapshot");
}

/// The daemon of one host is stopped, as a virtual machine that is paused; another host takes over; then it goes on.
#[test]
fn a_host_that_was_frozen_while_another_took_over_fails_every_request_and_says_why() {
    let (sandbox, url) = with_store();
    let uri = attach(&sandbox, "disk.img", &url);
    write(&sandbox, &uri, 1);
    let frozen = sandbox.pid_of("vol");
    sandbox::send(frozen, "STOP");
    let there = sandbox.path("there").display().to_string();
    let words = ["--state-directory", &there, "attach", &url, "--cache", "there.img"];
    let more = ["--via", "nbd-server", "--ack", "remote"];
    let refused = sandbox.fails(1, &[&words[..], &more[..]].concat());
    assert!(refused.contains("--take-over"), "it may be writing: {refused}");
    let new = sandbox.ok(&[&words[..], &more[..], &["--take-over"]].concat()).trim_end().to_owned();
    assert!(holds(&sandbox, &new, 1), "everything that was flushed is there");
    write(&sandbox, &new, 2);

    sandbox::send(frozen, "CONT");
    fs::write(sandbox.path("written"), content(9)).expect("there is room");
    let tries = |words: &[&str]| {
        let mut copy = Command::new("timeout");
        let copy = copy.args(["100", "nbdcopy"]).args(words).current_dir(sandbox.path("."));
        copy.output().expect("libnbd's programs are installed").status.success()
    };
    assert!(!tries(&["--flush", "written", &uri]), "no flush is answered any more");
    assert!(!tries(&[&uri, "read"]), "nor is a read");
    let told = sandbox.command(&["status", "vol"]).output().expect("it runs");
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains("fenced") && told.contains("another host"), "{told}");
    let error = sandbox.fails(1, &["replicate", "vol", "--stop"]);
    assert!(error.contains("another host has taken the volume over"), "{error}");
    let _ = sandbox.command(&["detach", "vol", "--force"]).output();
    assert!(holds(&sandbox, &new, 2), "the new host goes on");
    sandbox.ok(&["--state-directory", &there, "detach", "there"]);
    sandbox.ok(&["restore", &url, "copy.img"]);
    sandbox.ok(&["check", "copy.img", "--data"]);
}

#[test]
fn a_copy_follows_a_store_that_grows_in_use_and_between_two_uses() {
    let (sandbox, url) = with_store();
    let uri = attach(&sandbox, "disk.img", &url);
    write(&sandbox, &uri, 1);
    sandbox.ok(&["grow", "disk.img", "--store-size", "128M"]);
    assert!(holds(&sandbox, &uri, 1), "clients go on");
    write(&sandbox, &uri, 2);
    sandbox.ok(&["detach", "vol"]);
    sandbox.ok(&["restore", &url, "first.img"]);
    sandbox.ok(&["check", "first.img", "--data"]);
    let size = |name: &str| fs::metadata(sandbox.path(name)).expect("it is there").len();
    assert_eq!(size("first.img"), 128 << 20);

    sandbox.ok(&["grow", "disk.img", "--store-size", "160M"]);
    // Not even what the store says of itself was shipped yet.
    let uri = attach(&sandbox, "disk.img", &url);
    assert!(holds(&sandbox, &uri, 2));
    sandbox.ok(&["detach", "vol"]);
    sandbox.ok(&["restore", &url, "second.img", "--take-over"]);
    sandbox.ok(&["check", "second.img", "--data"]);
    assert_eq!(size("second.img"), 160 << 20);
    let uri = attach(&sandbox, "second.img", &url);
    assert!(holds(&sandbox, &uri, 2));
}

#[test]
fn a_store_that_has_a_copy_offers_it_again_and_says_so_if_it_is_left_behind() {
    let (sandbox, url) = with_store();
    let uri = attach(&sandbox, "disk.img", &url);
    write(&sandbox, &uri, 1);
    kill(&sandbox);
    let words = format!("--replicate {url} --ack remote --every 50ms");
    let killed = sandbox.run(&["status"]);
    let told = String::from_utf8_lossy(&killed.stderr).into_owned();
    assert!(told.contains(&words), "{told}");

    let left = sandbox.run(&["attach", "disk.img", "--via", "nbd-server", "--name", "vol"]);
    let told = String::from_utf8_lossy(&left.stderr).into_owned();
    assert!(left.status.success() && told.contains("does not follow it"), "{told}");
    assert!(told.contains(&words), "{told}");
    assert_eq!(told.matches("does not follow").count(), 1, "it is told once: {told}");
    let refused = sandbox.fails(1, &["attach", "disk.img", "--via", "nbd-server"]);
    assert!(!refused.contains("does not follow"), "nothing was attached: {refused}");
    let status = sandbox.ok(&["status"]);
    assert!(status.contains("does not follow") && status.contains(&words), "{status}");
    assert_eq!(sandbox.json(&["status", "--json"])[0]["left_copy"], words);
    sandbox.ok(&["detach", "vol"]);

    attach(&sandbox, "disk.img", &url);
    sandbox.ok(&["replicate", "vol", "--stop"]);
    sandbox.ok(&["detach", "vol"]);
    let ended = sandbox.run(&["attach", "disk.img", "--via", "nbd-server", "--name", "vol"]);
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success() && !told.contains("follow"), "{told}");
}

#[test]
fn a_bucket_that_is_gone_is_told_and_its_volume_goes_on_without_it_when_that_is_asked() {
    let (sandbox, url) = with_store();
    let uri = attach(&sandbox, "disk.img", &url);
    write(&sandbox, &uri, 1);
    // An upload on its way may make a file meanwhile.
    wait_until("the bucket is gone", || {
        let bucket = sandbox.path("bucket/vol");
        fs::remove_dir_all(&bucket).is_ok() || !bucket.exists()
    });
    fs::write(sandbox.path("written"), content(2)).expect("there is room");
    let mut copying = Command::new("timeout")
        .args(["100", "nbdcopy", "--flush", "written", &uri])
        .current_dir(sandbox.path("."))
        .spawn()
        .expect("libnbd's programs are installed");
    wait_until("status says so", || {
        let status = sandbox.run(&["status"]);
        let told = String::from_utf8_lossy(&status.stdout).into_owned();
        !status.status.success()
            && told.contains("waits for its copy")
            && told.contains("--ack local")
    });
    wait_until("lists say so", || sandbox.run(&["list"]).status.code() == Some(1));
    assert!(copying.try_wait().expect("it is ours").is_none(), "the copy does not have it");
    sandbox.ok(&["replicate", "vol", "--ack", "local"]);
    assert!(copying.wait().expect("it is ours").success(), "the store has it");
    kill(&sandbox);
    let words = ["attach", "disk.img", "--via", "nbd-server", "--name", "vol"];
    let uri = sandbox.ok(&words).trim_end().to_owned();
    assert!(holds(&sandbox, &uri, 2), "what was flushed is there");
}

/// A control group in which no more than a number of processes and threads can be; gone with
/// this value.
struct Few(PathBuf);

impl Few {
    fn new() -> Option<Few> {
        let own = format!("coulter-test-{}", std::process::id());
        let roots = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(Path::new);
        let root = roots.into_iter().find(|root| {
            let control = fs::File::options().write(true).open(root.join("cgroup.subtree_control"));
            let _ = control.and_then(|mut control| control.write_all(b"+pids"));
            root.join("cgroup.procs").exists() && fs::create_dir(root.join(&own)).is_ok()
        })?;
        let few = Few(root.join(own));
        few.0.join("pids.max").exists().then_some(few)
    }

    /// Runs a command of the product with a limit; the output, and whether it ended by itself.
    fn run(&self, sandbox: &Sandbox, limit: u32, words: &[&str]) -> Output {
        fs::write(self.0.join("pids.max"), limit.to_string()).expect("root may");
        let enter = format!("echo $$ >{}/cgroup.procs; exec \"$@\"", self.0.display());
        let product = sandbox.command(words);
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", "30", "sh", "-c", &enter, "sh"]).arg(product.get_program());
        command.args(words).current_dir(sandbox.path("."));
        command.env("COULTER_STATE_DIRECTORY", sandbox.path("state")).output().expect("it runs")
    }
}

impl Drop for Few {
    fn drop(&mut self) {
        let left = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        left.lines().filter_map(|pid| pid.parse().ok()).for_each(|pid| sandbox::send(pid, "KILL"));
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            // A process that was killed is in it for a moment.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn with_too_few_processes_nothing_hangs_and_the_reason_is_told() {
    let Some(few) = Few::new() else {
        return skipped("too few processes: there is no control group to limit them");
    };
    let (sandbox, url) = with_store();
    let words =
        ["attach", "disk.img", "--via", "nbd-server", "--replicate", &url, "--ack", "remote"];
    let mut served = 0;
    for limit in [1, 2, 4, 8, 12, 14, 16, 18, 20, 24, 40] {
        let output = few.run(&sandbox, limit, &words);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            Some(0) => {
                let uri = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
                write(&sandbox, &uri, served);
                sandbox.ok(&["detach", "disk"]);
                served += 1;
            }
            Some(1) => assert!(
                told.contains("thread") || told.to_lowercase().contains("temporarily unavailable"),
                "{limit}: {told}"
            ),
            code => panic!("{limit}: {code:?}: {told}"),
        }
    }
    assert!(served > 0, "with 40 it is served");
    sandbox.ok(&["restore", &url, "copy.img"]);
    sandbox.ok(&["check", "copy.img", "--data"]);
}
