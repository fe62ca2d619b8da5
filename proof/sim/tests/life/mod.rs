//! Stores that have lived, what is in them, and what salvage takes out of them.
#![allow(dead_code, unreachable_pub, reason = "each test program uses some of it")]

pub mod uses;

use coulter_check::ReadBlocks;
use coulter_check::salvage::{Options, Salvage, Sink, State, salvage};
use coulter_engine::reclaim::Reclaim;
use coulter_engine::{Config, Request};
use coulter_format::{BLOCK_SIZE, Block, Lba, Pba};
use coulter_sim::device::Device;
use coulter_sim::hand::{Hand, small, store};
use coulter_sim::random::Random;
use std::io;

/// How a store came to be.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    pub seed: u64,
    pub config: Config,
    pub map: Option<u64>,
    pub closed: bool,
    /// After the last flush one more write follows, to the last block: its header tells what was durable.
    pub attested: bool,
}

impl Life {
    /// Lives of several kinds.
    pub fn all(seeds: std::ops::Range<u64>) -> impl Iterator<Item = Life> {
        seeds.map(|seed| {
            let reference_blocks = if seed.is_multiple_of(3) { 8 } else { u32::MAX };
            let reclaim = if seed % 4 == 1 { Reclaim::Threaded } else { Reclaim::default() };
            let config = Config { reference_blocks, reclaim, ..small() };
            Life { seed, config, map: None, closed: seed.is_multiple_of(2), attested: false }
        })
    }

    /// The store, and what each of its blocks holds.
    pub fn live(&self) -> (Device, Vec<u8>) {
        let (device, content, _) = self.live_on();
        (device, content)
    }

    /// The same, and how the device was on the way.
    pub fn live_on(&self) -> (Device, Vec<u8>, Vec<Device>) {
        let mut snapshots = Vec::new();
        let mut random = Random::new(self.seed);
        let mut hand = Hand::open(store(40, 1024, None, self.map, 8), self.config);
        let size = hand.engine.geometry().volume_size;
        for round in 0..3 {
            for _ in 0..500 + random.below(500) {
                self.step(&mut hand, size, &mut random);
            }
            while !hand.out.is_empty() {
                hand.run();
            }
            snapshots.push(hand.device.clone());
            if round < 2 && random.chance(50) {
                // Killed: what is out is lost.
                hand.device.flush_all();
                hand = Hand::open(hand.device, self.config);
            }
        }
        assert_eq!(hand.flush(), Some(Ok(())));
        snapshots.push(hand.device.clone());
        if self.attested {
            assert!(hand.write(size - 1, 1, 1 + random.below(255) as u8), "it is taken");
        }
        if self.closed {
            hand.submit(Request::Shutdown).expect("it is always taken");
            hand.run();
        }
        hand.device.flush_all();
        hand.device.check().expect("it is sound");
        let device = hand.device.clone();
        let mut hand = Hand::open(hand.device, self.config);
        let read = |lba| hand.read(lba).expect("an answer").expect("it is sound");
        let content = (0..size).map(read).collect();
        (device, content, snapshots)
    }

    /// A request or two, some of which go on while others come.
    fn step(&self, hand: &mut Hand, size: u64, random: &mut Random) {
        let count = if random.chance(20) { 1 + random.below(60) } else { 1 };
        // Half of what is written goes to a fifth of the volume.
        let range = if random.chance(50) { size / 5 } else { size };
        let lba = random.below(range - count);
        if random.chance(3) {
            let (lba, count) = match random.chance(30) {
                true => (lba / 512 * 512, 512),
                false => (lba, count),
            };
            hand.submit(Request::Discard {
                lba: Lba(lba),
                count: count.min(size - lba),
                fua: false,
            });
        } else {
            hand.try_write(lba, count as u32, 1 + random.below(255) as u8);
        }
        hand.poll();
        while !hand.out.is_empty() && (hand.out.len() > 6 || random.chance(60)) {
            hand.complete(random.below(hand.out.len() as u64) as usize, Ok(()));
            hand.poll();
        }
    }
}

/// The first byte of each block; that all others are the same is compared.
pub struct Bytes(Vec<Option<u8>>);

impl Sink for Bytes {
    fn block(&mut self, lba: Lba, content: &Block) -> io::Result<()> {
        assert!(content.iter().all(|byte| *byte == content[0]), "a block of some write");
        let before = self.0[lba.0 as usize].replace(content[0]);
        assert_eq!(before, None, "host block {} comes once", lba.0);
        Ok(())
    }
}

/// What came out of a store, compared with what was in it.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Blocks that are not as they were, though nothing says so.
    pub silent: u64,
    /// Blocks that were found, and are not as they were: those that had been unmapped, and others.
    pub resurrected: u64,
    pub outdated: u64,
    /// Blocks that are lost, and held something.
    pub missed: u64,
    pub salvage: Salvage,
    /// Of each block, whether it is as it was, or said not to be.
    right: Vec<bool>,
}

impl Outcome {
    /// Whether a block is as it was, or said not to be.
    pub fn is_right(&self, lba: u64) -> bool {
        self.right[lba as usize]
    }
}

pub fn outcome(device: &Device, expected: &[u8], events_max: usize) -> Outcome {
    outcome_of(&mut device.blocks(), expected, events_max)
}

/// The same of whatever has blocks.
pub fn outcome_of(blocks: &mut impl ReadBlocks, expected: &[u8], events_max: usize) -> Outcome {
    let mut bytes = Bytes(vec![None; expected.len()]);
    let mut options = Options { events_max, ..Options::default() };
    let salvage = salvage(blocks, &mut bytes, &mut options).expect("a superblock");
    let mut outcome = Outcome::default();
    let mut states = vec![None; expected.len()];
    for range in &salvage.ranges {
        states[range.lba as usize..][..range.blocks as usize].fill(Some(range.state));
    }
    for ((found, expected), state) in bytes.0.iter().zip(expected).zip(states) {
        let is_same = found.unwrap_or(0) == *expected;
        outcome.right.push(is_same || state.is_some());
        match state {
            None => outcome.silent += u64::from(!is_same),
            Some(State::Found) if *expected == 0 => outcome.resurrected += u64::from(!is_same),
            Some(State::Found | State::Unknown) => outcome.outdated += u64::from(!is_same),
            Some(State::Lost) => {
                assert_eq!(*found, None);
                outcome.missed += u64::from(*expected != 0);
            }
        }
    }
    outcome.salvage = salvage;
    outcome
}

pub fn damage(device: &Device, places: &[u32]) -> Device {
    let mut device = device.clone();
    for place in places {
        (0..BLOCK_SIZE).step_by(512).for_each(|byte| device.corrupt(Pba(*place), byte));
    }
    device.flush_all();
    device
}

pub fn newest_superblock(device: &Device) -> coulter_format::superblock::Superblock {
    let mut blocks = [[0; BLOCK_SIZE]];
    let read = |pba: u32| {
        device.read(Pba(pba), &mut blocks);
        coulter_format::superblock::Superblock::decode(&blocks[0]).ok()
    };
    [0, 128]
        .into_iter()
        .filter_map(read)
        .max_by_key(|found| found.generation)
        .expect("a superblock")
}
