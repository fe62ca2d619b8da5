//! Small workloads, cut after every command to the volume: the tree is always the state after the
//! first n operations, with n at least the number of those that the last sync covered.

mod common;

use common::ace::{Op, alphabet, bases};
use common::{Mount, Volume};

/// A state that may be found, and how much of the log must be there for it to be durable.
struct State {
    dump: String,
    /// The log's length from which on an earlier state may not be found.
    durable_at: Option<usize>,
}

/// The states after each operation. An operation that takes several steps has states in between.
struct Life {
    states: Vec<State>,
    volume: Volume,
}

/// Does the operations, and looks at the tree after each: on the same file system, or on one
/// beside. What is looked at has to go out before.
fn live(ops: &[Op], beside: bool) -> Life {
    let mut mount = Mount::new(2048, 300, 1);
    let mut other = Mount::new(2048, 300, 1);
    let mut states = vec![State { dump: mount.dump(), durable_at: None }];
    for (number, op) in (1..).zip(ops) {
        let _ = mount.perform(*op, number);
        let dump = if beside {
            let _ = other.perform(*op, number);
            other.dump()
        } else {
            mount.dump()
        };
        let durable_at = (*op == Op::Sync).then_some(mount.volume().durable);
        states.push(State { dump, durable_at });
    }
    mount.settle();
    Life { states, volume: mount.volume().clone() }
}

/// Cuts the operations' log everywhere. Returns how often.
fn cut_everywhere(ops: &[Op]) -> u64 {
    cut_life(ops, &live(ops, false)) + cut_life(ops, &live(ops, true))
}

fn cut_life(ops: &[Op], life: &Life) -> u64 {
    for kept in 0..=life.volume.log.len() {
        let needed =
            life.states.iter().rposition(|state| state.durable_at.is_some_and(|at| at <= kept));
        let volume = life.volume.cut(kept);
        let findings = common::check(&volume);
        assert!(findings.is_empty(), "{ops:?} cut after {kept}: {findings:?}");
        let mut mount = Mount::of(volume, 300, kept as u64);
        let dump = mount.dump();
        let allowed = &life.states[needed.unwrap_or(0)..];
        let is_allowed = allowed.iter().any(|state| state.dump == dump);
        if !is_allowed {
            let last = &allowed.last().expect("there is the start").dump;
            panic!(
                "{ops:?} cut after {kept} of {}: found\n{dump}\nwhich is no state from {needed:?} \
                 on; the last one is\n{last}",
                life.volume.log.len()
            );
        }
        // What was left to be taken away goes, and nothing leaks.
        mount.sync();
        mount.settle();
        let findings = common::check(mount.volume());
        assert!(findings.is_empty(), "{ops:?} mounted after {kept}: {findings:?}");
        assert_eq!(common::orphan_count(mount.volume()), 0, "orphans go");
    }
    life.volume.log.len() as u64 + 1
}

#[test]
fn every_cut_of_every_workload_of_one_operation_leaves_a_prefix() {
    let mut cuts = 0;
    for base in bases() {
        for op in alphabet() {
            for end in [&[][..], &[Op::Submit], &[Op::Sync]] {
                let mut ops = base.clone();
                ops.push(op);
                ops.extend(end);
                cuts += cut_everywhere(&ops);
            }
        }
    }
    assert!(cuts > 1000, "{cuts}");
}

fn two_operations(each: usize) -> u64 {
    let mut cuts = 0;
    let all = alphabet();
    let base = bases().pop().expect("the full tree");
    for (number, (one, other)) in
        all.iter().flat_map(|one| all.iter().map(move |other| (*one, *other))).enumerate()
    {
        if number % each != 0 {
            continue;
        }
        for between in [Op::Submit, Op::Sync] {
            let mut ops = base.clone();
            ops.extend([one, between, other, Op::Submit, Op::Write("foo", 100, 5000)]);
            cuts += cut_everywhere(&ops);
        }
    }
    cuts
}

#[test]
fn cuts_of_some_workloads_of_two_operations_leave_a_prefix() {
    assert!(two_operations(37) > 1000);
}

#[test]
#[ignore = "minutes; `make fs-crashes` runs it"]
fn every_cut_of_every_workload_of_two_operations_leaves_a_prefix() {
    println!("{} cuts", two_operations(1));
}

/// Sequences in the manner of those that found bugs elsewhere; for these see `common/sequences.rs`.
#[test]
fn sequences_that_broke_other_file_systems_leave_a_prefix() {
    use Op::*;
    let keep = coulter_files::AllocateMode::Allocate { keep_size: true };
    let punch = coulter_files::AllocateMode::Punch;
    let zero_keep = coulter_files::AllocateMode::Zero { keep_size: true };
    let sequences: &[&[Op]] = &[
        &[
            Create("foo"),
            Write("foo", 0, 16384),
            Sync,
            Write("foo", 16384, 4096),
            Link("foo", "bar"),
            Sync,
        ],
        &[Mkdir("A"), Create("A/foo"), Sync, Rename("A/foo", "A/bar"), Create("A/foo"), Sync],
        &[
            Mkdir("A"),
            Mkdir("B"),
            Create("A/foo"),
            Sync,
            Link("A/foo", "B/bar"),
            Unlink("A/foo"),
            Create("A/foo"),
            Sync,
        ],
        &[Create("foo"), Sync, Link("foo", "bar"), Unlink("bar"), Create("bar"), Sync],
        &[
            Mkdir("A"),
            Mkdir("A/C"),
            Create("foo"),
            Sync,
            Rename("A/C", "B"),
            Sync,
            Rmdir("A"),
            Sync,
        ],
        &[
            Create("foo"),
            Falloc("foo", keep, 0, 16384),
            Sync,
            Falloc("foo", zero_keep, 4096, 4096),
            Sync,
        ],
        &[Create("foo"), Write("foo", 0, 16384), Sync, Falloc("foo", punch, 8000, 4096), Sync],
        &[
            Create("foo"),
            Write("foo", 0, 8192),
            Sync,
            Truncate("foo", 4096),
            Truncate("foo", 8192),
            Sync,
        ],
        &[Create("foo"), SetXattr("foo"), Sync, RemoveXattr("foo"), Sync],
        &[Create("foo"), Sync, Rename("foo", "bar"), Create("foo"), Write("foo", 0, 4096), Sync],
        &[Mkdir("A"), Create("A/foo"), Sync, Unlink("A/foo"), Rmdir("A"), Create("A"), Sync],
        &[Mkdir("A"), Mkdir("B"), Sync, Rename("A", "B"), Mkdir("A"), Sync],
        &[
            Create("foo"),
            Write("foo", 0, 4096),
            Create("bar"),
            Write("bar", 0, 4096),
            Sync,
            Exchange("foo", "bar"),
            Sync,
        ],
        &[Symlink("foo"), Sync, Unlink("foo"), Create("foo"), Sync],
        &[Mkdir("A"), TmpLink("A/foo"), Sync, Rename("A/foo", "foo"), Sync],
        &[
            Create("foo"),
            Write("foo", 4000, 200),
            Sync,
            Write("foo", 4096, 100),
            Truncate("foo", 4100),
            Write("foo", 9000, 10),
            Sync,
        ],
    ];
    for ops in sequences {
        cut_everywhere(ops);
    }
    for (name, before, ops) in common::sequences::ALL {
        if before.iter().any(|op| matches!(op, Links(..))) {
            // Too many cuts before it begins; `engine_crashes` has it.
            continue;
        }
        let ops = [before, ops].concat();
        assert!(cut_everywhere(&ops) > 2, "{name} changes something");
    }
}
