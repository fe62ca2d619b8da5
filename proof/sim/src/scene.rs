//! A store in hand: one request after the other, every device command in view. For directed tests.

use crate::buffers::Memory;
use crate::device::Device;
use crate::hand::{small_options, store_like};
use coulter_engine::{
    BufferRef, Buffers, Command, Config, Engine, Failure, Io, Phase, Request, RequestId, Target,
};
use coulter_format::{BLOCK_SIZE, Block, Lba, Pba};

/// EIO.
pub const ERRNO_IO: i32 = 5;

/// An engine on a device that completes every command at once and in order.
pub struct Scene {
    /// The device.
    pub device: Device,
    /// The engine.
    pub engine: Engine,
    /// Its buffers.
    pub memory: Memory,
    /// Every device command so far.
    pub commands: Vec<Command>,
    /// The command of this number (from 1) fails, once.
    pub fail_at: Option<usize>,
    next: u64,
}

impl Scene {
    /// An empty store of `segments` segments of 1 MiB, open.
    pub fn new(segments: u64) -> Scene {
        Scene::open(store_like(&small_options(256 * (segments + 1))))
    }

    /// Opens what is on a device.
    ///
    /// # Panics
    /// If it does not open.
    pub fn open(device: Device) -> Scene {
        let scene = Scene::try_open(device, None);
        assert_eq!(scene.engine.phase(), Phase::Running, "the store opens");
        scene
    }

    /// Begins to open what is on a device; a command may fail. See [`Engine::phase`] for how it
    /// went.
    pub fn try_open(device: Device, fail_at: Option<usize>) -> Scene {
        let config = Config { record_count: 12, page_count: 16, ..Config::default() };
        let mut scene = Scene {
            engine: Engine::open(config, device.size()).expect("there is memory"),
            memory: Memory::new(config.record_count, config.page_count),
            device,
            commands: Vec::new(),
            fail_at,
            next: 0,
        };
        scene.run();
        scene
    }

    /// Blocks of the volume.
    pub fn volume_size(&self) -> u64 {
        self.engine.geometry().volume_size
    }

    /// Hands a request over without letting the device do anything. False: the engine is busy.
    pub fn submit(&mut self, request: Request) -> bool {
        self.next += 1;
        self.engine.handle_request(RequestId(self.next), request, &mut self.memory).is_ok()
    }

    /// Lets the device do everything that is asked of it; returns the answers.
    pub fn run(&mut self) -> Vec<Result<(), Failure>> {
        let mut answers = Vec::new();
        loop {
            let mut idle = true;
            while let Some(io) = self.engine.poll_io(&mut self.memory) {
                idle = false;
                self.execute(io);
            }
            while let Some(response) = self.engine.poll_response() {
                idle = false;
                answers.push(response.result);
            }
            if idle {
                return answers;
            }
        }
    }

    fn execute(&mut self, io: Io) {
        self.commands.push(io.command);
        if self.fail_at == Some(self.commands.len()) {
            self.engine.handle_completion(io.id, Err(ERRNO_IO), &mut self.memory);
            return;
        }
        match io.command {
            Command::Read { pba, count, target } => {
                let mut blocks = vec![[0; BLOCK_SIZE]; count as usize];
                self.device.read(pba, &mut blocks);
                self.place(target, &blocks);
            }
            Command::Write { pba, count, source, .. } => {
                let blocks = match source {
                    Target::Record(record) => self.memory.record(record)[..count as usize].to_vec(),
                    Target::RecordPart { record, block } => {
                        self.memory.record(record)[block as usize..][..count as usize].to_vec()
                    }
                    Target::Page(page) => vec![*self.memory.page(page)],
                    Target::Request { .. } => unreachable!("host buffers are never written from"),
                };
                self.device.write(pba, &blocks);
            }
            Command::Flush => self.device.flush_all(),
            Command::Discard { .. } | Command::Prepare { .. } => {}
        }
        self.engine.handle_completion(io.id, Ok(()), &mut self.memory);
    }

    fn place(&mut self, target: Target, blocks: &[Block]) {
        match target {
            Target::Record(record) => {
                self.memory.record_mut(record)[..blocks.len()].copy_from_slice(blocks);
            }
            Target::RecordPart { record, block } => {
                let range = block as usize..block as usize + blocks.len();
                self.memory.record_mut(record)[range].copy_from_slice(blocks);
            }
            Target::Page(page) => *self.memory.page_mut(page) = blocks[0],
            Target::Request { buffer, block } => {
                let range = block as usize..block as usize + blocks.len();
                self.memory.host_mut(buffer)[range].copy_from_slice(blocks);
            }
        }
    }

    /// A request that writes `count` blocks full of `byte`; the buffer is the caller's to take.
    pub fn write_request(&mut self, lba: u64, count: u32, byte: u8) -> Request<'static> {
        let buffer: BufferRef = self.memory.add_host(vec![[byte; BLOCK_SIZE]; count as usize]);
        Request::Write { lba: Lba(lba), count, buffer, fua: false }
    }

    /// Writes `count` blocks full of `byte`, from start to end.
    pub fn write(&mut self, lba: u64, count: u32, byte: u8) {
        let request = self.write_request(lba, count, byte);
        while !self.submit(request) {
            self.run();
        }
        assert!(self.run().iter().all(Result::is_ok), "the write succeeds");
    }

    /// Reads one block: its first byte, or why not.
    pub fn try_read(&mut self, lba: u64) -> Result<u8, Failure> {
        let buffer = self.memory.add_host(vec![[0xee; BLOCK_SIZE]]);
        assert!(self.submit(Request::Read { lba: Lba(lba), count: 1, buffer }), "accepted");
        let answers = self.run();
        let block = self.memory.take_host(buffer)[0];
        answers.into_iter().next().expect("an answer").map(|()| block[0])
    }

    /// Reads `count` blocks: the first byte of each, and which device blocks were read.
    pub fn read(&mut self, lba: u64, count: u32) -> (Vec<u8>, Vec<(Pba, u32)>) {
        let buffer = self.memory.add_host(vec![[0xee; BLOCK_SIZE]; count as usize]);
        let before = self.commands.len();
        assert!(self.submit(Request::Read { lba: Lba(lba), count, buffer }), "a read is accepted");
        assert!(self.run().iter().all(Result::is_ok), "the read succeeds");
        let blocks = self.memory.take_host(buffer);
        let uniform = blocks.iter().all(|block| block.iter().all(|byte| *byte == block[0]));
        assert!(uniform, "a block shows one write, not a mixture");
        let reads = self.commands[before..].iter().filter_map(|command| match command {
            Command::Read { pba, count, target: Target::Request { .. } } => Some((*pba, *count)),
            _ => None,
        });
        (blocks.iter().map(|block| block[0]).collect(), reads.collect())
    }
}
