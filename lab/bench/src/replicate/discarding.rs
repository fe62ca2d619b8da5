//! A bucket in this process that takes as long as a service does, and keeps no data.
//!
//! It tells what shipping costs a volume where client and service have processors of their own: what is left is what the volume
//! does for it, the copies in memory and the checksums.

use super::Distance;
use coulter_object::Bucket;
use coulter_object::bucket::{BucketError, Created, MemoryBucket, Object, Swapped, Tag};
use std::ops::Range;
use std::time::Duration;

/// See the [module](self).
pub(super) struct DiscardingBucket {
    inner: MemoryBucket,
    distance: Distance,
}

impl DiscardingBucket {
    pub(super) fn new(distance: Distance) -> DiscardingBucket {
        DiscardingBucket { inner: MemoryBucket::new(), distance }
    }

    fn wait(&self, latency: Duration, size: usize) {
        let rate = self.distance.bandwidth.map_or(f64::INFINITY, |rate| rate as f64);
        std::thread::sleep(latency + Duration::from_secs_f64(size as f64 / rate));
    }
}

impl Bucket for DiscardingBucket {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
        self.wait(self.distance.put_latency, bytes.len());
        match name.starts_with("d/") {
            true => Ok(Created::New(Tag("discarded".to_owned()))),
            false => self.inner.create(name, bytes),
        }
    }

    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
        self.wait(self.distance.put_latency, bytes.len());
        self.inner.swap(name, tag, bytes)
    }

    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError> {
        self.wait(self.distance.get_latency, 0);
        self.inner.read(name, range)
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        self.inner.delete(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, BucketError> {
        self.inner.list(prefix)
    }

    fn url(&self) -> String {
        "discarded".to_owned()
    }
}
