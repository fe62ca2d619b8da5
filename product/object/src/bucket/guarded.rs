//! A bucket whose panics are failed requests: a worker that met one goes on, and what it was to do is not lost.
//!
//! A library that cannot start a thread panics, for one. The request is tried again like any other that failed.

use super::{Bucket, BucketError, BucketErrorKind, Created, Object, Swapped, Tag};
use crate::layout::VolumeId;
use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// See the [module](self).
pub(crate) struct GuardedBucket(pub(crate) Arc<dyn Bucket>);

/// What a panic said.
pub(crate) fn words_of(cause: &(dyn Any + Send)) -> String {
    let text = cause.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| cause.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "it said nothing".to_owned())
}

fn guarded<T>(call: impl FnOnce() -> Result<T, BucketError>) -> Result<T, BucketError> {
    // A bucket keeps nothing that a panic leaves half changed: its locks are taken again.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|cause| {
        let message = format!("the request failed here: {}", words_of(&*cause));
        Err(BucketError::new(BucketErrorKind::Busy, message))
    })
}

impl Bucket for GuardedBucket {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
        guarded(|| self.0.create(name, bytes))
    }
    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
        guarded(|| self.0.swap(name, tag, bytes))
    }
    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError> {
        guarded(|| self.0.read(name, range))
    }
    fn read_all(&self, names: &[String]) -> Vec<Result<Option<Object>, BucketError>> {
        guarded(|| Ok(self.0.read_all(names)))
            .unwrap_or_else(|error| names.iter().map(|_| Err(error.clone())).collect())
    }
    fn delete(&self, name: &str) -> Result<(), BucketError> {
        guarded(|| self.0.delete(name))
    }
    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, BucketError> {
        guarded(|| self.0.list(prefix))
    }
    fn url(&self) -> String {
        self.0.url()
    }
    fn cautions(&self) -> Vec<String> {
        self.0.cautions()
    }
    fn volume_of(&self, own: VolumeId, epoch: u64) -> VolumeId {
        self.0.volume_of(own, epoch)
    }
}
