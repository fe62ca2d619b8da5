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
    holds(
        "\
        coulter-sim plan 1
        store segments=24 segment_size=512 volume=1069 journal=1024 runs=7 map=0 trim=1
        write 491 1
        run 1 3301937611
        flush
        run 1 3127358532
        cut sectors 4080176301
        write 200 1
        write 674 35
        write 118 38
        write 120 21
        write 63 32
        run 1 394373243
        write 71 5
        run 3 3264523192
        write 500 32
        write 565 1
        write 81 1
        write 721 1
        run 3 1843458833
        write 429 30
        cut nothing 3449980212
        write 87 1
        write 15 1
        write 349 1
        write 27 34
        write 210 1
        write 91 1 fua
        write 972 13
        run 1 3069343495
        cut nothing 2080672490
        write 1049 1
        write 737 1
        write 51 14
        write 14 1
        write 8 222
        write 661 1
        run 4 2346371596
        discard 25 522
        write 114 1
        write 30 1
        write 74 1
        run 1 2613953185
        write 296 1
        write 52 1
        write 98 1 fua
        run 1 3935941422
        write 630 1
        write 132 1
        write 63 1
        run 1 148461948
        write 23 1
        write 750 202
        write 43 1
        write 820 1
        run 1 851242002
        write 35 1
        write 158 1
        write 79 1
        write 78 1
        write 106 1
        run 1 918311121
        write 619 1
        write 85 1
        write 330 1
        write 899 1
        write 510 77
        run 3 3497747824
        write 943 1
        run 1 4262804195
        write 53 200
        write 122 17
        write 234 1
        run 7 898363067
        cut sectors 119059759
        write 969 1
        write 91 1
        run 1 4277174683
        write 11 1
        write 68 1
        write 84 1
        write 37 1
        run 1 1461519984
        write 548 1 fua
        run 3 3993061203
        cut writes 1815478315
        write 1026 1
        run 1 1021896594
        cut nothing 1346889565
        write 509 1
        write 5 1
        write 354 1
        write 1001 1
        run 4 586195468
        write 273 1
        cut nothing 1897636469
        write 3 22
        write 27 188
        write 61 1 fua
        run 6 2440602802
        cut writes 393947044
        write 67 1
        write 112 1
        run 2 1819369136
        cut writes 1001501135
        write 879 1
        run 1 3292160242
        flush
        write 31 1
        write 69 1
        run 2 338408488
        cut everything 517714061
        write 76 1
        shutdown
        write 103 1
        cut nothing 2075321163
        write 782 1
        run 1 2772081336
        flush
        run 1 1726683231
        cut sectors 900102930
        write 512 1
        discard 58 1011
        run 2 2644178085
        flush
        run 1 951972081
        cut everything 2527762549
        cut writes 1754568528
",
    );
}

/// A request failed: its segment was discarded while it was being read.
#[test]
fn a_segment_is_not_trimmed_under_a_reader() {
    holds(
        "\
        coulter-sim plan 1
        store segments=28 segment_size=256 volume=839 journal=1024 runs=2 map=0 trim=1
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
        store segments=28 segment_size=256 volume=916 journal=1024 runs=4 map=0 trim=1 placement=scattered
        write 50 35
        write 77 1
        write 128 172
        write 59 54
        write 66 1
",
    );
}
