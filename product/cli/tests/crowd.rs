//! Operators who know nothing of each other. Several at once attach, mount, restart, tune, look at, detach
//! and kill the same few volumes, while programs keep files on whatever is mounted just then.
//!
//! One operator after the other is in `operator.rs`. Here the commands meet each other: in the state
//! directory, at the same device, in the middle of a daemon's start and of its end.
//!
//! # What must hold
//! - No command hangs or panics. One that fails says what and why.
//! - A file that was synced is whole ever after, or a later version of it is.
//! - What `detach` and `umount` leave, once everybody has gone home, is sound stores and logs: no mount, no
//!   loop device, no process, no entry.
//!
//! For seconds in every run of the tests; for `COULTER_OPERATOR_SECONDS` (300) by `make operator`.
//! `COULTER_OPERATOR_SEED` chooses another series of commands.

mod sandbox;

use coulter_workload::Random;
use sandbox::{PATIENCE, Sandbox, can_mount, mounts_below, wait_until};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const OPERATORS: u64 = 6;
/// Each volume by the name it is attached as, its store, and where it is mounted.
const VOLUMES: [[&str; 3]; 2] = [["a", "a.img", "on-a"], ["b", "b.img", "on-b"]];
/// Files that a program keeps, one version after the other.
const FILES: u64 = 256;

/// What a program knows of the files that it keeps on one volume.
#[derive(Default)]
struct Kept {
    /// The version of each file that was last written and synced.
    durable: BTreeMap<u64, u64>,
    /// The latest version that was begun of any.
    begun: u64,
}

/// A version's bytes: itself, and what follows from it.
fn content(version: u64) -> Vec<u8> {
    let mut random = Random::new(version);
    let words = 1 + random.below(4000);
    let words = std::iter::once(version).chain((0..words).map(|_| random.bits()));
    words.flat_map(u64::to_le_bytes).collect()
}

impl Kept {
    /// Writes the next version of some file into the directory, if a volume is mounted there.
    fn keep_one(&mut self, directory: &Path) -> io::Result<()> {
        let opened = File::open(directory)?;
        let parent = directory.parent().expect("it lies in the sandbox");
        if opened.metadata()?.dev() == fs::metadata(parent)?.dev() {
            return Err(io::ErrorKind::NotFound.into());
        }
        // By the open directory: what is mounted cannot go from under it unseen.
        let inside = format!("/proc/self/fd/{}", opened.as_raw_fd());
        self.begun += 1;
        let file = self.begun % FILES;
        let new = format!("{inside}/new");
        let mut written = File::create(&new)?;
        written.write_all(&content(self.begun))?;
        written.sync_all()?;
        fs::rename(&new, format!("{inside}/{file}"))?;
        opened.sync_all()?;
        self.durable.insert(file, self.begun);
        Ok(())
    }

    /// Says how many files are known to be durable; all of them are there.
    fn verify(&self, directory: &Path) -> usize {
        for (file, version) in &self.durable {
            let found = fs::read(directory.join(file.to_string()))
                .unwrap_or_else(|error| panic!("{file} of version {version}: {error}"));
            let head = found.first_chunk().copied().unwrap_or_default();
            let later = u64::from_le_bytes(head);
            assert!(later >= *version && later <= self.begun, "{file}: {later}, was {version}");
            assert!(later % FILES == *file, "{file}: is another file, {later}");
            assert!(found == content(later), "{file}: version {later} is damaged");
        }
        self.durable.len()
    }
}

/// One of the operators.
struct Operator<'a> {
    sandbox: &'a Sandbox,
    random: Random,
}

impl Operator<'_> {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.random.below(from.len() as u64) as usize]
    }

    /// Runs one command, which may fail, but not in any way.
    fn act(&mut self) {
        let [name, store, mounted] = self.pick(&VOLUMES);
        let via = self.pick(&["loop", "nbd-server", "auto"]);
        let acknowledge = self.pick(&["written", "buffered"]);
        let commands: [&[&str]; 15] = [
            &["attach", store, "--via", via, "--acknowledge", acknowledge],
            &["detach", name],
            &["detach", store, "--force"],
            &["mount", store, mounted, "--mkfs", "ext4"],
            &["mount", store, mounted, "--acknowledge", acknowledge],
            &["umount", mounted],
            &["list"],
            &["status"],
            &["status", name, "--json"],
            &["tune", name, "idle-cleaning=on"],
            &["check", store, "--data"],
            &["restart", name],
            &["grow", store, "--size", "64M"],
            &["dump", store, "records"],
            &["kill", name],
        ];
        let command = self.pick(&commands);
        if command[0] == "kill" {
            let signal = self.pick(&["TERM", "KILL"]);
            self.kill(name, signal);
        } else {
            check(command, &run(self.sandbox, command));
        }
    }

    fn kill(&self, name: &str, signal: &str) {
        let output = run(self.sandbox, &["list", "--json"]);
        let list: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("`list --json` is JSON");
        let mut entries = list.as_array().expect("it is an array").iter();
        let runs =
            |entry: &&serde_json::Value| entry["name"] == name && entry.get("killed").is_none();
        let Some(entry) = entries.find(runs) else { return };
        let pid = entry["pid"].as_u64().expect("the pid is a number").to_string();
        // It may be gone by now.
        let _ = Command::new("kill").args(["-s", signal, &pid]).stderr(Stdio::null()).status();
    }
}

/// Runs a command; what hangs is killed.
fn run(sandbox: &Sandbox, arguments: &[&str]) -> Output {
    let program = sandbox.command(arguments);
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", &PATIENCE.as_secs().to_string()]);
    command
        .arg(program.get_program())
        .args(arguments)
        .current_dir(sandbox.path(""))
        .env("COULTER_STATE_DIRECTORY", sandbox.path("state"))
        .stdin(Stdio::null());
    command.output().expect("`timeout` is there")
}

fn check(arguments: &[&str], output: &Output) {
    let error = String::from_utf8_lossy(&output.stderr);
    let what = arguments.join(" ");
    assert!(!error.contains("panicked"), "coulter {what}: {error}");
    match output.status.code() {
        Some(0) => {}
        Some(1 | 2) => {
            let is_whole = ["error: ", "  why: "].iter().all(|part| error.contains(part));
            assert!(is_whole, "coulter {what}: {error}");
        }
        code => panic!("coulter {what} ended with {code:?}: {error}"),
    }
}

/// What still runs, is mounted or set up for a sandbox.
fn leftovers(sandbox: &Sandbox) -> Vec<String> {
    let directory = sandbox.path("");
    let below = directory.to_str().expect("it is text").trim_end_matches('/');
    let mounts = mounts_below(below.as_ref()).into_iter().map(|mount| format!("{mount:?}"));
    let read = |path: &Path| fs::read(path).unwrap_or_default();
    let in_directory = |name: &str| fs::read_dir(name).into_iter().flatten().flatten();
    let loops = in_directory("/sys/block").map(|it| it.path().join("loop/backing_file"));
    let programs = in_directory("/proc").map(|it| it.path().join("environ"));
    let of_ours = loops.chain(programs).filter(|path| {
        let text = read(path);
        text.windows(below.len()).any(|window| window == below.as_bytes())
    });
    let state = in_directory(sandbox.path("state").to_str().expect("it is text"))
        .filter_map(|file| file.file_name().into_string().ok())
        // How far a scrub came is kept beyond the daemon.
        .filter(|name| name != "lock" && !name.ends_with(".log") && !name.ends_with(".scrub"));
    mounts.chain(of_ours.map(|path| path.display().to_string())).chain(state).collect()
}

fn crowd(duration: Duration, seed: u64) {
    let Some(_right) = can_mount("several operators at once") else { return };
    println!("seed {seed}");
    let sandbox = Sandbox::new();
    for [_, store, mounted] in VOLUMES {
        sandbox.ok(&["create", store, "--size", "64M", "--segment-size", "2M"]);
        sandbox.make_directory(mounted);
        sandbox.ok(&["mount", store, mounted, "--mkfs", "ext4"]);
    }
    let kept = VOLUMES.map(|_| Mutex::new(Kept::default()));
    let end = Instant::now() + duration;
    let is_over = AtomicBool::new(false);
    let commands: u64 = thread::scope(|scope| {
        for ([_, _, mounted], kept) in VOLUMES.iter().zip(&kept) {
            let (directory, is_over) = (sandbox.path(mounted), &is_over);
            scope.spawn(move || {
                let mut kept = kept.lock().expect("nobody else has it");
                while !is_over.load(Ordering::Relaxed) {
                    // Nothing mounted, or its daemon killed.
                    if kept.keep_one(&directory).is_err() {
                        thread::sleep(Duration::from_millis(5));
                    }
                }
            });
        }
        let operators: Vec<_> = (0..OPERATORS)
            .map(|index| {
                let random = Random::new(seed * OPERATORS + index);
                let mut operator = Operator { sandbox: &sandbox, random };
                scope.spawn(move || {
                    let mut commands = 0;
                    while Instant::now() < end {
                        operator.act();
                        commands += 1;
                    }
                    commands
                })
            })
            .collect();
        let ended: Vec<_> = operators.into_iter().map(|operator| operator.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        ended
            .into_iter()
            .map(|commands| commands.unwrap_or_else(|what| std::panic::resume_unwind(what)))
            .sum()
    });

    for [name, store, mounted] in VOLUMES {
        // More may be mounted above one another than one.
        while run(&sandbox, &["umount", mounted]).status.success() {}
        run(&sandbox, &["detach", name, "--force"]);
        sandbox.ok(&["check", store, "--data"]);
    }
    wait_until("everything is gone", || leftovers(&sandbox).is_empty());
    let files: Vec<usize> = VOLUMES
        .iter()
        .zip(kept)
        .map(|([_, store, mounted], kept)| {
            sandbox.ok(&["mount", store, mounted]);
            let kept = kept.into_inner().expect("the program did not panic");
            let files = kept.verify(&sandbox.path(mounted));
            sandbox.ok(&["umount", mounted]);
            println!("{store}: {files} files whole after {} versions", kept.begun);
            files
        })
        .collect();
    println!("{commands} commands");
    // Otherwise nothing was tried.
    assert!(commands > 20 && files.iter().all(|files| *files > 0), "{commands}, {files:?}");
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn operators_side_by_side_lose_nothing_and_leave_nothing_for_seconds() {
    crowd(Duration::from_secs(6), 1);
}

#[test]
#[ignore = "minutes: make operator"]
fn operators_side_by_side_lose_nothing_and_leave_nothing() {
    let seconds = from_environment("COULTER_OPERATOR_SECONDS").unwrap_or(300);
    let seed = from_environment("COULTER_OPERATOR_SEED").unwrap_or(1);
    crowd(Duration::from_secs(seconds), seed);
}
