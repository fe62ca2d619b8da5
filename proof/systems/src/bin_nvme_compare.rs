//! `nvme-compare`: the same random commands to two NVMe/TCP targets, whose every status and every byte of data
//! has to be the same, or differ in a way that has a name here.

use clap::Parser;
use coulter_attach_suite::initiator::Channel;
use coulter_attach_suite::initiator::{Initiator, InitiatorError, InitiatorOptions};
use coulter_net::Address;
use coulter_nvme::opcode::io;
use coulter_nvme::range::Range;
use coulter_nvme::{Sqe, Status, sqe};
use coulter_workload::Random;
use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;

/// The namespace of both.
const NSID: u32 = 1;
/// Blocks of the longest command.
const BLOCKS_MAX: u64 = 64;
/// A difference that has a name.
const UNKNOWN: &str = "the kernel's target knows neither Compare nor Verify";
/// Blocks compared at a time in the end.
const BLOCKS_AT_ONCE: u64 = 128;

/// Send the same random commands to two NVMe/TCP targets, and compare what they answer.
#[derive(Debug, Parser)]
struct Arguments {
    /// Address of the first target, such as tcp:127.0.0.1:4420
    first: Address,
    /// Name of its subsystem
    first_name: String,
    /// Address of the second target
    second: Address,
    /// Name of its subsystem
    second_name: String,
    /// What is drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Commands
    #[arg(long, default_value_t = 10_000)]
    commands: u64,
}

/// A command, what goes out with it, and how much comes in.
struct Drawn {
    sqe: Sqe,
    outward: Vec<u8>,
    inward: usize,
    /// Why the first target may fail in its own way; none if both have to agree.
    difference: Option<&'static str>,
    /// What the first target has to answer, whatever the second one does.
    expected: Option<Status>,
}

/// What a target made of a command.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: Status,
    data: Vec<u8>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether they are alike.
fn run(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    let connect = |address: &Address, name: &str| {
        Initiator::connect(address, &InitiatorOptions::new(name, 1))
    };
    let mut first = connect(&arguments.first, &arguments.first_name)?;
    let mut second = connect(&arguments.second, &arguments.second_name)?;
    let block_size = 1u64 << first.namespace().block_size_log;
    if (first.size(), first.namespace().block_size_log)
        != (second.size(), second.namespace().block_size_log)
    {
        return Err("the two are of different sizes".into());
    }
    let block_count = first.size() / block_size;
    let mut random = Random::new(arguments.seed);
    let mut named: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut equal = 0u64;
    for number in 0..arguments.commands {
        let mut drawn = draw(&mut random, block_count, block_size);
        if drawn.sqe.opcode() == io::COMPARE {
            compare_theirs(&mut drawn, &mut second.io, &mut random, block_size)?;
        }
        let failed = |which: &'static str| {
            let sqe = drawn.sqe;
            move |error| format!("command {number} ({sqe:?}), the {which} target: {error}")
        };
        let ours = answer(&mut first.io, &drawn).map_err(failed("first"))?;
        let theirs = answer(&mut second.io, &drawn).map_err(failed("second"))?;
        if drawn.expected.is_some_and(|expected| ours.status != expected) {
            println!("command {number}, {}: {}", drawn.sqe.opcode(), ours.status);
            return Ok(false);
        }
        match drawn.difference {
            _ if ours == theirs => equal += 1,
            Some(name) if !theirs.status.is_success() => *named.entry(name).or_default() += 1,
            _ => {
                println!(
                    "command {number}, {}: {} and {}",
                    drawn.sqe.opcode(),
                    ours.status,
                    theirs.status
                );
                return Ok(false);
            }
        }
    }
    for block in (0..block_count).step_by(BLOCKS_AT_ONCE as usize) {
        let count = BLOCKS_AT_ONCE.min(block_count - block);
        let sqe = Sqe::new(io::READ, NSID).with_blocks(block, count as u32);
        let read = |channel: &mut Channel| channel.fetch(sqe, (count * block_size) as usize);
        if read(&mut first.io)? != read(&mut second.io)? {
            println!("the data differs between blocks {block} and {}", block + count);
            return Ok(false);
        }
    }
    println!("{} commands, {equal} answered alike, {block_count} blocks alike", arguments.commands);
    named.iter().for_each(|(name, count)| println!("{count} answered otherwise: {name}"));
    Ok(true)
}

/// A random command. What it leaves behind does not depend on the target.
fn draw(random: &mut Random, block_count: u64, block_size: u64) -> Drawn {
    let count = 1 + random.below(BLOCKS_MAX);
    let first = random.below(block_count - count + 1);
    let blocks = |opcode| Sqe::new(opcode, NSID).with_blocks(first, count as u32);
    let size = (count * block_size) as usize;
    let flagged = |sqe: Sqe, bits: u32| sqe.with_dword(12, sqe.dword(12) | bits);
    let plain =
        |sqe| Drawn { sqe, outward: Vec::new(), inward: 0, difference: None, expected: None };
    match random.below(17) {
        0..5 => Drawn { inward: size, ..plain(blocks(io::READ)) },
        5..10 => {
            let seed = random.bits();
            let outward = (0..size).map(|at| (seed.rotate_left(at as u32 % 61) as u8) ^ at as u8);
            let fua = if random.below(4) == 0 { sqe::control::FUA } else { 0 };
            Drawn { outward: outward.collect(), ..plain(flagged(blocks(io::WRITE), fua)) }
        }
        10 => plain(Sqe::new(io::FLUSH, NSID)),
        11 => plain(blocks(io::WRITE_ZEROES)),
        12 => plain(flagged(blocks(io::WRITE_ZEROES), sqe::control::DEALLOCATE)),
        13 => {
            // What is read there afterwards is the target's own affair: hints change nothing.
            let hint = Sqe::new(io::DATASET_MANAGEMENT, NSID);
            let range = Range { slba: first, count: count as u32 }.encode();
            Drawn { outward: range.to_vec(), ..plain(hint) }
        }
        14 => wrong(random, block_count, block_size),
        15 => Drawn { difference: Some(UNKNOWN), ..plain(blocks(io::VERIFY)) },
        _ => Drawn { difference: Some(UNKNOWN), ..plain(blocks(io::COMPARE)) },
    }
}

/// Has the first target compare what the second one holds, or that with one byte changed: it must find the one equal
/// and the other not.
fn compare_theirs(
    drawn: &mut Drawn,
    second: &mut Channel,
    random: &mut Random,
    block_size: u64,
) -> Result<(), InitiatorError> {
    let blocks = drawn.sqe.block_count();
    let read = Sqe::new(io::READ, NSID).with_blocks(drawn.sqe.slba(), blocks);
    drawn.outward = second.fetch(read, blocks as usize * block_size as usize)?;
    drawn.expected = Some(Status::SUCCESS);
    if random.below(2) == 0 {
        let at = random.below(drawn.outward.len() as u64) as usize;
        drawn.outward[at] ^= 1 << random.below(8);
        drawn.expected = Some(Status::COMPARE_FAILURE);
    }
    Ok(())
}

/// A command that fails.
fn wrong(random: &mut Random, block_count: u64, block_size: u64) -> Drawn {
    let beyond = "beyond the end: LBA out of range here, another error there";
    let plain =
        |sqe| Drawn { sqe, outward: Vec::new(), inward: 0, difference: None, expected: None };
    let size = block_size as usize;
    match random.below(6) {
        0 => plain(Sqe::new(0x7e, NSID)),
        1 => plain(Sqe::new(io::FLUSH, 77)),
        2 => Drawn { inward: size, ..plain(Sqe::new(io::READ, 77).with_blocks(0, 1)) },
        // Less room than there is data.
        3 => Drawn { inward: size, ..plain(Sqe::new(io::READ, NSID).with_blocks(0, 2)) },
        4 => {
            let sqe = Sqe::new(io::READ, NSID).with_blocks(block_count, 1);
            Drawn { inward: size, difference: Some(beyond), ..plain(sqe) }
        }
        _ => {
            let sqe = Sqe::new(io::WRITE_ZEROES, NSID).with_blocks(block_count - 1, 2);
            Drawn { difference: Some(beyond), ..plain(sqe) }
        }
    }
}

fn answer(channel: &mut Channel, drawn: &Drawn) -> Result<Answer, InitiatorError> {
    let outcome = match drawn.inward {
        0 => channel.send(drawn.sqe, &drawn.outward).map(|_| Vec::new()),
        length => channel.fetch(drawn.sqe, length),
    };
    match outcome {
        Ok(data) => Ok(Answer { status: Status::SUCCESS, data }),
        Err(InitiatorError::Status(cqe)) => {
            Ok(Answer { status: cqe.status.code_and_type(), data: Vec::new() })
        }
        Err(error) => Err(error),
    }
}
