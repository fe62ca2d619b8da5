//! What is known on paper about each FTL, held against the emulation.

use coulter_flash::{
    Blocks, Drive, FtlCounters, FtlKind, FtlOptions, Keep, NandCounters, Profile, VictimPolicy,
    WriteOptions,
};
use coulter_workload::Pattern;

/// One die, pages of one host block, no buffer: every write is one page program.
fn plain(erase_blocks: u32, exported: u32, pages_per_block: u32) -> Profile {
    let mut profile = Profile::named("tiny").expect("it comes with the crate");
    profile.geometry.channels = 1;
    profile.geometry.erase_blocks = erase_blocks;
    profile.geometry.exported_erase_blocks = exported;
    profile.geometry.pages_per_block = pages_per_block;
    profile.geometry.page_size = 4096;
    profile.check().expect("the numbers are possible");
    profile
}

struct Bench {
    drive: Drive,
    now: u64,
}

impl Bench {
    fn new(profile: Profile, kind: FtlKind) -> Bench {
        Bench::with(profile, kind, FtlOptions::default())
    }

    fn with(profile: Profile, kind: FtlKind, options: FtlOptions) -> Bench {
        let drive = Drive::new(profile, kind, options, Keep::Nothing).expect("it works there");
        Bench { drive, now: 0 }
    }

    fn write(&mut self, block: u64) {
        self.write_many(block, 1);
    }

    fn write_many(&mut self, first: u64, count: u32) {
        let blocks = Blocks { first, count };
        let result = self.drive.write(self.now, blocks, &[], WriteOptions::default());
        self.now = result.expect("power is on and the range is on the drive");
    }

    fn trim(&mut self, first: u64, count: u32) {
        self.now = self.drive.trim(self.now, Blocks { first, count }).expect("as above");
    }

    fn fill(&mut self) {
        (0..self.drive.profile().geometry.host_blocks()).for_each(|block| self.write(block));
    }

    fn counters(&self) -> (NandCounters, FtlCounters) {
        (*self.drive.nand().counters(), *self.drive.ftl_counters())
    }

    /// What the flash and the FTL did during `work`.
    fn during(&mut self, work: impl FnOnce(&mut Bench)) -> (NandCounters, FtlCounters) {
        let (nand, ftl) = self.counters();
        work(self);
        let (nand_after, ftl_after) = self.counters();
        (nand_after.since(&nand), ftl_after.since(&ftl))
    }
}

/// Programs for each page that the host wrote, uniform random writes, greedy collection:
/// a / (a + W(-a e^-a)) with a = 1 + over-provisioning (Xiang and Kurkoski 2011).
fn write_amplification_on_paper(a: f64) -> f64 {
    let x = -a * (-a).exp();
    let mut w = 0.0f64;
    for _ in 0..10_000 {
        w = x * (-w).exp();
    }
    a / (a + w)
}

#[test]
fn greedy_collection_under_uniform_writes_amplifies_as_the_closed_form_says() {
    for percent in [7u32, 14, 28] {
        let exported = 51_200 / (100 + percent);
        let mut bench = Bench::new(plain(512, exported, 64), FtlKind::PageMapped);
        bench.fill();
        let pages = bench.drive.profile().geometry.host_blocks();
        let mut addresses = Pattern::Uniform.over(pages, 1);
        (0..6 * pages).for_each(|_| bench.write(addresses.address()));
        let measured = 6 * pages;
        let (nand, _) = bench.during(|bench| {
            (0..measured).for_each(|_| bench.write(addresses.address()));
        });
        let emulated = nand.programs.total() as f64 / measured as f64;
        let paper = write_amplification_on_paper(512.0 / f64::from(exported));
        println!("{percent} %: {emulated:.3}, on paper {paper:.3}");
        assert!((emulated / paper - 1.0).abs() < 0.04, "{percent} %: {emulated}, not {paper}");
    }
}

#[test]
fn sequential_overwrites_copy_nothing_in_any_ftl() {
    for kind in FtlKind::ALL {
        // DFTL's map would not fit into the cache; here it does.
        let mut profile = plain(80, 64, 32);
        profile.map_cache_entries = 1 << 20;
        let mut bench = Bench::new(profile, kind);
        bench.fill();
        let host = bench.drive.profile().geometry.host_blocks();
        let (nand, ftl) = bench.during(|bench| {
            for _ in 0..3 {
                if kind == FtlKind::Redo {
                    // REDO's host gives a block up before it writes it again.
                    bench.trim(0, host as u32);
                }
                bench.fill();
            }
        });
        assert_eq!(nand.programs.host, 3 * host, "{kind}");
        // REDO's trims have to be written down.
        assert_eq!(
            nand.programs.total() - nand.programs.map,
            3 * host,
            "{kind}: nothing is copied"
        );
        assert_eq!(ftl.merges_full + ftl.merges_partial, 0, "{kind}");
        if matches!(kind, FtlKind::Bast | FtlKind::Fast | FtlKind::Sftl) {
            // BAST switches when it needs the log again, so some switches are still to come.
            let due = 3 * 64;
            let open = bench.drive.profile().log_blocks as u64;
            assert!((due - open..=due).contains(&ftl.merges_switch), "{kind}: {ftl:?}");
            assert_eq!(nand.erases, ftl.merges_switch, "{kind}: one erase for each switch");
        }
    }
}

#[test]
fn dftl_with_room_for_every_entry_equals_the_page_map() {
    let mut profile = plain(128, 110, 32);
    profile.map_cache_entries = 110 * 32;
    let [page, dftl] = [FtlKind::PageMapped, FtlKind::Dftl].map(|kind| {
        let mut bench = Bench::new(profile.clone(), kind);
        bench.fill();
        let mut addresses = Pattern::Zipf { theta: 0.9 }.over(110 * 32, 2);
        (0..20_000).for_each(|_| bench.write(addresses.address()));
        let (nand, ftl) = bench.counters();
        (nand, ftl.gc_victims, ftl.gc_valid_pages, bench.now)
    });
    assert_eq!(page, dftl);
}

#[test]
fn dftl_with_one_entry_reads_two_map_pages_and_writes_one_for_each_random_write() {
    // Map pages of 1024 entries, enough spare space that nothing is collected while measuring.
    let mut profile = plain(400, 128, 64);
    profile.map_cache_entries = 1;
    let mut bench = Bench::new(profile, FtlKind::Dftl);
    bench.fill();
    let writes = 1000;
    // Each in another map page than the one before.
    let (nand, ftl) = bench.during(|bench| {
        (0..writes).for_each(|step| bench.write(step % 8 * 1024 + step));
    });
    assert_eq!(ftl.gc_victims, 0, "nothing was collected");
    assert_eq!(ftl.map_misses, writes);
    assert_eq!(nand.reads.map, 2 * writes);
    assert_eq!(nand.programs.map, writes);
}

#[test]
fn bast_merges_in_full_for_each_isolated_write_when_logs_are_few() {
    let pages = 32;
    let mut bench = Bench::new(plain(80, 64, pages), FtlKind::Bast);
    bench.fill();
    // Offset 5 of one logical block after the other: by the time a log is used again it is gone.
    let writes = 500;
    let (nand, ftl) = bench.during(|bench| {
        (0..writes).for_each(|step| bench.write(step % 64 * u64::from(pages) + 5));
    });
    let merges = writes - u64::from(bench.drive.profile().log_blocks);
    assert_eq!(ftl.merges_full, merges);
    assert_eq!(ftl.copies_full, merges * u64::from(pages));
    assert_eq!(nand.erases, merges * 2);
}

#[test]
fn fast_merges_as_many_logical_blocks_as_the_oldest_log_has() {
    let pages = 32u64;
    let mut profile = plain(80, 64, pages as u32);
    profile.log_blocks = 3;
    let mut bench = Bench::new(profile, FtlKind::Fast);
    bench.fill();
    // Two random logs of 32 pages are filled with offset 5 of 64 logical blocks; the next write
    // empties the first: 32 logical blocks.
    let (nand, ftl) = bench.during(|bench| {
        (0..64).for_each(|block| bench.write(block * pages + 5));
    });
    assert_eq!((ftl.merges_full, nand.erases), (0, 0));
    let (nand, ftl) = bench.during(|bench| bench.write(7));
    assert_eq!(ftl.merges_full, 32);
    assert_eq!(ftl.copies_full, 32 * pages);
    assert_eq!(nand.erases, 32 + 1);
}

#[test]
fn sftl_never_merges_in_full_and_pays_for_the_direction() {
    let pages = 32u64;
    let profile = plain(80, 64, pages as u32);
    let mut bench = Bench::new(profile.clone(), FtlKind::Sftl);
    bench.fill();

    let (nand, ftl) = bench.during(|bench| (0..pages).for_each(|page| bench.write(page)));
    assert_eq!((ftl.merges_switch, ftl.merges_partial), (1, 0), "ascending");
    assert_eq!((nand.erases, nand.programs.total()), (1, pages));

    let (_, ftl) = bench.during(|bench| (0..pages).rev().for_each(|page| bench.write(page)));
    // The last of them is still open.
    assert_eq!(ftl.merges_partial, pages - 1, "descending: one close for each page");
    assert_eq!(ftl.merges_full, 0);

    // Eight holes of a logical block, ascending, up to its last page.
    let (nand, ftl) = bench.during(|bench| {
        (0..8).for_each(|hole| bench.write(10 * pages + hole * 4 + 3));
    });
    assert_eq!((ftl.copies_pad, nand.programs.pad), (pages - 8, pages - 8));
    assert_eq!((nand.programs.host, nand.erases, ftl.merges_partial), (8, 1, 1));

    // One page of each logical block in turn, with fewer replacements than logical blocks.
    let mut bench = Bench::new(profile, FtlKind::Sftl);
    bench.fill();
    (0..64).for_each(|block| bench.write(block * pages + 9));
    let (nand, ftl) = bench.during(|bench| {
        (0..640).for_each(|step| bench.write(step % 64 * pages + 9));
    });
    assert_eq!(ftl.copies_pad + ftl.copies_partial, 640 * (pages - 1));
    assert_eq!((nand.erases, ftl.merges_full), (640, 0));
}

#[test]
fn redo_merges_nothing_behind_a_host_that_appends_and_trims() {
    let pages = 32u32;
    let mut bench = Bench::new(plain(80, 64, pages), FtlKind::Redo);
    bench.fill();
    let (nand, ftl) = bench.during(|bench| {
        for block in (0..64).map(|block| block * u64::from(pages)) {
            bench.trim(block, pages);
            (0..u64::from(pages)).for_each(|page| bench.write(block + page));
        }
    });
    assert_eq!(ftl.merges_full, 0);
    assert_eq!(nand.programs.host, 64 * u64::from(pages));
    assert_eq!(nand.programs.total() - nand.programs.map, nand.programs.host);
}

#[test]
fn redo_merges_three_times_for_each_page_written_in_four_commands() {
    let mut profile = plain(80, 64, 32);
    profile.geometry.page_size = 16384;
    let mut bench = Bench::new(profile, FtlKind::Redo);
    let pages = 64 * 32;
    let (nand, ftl) = bench.during(Bench::fill);
    assert_eq!(ftl.merges_full, 3 * pages);
    assert_eq!(nand.reads.rmw, 3 * pages);
    // The same in one command each: none.
    bench.trim(0, pages as u32 * 4);
    let (_, ftl) = bench.during(|bench| {
        (0..pages).for_each(|page| bench.write_many(page * 4, 4));
    });
    assert_eq!(ftl.merges_full, 0);
}

#[test]
fn cost_benefit_beats_greedy_when_some_pages_are_hot() {
    let [greedy, cost_benefit] = [VictimPolicy::Greedy, VictimPolicy::CostBenefit].map(|victims| {
        let options = FtlOptions { victims, ..FtlOptions::default() };
        let mut bench = Bench::with(plain(256, 230, 32), FtlKind::PageMapped, options);
        bench.fill();
        let pattern = Pattern::HotCold { hot_percent: 10, access_percent: 90 };
        let mut addresses = pattern.over(230 * 32, 3);
        (0..60_000).for_each(|_| bench.write(addresses.address()));
        let (nand, _) = bench.during(|bench| {
            (0..60_000).for_each(|_| bench.write(addresses.address()));
        });
        nand.programs.total()
    });
    println!("greedy {greedy}, cost-benefit {cost_benefit} programs for 60000 writes");
    assert!(cost_benefit < greedy, "{cost_benefit} programs against {greedy}");
}

#[test]
fn the_emulation_needs_at_most_sixteen_bytes_for_each_page() {
    let profile = Profile::named("nvme-tlc").expect("it comes with the crate");
    let pages = u64::from(profile.geometry.pages());
    for kind in [FtlKind::PageMapped, FtlKind::Dftl] {
        let drive =
            Drive::new(profile.clone(), kind, FtlOptions::default(), Keep::Nothing).expect("works");
        let map = u64::from(profile.geometry.logical_pages()) * 4;
        let bytes = drive.nand().emulator_bytes() + map;
        assert!(bytes <= 16 * pages, "{kind}: {bytes} bytes for {pages} pages");
    }
}
