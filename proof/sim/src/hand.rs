//! A store in hand, and every completion too: device commands stay out until a test lets them
//! complete, in whichever order and with whatever result it likes.
use crate::buffers::Memory;
use crate::device::Device;
use coulter_engine::create::{CreateOptions, create};
use coulter_engine::{
    Buffers, Command, Config, Engine, Failure, Io, IoResult, Request, RequestId, Target,
};
use coulter_format::{BLOCK_SIZE, Block, Lba, Pba, StoreId};
use std::collections::{BTreeMap, BTreeSet};

/// The engine, its device, and what is between them.
pub struct Hand {
    /// The device.
    pub device: Device,
    /// The engine.
    pub engine: Engine,
    /// Its buffers.
    pub memory: Memory,
    /// Commands that are out, with the data of writes.
    pub out: Vec<(Io, Vec<Block>)>,
    /// Answers by request.
    pub answers: BTreeMap<u64, Result<(), Failure>>,
    /// Blocks that cannot be read: [`Hand::run`] fails every read of them.
    pub unreadable: BTreeSet<Pba>,
    next: u64,
}

/// An empty store of 1 MiB segments.
pub fn store(
    segments: u64,
    journal: u32,
    volume: Option<u64>,
    map: Option<u64>,
    runs: u32,
) -> Device {
    store_of(segments, 256, journal, volume, map, runs)
}

/// An empty store of segments of so many blocks.
pub fn store_of(
    segments: u64,
    segment_blocks: u32,
    journal: u32,
    volume: Option<u64>,
    map: Option<u64>,
    runs: u32,
) -> Device {
    let device_size = u64::from(segment_blocks) * (segments + 1);
    store_like(&CreateOptions {
        volume_size: volume,
        segment_blocks,
        map_size: map,
        journal_size: Some(journal),
        run_count_limit: Some(runs),
        ..small_options(device_size)
    })
}

/// Options of a small store on a device of so many blocks: segments of 1 MiB, the least journal, eight runs.
pub fn small_options(device_size: u64) -> CreateOptions {
    CreateOptions {
        device_size,
        sparse: None,
        volume_size: None,
        segment_blocks: 256,
        spare_percent: 20,
        store: StoreId { uuid: [6; 16], salt: 1 },
        label: [0; 64],
        map_size: None,
        journal_size: Some(1024),
        run_count_limit: Some(8),
        page_blocks: None,
    }
}

/// An empty store of these options.
pub fn store_like(options: &CreateOptions) -> Device {
    let (_, blocks) = create(options).expect("laid out");
    let mut device = Device::new(options.device_size);
    for (pba, block) in blocks {
        device.write(pba, &[block]);
    }
    device.flush_all();
    device
}

impl Hand {
    /// Begins to open.
    pub fn begin(device: Device, config: Config) -> Hand {
        Hand {
            engine: Engine::open(config, device.size()).expect("there is memory"),
            memory: Memory::new(config.record_count, config.page_count),
            device,
            out: vec![],
            answers: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            next: 0,
        }
    }
    /// Opens.
    pub fn open(device: Device, config: Config) -> Hand {
        let mut h = Hand::begin(device, config);
        h.run();
        h
    }
    /// Takes commands and answers out of the engine; completes nothing.
    pub fn poll(&mut self) {
        while let Some(io) = self.engine.poll_io(&mut self.memory) {
            let data = match io.command {
                Command::Write { count, source, .. } => match source {
                    Target::Record(r) => self.memory.record(r)[..count as usize].to_vec(),
                    Target::RecordPart { record, block } => {
                        self.memory.record(record)[block as usize..][..count as usize].to_vec()
                    }
                    Target::Page(p) => vec![*self.memory.page(p)],
                    _ => unreachable!(),
                },
                _ => vec![],
            };
            self.out.push((io, data));
        }
        while let Some(r) = self.engine.poll_response() {
            self.answers.insert(r.id.0, r.result);
        }
    }
    /// Completes the i-th command that is out.
    pub fn complete(&mut self, i: usize, result: IoResult) {
        let (io, data) = self.out.remove(i);
        if result.is_ok() {
            match io.command {
                Command::Read { pba, count, target } => {
                    let mut blocks = vec![[0; BLOCK_SIZE]; count as usize];
                    self.device.read(pba, &mut blocks);
                    match target {
                        Target::Record(r) => {
                            self.memory.record_mut(r)[..blocks.len()].copy_from_slice(&blocks)
                        }
                        Target::RecordPart { record, block } => {
                            let range = block as usize..block as usize + blocks.len();
                            self.memory.record_mut(record)[range].copy_from_slice(&blocks)
                        }
                        Target::Page(p) => *self.memory.page_mut(p) = blocks[0],
                        Target::Request { buffer, block } => {
                            let s = block as usize;
                            self.memory.host_mut(buffer)[s..s + blocks.len()]
                                .copy_from_slice(&blocks)
                        }
                    }
                }
                Command::Write { pba, .. } => self.device.write(pba, &data),
                Command::Flush => self.device.flush_all(),
                // It has space.
                Command::Prepare { .. } => {}
                Command::Discard { pba, count } => {
                    // A device that does what it is asked to.
                    self.device.write(pba, &vec![[0; BLOCK_SIZE]; count as usize]);
                }
            }
        }
        self.engine.handle_completion(io.id, result, &mut self.memory);
    }
    /// Lets everything complete, in order.
    pub fn run(&mut self) {
        loop {
            self.poll();
            if self.out.is_empty() {
                return;
            }
            self.complete(0, self.outcome(0));
        }
    }
    /// How the i-th command that is out ends: with EIO if it reads a block that cannot be read.
    fn outcome(&self, i: usize) -> IoResult {
        match self.out[i].0.command {
            Command::Read { pba, count, .. } => {
                let mut met = self.unreadable.range(pba..pba.plus(count));
                if met.next().is_some() { Err(5) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }
    /// Hands a request over; `None` when busy.
    pub fn submit(&mut self, request: Request) -> Option<u64> {
        self.next += 1;
        self.engine
            .handle_request(RequestId(self.next), request, &mut self.memory)
            .ok()
            .map(|()| self.next)
    }
    /// A write of blocks full of `byte`.
    pub fn write_request(&mut self, lba: u64, count: u32, byte: u8) -> Request<'static> {
        let buffer = self.memory.add_host(vec![[byte; BLOCK_SIZE]; count as usize]);
        Request::Write { lba: Lba(lba), count, buffer, fua: false }
    }
    /// Hands a write over; `None` when busy.
    pub fn try_write(&mut self, lba: u64, count: u32, byte: u8) -> Option<u64> {
        let r = self.write_request(lba, count, byte);
        let id = self.submit(r);
        if let Request::Write { buffer, .. } = r {
            self.memory.take_host(buffer);
        }
        id
    }
    /// Writes; false if the engine stands still.
    pub fn write(&mut self, lba: u64, count: u32, byte: u8) -> bool {
        for _ in 0..4 {
            if let Some(id) = self.try_write(lba, count, byte) {
                self.run();
                return self.answers.remove(&id) == Some(Ok(()));
            }
            self.run();
        }
        false
    }
    /// Reads one block: its first byte. `None` if no answer comes.
    pub fn read(&mut self, lba: u64) -> Option<Result<u8, Failure>> {
        let buffer = self.memory.add_host(vec![[0xee; BLOCK_SIZE]]);
        let id = self.submit(Request::Read { lba: Lba(lba), count: 1, buffer })?;
        self.run();
        let r = self.answers.remove(&id)?;
        let b = self.memory.take_host(buffer)[0];
        Some(r.map(|()| b[0]))
    }
    /// Flushes; `None` if no answer comes.
    pub fn flush(&mut self) -> Option<Result<(), Failure>> {
        let id = self.submit(Request::Flush)?;
        self.run();
        self.answers.remove(&id)
    }
}

/// A small engine.
pub fn small() -> Config {
    Config { record_count: 12, page_count: 16, ..Config::default() }
}
