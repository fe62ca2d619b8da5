//! Reading and writing: in the lower file, or in the store.

use crate::io::{Pending, Stage, Then};
use crate::locks::Mode;
use crate::lower::{Handle, Lower, Outcome, Settings};
use crate::overlay::{Overlay, Remap, SettleWhen, Work};
use crate::store::Batch;
use crate::sync::Waiter;
use coulter::buffer::Buffer;
use coulter_files::{AllocateMode, Command, Reply, Request, Time, Whence};
use coulter_format::BLOCK_SIZE;
use coulter_format::overlay::{Record, WINDOW_BLOCKS};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// A run of overwrites that is so long is in order, and stays in place.
const RUN_SIZE_MIN: u64 = 256 << 10;
/// Blocks of data that one atomic write takes; the rest is for records and owners of windows.
const DATA_BLOCKS_MAX: u64 = 200;
/// The extended attribute that gives a program rights.
const CAPABILITY: &[u8] = b"security.capability";

/// A write whose blocks are being made whole.
#[derive(Debug)]
pub(crate) struct Merge {
    pub(crate) record: u32,
    pub(crate) offset: u64,
    /// Whole blocks, from the one with `offset` on.
    pub(crate) image: Vec<u8>,
    pub(crate) payload: Buffer,
    pub(crate) sync: bool,
    pub(crate) now: Time,
}

/// Data for the store: whole blocks of a file.
struct Data {
    record: u32,
    /// The first block's number in the file.
    first: u64,
    /// The size of the file afterwards.
    size: u64,
    now: Time,
}

impl<L: Lower> Overlay<L> {
    pub(crate) fn read(
        &mut self,
        id: u64,
        number: u64,
        offset: u64,
        length: u32,
        mut buffer: Buffer,
    ) {
        let length = length as usize;
        let result = self.handle_of(number).and_then(|handle| {
            let start = (offset % BLOCK) as usize;
            self.lower.read(&handle, offset, &mut buffer[start..start + length])
        });
        match result {
            Ok(count) => {
                let start = (offset % BLOCK) as usize;
                self.end(
                    Some(id),
                    None,
                    Ok(Reply::Data(buffer, start..start + count)),
                    Buffer::empty(),
                );
            }
            Err(errno) => self.end(Some(id), None, Err(errno), buffer),
        }
    }

    /// Reads a file of which blocks are in the store, with its lock.
    pub(crate) fn read_adopted(
        &mut self,
        (id, record, mode): (u64, u32, Mode),
        (offset, length): (u64, u32),
        mut buffer: Buffer,
    ) {
        let lock = Some((record, mode));
        let size = self.store.adopted(record).record.size;
        let end = offset.saturating_add(length.into()).min(size);
        if offset >= end {
            return self.end(Some(id), lock, Ok(Reply::Data(buffer, 0..0)), Buffer::empty());
        }
        let (first, count) = (offset / BLOCK, end.div_ceil(BLOCK) - offset / BLOCK);
        let pieces = self.store.pieces(record, first, count);
        let span = (count * BLOCK) as usize;
        for piece in pieces.iter().filter(|piece| piece.host.is_none()) {
            let at = ((piece.first - first) * BLOCK) as usize;
            let bytes = &mut buffer[at..at + (piece.count * BLOCK) as usize];
            if let Err(errno) = self.read_lower(record, piece.first * BLOCK, bytes) {
                return self.end(Some(id), lock, Err(errno), buffer);
            }
        }
        let start = (offset % BLOCK) as usize;
        let range = start..start + (end - offset) as usize;
        let stored: Vec<_> = pieces.iter().filter(|piece| piece.host.is_some()).collect();
        if stored.is_empty() {
            return self.end(Some(id), lock, Ok(Reply::Data(buffer, range)), Buffer::empty());
        }
        if let ([piece], Some(block)) = (&pieces[..], pieces[0].host) {
            assert_eq!(piece.count, count, "one piece is all of it");
            let task =
                self.add_task(Some(id), lock, Stage::Read { buffer: Buffer::empty(), range });
            buffer.set_length(span);
            self.push_io(Command::Read { block, buffer }, Pending::Whole { task });
            return;
        }
        let task = self.add_task(Some(id), lock, Stage::Read { buffer, range });
        for piece in pieces {
            let Some(block) = piece.host else { continue };
            let at = ((piece.first - first) * BLOCK) as usize;
            let buffer = Buffer::zeroed((piece.count * BLOCK) as usize);
            self.push_io(Command::Read { block, buffer }, Pending::Piece { task, at });
        }
    }

    /// Bytes of the lower file as far as they count; zeros behind that.
    pub(crate) fn read_lower(&mut self, record: u32, offset: u64, bytes: &mut [u8]) -> Outcome<()> {
        self.check_lower(record)?;
        let Record { handle, lower_valid, .. } = self.store.adopted(record).record;
        let valid = lower_valid.saturating_sub(offset).min(bytes.len() as u64) as usize;
        let count = self.lower.read(&handle, offset, &mut bytes[..valid])?;
        bytes[count..].fill(0);
        Ok(())
    }

    /// A write to a file of which no block is in the store yet.
    pub(crate) fn write(&mut self, work: Work) {
        let Work { id, request, now, .. } = work;
        let Request::Write { inode, offset, buffer, kills_privileges, sync } = request else {
            unreachable!("only writes come here")
        };
        let length = buffer.len() as u64;
        let handle = match self.handle_of(inode) {
            Ok(handle) => handle,
            Err(errno) => return self.end(Some(id), None, Err(errno), buffer),
        };
        match self.is_to_remap(inode, &handle, offset, length) {
            Ok(true) => {
                let request = Request::Write { inode, offset, buffer, kills_privileges, sync };
                match self.begin_adoption(inode, &handle, Work::new(id, request, now)) {
                    Ok(None) => {}
                    Ok(Some(work)) => self.write_in_place(&handle, work),
                    Err((errno, work)) => self.refuse(*work, errno),
                }
            }
            Ok(false) => {
                let request = Request::Write { inode, offset, buffer, kills_privileges, sync };
                self.write_in_place(&handle, Work::new(id, request, now));
            }
            Err(errno) => self.end(Some(id), None, Err(errno), buffer),
        }
    }

    fn write_in_place(&mut self, handle: &Handle, work: Work) {
        let Work { id, request, .. } = work;
        let Request::Write { inode, offset, buffer, kills_privileges, sync } = request else {
            unreachable!("only writes come here")
        };
        let length = buffer.len() as u64;
        self.counters.in_place_writes += 1;
        let mut written = Ok(());
        if kills_privileges {
            written = self.strip_privileges(inode, handle);
        }
        let written = written.and_then(|()| self.lower.write(handle, offset, &buffer));
        self.touch(inode);
        match written {
            Ok(()) => {
                let reply = Reply::Written(length as u32, buffer);
                if sync {
                    self.syncs.push((Waiter { id, reply }, inode));
                } else {
                    self.end(Some(id), None, Ok(reply), Buffer::empty());
                }
            }
            Err(errno) => self.end(Some(id), None, Err(errno), buffer),
        }
    }

    /// Whether a write is one of those that go to the store.
    fn is_to_remap(
        &mut self,
        number: u64,
        handle: &Handle,
        offset: u64,
        length: u64,
    ) -> Outcome<bool> {
        let remap = self.options.remap;
        if remap == Remap::Off || self.is_ending {
            return Ok(false);
        }
        if self.options.settle == SettleWhen::Never && !self.has_room(length.div_ceil(BLOCK) + 1) {
            // Nothing makes room by itself.
            return Ok(false);
        }
        let size = self.lower.status(handle)?.size;
        let node = self.nodes.get_mut(&number).ok_or(libc::ESTALE)?;
        let follows = node.next_write == offset;
        node.run = if follows { node.run.saturating_add(length) } else { length };
        node.next_write = offset + length;
        Ok(match remap {
            Remap::All => true,
            _ => !follows && offset < size && length < RUN_SIZE_MIN && node.run < RUN_SIZE_MIN,
        })
    }

    /// A write to a file of which blocks are in the store, with its lock.
    pub(crate) fn write_adopted(
        &mut self,
        (id, record, mode): (u64, u32, Mode),
        request: Request,
        now: Time,
    ) {
        let lock = Some((record, mode));
        let Request::Write { inode, offset, buffer, kills_privileges, sync } = request else {
            unreachable!("only writes come here")
        };
        let length = buffer.len() as u64;
        if length == 0 {
            return self.end(Some(id), lock, Ok(Reply::Written(0, buffer)), Buffer::empty());
        }
        let end = offset.saturating_add(length);
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
        let missing = self.store.missing(record, first, last - first);
        if missing > 0 && !self.has_room(missing) {
            let request = Request::Write { inode, offset, buffer, kills_privileges, sync };
            self.unlock(record, mode);
            return self.wait_for_room(Work::new(id, request, now));
        }
        let ready = self.prepare_write(record, inode, kills_privileges, missing, offset, length);
        match ready {
            Ok(true) => {}
            Ok(false) => {
                let request = Request::Write { inode, offset, buffer, kills_privileges, sync };
                return self.note_space((record, mode), Work::new(id, request, now));
            }
            Err(errno) => return self.end(Some(id), lock, Err(errno), buffer),
        }
        self.counters.remapped_writes += 1;
        let size = self.store.adopted(record).record.size;
        if offset.is_multiple_of(BLOCK) && length.is_multiple_of(BLOCK) {
            let data = Data { record, first, size: size.max(end), now };
            return self.store_data(Some(id), lock, &data, None, buffer, sync);
        }
        let image = vec![0; ((last - first) * BLOCK) as usize];
        let merge = Merge { record, offset, image, payload: buffer, sync, now };
        self.fetch_edges(id, lock, merge, size, end);
    }

    /// What has to be done below before blocks are taken. False: the record must say first that space is taken.
    fn prepare_write(
        &mut self,
        record: u32,
        number: u64,
        kills_privileges: bool,
        missing: u64,
        offset: u64,
        length: u64,
    ) -> Outcome<bool> {
        self.check_lower(record)?;
        let handle = self.store.adopted(record).record.handle;
        if kills_privileges {
            self.store.unnoted.insert(record);
            self.strip_privileges(number, &handle)?;
            self.note_lower(record);
        } else if self.store.adopted(record).may_have_capability {
            if self.strip_capability(number, &handle)? {
                self.note_lower(record);
            }
            self.store.adopted_mut(record).may_have_capability = false;
        }
        if missing > 0 { self.take_space(record, number, offset, length) } else { Ok(true) }
    }

    /// Takes space below for blocks that have none there (R11). False if the record does not say so yet: taking
    /// it sets the time of modification, by which changes of others are known, and a kill may come before that
    /// is set back.
    fn take_space(&mut self, record: u32, number: u64, offset: u64, length: u64) -> Outcome<bool> {
        let handle = self.store.adopted(record).record.handle;
        let (start, end) = (offset / BLOCK * BLOCK, (offset + length).next_multiple_of(BLOCK));
        if !self.has_hole(&handle, start, end)? {
            return Ok(true);
        }
        let adopted = self.store.adopted(record);
        let is_noted = adopted.record.is_taking_space && self.order.is_durable(adopted.space_noted);
        if !is_noted && !crate::is_broken("R12") {
            return Ok(false);
        }
        self.store.unnoted.insert(record);
        let taken = self.take_range(&handle, start, end);
        self.touch(number);
        // It may have been set where there was too little space, too.
        let modified = Some(self.store.adopted(record).record.lower.modified);
        self.lower.set(&handle, &Settings { modified, ..Settings::default() })?;
        self.note_lower(record);
        taken.map(|()| true)
    }

    /// Has the record say durably that space is taken for its file, and goes on with the request then (R12).
    fn note_space(&mut self, (record, mode): (u32, Mode), work: Work) {
        self.store.change(record, |adopted| adopted.record.is_taking_space = true);
        let adopted = self.store.adopted_mut(record);
        let (number, behind) = (adopted.record.number, adopted.lock.take_waiting());
        self.hold_back(number, work);
        behind.into_iter().for_each(|work| self.hold_back(number, work));
        self.unlock(record, mode);
        self.save_record(record, None, Then::GoOn { number });
        self.store.adopted_mut(record).space_noted = self.order.issued();
    }

    /// A file was made durable below: what was taken is, with the time that was set back.
    pub(crate) fn space_is_taken(&mut self, number: u64, handle: &Handle) {
        let Some(record) = self.store.record_of(number, handle) else { return };
        if self.store.unnoted.contains(&record) {
            // The time may not have been set back.
            return;
        }
        if self.store.adopted(record).record.is_taking_space {
            self.note_space_is_taken(record);
        }
    }

    pub(crate) fn note_space_is_taken(&mut self, record: u32) {
        self.store.change(record, |adopted| adopted.record.is_taking_space = false);
        self.store.dirty.insert(record);
    }

    fn has_hole(&mut self, handle: &Handle, start: u64, end: u64) -> Outcome<bool> {
        match self.lower.seek(handle, start, Whence::Hole) {
            Ok(hole) => Ok(hole < end),
            // Behind its end there is nothing but a hole.
            Err(libc::ENXIO) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    /// Takes space for the holes of a range below.
    pub(crate) fn fill_holes(&mut self, handle: &Handle, start: u64, end: u64) -> Outcome<()> {
        if self.has_hole(handle, start, end)? {
            self.take_range(handle, start, end)
        } else {
            Ok(())
        }
    }

    fn take_range(&mut self, handle: &Handle, start: u64, end: u64) -> Outcome<()> {
        let mode = AllocateMode::Allocate { keep_size: true };
        match self.lower.allocate(handle, start, end - start, mode) {
            // It cannot be promised there.
            Ok(()) | Err(libc::EOPNOTSUPP | libc::ENOSYS) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Reads what a write leaves of its first and last block.
    fn fetch_edges(
        &mut self,
        id: u64,
        lock: Option<(u32, Mode)>,
        mut merge: Merge,
        size: u64,
        end: u64,
    ) {
        let (record, first) = (merge.record, merge.offset / BLOCK);
        let mut edges = Vec::with_capacity(2);
        if !merge.offset.is_multiple_of(BLOCK) {
            edges.push(first);
        }
        let last = (end - 1) / BLOCK;
        if !end.is_multiple_of(BLOCK) && end < size && edges.first() != Some(&last) {
            edges.push(last);
        }
        let mut stored = Vec::with_capacity(2);
        for block in edges {
            let at = ((block - first) * BLOCK) as usize;
            match self.store.host_block(record, block) {
                Some(host) => stored.push((host, at)),
                None => {
                    let bytes = &mut merge.image[at..at + BLOCK_SIZE];
                    if let Err(errno) = self.read_lower(record, block * BLOCK, bytes) {
                        return self.end(Some(id), lock, Err(errno), merge.payload);
                    }
                }
            }
        }
        let task = self.add_task(Some(id), lock, Stage::Merge(merge));
        for (block, at) in &stored {
            let buffer = Buffer::zeroed(BLOCK_SIZE);
            self.push_io(Command::Read { block: *block, buffer }, Pending::Piece { task, at: *at });
        }
        if stored.is_empty() {
            self.advance(task);
        }
    }

    /// Stores blocks that are whole but for the payload.
    pub(crate) fn store_merged(
        &mut self,
        id: Option<u64>,
        lock: Option<(u32, Mode)>,
        mut merge: Merge,
    ) {
        let at = (merge.offset % BLOCK) as usize;
        merge.image[at..at + merge.payload.len()].copy_from_slice(&merge.payload);
        let end = merge.offset + merge.payload.len() as u64;
        let size = self.store.adopted(merge.record).record.size.max(end);
        let (first, now) = (merge.offset / BLOCK, merge.now);
        let data = Data { record: merge.record, first, size, now };
        self.store_data(id, lock, &data, Some(&merge.image), merge.payload, merge.sync);
    }

    /// Gives whole blocks to the volume: those of `image`, or else the payload itself. What one atomic write
    /// cannot hold is several, each with the size up to its end.
    fn store_data(
        &mut self,
        id: Option<u64>,
        lock: Option<(u32, Mode)>,
        data: &Data,
        image: Option<&[u8]>,
        payload: Buffer,
        sync: bool,
    ) {
        let (record, count) = (data.record, payload.len() as u32);
        let bytes = image.unwrap_or(&payload);
        let blocks = bytes.len() as u64 / BLOCK;
        let (old_size, end) = (self.store.adopted(record).record.size, data.first + blocks);
        self.store.adopted_mut(record).record.modified = data.now;
        self.store.dirty.insert(record);
        let stretches = data.first / WINDOW_BLOCKS..end.div_ceil(WINDOW_BLOCKS);
        let is_there = |stretch| self.store.adopted(record).windows.contains_key(&stretch);
        let is_plain = stretches.end - stretches.start == 1 && stretches.clone().all(is_there);
        if image.is_none() && is_plain && data.size == old_size {
            // Nothing but data, in one place: it goes as it came.
            let window = self.store.adopted(record).windows[&stretches.start];
            let index = data.first % WINDOW_BLOCKS;
            let block = self.store.window_start(window) + index;
            let reserved = self.reserve(record, data.first, blocks);
            let stage = Stage::Written { count, buffer: Buffer::empty(), sync };
            let task = self.add_task(id, lock, stage);
            let runs = vec![(window, index, blocks)];
            let pending = Pending::Data { task, runs, reserved, is_payload: true };
            return self.push_io(Command::Write { block, buffer: payload }, pending);
        }
        let copied;
        let bytes = match image {
            Some(image) => image,
            None => {
                copied = payload.to_vec();
                &copied
            }
        };
        let stage = Stage::Written { count, buffer: payload, sync };
        let task = self.add_task(id, lock, stage);
        // Held open, so that a chunk that fails at once does not end it before the others.
        self.task(task).outstanding += 1;
        let mut first = data.first;
        while first < end {
            let chunk = DATA_BLOCKS_MAX.min(end - first);
            let size = data.size.min((first + chunk) * BLOCK).max(old_size);
            let at = ((first - data.first) * BLOCK) as usize;
            let part = &bytes[at..at + (chunk * BLOCK) as usize];
            if let Err(errno) = self.store_chunk(task, record, first, part, size) {
                self.task(task).error = Some(errno);
                break;
            }
            first += chunk;
        }
        self.task(task).outstanding -= 1;
        if self.task(task).outstanding == 0 {
            self.advance(task);
        }
    }

    /// One atomic write: blocks, the record if the size changes, owners of new windows.
    fn store_chunk(
        &mut self,
        task: usize,
        record: u32,
        first: u64,
        bytes: &[u8],
        size: u64,
    ) -> Outcome<()> {
        let end = first + bytes.len() as u64 / BLOCK;
        let mut batch = Batch::default();
        let (mut runs, mut parts) = (Vec::new(), Vec::new());
        let reserved = self.reserve(record, first, end - first);
        let mut block = first;
        while block < end {
            let stretch = block / WINDOW_BLOCKS;
            let limit = end.min((stretch + 1) * WINDOW_BLOCKS);
            let Some((window, is_new)) = self.store.window_for(record, stretch) else {
                self.store.reserved -= reserved;
                return Err(libc::ENOSPC);
            };
            if is_new {
                self.store.batch_owner(&mut batch, window);
            }
            let index = block % WINDOW_BLOCKS;
            let at = ((block - first) * BLOCK) as usize;
            let part = &bytes[at..at + ((limit - block) * BLOCK) as usize];
            runs.push((window, index, limit - block));
            parts.push((self.store.window_start(window) + index, part));
            block = limit;
        }
        if size != self.store.adopted(record).record.size {
            self.store.adopted_mut(record).record.size = size;
            self.store.batch_record(&mut batch, record);
        }
        let pending = Pending::Data { task, runs, reserved, is_payload: false };
        self.push_batch(batch, &parts, pending);
        Ok(())
    }

    /// Counts blocks that a write may map.
    pub(crate) fn reserve(&mut self, record: u32, first: u64, count: u64) -> u64 {
        let missing = self.store.missing(record, first, count);
        self.store.reserved += missing;
        missing
    }

    /// Takes set-uid, set-gid and capabilities away, as a write by somebody without privileges does.
    pub(crate) fn strip_privileges(&mut self, number: u64, handle: &Handle) -> Outcome<()> {
        let status = self.lower.status(handle)?;
        if status.mode & libc::S_IFMT == libc::S_IFDIR {
            // Set-gid of a directory gives nobody privileges.
            return Ok(());
        }
        let mut mode = status.mode & 0o7777 & !libc::S_ISUID;
        if mode & libc::S_IXGRP != 0 {
            mode &= !libc::S_ISGID;
        }
        if mode != status.mode & 0o7777 {
            self.touch(number);
            self.lower.set(handle, &Settings { mode: Some(mode), ..Settings::default() })?;
        }
        self.strip_capability(number, handle).map(drop)
    }

    /// Takes capabilities away, as a write by anybody does; whether there were any.
    fn strip_capability(&mut self, number: u64, handle: &Handle) -> Outcome<bool> {
        match self.lower.remove_xattr(handle, CAPABILITY) {
            Ok(()) => {
                self.touch(number);
                Ok(true)
            }
            Err(libc::ENODATA | libc::EOPNOTSUPP) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}
