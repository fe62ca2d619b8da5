//! A bucket that does something before one of its changes, or ends there as the loss of its host does.

use coulter_object::Bucket;
use coulter_object::bucket::{
    BucketError, BucketErrorKind, Created, MemoryBucket, Object, Swapped, Tag,
};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What happens at the chosen change.
pub(crate) enum Step {
    /// It is not carried out, and nothing after it is.
    EndsBefore,
    /// It is carried out without an answer, and nothing after it is.
    EndsAfter,
    /// Another host does this first.
    Meanwhile(Mutex<Option<Box<dyn FnOnce() + Send>>>),
}

/// See the [module](self). Changes are counted from 1.
pub(crate) struct SteppingBucket {
    inner: MemoryBucket,
    at: u64,
    step: Step,
    count: AtomicU64,
}

impl SteppingBucket {
    pub(crate) fn new(inner: MemoryBucket, at: u64, step: Step) -> SteppingBucket {
        SteppingBucket { inner, at, step, count: AtomicU64::new(0) }
    }

    /// Changes that were asked for.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn change<T>(&self, run: impl FnOnce() -> Result<T, BucketError>) -> Result<T, BucketError> {
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        match &self.step {
            Step::Meanwhile(action) => {
                let action = (number == self.at).then(|| action.lock().expect("no panic").take());
                if let Some(action) = action.flatten() {
                    action();
                }
                run()
            }
            _ if number < self.at => run(),
            Step::EndsAfter if number == self.at => run().and_then(|_| Err(ended())),
            Step::EndsBefore | Step::EndsAfter => Err(ended()),
        }
    }
}

fn ended() -> BucketError {
    BucketError::new(BucketErrorKind::Denied, "this host is lost")
}

/// The same objects, apart from the others.
pub(crate) fn duplicate(bucket: &MemoryBucket) -> MemoryBucket {
    let copy = MemoryBucket::new();
    for (name, _) in bucket.list("").expect("memory lists") {
        let object = bucket.read(&name, None).expect("memory reads").expect("it was listed");
        copy.create(&name, &object.bytes).expect("memory has room");
    }
    copy
}

impl Bucket for SteppingBucket {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
        self.change(|| self.inner.create(name, bytes))
    }
    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
        self.change(|| self.inner.swap(name, tag, bytes))
    }
    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError> {
        let is_over = !matches!(self.step, Step::Meanwhile(_)) && self.count() >= self.at;
        if is_over { Err(ended()) } else { self.inner.read(name, range) }
    }
    fn delete(&self, name: &str) -> Result<(), BucketError> {
        self.change(|| self.inner.delete(name))
    }
    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, BucketError> {
        self.inner.list(prefix)
    }
    fn url(&self) -> String {
        self.inner.url()
    }
}
