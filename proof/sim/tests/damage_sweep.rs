//! Goal: whatever happens to a store, what comes out of it is either right or said to be in doubt.
//!
//! Stores of each kind (three ways of reclaiming; closed and killed) live, and are damaged at random: blocks zeroed,
//! torn, swapped, or as they were once; headers most of all; the device cut, and cut and extended.
//! `cargo test -p coulter-sim --release --test damage_sweep -- --ignored` is the long one.

mod life;

use coulter_check::{BlockFn, Finding, Options, Severity, check};
use coulter_engine::Config;
use coulter_engine::reclaim::Reclaim;
use coulter_format::record::RecordView;
use coulter_format::superblock::Superblock;
use coulter_format::{BLOCK_SIZE, Block, Pba};
use coulter_sim::device::Device;
use coulter_sim::hand::small;
use coulter_sim::random::Random;
use life::{Life, Outcome, newest_superblock, outcome_of};

const ZERO: Block = [0; BLOCK_SIZE];

/// A store that lived, and all that is known of it.
struct Sample {
    life: Life,
    device: Device,
    expected: Vec<u8>,
    snapshots: Vec<Device>,
    superblock: Superblock,
    /// Blocks that hold the header of a record.
    headers: Vec<u32>,
    /// Those of the records after the checkpoint.
    recent: Vec<u32>,
    /// The highest sequence that some header or the superblock tells to be durable.
    attested: u64,
}

fn block(device: &Device, pba: u32) -> Block {
    let mut blocks = [ZERO];
    device.read(Pba(pba), &mut blocks);
    blocks[0]
}

impl Sample {
    fn new(seed: u64) -> Sample {
        let reference_blocks = if seed.is_multiple_of(2) { 8 } else { u32::MAX };
        let reclaim = [Reclaim::CopyOut, Reclaim::HoleFill, Reclaim::Threaded][seed as usize % 3];
        let config = Config { reference_blocks, reclaim, ..small() };
        let closed = (seed / 3).is_multiple_of(2);
        let life = Life { seed, config, map: None, closed, attested: true };
        let (device, expected, snapshots) = life.live_on();
        let superblock = newest_superblock(&device);
        let mut sample = Sample {
            life,
            device,
            expected,
            snapshots,
            superblock,
            headers: vec![],
            recent: vec![],
            attested: 0,
        };
        for pba in sample.device.written() {
            let content = block(&sample.device, pba.0);
            let Ok(view) = RecordView::decode(&content, &superblock.store, pba) else { continue };
            sample.headers.push(pba.0);
            let header = view.header();
            if header.epoch == superblock.epoch && header.sequence > superblock.checkpoint.sequence
            {
                sample.recent.push(pba.0);
            }
        }
        sample.attested = sample.attested(&sample.device, sample.device.size());
        sample
    }

    /// What a damaged device still tells of durability.
    fn attested(&self, device: &Device, size: u64) -> u64 {
        let store = self.superblock.store;
        let superblocks = [0, self.superblock.geometry.segment_blocks / 2].map(|pba| {
            Superblock::decode(&block(device, pba))
                .map_or(0, |superblock| superblock.durable_sequence)
        });
        let headers = self.recent.iter().filter(|pba| u64::from(**pba) < size).map(|pba| {
            let content = block(device, *pba);
            let view = RecordView::decode(&content, &store, Pba(*pba));
            view.map_or(0, |view| view.header().durable_sequence)
        });
        headers.chain(superblocks).max().unwrap_or(0)
    }

    /// Damages a device; returns its size, and what was done.
    fn damage(&self, device: &mut Device, random: &mut Random) -> (u64, String) {
        let size = device.size();
        let any = |random: &mut Random| random.below(size) as u32;
        let of = |places: &[u32], random: &mut Random| match places.is_empty() {
            true => any(random),
            false => places[random.below(places.len() as u64) as usize],
        };
        let place = match random.below(4) {
            0 => of(&self.headers, random),
            1 | 2 => of(&self.recent, random),
            _ => any(random),
        };
        let length_max = if random.chance(70) { 3 } else { 700 };
        let length = 1 + random.below(length_max);
        let range = place..(u64::from(place) + length).min(size) as u32;
        let once = &self.snapshots[random.below(self.snapshots.len() as u64) as usize];
        match random.below(7) {
            0 | 1 => {
                range.clone().for_each(|pba| device.write(Pba(pba), &[ZERO]));
                (size, format!("zeroed {range:?}"))
            }
            2 => {
                range.clone().for_each(|pba| device.write(Pba(pba), &[block(once, pba)]));
                (size, format!("as once {range:?}"))
            }
            3 => {
                // A lost write of a header, where an older one lies.
                let store = self.superblock.store;
                let older: Vec<u32> = self
                    .headers
                    .iter()
                    .copied()
                    .filter(|pba| {
                        let before = block(once, *pba);
                        let is_header = RecordView::decode(&before, &store, Pba(*pba)).is_ok();
                        is_header && before != block(device, *pba)
                    })
                    .collect();
                let place = of(&older, random);
                device.write(Pba(place), &[block(once, place)]);
                (size, format!("older header {place}"))
            }
            4 => {
                let other = of(&self.headers, random);
                let (one, two) = (block(device, place), block(device, other));
                device.write(Pba(place), &[two]);
                device.write(Pba(other), &[one]);
                (size, format!("swapped {place} {other}"))
            }
            5 => {
                let byte = random.below(BLOCK_SIZE as u64) as usize;
                device.corrupt(Pba(place), byte);
                (size, format!("one byte of {place}"))
            }
            _ => {
                let end = size / 8 + random.below(size - size / 8);
                (end as u32..size as u32).for_each(|pba| device.write(Pba(pba), &[ZERO]));
                let cut = random.chance(50);
                (if cut { end } else { size }, format!("cut at {end}, extended: {}", !cut))
            }
        }
    }

    /// Damages it, and compares what comes out; returns whether everything was said to be whole.
    fn try_one(&self, random: &mut Random) -> (bool, bool) {
        let mut device = self.device.clone();
        let mut size = device.size();
        let mut done = Vec::new();
        for _ in 0..1 + random.below(8) / 6 {
            let (left, what) = self.damage(&mut device, random);
            size = size.min(left);
            done.push(what);
        }
        device.flush_all();
        let context = format!("{:?} {done:?}", self.life);
        let outcome = self.assess(&device, size, &context);
        outcome.map_or((false, false), |(outcome, told)| (outcome.salvage.is_whole(), told))
    }

    /// Compares what comes out of a damaged device with what was in it. `None` without a superblock; else also
    /// whether the device still tells all that it told of durability.
    fn assess(&self, device: &Device, size: u64, context: &str) -> Option<(Outcome, bool)> {
        let mut reader = BlockFn {
            size_blocks: size,
            read: |pba: Pba, into: &mut Block| {
                *into = block(device, pba.0);
                Ok(())
            },
        };
        let superblocks = [0, self.superblock.geometry.segment_blocks / 2];
        if superblocks.iter().all(|pba| Superblock::decode(&block(device, *pba)).is_err()) {
            return None;
        }
        // What nothing tells of any more may be dropped: the documented limit.
        let told = self.attested(device, size) >= self.attested;
        let outcome = outcome_of(&mut reader, &self.expected, 1 << 20);
        let report = check(&mut reader, &mut Options { data: true, ..Options::default() });
        let salvage = &outcome.salvage;
        let counted: u64 = salvage.ranges.iter().map(|range| range.blocks).sum();
        assert!(counted <= salvage.volume_blocks, "{context}");
        if told {
            // The very last write was not flushed.
            let last = self.expected.len() as u64 - 1;
            let spared = u64::from(!self.life.closed && !outcome.is_right(last));
            assert_eq!(outcome.silent.saturating_sub(spared), 0, "{context} {outcome:?}");
            if report.is_sound() && report.complete {
                assert!(salvage.is_whole(), "check finds nothing: {context} {outcome:?}");
            }
        }
        Some((outcome, told))
    }
}

fn sweep(seeds: std::ops::Range<u64>, tries: u64) {
    let (mut whole, mut told, mut all) = (0, 0, 0);
    for seed in seeds {
        let sample = Sample::new(seed);
        let mut random = Random::new(seed ^ 0xdead);
        for _ in 0..tries {
            let (is_whole, is_told) = sample.try_one(&mut random);
            whole += u64::from(is_whole);
            told += u64::from(is_told);
            all += 1;
        }
    }
    println!("{all} damaged stores: {whole} whole, {told} of which all is told");
    assert!(told * 2 > all, "{told} of {all}");
    assert!(whole > 0 && whole < all, "{whole} of {all}");
}

/// Closed and killed, with each way of reclaiming.
fn samples() -> impl Iterator<Item = Sample> {
    (0..6).map(Sample::new)
}

#[test]
fn a_store_that_was_cut_gives_no_zeros_for_what_was_there() {
    let mut cases = 0;
    for sample in samples() {
        let size = sample.device.size();
        for part in (3..16).step_by(2) {
            let end = size * part / 16;
            let mut device = sample.device.clone();
            (end as u32..size as u32).for_each(|pba| device.write(Pba(pba), &[ZERO]));
            for left in [end, size] {
                let context = format!("{:?} cut at {end}, then of {left}", sample.life);
                let Some((outcome, told)) = sample.assess(&device, left, &context) else {
                    continue;
                };
                // What was cut off may have been free, but a device that ends early is not whole.
                let is_hurt = outcome.outdated + outcome.resurrected + outcome.missed > 0;
                assert!(!(told && is_hurt && outcome.salvage.is_whole()), "{context}");
                cases += u32::from(is_hurt);
            }
        }
    }
    assert!(cases > 20, "{cases}");
}

#[test]
fn a_missing_record_after_the_checkpoint_leaves_everything_older_in_doubt() {
    let (mut cases, mut hurt) = ([0; 3], 0);
    for sample in samples().filter(|sample| !sample.life.closed) {
        for pba in sample.recent.iter().step_by(1 + sample.recent.len() / 40) {
            let mut device = sample.device.clone();
            let content = block(&device, *pba);
            let view = RecordView::decode(&content, &sample.superblock.store, Pba(*pba));
            let header = view.expect("it is intact").header();
            let sequence = header.sequence;
            device.write(Pba(*pba), &[ZERO]);
            // With its payload whole it would be rebuilt from what the next header tells of it.
            if header.payload_size == 0 {
                continue;
            }
            if header.scattered.is_none() {
                device.corrupt(Pba(*pba).plus(1), 0);
            }
            let context = format!("{:?} zeroed {pba}, sequence {sequence}", sample.life);
            let size = device.size();
            let (outcome, told) = sample.assess(&device, size, &context).expect("a superblock");
            if told && sequence <= sample.attested {
                let salvage = &outcome.salvage;
                assert!(!salvage.is_whole(), "{context}");
                assert_eq!(salvage.records_missing, 1, "{context} {salvage:?}");
                cases[sample.life.config.reclaim as usize] += 1;
                hurt += u32::from(outcome.outdated > 0);
            }
        }
    }
    assert!(cases.iter().all(|cases| *cases > 5), "{cases:?}");
    assert!(hurt > 10, "{hurt}");
}

#[test]
fn an_older_valid_header_is_not_taken_for_the_one_that_was_written_last() {
    let (mut cases, mut doubted) = (0, 0);
    for sample in samples() {
        let store = sample.superblock.store;
        for once in &sample.snapshots {
            let older = sample.headers.iter().filter(|pba| {
                let before = block(once, **pba);
                let is_header = RecordView::decode(&before, &store, Pba(**pba)).is_ok();
                is_header && before != block(&sample.device, **pba)
            });
            for pba in older.take(25) {
                let mut device = sample.device.clone();
                device.write(Pba(*pba), &[block(once, *pba)]);
                let context = format!("{:?} older header at {pba}", sample.life);
                let size = device.size();
                let (outcome, _) = sample.assess(&device, size, &context).expect("a superblock");
                cases += 1;
                doubted += u32::from(!outcome.salvage.is_whole());
            }
        }
    }
    assert!(cases > 100 && doubted > 3, "{doubted} of {cases}");
}

#[test]
fn what_comes_out_of_a_damaged_store_is_right_or_said_to_be_in_doubt() {
    sweep(0..12, 80);
}

#[test]
#[ignore = "minutes; the same with many more stores"]
fn what_comes_out_of_any_damaged_store_is_right_or_said_to_be_in_doubt() {
    sweep(100..160, 200);
}

/// Nothing is lost when a header is damaged that the map does not need.
#[test]
fn a_damaged_header_is_named_and_the_data_that_it_told_of_are_not_called_lost() {
    let mut named = [0; 3];
    for sample in samples().filter(|sample| sample.life.closed) {
        let before = check(&mut sample.device.blocks(), &mut Options::default());
        assert!(before.is_sound());
        let needless = sample.headers.iter().filter(|pba| !sample.recent.contains(pba));
        let needless = needless.collect::<Vec<_>>();
        for pba in needless.iter().step_by(1 + needless.len() / 60) {
            let mut device = sample.device.clone();
            device.write(Pba(**pba), &[ZERO]);
            let mut options = Options { data: true, ..Options::default() };
            let report = check(&mut device.blocks(), &mut options);
            let wrong =
                report.findings.iter().filter(|finding| finding.severity() > Severity::Info);
            for finding in wrong {
                let address = finding.address().map(|pba| pba.0);
                let is_named = address == Some(**pba)
                    && matches!(
                        finding,
                        Finding::RecordMissing { .. }
                            | Finding::ChainBroken { .. }
                            | Finding::ReferenceDamaged { .. }
                            | Finding::CopyDamaged { .. }
                    );
                assert!(is_named, "{:?} header {pba} zeroed: {finding}", sample.life);
                named[sample.life.config.reclaim as usize] += 1;
            }
        }
    }
    assert!(named.iter().all(|named| *named > 10), "{named:?}");
}
