//! For tests of the programs: a directory and a state directory of its own, the programs in it, and
//! the certainty that no daemon, mount or loop device outlives the test; nor the next test, if this
//! one is killed.

pub use crate::requirement::skipped;

use crate::Scratch;
use crate::diagnosis;
use crate::requirement::{Need, has};
use coulter_system::mounts::{self, Mount};
use coulter_system::process::{Process, command_of};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long anything may take that a test waits for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Writes a file, and returns when it is durable.
///
/// # Panics
/// When the file cannot be written.
pub fn write_and_sync(path: &Path, content: &[u8]) {
    let mut file = File::create(path).expect("the file system is writable");
    file.write_all(content).expect("there is room");
    file.sync_all().expect("it can be synced");
}

/// The names of all fields in a value.
pub fn names(value: &Value, into: &mut impl Extend<String>) {
    let mut left = vec![value];
    while let Some(value) = left.pop() {
        match value {
            Value::Object(fields) => {
                into.extend(fields.keys().cloned());
                left.extend(fields.values());
            }
            Value::Array(values) => left.extend(values),
            _ => {}
        }
    }
}

/// The directory, and what runs in it.
pub struct Sandbox {
    scratch: Scratch,
    product: PathBuf,
    laboratory: Option<PathBuf>,
    /// Variables of the environment that every program gets.
    variables: Vec<(String, String)>,
}

/// The verbs of `coulter-lab`.
const LABORATORY: [&str; 6] = ["bench", "demo", "flash", "replay", "report", "sim"];

impl Sandbox {
    /// A new directory, in which `product` (`coulter`) is run, and `laboratory` (`coulter-lab`) by its
    /// verbs.
    pub fn new(product: &Path, laboratory: Option<&Path>) -> Sandbox {
        // Where O_DIRECT and loop devices work: not in memory. A short path, for the sockets.
        let scratch = Scratch::new(Path::new("/var/tmp"));
        let scratch = scratch.expect("a temporary directory can be made");
        let (product, laboratory) = (product.to_owned(), laboratory.map(Path::to_owned));
        Sandbox { scratch, product, laboratory, variables: Vec::new() }
    }

    /// Sets a variable of the environment for all programs from now on.
    pub fn set_variable(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path(name)
    }

    /// A new directory in it.
    pub fn make_directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir(&path).expect("the directory is new");
        path
    }

    /// Lets other users reach what lies in the directory, if they may use that.
    pub fn let_others_in(&self) {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(self.scratch.directory(), permissions).expect("it is ours");
    }

    /// The program that has this verb, in the directory, with its own state directory.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let is_of_laboratory = arguments.first().is_some_and(|verb| LABORATORY.contains(verb));
        let program = match &self.laboratory {
            Some(laboratory) if is_of_laboratory => laboratory,
            _ => &self.product,
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(self.scratch.directory())
            .env("COULTER_STATE_DIRECTORY", self.path("state"))
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }

    /// The program, which may not write behind this byte of any file.
    pub fn command_with_file_limit(&self, size: u64, arguments: &[&str]) -> Command {
        let program = self.command(arguments);
        let mut command = Command::new("sh");
        // In a shell that keeps to POSIX the limit counts blocks of 512 bytes.
        let script = format!("ulimit -f {}; exec \"$0\" \"$@\"", size / 512);
        command.args(["-c", &script]).arg(program.get_program()).args(program.get_args());
        command
            .current_dir(self.scratch.directory())
            .env("COULTER_STATE_DIRECTORY", self.path("state"))
            .stdin(Stdio::null());
        command
    }

    /// Runs it to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the program can be started")
    }

    /// Runs what must succeed, and gives back what it printed.
    #[track_caller]
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "coulter {}: {error}", arguments.join(" "));
        String::from_utf8(output.stdout).expect("the output is text")
    }

    /// Runs what must succeed, and reads the JSON that it printed.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(arguments)).expect("the output is JSON")
    }

    /// What `list --json` prints. Its exit code is 1 if and only if a volume has failed or is not served.
    #[track_caller]
    pub fn listed(&self) -> Value {
        let output = self.run(&["list", "--json"]);
        let listed: Value = serde_json::from_slice(&output.stdout).expect("the output is JSON");
        let has_failed = |entry: &Value| entry["failure"].is_string() || entry["killed"] == true;
        let any = listed.as_array().expect("it is an array").iter().any(has_failed);
        assert_eq!(output.status.code(), Some(i32::from(any)), "{listed}");
        listed
    }

    /// Runs what must fail with this exit code, and gives back what it said.
    #[track_caller]
    pub fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "coulter {}: {error}", arguments.join(" "));
        error
    }

    /// Starts what stays in the foreground, and waits for the line that it prints when it serves.
    pub fn start(&self, arguments: &[&str]) -> (Child, String) {
        let mut child = self
            .command(arguments)
            .stdout(Stdio::piped())
            .stderr(File::create(self.path("stderr")).expect("the directory is writable"))
            .spawn()
            .expect("the program can be started");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("the output is text");
        if line.is_empty() {
            let error = std::fs::read_to_string(self.path("stderr")).unwrap_or_default();
            let _ = child.wait();
            panic!("coulter {}: {error}", arguments.join(" "));
        }
        (child, line.trim_end().to_owned())
    }

    /// The daemon of the volume `name`.
    pub fn pid_of(&self, name: &str) -> u32 {
        let list = self.json(&["list", "--json"]);
        let entries = list.as_array().expect("`list --json` is an array");
        let entry = entries.iter().find(|entry| entry["name"] == name).expect("it is attached");
        entry["pid"].as_u64().expect("the pid is a number") as u32
    }

    /// The names under which killed daemons have left something.
    fn names_of_ended(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.path("state")).into_iter().flatten().flatten();
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        names.filter_map(|name| name.strip_suffix(".json").map(str::to_owned)).collect()
    }

    /// Sends a signal to the daemon of `name` and waits until it is gone.
    pub fn signal(&self, name: &str, signal: &str) {
        let pid = self.pid_of(name);
        send(pid, signal);
        wait_until("the daemon is gone", || !is_running(pid));
    }
}

impl Sandbox {
    /// Of each daemon the end of its log and what its threads do.
    fn tell_of_daemons(&self) {
        let files = std::fs::read_dir(self.path("state")).into_iter().flatten().flatten();
        let paths: Vec<PathBuf> = files.map(|file| file.path()).collect();
        let is = |path: &&PathBuf, wanted: &str| path.extension().is_some_and(|it| it == wanted);
        for log in paths.iter().filter(|path| is(path, "log")) {
            eprintln!("{}", diagnosis::end_of(log));
        }
        for entry in paths.iter().filter(|path| is(path, "json")) {
            let text = std::fs::read(entry).unwrap_or_default();
            let entry: Value = serde_json::from_slice(&text).unwrap_or_default();
            let pid = entry["pid"].as_u64().unwrap_or_default() as u32;
            if is_coulter(pid) {
                eprintln!("{}", diagnosis::threads_of(pid));
            }
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell_of_daemons();
        }
        let below = self.scratch.directory();
        // The files of the attach points go last, with what lies on them.
        let on_volumes = mounts_below(below).into_iter().filter(|m| m.kind != "fuse.coulter");
        for mount in on_volumes {
            let _ = Command::new("umount").arg("--lazy").arg(mount.mount_point).output();
        }
        let list = self.run(&["list", "--json"]).stdout;
        let entries: Vec<Value> = serde_json::from_slice(&list).unwrap_or_default();
        for entry in entries {
            let pid = entry["pid"].as_u64().unwrap_or_default() as u32;
            // That of a killed one, or of one in another namespace, is somebody else's.
            if !is_coulter(pid) {
                continue;
            }
            let _ = Command::new("kill").arg(pid.to_string()).status();
            let deadline = Instant::now() + PATIENCE;
            while is_running(pid) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        for name in self.names_of_ended() {
            let _ = self.run(&["detach", &name]);
        }
        for mount in mounts_below(below) {
            let _ = Command::new("umount").arg("--lazy").arg(mount.mount_point).output();
        }
    }
}

/// Sends a signal by its name.
pub fn send(pid: u32, signal: &str) {
    let status = Command::new("kill").args(["-s", signal, &pid.to_string()]).status();
    assert!(status.expect("`kill` can be run").success(), "process {pid} is gone already");
}

/// Whether there is such a process, and it has not ended.
pub fn is_running(pid: u32) -> bool {
    Process::with_pid(pid).is_some()
}

fn is_coulter(pid: u32) -> bool {
    command_of(pid).starts_with("coulter")
}

/// Waits for something that should come to be so within [`PATIENCE`].
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What is mounted below `directory`.
pub fn mounts_below(directory: &Path) -> Vec<Mount> {
    let mounts = mounts::mounts().unwrap_or_default().into_iter();
    mounts.filter(|mount| mount.mount_point.starts_with(directory)).collect()
}

/// Held by the one test that mounts.
pub struct MountRight {
    _alone: MutexGuard<'static, ()>,
}

/// The right to use loop devices and mounts, if they can be had; says loudly if not.
///
/// One test at a time has it. Tools look at every loop device before they touch one (`mkfs.btrfs`
/// does) and fail when a killed daemon lies behind any of them.
pub fn can_mount(test: &str) -> Option<MountRight> {
    static ALONE: Mutex<()> = Mutex::new(());
    let can = has(test, &[Need::Root, Need::Fuse, Need::Loop]);
    // A test that failed has cleaned up behind itself all the same.
    let alone = || ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    can.then(|| MountRight { _alone: alone() })
}
