//! The scripts around the build do what they say when the machine is not as they would like it.

use rustix::fs::{FlockOperation, fcntl_lock};
use std::fs::File;
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
