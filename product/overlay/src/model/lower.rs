//! A lower directory in memory, with one level of names, that says what a power cut would leave.

use crate::lower::{Found, Handle, Lower, Outcome, Settings, ShowName, Status};
use coulter_files::{AllocateMode, NewNode, RenameFlags, Time, Usage, Whence, XattrMode};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

const ROOT: u64 = 2;
const BLOCK: u64 = coulter_format::BLOCK_SIZE as u64;

/// What a power cut takes of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    Nothing,
    Everything,
    /// Names, sizes, times and attributes stay, data goes.
    Data,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct File {
    data: Vec<u8>,
    /// Blocks that have space.
    allocated: BTreeSet<u64>,
    links: u32,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    modified: i64,
    changed: i64,
}

#[derive(Clone, Copy, Debug)]
enum Begun {
    Sync(Handle),
    SyncAll,
    /// Nothing that a power cut would respect.
    WriteOut,
}

#[derive(Clone, Debug, Default)]
struct State {
    files: BTreeMap<u64, File>,
    names: BTreeMap<Vec<u8>, u64>,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelLower {
    now: State,
    durable: State,
    clock: i64,
    /// What was begun, by its tag.
    begun: VecDeque<(u64, Begun)>,
    /// The first of them has ended.
    has_ended: bool,
    /// What there was before each change, if somebody wants to know.
    history: Option<Vec<State>>,
}

fn handle(number: u64) -> Handle {
    Handle::new(1, &number.to_le_bytes()).expect("it is short")
}

fn number(handle: &Handle) -> u64 {
    u64::from_le_bytes(handle.bytes().try_into().expect("it was made here"))
}

/// The blocks of a range of bytes.
fn blocks(offset: u64, length: u64) -> std::ops::Range<u64> {
    offset / BLOCK..(offset + length).div_ceil(BLOCK)
}

fn time(seconds: i64) -> Time {
    Time { seconds, nanoseconds: 0 }
}

impl ModelLower {
    /// Ends what was begun first; false if there is none.
    pub(crate) fn end_sync(&mut self) -> bool {
        self.has_ended = !self.begun.is_empty();
        self.has_ended
    }

    /// One file of this content, durable.
    pub(crate) fn with_file(name: &[u8], content: &[u8]) -> ModelLower {
        let mut lower = ModelLower { clock: 1, ..ModelLower::default() };
        lower.add_file(name, content);
        lower
    }

    /// One more.
    pub(crate) fn add_file(&mut self, name: &[u8], content: &[u8]) {
        let number = 10 + self.now.files.len() as u64;
        let allocated = blocks(0, content.len() as u64).collect();
        let file = File { data: content.to_vec(), links: 1, allocated, ..File::default() };
        self.now.files.insert(number, file);
        self.now.names.insert(name.to_vec(), number);
        self.durable = self.now.clone();
    }

    /// From now on what there was before each change is kept.
    pub(crate) fn keep_history(&mut self) {
        self.history = Some(Vec::new());
    }

    /// What a kill would have left before each change since this was asked for last.
    pub(crate) fn take_history(&mut self) -> Vec<ModelLower> {
        let history = self.history.as_mut().map(std::mem::take).unwrap_or_default();
        let plain = ModelLower { durable: self.durable.clone(), ..ModelLower::default() };
        let moment = |now| ModelLower { now, clock: self.clock, ..plain.clone() };
        history.into_iter().map(moment).collect()
    }

    /// What is there after a power cut.
    pub(crate) fn cut(&self, loss: Loss) -> ModelLower {
        let mut state = match loss {
            Loss::Nothing | Loss::Data => self.now.clone(),
            Loss::Everything => self.durable.clone(),
        };
        if loss == Loss::Data {
            for (number, file) in &mut state.files {
                let length = file.data.len();
                file.data =
                    self.durable.files.get(number).map(|old| old.data.clone()).unwrap_or_default();
                file.data.resize(length, 0);
            }
        }
        // What has no name goes with the processes.
        state.files.retain(|_, file| file.links > 0);
        ModelLower {
            now: state.clone(),
            durable: state,
            clock: self.clock,
            ..ModelLower::default()
        }
    }

    /// Somebody else writes to the file.
    pub(crate) fn meddle(&mut self) {
        let file = self.touched(&handle(10)).expect("it is there");
        file.data[0] ^= 1;
        file.modified = file.changed;
    }

    fn file(&self, node: &Handle) -> Outcome<&File> {
        self.now.files.get(&number(node)).ok_or(libc::ESTALE)
    }

    fn touched(&mut self, node: &Handle) -> Outcome<&mut File> {
        self.clock += 1;
        if let Some(history) = &mut self.history {
            history.push(self.now.clone());
        }
        let file = self.now.files.get_mut(&number(node)).ok_or(libc::ESTALE)?;
        file.changed = self.clock;
        Ok(file)
    }
}

impl Lower for ModelLower {
    fn root(&self) -> Handle {
        handle(ROOT)
    }

    fn lookup(&mut self, _: &Handle, name: &[u8]) -> Outcome<Found> {
        let number = *self.now.names.get(name).ok_or(libc::ENOENT)?;
        let handle = handle(number);
        Ok(Found { handle, status: self.status(&handle)? })
    }

    fn status(&mut self, node: &Handle) -> Outcome<Status> {
        let file = self.file(node)?;
        let (zero, size) = (time(0), file.data.len() as u64);
        Ok(Status {
            number: number(node),
            mode: libc::S_IFREG | 0o644,
            links: file.links,
            uid: 0,
            gid: 0,
            size,
            sectors: size.div_ceil(512),
            device: 0,
            accessed: zero,
            modified: time(file.modified),
            changed: time(file.changed),
            born: zero,
        })
    }

    fn read(&mut self, node: &Handle, offset: u64, bytes: &mut [u8]) -> Outcome<usize> {
        let rest = self.file(node)?.data.get(offset as usize..).unwrap_or(&[]);
        let count = rest.len().min(bytes.len());
        bytes[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write(&mut self, node: &Handle, offset: u64, bytes: &[u8]) -> Outcome<()> {
        let file = self.touched(node)?;
        let end = offset as usize + bytes.len();
        file.allocated.extend(blocks(offset, bytes.len() as u64));
        file.data.resize(file.data.len().max(end), 0);
        file.data[offset as usize..end].copy_from_slice(bytes);
        file.modified = file.changed;
        Ok(())
    }

    fn set_size(&mut self, node: &Handle, size: u64) -> Outcome<()> {
        let file = self.touched(node)?;
        file.data.resize(size as usize, 0);
        file.allocated.retain(|block| *block < size.div_ceil(BLOCK));
        file.modified = file.changed;
        Ok(())
    }

    fn set(&mut self, node: &Handle, settings: &Settings) -> Outcome<()> {
        let file = self.touched(node)?;
        if let Some(modified) = settings.modified {
            file.modified = modified.seconds;
        }
        Ok(())
    }

    fn sync(&mut self, node: &Handle) -> Outcome<()> {
        if let Some(file) = self.now.files.get(&number(node)) {
            self.durable.files.insert(number(node), file.clone());
        }
        Ok(())
    }

    fn begin_sync(&mut self, node: &Handle, tag: u64) -> Option<Outcome<()>> {
        self.begun.push_back((tag, Begun::Sync(*node)));
        None
    }

    fn begin_sync_all(&mut self, tag: u64) -> Option<Outcome<()>> {
        self.begun.push_back((tag, Begun::SyncAll));
        None
    }

    fn begin_writing_out(&mut self, _: &Handle, _: Range<u64>, tag: u64) -> Option<Outcome<()>> {
        self.begun.push_back((tag, Begun::WriteOut));
        None
    }

    fn next_synced(&mut self) -> Option<(u64, Outcome<()>)> {
        if !std::mem::take(&mut self.has_ended) {
            return None;
        }
        let (tag, begun) = self.begun.pop_front()?;
        let result = match begun {
            Begun::Sync(node) => self.sync(&node),
            Begun::SyncAll => self.sync_all(),
            Begun::WriteOut => Ok(()),
        };
        Some((tag, result))
    }

    fn sync_all(&mut self) -> Outcome<()> {
        self.durable = self.now.clone();
        Ok(())
    }

    fn unlink(&mut self, _: &Handle, name: &[u8], _: bool) -> Outcome<()> {
        let number = self.now.names.remove(name).ok_or(libc::ENOENT)?;
        self.touched(&handle(number))?.links -= 1;
        Ok(())
    }

    fn xattr(&mut self, node: &Handle, name: &[u8]) -> Outcome<Vec<u8>> {
        self.file(node)?.xattrs.get(name).cloned().ok_or(libc::ENODATA)
    }

    fn set_xattr(&mut self, node: &Handle, name: &[u8], value: &[u8], _: XattrMode) -> Outcome<()> {
        self.touched(node)?.xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    fn remove_xattr(&mut self, node: &Handle, name: &[u8]) -> Outcome<()> {
        if !self.file(node)?.xattrs.contains_key(name) {
            return Err(libc::ENODATA);
        }
        self.touched(node)?.xattrs.remove(name).map(drop).ok_or(libc::ENODATA)
    }

    fn allocate(
        &mut self,
        node: &Handle,
        offset: u64,
        length: u64,
        _: AllocateMode,
    ) -> Outcome<()> {
        let file = self.touched(node)?;
        file.allocated.extend(blocks(offset, length));
        file.modified = file.changed;
        Ok(())
    }

    fn seek(&mut self, node: &Handle, offset: u64, whence: Whence) -> Outcome<u64> {
        let file = self.file(node)?;
        let size = file.data.len() as u64;
        let hole = blocks(offset, size.saturating_sub(offset))
            .find(|block| !file.allocated.contains(block))
            .map_or(size, |block| (block * BLOCK).max(offset));
        match whence {
            _ if offset >= size => Err(libc::ENXIO),
            Whence::Data => Ok(offset),
            Whence::Hole => Ok(hole),
        }
    }

    fn hold(&mut self, node: &Handle) -> Outcome<()> {
        self.file(node).map(drop)
    }

    fn release(&mut self, _: &Handle) {}

    fn make(&mut self, _: &Handle, _: &[u8], _: &NewNode) -> Outcome<Found> {
        Err(libc::EOPNOTSUPP)
    }

    fn make_unnamed(&mut self, _: &Handle, _: &NewNode) -> Outcome<Found> {
        Err(libc::EOPNOTSUPP)
    }

    fn link(&mut self, _: &Handle, _: &Handle, _: &[u8]) -> Outcome<()> {
        Err(libc::EOPNOTSUPP)
    }

    fn rename(
        &mut self,
        from: (&Handle, &[u8]),
        to: (&Handle, &[u8]),
        _: RenameFlags,
    ) -> Outcome<()> {
        let number = *self.now.names.get(from.1).ok_or(libc::ENOENT)?;
        self.touched(&handle(number))?;
        self.now.names.remove(from.1);
        if let Some(replaced) = self.now.names.insert(to.1.to_vec(), number) {
            self.touched(&handle(replaced))?.links -= 1;
        }
        Ok(())
    }

    fn target(&mut self, _: &Handle) -> Outcome<Vec<u8>> {
        Err(libc::EINVAL)
    }

    fn list(&mut self, _: &Handle, _: u64, _: ShowName<'_>) -> Outcome<()> {
        Err(libc::EOPNOTSUPP)
    }

    fn xattr_names(&mut self, _: &Handle) -> Outcome<Vec<u8>> {
        Err(libc::EOPNOTSUPP)
    }

    fn copy(&mut self, _: (&Handle, u64), _: (&Handle, u64), _: u64) -> Outcome<u64> {
        Err(libc::EOPNOTSUPP)
    }

    fn usage(&mut self) -> Outcome<Usage> {
        Err(libc::EOPNOTSUPP)
    }
}
