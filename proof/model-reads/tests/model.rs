//! Goal: no order of a client's and the loop's steps lets a client see something old after an answer, or
//! read a segment that is being written. The source of the engine is run as it is, under loom.
//!
//! A block of the device is a cell whose concurrent use loom reports. Each deliberate mistake must be
//! found: a model that finds none of them would prove nothing.

extern crate alloc;

mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
}

mod canary {
    //! The mistakes of the source, chosen for all threads of a model.

    use std::cell::Cell;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Canary {
        CachedReadUnchecked,
        CacheNotEmptied,
        CachedReaderIgnored,
    }

    thread_local! {
        // All threads of a model run on one thread of the system.
        static CHOSEN: Cell<Option<Canary>> = const { Cell::new(None) };
    }

    pub(crate) fn choose(canary: Option<Canary>) {
        CHOSEN.set(canary);
    }

    pub(crate) fn sings(canary: Canary) -> bool {
        CHOSEN.get() == Some(canary)
    }
}

#[allow(dead_code, unreachable_pub, clippy::all, reason = "the source of another crate")]
#[path = "../../../product/engine/src/read_cache.rs"]
mod read_cache;

use atomic::{AtomicBool, Ordering};
use canary::Canary;
use coulter_format::{BlockPointer, Lba, Pba};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use read_cache::{Place, ReadCache};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The address that clients read, and one that shares its slot.
const LBA: Lba = Lba(0);
const OTHER: Lba = Lba(1);

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Old,
    New,
    Foreign,
}

/// A store of three segments of one block, and a cache of one slot.
struct Store {
    cache: ReadCache,
    blocks: [UnsafeCell<Content>; 3],
    /// The write was answered.
    is_answered: AtomicBool,
}

// SAFETY: loom itself reports every concurrent use of the cells.
unsafe impl Sync for Store {}
// SAFETY: as above.
unsafe impl Send for Store {}

const FIRST: u32 = 8;

fn at(segment: u32) -> BlockPointer {
    BlockPointer { pba: Pba(FIRST + segment), checksum: 7 }
}

impl Store {
    /// The address lies in the first segment.
    fn new() -> Arc<Store> {
        let cache = ReadCache::new(16, 4, Pba(FIRST), 1, 3).expect("a slot fits");
        cache.fill(LBA, at(0));
        let block = |content| UnsafeCell::new(content);
        let blocks = [block(Content::Old), block(Content::Foreign), block(Content::Foreign)];
        Arc::new(Store { cache, blocks, is_answered: AtomicBool::new(false) })
    }

    fn write(&self, segment: usize, content: Content) {
        // SAFETY: loom reports it if anybody else looks.
        self.blocks[segment].with_mut(|block| unsafe { *block = content });
    }

    fn read(&self, place: Place) -> Content {
        let index = (place.pba.0 - FIRST) as usize;
        // SAFETY: loom reports it if anybody writes.
        self.blocks[index].with(|block| unsafe { *block })
    }

    /// A client's read: what it saw, and whether it has to wake the loop. Nothing if the loop has to look.
    fn client_reads(&self) -> (Option<Content>, bool) {
        match self.cache.begin_read(LBA, &mut [0]) {
            Ok(place) => {
                let seen = self.read(place);
                (Some(seen), self.cache.end_read(place))
            }
            Err(miss) => (None, miss.wakes),
        }
    }

    /// The loop: the address is written anew and answered; then its old segment is used again.
    fn overwrite_and_reuse(&self) {
        self.write(1, Content::New);
        self.cache.update(LBA, at(1));
        self.is_answered.store(true, Ordering::Release);
        self.reuse(0);
    }

    fn reuse(&self, segment: usize) {
        if !self.cache.is_read(segment) {
            self.write(segment, Content::Foreign);
        }
    }
}

/// Runs a model, and says what it found if it found anything.
fn found(mistake: Option<Canary>, model: impl Fn() + Sync + Send + 'static) -> Option<String> {
    canary::choose(mistake);
    let quiet = mistake.is_some();
    let result = catch_unwind(AssertUnwindSafe(|| loom::model(model)));
    canary::choose(None);
    let panic = result.err()?;
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    let text = text.unwrap_or_else(|| "something".to_owned());
    assert!(quiet, "the protocol itself fails: {text}");
    Some(text)
}

/// A write, its answer, and the old segment used again, against one client.
fn overwritten() {
    let store = Store::new();
    let client = {
        let store = store.clone();
        thread::spawn(move || {
            let was_answered = store.is_answered.load(Ordering::Acquire);
            let (seen, _) = store.client_reads();
            let allowed = match was_answered {
                true => [None, Some(Content::New), None],
                false => [None, Some(Content::New), Some(Content::Old)],
            };
            assert!(allowed.contains(&seen), "answered: {was_answered}, seen: {seen:?}");
        })
    };
    store.overwrite_and_reuse();
    client.join().expect("the client ends well");
}

/// The answer goes out before the slot is changed.
fn answered_too_soon() {
    let store = Store::new();
    let client = {
        let store = store.clone();
        thread::spawn(move || {
            let was_answered = store.is_answered.load(Ordering::Acquire);
            let (seen, _) = store.client_reads();
            assert!(!was_answered || seen != Some(Content::Old), "something old after the answer");
        })
    };
    store.write(1, Content::New);
    store.is_answered.store(true, Ordering::Release);
    store.cache.update(LBA, at(1));
    client.join().expect("the client ends well");
}

/// What one client has seen, another does not see older.
fn seen_by_another() {
    let store = Store::new();
    let has_seen = Arc::new(AtomicBool::new(false));
    let first = {
        let (store, has_seen) = (store.clone(), has_seen.clone());
        thread::spawn(move || {
            if store.client_reads().0 == Some(Content::New) {
                has_seen.store(true, Ordering::Release);
            }
        })
    };
    let second = {
        let (store, has_seen) = (store.clone(), has_seen.clone());
        thread::spawn(move || {
            if has_seen.load(Ordering::Acquire) {
                assert_ne!(store.client_reads().0, Some(Content::Old), "seen by another already");
            }
        })
    };
    store.write(1, Content::New);
    store.cache.update(LBA, at(1));
    first.join().expect("the client ends well");
    second.join().expect("the client ends well");
}

/// A discard of so much that the whole cache is emptied at once.
fn discarded() {
    let store = Store::new();
    let client = {
        let store = store.clone();
        thread::spawn(move || {
            let was_answered = store.is_answered.load(Ordering::Acquire);
            let (seen, _) = store.client_reads();
            assert!(!was_answered || seen.is_none(), "discarded, and read as {seen:?}");
        })
    };
    store.cache.forget_range(LBA, 2);
    store.is_answered.store(true, Ordering::Release);
    store.reuse(0);
    client.join().expect("the client ends well");
}

/// Another address takes the slot, and the first one comes back, elsewhere.
fn slot_shared() {
    let store = Store::new();
    let client = {
        let store = store.clone();
        thread::spawn(move || {
            let (seen, _) = store.client_reads();
            assert_ne!(seen, Some(Content::Foreign), "what another address holds");
        })
    };
    store.cache.fill(OTHER, at(1));
    store.write(2, Content::New);
    store.cache.fill(LBA, at(2));
    store.reuse(0);
    client.join().expect("the client ends well");
}

/// A loop that finds a segment being read is woken when that has ended.
fn woken() {
    let store = Store::new();
    let client = {
        let store = store.clone();
        thread::spawn(move || store.client_reads().1)
    };
    store.write(1, Content::New);
    store.cache.update(LBA, at(1));
    let waits = store.cache.is_read(0);
    let wakes = client.join().expect("the client ends well");
    assert!(!waits || wakes, "the loop waits for ever");
    assert!(!store.cache.is_read(0), "nobody reads any more");
}

#[test]
fn a_client_sees_nothing_old_and_nothing_foreign() {
    for model in [overwritten, seen_by_another, discarded, slot_shared, woken] {
        assert_eq!(found(None, model), None);
    }
}

#[test]
fn each_mistake_is_found() {
    std::panic::set_hook(Box::new(|_| {}));
    let of_writes =
        [Canary::CachedReadUnchecked, Canary::CachedReaderIgnored, Canary::CacheNotEmptied];
    let mut all: Vec<_> =
        of_writes.map(|mistake| (mistake, found(Some(mistake), overwritten))).into();
    let of_discards = Canary::CachedReadUnchecked;
    all.push((of_discards, found(Some(of_discards), discarded)));
    let too_soon = catch_unwind(|| loom::model(answered_too_soon)).is_err();
    let _ = std::panic::take_hook();
    for (mistake, found) in all {
        let found = found.unwrap_or_else(|| panic!("{mistake:?}: not found"));
        println!("{mistake:?}: {}", found.lines().next().unwrap_or_default());
    }
    assert!(too_soon, "an answer before the slot is changed: not found");
}
