//! Random operations in one directory, one after the other, and what each should leave there.

use super::history::End;
use super::{Backend, Mount, Random, name};
use coulter::buffer::Buffer;
use coulter_files::{
    AllocateMode, Changes, Name, RenameFlags, Reply, Request, XattrMode, read_span,
};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

/// Names in the directory, and in the one within it.
const SLOTS: usize = 6;
/// Bytes of a file at most: no operation on it takes more than one step.
const SIZE_MAX: u64 = 8 * 4096;

#[derive(Clone)]
struct Content {
    bytes: Rc<Vec<u8>>,
    attribute: Option<u8>,
    hash: u64,
}

impl Content {
    fn new(bytes: Vec<u8>, attribute: Option<u8>) -> Content {
        let mut hasher = DefaultHasher::new();
        (&bytes, attribute).hash(&mut hasher);
        Content { bytes: Rc::new(bytes), attribute, hash: hasher.finish() }
    }

    fn changed(&self, change: impl FnOnce(&mut Vec<u8>)) -> Content {
        let mut bytes = self.bytes.to_vec();
        change(&mut bytes);
        Content::new(bytes, self.attribute)
    }
}

/// The files of a lane.
#[derive(Clone, Default)]
pub struct State {
    /// Which file has a name.
    names: BTreeMap<usize, u64>,
    files: BTreeMap<u64, Content>,
}

impl State {
    /// The same for two states that look the same.
    pub fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (slot, file) in &self.names {
            let first = self.names.iter().find(|(_, other)| *other == file);
            (slot, first.map(|(slot, _)| slot), self.files[file].hash).hash(&mut hasher);
        }
        hasher.finish()
    }
}

struct Out {
    request: u64,
    after: State,
    /// The file that is made.
    made: Option<u64>,
    /// Bytes that a read has to give.
    reads: Option<Vec<u8>>,
    /// It is answered when it is durable.
    is_durable: bool,
    /// Changes were refused when it began: if it fails, it was never begun.
    is_refused: bool,
}

/// See the module's documentation.
pub struct Lane {
    /// The directory, and the one within it.
    directories: [u64; 2],
    pub state: State,
    /// Numbers of inodes, by the file.
    numbers: BTreeMap<u64, u64>,
    next: u64,
    /// Files that the kernel knows, with names or without.
    held: Vec<u64>,
    out: Option<Out>,
    /// Writes have failed: reads may give what was there before.
    pub is_blind: bool,
    /// Changes are refused, those that have begun too.
    pub is_refused: bool,
    /// Its content is not sure.
    is_lost: bool,
}

/// Bytes of a file of this size, or behind its end.
fn range(random: &mut Random, size: u64) -> (u64, u64) {
    let offset = match random.below(3) {
        0 => random.below(SIZE_MAX / 4096) * 4096,
        1 => random.below(SIZE_MAX - 1),
        _ => size.min(SIZE_MAX - 1),
    };
    let length = match random.below(3) {
        0 => 1 + random.below(100),
        1 => 4096 * (1 + random.below(4)),
        _ => 1 + random.below(12_000),
    };
    (offset, length.min(SIZE_MAX - offset))
}

fn place(slot: usize) -> (usize, Name) {
    (slot % 2, name(["a", "b", "c"][slot / 2]))
}

impl Lane {
    pub fn make<B: Backend>(mount: &mut Mount<B>, text: &str) {
        mount.mkdir(text).expect("room");
        mount.mkdir(&format!("{text}/within")).expect("room");
    }

    /// The lane as it is found there.
    pub fn find<B: Backend>(mount: &mut Mount<B>, text: &str) -> Lane {
        let outer = mount.path(text).expect("it is there");
        let inner = mount.path(&format!("{text}/within")).expect("it is there");
        let directories = [outer, inner];
        let (mut state, mut numbers) = (State::default(), BTreeMap::new());
        for slot in 0..SLOTS {
            let (directory, name) = place(slot);
            let request = Request::Lookup { directory: directories[directory], name };
            let Ok(Reply::Entry(entry)) = mount.run(request) else { continue };
            mount.files.forget(entry.number, 1);
            let size = entry.inode.size;
            let bytes = mount.read(entry.number, 0, size as u32).expect("sound");
            assert_eq!(bytes.len() as u64, size, "a file is as long as it says");
            let request = Request::Xattr { inode: entry.number, name: super::name("user.x") };
            let attribute = match mount.run(request) {
                Ok(Reply::Bytes(value)) => Some(value[0]),
                _ => None,
            };
            // A file is called by its number if it was not made in this life.
            numbers.insert(entry.number, entry.number);
            state.names.insert(slot, entry.number);
            state.files.insert(entry.number, Content::new(bytes, attribute));
        }
        let next = 1 << 40;
        Lane {
            directories,
            state,
            numbers,
            next,
            held: Vec::new(),
            out: None,
            is_blind: false,
            is_refused: false,
            is_lost: false,
        }
    }

    pub fn is_idle(&self) -> bool {
        self.out.is_none() && !self.is_lost
    }

    /// Begins an operation. Returns what it should leave, and if it has to be durable with its
    /// answer.
    pub fn begin<B: Backend>(&mut self, mount: &mut Mount<B>, random: &mut Random) -> (u64, bool) {
        assert!(self.out.is_none(), "one at a time");
        if self.held.len() > 2 || random.chance(10) {
            self.let_go(mount);
        }
        let mut after = self.state.clone();
        let slot = random.below(SLOTS as u64) as usize;
        let named = after.names.get(&slot).copied();
        // A file without a name is used too, while it is known.
        let file = named.or_else(|| self.held.last().copied());
        let mut out = Out {
            request: 0,
            after: State::default(),
            made: None,
            reads: None,
            is_durable: false,
            is_refused: self.is_refused,
        };
        let is_new = named.is_none() && random.chance(60);
        let request = match file {
            Some(file) if !is_new && random.chance(70) => {
                self.on_content(&mut after, file, random, &mut out)
            }
            _ => self.on_names(&mut after, slot, random, &mut out),
        };
        out.is_durable = matches!(request, Request::Write { sync: true, .. });
        let is_durable = out.is_durable;
        let key = after.key();
        out.request = mount.submit(request);
        out.after = after;
        self.out = Some(out);
        (key, is_durable)
    }

    fn let_go<B: Backend>(&mut self, mount: &mut Mount<B>) {
        if let Some(file) = self.held.pop() {
            mount.files.forget(self.numbers[&file], 1);
        }
    }

    fn on_content(
        &mut self,
        after: &mut State,
        file: u64,
        random: &mut Random,
        out: &mut Out,
    ) -> Request {
        let inode = self.numbers[&file];
        let old = after.files[&file].clone();
        let (offset, length) = range(random, old.bytes.len() as u64);
        let (from, to) = (offset as usize, (offset + length) as usize);
        let seed = random.bits() as u8;
        let (request, new) = match random.below(12) {
            0..=4 => {
                let bytes: Vec<u8> =
                    (from..to).map(|at| (at as u8).wrapping_mul(7) ^ seed).collect();
                let (sync, kills_privileges) = (random.chance(5), random.chance(50));
                let buffer = Buffer::copied_from(&bytes);
                let new = old.changed(|content| {
                    content.resize(content.len().max(to), 0);
                    content[from..to].copy_from_slice(&bytes);
                });
                (Request::Write { inode, offset, buffer, kills_privileges, sync }, new)
            }
            5 | 6 => {
                let buffer = Buffer::zeroed(read_span(offset, length as u32));
                let end = to.min(old.bytes.len());
                out.reads = Some(old.bytes.get(from..end).unwrap_or(&[]).to_vec());
                (Request::Read { inode, offset, length: length as u32, buffer }, old)
            }
            7 => {
                let changes = Changes { size: Some(offset), ..Changes::default() };
                (Request::Change { inode, changes }, old.changed(|content| content.resize(from, 0)))
            }
            8 | 9 => {
                let keep_size = random.chance(50);
                let mode = match random.below(3) {
                    0 => AllocateMode::Punch,
                    1 => AllocateMode::Zero { keep_size },
                    _ => AllocateMode::Allocate { keep_size },
                };
                let grows = !keep_size && mode != AllocateMode::Punch;
                let zeroes = !matches!(mode, AllocateMode::Allocate { .. });
                let new = old.changed(|content| {
                    content.resize(if grows { content.len().max(to) } else { content.len() }, 0);
                    let end = to.min(content.len());
                    if zeroes && from < end {
                        content[from..end].fill(0);
                    }
                });
                (Request::Allocate { inode, offset, length, mode }, new)
            }
            10 => {
                let value = vec![seed; 1 + random.below(3000) as usize].into();
                let (name, mode) = (name("user.x"), XattrMode::Any);
                let request = Request::SetXattr { inode, name, value, mode, kills_set_gid: false };
                (request, Content::new(old.bytes.to_vec(), Some(seed)))
            }
            _ => return self.copy(after, file, (offset, length), random),
        };
        after.files.insert(file, new);
        request
    }

    /// Copies to this file from another or itself.
    fn copy(
        &self,
        after: &mut State,
        to: u64,
        (from_offset, length): (u64, u64),
        random: &mut Random,
    ) -> Request {
        let all: Vec<u64> = self.state.names.values().copied().collect();
        let from = if all.is_empty() { to } else { all[random.below(all.len() as u64) as usize] };
        let source = Rc::clone(&after.files[&from].bytes);
        let end = (from_offset + length).min(source.len() as u64) as usize;
        let to_offset = random.below(SIZE_MAX - length + 1);
        let bytes = source.get(from_offset as usize..end).unwrap_or(&[]);
        if !bytes.is_empty() {
            let new = after.files[&to].changed(|content| {
                let at = to_offset as usize;
                content.resize(content.len().max(at + bytes.len()), 0);
                content[at..at + bytes.len()].copy_from_slice(bytes);
            });
            after.files.insert(to, new);
        }
        let (from, to) = (self.numbers[&from], self.numbers[&to]);
        Request::Copy { from, from_offset, to, to_offset, length }
    }

    fn on_names(
        &mut self,
        after: &mut State,
        slot: usize,
        random: &mut Random,
        out: &mut Out,
    ) -> Request {
        let (directory, name) = place(slot);
        let directory = self.directories[directory];
        let other = random.below(SLOTS as u64) as usize;
        let (to, new_name) = place(other);
        let to = self.directories[to];
        let Some(file) = after.names.get(&slot).copied() else {
            let (file, mode) = (self.next, libc::S_IFREG | 0o644);
            self.next += 1;
            out.made = Some(file);
            after.names.insert(slot, file);
            after.files.insert(file, Content::new(Vec::new(), None));
            let new = coulter_files::NewNode { mode, ..Default::default() };
            return Request::Make { directory, name, new };
        };
        let taken = after.names.get(&other).copied();
        match (random.below(4), taken) {
            (0, None) => {
                after.names.insert(other, file);
                Request::Link { inode: self.numbers[&file], directory: to, name: new_name }
            }
            (1, Some(taken)) => {
                after.names.insert(slot, taken);
                after.names.insert(other, file);
                let flags = RenameFlags::Exchange;
                Request::Rename { from: directory, name, to, new_name, flags }
            }
            (2, taken) => {
                if taken != Some(file) {
                    after.names.remove(&slot);
                    after.names.insert(other, file);
                }
                let flags = RenameFlags::Replace;
                Request::Rename { from: directory, name, to, new_name, flags }
            }
            _ => {
                after.names.remove(&slot);
                Request::Unlink { directory, name }
            }
        }
    }

    /// Takes the answer, if there is one.
    pub fn end<B: Backend>(&mut self, mount: &mut Mount<B>, random: &mut Random) -> Option<End> {
        let answer = mount.answer(self.out.as_ref()?.request)?;
        let Out { after, made, reads, is_durable, is_refused, .. } = self.out.take()?;
        match answer {
            Err(errno) => {
                let may_be = [libc::ENOSPC, libc::EIO, libc::EROFS];
                assert!(may_be.contains(&errno), "an operation fails with {errno}");
                // It may be done, and only not durable; or have been in the midst of it.
                self.is_lost = is_durable || (self.is_refused && !is_refused);
                return Some(if self.is_lost { End::Unsure } else { End::Failed });
            }
            Ok(Reply::Entry(entry)) => {
                if let Some(file) = made {
                    self.numbers.insert(file, entry.number);
                }
                let file = self.numbers.iter().find(|(_, number)| **number == entry.number);
                match file {
                    // The kernel knows it from now on, whatever becomes of its names.
                    Some((file, _)) if random.chance(30) => self.held.push(*file),
                    _ => mount.files.forget(entry.number, 1),
                }
            }
            Ok(Reply::Data(buffer, range)) => {
                let is_right = Some(&buffer[range]) == reads.as_deref();
                assert!(is_right || self.is_blind, "a read gives what was written");
            }
            Ok(_) => {}
        }
        self.state = after;
        let State { names, files } = &mut self.state;
        files.retain(|file, _| self.held.contains(file) || names.values().any(|n| n == file));
        self.numbers.retain(|file, _| files.contains_key(file));
        Some(End::Done)
    }
}
