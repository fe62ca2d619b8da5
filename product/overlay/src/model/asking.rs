//! Requests of a life by chance.

use super::lives::{Flight, Life, NAMES, lookup};
use super::shadow::{FILE_BLOCKS, Shadow};
use coulter::buffer::Buffer;
use coulter_files::{
    AllocateMode, Changes, FileService, Name, NewNode, ROOT, RenameFlags, Request, read_span,
};
use coulter_format::BLOCK_SIZE;

const FILE_SIZE: usize = FILE_BLOCKS * BLOCK_SIZE;
/// Requests at once.
const REQUESTS_MAX: usize = 8;

impl Life {
    /// A file by chance that the kernel knows, with a number.
    fn some_file(&mut self) -> Option<(usize, u64)> {
        let known = self.files.iter().enumerate();
        let known: Vec<_> =
            known.filter_map(|(at, file)| file.inode.map(|inode| (at, inode))).collect();
        let count = known.len() as u64;
        (count > 0).then(|| known[self.chance.below(count) as usize])
    }

    pub(super) fn ask_something(&mut self) -> Result<(), String> {
        if self.flights.len() >= REQUESTS_MAX {
            return Ok(());
        }
        let Some((file, inode)) = self.some_file() else {
            self.change_names();
            return Ok(());
        };
        if self.files[file].is_uncertain && self.files[file].is_idle() {
            return self.look_anew(file);
        }
        match self.chance.below(28) {
            0..=11 => self.write(file, inode),
            12 | 13 => self.resize(file, inode),
            14 | 15 => self.read(file, inode),
            16..=18 => {
                let moments = vec![(file, self.files[file].moment())];
                self.give(Request::SyncNode { inode }, Flight::Sync { moments, names: None });
            }
            19 => {
                let names = Some(self.names_before + self.names.len() - 1);
                if self.chance.one_of(2) {
                    let request = Request::SyncNode { inode: ROOT };
                    self.give(request, Flight::Sync { moments: Vec::new(), names });
                } else {
                    let all = self.files.iter().enumerate();
                    let moments = all.map(|(at, file)| (at, file.moment())).collect();
                    self.give(Request::Sync, Flight::Sync { moments, names });
                }
            }
            20 => self.give(Request::Settle, Flight::Other(None)),
            21 => self.allocate(file, inode),
            22 => {
                let changes = Changes { mode: Some(0o600), ..Changes::default() };
                self.give(Request::Change { inode, changes }, Flight::Other(Some(file)));
            }
            23 => self.give(Request::Attributes { inode }, Flight::Other(Some(file))),
            24 | 25 => self.forget(file, inode),
            _ => self.change_names(),
        }
        Ok(())
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        // No two writes are alike.
        let mut bytes = vec![(self.asked % 251) as u8 | 1; length];
        bytes.iter_mut().zip(self.asked.to_le_bytes()).for_each(|(byte, id)| *byte = id);
        bytes
    }

    fn write(&mut self, file: usize, inode: u64) {
        let block = self.chance.below(FILE_BLOCKS as u64) as usize;
        let (offset, length) = match self.chance.below(8) {
            0 => (block * BLOCK_SIZE + 50, 100),
            1 if block > 0 => (block * BLOCK_SIZE - 50, 100),
            2 => (block * BLOCK_SIZE, ((FILE_BLOCKS - block) * BLOCK_SIZE).min(3 * BLOCK_SIZE)),
            _ => (block * BLOCK_SIZE, BLOCK_SIZE),
        };
        let shadow = &self.files[file];
        let grows = (offset + length) as u64 > *shadow.size.now();
        let range = offset / BLOCK_SIZE..(offset + length).div_ceil(BLOCK_SIZE);
        if shadow.is_uncertain || !shadow.is_free(&(!grows).then_some(range)) {
            return;
        }
        let bytes = self.bytes(length);
        let sync = self.chance.one_of(8);
        let change = self.files[file].write(self.asked + 1, offset, &bytes);
        let (buffer, kills_privileges) = (Buffer::copied_from(&bytes), self.chance.one_of(8));
        let offset = offset as u64;
        let request = Request::Write { inode, offset, buffer, kills_privileges, sync };
        self.give(request, Flight::Change { file, change, is_durable: sync });
    }

    fn resize(&mut self, file: usize, inode: u64) {
        let shadow = &self.files[file];
        if shadow.is_uncertain || !shadow.is_free(&None) {
            return;
        }
        let block = self.chance.below(FILE_BLOCKS as u64) * BLOCK_SIZE as u64;
        let size = block + if self.chance.one_of(2) { self.chance.below(4096) } else { 0 };
        let change = self.files[file].resize(self.asked + 1, size);
        let changes = Changes { size: Some(size), ..Changes::default() };
        let flight = Flight::Change { file, change, is_durable: false };
        self.give(Request::Change { inode, changes }, flight);
    }

    fn allocate(&mut self, file: usize, inode: u64) {
        let first = self.chance.below(FILE_BLOCKS as u64) as usize;
        let range = first..(first + 2).min(FILE_BLOCKS);
        let (offset, length) = (first as u64, range.len() as u64);
        let (offset, length) = (offset * BLOCK_SIZE as u64, length * BLOCK_SIZE as u64);
        let shadow = &mut self.files[file];
        let flight = if self.chance.one_of(2) {
            if shadow.is_uncertain || !shadow.is_free(&Some(range.clone())) {
                return;
            }
            let change = shadow.punch(self.asked + 1, range);
            (AllocateMode::Punch, Flight::Change { file, change, is_durable: false })
        } else {
            (AllocateMode::Allocate { keep_size: true }, Flight::Other(Some(file)))
        };
        let (mode, flight) = flight;
        self.give(Request::Allocate { inode, offset, length, mode }, flight);
    }

    fn read(&mut self, file: usize, inode: u64) {
        let offset = self.chance.below(FILE_SIZE as u64);
        let length = 1 + self.chance.below(FILE_SIZE as u64) as u32;
        let moment = self.files[file].moment();
        let buffer = Buffer::zeroed(read_span(offset, length));
        let range = (offset as usize, length as usize);
        let request = Request::Read { inode, offset, length, buffer };
        self.give(request, Flight::Read { file, range, moment });
    }

    /// The kernel forgets a file of which nothing is under way.
    fn forget(&mut self, file: usize, inode: u64) {
        let uses = |flight: &Flight| match flight {
            Flight::Change { file: other, .. } | Flight::Read { file: other, .. } => *other == file,
            Flight::Sync { moments, names: None } => {
                moments.iter().any(|(other, _)| *other == file)
            }
            Flight::Other(other) => *other == Some(file),
            Flight::Lookup(other) => *other == file,
            Flight::Names(_) => true,
            Flight::Sync { .. } => false,
        };
        if self.flights.values().any(uses) {
            return;
        }
        self.overlay.forget(inode, u64::MAX);
        self.files[file].inode = None;
    }

    /// Names are changed one after the other.
    fn change_names(&mut self) {
        if self.flights.values().any(|flight| matches!(flight, Flight::Names(_))) {
            return;
        }
        let mut names = self.names_now().clone();
        let [from, to] = [0, 1].map(|_| NAMES[self.chance.below(NAMES.len() as u64) as usize]);
        let (name, new_name) = (Name::new(from).expect("a name"), Name::new(to).expect("a name"));
        if from == to {
            // The kernel does not ask for that.
            return;
        }
        let target = names.get(to).copied();
        let known = names.get(from).map(|file| (*file, self.files[*file].inode));
        let Some((file, inode)) = known else {
            let new = NewNode { mode: 0o644, ..NewNode::default() };
            names.insert(from, self.files.len());
            self.files.push(Shadow::new(&[]));
            let request = Request::Make { directory: ROOT, name, new };
            return self.give(request, Flight::Names(names));
        };
        if inode.is_none() {
            return self.give(lookup(from), Flight::Lookup(file));
        }
        if let Some(target) = target.filter(|target| self.files[*target].inode.is_none()) {
            // The kernel looks at what it replaces.
            return self.give(lookup(to), Flight::Lookup(target));
        }
        if self.chance.one_of(2) {
            names.remove(from);
            return self.give(Request::Unlink { directory: ROOT, name }, Flight::Names(names));
        }
        let replaced = target;
        let flags = match self.chance.below(4) {
            0 if replaced.is_some() => RenameFlags::Exchange,
            1 if replaced.is_none() => RenameFlags::NoReplace,
            _ => RenameFlags::Replace,
        };
        names.remove(from);
        if let Some(replaced) = replaced.filter(|_| flags == RenameFlags::Exchange) {
            names.insert(from, replaced);
        }
        names.insert(to, file);
        let request = Request::Rename { from: ROOT, name, to: ROOT, new_name, flags };
        self.give(request, Flight::Names(names));
    }
}
