//! A file gets a record: its mark first, durably, and then the record (R1, R2).
//!
//! The mount goes on meanwhile. What would change the file's content waits, for the record notes what the file is
//! like when it is durable.

use crate::MARK;
use crate::begun::Begun;
use crate::io::Pending;
use crate::lower::{Handle, Lower, Outcome};
use crate::overlay::{Overlay, Work};
use crate::store::{Adopted, Batch};
use coulter_files::{Request, XattrMode};
use coulter_format::overlay::{Record, RecordState};

/// A file whose mark is being made durable.
#[derive(Debug)]
pub(crate) struct Marked {
    number: u64,
    handle: Handle,
    id: [u8; 16],
    /// How often it had been changed when that began.
    touches: u64,
}

impl Marked {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl<L: Lower> Overlay<L> {
    /// Begins to make a file one of which blocks may be in the store; `work` goes on when it is, or waits no
    /// more. It comes back if the file cannot be one.
    pub(crate) fn begin_adoption(
        &mut self,
        number: u64,
        handle: &Handle,
        work: Work,
    ) -> Result<Option<Work>, (i32, Box<Work>)> {
        // Else the record of a file that had this inode before is not forgotten yet.
        if self.store.by_number.contains_key(&number) || !self.store.has_place() {
            return Ok(Some(work));
        }
        let serial = self.store.superblock.serial;
        self.store.superblock.serial += 1;
        let mut id = self.store.superblock.identity;
        id[8..].copy_from_slice(&serial.to_le_bytes());
        match self.lower.set_xattr(handle, MARK.as_bytes(), &id, XattrMode::Any) {
            Ok(()) => {}
            Err(libc::ENOSPC | libc::EDQUOT | libc::EPERM | libc::EOPNOTSUPP | libc::EROFS) => {
                return Ok(Some(work));
            }
            Err(errno) => return Err((errno, Box::new(work))),
        }
        self.held_back.insert(number, vec![work]);
        self.make_mark_durable(Marked { number, handle: *handle, id, touches: 0 });
        Ok(None)
    }

    /// Whether a request has to wait for the record of its file.
    pub(crate) fn is_held_back(&self, number: u64, request: &Request) -> bool {
        let is_read = matches!(request, Request::Read { .. } | Request::Seek { .. });
        !is_read && self.held_back.contains_key(&number)
    }

    pub(crate) fn hold_back(&mut self, number: u64, work: Work) {
        self.held_back.entry(number).or_default().push(work);
    }

    /// What was held back goes on, in its order.
    pub(crate) fn let_go_on(&mut self, number: u64) {
        self.ready.extend(self.held_back.remove(&number).unwrap_or_default());
    }

    fn make_mark_durable(&mut self, marked: Marked) {
        let Marked { number, handle, .. } = marked;
        let touches = self.nodes.get(&number).map_or(0, |node| node.touches);
        let tag = self.add_begun(Begun::Mark(Marked { touches, ..marked }));
        let begun = match crate::is_broken("R2") {
            true => Some(Ok(())),
            false => self.lower.begin_sync(&handle, tag),
        };
        if let Some(result) = begun {
            self.begun_ended(tag, result);
        }
    }

    pub(crate) fn marked_durably(&mut self, marked: Marked, result: Outcome<()>) {
        let node = self.nodes.get(&marked.number).filter(|node| node.handle == marked.handle);
        let is_changed = node.is_some_and(|node| node.touches != marked.touches);
        if is_changed && result.is_ok() && !self.is_ending {
            // What the record is to note of the file is not durable yet.
            return self.make_mark_durable(marked);
        }
        if let (Err(errno), true) = (result, self.nodes.contains_key(&marked.number)) {
            // The lower file system tells it once, and what it is about may be an earlier write.
            self.owed.insert(marked.number, errno);
        }
        let works = self.held_back.remove(&marked.number).unwrap_or_default();
        let added = match result {
            _ if self.is_ending => Err(libc::EIO),
            Ok(()) => self.add_record(&marked),
            Err(errno) => Err(errno),
        };
        let mut works = works.into_iter();
        if let Err(errno) = added {
            // The others try anew.
            works.by_ref().take(1).for_each(|first| self.refuse(first, errno));
        }
        self.ready.extend(works);
    }

    /// What the file is like now is durable, and goes into its record.
    fn add_record(&mut self, marked: &Marked) -> Outcome<()> {
        let Marked { number, handle, id, .. } = *marked;
        let status = self.lower.status(&handle)?;
        let record = Record {
            state: RecordState::Live,
            is_taking_space: false,
            is_nameless: self.nodes.get(&number).is_some_and(|node| node.is_gone),
            id,
            handle,
            number,
            size: status.size,
            lower_valid: status.size,
            modified: status.modified,
            lower: status.fingerprint(),
        };
        let Some(record) = self.store.add_record(Adopted::new(record)) else {
            return self.lower.remove_xattr(&handle, MARK.as_bytes());
        };
        let mut batch = Batch::default();
        self.store.batch_record(&mut batch, record);
        self.push_batch(batch, &[], Pending::Silent);
        self.counters.adoptions += 1;
        Ok(())
    }
}
