//! What a service says of itself, in one place, so that every attach point shows hosts the same disk.

use crate::service::{ATOMIC_WRITE_SIZE_MAX, BLOCK_SIZE, REQUEST_SIZE_MAX, SECTOR_SIZE};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

/// Bytes of a [`Identity::serial`].
pub const SERIAL_SIZE: usize = 20;

/// A disk as hosts are to see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Which disk it is; the same for as long as the store exists.
    pub identity: Identity,
    /// Size in bytes, a multiple of [`BLOCK_SIZE`].
    pub size: u64,
    /// The smallest unit of a request in bytes.
    pub sector_size: u64,
    /// The unit that costs no read-modify-write, in bytes.
    pub block_size: u64,
    /// The largest write in bytes that is atomic over a crash, if it is aligned to `block_size`.
    pub atomic_write_size_max: u64,
    /// The length in bytes from which on longer requests gain little.
    pub preferred_request_size: u64,
    /// The largest read or write in bytes.
    pub request_size_max: u64,
    /// Discards of less than this many bytes free nothing.
    pub discard_granularity: u64,
    /// Whether writes are refused, now.
    pub read_only: bool,
    /// Whether neighbours are much faster than strangers.
    pub rotational: bool,
}

/// Which disk it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Of the store; all zeros where there is none.
    pub uuid: [u8; 16],
    /// For people and for `/dev/disk/by-id`: printable ASCII, at most [`SERIAL_SIZE`] bytes.
    pub serial: String,
    /// The name that the store was given; may be empty.
    pub label: String,
}

impl Identity {
    /// The identity of the store `uuid`. Two stores have the same serial once in 2^80.
    pub fn of_store(uuid: [u8; 16], label: &str) -> Identity {
        // The first half of a random UUID has six fixed bits, and so has the last.
        let digits: String = uuid[6..].iter().map(|byte| format!("{byte:02x}")).collect();
        let serial = digits[digits.len() - SERIAL_SIZE..].to_owned();
        Identity { uuid, serial, label: label.to_owned() }
    }

    /// The UUID in its usual spelling; empty where there is none.
    pub fn uuid_text(&self) -> String {
        if self.uuid == [0; 16] { String::new() } else { text_of(&self.uuid) }
    }
}

/// A UUID in its usual spelling.
pub(crate) fn text_of(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

impl Description {
    /// What holds for every service of this contract, of this size.
    pub fn new(identity: Identity, size: u64, read_only: bool) -> Description {
        assert_eq!(size % BLOCK_SIZE, 0, "a disk is whole blocks");
        assert!(identity.serial.len() <= SERIAL_SIZE, "a serial fits where hosts keep it");
        Description {
            identity,
            size,
            sector_size: SECTOR_SIZE,
            block_size: BLOCK_SIZE,
            atomic_write_size_max: ATOMIC_WRITE_SIZE_MAX,
            preferred_request_size: 256 << 10,
            request_size_max: REQUEST_SIZE_MAX,
            discard_granularity: BLOCK_SIZE,
            read_only,
            rotational: false,
        }
    }
}

/// Told that a [`Description`] is no longer what it was, by the thread that changed it: it must return
/// at once, and ask later.
pub trait Watch: Send + Sync {
    /// Something has changed, or may have.
    fn changed(&self);
}

/// Those who want to be told. One who is gone is forgotten.
#[derive(Default)]
pub struct Watchers(Mutex<Vec<Weak<dyn Watch>>>);

impl Watchers {
    /// Tells `watcher` from now on.
    pub fn add(&self, watcher: Weak<dyn Watch>) {
        let mut list = self.list();
        list.retain(|watcher| watcher.strong_count() > 0);
        list.push(watcher);
    }

    /// Tells all.
    pub fn notify(&self) {
        for watcher in self.list().iter().filter_map(Weak::upgrade) {
            watcher.changed();
        }
    }

    fn list(&self) -> MutexGuard<'_, Vec<Weak<dyn Watch>>> {
        // A list of watchers is whole at any time.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Counter(AtomicU32);

    impl Watch for Counter {
        fn changed(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn watchers_are_told_until_they_are_gone() {
        let watchers = Watchers::default();
        let (stays, goes) = (Arc::new(Counter(0.into())), Arc::new(Counter(0.into())));
        for counter in [&stays, &goes] {
            let watch: Arc<dyn Watch> = counter.clone();
            watchers.add(Arc::downgrade(&watch));
        }
        watchers.notify();
        assert_eq!(goes.0.load(Ordering::SeqCst), 1);
        drop(goes);
        watchers.notify();
        assert_eq!(stays.0.load(Ordering::SeqCst), 2);
        let watch: Arc<dyn Watch> = stays.clone();
        watchers.add(Arc::downgrade(&watch));
        assert_eq!(watchers.list().len(), 2, "who is gone is forgotten");
    }

    #[test]
    fn a_uuid_is_spelt_as_everywhere_and_what_has_none_has_no_text() {
        let digits = [0x67, 0xe5, 0x50, 0x44, 0x10, 0xb1, 0x42, 0x6f];
        let uuid = std::array::from_fn(|index| digits[index % 8]);
        let text = Identity::of_store(uuid, "").uuid_text();
        assert_eq!(text, "67e55044-10b1-426f-67e5-504410b1426f");
        assert_eq!(Identity::default().uuid_text(), "");
    }

    #[test]
    fn serials_are_printable_and_differ() {
        let serials = [[1; 16], [2; 16]].map(|uuid| Identity::of_store(uuid, "").serial);
        assert_ne!(serials[0], serials[1]);
        for serial in serials {
            assert_eq!(serial.len(), SERIAL_SIZE);
            assert!(serial.bytes().all(|byte| byte.is_ascii_graphic()));
        }
    }
}
