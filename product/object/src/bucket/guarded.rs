//! A bucket whose panics are failed requests: a worker that met one goes on, and what it was to do is not lost.
//!
//! A library that cannot start a thread panics, for one. The request is tried again like any other that failed.
//!
//! It also knows since when nothing was answered: a request that is under way has not failed yet.
//! Changes and reads are told apart, for a bucket may answer the one and not the other.

use super::{Bucket, BucketError, BucketErrorKind, Created, Object, Swapped, Tag};
use crate::layout::VolumeId;
use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Since when requests have been asked, and none was answered.
#[derive(Debug, Default)]
struct Silence {
    since: Option<Instant>,
    under_way: usize,
}

/// See the [module](self).
pub(crate) struct GuardedBucket {
    inner: Arc<dyn Bucket>,
    silence: Arc<[Mutex<Silence>; 2]>,
}

/// Tells since when nothing was answered.
#[derive(Clone, Debug)]
pub(crate) struct Silences {
    silence: Arc<[Mutex<Silence>; 2]>,
    host: String,
}

impl Silences {
    /// Since when no request of a kind that is under way, or has failed, was answered.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.silence.iter().filter_map(|one| lock(one).since).min()
    }

    /// The host that does not answer.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }
}

fn lock(silence: &Mutex<Silence>) -> MutexGuard<'_, Silence> {
    silence.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A kind of request.
#[derive(Clone, Copy)]
enum Kind {
    Change,
    Look,
}

/// What a panic said.
pub(crate) fn words_of(cause: &(dyn Any + Send)) -> String {
    let text = cause.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| cause.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "it said nothing".to_owned())
}

impl GuardedBucket {
    /// Guards the requests to `inner`.
    pub(crate) fn new(inner: Arc<dyn Bucket>) -> GuardedBucket {
        GuardedBucket { inner, silence: Arc::default() }
    }

    /// A handle on what is not answered.
    pub(crate) fn silences(&self) -> Silences {
        Silences { silence: self.silence.clone(), host: self.inner.host() }
    }

    fn guarded<T>(
        &self,
        kind: Kind,
        call: impl FnOnce() -> Result<T, BucketError>,
    ) -> Result<T, BucketError> {
        let silence = &self.silence[kind as usize];
        let mut own = lock(silence);
        own.since.get_or_insert_with(Instant::now);
        own.under_way += 1;
        drop(own);
        // A bucket keeps nothing that a panic leaves half changed: its locks are taken again.
        let outcome = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|cause| {
            let message = format!("the request failed here: {}", words_of(&*cause));
            Err(BucketError::new(BucketErrorKind::Busy, message))
        });
        let mut own = lock(silence);
        own.under_way -= 1;
        let is_answer = !matches!(&outcome, Err(error) if error.kind == BucketErrorKind::Silent);
        if is_answer {
            own.since = (own.under_way > 0).then(Instant::now);
        }
        outcome
    }
}

impl Bucket for GuardedBucket {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
        self.guarded(Kind::Change, || self.inner.create(name, bytes))
    }
    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
        self.guarded(Kind::Change, || self.inner.swap(name, tag, bytes))
    }
    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError> {
        self.guarded(Kind::Look, || self.inner.read(name, range))
    }
    fn read_all(&self, names: &[String]) -> Vec<Result<Option<Object>, BucketError>> {
        self.guarded(Kind::Look, || Ok(self.inner.read_all(names)))
            .unwrap_or_else(|error| names.iter().map(|_| Err(error.clone())).collect())
    }
    fn delete(&self, name: &str) -> Result<(), BucketError> {
        self.guarded(Kind::Change, || self.inner.delete(name))
    }
    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, BucketError> {
        self.guarded(Kind::Look, || self.inner.list(prefix))
    }
    fn url(&self) -> String {
        self.inner.url()
    }
    fn host(&self) -> String {
        self.inner.host()
    }
    fn cautions(&self) -> Vec<String> {
        self.inner.cautions()
    }
    fn volume_of(&self, own: VolumeId, epoch: u64) -> VolumeId {
        self.inner.volume_of(own, epoch)
    }
}
