//! Goal: file layer, engine and device together keep what `docs/files.md` promises.
//!
//! Small workloads run on the engine over a simulated device, and the power goes after each command
//! to the device: with everything kept, with nothing kept that was not flushed, and with some
//! sectors kept. The tree is always the state after the first n operations, with n at least the
//! number of those that the last sync covered.

mod common;

use common::ace::{Op, alphabet, bases};
use common::power::Base;
use common::sequences;
use coulter_files::AllocateMode;

#[test]
fn every_cut_of_every_workload_of_one_operation_leaves_a_prefix() {
    let mut cuts = 0;
    for ops in bases() {
        let base = Base::new(&ops);
        for (number, op) in alphabet().into_iter().enumerate() {
            for end in [&[][..], &[Op::Submit], &[Op::Sync]] {
                let ops = [&[op], end].concat();
                cuts += base.cut_everywhere(&ops, number as u64);
            }
        }
    }
    println!("{cuts} cuts");
    assert!(cuts > 2000, "{cuts}");
}

fn two_operations(each: usize) -> u64 {
    let all = alphabet();
    let base = Base::new(&bases().pop().expect("the full tree"));
    let pairs = all.iter().flat_map(|one| all.iter().map(move |other| [*one, *other]));
    let mut cuts = 0;
    for (number, [one, other]) in pairs.enumerate().filter(|(number, _)| number % each == 0) {
        for between in [Op::Submit, Op::Sync] {
            let ops = [one, between, other, Op::Submit, Op::Write("foo", 100, 5000), Op::Sync];
            cuts += base.cut_everywhere(&ops, number as u64);
        }
    }
    cuts
}

#[test]
fn cuts_of_some_workloads_of_two_operations_leave_a_prefix() {
    assert!(two_operations(97) > 1000);
}

#[test]
#[ignore = "minutes; `make fs-crashes` runs it"]
fn every_cut_of_every_workload_of_two_operations_leaves_a_prefix() {
    println!("{} cuts", two_operations(1));
}

/// The block that is zeroed gets the place that the first time freed. The discard of that place is
/// out while the write that follows reads what the block holds.
#[test]
fn what_is_zeroed_twice_is_zero_around_what_is_written_next() {
    let zero = Op::Falloc("foo", AllocateMode::Zero { keep_size: true }, 4096, 4096);
    let base = Base::new(&bases().pop().expect("the full tree"));
    let ops = [zero, Op::Submit, zero, Op::Submit, Op::Write("foo", 100, 5000), Op::Sync];
    assert!(base.cut_everywhere(&ops, 1) > 3);
}

#[test]
fn sequences_that_broke_other_file_systems_leave_a_prefix() {
    for (name, before, ops) in sequences::ALL {
        let cuts = Base::new(before).cut_everywhere(ops, 1);
        assert!(cuts > 3, "{name} was cut {cuts} times");
    }
}
