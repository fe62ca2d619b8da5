//! The world: an engine, a device, random requests, power cuts.

use crate::buffers::Memory;
use crate::device::{Device, Loss};
use crate::oracle::{Floor, Operation, Oracle, Violation};
use crate::random::Random;
use coulter_engine::create::{CreateOptions, create};
use coulter_engine::{
    BufferRef, Command, Config, Engine, Io, IoId, Phase, Request, RequestId, Target,
};
use coulter_format::{BLOCK_SIZE, Block, Lba, StoreId};
use std::collections::BTreeMap;

/// What to simulate.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Everything random follows from it.
    pub seed: u64,
    /// Requests between two cuts at most.
    pub requests: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Blocks of the device.
    pub device_size: u64,
    /// Blocks of the volume; `None` for as many as fit.
    pub volume_size: Option<u64>,
    /// Bytes of map memory.
    pub map_size: Option<u64>,
    /// Updates between checkpoints.
    pub journal_size: u32,
    /// Runs alive.
    pub run_count_limit: u32,
    /// Discards in a hundred requests.
    pub discard_percent: u64,
    /// Blocks of a request at most.
    pub request_size_max: u64,
    /// Whether the independent checker looks at the device after every cut.
    pub audit: bool,
}

impl Plan {
    /// A small store on which everything happens often.
    pub fn small(seed: u64) -> Plan {
        Plan {
            seed,
            requests: 3000,
            cuts: 6,
            device_size: 256 * 40,
            volume_size: None,
            map_size: None,
            journal_size: 1024,
            run_count_limit: 4,
            discard_percent: 10,
            request_size_max: 40,
            audit: true,
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Requests accepted.
    pub requests: u64,
    /// Device commands completed.
    pub commands: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Of those, cuts during opening.
    pub cuts_while_opening: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Segments cleaned.
    pub segments_cleaned: u64,
    /// A hash over every device command, to compare two runs.
    pub fingerprint: u64,
}

enum Expected {
    Write(u64),
    Discard(u64),
    Flush(u64),
    Read { lba: u64, buffer: BufferRef, floors: Vec<Floor> },
    Shutdown,
}

struct Pending {
    io: Io,
    data: Vec<Block>,
    flush_mark: usize,
}

/// An engine on a device.
pub struct World {
    plan: Plan,
    random: Random,
    /// The device, for those who want to look at it.
    pub device: Device,
    engine: Option<Engine>,
    memory: Memory,
    oracle: Oracle,
    pending: Vec<Pending>,
    expected: BTreeMap<u64, Expected>,
    next_request: u64,
    volume_size: u64,
    outcome: Outcome,
}

impl World {
    /// A new store.
    pub fn new(plan: Plan) -> World {
        let options = CreateOptions {
            device_size: plan.device_size,
            volume_size: plan.volume_size,
            segment_size: 256,
            spare_percent: 20,
            store: StoreId { uuid: [5; 16], salt: 99 },
            label: [0; 64],
            map_size: plan.map_size,
            journal_size: Some(plan.journal_size),
            run_count_limit: Some(plan.run_count_limit),
        };
        let (superblock, blocks) = create(&options).expect("the plan's store can be laid out");
        let mut device = Device::new(plan.device_size);
        for (pba, block) in blocks {
            device.write(pba, &[block]);
        }
        device.flush_all();
        let volume_size = superblock.geometry.volume_size;
        let config = World::config(&plan);
        World {
            random: Random::new(plan.seed),
            memory: Memory::new(config.record_count, config.page_count),
            oracle: Oracle::new(volume_size),
            device,
            engine: None,
            pending: Vec::new(),
            expected: BTreeMap::new(),
            next_request: 0,
            volume_size,
            outcome: Outcome::default(),
            plan,
        }
    }

    fn config(plan: &Plan) -> Config {
        Config {
            map_size: plan.map_size,
            record_count: 12,
            page_count: 16,
            request_count: 64,
            trim: plan.seed.is_multiple_of(2),
            ..Config::default()
        }
    }

    /// Runs the plan.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn run(mut self) -> Result<Outcome, Violation> {
        for _ in 0..self.plan.cuts {
            let cut_while_opening = self.random.chance(20);
            if cut_while_opening {
                let after = 1 + self.random.below(40);
                self.open(Some(after))?;
                self.audit()?;
                if self.engine.is_none() {
                    self.outcome.cuts_while_opening += 1;
                    continue;
                }
            } else {
                self.open(None)?;
            }
            let requests = 1 + self.random.below(self.plan.requests);
            self.work(requests)?;
            if self.random.chance(10) {
                self.shut_down()?;
            }
            self.cut();
            self.audit()?;
        }
        self.open(None)?;
        self.drain()?;
        Ok(self.outcome)
    }

    /// What lies on the device after a cut must satisfy the independent checker.
    fn audit(&mut self) -> Result<(), Violation> {
        if self.engine.is_some() || !self.plan.audit {
            return Ok(());
        }
        self.device.check().map_err(|what| Violation { what: format!("the checker finds: {what}") })
    }

    /// Opens the store and compares what it holds. With `cut_after`, the power may go first.
    fn open(&mut self, cut_after: Option<u64>) -> Result<(), Violation> {
        let config = World::config(&self.plan);
        self.engine = Some(Engine::open(config, self.plan.device_size));
        let mut steps = 0;
        loop {
            self.poll();
            let engine = self.engine.as_ref().expect("it was just opened");
            if let Phase::Failed(error) = engine.phase() {
                return Err(Violation { what: format!("the store did not open: {error:?}") });
            }
            if engine.phase() == Phase::Running && cut_after.is_none_or(|after| steps < after) {
                break;
            }
            steps += 1;
            if cut_after.is_some_and(|after| steps >= after) {
                self.cut();
                return Ok(());
            }
            if !self.complete_one()? {
                let what = format!("opening stands still: {}", engine_story(&self.engine));
                return Err(Violation { what });
            }
        }
        let observed = self.read_everything()?;
        self.oracle.recover(&observed, false)
    }

    /// Reads the whole volume while nothing else happens.
    fn read_everything(&mut self) -> Result<Vec<u64>, Violation> {
        let mut observed = Vec::with_capacity(self.volume_size as usize);
        let mut lba = 0;
        while lba < self.volume_size {
            let count = (self.volume_size - lba).min(512);
            let buffer = self.memory.add_host(vec![[1; BLOCK_SIZE]; count as usize]);
            let request = Request::Read { lba: Lba(lba), count: count as u32, buffer };
            let engine = self.engine.as_mut().expect("it is open");
            let id = RequestId(u64::MAX);
            engine.handle_request(id, request, &mut self.memory).expect("nothing else is going on");
            let result = loop {
                self.poll_io();
                let engine = self.engine.as_mut().expect("it is open");
                if let Some(response) = engine.poll_response() {
                    break response.result;
                }
                if !self.complete_one()? {
                    return Err(Violation { what: format!("a read of block {lba} hangs") });
                }
            };
            if let Err(failure) = result {
                return Err(Violation { what: format!("reading block {lba}: {failure:?}") });
            }
            for (offset, block) in self.memory.take_host(buffer).iter().enumerate() {
                observed.push(number_of(lba + offset as u64, block)?);
            }
            lba += count;
        }
        Ok(observed)
    }

    fn work(&mut self, requests: u64) -> Result<(), Violation> {
        let eagerness = 20 + self.random.below(70);
        let mut done = 0;
        while done < requests {
            if self.random.chance(eagerness) && self.expected.len() < 48 {
                done += u64::from(self.submit());
            }
            self.poll();
            self.take_responses()?;
            if self.random.chance(60) || self.expected.len() >= 40 {
                let moved = self.complete_one()?;
                self.poll();
                self.take_responses()?;
                if !moved && self.pending.is_empty() && self.expected.len() >= 40 {
                    let what = format!("all stand still: {}", engine_story(&self.engine));
                    return Err(Violation { what });
                }
            }
        }
        Ok(())
    }

    /// Offers one random request. Returns whether it was accepted.
    fn submit(&mut self) -> bool {
        let size = 1 + if self.random.chance(70) {
            0
        } else {
            self.random.below(self.plan.request_size_max)
        };
        let lba = self.random.below(self.volume_size - size + 1);
        let kind = self.random.below(100);
        self.next_request += 1;
        let id = RequestId(self.next_request);
        let (request, expected) = if kind < self.plan.discard_percent {
            let size = if self.random.chance(20) { self.random.below(3000).max(1) } else { size };
            let lba = self.random.below((self.volume_size - size.min(self.volume_size)) + 1);
            let count = size.min(self.volume_size - lba);
            let request = Request::Discard { lba: Lba(lba), count, fua: self.random.chance(10) };
            (request, Expected::Discard(count))
        } else if kind < self.plan.discard_percent + 5 {
            (Request::Flush, Expected::Flush(self.oracle.completed_prefix()))
        } else if kind < self.plan.discard_percent + 20 {
            let buffer = self.memory.add_host(vec![[1; BLOCK_SIZE]; size as usize]);
            let floors = (lba..lba + size).map(|lba| self.oracle.floor(lba)).collect();
            let expected = Expected::Read { lba, buffer, floors };
            (Request::Read { lba: Lba(lba), count: size as u32, buffer }, expected)
        } else {
            let number = self.oracle.next_number();
            let blocks = (lba..lba + size).map(|lba| content(lba, number)).collect();
            let buffer = self.memory.add_host(blocks);
            let fua = self.random.chance(5);
            let request = Request::Write { lba: Lba(lba), count: size as u32, buffer, fua };
            (request, Expected::Write(number))
        };
        let engine = self.engine.as_mut().expect("it is open");
        let accepted = engine.handle_request(id, request, &mut self.memory).is_ok();
        let staged = match request {
            Request::Write { buffer, .. } => Some(buffer),
            Request::Read { buffer, .. } if !accepted => Some(buffer),
            _ => None,
        };
        if let Some(buffer) = staged {
            self.memory.take_host(buffer);
        }
        if !accepted {
            return false;
        }
        self.outcome.requests += 1;
        let expected = match (request, expected) {
            (Request::Discard { lba, count, .. }, _) => {
                let operation = Operation { lba: lba.0, count, discard: true };
                Expected::Discard(self.oracle.accept(operation))
            }
            (Request::Write { lba, count, .. }, Expected::Write(number)) => {
                let operation = Operation { lba: lba.0, count: count.into(), discard: false };
                assert_eq!(self.oracle.accept(operation), number);
                Expected::Write(number)
            }
            (_, expected) => expected,
        };
        self.expected.insert(id.0, expected);
        true
    }

    fn take_responses(&mut self) -> Result<(), Violation> {
        loop {
            let engine = self.engine.as_mut().expect("it is open");
            let Some(response) = engine.poll_response() else { return Ok(()) };
            let expected = self.expected.remove(&response.id.0);
            if let Err(failure) = response.result {
                return Err(Violation { what: format!("a request failed: {failure:?}") });
            }
            match expected.expect("a response answers a request") {
                Expected::Write(number) | Expected::Discard(number) => self.oracle.complete(number),
                Expected::Flush(prefix) => {
                    self.oracle.durable_up_to(prefix);
                    self.oracle.settle();
                }
                Expected::Read { lba, buffer, floors } => {
                    let blocks = self.memory.take_host(buffer);
                    for (lba, (block, floor)) in (lba..).zip(blocks.iter().zip(floors)) {
                        let seen = number_of(lba, block)?;
                        if !self.oracle.allows(lba, floor, seen) {
                            let what = format!("block {lba} read as {seen}, but {floor:?}");
                            return Err(Violation { what });
                        }
                    }
                }
                Expected::Shutdown => {}
            }
        }
    }

    fn shut_down(&mut self) -> Result<(), Violation> {
        self.drain()?;
        self.next_request += 1;
        let id = RequestId(self.next_request);
        self.expected.insert(id.0, Expected::Shutdown);
        let engine = self.engine.as_mut().expect("it is open");
        engine.handle_request(id, Request::Shutdown, &mut self.memory).expect("always taken");
        self.drain()?;
        let prefix = self.oracle.completed_prefix();
        self.oracle.durable_up_to(prefix);
        Ok(())
    }

    /// Lets everything that was begun come to its end.
    fn drain(&mut self) -> Result<(), Violation> {
        let mut idle = 0;
        while !self.expected.is_empty() || !self.pending.is_empty() {
            self.poll();
            self.take_responses()?;
            if !self.complete_one()? {
                idle += 1;
                if idle > 3 {
                    let what = format!("{} requests never end", self.expected.len());
                    return Err(Violation { what });
                }
            } else {
                idle = 0;
            }
        }
        Ok(())
    }

    fn poll(&mut self) {
        self.poll_io();
    }

    fn poll_io(&mut self) {
        loop {
            let engine = self.engine.as_mut().expect("it is open");
            let Some(io) = engine.poll_io(&mut self.memory) else { return };
            let mut flush_mark = 0;
            let data = match io.command {
                Command::Write { count, source, .. } => match source {
                    Target::Record(record) => {
                        use coulter_engine::Buffers;
                        self.memory.record(record)[..count as usize].to_vec()
                    }
                    Target::Page(page) => {
                        use coulter_engine::Buffers;
                        vec![*self.memory.page(page)]
                    }
                    Target::Request { .. } => panic!("host buffers are never written from"),
                },
                Command::Flush => {
                    flush_mark = self.device.flush_mark();
                    Vec::new()
                }
                _ => Vec::new(),
            };
            self.note(&io);
            self.pending.push(Pending { io, data, flush_mark });
        }
    }

    fn note(&mut self, io: &Io) {
        let (kind, pba, count) = match io.command {
            Command::Read { pba, count, .. } => (1, pba.0, count),
            Command::Write { pba, count, .. } => (2, pba.0, count),
            Command::Flush => (3, 0, 0),
            Command::Discard { pba, count } => (4, pba.0, count),
        };
        let word = kind << 60 | u64::from(pba) << 16 | u64::from(count & 0xffff);
        self.outcome.fingerprint =
            (self.outcome.fingerprint ^ word).wrapping_mul(0x100_0000_01b3).rotate_left(17);
    }

    /// Completes one random device command. False if none is out.
    fn complete_one(&mut self) -> Result<bool, Violation> {
        if self.pending.is_empty() {
            return Ok(false);
        }
        let index = self.random.below(self.pending.len() as u64) as usize;
        let Pending { io, data, flush_mark } = self.pending.swap_remove(index);
        self.outcome.commands += 1;
        match io.command {
            Command::Read { pba, count, target } => {
                let mut blocks = vec![[0; BLOCK_SIZE]; count as usize];
                self.device.read(pba, &mut blocks);
                self.place(target, &blocks);
            }
            Command::Write { pba, .. } => self.device.write(pba, &data),
            Command::Flush => {
                self.device.flush(flush_mark);
                // Later flushes counted the writes that are durable now.
                for other in &mut self.pending {
                    other.flush_mark = other.flush_mark.saturating_sub(flush_mark);
                }
            }
            Command::Discard { .. } => {}
        }
        self.finish(io.id);
        Ok(true)
    }

    fn finish(&mut self, id: IoId) {
        let engine = self.engine.as_mut().expect("it is open");
        engine.handle_completion(id, Ok(()), &mut self.memory);
    }

    fn place(&mut self, target: Target, blocks: &[Block]) {
        use coulter_engine::Buffers;
        match target {
            Target::Record(record) => {
                self.memory.record_mut(record)[..blocks.len()].copy_from_slice(blocks);
            }
            Target::Page(page) => *self.memory.page_mut(page) = blocks[0],
            Target::Request { buffer, block } => {
                let start = block as usize;
                self.memory.host_mut(buffer)[start..start + blocks.len()].copy_from_slice(blocks);
            }
        }
    }

    /// Cuts the power: writes under way may land in part or not at all.
    fn cut(&mut self) {
        if let Some(engine) = self.engine.take() {
            let statistics = engine.statistics();
            self.outcome.checkpoints += statistics.checkpoints;
            self.outcome.segments_cleaned += statistics.segments_cleaned;
        }
        self.outcome.cuts += 1;
        for Pending { io, data, .. } in std::mem::take(&mut self.pending) {
            if let Command::Write { pba, .. } = io.command
                && self.random.chance(60)
            {
                self.device.write(pba, &data);
            }
        }
        let loss = match self.random.below(6) {
            0 => Loss::Nothing,
            1 => Loss::Everything,
            2 | 3 => Loss::SomeWrites,
            4 => Loss::SomeBlocks,
            _ => Loss::SomeSectors,
        };
        self.device.cut(loss, &mut self.random);
        self.expected.clear();
        let config = World::config(&self.plan);
        self.memory = Memory::new(config.record_count, config.page_count);
    }
}

/// A block that says where and by which write it was made.
fn content(lba: u64, number: u64) -> Block {
    let mut block = [0; BLOCK_SIZE];
    block[..8].copy_from_slice(&lba.to_le_bytes());
    block[8..16].copy_from_slice(&number.to_le_bytes());
    block[BLOCK_SIZE - 8..].copy_from_slice(&(lba ^ number).to_le_bytes());
    block
}

/// The number of the write that a block came from; zero for an unmapped one.
fn number_of(lba: u64, block: &Block) -> Result<u64, Violation> {
    if block.iter().all(|byte| *byte == 0) {
        return Ok(0);
    }
    let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
    let number = word(8);
    if *block != content(word(0), number) || word(0) != lba {
        let what = format!("block {lba} holds wrong bytes: of block {}, write {number}", word(0));
        return Err(Violation { what });
    }
    Ok(number)
}

/// What an engine that stands still can tell.
fn engine_story(engine: &Option<Engine>) -> String {
    engine.as_ref().map_or_else(String::new, |engine| {
        format!("{:?}, {} under way, {:?}", engine.phase(), engine.activity(), engine.statistics())
    })
}
