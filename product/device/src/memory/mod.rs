//! A device in memory, dense or sparse, whose content outlives the device.
//!
//! The content belongs to a [`MemoryStore`]. Opening it moves the content into the
//! [`MemoryDevice`], dropping the device moves it back: so opening twice is refused, as with a
//! file, and commands need no lock.
//!
//! What it does not do: lose power. Whatever completed stays, so it has no volatile cache; for
//! one see [`CutDevice`](crate::wrap::CutDevice).
//!
//! Invariants:
//! - commands are executed in `submit`, in order, and complete at the next `poll`;
//! - what was never written, or was discarded, reads as zeros.

mod dense;
mod sparse;

use crate::command::{
    Command, CommandKind, Completion, Prepare, Properties, Region, SECTOR_SIZE, Wait,
};
use crate::contract::Device;
use crate::device_error::DeviceError;
use crate::open_error::OpenError;
use crate::wake::{Sleeper, Waker};
use dense::Dense;
use sparse::Sparse;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Commands that are worth submitting between two polls. They never wait for one another.
const QUEUE_DEPTH: usize = 1024;

/// What a memory device holds, while no device is open and between two that are.
///
/// Clones are handles to the same content.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    /// `None` while a device is open.
    content: Arc<Mutex<Option<Content>>>,
    size: u64,
    alignment: u64,
}

#[derive(Clone, Debug)]
enum Content {
    Dense(Dense),
    Sparse(Sparse),
}

impl MemoryStore {
    /// `size` zero bytes, of which memory is used for those parts (of 1 MiB) that are written.
    ///
    /// # Panics
    /// When `size` is zero or not a multiple of 512.
    pub fn new(size: u64) -> MemoryStore {
        MemoryStore::of(size, Content::Dense(Dense::new(size)))
    }

    /// `size` zero bytes, of which memory is used only for blocks (of 4096 bytes) that hold
    /// anything but zeros, and 2 KiB for each 2 MiB that has such blocks.
    ///
    /// # Panics
    /// When `size` is zero or not a multiple of 512.
    pub fn sparse(size: u64) -> MemoryStore {
        MemoryStore::of(size, Content::Sparse(Sparse::new(size)))
    }

    fn of(size: u64, content: Content) -> MemoryStore {
        assert!(size > 0, "a device stores something");
        assert!(size.is_multiple_of(SECTOR_SIZE), "a device ends on a whole sector");
        let content = Arc::new(Mutex::new(Some(content)));
        MemoryStore { content, size, alignment: SECTOR_SIZE }
    }

    /// The same, but with devices that demand `alignment`: 512 or 4096 bytes.
    ///
    /// # Panics
    /// When the size is not a multiple of it.
    pub fn with_alignment(self, alignment: u64) -> MemoryStore {
        assert!(self.size.is_multiple_of(alignment), "a device ends on a whole sector");
        MemoryStore { alignment, ..self }
    }

    /// A device for reading and writing the content.
    ///
    /// # Errors
    /// `InUse` while another device has it.
    pub fn open(&self) -> Result<MemoryDevice, OpenError> {
        self.open_as(false)
    }

    /// A device for reading the content. It excludes others all the same.
    ///
    /// # Errors
    /// `InUse` while another device has it.
    pub fn open_read_only(&self) -> Result<MemoryDevice, OpenError> {
        self.open_as(true)
    }

    fn open_as(&self, read_only: bool) -> Result<MemoryDevice, OpenError> {
        let content = self.content().take().ok_or_else(in_use)?;
        let properties = Properties {
            size: self.size,
            alignment: self.alignment,
            volatile_cache: false,
            discard: true,
            prepare: Prepare::Nothing,
            atomic_page: 0,
            read_only,
            queue_depth: QUEUE_DEPTH,
            description: match &content {
                Content::Dense(_) => "memory".to_string(),
                Content::Sparse(_) => "sparse memory".to_string(),
            },
            note: None,
        };
        properties.assert_consistent();
        Ok(MemoryDevice {
            content: Some(content),
            store: self.clone(),
            properties,
            done: Vec::with_capacity(QUEUE_DEPTH),
            sleeper: Sleeper::new(),
        })
    }

    /// Copies bytes from the content, any number from anywhere inside it.
    ///
    /// # Errors
    /// `InUse` while a device has it.
    ///
    /// # Panics
    /// When the range is not inside the content.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), OpenError> {
        self.assert_inside(offset, bytes.len());
        self.content().as_ref().ok_or_else(in_use)?.read(offset, bytes);
        Ok(())
    }

    /// Changes the content behind any device's back, as bit rot does.
    ///
    /// # Errors
    /// `InUse` while a device has it.
    ///
    /// # Panics
    /// When the range is not inside the content.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), OpenError> {
        self.assert_inside(offset, bytes.len());
        self.content().as_mut().ok_or_else(in_use)?.write(offset, bytes);
        Ok(())
    }

    /// A store of its own with equal content.
    ///
    /// # Errors
    /// `InUse` while a device has it.
    pub fn duplicate(&self) -> Result<MemoryStore, OpenError> {
        let content = self.content().as_ref().ok_or_else(in_use)?.clone();
        Ok(MemoryStore { content: Arc::new(Mutex::new(Some(content))), ..*self })
    }

    /// Bytes of content that memory is used for.
    ///
    /// # Errors
    /// `InUse` while a device has it.
    pub fn stored_bytes(&self) -> Result<u64, OpenError> {
        Ok(self.content().as_ref().ok_or_else(in_use)?.stored_bytes())
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    fn content(&self) -> MutexGuard<'_, Option<Content>> {
        // The content is whole whenever the lock is free: it is only moved under it.
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn assert_inside(&self, offset: u64, length: usize) {
        let end = offset.checked_add(length as u64);
        assert!(end.is_some_and(|end| end <= self.size), "the range is inside the content");
    }
}

fn in_use() -> OpenError {
    let by = Some("another memory device".to_string());
    OpenError::InUse { path: PathBuf::from("memory"), by }
}

impl Content {
    fn read(&self, offset: u64, bytes: &mut [u8]) {
        match self {
            Content::Dense(dense) => dense.read(offset, bytes),
            Content::Sparse(sparse) => sparse.read(offset, bytes),
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        match self {
            Content::Dense(dense) => dense.write(offset, bytes),
            Content::Sparse(sparse) => sparse.write(offset, bytes),
        }
    }

    fn clear(&mut self, offset: u64, length: u64) {
        match self {
            Content::Dense(dense) => dense.clear(offset, length),
            Content::Sparse(sparse) => sparse.clear(offset, length),
        }
    }

    fn stored_bytes(&self) -> u64 {
        match self {
            Content::Dense(dense) => dense.stored_bytes(),
            Content::Sparse(sparse) => sparse.stored_bytes(),
        }
    }
}

/// A device on the content of a [`MemoryStore`].
#[derive(Debug)]
pub struct MemoryDevice {
    /// `None` only while dropping.
    content: Option<Content>,
    store: MemoryStore,
    properties: Properties,
    done: Vec<Completion>,
    sleeper: Sleeper,
}

impl MemoryDevice {
    /// Executes a command.
    ///
    /// # Safety
    /// As for [`Device::submit`].
    #[inline]
    unsafe fn execute(&mut self, command: &Command) -> Result<(), DeviceError> {
        self.properties.check(command)?;
        let content = self.content.as_mut().expect("an open device has its content");
        let length = command.length as usize;
        match command.kind {
            CommandKind::Read => {
                // SAFETY: the caller promises memory that is valid and not looked at by others;
                // it may be uninitialised to the compiler's eye only if the caller made it so.
                let bytes = unsafe { std::slice::from_raw_parts_mut(command.buffer, length) };
                content.read(command.offset, bytes);
            }
            CommandKind::Write => {
                // SAFETY: the caller promises memory that is valid and written to by no one.
                let bytes = unsafe { std::slice::from_raw_parts(command.buffer, length) };
                content.write(command.offset, bytes);
            }
            CommandKind::Discard => content.clear(command.offset, command.length),
            CommandKind::Flush | CommandKind::Prepare => {}
        }
        Ok(())
    }
}

// SAFETY: memory is touched while a command is submitted, and its completion is told after that.
unsafe impl Device for MemoryDevice {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    unsafe fn register(&mut self, _regions: &[Region]) -> io::Result<()> {
        Ok(())
    }

    #[inline]
    unsafe fn submit(&mut self, command: Command) {
        // SAFETY: the caller's promises are the same.
        let result = unsafe { self.execute(&command) };
        self.done.push(Completion { tag: command.tag, result });
    }

    #[inline]
    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        self.sleeper.disarm();
        if self.done.is_empty() {
            // Nothing is ever in flight, so only a waker can end this.
            self.sleeper.sleep(wait);
        } else {
            out.append(&mut self.done);
        }
        Ok(())
    }

    fn arm(&mut self) -> io::Result<BorrowedFd<'_>> {
        let call = self.sleeper.arm_event()?;
        if !self.done.is_empty() {
            call.ring();
        }
        Ok(call.as_fd())
    }

    fn waker(&self) -> Waker {
        self.sleeper.waker()
    }
}

impl Drop for MemoryDevice {
    fn drop(&mut self) {
        *self.store.content() = self.content.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aligned::AlignedMemory;
    use crate::blocking;

    #[test]
    fn content_outlives_the_device() {
        for store in [MemoryStore::new(1 << 21), MemoryStore::sparse(1 << 21)] {
            let mut memory = AlignedMemory::zeroed(4096);
            memory.fill(7);
            let mut device = store.open().expect("nothing has it open");
            blocking::write(&mut device, 8192, &mut memory).expect("a write in range");
            assert!(matches!(store.open(), Err(OpenError::InUse { .. })));
            assert!(matches!(store.stored_bytes(), Err(OpenError::InUse { .. })));
            drop(device);

            let copy = store.duplicate().expect("nothing has it open");
            store.write_at(8192, &[9]).expect("nothing has it open");
            let mut bytes = [0; 2];
            store.read_at(8192, &mut bytes).expect("nothing has it open");
            assert_eq!(bytes, [9, 7]);
            copy.read_at(8192, &mut bytes).expect("nothing has it open");
            assert_eq!(bytes, [7, 7]);
        }
    }

    #[test]
    fn a_sparse_device_of_256_gib_costs_what_it_holds() {
        let store = MemoryStore::sparse(256 << 30);
        let mut device = store.open().expect("nothing has it open");
        let mut memory = AlignedMemory::zeroed(1 << 20);
        for step in 0..256u64 {
            // 1 MiB each, of which one block holds something.
            memory[4096 * step as usize] = 1;
            blocking::write(&mut device, step << 30, &mut memory).expect("a write in range");
            memory[4096 * step as usize] = 0;
        }
        drop(device);
        assert_eq!(store.stored_bytes().expect("nothing has it open"), 256 * 4096);
    }
}
