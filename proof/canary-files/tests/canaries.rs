//! Goal: the tests of the file system find what they are there to find. Each deliberate mistake is caught
//! by the scene that is meant for it, and without a mistake all of them hold.

#[path = "../../../product/files/tests/common/mod.rs"]
mod common;

use common::ace::Op;
use common::power::Base;
use common::scenes;
use coulter_files::AllocateMode;
use coulter_files::canary::{self, Canary};
use std::panic::catch_unwind;

/// Workloads that are cut everywhere: what is there before, and what is done.
fn workloads() -> [(Vec<Op>, Vec<Op>); 4] {
    use Op::*;
    let file = vec![Create("foo"), Write("foo", 0, 16_384), Sync];
    let punch = Falloc("foo", AllocateMode::Punch, 0, 8192);
    let zero = Falloc("foo", AllocateMode::Zero { keep_size: true }, 4096, 4096);
    [
        (file.clone(), vec![Unlink("foo"), Create("bar"), Write("bar", 0, 16_384), Submit, Sync]),
        (file.clone(), vec![punch, Submit, Write("foo", 16_384, 8192), Submit, Sync]),
        (file.clone(), vec![Create("bar"), Write("bar", 0, 5000), Submit, Sync]),
        (file, vec![zero, Submit, zero, Submit, Write("foo", 100, 5000), Sync]),
    ]
}

fn cut_all() {
    for (before, ops) in workloads() {
        let base = Base::new(&before);
        for seed in 0..4 {
            base.cut_everywhere(&ops, seed);
        }
    }
}

/// What a scene says with a mistake, if it fails.
fn caught(mistake: Option<Canary>, scene: fn()) -> Option<String> {
    canary::choose(mistake);
    let result = catch_unwind(scene);
    canary::choose(None);
    let what = result.err()?;
    let text = what.downcast_ref::<String>().cloned();
    Some(
        text.or_else(|| what.downcast_ref::<&str>().map(|text| (*text).into())).unwrap_or_default(),
    )
}

/// Lives with commands out, with room and without.
fn live() {
    for is_tight in [false, true] {
        common::lives::many(7, 4000, is_tight, 12);
    }
}

fn scenes_for(mistake: Canary) -> &'static [fn()] {
    match mistake {
        Canary::NodeByPath => &[scenes::file_unlinked_while_it_is_open, live],
        Canary::CookieByIndex => &[scenes::directory_emptied_while_it_is_listed],
        Canary::EndsWhileOut => &[common::full::writers_that_meet_a_full_file_system, live],
        Canary::OwnBufferGivenBack => &[common::errors::every_operation_with_every_error, live],
        Canary::PassingErrorStays => &[common::errors::metadata_that_cannot_be_read_once],
        Canary::FlushCoversOut => &[live],
        Canary::BehindEndKept => &[scenes::write_behind_the_end_that_was_lost],
        Canary::FreedReusedEarly | Canary::DataAfterSet | Canary::ZerosReadEarly => {
            &[cut_all, live]
        }
        _ => &[cut_all],
    }
}

#[test]
fn every_canary_is_caught_by_each_scene_for_it() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for mistake in Canary::ALL {
        for (number, scene) in scenes_for(mistake).iter().enumerate() {
            match caught(Some(mistake), *scene) {
                Some(what) => {
                    println!("{mistake:?}: {}", what.chars().take(110).collect::<String>());
                }
                None => missed.push((mistake, number)),
            }
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

#[test]
fn without_a_mistake_the_same_scenes_hold() {
    for scene in [
        scenes::file_unlinked_while_it_is_open,
        scenes::directory_emptied_while_it_is_listed,
        scenes::write_behind_the_end_that_was_lost,
        common::full::writers_that_meet_a_full_file_system,
        common::errors::every_operation_with_every_error,
        common::errors::metadata_that_cannot_be_read_once,
        cut_all,
        live,
    ] {
        assert_eq!(caught(None, scene), None);
    }
}
