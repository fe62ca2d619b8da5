//! What every FTL owes its host, in one suite: the newest version of every block, whatever is
//! written, trimmed and cut short.
//!
//! A model keeps, for each host block, the values that it may have after a power cut: what was
//! last durable and all that was written since. The drive keeps a tag of eight bytes for each block;
//! zero means never written or trimmed.

use coulter_flash::{
    Blocks, CommandError, Drive, FtlKind, FtlOptions, Keep, Placement, Profile, VictimPolicy,
    WriteOptions,
};
use coulter_workload::{Kind, Mix, Operation, Operations, Pattern, Random};

/// A drive, and what each of its blocks may hold.
struct Rig {
    drive: Drive,
    now: u64,
    /// For each block what it may hold after a cut; the last is what it holds.
    values: Vec<Vec<u64>>,
    tag: u64,
}

fn profiles() -> Vec<Profile> {
    let tiny = Profile::named("tiny").expect("it comes with the crate");
    let mut combining = tiny.clone();
    combining.name = "tiny, buffer that combines".to_string();
    (combining.buffer_pages, combining.buffer_combines) = (6, true);
    let mut small_pages = tiny.clone();
    small_pages.name = "tiny, page of a block, word lines of two".to_string();
    small_pages.geometry.page_size = 4096;
    small_pages.pages_per_program = 2;
    small_pages.buffer_pages = 3;
    let mut cached = tiny.clone();
    cached.name = "tiny, one cached entry, one log block".to_string();
    (cached.map_cache_entries, cached.log_blocks) = (1, 1);
    vec![tiny, combining, small_pages, cached]
}

/// Every FTL with everything that it can be told.
fn subjects() -> Vec<(FtlKind, FtlOptions)> {
    let plain = FtlOptions::default();
    let mut subjects: Vec<_> = FtlKind::ALL.into_iter().map(|kind| (kind, plain)).collect();
    for victims in [VictimPolicy::CostBenefit, VictimPolicy::Oldest] {
        subjects.push((FtlKind::PageMapped, FtlOptions { victims, ..plain }));
    }
    for placement in [Placement::HotCold, Placement::Handles { count: 2 }] {
        subjects.push((FtlKind::PageMapped, FtlOptions { placement, ..plain }));
    }
    subjects.push((FtlKind::Dftl, FtlOptions { batch_evictions: true, ..plain }));
    subjects
}

fn for_each_subject(mut test: impl FnMut(&str, Profile, FtlKind, FtlOptions)) {
    for profile in profiles() {
        for (kind, options) in subjects() {
            let title = format!("{kind} {options:?} on {}", profile.name);
            test(&title, profile.clone(), kind, options);
        }
    }
}

impl Rig {
    fn new(profile: Profile, kind: FtlKind, options: FtlOptions) -> Rig {
        let blocks = profile.geometry.host_blocks() as usize;
        let drive = Drive::new(profile, kind, options, Keep::Tags).expect("it works there");
        Rig { drive, now: 0, values: vec![vec![0]; blocks], tag: 0 }
    }

    /// Does one operation; false if power failed meanwhile.
    fn apply(&mut self, operation: Operation, fua: bool) -> bool {
        let blocks = Blocks { first: operation.block, count: operation.count };
        let range = blocks.first as usize..blocks.first as usize + blocks.count as usize;
        let result = match operation.kind {
            Kind::Read => {
                let mut content = vec![0; 8 * range.len()];
                let result = self.drive.read(self.now, blocks, &mut content);
                if result.is_ok() {
                    self.verify(range, &content);
                }
                result
            }
            Kind::Write => {
                let tags: Vec<_> = range.clone().map(|_| self.next_tag()).collect();
                range.clone().zip(&tags).for_each(|(at, tag)| self.values[at].push(*tag));
                let content: Vec<u8> = tags.iter().flat_map(|tag| tag.to_le_bytes()).collect();
                let options = WriteOptions { handle: (blocks.first % 3) as u8, fua };
                let result = self.drive.write(self.now, blocks, &content, options);
                if result.is_ok() && fua {
                    range.for_each(|at| self.settle(at));
                }
                result
            }
            Kind::Discard => {
                let per_page = self.drive.profile().geometry.blocks_per_page() as usize;
                let whole =
                    range.start.div_ceil(per_page) * per_page..range.end / per_page * per_page;
                whole.clone().for_each(|at| self.values[at].push(0));
                let result = self.drive.trim(self.now, blocks);
                if result.is_ok() {
                    whole.for_each(|at| self.settle(at));
                }
                result
            }
            Kind::Flush => {
                let result = self.drive.flush(self.now);
                if result.is_ok() {
                    (0..self.values.len()).for_each(|at| self.settle(at));
                }
                result
            }
        };
        match result {
            Ok(answered) => {
                assert!(answered >= self.now, "an answer comes after its question");
                self.now = answered;
                true
            }
            Err(CommandError::PowerCut) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn next_tag(&mut self) -> u64 {
        self.tag += 1;
        self.tag
    }

    fn settle(&mut self, at: usize) {
        let values = &mut self.values[at];
        values.drain(..values.len() - 1);
    }

    fn verify(&self, range: std::ops::Range<usize>, content: &[u8]) {
        for (at, tag) in range.zip(tags(content)) {
            assert_eq!(Some(&tag), self.values[at].last(), "block {at}");
        }
    }

    fn read_all(&mut self) -> Vec<u64> {
        let blocks = Blocks { first: 0, count: self.values.len() as u32 };
        let mut content = vec![0; 8 * self.values.len()];
        self.drive.read(self.now, blocks, &mut content).expect("power is on");
        tags(&content).collect()
    }

    fn verify_all(&mut self) {
        let held = self.read_all();
        for (at, tag) in held.into_iter().enumerate() {
            assert_eq!(Some(&tag), self.values[at].last(), "block {at}");
        }
        self.drive.ftl().assert_consistent(self.drive.nand());
        let mapped = (0..self.drive.profile().geometry.logical_pages()).filter(|lpn| {
            self.drive.ftl().peek(self.drive.nand(), coulter_flash::Lpn(*lpn)).is_some()
        });
        assert!(mapped.count() <= self.values.len());
    }

    /// Power comes back, after cuts at the given operations of the recovery. What is found is one
    /// of the values that it may be, and is what counts from then on.
    fn power_on(&mut self, cuts: &[u64]) {
        for operations in cuts {
            match self.drive.power_on_and_cut(self.now, *operations) {
                Err(CommandError::PowerCut) => {}
                Ok(ready) => {
                    self.now = ready;
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        self.now = self.drive.power_on(self.now).expect("no more cuts");
        let held = self.read_all();
        for (at, tag) in held.into_iter().enumerate() {
            let values = &mut self.values[at];
            assert!(values.contains(&tag), "block {at} holds {tag}, it may hold {values:?}");
            *values = vec![tag];
        }
        self.drive.ftl().assert_consistent(self.drive.nand());
    }
}

fn tags(content: &[u8]) -> impl Iterator<Item = u64> + '_ {
    content.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

fn mixed(blocks: usize, seed: u64) -> Operations {
    let pattern = Pattern::HotCold { hot_percent: 25, access_percent: 60 };
    let sizes = vec![(1, 6), (2, 2), (3, 1), (7, 1), (24, 1)];
    Mix { pattern, reads: 3, writes: 8, discards: 1, flushes: 1, sizes }.over(blocks as u64, seed)
}

#[test]
fn every_read_returns_the_newest_version() {
    for_each_subject(|title, profile, kind, options| {
        println!("{title}");
        let mut rig = Rig::new(profile, kind, options);
        let mut operations = mixed(rig.values.len(), 1);
        for step in 0..3000 {
            assert!(rig.apply(operations.operation(), step % 11 == 0));
        }
        rig.verify_all();
    });
}

#[test]
fn sequential_and_backward_writes_keep_every_version_right() {
    for_each_subject(|title, profile, kind, options| {
        println!("{title}");
        let mut rig = Rig::new(profile, kind, options);
        let count = rig.values.len() as u64;
        for round in 0..3 {
            for step in 0..count {
                let block = if round == 1 { count - 1 - step } else { step };
                rig.apply(Operation { kind: Kind::Write, block, count: 1 }, false);
            }
            rig.apply(Operation { kind: Kind::Flush, block: 0, count: 0 }, false);
            rig.verify_all();
        }
    });
}

#[test]
fn a_drive_that_is_trimmed_whole_reads_as_zeros_and_can_be_filled_again() {
    for_each_subject(|title, profile, kind, options| {
        println!("{title}");
        let mut rig = Rig::new(profile, kind, options);
        let all = rig.values.len() as u32;
        for _ in 0..3 {
            rig.apply(Operation { kind: Kind::Write, block: 0, count: all }, false);
            rig.verify_all();
            rig.apply(Operation { kind: Kind::Discard, block: 0, count: all }, false);
            rig.verify_all();
            assert!(rig.read_all().iter().all(|tag| *tag == 0));
            rig.power_on(&[]);
            assert!(rig.read_all().iter().all(|tag| *tag == 0));
        }
    });
}

/// Runs a fixed life, cuts it at its `cut`-th flash operation, recovers, lives on. False when the
/// life ended before the cut.
fn life_with_a_cut(profile: Profile, subject: (FtlKind, FtlOptions), cut: u64) -> bool {
    let mut rig = Rig::new(profile, subject.0, subject.1);
    let all = rig.values.len() as u32;
    assert!(rig.apply(Operation { kind: Kind::Write, block: 0, count: all }, true));
    let mut operations = mixed(rig.values.len(), 5);
    rig.drive.cut_power_after(cut);
    let completed = (0..60).all(|step| rig.apply(operations.operation(), step % 7 == 0));
    // Every third cut is followed by one or two in the recovery.
    let more = [cut % 37 + 1, cut % 53 + 1];
    rig.power_on(match cut % 3 {
        0 => &[],
        1 => &more[..1],
        _ => &more,
    });
    for step in 0..60 {
        assert!(rig.apply(operations.operation(), step % 7 == 0));
    }
    rig.verify_all();
    rig.power_on(&[]);
    !completed
}

#[test]
fn flushed_data_survives_a_power_cut_at_every_operation() {
    for_each_subject(|title, profile, kind, options| {
        println!("{title}");
        let mut cut = 1;
        while life_with_a_cut(profile.clone(), (kind, options), cut) {
            cut += 1;
        }
        assert!(cut > 100, "the life had only {cut} operations");
    });
}

#[test]
fn flushed_data_survives_many_power_cuts_in_a_row() {
    for_each_subject(|title, profile, kind, options| {
        println!("{title}");
        let mut random = Random::new(9);
        let mut rig = Rig::new(profile, kind, options);
        let mut operations = mixed(rig.values.len(), 6);
        for _ in 0..150 {
            rig.drive.cut_power_after(1 + random.below(300));
            for step in 0..100 {
                if !rig.apply(operations.operation(), step % 5 == 0) {
                    break;
                }
            }
            let cuts = [1 + random.below(400), 1 + random.below(400)];
            rig.power_on(&cuts[..random.below(3) as usize]);
        }
        rig.verify_all();
    });
}

#[test]
fn every_program_has_one_cause_and_host_pages_are_programmed_once() {
    for_each_subject(|title, profile, kind, options| {
        println!("{title}");
        if profile.buffer_combines {
            return;
        }
        let mut rig = Rig::new(profile, kind, options);
        let mut operations = mixed(rig.values.len(), 2);
        let per_page = u64::from(rig.drive.profile().geometry.blocks_per_page());
        let mut pages = 0;
        for _ in 0..1000 {
            let operation = operations.operation();
            if operation.kind == Kind::Write {
                let end = operation.block + u64::from(operation.count);
                pages += end.div_ceil(per_page) - operation.block / per_page;
            }
            rig.apply(operation, false);
        }
        let programs = rig.drive.nand().counters().programs;
        assert_eq!(programs.host + programs.rmw, pages);
        let counters = rig.drive.ftl_counters();
        let copied = counters.copies_partial + counters.copies_full;
        assert_eq!(programs.merge, copied, "merges");
        assert_eq!(programs.pad, counters.copies_pad, "padding");
        assert_eq!(programs.gc, counters.gc_valid_pages, "collection");
    });
}

#[test]
fn the_same_commands_take_the_same_time() {
    for_each_subject(|title, profile, kind, options| {
        let [first, second] = [(); 2].map(|()| {
            let mut rig = Rig::new(profile.clone(), kind, options);
            let mut operations = mixed(rig.values.len(), 3);
            (0..500).for_each(|_| assert!(rig.apply(operations.operation(), false)));
            (rig.now, *rig.drive.nand().counters(), *rig.drive.ftl_counters())
        });
        assert_eq!(first, second, "{title}");
    });
}

#[test]
fn commands_outside_the_drive_are_refused() {
    for_each_subject(|_, profile, kind, options| {
        let mut rig = Rig::new(profile, kind, options);
        let all = rig.values.len() as u64;
        for first in [all, u64::MAX, all - 1] {
            let blocks = Blocks { first, count: 2 };
            let refused = Err(CommandError::OutOfRange);
            let options = WriteOptions::default();
            assert_eq!(rig.drive.write(0, blocks, &[0; 16], options), refused);
            assert_eq!(rig.drive.read(0, blocks, &mut [0; 16]), refused);
            assert_eq!(rig.drive.trim(0, blocks), refused);
        }
    });
}
