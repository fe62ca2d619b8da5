//! The world's device: commands take their time, complete in any order, and fail as the plan says.

use super::space::ERRNO_NO_SPACE;
use super::{ERRNO_IO, Pending, World};
use coulter_engine::{Buffers, Command, Io, IoResult, Prepare, Target};
use coulter_format::Block;
use std::rc::Rc;

/// Faults that wait for their command.
#[derive(Default)]
pub(super) struct Armed {
    pub(super) read_error: Option<u64>,
    pub(super) write_error: Option<u64>,
    pub(super) flush_error: Option<u64>,
    pub(super) forgets: Option<u64>,
    pub(super) forgets_later: Option<u64>,
    pub(super) lost: Option<u64>,
    pub(super) misdirected: Option<u64>,
}

/// Counts a fault down; true when it is its turn.
fn strikes(fault: &mut Option<u64>) -> bool {
    match fault {
        Some(0 | 1) => {
            *fault = None;
            true
        }
        Some(left) => {
            *left -= 1;
            false
        }
        None => false,
    }
}

pub(super) fn mix(sum: u64, word: u64) -> u64 {
    (sum ^ word).wrapping_mul(0x100_0000_01b3).rotate_left(17)
}

impl World {
    /// Carries a command out; `data` is what it writes.
    pub(super) fn execute(
        &mut self,
        io: &Io,
        data: Vec<Option<Rc<Block>>>,
        flush_mark: usize,
    ) -> IoResult {
        match io.command {
            Command::Read { pba, count, target } => {
                if strikes(&mut self.armed.read_error) {
                    return self.fails("a read");
                }
                match target {
                    Target::Record(record) => {
                        let into = &mut self.memory.record_mut(record)[..count as usize];
                        self.device.read(pba, into);
                    }
                    Target::RecordPart { record, block } => {
                        let range = block as usize..(block + count) as usize;
                        self.device.read(pba, &mut self.memory.record_mut(record)[range]);
                    }
                    Target::Page(page) => {
                        let into = std::slice::from_mut(self.memory.page_mut(page));
                        self.device.read(pba, into);
                    }
                    Target::Request { buffer, block } => {
                        let range = block as usize..(block + count) as usize;
                        self.device.read(pba, &mut self.memory.host_mut(buffer)[range]);
                    }
                }
            }
            Command::Write { pba, .. } => {
                if strikes(&mut self.armed.write_error) {
                    if self.random.chance(50) {
                        self.device.write_shared(pba, data);
                    }
                    return self.fails("a write");
                }
                if strikes(&mut self.armed.lost) {
                    self.tainted = true;
                    self.note(|_| format!("the write to {} never arrives", pba.0));
                    return Ok(());
                }
                let mut place = pba;
                if strikes(&mut self.armed.misdirected) {
                    self.tainted = true;
                    let room = self.device.size() - data.len() as u64;
                    place.0 = self.random.below(room) as u32;
                    self.note(|_| format!("the write to {} goes to {}", pba.0, place.0));
                }
                self.space.assert_has(pba);
                self.device.write_shared(place, data);
            }
            Command::Flush => {
                if strikes(&mut self.armed.flush_error) {
                    return self.fails("a flush");
                }
                let now = strikes(&mut self.armed.forgets);
                if now || strikes(&mut self.armed.forgets_later) {
                    self.forget(now);
                    return self.fails("a flush, with what it should have covered,");
                }
                let durable = self.device.flush(flush_mark);
                // Later flushes counted the writes that are durable now.
                for other in &mut self.pending {
                    other.flush_mark = other.flush_mark.saturating_sub(durable);
                }
            }
            Command::Discard { pba, count } => {
                self.space.free(pba);
                self.device.discard(pba, count);
            }
            Command::Prepare { pba, count } => {
                if !self.space.allocate(pba) {
                    self.note(|_| format!("no space for {} +{count}", pba.0));
                    return Err(ERRNO_NO_SPACE);
                }
                if self.shape.prepare == Prepare::Blocks {
                    self.device.write_shared(pba, vec![None; count as usize]);
                }
            }
        }
        Ok(())
    }

    /// The device gives up writes that no flush has covered; reads show that now, or when the engine has
    /// ended.
    fn forget(&mut self, now: bool) {
        self.device.doom(&mut self.random);
        self.lossless = false;
        if now {
            self.device.forget_doomed();
            self.forgotten = true;
        }
    }

    fn fails(&mut self, what: &str) -> IoResult {
        self.failed = true;
        self.note(|_| format!("{what} fails"));
        Err(ERRNO_IO)
    }

    /// Takes the engine's commands.
    pub(super) fn poll(&mut self) {
        while let Some(io) = self.engine.as_mut().expect("open").poll_io(&mut self.memory) {
            let mut flush_mark = 0;
            let data = match io.command {
                Command::Write { count, source, .. } => {
                    let blocks = match source {
                        Target::Record(record) => &self.memory.record(record)[..count as usize],
                        Target::RecordPart { record, block } => {
                            &self.memory.record(record)[block as usize..][..count as usize]
                        }
                        Target::Page(page) => std::slice::from_ref(self.memory.page(page)),
                        Target::Request { .. } => {
                            panic!("only whole records and pages are written from")
                        }
                    };
                    blocks.iter().map(|block| Some(Rc::new(*block))).collect()
                }
                Command::Flush => {
                    flush_mark = self.device.flush_mark();
                    Vec::new()
                }
                _ => Vec::new(),
            };
            self.fingerprint(&io, &data);
            self.note(|_| story_of(&io));
            let due_ns = self.now_ns + self.delay(&io);
            self.pending.push(Pending { due_ns, io, data, flush_mark });
        }
        self.assert_invariants();
    }

    /// How long a command takes: 20 µs to 1 ms and the time for its bytes, now and then fifty times that.
    fn delay(&mut self, io: &Io) -> u64 {
        let bytes = match io.command {
            Command::Read { count, .. } | Command::Write { count, .. } => u64::from(count) * 1_000,
            Command::Flush => 200_000,
            Command::Discard { .. } | Command::Prepare { .. } => 50_000,
        };
        let base = 20_000 + self.random.below(1_000_000) + bytes;
        if self.random.chance(2) { 50 * base } else { base }
    }

    fn fingerprint(&mut self, io: &Io, data: &[Option<Rc<Block>>]) {
        let (kind, pba, count) = match io.command {
            Command::Read { pba, count, .. } => (1, pba.0, count),
            Command::Write { pba, count, .. } => (2, pba.0, count),
            Command::Flush => (3, 0, 0),
            Command::Discard { pba, count } => (4, pba.0, count),
            Command::Prepare { pba, count } => (5, pba.0, count),
        };
        let word = kind << 60 | u64::from(pba) << 16 | u64::from(count & 0xffff);
        let mut sum = mix(self.outcome.fingerprint, word);
        // A header holds the checksums of its payload, so the first bytes of a block tell enough.
        for block in data.iter().flatten() {
            let (words, _) = block[..32].as_chunks::<8>();
            sum = words.iter().fold(sum, |sum, word| mix(sum, u64::from_le_bytes(*word)));
        }
        self.outcome.fingerprint = sum;
    }
}

fn story_of(io: &Io) -> String {
    match io.command {
        Command::Read { pba, count, target } => format!("  read  {} +{count} -> {target:?}", pba.0),
        Command::Write { pba, count, .. } => format!("  write {} +{count}", pba.0),
        Command::Flush => "  flush".to_owned(),
        Command::Discard { pba, count } => format!("  trim  {} +{count}", pba.0),
        Command::Prepare { pba, count } => format!("  prepare {} +{count}", pba.0),
    }
}
