//! Whole measurements: that they repeat, that they count what happened, and that they refuse what
//! cannot be.

use coulter_flash::{
    FtlKind, FtlOptions, HostKind, Placement, Profile, Run, RunError, VictimPolicy, run,
};

fn named(name: &str) -> Profile {
    Profile::named(name).expect("it comes with the crate")
}

/// The paper's board, an eighth of it. Its pool has to shrink too, and the spare space is what the
/// pool needs at least.
fn board() -> Profile {
    let resized = named("openssd").resized(384 << 20).expect("a possible size");
    let mut board = resized.with_spare_percent(8).expect("a possible share");
    board.log_blocks = 12;
    board
}

fn with_files(ftl: FtlKind, host: HostKind, workload: &str) -> Run {
    let mut run = Run::new(board(), ftl, workload.parse().expect("a workload"));
    run.host = host;
    run.ageing_percent = 60;
    run.bytes = 24 << 20;
    // In proportion to the drive.
    run.page_cache_blocks = 1024;
    run
}

const PAIRS: [(FtlKind, HostKind); 3] = [
    (FtlKind::Dftl, HostKind::Ext4),
    (FtlKind::Redo, HostKind::Log),
    (FtlKind::Sftl, HostKind::Slfs),
];

#[test]
fn every_host_works_on_every_ftl_and_repeats_itself() {
    for ftl in FtlKind::ALL {
        for host in HostKind::ALL {
            for workload in ["tiobench", "tpcc", "varmail"] {
                let mut plan = with_files(ftl, host, workload);
                plan.bytes = 2 << 20;
                plan.ageing_percent = 20;
                let first = run(&plan).unwrap_or_else(|error| panic!("{ftl} {host}: {error}"));
                assert_eq!(run(&plan).as_ref(), Ok(&first), "{ftl} {host} {workload}");
                assert!(first.user_bytes_written >= plan.bytes);
                assert!(first.virtual_ns > 0);
                assert!(first.die_utilisation <= 1.0, "{}", first.die_utilisation);
                assert!(first.channel_utilisation <= 1.0, "{}", first.channel_utilisation);
            }
        }
    }
}

#[test]
fn s_lfs_on_s_ftl_is_ahead_and_never_merges_in_full() {
    for workload in ["tiobench", "tpcc", "varmail"] {
        let [ext4, redo, slfs] = PAIRS.map(|(ftl, host)| {
            run(&with_files(ftl, host, workload)).unwrap_or_else(|error| panic!("{error}"))
        });
        let speeds = [&ext4, &redo, &slfs].map(|report| report.user_bytes_per_second);
        println!("{workload}: {speeds:?}");
        assert!(speeds[2] > speeds[0].max(speeds[1]), "{workload}: {speeds:?}");
        assert_eq!(slfs.ftl_counters.merges_full, 0, "{workload}");
        assert!(slfs.erases_per_user_gib < redo.erases_per_user_gib, "{workload}");
        assert!(slfs.erases_per_user_gib < ext4.erases_per_user_gib, "{workload}");
        let memory = |report: &coulter_flash::RunReport| report.map_memory.tables_bytes;
        assert_eq!(memory(&slfs), memory(&redo), "both map erase blocks");
        match workload {
            "tiobench" => assert!(speeds[1] > speeds[0], "REDO is good there: {speeds:?}"),
            _ => assert!(redo.ftl_counters.merges_full > slfs.ftl_counters.merges_partial),
        }
    }
}

#[test]
fn segments_beside_the_erase_blocks_make_the_drive_copy() {
    // Purely sequential within segments: whole erase blocks, or halves of two.
    let mut plan = with_files(FtlKind::Sftl, HostKind::Slfs, "tiobench");
    let aligned = run(&plan).expect("it works");
    plan.log.shift = board().geometry.pages_per_block * board().geometry.blocks_per_page() / 2;
    let shifted = run(&plan).expect("it works");
    let copies = |report: &coulter_flash::RunReport| report.nand.programs.merge;
    println!("aligned {} copies, shifted {}", copies(&aligned), copies(&shifted));
    assert!(copies(&shifted) > 2 * copies(&aligned));
}

#[test]
fn what_is_read_is_compared() {
    for ftl in [FtlKind::PageMapped, FtlKind::Dftl, FtlKind::Fast] {
        let workload = "hot:10:90,reads=40,blocks=2".parse().expect("a workload");
        let mut plan = Run::new(named("tiny"), ftl, workload);
        plan.verify = true;
        plan.bytes = 8 << 20;
        let report = run(&plan).expect("it works");
        assert!(report.reads_verified > 500, "{}", report.reads_verified);
        assert!(report.latency.count > 0);
    }
}

#[test]
fn streams_that_the_host_names_lower_the_amplification() {
    // Not measured by `run`, which names no handle: first writes and overwrites apart.
    let workload = "hot:10:90".parse().expect("a workload");
    let [mixed, apart] = [Placement::Mixed, Placement::HotCold].map(|placement| {
        let profile = named("sata-tlc").resized(256 << 20).expect("possible");
        let mut plan = Run::new(profile, FtlKind::PageMapped, workload);
        plan.options =
            FtlOptions { placement, victims: VictimPolicy::CostBenefit, ..FtlOptions::default() };
        run(&plan).expect("it works").device_write_amplification
    });
    println!("mixed {mixed:.3}, apart {apart:.3}");
    assert!(apart <= mixed * 1.05);
}

#[test]
fn what_cannot_be_is_refused() {
    let plan = |workload: &str| {
        Run::new(named("tiny"), FtlKind::PageMapped, workload.parse().expect("a workload"))
    };
    let refused = |plan: Run| run(&plan).expect_err("it cannot be");
    assert!(matches!(refused(plan("uniform,blocks=65536")), RunError::TooLarge { .. }));
    let mut over_full = plan("uniform");
    over_full.fill_percent = 101;
    assert!(matches!(refused(over_full), RunError::TooLarge { .. }));
    let mut files = with_files(FtlKind::Redo, HostKind::Log, "tiobench");
    files.fill_percent = 100;
    assert!(matches!(refused(files), RunError::TooLarge { .. }));
    let mut streams = plan("uniform");
    streams.ftl = FtlKind::Sftl;
    streams.options.placement = Placement::Handles { count: 4 };
    assert!(matches!(refused(streams), RunError::Ftl(_)));
    let mut spare = plan("uniform");
    spare.ftl = FtlKind::Bast;
    spare.profile.log_blocks = 1000;
    assert!(matches!(refused(spare), RunError::Ftl(_)));
}

#[test]
fn a_copy_on_write_host_that_is_nearly_full_has_room_to_commit() {
    for percent in [65, 85] {
        let drive = named("sata-tlc").resized(512 << 20).expect("a possible size");
        let workload = "fio-rand".parse().expect("a workload");
        let mut plan = Run::new(drive, FtlKind::PageMapped, workload);
        plan.host = HostKind::Cow;
        plan.fill_percent = percent;
        plan.bytes = 32 << 20;
        // Changes many leaves before it has to write any.
        plan.page_cache_blocks = 1024;
        let report = run(&plan).unwrap_or_else(|error| panic!("{percent} %: {error}"));
        assert!(report.host_counters.checkpoints > 0, "{percent} %");
    }
}
