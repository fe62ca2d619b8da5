//! Small stores in memory, random numbers, and content that tells where it belongs.

#![allow(dead_code, reason = "each test file uses its own part")]

use coulter::buffer::Buffer;
use coulter::service::{
    BlockService, Change, Completion, Extent, Operation, Request, RequestError, Session,
};
use coulter::{
    CloseError, CreateOptions, Geometry, LocalVolume, OpenError, OpenOptions, State, Statistics,
    Volume, create,
};
use coulter_device::{Device, MemoryStore};

/// Bytes of a block.
pub(crate) const BLOCK: u64 = 4096;

/// Bytes of a sector.
pub(crate) const SECTOR: u64 = 512;

/// One mebibyte.
pub(crate) const MIB: u64 = 1 << 20;

/// A store with segments of 1 MiB on a device of so many bytes.
pub(crate) fn small_store(size: u64) -> MemoryStore {
    let store = MemoryStore::new(size);
    format(&store, None);
    store
}

/// The same with a volume of so many bytes.
pub(crate) fn store_of(size: u64, volume_size: u64) -> MemoryStore {
    let store = MemoryStore::new(size);
    format(&store, Some(volume_size));
    store
}

fn format(store: &MemoryStore, volume_size: Option<u64>) {
    let options =
        CreateOptions { segment_size: Some(2 * MIB), volume_size, ..CreateOptions::default() };
    create(device(store), &options).expect("the store fits");
}

/// A device on a store that nothing else has open.
pub(crate) fn device(store: &MemoryStore) -> Box<dyn Device> {
    Box::new(store.open().expect("nothing has it open"))
}

/// The volume of a store.
pub(crate) fn open<V: AnyVolume>(store: &MemoryStore) -> V {
    V::open_with(device(store), OpenOptions::default()).expect("the store is intact")
}

/// What both kinds of volumes can do.
pub(crate) trait AnyVolume: Sized + std::fmt::Debug {
    fn open_with(device: Box<dyn Device>, options: OpenOptions) -> Result<Self, OpenError>;
    fn size(&self) -> u64;
    fn geometry(&self) -> &Geometry;
    fn state(&self) -> State;
    fn read_only(&self) -> bool;
    fn statistics(&self) -> Statistics;
    fn connect(&self) -> Box<dyn Session>;
    fn close(self) -> Result<(), CloseError>;
    fn abandon(self) -> Result<(), CloseError>;
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), RequestError>;
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), RequestError>;
    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), RequestError>;
    fn write_many(&self, changes: &[Change], data: &[u8], fua: bool) -> Result<(), RequestError>;
    fn flush(&self) -> Result<(), RequestError>;
    fn discard(&self, offset: u64, length: u64) -> Result<(), RequestError>;
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), RequestError>;
    fn extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>, RequestError>;
    fn exact_extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>, RequestError>;
    fn read_present_at(&self, offset: u64, bytes: &mut [u8]) -> Result<Vec<Extent>, RequestError>;
}

macro_rules! any_volume {
    ($volume:ty, $read_only:path, $connect:path) => {
        impl AnyVolume for $volume {
            fn open_with(device: Box<dyn Device>, options: OpenOptions) -> Result<Self, OpenError> {
                <$volume>::open(device, options)
            }
            fn size(&self) -> u64 {
                <$volume>::size(self)
            }
            fn geometry(&self) -> &Geometry {
                <$volume>::geometry(self)
            }
            fn state(&self) -> State {
                <$volume>::state(self)
            }
            fn read_only(&self) -> bool {
                $read_only(self)
            }
            fn statistics(&self) -> Statistics {
                <$volume>::statistics(self)
            }
            fn connect(&self) -> Box<dyn Session> {
                $connect(self)
            }
            fn close(self) -> Result<(), CloseError> {
                <$volume>::close(self)
            }
            fn abandon(self) -> Result<(), CloseError> {
                <$volume>::abandon(self)
            }
            fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), RequestError> {
                <$volume>::read_at(self, offset, bytes)
            }
            fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), RequestError> {
                <$volume>::write_at(self, offset, bytes)
            }
            fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), RequestError> {
                <$volume>::write_durable_at(self, offset, bytes)
            }
            fn write_many(
                &self,
                changes: &[Change],
                data: &[u8],
                fua: bool,
            ) -> Result<(), RequestError> {
                <$volume>::write_many(self, changes, data, fua)
            }
            fn flush(&self) -> Result<(), RequestError> {
                <$volume>::flush(self)
            }
            fn discard(&self, offset: u64, length: u64) -> Result<(), RequestError> {
                <$volume>::discard(self, offset, length)
            }
            fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), RequestError> {
                <$volume>::write_zeroes(self, offset, length)
            }
            fn extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>, RequestError> {
                <$volume>::extents(self, offset, length)
            }
            fn exact_extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>, RequestError> {
                <$volume>::exact_extents(self, offset, length)
            }
            fn read_present_at(
                &self,
                offset: u64,
                bytes: &mut [u8],
            ) -> Result<Vec<Extent>, RequestError> {
                <$volume>::read_present_at(self, offset, bytes)
            }
        }
    };
}

any_volume!(Volume, BlockService::read_only, BlockService::connect);
any_volume!(LocalVolume, LocalVolume::read_only, LocalVolume::connect);

/// Tests of what both kinds of volumes promise: each is run for the one with a thread of its own
/// and for the one without.
#[allow(unused_macros, reason = "not every test file needs it")]
macro_rules! for_both_kinds {
    ($($check:ident),* $(,)?) => {
        mod threaded {
            $(#[test] fn $check() { super::$check::<coulter::Volume>(); })*
        }
        mod local {
            $(#[test] fn $check() { super::$check::<coulter::LocalVolume>(); })*
        }
    };
}

#[allow(unused_imports, reason = "not every test file needs it")]
pub(crate) use for_both_kinds;

/// A write request.
pub(crate) fn write(tag: u64, offset: u64, content: &[u8]) -> Request {
    let buffer = Buffer::copied_from(content);
    let length = content.len() as u64;
    Request { tag, operation: Operation::Write { fua: false }, offset, length, buffer }
}

/// A read request.
pub(crate) fn read(tag: u64, offset: u64, length: u64) -> Request {
    let buffer = Buffer::zeroed(length as usize);
    Request { tag, operation: Operation::Read, offset, length, buffer }
}

/// A request without data.
pub(crate) fn bare(tag: u64, operation: Operation, offset: u64, length: u64) -> Request {
    Request { tag, operation, offset, length, buffer: Buffer::empty() }
}

/// Waits for everything outstanding and returns it in order of tags.
pub(crate) fn complete_all(session: &mut dyn Session) -> Vec<Completion> {
    let mut completions = Vec::new();
    while session.outstanding() > 0 {
        session.complete(&mut completions, None);
    }
    completions.sort_by_key(|completion| completion.tag);
    completions
}

/// Carries out one request.
pub(crate) fn carry_out(session: &mut dyn Session, request: Request) -> Completion {
    assert_eq!(session.outstanding(), 0);
    session.submit(request);
    complete_all(session).pop().expect("one request was submitted")
}
