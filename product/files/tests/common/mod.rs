//! A file system on a volume, driven one operation at a time or with many under way.
#![allow(unreachable_pub, dead_code, reason = "each test uses a part of it")]

pub mod ace;
pub mod beside;
mod checked;
pub mod engine;
pub mod errors;
pub mod full;
mod history;
mod lane;
pub mod lives;
pub mod model;
pub mod power;
pub mod scenes;
pub mod sequences;
mod volume;

pub use checked::{check, orphan_count};
use coulter::buffer::Buffer;
use coulter_files::{
    Attributes, BLOCK_SIZE, Files, Io, IoError, Name, NewNode, Options, ROOT, Reply, Request, Time,
    read_span,
};
use coulter_workload::Random;
use std::collections::BTreeMap;
pub use volume::{Block, Fails, InMemory, Volume, empty};

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
                None => break,
            }
        }
        self.files.assert_invariants();
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
