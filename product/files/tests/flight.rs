//! Goal: with several operations and many commands under way at the crash, the tree is as it was at
//! one moment, and everything is there that a completed sync covered.

mod common;

use common::ace::{Op, alphabet, bases};
use common::beside::Begin;
use common::lives;

#[test]
fn every_cut_of_every_operation_beside_others_leaves_one_moment() {
    let (mut cuts, mut out) = (0, 0);
    for (base, ops) in bases().iter().enumerate() {
        let begin = Begin::new(ops);
        for (number, op) in alphabet().into_iter().enumerate() {
            for seed in 0..4 {
                let seed = ((number * 4 + seed) * 3 + base) as u64;
                let (cut, were_out) = begin.cut_everywhere(&[op], seed);
                (cuts, out) = (cuts + cut, out + were_out);
            }
        }
    }
    println!("{cuts} cuts, {out} commands out");
    assert!(cuts > 3000 && out > 1000, "{cuts} cuts, {out} commands out");
}

fn two_operations(each: usize) -> u64 {
    let all = alphabet();
    let begin = Begin::new(&bases().pop().expect("the full tree"));
    let pairs = all.iter().flat_map(|one| all.iter().map(move |other| [*one, *other]));
    let chosen = pairs.enumerate().filter(|(number, _)| number % each == 0);
    let last = Op::Write("foo", 100, 5000);
    chosen.map(|(seed, [one, two])| begin.cut_everywhere(&[one, two, last], seed as u64).0).sum()
}

#[test]
fn cuts_of_some_pairs_of_operations_beside_others_leave_one_moment() {
    assert!(two_operations(19) > 1000);
}

#[test]
#[ignore = "minutes; `make fs-crashes` runs it"]
fn every_cut_of_every_pair_of_operations_beside_others_leaves_one_moment() {
    println!("{} cuts", two_operations(1));
}

#[test]
fn lives_with_commands_out_at_every_cut_leave_one_moment() {
    for is_tight in [false, true] {
        let figures = lives::many(7, 4000, is_tight, 12);
        println!("{figures:?}");
        assert!(figures.cuts > 150 && figures.out > 3 * figures.cuts, "{figures:?}");
        assert!(figures.failed > 100 && figures.syncs > 100 && figures.broken > 2, "{figures:?}");
        assert!(figures.full > 10, "{figures:?}");
    }
}

#[test]
#[ignore = "a million operations: minutes; `make fs-crashes` runs it"]
fn a_million_operations_with_commands_out_at_every_cut_leave_one_moment() {
    for (seed, is_tight) in [(1, false), (2, true), (3, false), (4, true)] {
        println!("{:?}", lives::many(seed, 250_000, is_tight, 5));
    }
}

#[test]
fn what_a_lost_write_left_behind_the_end_of_a_file_is_never_seen() {
    common::scenes::write_behind_the_end_that_was_lost();
}
