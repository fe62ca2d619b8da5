//! Bytes go in and come out.

use super::rig::Rig;
use super::{Access, Fixture};
use crate::command::{Command, CommandKind, Completion, Region, SECTOR_SIZE};
use fastrand::Rng;

/// Bytes of the device that the random check works on, and all of them twice.
const MODEL_SIZE: u64 = 4 << 20;

/// Commands of the random check in flight at once.
const LANE_COUNT: usize = 32;

/// Bytes of memory for each of these commands.
const LANE_SIZE: u64 = 128 << 10;

const STEP_COUNT: u32 = 3000;

/// What a sector may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sector {
    /// Filled with this number, in 64-bit words; zero at first.
    stamp: u64,
    /// Or zeros, for it was discarded since it was written.
    may_be_zero: bool,
}

/// The random check's model: sectors, and what is under way.
struct Model {
    start: u64,
    sectors: Vec<Sector>,
    lanes: Vec<Option<Command>>,
    random: Rng,
    stamp: u64,
}

/// Random commands, many at once, give what a model in memory says; flushing, and opening the
/// content again, changes nothing.
pub fn what_was_written_is_read(fixture: &dyn Fixture) {
    let mut rig = Rig::new(fixture, LANE_COUNT * LANE_SIZE as usize);
    // The second half of the memory, so that commands in the first are not registered.
    let half = LANE_COUNT * LANE_SIZE as usize / 2;
    let region = Region { start: rig.address(half), length: half };
    // SAFETY: the rig drops the device before the memory.
    unsafe { rig.device.register(&[region]) }.expect("memory can be registered");
    let seed = rig.size() ^ 0x5eed;
    let start = rig.size() - MODEL_SIZE;
    let blank = Sector { stamp: 0, may_be_zero: false };
    let mut model = Model {
        start,
        sectors: vec![blank; (MODEL_SIZE / SECTOR_SIZE) as usize],
        lanes: vec![None; LANE_COUNT],
        random: Rng::with_seed(seed),
        stamp: 0,
    };
    for _ in 0..STEP_COUNT {
        match model.next_command(&mut rig) {
            Some(command) => rig.submit(command),
            None if rig.outstanding() == 0 => {}
            None => rig.wait(|rig, completion| model.take(rig, completion)),
        }
    }
    while rig.outstanding() > 0 {
        rig.wait(|rig, completion| model.take(rig, completion));
    }
    model.verify_all(&mut rig);
    assert_eq!(rig.run(Command::flush(0)), Ok(()));
    model.verify_all(&mut rig);
    drop(rig);
    let mut rig = Rig::with_access(fixture, LANE_SIZE as usize, Access::ReadOnly);
    model.verify_all(&mut rig);
}

impl Model {
    /// A command that meets no other in flight, or `None` if the one that came to mind does.
    fn next_command(&mut self, rig: &mut Rig) -> Option<Command> {
        let lane = self.lanes.iter().position(Option::is_none)?;
        let kind = match self.random.u64(..100) {
            0..45 => CommandKind::Write,
            45..90 => CommandKind::Read,
            90..94 => CommandKind::Discard,
            94..96 => CommandKind::Prepare,
            _ => CommandKind::Flush,
        };
        let unit = rig.alignment();
        // Small ones mostly; at times as long as there is memory for.
        let count_max = if self.random.u64(..8) == 0 { LANE_SIZE / unit } else { 8192 / unit };
        let length = self.random.u64(1..=count_max) * unit;
        let offset = self.start + self.random.u64(..=(MODEL_SIZE - length) / unit) * unit;
        let mut command = Command::flush(lane as u64);
        if kind != CommandKind::Flush {
            let at =
                lane as u64 * LANE_SIZE + self.random.u64(..=(LANE_SIZE - length) / unit) * unit;
            let buffer = match kind {
                CommandKind::Discard | CommandKind::Prepare => std::ptr::null_mut(),
                _ => rig.address(at as usize),
            };
            command = Command { tag: lane as u64, kind, offset, length, buffer, stream: 0 };
        }
        let collides = |other: &Command| {
            let apart = other.offset + other.length <= offset || offset + length <= other.offset;
            !apart && (kind.changes_content() || other.kind.changes_content())
        };
        if kind != CommandKind::Flush && self.lanes.iter().flatten().any(collides) {
            return None;
        }
        if kind == CommandKind::Write {
            self.fill(rig, &command);
        }
        self.lanes[lane] = Some(command);
        Some(command)
    }

    /// Gives a write's memory a stamp for each sector.
    fn fill(&mut self, rig: &mut Rig, command: &Command) {
        let at = command.buffer as usize - rig.address(0) as usize;
        for sector in rig.memory[at..at + command.length as usize].chunks_mut(SECTOR_SIZE as usize)
        {
            self.stamp += 1;
            for word in sector.chunks_mut(8) {
                word.copy_from_slice(&self.stamp.to_le_bytes());
            }
        }
    }

    fn take(&mut self, rig: &mut Rig, completion: Completion) {
        let command = self.lanes[completion.tag as usize].take();
        let command = command.expect("the command was in flight");
        assert_eq!(completion.result, Ok(()), "{command:?}");
        let first = ((command.offset.wrapping_sub(self.start)) / SECTOR_SIZE) as usize;
        let count = (command.length / SECTOR_SIZE) as usize;
        let at = (command.buffer as usize).wrapping_sub(rig.address(0) as usize);
        match command.kind {
            CommandKind::Read => self.verify(rig, first, at, count),
            CommandKind::Flush => {}
            CommandKind::Write => {
                for index in 0..count {
                    let byte = at + index * SECTOR_SIZE as usize;
                    let word = rig.memory[byte..byte + 8].try_into().expect("eight bytes");
                    let stamp = u64::from_le_bytes(word);
                    self.sectors[first + index] = Sector { stamp, may_be_zero: false };
                }
            }
            CommandKind::Discard | CommandKind::Prepare => {
                self.sectors[first..first + count].iter_mut().for_each(|is| is.may_be_zero = true);
            }
        }
    }

    /// Compares memory from byte `at` on with the sectors from `first` on.
    fn verify(&self, rig: &Rig, first: usize, at: usize, count: usize) {
        let size = SECTOR_SIZE as usize;
        let read = rig.memory[at..at + count * size].chunks(size);
        for (number, (bytes, sector)) in (first..).zip(read.zip(&self.sectors[first..])) {
            let is = |stamp: u64| bytes.chunks(8).all(|word| word == stamp.to_le_bytes());
            let fits = is(sector.stamp) || sector.may_be_zero && is(0);
            assert!(fits, "sector {number} is to hold {sector:?}, not {:?}…", &bytes[..16]);
        }
    }

    fn verify_all(&self, rig: &mut Rig) {
        let count = (LANE_SIZE / SECTOR_SIZE) as usize;
        for first in (0..self.sectors.len()).step_by(count) {
            rig.read(self.start + first as u64 * SECTOR_SIZE, 0, LANE_SIZE as usize);
            self.verify(rig, first, 0, count);
        }
    }
}

/// One command may be as long as the device.
pub fn the_whole_device_is_written_and_read_at_once(fixture: &dyn Fixture) {
    let size = Rig::new(fixture, 1).size() as usize;
    let mut rig = Rig::new(fixture, size);
    let mut random = Rng::with_seed(1);
    let mut expected = vec![0; size];
    random.fill(&mut expected);
    rig.memory.copy_from_slice(&expected);
    rig.write(0, 0, size);
    rig.memory.fill(0);
    rig.read(0, 0, size);
    assert!(rig.memory[..] == expected[..], "the device holds what was written");
}

/// Registering memory changes nothing but the speed, whether a command's memory lies inside it,
/// outside it, or in both; and it can be changed.
pub fn registered_and_other_memory_are_both_taken(fixture: &dyn Fixture) {
    let unit = Rig::new(fixture, 1).alignment() as usize;
    let mut rig = Rig::new(fixture, 16 * unit);
    for (first, length) in [(0, 0), (4, 4), (2, 8), (0, 0)] {
        let regions = match length {
            0 => vec![],
            length => vec![
                Region { start: rig.address(first * unit), length: length * unit },
                Region { start: rig.address(14 * unit), length: unit },
            ],
        };
        // SAFETY: the rig drops the device before the memory.
        unsafe { rig.device.register(&regions) }.expect("memory can be registered");
        for at in 0..8 {
            rig.memory.fill(0xee);
            rig.memory[at * unit..(at + 6) * unit].fill(at as u8 + 1);
            rig.write(0, at * unit, 6 * unit);
            rig.memory.fill(0);
            rig.read(0, (8 - at) * unit, 6 * unit);
            let read = &rig.memory[(8 - at) * unit..(14 - at) * unit];
            assert!(read.iter().all(|byte| *byte == at as u8 + 1), "what was written is read");
        }
    }
}

/// A discard leaves zeros or the old bytes, and what is written afterwards stands.
pub fn a_discarded_range_is_zero_or_old_until_written(fixture: &dyn Fixture) {
    const SIZE: usize = 1 << 20;
    let mut rig = Rig::new(fixture, SIZE);
    rig.memory.fill(7);
    rig.write(0, 0, SIZE);
    let unit = rig.alignment();
    assert_eq!(rig.run(Command::discard(0, unit, SIZE as u64 - 2 * unit)), Ok(()));
    rig.memory.fill(1);
    rig.read(0, 0, SIZE);
    assert!(rig.memory.iter().all(|byte| matches!(byte, 0 | 7)), "zeros or old bytes");
    let last = SIZE - unit as usize;
    assert_eq!((rig.memory[0], rig.memory[last]), (7, 7), "beside the range nothing changes");
    let middle = (SIZE / 2) as u64;
    rig.memory.fill(9);
    rig.write(middle, 0, unit as usize);
    rig.memory.fill(0);
    rig.read(middle, 0, unit as usize);
    assert!(rig.memory[..unit as usize].iter().all(|byte| *byte == 9), "new bytes");
    let whole = Command::discard(0, 0, rig.size());
    assert_eq!(rig.run(whole), Ok(()), "a discard may be as long as the device");
}

/// Commands beyond the queue depth wait their turn inside the device.
pub fn more_commands_than_the_queue_is_deep_all_complete(fixture: &dyn Fixture) {
    let unit = Rig::new(fixture, 1).alignment() as usize;
    let mut rig = Rig::new(fixture, 2 * unit);
    let count = 3 * rig.device.properties().queue_depth as u64 + 1;
    let slots = rig.size() / unit as u64;
    rig.memory[..unit].fill(3);
    for tag in 0..count {
        let address = rig.address(0);
        rig.submit(Command::write(tag, tag % slots * unit as u64, unit as u64, address));
    }
    let mut is_answered = vec![false; count as usize];
    while rig.outstanding() > 0 {
        rig.wait(|_, completion| {
            assert_eq!(completion.result, Ok(()));
            let before = std::mem::replace(&mut is_answered[completion.tag as usize], true);
            assert!(!before, "a command completes once");
        });
    }
    for number in [0, count - 1] {
        rig.read(number % slots * unit as u64, unit, unit);
        assert!(rig.memory[unit..].iter().all(|byte| *byte == 3), "each was executed");
    }
}

/// Tags mean nothing to a device.
pub fn equal_tags_come_back_as_often_as_they_were_given(fixture: &dyn Fixture) {
    let mut rig = Rig::new(fixture, 4096);
    for _ in 0..10 {
        let address = rig.address(0);
        rig.submit(Command::write(u64::MAX, 0, 4096, address));
        rig.submit(Command::flush(u64::MAX - 1));
    }
    let (mut writes, mut flushes) = (0, 0);
    while rig.outstanding() > 0 {
        rig.wait(|_, completion| match completion.tag {
            u64::MAX => writes += 1,
            tag => {
                assert_eq!(tag, u64::MAX - 1);
                flushes += 1;
            }
        });
    }
    assert_eq!((writes, flushes), (10, 10));
}

/// A flush needs no write before it.
pub fn a_flush_completes_with_nothing_written(fixture: &dyn Fixture) {
    let mut rig = Rig::new(fixture, 1);
    assert_eq!(rig.run(Command::flush(4)), Ok(()));
    assert_eq!(rig.run(Command::flush(5)), Ok(()));
}
