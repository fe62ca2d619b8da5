//! What each host is to do.

use coulter_sim::random::Random;

/// Cells of the device.
pub const CELL_COUNT: usize = 8;

/// Hosts at most.
pub const HOST_COUNT_MAX: usize = 3;

/// Names of snapshots.
pub const PIN_COUNT: usize = 3;

/// One thing that a host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Writes a cell.
    Write(usize),
    /// Discards a cell.
    Discard(usize),
    /// Flushes, and waits for the answer.
    Flush,
    /// Does some of what waits to be done in the background.
    Work(usize),
    /// Looks whether it has the volume still, as it does now and then, and answers a read if so.
    Look,
    /// Keeps the newest state under the name of this number.
    Keep(usize),
    /// Gives it up.
    GiveUp(usize),
    /// Loses power, and opens its store again.
    PowerCut,
    /// Takes the volume over, whoever has it.
    TakeOver,
}

/// What each host is to do. The first begins with a store of its own; the others begin with a take-over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Of each host, in order.
    pub hosts: Vec<Vec<Op>>,
}

impl Plan {
    /// A plan of a seed: two or three hosts.
    pub fn of_seed(seed: u64) -> Plan {
        let mut random = Random::new(seed);
        let count = 2 + random.below(HOST_COUNT_MAX as u64 - 1) as usize;
        let hosts = (0..count).map(|_| {
            let length = 6 + random.below(30);
            (0..length).map(|_| op(&mut random)).collect()
        });
        Plan { hosts: hosts.collect() }
    }
}

fn op(random: &mut Random) -> Op {
    let cell = random.below(CELL_COUNT as u64) as usize;
    let name = random.below(PIN_COUNT as u64) as usize;
    match random.below(100) {
        0..45 => Op::Write(cell),
        45..50 => Op::Discard(cell),
        50..68 => Op::Flush,
        68..78 => Op::Work(1 + random.below(6) as usize),
        78..82 => Op::Look,
        82..87 => Op::Keep(name),
        87..89 => Op::GiveUp(name),
        89..94 => Op::PowerCut,
        _ => Op::TakeOver,
    }
}
