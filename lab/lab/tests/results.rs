//! Files of results replace nothing but older ones of their kind, and a demonstration that is ended
//! leaves no trace, at the latest when the next one begins.

mod sandbox;

use sandbox::{Sandbox, send, skipped, wait_until};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// The shortest demonstration.
const DEMO: [&str; 8] = ["demo", "--no-root", "--size", "1M", "--seconds", "2", "--directory", "."];

#[test]
fn a_result_does_not_replace_what_is_no_result() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    let trace = "8,0 1 1 0.000000000 4242 Q WS 8 + 8 [postgres]\n".repeat(100);
    std::fs::write(sandbox.path("t.txt"), &trace).expect("the directory is writable");
    let flash = ["flash", "attach", "--profile", "tiny", "--via", "nbd-server", "--statistics"];
    let read = |name: &str| std::fs::read(sandbox.path(name)).expect("it is there");
    let before = read("disk.img");
    for (words, name) in [
        (&["replay", "t.txt", "--plot"][..], "t.txt"),
        (&["replay", "t.txt", "--plot"], "disk.img"),
        (&["report", "--short", "--output"], "disk.img"),
        (&[&DEMO[..], &["--picture"]].concat(), "disk.img"),
        (&flash, "disk.img"),
    ] {
        let said = sandbox.fails(1, &[words, &[name]].concat());
        assert!(said.contains("will not write") && said.contains(name), "{said}");
        assert!(said.contains("another file"), "{said}");
    }
    assert!(read("t.txt") == trace.as_bytes() && read("disk.img") == before, "written to");
    assert!(!sandbox.path("disk.img.parts").exists());
    assert_eq!(sandbox.ok(&["list", "--json"]).trim(), "[]", "the drive is attached");
}

/// No machine has the room for it, so that it ends before anything is measured.
#[test]
fn a_demonstration_in_memory_says_that_no_disk_is_measured() {
    let sandbox = Sandbox::new();
    let demo = |directory| {
        sandbox.fails(1, &["demo", "--no-root", "--size", "1P", "--directory", directory])
    };
    let note = "what is measured there is memory, not a disk";
    assert!(!demo(".").contains(note));
    let is_tmpfs = std::fs::read_to_string("/proc/self/mounts")
        .is_ok_and(|mounts| mounts.lines().any(|line| line.contains(" /dev/shm tmpfs ")));
    if !is_tmpfs {
        skipped("a demonstration in memory: /dev/shm is not there");
        return;
    }
    let said = demo("/dev/shm");
    assert!(said.contains(note) && said.contains("/dev/shm"), "{said}");
}

#[test]
fn a_report_removes_its_own_parts_only() {
    let sandbox = Sandbox::new();
    let parts = sandbox.make_directory("r.html.parts");
    std::fs::write(parts.join("notes"), b"theirs").expect("the directory is writable");
    sandbox.ok(&["report", "--short", "--only", "D1", "--output", "r.html"]);
    let left = std::fs::read_dir(&parts).expect("it is still there").flatten();
    assert_eq!(left.map(|file| file.file_name()).collect::<Vec<_>>(), ["notes"]);
}

#[test]
fn a_demonstration_with_a_copy_loses_its_host_and_no_flushed_write() {
    let sandbox = Sandbox::new();
    let words = ["demo", "--replicate", "--no-root", "--directory", ".", "--json"];
    let found = sandbox.json(&words);
    assert_eq!(found["recovered"], true, "{found}");
    assert!(found["durable_before_loss"].as_u64() > Some(0), "{found}");
    if rustix::process::geteuid().is_root() {
        let found = sandbox.json(&["demo", "--replicate", "--directory", ".", "--json"]);
        assert_eq!(found["recovered"], true, "{found}");
    }
    let left = std::fs::read_dir(sandbox.path(".")).expect("it is readable").flatten();
    let names: Vec<_> = left.map(|file| file.file_name()).collect();
    let is_demo = |name: &std::ffi::OsString| name.to_string_lossy().contains("demo");
    assert!(!names.iter().any(is_demo), "{names:?} is left behind");
    sandbox.fails(2, &["demo", "--replicate", "--size", "1G"]);
}

fn demo(sandbox: &Sandbox) -> Child {
    let mut command = sandbox.command(&[&DEMO[..], &["--picture", "p.svg"]].concat());
    command.stdout(Stdio::null()).spawn().expect("the program can be started")
}

/// The directory of a demonstration that has come so far that its daemon serves.
fn under_way(sandbox: &Sandbox, but: Option<&Path>) -> PathBuf {
    let mut found = None;
    wait_until("a demonstration has a daemon", || {
        let files = std::fs::read_dir(sandbox.path(".")).expect("it is readable").flatten();
        let mut demos = files
            .map(|file| file.path())
            .filter(|path| Some(path.as_path()) != but && path.join("state/demo.sock").exists());
        found = demos.next();
        found.is_some()
    });
    found.expect("it was found")
}

fn daemon_of(directory: &Path) -> u32 {
    let text = std::fs::read(directory.join("state/demo.json")).expect("it serves");
    let entry: serde_json::Value = serde_json::from_slice(&text).expect("it is an entry");
    entry["pid"].as_u64().expect("the pid is a number") as u32
}

#[test]
fn a_killed_demonstration_is_cleared_away_by_the_next_and_pictures_stay() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("p.svg"), b"<svg><!-- made by coulter --></svg>")
        .expect("the directory is writable");
    let mut killed = demo(&sandbox);
    let left = under_way(&sandbox, None);
    killed.kill().and_then(|()| killed.wait()).expect("it is our child");
    let daemon = daemon_of(&left);
    assert!(sandbox::is_running(daemon), "nothing is left to clear away");

    let mut next = demo(&sandbox);
    wait_until("the next one clears away", || !left.exists());
    assert!(!sandbox::is_running(daemon));
    let own = under_way(&sandbox, Some(&left));
    send(next.id(), "INT");
    assert_eq!(next.wait().expect("it is our child").code(), Some(1));
    assert!(!own.exists());
    assert_eq!(
        std::fs::read(sandbox.path("p.svg")).expect("it is there"),
        b"<svg><!-- made by coulter --></svg>"
    );
}
