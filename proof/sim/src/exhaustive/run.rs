//! An engine on a device that completes its commands in the order in which they were issued.

use super::ground::{Ground, config, ranges};
use super::{Letter, Scene, change};
use crate::buffers::Memory;
use crate::device::Device;
use crate::oracle::{Operation, Oracle, Part, Violation};
use coulter_engine::{
    Buffers, Change, ChangeKind, Command, Engine, Io, Phase, Request, RequestId, Target,
};
use coulter_format::{BLOCK_SIZE, Block};

/// Error number of a device without space.
const ERRNO_NO_SPACE: i32 = 28;

/// What an answer says.
pub(super) enum Expected {
    /// The operation of this number is complete.
    Operation(u64),
    /// Everything below this number is durable.
    Flush(u64),
}

/// What a write changes in the store, in order.
fn changes(ground: Ground, parts: &[Part]) -> Vec<Change> {
    let kind = |part: &Part| if part.discard { ChangeKind::Discard } else { ChangeKind::Write };
    let of = |part: &Part| {
        let kind = kind(part);
        let ranges = ranges(ground, part.lba, part.count);
        ranges.into_iter().map(move |(lba, count)| change(lba, count as u32, kind))
    };
    parts.iter().flat_map(of).collect()
}

/// An engine that runs on a device in order.
pub(super) struct Run {
    pub(super) ground: Ground,
    pub(super) engine: Engine,
    pub(super) memory: Memory,
    pub(super) device: Device,
    pub(super) oracle: Oracle,
    pub(super) pending: Vec<(Io, Vec<Block>)>,
    pub(super) answers: Vec<(u64, Expected)>,
    pub(super) next: u64,
    pub(super) commands: u64,
    /// Segments for which there is space, if it is short.
    pub(super) room: Option<u64>,
    pub(super) refusals: u64,
}

impl Run {
    /// Begins to open what lies on a scene's device.
    pub(super) fn begin(scene: &Scene, memory: Memory, ground: Ground) -> Run {
        Run {
            ground,
            engine: Engine::open(config(ground), scene.device.size()).expect("there is memory"),
            room: (ground == Ground::WithoutSpace).then_some(0),
            refusals: 0,
            memory,
            device: scene.device.clone(),
            oracle: scene.oracle.clone(),
            pending: Vec::new(),
            answers: Vec::new(),
            next: 0,
            commands: 0,
        }
    }

    /// Takes the engine's commands and answers.
    pub(super) fn poll(&mut self) {
        self.take_commands();
        while let Some(response) = self.engine.poll_response() {
            self.take_response(response.id.0, response.result.is_ok());
        }
    }

    pub(super) fn take_commands(&mut self) {
        while let Some(io) = self.engine.poll_io(&mut self.memory) {
            let data = match io.command {
                Command::Write { count, source, .. } => match source {
                    Target::Record(record) => self.memory.record(record)[..count as usize].to_vec(),
                    Target::RecordPart { record, block } => {
                        self.memory.record(record)[block as usize..][..count as usize].to_vec()
                    }
                    Target::Page(page) => vec![*self.memory.page(page)],
                    Target::Request { .. } => panic!("host buffers are never written from"),
                },
                _ => Vec::new(),
            };
            self.pending.push((io, data));
        }
    }

    fn take_response(&mut self, id: u64, succeeded: bool) {
        let index = self.answers.iter().position(|(asked, _)| *asked == id);
        let (_, expected) = self.answers.swap_remove(index.expect("an answer to a request"));
        assert!(succeeded, "a request failed");
        match expected {
            Expected::Operation(number) => self.oracle.complete(number),
            Expected::Flush(prefix) => self.oracle.durable_up_to(prefix),
        }
    }

    /// The oldest command completes. False if none is out.
    pub(super) fn turn(&mut self) -> bool {
        self.poll();
        if self.pending.is_empty() {
            return self.wins_space();
        }
        self.complete_oldest();
        self.poll();
        true
    }

    /// Whether the command that completes next is a read.
    pub(super) fn reads_next(&self) -> bool {
        let next = self.pending.first();
        next.is_some_and(|(io, _)| matches!(io.command, Command::Read { .. }))
    }

    /// Somebody else makes room for one more segment, if the engine lacks it.
    fn wins_space(&mut self) -> bool {
        let lacks_space = self.engine.lacks_space();
        if let Some(room) = self.room.as_mut().filter(|_| lacks_space) {
            *room += 1;
            self.engine.try_for_space();
        }
        lacks_space
    }

    pub(super) fn complete_oldest(&mut self) {
        let (io, data) = self.pending.remove(0);
        let mut result = Ok(());
        match io.command {
            Command::Read { pba, count, target } => match target {
                Target::Record(record) => {
                    let into = &mut self.memory.record_mut(record)[..count as usize];
                    self.device.read(pba, into);
                }
                Target::RecordPart { record, block } => {
                    let range = block as usize..(block + count) as usize;
                    self.device.read(pba, &mut self.memory.record_mut(record)[range]);
                }
                Target::Page(page) => {
                    self.device.read(pba, std::slice::from_mut(self.memory.page_mut(page)));
                }
                Target::Request { buffer, block } => {
                    let range = block as usize..(block + count) as usize;
                    self.device.read(pba, &mut self.memory.host_mut(buffer)[range]);
                }
            },
            Command::Write { pba, .. } => self.device.write(pba, &data),
            Command::Flush => self.device.flush_all(),
            Command::Discard { pba, count } => self.device.discard(pba, count),
            Command::Prepare { .. } => {
                let left = self.room.expect("only what lacks space is prepared").checked_sub(1);
                result = left.map(|_| ()).ok_or(ERRNO_NO_SPACE);
                self.refusals += u64::from(result.is_err());
                self.room = Some(left.unwrap_or(0));
            }
        }
        self.commands += 1;
        self.engine.handle_completion(io.id, result, &mut self.memory);
    }

    /// Writes what is too long for holes until some have been reserved by a durable checkpoint.
    pub(super) fn reserve_holes(&mut self) {
        while self.turn() {}
        let checkpoints = self.engine.statistics().checkpoints;
        for round in 0.. {
            assert!(round < 100, "checkpoints are written");
            assert!(self.submit(Letter::WriteLong), "a store at rest takes a write");
            while self.turn() {}
            if self.engine.statistics().checkpoints >= checkpoints + 2 {
                return;
            }
        }
    }

    /// Asks for a shutdown, once, when all else was answered.
    pub(super) fn shut_down(&mut self) {
        if self.engine.phase() == Phase::Running && self.answers.is_empty() {
            self.next += 1;
            let everything = Expected::Flush(self.oracle.completed_prefix());
            self.answers.push((self.next, everything));
            let id = RequestId(self.next);
            let taken = self.engine.handle_request(id, Request::Shutdown, &mut self.memory);
            assert!(taken.is_ok(), "a shutdown is always taken");
        }
    }

    /// Offers a letter; false if the engine is busy.
    pub(super) fn submit(&mut self, letter: Letter) -> bool {
        self.next += 1;
        let id = RequestId(self.next);
        let number = self.oracle.next_number();
        let parts = letter.parts(self.ground);
        let changes = changes(self.ground, &parts);
        let stored = parts.iter().filter(|part| !part.discard);
        let blocks = stored.flat_map(|part| part.lba..part.lba + part.count);
        let blocks: Vec<_> = blocks.map(|lba| content(lba, number)).collect();
        let buffer = (!blocks.is_empty()).then(|| self.memory.add_host(blocks));
        let request = match (letter, changes.as_slice()) {
            (Letter::Flush, _) | (_, []) => Request::Flush,
            (Letter::Discard, [change, ..]) => {
                Request::Discard { lba: change.lba, count: change.count.into(), fua: false }
            }
            (_, [_, _, ..]) => Request::WriteMany {
                changes: &changes,
                buffer: buffer.expect("it has data"),
                fua: false,
            },
            (_, [change]) => Request::Write {
                lba: change.lba,
                count: change.count,
                buffer: buffer.expect("it has data"),
                fua: false,
            },
        };
        let taken = self.engine.handle_request(id, request, &mut self.memory).is_ok();
        if let Some(buffer) = buffer {
            self.memory.take_host(buffer);
        }
        if taken {
            let expected = match letter {
                Letter::Flush => Expected::Flush(self.oracle.completed_prefix()),
                _ => Expected::Operation(self.oracle.accept(Operation { parts })),
            };
            self.answers.push((id.0, expected));
        }
        taken
    }
}

/// What a write of this number stores at this address.
pub(super) fn content(lba: u64, number: u64) -> Block {
    let mut block = [0; BLOCK_SIZE];
    block[..8].copy_from_slice(&lba.to_le_bytes());
    block[8..16].copy_from_slice(&number.to_le_bytes());
    block[BLOCK_SIZE - 8..].copy_from_slice(&(lba ^ number).to_le_bytes());
    block
}

/// The number of the write that stored this block at this address; zero if none did.
pub(super) fn number_of(lba: u64, block: &Block) -> Result<u64, Violation> {
    let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
    let number = word(8);
    if number == 0 && *block == [0; BLOCK_SIZE] {
        return Ok(0);
    }
    if *block != content(lba, number) {
        return Err(Violation { what: format!("block {lba} holds wrong bytes") });
    }
    Ok(number)
}
