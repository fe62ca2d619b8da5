//! Many operations at once on a file system that is nearly full, with its free space in pieces.

use super::{Mount, Random};
use coulter::buffer::Buffer;
use coulter_files::{AllocateMode, BLOCK_SIZE, Changes, Reply, Request, read_span};

const SIZE: u64 = BLOCK_SIZE as u64;
const VOLUME_BLOCKS: u64 = 4096;
/// Blocks of the file that is read all the time.
const KNOWN_BLOCKS: u64 = 256;
/// Free blocks that are left, about.
const FREE_BLOCKS: u64 = 150;
const WRITERS: usize = 4;

fn known_byte(at: u64) -> u8 {
    (at / 7 + at / SIZE) as u8 | 1
}

fn known(offset: u64, length: usize) -> Vec<u8> {
    (offset..offset + length as u64).map(known_byte).collect()
}

/// A file system of which all is taken but single blocks and pairs, and the file to read.
fn nearly_full(random: &mut Random, seed: u64) -> (Mount, u64) {
    let mut mount = Mount::new(VOLUME_BLOCKS, 300, seed);
    let file = mount.create("known").expect("room");
    mount.write(file, 0, &known(0, (KNOWN_BLOCKS * SIZE) as usize)).expect("room");
    fragmented(&mut mount, random, FREE_BLOCKS);
    mount.sync();
    mount.settle();
    (mount, file)
}

/// Takes all that is free, and frees single blocks and pairs until about this number is free.
pub fn fragmented(mount: &mut Mount, random: &mut Random, free_blocks: u64) {
    let filler = mount.create("filler").expect("room");
    let mut end = 0;
    while mount.write(filler, end, &[0x5a; 16 * BLOCK_SIZE]).is_ok() {
        end += 16 * SIZE;
    }
    let (mut at, mut freed) = (0, 0);
    while freed < free_blocks {
        let length = 1 + random.below(3);
        let (offset, mode) = (at * SIZE, AllocateMode::Punch);
        let request = Request::Allocate { inode: filler, offset, length: length * SIZE, mode };
        mount.run(request).expect("punched");
        at += length + 1 + random.below(2);
        freed += length;
    }
}

/// The request that is out for a writer.
enum Stage {
    Idle,
    /// Of this byte, up to this end.
    Writes(u64, u8, u64),
    /// The last bytes, which have to be this one.
    Reads(u64, u8),
    Empties(u64),
}

/// A file that is written in many steps, read and made empty, again and again.
pub struct Writer {
    file: u64,
    stage: Stage,
    /// Writes have failed: reads may give what was there before.
    pub is_blind: bool,
}

impl Writer {
    pub fn new(file: u64) -> Writer {
        Writer { file, stage: Stage::Idle, is_blind: false }
    }

    pub fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle)
    }

    pub fn file(&self) -> u64 {
        self.file
    }

    /// Begins a write, if nothing is out.
    pub fn begin(&mut self, mount: &mut Mount, random: &mut Random) {
        if !matches!(self.stage, Stage::Idle) {
            return;
        }
        let length = (160 << 10) + random.below(240 << 10);
        let byte = random.bits() as u8 | 1;
        let buffer = Buffer::copied_from(&vec![byte; length as usize]);
        let (inode, offset) = (self.file, random.below(3) * 700);
        let sync = random.chance(20);
        let request = Request::Write { inode, offset, buffer, kills_privileges: true, sync };
        self.stage = Stage::Writes(mount.submit(request), byte, offset + length);
    }

    /// Takes an answer, if there is one, and goes on; true if there was no room.
    pub fn go_on(&mut self, mount: &mut Mount) -> bool {
        let (Stage::Writes(request, ..) | Stage::Reads(request, _) | Stage::Empties(request)) =
            self.stage
        else {
            return false;
        };
        let Some(answer) = mount.answer(request) else { return false };
        let is_full = answer.as_ref().err() == Some(&libc::ENOSPC);
        let inode = self.file;
        match self.stage {
            Stage::Writes(_, byte, end) if answer.is_ok() => {
                let (offset, length) = (end - 5000, 5000);
                let buffer = Buffer::zeroed(read_span(offset, length));
                let request = Request::Read { inode, offset, length, buffer };
                self.stage = Stage::Reads(mount.submit(request), byte);
                return false;
            }
            Stage::Reads(_, byte) => {
                if let Ok(Reply::Data(buffer, range)) = answer {
                    let is_right = buffer[range].iter().all(|found| *found == byte);
                    assert!(is_right || self.is_blind, "what was written is there");
                }
            }
            Stage::Empties(_) => {
                self.stage = Stage::Idle;
                return false;
            }
            _ => {}
        }
        let changes = Changes { size: Some(0), ..Changes::default() };
        self.stage = Stage::Empties(mount.submit(Request::Change { inode, changes }));
        is_full
    }
}

/// Writes of several steps meet the end of the space beside readers of a file that stays as it is.
pub fn writers_that_meet_a_full_file_system() {
    let full: u32 = (0..3).map(beside_readers).sum();
    assert!(full > 50, "{full} writes found no room");
}

fn beside_readers(seed: u64) -> u32 {
    let mut random = Random::new(seed ^ 4711);
    let (mut mount, file) = nearly_full(&mut random, seed);
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|number| Writer::new(mount.create(&format!("w{number}")).expect("room")))
        .collect();
    let mut reads: Vec<(u64, u64, usize)> = Vec::new();
    let mut full = 0;
    for _ in 0..1200 {
        match random.below(6) {
            0 => {
                let writer = &mut writers[random.below(WRITERS as u64) as usize];
                writer.begin(&mut mount, &mut random);
            }
            1 | 2 => {
                let offset = random.below((KNOWN_BLOCKS - 40) * SIZE);
                let length = 1 + random.below(40 * SIZE) as u32;
                let buffer = Buffer::zeroed(read_span(offset, length));
                let request = Request::Read { inode: file, offset, length, buffer };
                reads.push((mount.submit(request), offset, length as usize));
            }
            _ => mount.complete_one(),
        }
        reads.retain(|(request, offset, length)| {
            let Some(answer) = mount.answer(*request) else { return true };
            let Ok(Reply::Data(buffer, range)) = answer else { panic!("{answer:?}") };
            assert!(buffer[range] == known(*offset, *length), "a reader sees its own file");
            false
        });
        full += writers.iter_mut().map(|writer| u32::from(writer.go_on(&mut mount))).sum::<u32>();
    }
    mount.settle();
    assert!(mount.files.is_quiet(), "everything was answered");
    let log = mount.volume().log.len();
    for kept in [log, log - log / 7, log / 2] {
        let volume = mount.volume().cut(kept);
        assert!(super::check(&volume).is_empty(), "it is sound after a crash at {kept}");
        let mut after = Mount::of(volume, 300, seed);
        let length = KNOWN_BLOCKS * SIZE;
        let found = after.read(file, 0, length as u32).expect("it was synced");
        assert!(found == known(0, length as usize), "the file is there after a crash at {kept}");
    }
    full
}
