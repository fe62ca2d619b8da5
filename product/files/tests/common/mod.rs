//! A file system on a volume in plain memory, driven one operation at a time.
//!
//! The volume takes commands in order and completes them late: a read beside a write which is out
//! sees the block before or after it. It keeps a list of commands, for the content after any prefix.
#![allow(unreachable_pub, dead_code, reason = "each test uses a part of it")]

pub mod ace;
mod checked;
pub mod engine;
pub mod errors;
pub mod full;
pub mod model;
pub mod power;
pub mod scenes;
pub mod sequences;

pub use checked::{check, orphan_count};
use coulter::buffer::Buffer;
use coulter_files::{
    Attributes, BLOCK_SIZE, Change, Command, CreateOptions, Files, Io, IoError, Name, NewNode,
    Options, ROOT, Reply, Request, Time, create, read_span,
};
use coulter_workload::Random;
use std::collections::BTreeMap;
use std::rc::Rc;

pub type Block = [u8; BLOCK_SIZE];
type Content = BTreeMap<u64, Rc<Block>>;

/// Changes that take effect together.
#[derive(Clone, Default)]
pub struct Step {
    writes: Vec<(u64, Option<Rc<Block>>)>,
    runs: Vec<(u64, u64)>,
    pub is_durable: bool,
}

/// The first blocks of an empty file system.
pub fn empty(block_count: u64) -> Vec<Block> {
    let options = CreateOptions {
        block_count,
        uuid: [1; 16],
        hash_seed: [2; 16],
        label: [0; 64],
        owner: (0, 0),
        now: Time::default(),
    };
    create(&options).expect("the size is allowed").to_vec()
}

#[derive(Clone)]
pub struct Volume {
    pub block_count: u64,
    /// With everything that was submitted.
    new: Content,
    /// With what is complete.
    old: Content,
    /// What was submitted, in order, since the start.
    pub log: Vec<Step>,
    start: Content,
    /// Of the log, what a crash cannot take away.
    pub durable: usize,
}

fn apply(content: &mut Content, step: &Step) {
    for (first, count) in &step.runs {
        let gone: Vec<u64> =
            content.range(*first..first + count).map(|(block, _)| *block).collect();
        for block in gone {
            content.remove(&block);
        }
    }
    for (block, data) in &step.writes {
        match data {
            Some(data) => content.insert(*block, data.clone()),
            None => content.remove(block),
        };
    }
}

impl Volume {
    pub fn new(block_count: u64) -> Volume {
        let start: Content =
            (0..).zip(empty(block_count)).map(|(block, data)| (block, Rc::new(data))).collect();
        Volume::holding(block_count, start)
    }

    fn holding(block_count: u64, start: Content) -> Volume {
        let (new, old) = (start.clone(), start.clone());
        Volume { block_count, new, old, log: Vec::new(), start, durable: 0 }
    }

    /// The volume after a crash that kept the first `count` steps.
    pub fn cut(&self, count: usize) -> Volume {
        let mut content = self.start.clone();
        self.log[..count].iter().for_each(|step| apply(&mut content, step));
        Volume::holding(self.block_count, content)
    }

    pub fn block(&self, block: u64) -> Block {
        self.new.get(&block).map_or([0; BLOCK_SIZE], |data| **data)
    }

    pub fn mapped(&self) -> impl Iterator<Item = u64> + '_ {
        self.new.keys().copied()
    }

    pub fn set_block(&mut self, block: u64, data: Block) {
        self.new.insert(block, Rc::new(data));
        self.old.insert(block, Rc::new(data));
        self.start.insert(block, Rc::new(data));
    }
}

struct Out {
    io: u32,
    buffer: Buffer,
    kind: Kind,
}

enum Kind {
    Read(u64),
    Write(usize),
    Flush,
}

/// What a file system is on.
pub trait Backend {
    fn block_count(&self) -> u64;
    fn submit(&mut self, io: Io);
    /// Something completes; `None` if nothing is out.
    fn complete(&mut self) -> Option<(u32, Buffer)>;
    /// How that ended.
    fn result(&self, _io: u32) -> Result<(), IoError> {
        Ok(())
    }
}

/// A volume and the commands that are out.
pub struct InMemory {
    pub volume: Volume,
    out: Vec<Out>,
    random: Random,
    /// A block that cannot be read.
    damaged: Option<u64>,
    /// Commands that fail from now on.
    pub fails: Option<Fails>,
    /// Commands that are out and will fail.
    failed: BTreeMap<u32, IoError>,
}

/// Commands that fail, all of a kind.
#[derive(Clone, Copy, Debug)]
pub enum Fails {
    Reads(IoError),
    Writes(IoError),
    Flushes(IoError),
}

/// A mounted file system.
pub struct Mount<B: Backend = InMemory> {
    pub files: Files,
    pub backend: B,
    next: u64,
    pub now: Time,
    answers: BTreeMap<u64, Result<Reply, i32>>,
    /// Where the buffers of requests are that were not answered.
    lent: BTreeMap<u64, usize>,
}

/// The place of a buffer's memory; 0 if it has none.
fn address(buffer: &mut Buffer) -> usize {
    if buffer.capacity() == 0 { 0 } else { buffer.as_mut_pointer() as usize }
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

impl InMemory {
    pub fn new(volume: Volume, seed: u64) -> InMemory {
        let (random, failed) = (Random::new(seed), BTreeMap::new());
        InMemory { volume, out: Vec::new(), random, damaged: None, fails: None, failed }
    }

    /// Nobody reads blocks of which a change is out: what comes back may be of the time before.
    fn assert_settled(&self, first: u64, count: u64) {
        for out in &self.out {
            let Kind::Write(index) = out.kind else { continue };
            let step = &self.volume.log[index];
            let written = step.writes.iter().map(|(block, _)| (*block, 1));
            for (block, blocks) in written.chain(step.runs.iter().copied()) {
                let is_apart = block >= first + count || block + blocks <= first;
                assert!(
                    is_apart,
                    "{count} blocks from {first} on are read, {blocks} from {block} on change"
                );
            }
        }
    }
}

impl Mount {
    pub fn new(block_count: u64, cache_blocks: usize, seed: u64) -> Mount {
        Mount::of(Volume::new(block_count), cache_blocks, seed)
    }

    pub fn of(volume: Volume, cache_blocks: usize, seed: u64) -> Mount {
        Mount::on(InMemory::new(volume, seed), cache_blocks)
    }

    /// On a volume one block of which is damaged. It may not be open.
    pub fn damaged(volume: Volume, cache_blocks: usize, damaged: u64) -> Mount {
        let mut backend = InMemory::new(volume, damaged);
        backend.damaged = Some(damaged);
        Mount::opened(backend, cache_blocks)
    }

    pub fn volume(&self) -> &Volume {
        &self.backend.volume
    }
}

impl Backend for InMemory {
    fn block_count(&self) -> u64 {
        self.volume.block_count
    }

    fn submit(&mut self, io: Io) {
        let Io { id, command } = io;
        let mut step = Step::default();
        let (kind, buffer) = match command {
            Command::Read { block, buffer } => (Kind::Read(block), buffer),
            Command::Flush => (Kind::Flush, Buffer::empty()),
            Command::Discard { block, count } => {
                step.runs.push((block, count));
                (Kind::Write(0), Buffer::empty())
            }
            Command::Write { block, buffer } => {
                push_blocks(&mut step, block, &buffer);
                (Kind::Write(0), buffer)
            }
            Command::WriteMany { changes, buffer, fua } => {
                check_changes(&changes, buffer.len());
                let mut at = 0;
                for Change { block, count, discard } in changes {
                    if discard {
                        step.runs.push((block, count));
                    } else {
                        let length = count as usize * BLOCK_SIZE;
                        push_blocks(&mut step, block, &buffer[at..at + length]);
                        at += length;
                    }
                }
                step.is_durable = fua;
                (Kind::Write(0), buffer)
            }
        };
        self.failed.remove(&id);
        match (&kind, self.fails) {
            (Kind::Read(_), Some(Fails::Reads(error)))
            | (Kind::Write(_), Some(Fails::Writes(error)))
            | (Kind::Flush, Some(Fails::Flushes(error))) => {
                self.failed.insert(id, error);
            }
            _ => {}
        }
        if let Kind::Read(first) = kind {
            let blocks = first..first + (buffer.len() / BLOCK_SIZE) as u64;
            if self.damaged.is_some_and(|damaged| blocks.contains(&damaged)) {
                self.failed.insert(id, IoError::Corrupt);
            }
            self.assert_settled(first, (buffer.len() / BLOCK_SIZE) as u64);
        }
        let kind = match kind {
            Kind::Write(_) => {
                apply(&mut self.volume.new, &step);
                self.volume.log.push(step);
                Kind::Write(self.volume.log.len() - 1)
            }
            kind => kind,
        };
        self.out.push(Out { io: id, buffer, kind });
    }

    fn result(&self, io: u32) -> Result<(), IoError> {
        self.failed.get(&io).map_or(Ok(()), |error| Err(*error))
    }

    /// A read completes, or the oldest write.
    fn complete(&mut self) -> Option<(u32, Buffer)> {
        let oldest = self.out.iter().position(|out| !matches!(out.kind, Kind::Read(_)));
        let reads: Vec<usize> = (0..self.out.len())
            .filter(|index| matches!(self.out[*index].kind, Kind::Read(_)))
            .collect();
        let index = match (oldest, reads.len() as u64) {
            (None, 0) => return None,
            (Some(oldest), 0) => oldest,
            (Some(oldest), _) if self.random.chance(50) => oldest,
            (_, count) => reads[self.random.below(count) as usize],
        };
        let Out { io, mut buffer, kind } = self.out.remove(index);
        match kind {
            Kind::Read(first) => {
                let sees_new = self.random.chance(50);
                let content = if sees_new { &self.volume.new } else { &self.volume.old };
                for (place, block) in buffer.chunks_mut(BLOCK_SIZE).zip(first..) {
                    match content.get(&block) {
                        Some(data) => place.copy_from_slice(&data[..]),
                        None => place.fill(0),
                    }
                }
            }
            Kind::Write(index) => {
                let step = self.volume.log[index].clone();
                apply(&mut self.volume.old, &step);
                if step.is_durable {
                    self.volume.durable = self.volume.durable.max(index + 1);
                }
            }
            Kind::Flush => {
                let first = self.out.iter().filter_map(|out| match out.kind {
                    Kind::Write(index) => Some(index),
                    _ => None,
                });
                let covered = first.min().unwrap_or(self.volume.log.len());
                self.volume.durable = self.volume.durable.max(covered);
            }
        }
        Some((io, buffer))
    }
}

impl<B: Backend> Mount<B> {
    pub fn on(backend: B, cache_blocks: usize) -> Mount<B> {
        let mount = Mount::opened(backend, cache_blocks);
        assert_eq!(mount.files.is_open(), Ok(true));
        mount
    }

    fn opened(backend: B, cache_blocks: usize) -> Mount<B> {
        let options = Options { cache_blocks, read_only: false };
        let mut mount = Mount {
            files: Files::open(options, backend.block_count()),
            backend,
            next: 0,
            now: Time { seconds: 1000, nanoseconds: 0 },
            answers: BTreeMap::new(),
            lent: BTreeMap::new(),
        };
        mount.settle();
        mount
    }

    pub fn poll(&mut self) {
        while let Some(io) = self.files.poll_io() {
            self.backend.submit(io);
        }
        while let Some(mut response) = self.files.poll_response() {
            let given = match &mut response.result {
                Ok(Reply::Data(buffer, _) | Reply::Written(_, buffer)) => address(buffer),
                _ => address(&mut response.buffer),
            };
            let lent = self.lent.remove(&response.id).expect("a request is answered once");
            assert_eq!(given, lent, "request {} gets its own buffer back", response.id);
            self.answers.insert(response.id, response.result);
        }
    }

    /// Until nothing is out.
    pub fn settle(&mut self) {
        loop {
            self.poll();
            match self.backend.complete() {
                Some((io, buffer)) => {
                    self.files.handle_completion(io, self.backend.result(io), buffer)
                }
                None => return,
            }
        }
    }

    pub fn submit(&mut self, mut request: Request) -> u64 {
        self.next += 1;
        let lent = match &mut request {
            Request::Read { buffer, .. } | Request::Write { buffer, .. } => address(buffer),
            _ => 0,
        };
        self.lent.insert(self.next, lent);
        self.now.nanoseconds = (self.now.nanoseconds + 1000) % 1_000_000_000;
        self.files.handle_request(self.next, request, self.now);
        self.poll();
        self.next
    }

    /// Something completes, if anything is out.
    pub fn complete_one(&mut self) {
        if let Some((io, buffer)) = self.backend.complete() {
            self.files.handle_completion(io, self.backend.result(io), buffer);
        }
        self.poll();
    }

    /// The answer to a request, if there is one yet.
    pub fn answer(&mut self, id: u64) -> Option<Result<Reply, i32>> {
        self.answers.remove(&id)
    }

    pub fn wait(&mut self, id: u64) -> Result<Reply, i32> {
        loop {
            self.poll();
            if let Some(answer) = self.answers.remove(&id) {
                return answer;
            }
            let completed = self.backend.complete();
            let (io, buffer) = completed.expect("a request is answered");
            self.files.handle_completion(io, self.backend.result(io), buffer);
        }
    }

    pub fn run(&mut self, request: Request) -> Result<Reply, i32> {
        let id = self.submit(request);
        self.wait(id)
    }

    pub fn lookup(&mut self, directory: u64, text: &str) -> Result<Attributes, i32> {
        match self.run(Request::Lookup { directory, name: name(text) })? {
            Reply::Entry(entry) => {
                self.files.forget(entry.number, 1);
                Ok(entry)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn path(&mut self, path: &str) -> Result<u64, i32> {
        let mut at = ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            at = self.lookup(at, part)?.number;
        }
        Ok(at)
    }

    pub fn split<'a>(&mut self, path: &'a str) -> Result<(u64, Name, &'a str), i32> {
        let (parent, last) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.path(parent)?, name(last), last))
    }

    pub fn make(&mut self, path: &str, mode: u32) -> Result<u64, i32> {
        let (directory, name, _) = self.split(path)?;
        let new = NewNode { mode, ..NewNode::default() };
        match self.run(Request::Make { directory, name, new })? {
            Reply::Entry(entry) => {
                self.files.forget(entry.number, 1);
                Ok(entry.number)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn create(&mut self, path: &str) -> Result<u64, i32> {
        self.make(path, libc::S_IFREG | 0o644)
    }

    pub fn mkdir(&mut self, path: &str) -> Result<u64, i32> {
        self.make(path, libc::S_IFDIR | 0o755)
    }

    pub fn write(&mut self, inode: u64, offset: u64, bytes: &[u8]) -> Result<(), i32> {
        let buffer = Buffer::copied_from(bytes);
        let request =
            Request::Write { inode, offset, buffer, kills_privileges: false, sync: false };
        match self.run(request)? {
            Reply::Written(count, _) => {
                assert_eq!(count as usize, bytes.len());
                Ok(())
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn read(&mut self, inode: u64, offset: u64, length: u32) -> Result<Vec<u8>, i32> {
        let buffer = Buffer::zeroed(read_span(offset, length));
        match self.run(Request::Read { inode, offset, length, buffer })? {
            Reply::Data(buffer, range) => Ok(buffer[range].to_vec()),
            other => panic!("{other:?}"),
        }
    }

    pub fn attributes(&mut self, inode: u64) -> Result<Attributes, i32> {
        match self.run(Request::Attributes { inode })? {
            Reply::Attributes(attributes) => Ok(attributes),
            other => panic!("{other:?}"),
        }
    }

    pub fn sync(&mut self) {
        self.run(Request::Sync).expect("durable");
    }

    /// All names of a directory, in small portions.
    pub fn list(&mut self, directory: u64) -> Result<Vec<(Vec<u8>, u64)>, i32> {
        let (mut cookie, mut all) = (0, Vec::new());
        loop {
            let request = Request::List { directory, cookie, size: 400, with_attributes: false };
            let Reply::Listing(listing) = self.run(request)? else { panic!("a listing") };
            let Some(last) = listing.entries.last() else { return Ok(all) };
            cookie = last.cookie;
            for entry in &listing.entries {
                let name = listing.name(entry);
                if name != b"." && name != b".." {
                    all.push((name.to_vec(), entry.inode));
                }
            }
        }
    }

    /// Everything that a user can see, as text: path, kind, links, size, content, attributes.
    pub fn dump(&mut self) -> String {
        let mut lines = Vec::new();
        let mut todo = vec![(String::new(), ROOT)];
        let mut numbers = BTreeMap::new();
        while let Some((path, number)) = todo.pop() {
            let inode = self.attributes(number).expect("it has a name").inode;
            let order = numbers.len();
            let first = *numbers.entry(number).or_insert(order);
            let mut line = format!(
                "{path} {:o} {}:{} n{} s{}",
                inode.mode, inode.uid, inode.gid, inode.links, inode.size
            );
            match inode.mode & libc::S_IFMT {
                libc::S_IFDIR => {
                    let mut names = self.list(number).expect("a directory");
                    names.sort();
                    for (name, child) in names.into_iter().rev() {
                        let name = String::from_utf8_lossy(&name).into_owned();
                        todo.push((format!("{path}/{name}"), child));
                    }
                }
                libc::S_IFREG => {
                    let hash = self.content_hash(number, inode.size);
                    line += &format!(" i{first} b{} {hash:x}", inode.blocks);
                }
                libc::S_IFLNK => {
                    let target = self.run(Request::ReadLink { inode: number });
                    line += &format!(" -> {target:?}");
                }
                _ => {}
            }
            let xattrs = self.run(Request::XattrNames { inode: number }).expect("names");
            if let Reply::Bytes(list) = xattrs
                && !list.is_empty()
            {
                for attribute in list.split(|byte| *byte == 0).filter(|part| !part.is_empty()) {
                    let name = Name::new(attribute).expect("a name");
                    let value = self.run(Request::Xattr { inode: number, name });
                    line += &format!(" {}={value:?}", attribute.escape_ascii());
                }
            }
            lines.push(line);
        }
        lines.join("\n")
    }

    fn content_hash(&mut self, inode: u64, size: u64) -> u64 {
        let (mut hash, mut at) = (0xcbf29ce484222325u64, 0);
        while at < size {
            let bytes = self.read(inode, at, 1 << 18).expect("content");
            assert!(!bytes.is_empty(), "a file is as long as it says");
            for byte in &bytes {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100000001b3);
            }
            at += bytes.len() as u64;
        }
        hash
    }
}

fn push_blocks(step: &mut Step, first: u64, bytes: &[u8]) {
    assert!(!bytes.is_empty() && bytes.len().is_multiple_of(BLOCK_SIZE), "whole blocks");
    assert!(bytes.len() / BLOCK_SIZE <= 256, "no more than is atomic");
    for (block, data) in (first..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
        step.writes.push((block, Some(Rc::new(data.try_into().expect("a block")))));
    }
}

/// What the engine asks of such a write.
fn check_changes(changes: &[Change], length: usize) {
    assert!(changes.len() <= 200, "{} ranges", changes.len());
    let stored: u64 = changes.iter().filter(|change| !change.discard).map(|c| c.count).sum();
    assert_eq!(stored as usize * BLOCK_SIZE, length);
    assert!(stored <= 256);
    let mut sorted: Vec<_> = changes.iter().map(|c| (c.block, c.block + c.count)).collect();
    sorted.sort_unstable();
    assert!(sorted.windows(2).all(|pair| pair[0].1 <= pair[1].0), "ranges overlap");
    let discarded = changes.iter().filter(|change| change.discard);
    let updates: u64 = discarded.map(|c| c.count / 512 + 1022.min(c.count)).sum();
    assert!(stored + updates <= 1024, "{updates} updates");
}
