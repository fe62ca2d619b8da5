//! Opening: what the store and the lower directory say of each other (R9).

use crate::MARK;
use crate::io::Pending;
use crate::lower::{Lower, Outcome};
use crate::overlay::{Options, Overlay};
use crate::store::{Adopted, Batch, Store};
use coulter_format::overlay::{
    Handle, OWNERS_PER_BLOCK, Owner, RECORD_LIMIT, RECORDS_PER_BLOCK, RECORDS_START, Record,
    RecordState, Superblock, WINDOW_BLOCKS,
};
use coulter_format::{BLOCK_SIZE, Block, Corrupt};

/// Serial numbers that a mount may use; the next one begins behind them.
const SERIALS_PER_MOUNT: u64 = 1 << 32;
/// Blocks that are discarded with one atomic write.
const DISCARDS_MAX: usize = 64;

/// The volume, before anything is served from it.
pub trait Blocks {
    /// Reads a block.
    fn read(&mut self, block: u64, into: &mut Block) -> Outcome<()>;
    /// Which runs of blocks are mapped: numbers of blocks, and whether they are, from `block` on. At least one
    /// run, and no more than `count` blocks in all.
    fn mapped(&mut self, block: u64, count: u64) -> Outcome<Vec<(u64, bool)>>;
}

/// Why an overlay cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// The volume holds no overlay's store.
    #[error("the volume holds no store of an overlay ({0})")]
    NoStore(Corrupt),
    /// A block of it is damaged in itself.
    #[error("the store is damaged: {0}")]
    Corrupt(Corrupt),
    /// The store belongs to another directory.
    #[error("the store belongs to another directory; what it holds fits no file of this one")]
    OtherDirectory,
    /// The volume is smaller than the store says.
    #[error("the store was made for a larger volume")]
    Truncated,
    /// The volume or the lower file system fails: the error number.
    #[error("it cannot be read: {}", std::io::Error::from_raw_os_error(*.0))]
    System(i32),
}

/// The superblock of a new store for a directory, on a volume that offers so many blocks and can hold
/// `capacity` of them.
pub fn create(identity: [u8; 16], directory: Handle, blocks: u64, capacity: u64) -> Superblock {
    let fixed =
        Superblock { identity, directory, is_clean: true, serial: 1, capacity, window_count: 0 };
    let room = blocks.saturating_sub(fixed.windows_start() + WINDOW_BLOCKS);
    // A window takes its blocks and 16 bytes, of which 256 make a block.
    let windows = room * OWNERS_PER_BLOCK as u64 / (WINDOW_BLOCKS * OWNERS_PER_BLOCK as u64 + 1);
    let window_count = u32::try_from(windows).unwrap_or(u32::MAX);
    Superblock { window_count, ..fixed }
}

/// True if a call failed because there is no such file, or no such attribute of it.
fn is_absent(errno: i32) -> bool {
    matches!(errno, libc::ENOENT | libc::ESTALE | libc::ENODATA)
}

impl<L: Lower> Overlay<L> {
    /// Opens the overlay over `lower` whose store is on the volume.
    ///
    /// # Errors
    /// [`RecoverError`]; nothing is changed then.
    pub fn open(
        lower: L,
        blocks: &mut dyn Blocks,
        block_count: u64,
        options: Options,
    ) -> Result<Overlay<L>, RecoverError> {
        let mut block = [0; BLOCK_SIZE];
        blocks.read(0, &mut block).map_err(RecoverError::System)?;
        let superblock = Superblock::decode(&block).map_err(RecoverError::NoStore)?;
        if superblock.directory != lower.root() {
            return Err(RecoverError::OtherDirectory);
        }
        if superblock.block_count() > block_count {
            return Err(RecoverError::Truncated);
        }
        let mut store = Store::new(superblock);
        read_records(&mut store, blocks)?;
        let unowned = read_windows(&mut store, blocks)?;
        let mut overlay = Overlay::new(lower, store, options);
        let stray = overlay.find_blocks(blocks)?;
        let was_clean = superblock.is_clean;
        let serial = superblock.serial + SERIALS_PER_MOUNT;
        overlay.store.superblock = Superblock { is_clean: false, serial, ..superblock };
        overlay.was_clean = was_clean;
        overlay.note_opened();
        // Serials of this mount come from before those of the next.
        overlay.store.superblock.serial = superblock.serial;
        overlay.discard_stray(&unowned, &stray);
        for record in 0..overlay.store.records.len() as u32 {
            if overlay.store.records[record as usize].is_some() {
                overlay.judge(record, was_clean);
            }
        }
        overlay.run();
        Ok(overlay)
    }

    /// Finds out which blocks of each window are there; gives back those behind a file's end.
    fn find_blocks(&mut self, blocks: &mut dyn Blocks) -> Result<Vec<(u64, u64)>, RecoverError> {
        let mut stray = Vec::new();
        for window in 0..self.store.windows.len() as u32 {
            let Some(owner) = self.store.windows[window as usize].as_ref().map(|found| found.owner)
            else {
                continue;
            };
            let start = self.store.window_start(window);
            let end_block = self.store.adopted(owner.record).end_block();
            let mut at = 0;
            while at < WINDOW_BLOCKS {
                let runs = blocks.mapped(start + at, WINDOW_BLOCKS - at);
                for (count, is_mapped) in runs.map_err(RecoverError::System)? {
                    for index in (at..at + count).filter(|_| is_mapped) {
                        if owner.stretch * WINDOW_BLOCKS + index < end_block {
                            self.store.mark_present(window, index);
                        } else {
                            stray.push((start + index, 1));
                        }
                    }
                    at += count;
                }
            }
        }
        Ok(stray)
    }

    /// Gives back windows that nobody owns, and blocks that no file has. An owner that is not written over
    /// might come to life with the next record in its place.
    fn discard_stray(&mut self, unowned: &[u32], stray: &[(u64, u64)]) {
        for window in unowned {
            let mut batch = Batch::default();
            self.store.batch_owner(&mut batch, *window);
            batch.discards.push((self.store.window_start(*window), WINDOW_BLOCKS));
            self.push_batch(batch, &[], Pending::Silent);
        }
        for ranges in stray.chunks(DISCARDS_MAX) {
            let mut batch = Batch::default();
            batch.discards.extend_from_slice(ranges);
            self.push_batch(batch, &[], Pending::Silent);
        }
    }

    /// Compares a record with its lower file.
    fn judge(&mut self, record: u32, was_clean: bool) {
        let found = self.store.adopted(record).record;
        let status = self.lower.status(&found.handle);
        let mark = self.lower.xattr(&found.handle, MARK.as_bytes());
        let errors = [status.as_ref().err(), mark.as_ref().err()];
        if errors.into_iter().flatten().any(|errno| !is_absent(*errno)) {
            // That says nothing of the file: its blocks stay, and the next opening looks again.
            return self.set_fault(record, "its file cannot be looked at");
        }
        let is_it = match (&status, &mark) {
            (Ok(_), Ok(mark)) => *mark == found.id || crate::is_broken("R1"),
            (Ok(_), Err(_)) => crate::is_broken("R9"),
            _ => false,
        };
        match found.state {
            RecordState::Settled => {
                self.take_mark(record);
                self.forget_later(record);
            }
            _ if !is_it && (found.is_nameless || found.state == RecordState::Dying) => {
                self.forget_later(record);
            }
            RecordState::Live | RecordState::Settling | RecordState::Dying => match status {
                Ok(status) if is_it => self.keep(record, &status, was_clean),
                _ => {
                    self.set_fault(record, "its file is not there any more");
                    self.orphans.insert(record);
                }
            },
        }
    }

    /// Nothing of the record's file is served any more, for this reason.
    pub(crate) fn set_fault(&mut self, record: u32, why: &'static str) {
        self.store.change(record, |adopted| adopted.fault = Some(why));
    }

    /// The lower file is the record's: whether it is as it was left.
    fn keep(&mut self, record: u32, status: &crate::lower::Status, was_clean: bool) {
        let now = status.fingerprint();
        let Record { state, lower, number, .. } = self.store.adopted(record).record;
        self.store.change(record, |adopted| {
            // The lower file system has the name again.
            adopted.record.is_nameless = false;
            if state == RecordState::Dying {
                adopted.record.state = RecordState::Live;
            }
        });
        let adopted = self.store.adopted_mut(record);
        // Where space was being taken the time may not have been set back (R12).
        let is_taking_space = adopted.record.is_taking_space && !was_clean;
        let is_same = now.size == lower.size
            && (now.modified == lower.modified || is_taking_space)
            && (now.changed == lower.changed || !was_clean);
        adopted.record.lower.changed = now.changed;
        if is_taking_space && is_same {
            adopted.record.lower.modified = now.modified;
        }
        self.store.dirty.insert(record);
        if state != RecordState::Settling && !is_same {
            self.set_fault(record, "its lower file was changed while nothing was mounted");
        }
        self.store.by_number.insert(number, record);
    }
}

fn read_records(store: &mut Store, blocks: &mut dyn Blocks) -> Result<(), RecoverError> {
    let limit = RECORDS_START + u64::from(RECORD_LIMIT) / RECORDS_PER_BLOCK as u64;
    each_mapped(blocks, RECORDS_START, limit, &mut |number, block| {
        let base = (number - RECORDS_START) as u32 * RECORDS_PER_BLOCK as u32;
        for index in 0..RECORDS_PER_BLOCK {
            let record = Record::decode(block, index).map_err(RecoverError::Corrupt)?;
            if let Some(record) = record {
                store.put_record(base + index as u32, Adopted::new(record));
            }
        }
        Ok(())
    })
}

/// Gives windows to their owners; tells those that nobody has.
fn read_windows(store: &mut Store, blocks: &mut dyn Blocks) -> Result<Vec<u32>, RecoverError> {
    let start = store.superblock.table_start();
    let end = start + u64::from(store.superblock.window_count).div_ceil(OWNERS_PER_BLOCK as u64);
    let mut unowned = Vec::new();
    each_mapped(blocks, start, end, &mut |number, block| {
        let base = (number - start) as u32 * OWNERS_PER_BLOCK as u32;
        for index in 0..OWNERS_PER_BLOCK {
            let owner = Owner::decode(block, index).map_err(RecoverError::Corrupt)?;
            let window = base + index as u32;
            let Some(owner) = owner.filter(|_| window < store.superblock.window_count) else {
                continue;
            };
            let adopted = store.records.get(owner.record as usize).and_then(Option::as_deref);
            let is_served = adopted.is_some_and(|adopted| {
                Store::is_served(adopted.record.state)
                    && owner.stretch * WINDOW_BLOCKS < adopted.end_block()
                    && !adopted.windows.contains_key(&owner.stretch)
            });
            if is_served {
                store.put_window(window, owner);
            } else {
                unowned.push(window);
            }
        }
        Ok(())
    })?;
    Ok(unowned)
}

fn each_mapped(
    blocks: &mut dyn Blocks,
    start: u64,
    end: u64,
    each: &mut dyn FnMut(u64, &Block) -> Result<(), RecoverError>,
) -> Result<(), RecoverError> {
    let mut at = start;
    let mut block = [0; BLOCK_SIZE];
    while at < end {
        for (count, is_mapped) in blocks.mapped(at, end - at).map_err(RecoverError::System)? {
            for number in (at..at + count).filter(|_| is_mapped) {
                blocks.read(number, &mut block).map_err(RecoverError::System)?;
                each(number, &block)?;
            }
            at += count;
        }
    }
    Ok(())
}
