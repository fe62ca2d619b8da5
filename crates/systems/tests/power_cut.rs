//! Ten power cuts under real file systems and databases; that a disk which lies is found out; that
//! nothing stays behind. `make power-cut` does the first for long.
//!
//! Needs root, FUSE and loop devices, and says loudly if it has them not.

mod right;

use coulter_systems::campaign::{self, Outcome, Plan};
use coulter_systems::{FileSystem, Files, Postgres, Scratch, Shape, Sqlite, Workload};
use right::{PARENT, may_mount, skipped};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_power-cut");

fn plan(file_system: FileSystem, cuts: u64) -> Plan {
    Plan {
        file_system,
        cuts,
        seed: 11,
        shape: Shape { program: PROGRAM.into(), volume_size: 320 << 20, lies: false },
        commands_max: 1500,
        work_max: Duration::from_millis(500),
    }
}

fn cut(plan: &Plan, workload: &mut dyn Workload, scratch: &Scratch) -> Option<Outcome> {
    if !plan.file_system.is_installed() {
        skipped(&format!("the programs of {} are not installed", plan.file_system));
        return None;
    }
    match campaign::run(plan, workload, scratch, &mut |_| {}) {
        Ok(outcome) => Some(outcome),
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn what_file_systems_said_is_durable_survives_power_cuts() {
    let Some(_alone) = may_mount() else { return };
    let scratch = Scratch::new(Path::new(PARENT)).expect("a directory can be made");
    for (file_system, cuts) in [(FileSystem::Ext4, 3), (FileSystem::Xfs, 2), (FileSystem::Btrfs, 3)]
    {
        let outcome = cut(&plan(file_system, cuts), &mut Files::new(5), &scratch);
        let Some(outcome) = outcome else { continue };
        assert_eq!(outcome.cuts, cuts);
        assert!(outcome.verified.durable > 0, "{outcome:?}");
    }
}

#[test]
fn acknowledged_transactions_survive_power_cuts() {
    let Some(_alone) = may_mount() else { return };
    let scratch = Scratch::new(Path::new(PARENT)).expect("a directory can be made");
    if Sqlite::is_installed() {
        cut(&plan(FileSystem::Ext4, 1), &mut Sqlite::default(), &scratch);
    } else {
        skipped("sqlite3 is not installed");
    }
    let outside = scratch.make_directory("socket").expect("the directory is ours");
    match Postgres::new(outside).expect("the directory can be given away") {
        Some(mut postgres) => drop(cut(&plan(FileSystem::Xfs, 1), &mut postgres, &scratch)),
        None => skipped("postgresql is not installed"),
    }
}

#[test]
fn a_disk_that_lies_about_flushes_is_found_out() {
    let Some(_alone) = may_mount() else { return };
    let scratch = Scratch::new(Path::new(PARENT)).expect("a directory can be made");
    let mut plan = plan(FileSystem::Ext4, 10);
    plan.shape.lies = true;
    match campaign::run(&plan, &mut Files::new(5), &scratch, &mut |_| {}) {
        Err(failure) => assert!(failure.error.is_violation(), "{failure}"),
        Ok(outcome) => panic!("nobody noticed: {outcome:?}"),
    }
}

/// Mounts below the directories of harnesses, and whether any of these is there.
fn left_behind() -> (Vec<String>, Vec<PathBuf>) {
    let table = fs::read_to_string("/proc/self/mounts").expect("/proc is readable");
    let ours = |line: &&str| line.contains("/coulter-systems-");
    let mounts = table.lines().filter(ours).map(str::to_owned).collect();
    let entries = fs::read_dir(PARENT).expect("it is readable").flatten().map(|e| e.path());
    let ours = |path: &PathBuf| path.to_string_lossy().contains("/coulter-systems-");
    (mounts, entries.filter(ours).collect())
}

/// A harness, and the name of its directories. A file system is mounted there by now.
fn at_work() -> (Child, String) {
    let mut child = Command::new(PROGRAM)
        .args(["--workloads", "files", "--file-systems", "ext4"])
        .stdout(Stdio::null())
        .spawn()
        .expect("it can be run");
    let name = format!("/coulter-systems-{}-", child.id());
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_up = || left_behind().0.iter().any(|m| m.contains(&name) && m.contains(" ext4 "));
    while !is_up() {
        if Instant::now() > deadline {
            child.kill().and_then(|()| child.wait()).expect("it runs");
            panic!("it did not begin");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    (child, name)
}

fn assert_nothing_is_left_of(name: &str) {
    let (mounts, directories) = left_behind();
    assert!(!mounts.iter().any(|mount| mount.contains(name)), "{mounts:?}");
    let is_named = |path: &PathBuf| path.to_string_lossy().contains(name);
    assert!(!directories.iter().any(is_named), "{directories:?}");
}

#[test]
fn a_killed_harness_is_cleared_away_by_the_next() {
    let Some(_alone) = may_mount() else { return };
    let (mut child, name) = at_work();
    child.kill().and_then(|()| child.wait()).expect("it runs");
    drop(Scratch::new(Path::new(PARENT)).expect("a directory can be made"));
    assert_nothing_is_left_of(&name);
}

#[test]
fn a_harness_that_is_told_to_end_leaves_nothing_behind() {
    let Some(_alone) = may_mount() else { return };
    for signal in [Signal::TERM, Signal::INT] {
        let (mut child, name) = at_work();
        kill_process(Pid::from_child(&child), signal).expect("it runs");
        let end = child.wait().expect("it is our child");
        assert_eq!(end.code(), Some(128 + signal.as_raw()), "{end}");
        assert_nothing_is_left_of(&name);
    }
}
