//! Stores without a fault: the check finds none, and works out the same map as the model.
//!
//! The model is built by hand from the codecs and follows `docs/format.md`; random histories of
//! writes, discards, relocations, sweeps, checkpoints and restarts go through it.

mod model;

use coulter_check::dump::{self, MapRange};
use coulter_check::{
    BlockFn, FileBlocks, Finding, Options, ReadBlocks, Report, Severity, SliceBlocks, check,
};
use coulter_format::{Block, Pba};
use model::{Model, State};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::ControlFlow;

fn check_all(model: &Model) -> Report {
    check(&mut model.image.reader(), &mut Options { data: true, ..Options::default() })
}

/// The map as the dump shows it, block by block.
fn dumped_map(model: &Model, range: MapRange) -> BTreeMap<u64, u32> {
    let mut found = BTreeMap::new();
    let outcome = dump::map(&mut model.image.reader(), range, |row| {
        for offset in 0..row.blocks {
            found.insert(row.host_block + u64::from(offset), row.block + offset);
        }
        ControlFlow::Continue(())
    });
    assert!(outcome.value.is_some());
    found
}

fn model_map(model: &Model) -> BTreeMap<u64, u32> {
    model.map.iter().map(|(lba, pointer)| (*lba, pointer.pba.0)).collect()
}

#[track_caller]
fn assert_sound(model: &Model) -> Report {
    let report = check_all(model);
    let text: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert!(report.is_sound(), "{text:#?}");
    assert!(report.complete);
    assert_eq!(report.counters.mapped_blocks, model.map.len() as u64);
    assert_eq!(report.counters.data_blocks, model.map.len() as u64);
    assert_eq!(dumped_map(model, MapRange::ALL), model_map(model));
    report
}

#[test]
fn a_new_store_is_sound_and_empty() {
    let report = assert_sound(&Model::new(8));
    assert!(report.findings.is_empty());
    assert!(!report.recovery.needed);
    assert_eq!(report.worst(), None);
    assert_eq!(report.store.unwrap().label, "model");
}

#[test]
fn a_store_that_was_killed_needs_recovery_and_is_no_fault() {
    let mut model = Model::new(8);
    model.checkpoint(false);
    model.write(10, 3);
    model.discard(11, 1);
    let report = assert_sound(&model);
    let expected = Finding::NeedsRecovery { records: 2, updates: 4 };
    assert_eq!(report.findings[0].to_string(), expected.to_string());
    assert_eq!(report.findings.len(), 1);
    assert!(report.recovery.needed);
    assert_eq!(report.worst(), Some(Severity::Info));
}

#[test]
fn unmerged_and_unreleased_updates_are_counted_as_the_table_does() {
    let mut model = Model::new(20);
    (0..4).for_each(|leaf| model.write(leaf * 512, 20));
    model.checkpoint(false);
    model.sweep(9);
    model.checkpoint(false);
    assert_eq!(model.leaves.len(), 4);
    // Overwrites of leaves that have a page: the old locations are counted on.
    (0..4).for_each(|leaf| model.write(leaf * 512 + 5, 10));
    model.checkpoint(false);
    let report = assert_sound(&model);
    assert_eq!(report.counters.unreleased_blocks, 40);
    assert!(report.counters.run_updates > 0);
    // Two of four leaves swept: of the run, half is live and half is stale.
    model.sweep(2);
    model.checkpoint(false);
    let report = assert_sound(&model);
    assert_eq!(report.counters.unreleased_blocks, 20);
    model.release(3);
    model.checkpoint(false);
    assert_eq!(assert_sound(&model).counters.unreleased_blocks, 10);
}

#[test]
fn a_discarded_leaf_counts_until_its_page_was_looked_at() {
    let mut model = Model::new(20);
    model.write(512, 100);
    model.checkpoint(false);
    model.sweep(9);
    model.write(512, 10);
    model.release(1);
    model.write(530, 10);
    model.checkpoint(false);
    model.discard(512, 512);
    model.checkpoint(false);
    // 10 of 100 were released before the discard, and stay so.
    assert_eq!(assert_sound(&model).counters.unreleased_blocks, 90);
    model.write(600, 4);
    model.checkpoint(false);
    assert_eq!(assert_sound(&model).counters.unreleased_blocks, 90);
    model.release(1);
    model.checkpoint(false);
    assert_eq!(assert_sound(&model).counters.unreleased_blocks, 0);
    model.sweep(9);
    model.checkpoint(true);
    assert_eq!(assert_sound(&model).counters.mapped_blocks, 4);
}

#[test]
fn relocations_are_replayed_only_while_the_source_is_current() {
    let mut model = Model::new(12);
    model.write(0, 8);
    model.checkpoint(false);
    model.relocate(&[0, 1, 2]);
    // A relocation that lost against an overwrite and a discard, replayed after them.
    let (before, leaf) = (model.map.clone(), model.pending.clone());
    model.write(4, 1);
    model.discard(5, 1);
    let after = model.map.clone();
    model.map = before;
    model.relocate(&[4, 5]);
    (model.map, model.pending) = (after, leaf);
    assert_sound(&model);
}

#[test]
fn a_torn_tail_is_information() {
    let mut model = Model::new(8);
    model.checkpoint(false);
    model.write(0, 4);
    model.flush();
    model.write(4, 1);
    let mut torn = model.clone();
    torn.write(8, 4);
    let pba = torn.map[&9].pba;
    torn.image.damage(pba.0, 17, 0x40);
    (torn.map, torn.pending) = (model.map, model.pending);
    let report = assert_sound(&torn);
    assert_eq!(report.recovery.records_dropped, 1);
    assert!(report.findings.iter().any(|f| matches!(f, Finding::TornTail { .. })));
}

#[test]
fn a_file_a_slice_and_a_closure_give_the_same_report() {
    let mut model = Model::new(10);
    model.write(3, 40);
    model.checkpoint(false);
    model.write(100, 40);
    let bytes = model.image.bytes();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&bytes).unwrap();
    let options = || Options { data: true, ..Options::default() };
    let json = |report: Report| serde_json::to_value(report).unwrap();
    let from_closure = json(check_all(&model));
    assert_eq!(json(check(&mut SliceBlocks(&bytes), &mut options())), from_closure);
    assert_eq!(json(check(&mut FileBlocks::new(file).unwrap(), &mut options())), from_closure);
    assert_eq!(from_closure["counters"]["mapped_blocks"], 80);
    assert_eq!(from_closure["recovery"]["records_to_replay"], 1);
}

/// The simulator checks after every recovery: a small store must not be read from end to end.
#[test]
fn a_check_without_data_reads_little_of_a_small_store() {
    let mut model = Model::new(15);
    model.checkpoint(false);
    (0..60).for_each(|step| model.write(step * 20, 3));
    model.checkpoint(false);
    model.sweep(3);
    (0..20).for_each(|step| model.write(step * 30, 3));
    let mut reads = 0;
    let image = &model.image;
    let read = |pba: Pba, block: &mut Block| {
        reads += 1;
        image.reader().read(pba, std::slice::from_mut(block))
    };
    let mut device = BlockFn { size_blocks: image.size_blocks, read };
    assert!(check(&mut device, &mut Options::default()).is_sound());
    assert!(reads < 2500, "{reads} blocks of {}", image.size_blocks);
}

#[test]
fn a_part_of_the_map_is_the_same_as_in_the_whole() {
    let mut model = Model::new(20);
    (0..6).for_each(|leaf| model.write(leaf * 512 + 500, 24));
    model.checkpoint(false);
    model.sweep(3);
    model.checkpoint(false);
    model.write(700, 3);
    let whole = dumped_map(&model, MapRange::ALL);
    for (first, end) in [(0, 1), (505, 530), (512, 1024), (701, 702), (1536, 4000), (9000, 9001)] {
        let part = dumped_map(&model, MapRange { first, end });
        let expected: BTreeMap<_, _> = whole.range(first..end).map(|(l, p)| (*l, *p)).collect();
        assert_eq!(part, expected, "{first}..{end}");
    }
}

#[test]
fn progress_goes_up_to_the_end_of_each_phase() {
    let mut model = Model::new(40);
    model.write(0, 9);
    model.checkpoint(false);
    let mut seen = Vec::new();
    let mut note = |progress| seen.push(progress);
    let mut options = Options { progress: Some(&mut note), ..Options::default() };
    check(&mut model.image.reader(), &mut options);
    assert!(seen.is_sorted_by_key(|progress| (progress.phase, progress.done)));
    assert!(seen.last().is_some_and(|progress| progress.done == progress.total));
}

/// Runs are never more than the store says that they may be, however many checkpoints there are.
#[test]
fn a_store_with_as_many_runs_as_there_may_be_is_sound() {
    let (mut model, mut most) = (Model::new(48), 0);
    for lba in 0..40 {
        model.write(lba * 40, 1);
        model.checkpoint(false);
        assert_sound(&model);
        most = most.max(model.runs.len());
    }
    assert_eq!(most, model.superblock.budget.run_count_limit as usize);
}

/// One step of a history.
#[derive(Clone, Debug)]
enum Step {
    Write(u64, u16),
    Discard(u64, u16),
    Relocate(usize),
    Release(u64),
    Sweep(usize),
    Flush,
    Checkpoint,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u64..2000, 1u16..24).prop_map(|(lba, count)| Step::Write(lba, count)),
        2 => (0u64..2000, 1u16..40).prop_map(|(lba, count)| Step::Discard(lba, count)),
        1 => (0u64..4, 512u16..1500).prop_map(|(leaf, count)| Step::Discard(leaf * 512, count)),
        2 => (1usize..12).prop_map(Step::Relocate),
        2 => (0u64..4).prop_map(Step::Release),
        2 => (1usize..5).prop_map(Step::Sweep),
        1 => Just(Step::Flush),
        3 => Just(Step::Checkpoint),
    ]
}

fn apply(model: &mut Model, step: Step) {
    if model.room() < 3 * model::SEGMENT {
        model.checkpoint(false);
    }
    if model.room() < 3 * model::SEGMENT {
        return;
    }
    match step {
        Step::Write(lba, count) => model.write(lba, count),
        Step::Discard(lba, count) => model.discard(lba, count),
        Step::Relocate(count) => {
            let every = (model.map.len() / count).max(1);
            let lbas: Vec<_> = model.map.keys().copied().step_by(every).take(count).collect();
            if !lbas.is_empty() {
                model.relocate(&lbas);
            }
        }
        Step::Release(leaf) => model.release(leaf),
        Step::Sweep(count) => model.sweep(count),
        Step::Flush => model.flush(),
        Step::Checkpoint => model.checkpoint(false),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_history_leaves_a_sound_store(steps in prop::collection::vec(step(), 1..120)) {
        let mut model = Model::new(48);
        model.checkpoint(false);
        for step in steps {
            apply(&mut model, step);
        }
        assert_sound(&model);
        model.checkpoint(true);
        let report = assert_sound(&model);
        prop_assert!(!report.recovery.needed);
        prop_assert!(model.states.contains(&State::Free));
    }
}
