//! The scripts around the build do what they say when the machine is not as they would like it.

use coulter_systems::requirement::{Need, has};
use rustix::fs::{FlockOperation, fcntl_lock};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(name)
}

fn await_apt(lock: &Path, seconds: u32) -> Command {
    let mut command = Command::new("bash");
    command.arg(script("setup.sh")).arg("await-apt");
    command.env("COULTER_APT_LOCKS", lock).env("COULTER_APT_WAIT", seconds.to_string());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_lock_of_apt_is_waited_for_with_a_word_and_not_for_ever() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let path = directory.path().join("lock");
    let lock = File::create(&path).expect("the directory is writable");
    let free = await_apt(&path, 60).output().expect("bash can be run");
    assert!(free.status.success() && said(&free).is_empty(), "{}", said(&free));

    fcntl_lock(&lock, FlockOperation::NonBlockingLockExclusive).expect("nobody holds it");
    let holder = format!("process {}", std::process::id());
    let given_up = await_apt(&path, 1).output().expect("bash can be run");
    assert_eq!(given_up.status.code(), Some(1), "{}", said(&given_up));
    assert!(said(&given_up).contains(&holder), "{}", said(&given_up));
    assert!(said(&given_up).contains("more than 1 s"), "{}", said(&given_up));

    let waiting = await_apt(&path, 600).stderr(Stdio::piped()).spawn().expect("bash can be run");
    std::thread::sleep(Duration::from_millis(500));
    let begin = Instant::now();
    fcntl_lock(&lock, FlockOperation::Unlock).expect("it is ours");
    let waited = waiting.wait_with_output().expect("it is our child");
    assert!(waited.status.success(), "{}", said(&waited));
    assert!(said(&waited).contains("waiting for"), "{}", said(&waited));
    assert!(begin.elapsed() < Duration::from_secs(60));
}

/// A test program that mounts, takes a loop device, starts a process and fails.
const UNTIDY: &str = r#"#!/usr/bin/env bash
scratch=/var/tmp/coulter-systems-$$-0
mkdir "$scratch"; touch "$scratch/lock"
mount -t tmpfs none "$HERE/mnt"; touch "$HERE/mnt/hidden"
truncate --size 1M "$scratch/disk"; losetup --find --show "$scratch/disk" >"$HERE/loop"
setsid sleep 600 </dev/null >/dev/null 2>&1 &
echo "$! $scratch" >"$HERE/left"
exit 3
"#;

#[test]
fn a_test_program_that_fails_leaves_no_mount_loop_device_process_or_file() {
    if !has("test programs in a namespace", &[Need::Root, Need::Loop]) {
        return;
    }
    let here = tempfile::tempdir().expect("a temporary directory can be made");
    let path = |name: &str| here.path().join(name);
    for directory in ["deps", "mnt"] {
        fs::create_dir(path(directory)).expect("the directory is new");
    }
    let program = path("deps/untidy");
    fs::write(&program, UNTIDY).expect("the directory is writable");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let mut runner = Command::new(script("test-runner.sh"));
    let output = runner.arg(&program).env("HERE", here.path()).output().expect("bash can be run");
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(!path("mnt/hidden").exists(), "its mount is seen outside");
    let left = fs::read_to_string(path("left")).expect("it wrote that");
    let (process, scratch) = left.trim().split_once(' ').expect("two words");
    let command = fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default();
    assert_eq!(command, "", "it runs on: {}", said(&output));
    assert!(!Path::new(scratch).exists(), "{}", said(&output));
    let device = fs::read_to_string(path("loop")).expect("it wrote that");
    let mut behind = Command::new("losetup");
    behind.args(["--list", "--noheadings", "--output", "BACK-FILE", device.trim()]);
    let behind = behind.output().expect("`losetup` can be run");
    let behind = String::from_utf8_lossy(&behind.stdout).into_owned();
    assert!(!behind.contains(scratch), "{device} is over {behind}");
    // A program beside may have removed the directory: it sweeps away what no process holds.
    let told = format!("process {process}, sleep 600");
    assert!(said(&output).contains(&told), "{}", said(&output));
}
