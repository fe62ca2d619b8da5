//! Giving the blocks of a record that is not served to another lower file, or to its own again.
//!
//! A record is not served when its lower file is gone, was replaced, or was changed by others (R9). Its blocks
//! stay in the store until an operator says which file they belong to: one that was restored from a backup, a
//! new one, or the changed one.

use crate::MARK;
use crate::io::Then;
use crate::locks::Lock;
use crate::lower::{Handle, Lower, Outcome, Settings};
use crate::overlay::Overlay;
use coulter_files::{Reply, XattrMode};
use coulter_format::BLOCK_SIZE;
use coulter_format::overlay::{RecordState, WINDOW_BLOCKS};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// What the file is to the record that it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bond {
    /// Size and time of modification must be those of the lower file that is gone.
    Same,
    /// Whatever it holds lies below the blocks of the record.
    Any,
    /// It is new: what is not in the store is zeros.
    New,
}

/// `RECORD same|any|new`.
fn parse(value: &[u8]) -> Option<(u32, Bond)> {
    let (record, bond) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    let bond = match bond {
        "same" => Bond::Same,
        "any" => Bond::Any,
        "new" => Bond::New,
        _ => return None,
    };
    Some((record.parse().ok()?, bond))
}

impl<L: Lower> Overlay<L> {
    /// Gives the blocks of a record to a file, durably. `value` says which record, and how it fits.
    ///
    /// `ENOENT`: no such record is without a file. `EEXIST`: the file has blocks of its own in the store.
    /// `EBUSY`: the record is in use. `ESTALE`: the file is not the one that it was. `ENOSPC`, `EDQUOT`: the
    /// lower file system has no room for the blocks.
    pub(crate) fn adopt_orphan(&mut self, id: u64, inode: u64, value: &[u8]) -> Outcome<()> {
        let (record, bond) = parse(value).ok_or(libc::EINVAL)?;
        let handle = self.handle_of(inode)?;
        let found = self.store.records.get(record as usize).and_then(Option::as_deref);
        let adopted = found.filter(|adopted| adopted.fault.is_some()).ok_or(libc::ENOENT)?;
        if !adopted.lock.is_idle() || self.failed.is_some() {
            return Err(libc::EBUSY);
        }
        if self.store.by_number.get(&inode).is_some_and(|other| *other != record) {
            return Err(libc::EEXIST);
        }
        let status = self.lower.status(&handle)?;
        if !status.is_file() {
            return Err(libc::EINVAL);
        }
        let lower = adopted.record.lower;
        if bond == Bond::Same && (status.size, status.modified) != (lower.size, lower.modified) {
            return Err(libc::ESTALE);
        }
        let taken = self.take_space_for_all(record, &handle);
        // That has set its time, by which it is known in another attempt.
        let modified = Some(status.modified);
        self.lower.set(&handle, &Settings { modified, ..Settings::default() })?;
        taken?;
        self.bind(record, inode, &handle, bond)?;
        self.save_record(record, Some(id), Then::Reply(Box::new(Reply::Done)));
        Ok(())
    }

    /// Takes space below for what is in the store (R11).
    fn take_space_for_all(&mut self, record: u32, handle: &Handle) -> Outcome<()> {
        let end = self.store.adopted(record).end_block();
        let stretches: Vec<u64> = self.store.adopted(record).windows.keys().copied().collect();
        for stretch in stretches {
            let first = stretch * WINDOW_BLOCKS;
            let count = WINDOW_BLOCKS.min(end.saturating_sub(first));
            for piece in self.store.pieces(record, first, count) {
                if piece.host.is_some() {
                    let start = piece.first * BLOCK;
                    self.fill_holes(handle, start, start + piece.count * BLOCK)?;
                }
            }
        }
        Ok(())
    }

    /// The record is the file's from now on: its mark first (R2), then all that is known of it by the file.
    fn bind(&mut self, record: u32, inode: u64, handle: &Handle, bond: Bond) -> Outcome<()> {
        self.take_mark(record);
        let id = self.store.adopted(record).record.id;
        self.lower.set_xattr(handle, MARK.as_bytes(), &id, XattrMode::Any)?;
        self.lower.sync(handle)?;
        let status = self.lower.status(handle)?;
        let old = self.store.adopted(record).record.number;
        if self.store.by_number.get(&old) == Some(&record) {
            self.store.by_number.remove(&old);
        }
        self.store.forget_copied(record);
        self.store.change(record, |adopted| {
            let record = &mut adopted.record;
            (record.state, record.is_nameless) = (RecordState::Live, false);
            (record.handle, record.number) = (*handle, inode);
            record.lower = status.fingerprint();
            record.lower_valid = match bond {
                Bond::New => 0,
                Bond::Same | Bond::Any => record.lower_valid.min(status.size),
            };
            adopted.fault = None;
            adopted.lock = Lock::default();
        });
        self.store.unnoted.remove(&record);
        self.orphans.remove(&record);
        self.store.by_number.insert(inode, record);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_record_and_a_known_word_are_understood() {
        assert_eq!(parse(b"7 same"), Some((7, Bond::Same)));
        assert_eq!(parse(b"0 any"), Some((0, Bond::Any)));
        assert_eq!(parse(b"12 new"), Some((12, Bond::New)));
        for wrong in ["", "7", "7 ", "x same", "-1 new", "7 same ", "4294967296 new"] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong:?}");
        }
    }
}
