//! A process that dies with commands in flight: what had completed is there, and the file can be
//! opened again at once.

mod common;

use common::{Scratch, file_fixture, privileged};
use coulter_device::conformance::{Access, Fixture};
use coulter_device::{
    AlignedMemory, Command, Device, Engine, OpenOptions, Wait, blocking, open_path,
};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{self, Stdio};
use std::sync::mpsc;
use std::{env, thread, time::Duration};

/// The child's file; without it, the child is not a child and does nothing.
const PATH_VARIABLE: &str = "COULTER_TEST_KILLED_PATH";
const ENGINE_VARIABLE: &str = "COULTER_TEST_KILLED_ENGINE";
const FIRST_VARIABLE: &str = "COULTER_TEST_KILLED_FIRST";

const BLOCK: u64 = 4096;
const BLOCK_COUNT: u64 = 2048;
const LANE_COUNT: u64 = 32;

fn options(engine: &str) -> OpenOptions {
    let engine = if engine == "threads" { Engine::Threads } else { common::uring() };
    OpenOptions { engine, ..OpenOptions::default() }
}

/// Writes blocks without end, each filled with the number of the write, and prints what completed.
#[test]
fn child() {
    let (Some(path), Ok(engine)) = (env::var_os(PATH_VARIABLE), env::var(ENGINE_VARIABLE)) else {
        return;
    };
    let mut device = open_path(Path::new(&path), &options(&engine)).expect("it is free");
    let mut memory = AlignedMemory::zeroed((LANE_COUNT * BLOCK) as usize);
    let first = env::var(FIRST_VARIABLE).expect("the parent sets it");
    // Higher than any of an earlier child, lest its blocks pass for this one's.
    let mut next: u64 = first.parse().expect("a number");
    let mut numbers = vec![0; LANE_COUNT as usize];
    let mut free: Vec<u64> = (0..LANE_COUNT).collect();
    let mut completions = Vec::new();
    let mut output = std::io::stdout().lock();
    loop {
        while let Some(lane) = free.pop() {
            let at = (lane * BLOCK) as usize;
            let bytes = &mut memory[at..at + BLOCK as usize];
            bytes.chunks_mut(8).for_each(|word| word.copy_from_slice(&u64::to_le_bytes(next)));
            let buffer = memory.as_mut_pointer().wrapping_add(at);
            numbers[lane as usize] = next;
            let offset = next % BLOCK_COUNT * BLOCK;
            // SAFETY: each lane has memory of its own, for as long as the process lives.
            unsafe { device.submit(Command::write(lane, offset, BLOCK, buffer)) };
            next += 1;
        }
        device.poll(&mut completions, Wait::Forever).expect("it can be polled");
        let mut line = String::new();
        for completion in completions.drain(..) {
            assert_eq!(completion.result, Ok(()));
            free.push(completion.tag);
            line += &format!("done {}\n", numbers[completion.tag as usize]);
        }
        output.write_all(line.as_bytes()).expect("the parent listens");
    }
}

/// Lets a child write to the path for a while, kills it, and says which writes had completed.
fn completed_before_kill(path: &Path, engine: &str, round: u64) -> Vec<u64> {
    let mut child = process::Command::new(env::current_exe().expect("this program"))
        .args(["--exact", "child", "--nocapture"])
        .env(PATH_VARIABLE, path)
        .env(ENGINE_VARIABLE, engine)
        .env(FIRST_VARIABLE, (round << 40).to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program runs");
    let output = child.stdout.take().expect("it was asked for");
    let (begins, has_begun) = mpsc::channel();
    let reader = thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        let numbers = lines.filter_map(|line| line.strip_prefix("done ")?.parse().ok());
        numbers.inspect(|_| begins.send(()).expect("the other end waits")).collect::<Vec<u64>>()
    });
    // The time counts from the first write: a busy machine is slow to begin.
    has_begun.recv().expect("the child writes");
    thread::sleep(Duration::from_millis(150 + 70 * round));
    child.kill().expect("it runs");
    child.wait().expect("it was killed");
    let mut numbers = reader.join().expect("its output ends");
    // The last line may have been cut short, and its number with it.
    numbers.pop();
    numbers
}

/// Every completed write is there, or one that was submitted later to the same block.
fn verify(device: &mut dyn Device, completed: &[u64]) {
    let mut newest = vec![None; BLOCK_COUNT as usize];
    for number in completed {
        let block = &mut newest[(number % BLOCK_COUNT) as usize];
        *block = (*block).max(Some(*number));
    }
    let mut memory = AlignedMemory::zeroed(BLOCK as usize);
    for (block, newest) in (0..).zip(newest) {
        blocking::read(device, block * BLOCK, &mut memory).expect("it is readable");
        let found = u64::from_le_bytes(memory[..8].try_into().expect("eight bytes"));
        if let Some(newest) = newest {
            let is_it = found % BLOCK_COUNT == block && found >= newest;
            assert!(is_it, "block {block} holds {found}, and {newest} had completed");
        }
    }
}

fn kill_and_reopen(path: &Path, fixture: &dyn Fixture, engine: &str) {
    for round in 0..4 {
        let completed = completed_before_kill(path, engine, round);
        let mut device = fixture.open(Access::ReadWrite).expect("it is free at once");
        verify(&mut *device, &completed);
        assert!(!completed.is_empty(), "the child had time to write something");
    }
}

#[test]
fn a_file_is_free_and_holds_what_completed_after_a_kill() {
    for engine in ["uring", "threads"] {
        let file = Scratch::new().file("store", BLOCK * BLOCK_COUNT);
        let path = file.path.clone();
        kill_and_reopen(&path, &file_fixture(file, options(engine)), engine);
    }
}

#[test]
fn a_disk_is_free_and_holds_what_completed_after_a_kill() {
    privileged::with_private_mounts("a killed process on a disk", || {
        let file = Scratch::new().file("disk", BLOCK * BLOCK_COUNT);
        let disk = privileged::LoopDisk::new(&file.path, 512, false);
        let fixture = |access| common::open_as(&disk.path, &options("uring"), access);
        kill_and_reopen(&disk.path, &fixture, "uring");
    });
}
