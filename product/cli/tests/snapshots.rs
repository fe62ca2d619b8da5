//! Snapshots of a schedule, and of a file system that is frozen meanwhile.

mod sandbox;

use coulter_object::bucket::MemoryBucket;
use coulter_object::service::{Conditions, Proxy, Service};
use sandbox::{Sandbox, can_mount, wait_until};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn names(sandbox: &Sandbox, url: &str) -> Vec<String> {
    let list = sandbox.json(&["snapshot", "list", url, "--json"]);
    let name = |row: &serde_json::Value| row["name"].as_str().expect("a name").to_owned();
    list.as_array().expect("a list").iter().map(name).collect()
}

#[test]
fn a_schedule_gives_up_its_own_snapshots_and_no_others() {
    let sandbox = Sandbox::new();
    sandbox.make_directory("bucket");
    sandbox.ok(&["create", "disk.img", "--store-size", "96M", "--segment-size", "2M"]);
    let url = format!("file://{}", sandbox.path("bucket/vol").display());
    sandbox.ok(&["replicate", "disk.img", &url]);
    let at = |name: &str| format!("{url}@{name}");
    sandbox.ok(&["snapshot", "create", &at("by hand")]);
    sandbox.ok(&["snapshot", "create", &at("auto-one")]);
    sandbox.ok(&["snapshot", "create", &at("auto-two")]);
    let told = sandbox.ok(&["snapshot", "prune", &url, "--keep", "last=1", "--dry-run"]);
    assert!(told.contains("auto-one") && told.contains("would be given up"), "{told}");
    assert_eq!(names(&sandbox, &url).len(), 3, "nothing was given up");
    let told = sandbox.ok(&["snapshot", "create", &url, "--keep", "last=2"]);
    assert!(told.contains("@auto-2") && told.contains("auto-one"), "{told}");
    let left = names(&sandbox, &url);
    assert!(left.contains(&"by hand".to_owned()) && left.contains(&"auto-two".to_owned()));
    assert_eq!(left.len(), 3, "{left:?}");
    // What a clone needs stays, and is no failure.
    let clone = format!("file://{}", sandbox.path("bucket/clone").display());
    sandbox.ok(&["clone", &at("auto-two"), &clone]);
    let output = sandbox.run(&["snapshot", "prune", &url, "--keep", "last=1"]);
    assert!(output.status.success());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("auto-two stays"), "{told}");
    let one_each = "hourly=1,daily=1,weekly=1,monthly=1,yearly=1";
    sandbox.ok(&["snapshot", "prune", &url, "--keep", one_each]);
    assert_eq!(names(&sandbox, &url).len(), 3);

    let is_told = |code: i32, words: &[&str], what: &str| {
        let error = sandbox.fails(code, words);
        assert!(error.contains(what), "{words:?}: {error}");
    };
    is_told(2, &["snapshot", "create", &url], "URL@NAME");
    is_told(2, &["snapshot", "prune", &url], "--keep");
    is_told(
        2,
        &["snapshot", "prune", &at("auto-two"), "--keep", "last=1"],
        "leave '@auto-two' away",
    );
    is_told(2, &["snapshot", "prune", &url, "--keep", "minutely=1"], "none of last");
    is_told(2, &["snapshot", "create", &at("x"), "--freeze-max", "1s"], "--freeze");
    is_told(2, &["snapshot", "create", &at("x"), "--freeze", "/", "--freeze-max", "1h"], "5min");
    // The root file system is on no volume of ours.
    is_told(2, &["snapshot", "create", &at("x"), "--freeze", "/"], "not on a volume");
    is_told(
        1,
        &["snapshot", "prune", "file:///nowhere/at/all", "--keep", "last=1"],
        "No such file",
    );
}

/// A mounted ext4 with a copy in a bucket of S3, which the proxy can make slow.
struct Mounted {
    sandbox: Sandbox,
    proxy: Proxy,
    _service: Service,
}

const URL: &str = "s3://bucket/vol";

fn mounted() -> Mounted {
    let mut sandbox = Sandbox::new();
    let service = Service::start("bucket", Arc::new(MemoryBucket::new())).expect("a free port");
    let proxy = Proxy::start(service.address(), 1).expect("a free port");
    sandbox.set_variable("AWS_ENDPOINT_URL", &proxy.endpoint());
    sandbox.set_variable("AWS_ACCESS_KEY_ID", "key");
    sandbox.set_variable("AWS_SECRET_ACCESS_KEY", "secret");
    sandbox.make_directory("mnt");
    let words = ["mount", "disk.img", "mnt", "--create", "--size", "128M", "--mkfs", "ext4"];
    let more = ["--name", "vol", "--replicate", URL, "--every", "100ms"];
    sandbox.ok(&[&words[..], &more[..]].concat());
    let is_shipped = || {
        let status = sandbox.json(&["status", "vol", "--json"]);
        status["replica"]["commits"].as_u64() > Some(0)
    };
    wait_until("there is a commit", is_shipped);
    Mounted { sandbox, proxy, _service: service }
}

impl Mounted {
    /// Writes files and syncs them until `body` is done with the file system.
    fn while_writing<T>(&self, body: impl FnOnce() -> T) -> T {
        let (ends, mount) = (AtomicBool::new(false), self.sandbox.path("mnt"));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut count = 0_u64;
                while !ends.load(Ordering::Relaxed) {
                    let path = mount.join(format!("file-{}", count % 50));
                    sandbox::write_and_sync(&path, &count.to_le_bytes().repeat(2000));
                    count += 1;
                }
                count
            });
            let done = body();
            ends.store(true, Ordering::Relaxed);
            assert!(writer.join().expect("no panic") > 0, "something was written");
            done
        })
    }

    /// The image of a snapshot's volume.
    fn image(&self, name: &str) -> std::path::PathBuf {
        let (store, image) = (format!("{name}.img"), format!("{name}.raw"));
        self.sandbox.ok(&["restore", &format!("{URL}@{name}"), &store]);
        self.sandbox.ok(&["export", &store, &image]);
        self.sandbox.path(&image)
    }
}

fn tool(name: &str, words: &[&str], image: &Path) -> Output {
    Command::new(name).args(words).arg(image).output().expect("e2fsprogs are installed")
}

fn needs_replay(image: &Path) -> bool {
    let told = tool("dumpe2fs", &["-h"], image);
    String::from_utf8_lossy(&told.stdout).contains("needs_recovery")
}

#[test]
fn a_snapshot_of_a_frozen_file_system_is_clean_and_needs_no_replay() {
    let Some(_right) = can_mount("a_snapshot_of_a_frozen_file_system_is_clean") else { return };
    let mounted = mounted();
    let (sandbox, directory) = (&mounted.sandbox, mounted.sandbox.path("mnt"));
    let directory = directory.to_str().expect("it is text");
    let mut tries = 0;
    mounted.while_writing(|| {
        // Without the freeze it is as after a power cut, once what was shipped is of a mounted file system.
        wait_until("the test sees a journal that is not empty", || {
            tries += 1;
            let name = format!("thawed-{tries}");
            sandbox.ok(&["snapshot", "create", &format!("{URL}@{name}")]);
            needs_replay(&mounted.image(&name))
        });
        sandbox.ok(&["snapshot", "create", &format!("{URL}@frozen"), "--freeze", directory]);
    });
    let frozen = mounted.image("frozen");
    assert!(!needs_replay(&frozen), "its journal is empty");
    let checked = tool("e2fsck", &["-fn"], &frozen);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    sandbox.ok(&["umount", "mnt"]);
}

/// Somebody who writes to the file system; stuck while it is frozen.
fn probe(sandbox: &Sandbox) -> Child {
    let path = sandbox.path("mnt/probe");
    Command::new("sh").args(["-c", ": > \"$0\""]).arg(path).spawn().expect("there is a shell")
}

/// Waits until somebody who writes is stuck.
fn await_stuck(sandbox: &Sandbox) -> Child {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < until, "it is never frozen");
        let mut child = probe(sandbox);
        // Mistaken on a slow machine, the rest of the test has nothing to see, and passes.
        let stuck = Instant::now() + Duration::from_millis(700);
        while child.try_wait().expect("it is ours").is_none() {
            if Instant::now() > stuck {
                return child;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn ends_soon(child: &mut Child) {
    let until = Instant::now() + Duration::from_secs(30);
    while child.try_wait().expect("it is ours").is_none() {
        assert!(Instant::now() < until, "the file system stays frozen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_file_system_is_thawed_when_time_is_over_and_when_the_command_or_its_guard_is_killed() {
    let Some(_right) = can_mount("a_file_system_is_thawed_whatever_happens") else { return };
    let mounted = mounted();
    let sandbox = &mounted.sandbox;
    let directory = sandbox.path("mnt");
    let directory = directory.to_str().expect("it is text");
    let name = format!("{URL}@never");
    let words = |limit| ["snapshot", "create", &name, "--freeze", directory, "--freeze-max", limit];
    // Commits take longer than it may be frozen.
    let slow = Conditions { put_latency: Duration::from_secs(12), ..Conditions::default() };
    mounted.proxy.set_conditions(slow);
    sandbox::write_and_sync(&sandbox.path("mnt/file"), b"something to ship");
    let error = sandbox.fails(1, &words("300ms"));
    assert!(error.contains("was thawed before") && error.contains("--freeze-max"), "{error}");
    ends_soon(&mut probe(sandbox));

    let mut command = sandbox.command(&words("3min")).spawn().expect("it runs");
    let mut stuck = await_stuck(sandbox);
    command.kill().expect("it is ours");
    command.wait().expect("it is ours");
    ends_soon(&mut stuck);

    sandbox::write_and_sync(&sandbox.path("mnt/file"), b"something more to ship");
    let mut command = sandbox.command(&words("8s")).spawn().expect("it runs");
    let mut stuck = await_stuck(sandbox);
    let children = format!("/proc/{0}/task/{0}/children", command.id());
    let children = fs::read_to_string(children).unwrap_or_default();
    for guard in children.split_whitespace() {
        sandbox::send(guard.parse().expect("a process"), "KILL");
    }
    ends_soon(&mut stuck);
    command.wait().expect("it is ours");
    mounted.proxy.set_conditions(Conditions::default());
    wait_until("commits are made again", || {
        sandbox.json(&["status", "vol", "--json"])["replica"]["outage"].is_null()
    });
    assert!(names(sandbox, URL).is_empty(), "a snapshot was made of what was not frozen");
    sandbox.ok(&["umount", "mnt"]);
}
