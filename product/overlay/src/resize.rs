//! A file of which blocks are in the store gets another size (R6).

use crate::io::{Pending, Stage};
use crate::locks::Mode;
use crate::lower::{Lower, Outcome};
use crate::overlay::Overlay;
use crate::store::Batch;
use coulter::buffer::Buffer;
use coulter_files::{Changes, Command, Request, Time};
use coulter_format::BLOCK_SIZE;
use coulter_format::overlay::WINDOW_BLOCKS;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Windows that are given back with one atomic write.
const WINDOWS_MAX: usize = 64;

/// A file that is cut off in the midst of a block that is in the store.
#[derive(Debug)]
pub(crate) struct Cut {
    record: u32,
    number: u64,
    size: u64,
    /// The host block of its last block, and what it holds; empty if that is not in the store.
    host: u64,
    pub(crate) edge: Vec<u8>,
    now: Time,
}

impl<L: Lower> Overlay<L> {
    /// Changes attributes and the size, with the file's lock.
    pub(crate) fn resize_adopted(
        &mut self,
        (id, record, mode): (u64, u32, Mode),
        request: &Request,
        now: Time,
    ) {
        let lock = Some((record, mode));
        let Request::Change { inode, changes } = request else {
            unreachable!("only changes come here")
        };
        let changed = self.check_lower(record).and_then(|()| {
            let rest = Changes { size: None, ..*changes };
            self.change_lower(*inode, &rest, now)
        });
        if let Err(errno) = changed {
            return self.end(Some(id), lock, Err(errno), Buffer::empty());
        }
        let size = changes.size.unwrap_or(0);
        let mut cut = Cut { record, number: *inode, size, host: 0, edge: Vec::new(), now };
        let is_shorter = size < self.store.adopted(record).record.size;
        if is_shorter {
            self.settling.begin_anew(record);
        }
        let edge = size / BLOCK;
        match self.store.host_block(record, edge) {
            Some(block) if is_shorter && !size.is_multiple_of(BLOCK) => {
                (cut.host, cut.edge) = (block, vec![0; BLOCK_SIZE]);
                let task = self.add_task(Some(id), lock, Stage::Cut(cut));
                let buffer = Buffer::zeroed(BLOCK_SIZE);
                self.push_io(Command::Read { block, buffer }, Pending::Piece { task, at: 0 });
            }
            _ => self.store_cut(Some(id), lock, cut),
        }
    }

    /// Writes the record, the last block if that is here, and gives back what lies behind: one atomic write,
    /// and more for windows that are given back whole.
    pub(crate) fn store_cut(&mut self, id: Option<u64>, lock: Option<(u32, Mode)>, mut cut: Cut) {
        let Cut { record, number, size, now, .. } = cut;
        let adopted = self.store.adopted_mut(record);
        adopted.record.size = size;
        let valid = adopted.record.lower_valid.min(size);
        let broken = adopted.record.lower.size.min(size);
        adopted.record.lower_valid = if crate::is_broken("R6") { broken } else { valid };
        adopted.record.modified = now;
        let task = self.add_task(id, lock, Stage::Attributes { number });
        let mut batch = Batch::default();
        self.store.batch_record(&mut batch, record);
        let mut data: Vec<(u64, &[u8])> = Vec::new();
        if !cut.edge.is_empty() {
            cut.edge[(size % BLOCK) as usize..].fill(0);
            data.push((cut.host, &cut.edge));
        }
        let end = size.div_ceil(BLOCK);
        if let Some(window) =
            self.store.adopted(record).windows.get(&(end / WINDOW_BLOCKS)).copied()
            && !end.is_multiple_of(WINDOW_BLOCKS)
        {
            let index = end % WINDOW_BLOCKS;
            let block = self.store.window_start(window) + index;
            batch.discards.push((block, WINDOW_BLOCKS - index));
            (index..WINDOW_BLOCKS).for_each(|index| self.store.mark_absent(window, index));
        }
        self.push_batch(batch, &data, Pending::Step { task });
        let first = end.div_ceil(WINDOW_BLOCKS);
        self.give_back(record, first, task);
    }

    /// Gives back the windows of a file from a stretch on.
    pub(crate) fn give_back(&mut self, record: u32, first: u64, task: usize) {
        loop {
            let windows = self.store.adopted(record).windows.range(first..);
            let windows: Vec<u32> = windows.map(|(_, window)| *window).take(WINDOWS_MAX).collect();
            if windows.is_empty() {
                return;
            }
            let mut batch = Batch::default();
            for window in windows {
                self.store.remove_window(window);
                self.store.batch_owner(&mut batch, window);
                batch.discards.push((self.store.window_start(window), WINDOW_BLOCKS));
            }
            self.push_batch(batch, &[], Pending::Step { task });
        }
    }

    /// Attributes but for the size, below; times of a file of which blocks are here are its record's.
    pub(crate) fn change_lower(
        &mut self,
        number: u64,
        changes: &Changes,
        now: Time,
    ) -> Outcome<()> {
        let handle = self.handle_of(number)?;
        if changes.kills_privileges {
            self.strip_privileges(number, &handle)?;
        }
        let mut settings = crate::names::settings_of(changes, now);
        let record = self.store.record_of(number, &handle);
        if let (Some(record), Some(modified)) = (record, settings.modified) {
            // That of the lower file stays, for changes of others are known by it.
            self.store.adopted_mut(record).record.modified = modified;
            self.store.dirty.insert(record);
            settings.modified = None;
        }
        self.store.unnoted.extend(record);
        self.touch(number);
        self.lower.set(&handle, &settings)?;
        if let Some(record) = record {
            self.note_lower(record);
        }
        Ok(())
    }
}
