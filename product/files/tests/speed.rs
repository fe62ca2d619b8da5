//! What the state machine itself costs: random writes to a file on a volume that is memory and
//! completes at once.

use coulter::buffer::Buffer;
use coulter_files::{
    BLOCK_SIZE, Change, Command, CreateOptions, Files, Io, NewNode, Options, ROOT, Reply, Request,
    Time, create,
};
use coulter_workload::Random;
use std::collections::VecDeque;
use std::time::Instant;

const VOLUME_BLOCKS: usize = 32 << 10;
const FILE_BLOCKS: u64 = 16 << 10;
const WRITES: u64 = 400_000;
/// Requests that are under way at once.
const DEPTH: usize = 32;
/// Writes from one sync to the next.
const SYNC_EVERY: u64 = 256;

struct Flat {
    files: Files,
    memory: Vec<u8>,
    out: VecDeque<Io>,
    next: u64,
}

impl Flat {
    fn new() -> Flat {
        let options = CreateOptions {
            block_count: VOLUME_BLOCKS as u64,
            uuid: [1; 16],
            hash_seed: [2; 16],
            label: [0; 64],
            owner: (0, 0),
            now: Time::default(),
        };
        let mut memory = vec![0; VOLUME_BLOCKS * BLOCK_SIZE];
        let blocks = create(&options).expect("the size is allowed");
        memory[..3 * BLOCK_SIZE].copy_from_slice(blocks.as_flattened());
        let files = Files::open(Options::default(), VOLUME_BLOCKS as u64);
        let mut flat = Flat { files, memory, out: VecDeque::new(), next: 0 };
        flat.complete(0);
        flat
    }

    fn place(&mut self, block: u64, length: usize) -> &mut [u8] {
        let start = block as usize * BLOCK_SIZE;
        &mut self.memory[start..start + length]
    }

    /// Completes commands until no more than these are out.
    fn complete(&mut self, out_max: usize) {
        loop {
            while let Some(io) = self.files.poll_io() {
                self.out.push_back(io);
            }
            if self.out.len() <= out_max {
                return;
            }
            let Some(Io { id, command }) = self.out.pop_front() else { return };
            let buffer = self.done(command);
            self.files.handle_completion(id, Ok(()), buffer);
        }
    }

    fn done(&mut self, command: Command) -> Buffer {
        match command {
            Command::Read { block, mut buffer } => {
                let length = buffer.len();
                buffer.copy_from_slice(self.place(block, length));
                buffer
            }
            Command::Write { block, buffer } => {
                self.place(block, buffer.len()).copy_from_slice(&buffer);
                buffer
            }
            Command::WriteMany { changes, buffer, .. } => {
                let mut rest = &buffer[..];
                for Change { block, count, discard } in changes {
                    let length = count as usize * BLOCK_SIZE;
                    if discard {
                        self.place(block, length).fill(0);
                        continue;
                    }
                    let (data, behind) = rest.split_at(length);
                    self.place(block, length).copy_from_slice(data);
                    rest = behind;
                }
                buffer
            }
            Command::Discard { block, count } => {
                self.place(block, count as usize * BLOCK_SIZE).fill(0);
                Buffer::empty()
            }
            Command::Flush => Buffer::empty(),
        }
    }

    fn submit(&mut self, request: Request) {
        self.next += 1;
        self.files.handle_request(self.next, request, Time { seconds: 7, nanoseconds: 0 });
    }

    fn run(&mut self, request: Request) -> Reply {
        self.submit(request);
        self.complete(0);
        self.files.poll_response().expect("an answer").result.expect("done")
    }
}

#[test]
#[ignore = "a measurement"]
fn random_writes_of_a_block_cost_the_state_machine() {
    let mut flat = Flat::new();
    let name = coulter_files::Name::new(b"file").expect("a name");
    let new = NewNode { mode: libc::S_IFREG | 0o644, ..NewNode::default() };
    let made = flat.run(Request::Make { directory: ROOT, name, new });
    let Reply::Entry(entry) = made else { panic!("an entry") };
    let (inode, kills_privileges, sync) = (entry.number, false, false);
    for part in 0..FILE_BLOCKS / 256 {
        let (offset, buffer) = (part << 20, Buffer::zeroed(1 << 20));
        flat.run(Request::Write { inode, offset, buffer, kills_privileges, sync });
    }
    flat.run(Request::Sync);
    let (mut random, mut answered) = (Random::new(1), 0);
    let mut buffers: Vec<Buffer> = (0..DEPTH).map(|_| Buffer::zeroed(BLOCK_SIZE)).collect();
    let begun = Instant::now();
    for number in 0..WRITES {
        while buffers.is_empty() {
            if let Some(response) = flat.files.poll_response() {
                if let Ok(Reply::Written(_, buffer)) = response.result {
                    buffers.push(buffer);
                    answered += 1;
                }
            } else {
                flat.complete(0);
            }
        }
        let (offset, buffer) =
            (random.below(FILE_BLOCKS) << 12, buffers.pop().expect("one is here"));
        flat.submit(Request::Write { inode, offset, buffer, kills_privileges, sync });
        if number % SYNC_EVERY == 0 {
            flat.submit(Request::Sync);
        }
        flat.complete(8);
    }
    flat.complete(0);
    while let Some(response) = flat.files.poll_response() {
        answered += u64::from(matches!(response.result, Ok(Reply::Written(..))));
    }
    let per_second = WRITES as f64 / begun.elapsed().as_secs_f64();
    assert_eq!(answered, WRITES, "each write was answered");
    println!("{per_second:.0} writes of 4 KiB a second");
}
