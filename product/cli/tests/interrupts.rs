//! Ctrl-C in every command that takes time: it says what stays and what goes on, and the same
//! command goes on or begins anew. Needs root, FUSE and loop devices for what mounts.

mod sandbox;

use sandbox::{Sandbox, can_mount, is_running, send, wait_until, write_and_sync};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// INT in the set of blocked signals that /proc tells.
const INT: u64 = 1 << 1;
/// How long a command may take until it hears of signals.
const PATIENCE: Duration = Duration::from_secs(60);

fn noise(size: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut bytes = vec![0; size];
    for word in bytes.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    bytes
}

fn start(sandbox: &Sandbox, words: &[&str]) -> Child {
    let file = File::create(sandbox.path("said")).expect("the directory is writable");
    let mut command = sandbox.command(words);
    command.stdout(Stdio::null()).stderr(file).spawn().expect("the program can be started")
}

/// True from when the command has taken the signals over, so that it ends with words.
fn hears(child: &Child) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t"));
    blocked.is_some_and(|set| u64::from_str_radix(set, 16).unwrap_or(0) & INT != 0)
}

/// Starts a command, and interrupts it once it hears of that and `more` has passed. Gives back its
/// words; `None` if it was done before.
fn interrupted(sandbox: &Sandbox, words: &[&str], more: Duration) -> Option<String> {
    let mut child = start(sandbox, words);
    let limit = Instant::now() + PATIENCE;
    while !hears(&child) {
        assert!(Instant::now() < limit, "coulter {} never hears of signals", words.join(" "));
        if child.try_wait().expect("it is ours").is_some() {
            return None;
        }
    }
    std::thread::sleep(more);
    if child.try_wait().expect("it is ours").is_some() {
        return None;
    }
    send(child.id(), "INT");
    let code = child.wait().expect("it was started").code();
    let said = fs::read_to_string(sandbox.path("said")).expect("it is there");
    if code == Some(0) {
        return None;
    }
    assert_eq!(code, Some(1), "coulter {}: {said}", words.join(" "));
    for word in ["error: interrupted", "\n  why: ", "\n  do:  "] {
        assert!(said.contains(word), "coulter {}: {said}", words.join(" "));
    }
    Some(said)
}

/// A command, what it says that the daemon was told, and whether that is done.
type Step<'a> = (&'a [&'a str], &'a str, &'a dyn Fn() -> bool);

#[test]
fn what_a_daemon_was_told_to_do_goes_on_and_that_is_said() {
    let sandbox = Sandbox::new();
    sandbox.make_directory("bucket");
    let url = format!("file://{}", sandbox.path("bucket/vol").display());
    sandbox.ok(&["create", "a.img", "--store-size", "128M", "--segment-size", "2M"]);
    sandbox.ok(&["attach", "a.img", "--via", "nbd-server"]);
    let pid = sandbox.pid_of("a");
    // While it changes its copy, the daemon may take longer than a command waits for its status.
    let status = || -> serde_json::Value {
        let output = sandbox.run(&["status", "a", "--json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    };
    let uptime_now = || status()["uptime_seconds"].as_f64();
    let size = || sandbox.listed()[0]["volume_size_bytes"].clone();
    let before = size();
    let uptime = std::cell::Cell::new(0.0);
    let steps: [Step<'_>; 4] = [
        (&["grow", "a", "--store-size", "160M"], "told to grow", &|| size() != before),
        (&["upgrade", "a"], "told to become this program", &|| {
            uptime_now().is_some_and(|now| now < uptime.get())
        }),
        (&["replicate", "a", &url], "told to change its replication", &|| {
            status()["replica"]["url"] == url
        }),
        (&["detach", "a"], "told to end", &|| !is_running(pid)),
    ];
    for (words, told, is_done) in steps {
        wait_until("it tells its status", || uptime_now().map(|now| uptime.set(now)).is_some());
        send(pid, "STOP");
        let said = interrupted(&sandbox, words, Duration::from_millis(300)).expect("it waits");
        assert!(said.contains(told) && said.contains("by itself"), "{said}");
        assert!(said.contains("coulter list"), "{said}");
        send(pid, "CONT");
        wait_until(told, is_done);
    }
    assert_eq!(sandbox.listed().as_array().map(Vec::len), Some(0));
    sandbox.ok(&["check", "a.img"]);
    assert!(sandbox.ok(&["replica", "status", &url]).contains("commit"));
}

/// A store whose volume holds noise.
fn filled(sandbox: &Sandbox) -> Vec<u8> {
    let content = noise(64 * MIB);
    write_and_sync(&sandbox.path("a.raw"), &content);
    sandbox.ok(&["create", "a.img", "--from", "a.raw"]);
    content
}

#[test]
fn an_interrupted_export_leaves_nothing() {
    let sandbox = Sandbox::new();
    let content = filled(&sandbox);
    let mut child = start(&sandbox, &["export", "a.img", "out.raw"]);
    // The volume runs by then, with a thread of its own.
    wait_until("it is being written", || sandbox.path("out.raw.partial").exists());
    send(child.id(), "INT");
    let code = child.wait().expect("it was started").code();
    let said = fs::read_to_string(sandbox.path("said")).expect("it is there");
    if code == Some(0) {
        assert!(fs::read(sandbox.path("out.raw")).expect("it is there")[..] == content[..]);
        return;
    }
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("error: interrupted"), "{said}");
    assert!(!sandbox.path("out.raw").exists() && !sandbox.path("out.raw.partial").exists());
}

#[test]
fn an_interrupted_copy_is_shipped_by_the_same_command() {
    let sandbox = Sandbox::new();
    filled(&sandbox);
    sandbox.make_directory("bucket");
    let url = format!("file://{}", sandbox.path("bucket/vol").display());
    let words = ["replicate", "a.img", &url];
    let said = interrupted(&sandbox, &words, Duration::from_millis(20)).expect("it takes long");
    assert!(said.contains("a part of") && said.contains("the same command"), "{said}");
    sandbox.ok(&words);
    assert!(sandbox.ok(&["replica", "verify", &url]).contains("sound"));
    sandbox.ok(&["restore", &url, "back.img"]);
    sandbox.ok(&["export", "back.img", "back.raw"]);
    let read = |name: &str| fs::read(sandbox.path(name)).expect("it is there");
    assert!(read("back.raw") == read("a.raw"));
    if let Some(said) = interrupted(&sandbox, &["move", "a.img", &url], Duration::ZERO) {
        assert!(said.contains("host's yet") || said.contains("nothing was done"), "{said}");
        sandbox.ok(&["move", "a.img", &url]);
    }
}

/// Overwrites every second block.
fn overwrite(path: &Path) {
    use std::os::unix::fs::FileExt;
    let file = File::options().write(true).open(path).expect("it is there");
    let block = noise(4096);
    for at in (0..64 * MIB as u64).step_by(8192) {
        file.write_all_at(&block, at).expect("it is writable");
    }
    file.sync_all().expect("it can be synced");
}

#[test]
fn an_interrupted_overlay_is_served_and_goes_home_by_the_same_command() {
    let Some(_right) = can_mount("an interrupted overlay is served and goes home") else { return };
    let sandbox = Sandbox::new();
    sandbox.make_directory("data");
    write_and_sync(&sandbox.path("data/file"), &noise(64 * MIB));
    sandbox.ok(&["overlay", "data", "--store-size", "512M"]);
    let mut told = 0;
    for words in
        [&["overlay", "settle", "data"][..], &["overlay", "detach", "data"], &["umount", "data"]]
    {
        if sandbox.listed().as_array().is_some_and(Vec::is_empty) {
            sandbox.ok(&["overlay", "data"]);
        }
        overwrite(&sandbox.path("data/file"));
        let Some(said) = interrupted(&sandbox, words, Duration::ZERO) else { continue };
        assert!(said.contains("served as before") || said.contains("by itself"), "{said}");
        told += 1;
        if said.contains("by itself") {
            wait_until("it has ended", || sandbox.listed().as_array().is_some_and(Vec::is_empty));
        }
    }
    assert!(told > 0, "each was done before it was interrupted");
    sandbox.ok(&["overlay", "detach", "data"]);
    assert!(!sandbox.path("data/.coulter").exists());
    let file = fs::read(sandbox.path("data/file")).expect("it is there");
    assert!(file[..4096] == noise(4096)[..] && file.len() == 64 * MIB);
}

#[test]
fn the_remains_of_a_killed_detach_are_taken_away_by_the_next() {
    let Some(_right) = can_mount("the remains of a killed detach are taken away") else { return };
    let sandbox = Sandbox::new();
    let hidden = sandbox.make_directory("data").join(".coulter");
    fs::create_dir(&hidden).expect("the directory is writable");
    fs::write(hidden.join("store"), "a store without a note").expect("the directory is writable");
    let output = sandbox.run(&["overlay", "detach", "data"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("took away what"), "{said}");
    assert!(!hidden.exists());
    let said = sandbox.fails(1, &["overlay", "detach", "data"]);
    assert!(said.contains("no overlay is over it"), "{said}");
}

#[test]
fn an_interrupted_rescue_says_that_a_part_is_there() {
    let Some(_right) = can_mount("an interrupted rescue says that a part is there") else { return };
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    sandbox.ok(&["fs", "create", "a.img", "--size", "200M"]);
    sandbox.ok(&["fs", "mount", "a.img", "mnt"]);
    write_and_sync(&sandbox.path("mnt/file"), &noise(64 * MIB));
    sandbox.ok(&["umount", "mnt"]);
    let said = interrupted(&sandbox, &["fs", "salvage", "a.img", "out"], Duration::ZERO);
    let said = said.expect("it takes long");
    assert!(said.contains("out has a part of the files") && said.contains("empty it"), "{said}");
    fs::remove_dir_all(sandbox.path("out")).expect("it is ours");
    sandbox.ok(&["fs", "salvage", "a.img", "out"]);
    assert!(fs::read(sandbox.path("out/file")).expect("it is there") == noise(64 * MIB));
}
