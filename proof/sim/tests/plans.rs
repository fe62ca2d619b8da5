//! Plans on which a fault, or a deliberate mistake, once showed; as the simulator shrank them.

use coulter_sim::Simulator;
use coulter_sim::plan::Plan;

/// Runs a plan.
fn holds(text: &str) {
    let plan: Plan = text.parse().expect("a plan of this version");
    let mut simulator = Simulator::default();
    simulator.audit_data_every = 1;
    if let Err(violation) = simulator.run(&plan) {
        panic!("{}", violation.what);
    }
}

/// The checker found a count that was too high: an array that was as its page had been written into a run
/// as "no longer counted in the page", because an address of it had been noted before the sweep came by.
/// A later discard of the whole leaf believed that after a crash.
#[test]
fn what_the_page_counts_is_not_said_to_be_released() {
    holds(include_str!("released.plan"));
}

/// The newest superblock could not be read once, after a clean shutdown that had trimmed what it freed:
/// the older one led to blocks that were gone, and a new checkpoint of that state took the place of
/// the newest.
#[test]
fn a_superblock_that_cannot_be_read_once_costs_nothing() {
    holds(include_str!("superblock.plan"));
}

/// A write of 75 ranges in any order was refused as one for which a sparse store had no room: a leaf was counted each time
/// that a range after another leaf's concerned it, and a new root once for each leaf.
#[test]
fn a_write_of_many_needs_each_new_leaf_and_root_once() {
    holds(include_str!("many_in_any_order.plan"));
}

/// After a power cut, leaves whose root page was not in memory were charged with a page to come and with the old one. Their
/// new pages were on their way, and a write to a sparse store was refused that had room once they had arrived.
#[test]
fn a_leaf_page_that_replaces_another_is_charged_once() {
    holds(include_str!("charged_twice.plan"));
}

/// Discards had unmapped the last blocks of several leaves; their pages still counted, since the sweep had not come by. A write to
/// a sparse store was refused that had room without them.
#[test]
fn the_pages_of_leaves_that_were_emptied_make_room() {
    holds(include_str!("emptied.plan"));
}

/// The page of a superblock was lost, and the next one was torn amid the opening that wrote it anew: the checker says so, and the
/// other copies serve.
#[test]
fn a_superblock_that_is_torn_where_its_page_was_lost_costs_nothing() {
    holds(include_str!("torn_over_lost.plan"));
}

/// The damaged header of a record that the next one tells of was torn amid the opening: the oracle's view of the log stopped there.
#[test]
fn a_damaged_header_that_is_torn_as_well_is_rebuilt() {
    holds(include_str!("torn_and_rebuilt.plan"));
}

/// Two openings were cut, and the second did not see what the first had written last: two superblocks have the same generation, and
/// the checker said that they disagree.
#[test]
fn superblocks_of_two_openings_may_be_numbered_alike() {
    holds(include_str!("numbered_alike.plan"));
}

/// The sweep had given up the page of a leaf in which nothing was mapped any more, and a write took its room. After a power cut the
/// page was there again, and the store counted one block more than it may.
#[test]
fn the_page_of_an_emptied_leaf_counts_until_a_checkpoint_is_without_it() {
    holds(include_str!("given_up.plan"));
}

/// A record was damaged of which only records that were not flushed attested that it had been; the second power cut, amid the
/// degraded opening, took these along.
#[test]
fn what_attests_that_a_damaged_record_was_durable_stays() {
    holds(include_str!("attested.plan"));
}

/// With the mistakes of the same names both fail: see `canary-sim`.
#[test]
fn holes_are_filled_when_their_readers_are_gone_and_dead_headers_are_not_believed() {
    holds(include_str!("hole_reader.plan"));
    holds(include_str!("stale_header.plan"));
}

/// A request failed: its segment was discarded while it was being read.
#[test]
fn a_segment_is_not_trimmed_under_a_reader() {
    holds(
        "\
        coulter-sim plan 1
        store segments=28 segment_blocks=256 volume=839 journal=1024 runs=2 map=0 trim=1
        write 11 122
        write 89 83
        write 347 136
        write 351 1
        write 70 1
        write 458 204
        write 58 1
        write 24 4
        write 14 1
        write 10 1
        write 91 1
        write 69 1
        write 356 1
        write 149 1
        write 209 1
        write 327 4
        write 178 1
        write 11 1
        write 248 1
        write 15 1
        write 5 4
        write 2 1
        write 101 5
        write 360 1
        write 206 1
        write 42 1
        write 237 1
        write 59 1
        write 54 1
        write 95 1
        write 125 1
        write 375 6
        write 199 1
        write 34 7
        write 46 1
        write 330 1
        write 26 1
        write 82 1
        write 99 1
        write 395 1
        write 109 1
        write 44 1
        write 78 3
        write 148 1
        discard 43 1
        write 29 1
        write 337 1
        write 84 5
        write 183 1 fua
        write 135 1
        write 97 1
        discard 67 1
        run 7 2972996896
        cut sectors 3888197063
        write 104 1 fua
        run 23 1108249597
        cut blocks 1058347321 8
        write 30 1
        write 236 1
        write 61 1 fua
        write 270 38
        write 132 1
        write 388 1
        write 74 1
        write 24 1
        write 207 1
        write 18 1
        write 200 1
        write 65 1
        write 35 5
        write 408 1
        write 224 1
        write 21 1
        write 478 1
        write 36 1
        write 760 1
        write 102 1
        write 17 1
        write 22 1 fua
        discard 277 1
        write 56 1
        write 93 1
        write 87 1 fua
        run 79 3008983266
        write 67 1
        write 582 1
        write 518 1
        write 15 1
        write 95 1
        write 102 1
        write 784 1
        run 26 1534329079
        write 103 1
        write 341 1
        write 96 1
        run 1 2513350134
        cut sectors 2299054378
        write 513 135
        write 0 210
        read 69 214
        write 13 185
        write 50 9
        write 73 87
        write 579 128
        write 459 128
        write 435 149
",
    );
}

/// An older write of a block overtook a newer one: making room for the first write of a group had
/// ended the group before, and the write was not noted in the new one.
#[test]
fn the_first_write_of_a_group_is_noted_in_it() {
    holds(
        "\
        coulter-sim plan 1
        store segments=28 segment_blocks=256 volume=916 journal=1024 runs=4 map=0 trim=1 placement=scattered
        write 50 35
        write 77 1
        write 128 172
        write 59 54
        write 66 1
",
    );
}

/// A store did not open for want of memory: discards of what was unmapped anyway cost nothing while it
/// ran, and in replay, which cannot tell, as much as others.
#[test]
fn discards_of_nothing_are_counted_before_replay_has_to_take_them() {
    holds(
        "\
        coulter-sim plan 1
        store segments=280 segment_blocks=256 volume=0 journal=1024 runs=7 map=1 trim=0 placement=lifetime
        write 11049 1
        run 1 632519426
        cut writes 4257657963
        shutdown
        discard 5653 636
        discard 21310 179
        discard 12502 337
        run 1 3456839800
        discard 7286 1313
        discard 2652 625
        run 5 985626630
        discard 6966 2145
        discard 56634 424
        discard 25620 2442
        run 3 1369726592
        discard 40473 851
        run 1 2177268301
        discard 674 1
        discard 23419 538
        discard 913 1575
        run 3 2421859803
        discard 1872 2882
        discard 16674 611
        discard 45019 1458
        run 5 2207589733
        discard 705 572
        cut nothing 3272089602
",
    );
}

/// The power went after the first superblock of a store that had grown: it named a copy C in the new last block of the device,
/// and nothing had been written there.
#[test]
fn a_superblock_names_no_third_copy_that_is_not_there() {
    holds(include_str!("grown.plan"));
}
