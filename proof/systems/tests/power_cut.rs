//! A few power cuts under real file systems, databases and Coulter's own mounts; that a disk which lies is
//! found out; that nothing stays behind. `make power-cut` does the first for long.
//!
//! Needs root, FUSE and loop devices, and says loudly if it has them not.

mod right;

use coulter_systems::campaign::{self, Outcome, Plan};
use coulter_systems::{
    Blow, FileSystem, Files, Layer, MountFailure, MountOutcome, MountPlan, Postgres, Prefix,
    Scratch, Shape, Sqlite, Workload, built, run_mounts,
};
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
        shape: Shape {
            program: PROGRAM.into(),
            volume_size: 320 << 20,
            is_plain: false,
            lies: false,
        },
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

/// Blows under what `coulter fs` or `coulter overlay` mounts.
fn strike(
    layer: Layer,
    blow: Blow,
    blows: u64,
    lies: bool,
) -> Result<MountOutcome, Box<MountFailure>> {
    let scratch = Scratch::new(Path::new(PARENT)).expect("a directory can be made");
    let plan = MountPlan {
        layer,
        blow,
        blows,
        seed: 7,
        program: built::beside(Path::new(PROGRAM), "coulter-cli", "coulter"),
        shape: Shape { program: PROGRAM.into(), volume_size: 0, is_plain: true, lies },
        commands_max: 1500,
        work_max: Duration::from_millis(500),
    };
    let mut workload: Vec<Box<dyn Workload>> = vec![Box::new(Files::new(5))];
    if layer == Layer::Fs {
        workload.push(Box::new(Prefix::new(5)));
    }
    run_mounts(&plan, &mut workload, &scratch, &mut |_| {})
}

fn assert_struck(layer: Layer, blow: Blow, blows: u64) -> MountOutcome {
    let outcome = strike(layer, blow, blows, false).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(outcome.blows, blows);
    assert!(outcome.verified.durable > 0, "{outcome:?}");
    outcome
}

#[test]
fn a_file_system_of_coulters_own_survives_power_cuts_as_a_prefix() {
    let Some(_alone) = may_mount() else { return };
    assert_struck(Layer::Fs, Blow::Cut, 3);
}

#[test]
fn an_overlay_survives_power_cuts_and_kills_while_it_works_settles_and_is_detached() {
    let Some(_alone) = may_mount() else { return };
    if !FileSystem::Ext4.is_installed() {
        return skipped("the programs of ext4 are not installed");
    }
    let over = |is_apart| Layer::Overlay { lower: FileSystem::Ext4, is_apart };
    let outcome = assert_struck(over(false), Blow::Cut, 3);
    assert_eq!(outcome.while_settling, 1, "{outcome:?}");
    assert_struck(over(true), Blow::Cut, 3);
    assert_struck(over(false), Blow::Kill, 3);
}

#[test]
fn a_disk_that_lies_is_found_out_under_coulters_own_mounts() {
    let Some(_alone) = may_mount() else { return };
    let overlay = Layer::Overlay { lower: FileSystem::Ext4, is_apart: false };
    for layer in [Layer::Fs, overlay] {
        if layer == overlay && !FileSystem::Ext4.is_installed() {
            return skipped("the programs of ext4 are not installed");
        }
        match strike(layer, Blow::Cut, 12, true) {
            Err(failure) => assert!(failure.error.is_violation(), "{failure}"),
            Ok(outcome) => panic!("nobody noticed: {outcome:?}"),
        }
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
