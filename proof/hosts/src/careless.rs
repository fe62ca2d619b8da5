//! A bucket whose pins say that nothing was ever deleted: for a mistake that must be found.

use crate::service::HostBucket;
use coulter_object::bucket::{Bucket, BucketError, Created, Object, Swapped, Tag};
use coulter_object::layout::Pins;
use coulter_object::names::{CommitId, PINS};
use std::ops::Range;
use std::sync::Arc;

/// See the [module](self).
pub(crate) struct WithoutHorizon(pub(crate) Arc<HostBucket>);

impl Bucket for WithoutHorizon {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
        self.0.create(name, bytes)
    }

    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
        self.0.swap(name, tag, bytes)
    }

    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError> {
        let mut found = self.0.read(name, range)?;
        if name == PINS
            && let Some(object) = &mut found
        {
            let mut pins = Pins::decode(&object.bytes).expect("pins are whole here");
            pins.horizon = CommitId { epoch: 0, number: 0 };
            object.bytes = pins.encode();
        }
        Ok(found)
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        self.0.delete(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, BucketError> {
        self.0.list(prefix)
    }

    fn url(&self) -> String {
        self.0.url()
    }
}
