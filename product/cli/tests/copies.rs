//! What one does with a copy itself: status, verification, comparison, rollback.

mod sandbox;

use coulter_object::bucket::MemoryBucket;
use coulter_object::service::{Conditions, Proxy, Service};
use sandbox::{Sandbox, wait_until};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

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

fn content(seed: u8) -> Vec<u8> {
    (0..24_u32 << 20).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed).collect()
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
    fs::read(sandbox.path("read")).expect("it was read").starts_with(&content(seed))
}

/// Attaches the volume of a copy as `name` and returns its URI.
fn attach_copy(sandbox: &Sandbox, url: &str, cache: &str, more: &[&str]) -> String {
    let words = ["attach", url, "--cache", cache, "--via", "nbd-server", "--ack", "remote"];
    sandbox.ok(&[&words[..], more].concat()).trim_end().to_owned()
}

/// Kills the only daemon, as the loss of its host does.
fn kill(sandbox: &Sandbox) {
    let status = sandbox.json(&["status", "--json"]);
    let pid = status[0]["pid"].as_u64().expect("a process");
    let pid = u32::try_from(pid).expect("a process");
    sandbox::send(pid, "KILL");
    wait_until("it has ended", || !sandbox::is_running(pid));
}

/// A bucket of S3 behind a proxy, which the sandbox's commands use.
fn with_s3(sandbox: &mut Sandbox) -> (Service, Proxy) {
    let service = Service::start("bucket", Arc::new(MemoryBucket::new())).expect("a free port");
    let proxy = Proxy::start(service.address(), 1).expect("a free port");
    sandbox.set_variable("AWS_ENDPOINT_URL", &proxy.endpoint());
    sandbox.set_variable("AWS_ACCESS_KEY_ID", "key");
    sandbox.set_variable("AWS_SECRET_ACCESS_KEY", "secret");
    (service, proxy)
}

/// A copy of a volume that holds content, of a store that is gone.
fn ship_content(sandbox: &Sandbox, url: &str, seed: u8) {
    let words = ["attach", "disk.img", "--via", "nbd-server", "--replicate", url];
    let uri = sandbox.ok(&[&words[..], &["--ack", "remote"]].concat()).trim_end().to_owned();
    write(sandbox, &uri, seed);
    kill(sandbox);
    fs::remove_file(sandbox.path("disk.img")).expect("it is ours");
}

#[test]
fn a_volume_is_attached_straight_from_its_copy_and_goes_on_there() {
    let (sandbox, url) = with_copy();
    ship_content(&sandbox, &url, 1);
    let uri = attach_copy(&sandbox, &url, "cache.img", &[]);
    assert!(holds(&sandbox, &uri, 1), "all that was flushed is there");
    write(&sandbox, &uri, 2);
    let whole = || sandbox.json(&["status", "--json"])[0]["replica"]["missing_bytes"] == 0;
    wait_until("the cache is whole", whole);
    assert!(!sandbox.path("cache.img.missing").exists(), "it is an ordinary store now");
    sandbox.ok(&["detach", "cache"]);
    sandbox.ok(&["check", "cache.img", "--data"]);
    let uri = attach_copy(&sandbox, &url, "cache.img", &[]);
    assert!(holds(&sandbox, &uri, 2), "the cache is used again");
    sandbox.ok(&["detach", "cache"]);
    sandbox.ok(&["restore", &url, "back.img"]);
    let back = sandbox.ok(&["attach", "back.img", "--via", "nbd-server"]).trim_end().to_owned();
    assert!(holds(&sandbox, &back, 2), "the copy has what was written to the cache");
}

#[test]
fn a_cache_that_is_not_whole_goes_on_after_a_kill_and_is_no_store_by_itself() {
    let (mut sandbox, _) = with_copy();
    let (_service, proxy) = with_s3(&mut sandbox);
    let url = "s3://bucket/vol";
    ship_content(&sandbox, url, 1);
    let get_latency = Duration::from_millis(300);
    let bandwidth = Some(8 << 20);
    proxy.set_conditions(Conditions { get_latency, bandwidth, ..Conditions::default() });
    let words = ["attach", url, "--cache", "cache.img", "--via", "nbd-server", "--foreground"];
    let mut host = sandbox.command(&words).spawn().expect("it runs");
    let filled = || sandbox.path("cache.img").metadata().is_ok_and(|file| file.blocks() > 0);
    wait_until("something is in the cache", filled);
    host.kill().expect("it runs");
    host.wait().expect("it ends");
    assert!(sandbox.path("cache.img.missing").exists(), "something is missing in it");
    let error = sandbox.fails(1, &["attach", "cache.img", "--via", "nbd-server"]);
    assert!(error.contains("still missing") && error.contains("--cache"), "{error}");
    let words = ["attach", "cache.img", "--via", "nbd-server", "--replicate", url];
    assert!(sandbox.fails(1, &words).contains("still missing"));
    proxy.set_conditions(Conditions::default());
    let uri = attach_copy(&sandbox, url, "cache.img", &[]);
    assert!(holds(&sandbox, &uri, 1), "nothing is lost");
    write(&sandbox, &uri, 2);
    kill(&sandbox);
    // Another host's cache takes over; this one's is of the past then.
    let words = ["attach", url, "--cache", "other.img", "--via", "nbd-server"];
    let uri = sandbox.ok(&words).trim_end().to_owned();
    assert!(holds(&sandbox, &uri, 2), "what was flushed is there");
    write(&sandbox, &uri, 3);
    sandbox.ok(&["detach", "other"]);
    let words = ["attach", url, "--cache", "cache.img", "--via", "nbd-server"];
    let error = sandbox.fails(1, &words);
    assert!(error.contains("another host has written since"), "{error}");
}

#[test]
fn a_cache_of_something_else_and_a_host_that_may_write_are_refused() {
    let (sandbox, url) = with_copy();
    let is_told = |code: i32, words: &[&str], what: &str| {
        let error = sandbox.fails(code, words);
        assert!(error.contains(what), "{words:?}: {error}");
    };
    let attach = ["attach", &url, "--via", "nbd-server"];
    let with = |words: &[&'static str]| [&attach[..], words].concat();
    is_told(2, &attach, "--cache FILE");
    is_told(2, &["attach", "disk.img", "--cache", "x.img"], "belongs to the URL");
    is_told(2, &with(&["--cache", "x.img", "--read-only"]), "written to");
    is_told(2, &["attach", "file://x/y", "--cache", "x.img"], "not absolute");
    is_told(1, &with(&["--cache", "nowhere/x.img"]), "nowhere");
    is_told(1, &["attach", "file:///nowhere/at/all", "--cache", "x.img"], "No such file");
    fs::write(sandbox.path("text"), "text").expect("there is room");
    is_told(1, &with(&["--cache", "text"]), "no cache");
    // The cache of another volume.
    let other = format!("file://{}", sandbox.path("bucket/other").display());
    sandbox.ok(&["create", "b.img", "--store-size", "96M", "--segment-size", "2M"]);
    sandbox.ok(&["attach", "b.img", "--via", "nbd-server", "--replicate", &other]);
    sandbox.ok(&["detach", "b"]);
    attach_copy(&sandbox, &other, "x.img", &[]);
    sandbox.ok(&["detach", "x"]);
    is_told(1, &with(&["--cache", "x.img"]), "of another volume");
    // A host that may write.
    let words = ["attach", "disk.img", "--via", "nbd-server", "--replicate", &url];
    let old = sandbox.ok(&words).trim_end().to_owned();
    is_told(1, &with(&["--cache", "y.img"]), "--take-over");
    let uri = attach_copy(&sandbox, &url, "y.img", &["--take-over"]);
    write(&sandbox, &uri, 1);
    // It acknowledges what is only local, and hears of the other host when it ships that.
    wait_until("the other host is fenced", || {
        let mut copy = Command::new("nbdcopy");
        let copy = copy.args(["--flush", "written", &old]).current_dir(sandbox.path("."));
        !copy.output().expect("libnbd's programs are installed").status.success()
    });
    assert!(holds(&sandbox, &uri, 1));
}

/// A snapshot, two clones of it, one of the newest state; each goes on.
fn clones_go_on(sandbox: &Sandbox, base: &str) {
    let at = |name: &str| format!("{base}/{name}");
    ship_content(sandbox, &at("vol"), 1);
    let one = format!("{}@one", at("vol"));
    sandbox.ok(&["snapshot", "create", &one]);
    let told = sandbox.ok(&["clone", &one, &at("b")]);
    assert!(told.contains("is a clone of"), "{told}");
    let uri = attach_copy(sandbox, &at("b"), "b.img", &[]);
    assert!(holds(sandbox, &uri, 1), "it begins with the snapshot");
    write(sandbox, &uri, 2);
    sandbox.ok(&["detach", "b"]);
    sandbox.ok(&["clone", &at("vol"), &at("c")]);
    let uri = attach_copy(sandbox, &at("vol"), "vol.img", &["--take-over"]);
    assert!(holds(sandbox, &uri, 1), "the volume is what it was");
    write(sandbox, &uri, 3);
    sandbox.ok(&["detach", "vol"]);
    for (name, seed) in [("b", 2), ("c", 1), ("vol", 3)] {
        assert!(sandbox.ok(&["replica", "verify", &at(name)]).contains("sound"), "{name}");
        let file = format!("{name}.back");
        sandbox.ok(&["restore", &at(name), &file]);
        let uri = sandbox.ok(&["attach", &file, "--via", "nbd-server"]).trim_end().to_owned();
        assert!(holds(sandbox, &uri, seed), "{name}");
    }
    let error = sandbox.fails(1, &["snapshot", "delete", &one]);
    assert!(error.contains("cloned from") && error.contains("delete the clones"), "{error}");
    let error = sandbox.fails(1, &["clone", &one, &at("b")]);
    assert!(error.contains("there is a volume at") && error.contains("another URL"), "{error}");
    sandbox.fails(1, &["clone", &format!("{}@none", at("vol")), &at("d")]);
}

#[test]
fn clones_of_a_directory_go_on_by_themselves() {
    let (sandbox, url) = with_copy();
    let base = url.strip_suffix("/vol").expect("its name").to_owned();
    clones_go_on(&sandbox, &base);
    let error = sandbox.fails(1, &["clone", &url, "s3://bucket/x"]);
    assert!(error.contains("AWS") || error.contains("in the bucket"), "{error}");
}

#[test]
fn clones_in_a_bucket_go_on_by_themselves() {
    let (mut sandbox, _) = with_copy();
    let (_service, _proxy) = with_s3(&mut sandbox);
    clones_go_on(&sandbox, "s3://bucket");
}

#[test]
fn a_volume_is_moved_to_another_host_without_a_take_over() {
    let (sandbox, url) = with_copy();
    let words = ["attach", "disk.img", "--via", "nbd-server", "--replicate", &url];
    let uri = sandbox.ok(&words).trim_end().to_owned();
    write(&sandbox, &uri, 1);
    sandbox.fails(1, &["move", "disk.img", "file:///nowhere/at/all"]);
    sandbox.ok(&["create", "other.img", "--store-size", "96M", "--segment-size", "2M"]);
    let other = format!("{url}-of-another");
    sandbox.ok(&["replicate", "other.img", &other]);
    let error = sandbox.fails(1, &["move", "disk", &other]);
    assert!(error.contains("will not move 'disk'"), "{error}");
    assert!(error.contains("of another store") && error.contains("stays attached"), "{error}");
    assert!(!error.contains("--reseed"), "move has no such option: {error}");
    assert_eq!(sandbox.json(&["list", "--json"])[0]["name"], "disk", "it goes on");
    let told = sandbox.ok(&["move", "disk.img", &url]);
    let again = sandbox.fails(1, &["move", "disk.img", &url]);
    assert!(again.contains("moved there already"), "{again}");
    assert!(again.contains("--cache FILE"), "{again}");
    assert!(told.contains("no host"), "{told}");
    let status = sandbox.json(&["replica", "status", &url, "--json"]);
    assert_eq!(status["is_ended"], true, "{status}");
    let error = sandbox.fails(1, &words);
    assert!(error.contains("what was shipped last"), "{error}");
    let uri = attach_copy(&sandbox, &url, "there.img", &[]);
    assert!(holds(&sandbox, &uri, 1), "all of it is there");
    write(&sandbox, &uri, 2);
    sandbox.ok(&["move", "there.img", &url]);
    let uri = attach_copy(&sandbox, &url, "back.img", &[]);
    assert!(holds(&sandbox, &uri, 2), "a cache is moved as well");
}

/// Runs the program with an umask that takes nothing away.
fn ok_without_umask(sandbox: &Sandbox, words: &[&str]) {
    let plain = sandbox.command(words);
    let mut command = Command::new("sh");
    command.args(["-c", "umask 0; exec \"$0\" \"$@\""]).arg(plain.get_program());
    command.args(plain.get_args()).current_dir(sandbox.path("."));
    let variables = plain.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let output = command.envs(variables).output().expect("there is a shell");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// What lies in a directory that others may use in some way.
fn open_to_others(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).expect("it is a directory") {
            let path = entry.expect("it is read").path();
            let metadata = path.symlink_metadata().expect("it is there");
            if metadata.is_dir() {
                waiting.push(path.clone());
            }
            // The lock of the sandbox itself holds nothing.
            let is_ours = path.file_name() != Some("lock".as_ref());
            if is_ours && metadata.mode() & 0o077 != 0 {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn everything_that_holds_a_volume_or_leads_to_it_is_its_owners_alone_whatever_the_umask() {
    let sandbox = Sandbox::new();
    let url = format!("file://{}", sandbox.path("vol").display());
    let without_umask = |words: &[&str]| ok_without_umask(&sandbox, words);
    without_umask(&["create", "disk.img", "--store-size", "96M", "--segment-size", "2M"]);
    let words = ["attach", "disk.img", "--via", "nbd-server", "--replicate", &url];
    // The first flush is of the opening.
    without_umask(&[&words[..], &["--ack", "remote"]].concat());
    assert_eq!(open_to_others(&sandbox.path(".")), Vec::<PathBuf>::new(), "while it is attached");
    without_umask(&["detach", "disk"]);
    without_umask(&["snapshot", "create", &format!("{url}@one")]);
    without_umask(&["restore", &url, "restored.img"]);
    without_umask(&["clone", &format!("{url}@one"), &format!("{url}-clone")]);
    let words = ["attach", &format!("{url}-clone"), "--cache", "cache.img", "--name", "cache"];
    without_umask(&[&words[..], &["--via", "nbd-server"]].concat());
    without_umask(&["detach", "cache"]);
    without_umask(&["export", "restored.img", "exported.img"]);
    without_umask(&["salvage", "restored.img", "rescued.img", "--map", "rescued.map"]);
    assert_eq!(open_to_others(&sandbox.path(".")), Vec::<PathBuf>::new());
}

#[test]
fn no_link_is_followed_where_a_copy_is_restored_and_nothing_is_written_over() {
    let (sandbox, url) = with_copy();
    fs::write(sandbox.path("precious"), "mine").expect("the directory is writable");
    let link = |name: &str| symlink(sandbox.path("precious"), sandbox.path(name));
    for name in ["moved.img", "moved.img.part"] {
        link(name).expect("the directory is writable");
        let error = sandbox.run(&["restore", &url, "moved.img"]);
        assert!(!error.status.success(), "{name}");
        let error = String::from_utf8_lossy(&error.stderr).into_owned();
        assert!(error.contains("something is there already"), "{error}");
        fs::remove_file(sandbox.path(name)).expect("the link stayed");
    }
    fs::remove_file(sandbox.path("disk.img.marks")).expect("it was shipped");
    link("disk.img.marks").expect("the directory is writable");
    let words = ["attach", "disk.img", "--via", "nbd-server", "--replicate", &url];
    let error = sandbox.fails(1, &words);
    assert!(error.contains("disk.img.marks: it is a symbolic link"), "{error}");
    assert_eq!(fs::read(sandbox.path("precious")).expect("it is there"), b"mine");
}

#[test]
fn a_state_directory_to_which_others_may_write_is_refused() {
    let sandbox = Sandbox::new();
    let state = sandbox.make_directory("state");
    fs::set_permissions(&state, fs::Permissions::from_mode(0o777)).expect("it is ours");
    let error = sandbox.fails(1, &["list"]);
    assert!(error.contains("other users may write to it") && error.contains("chmod"), "{error}");
}
