//! Counts what a bucket is asked, and what that costs.
//!
//! Services bill requests and not outcomes, so a request counts when it ends, whether it succeeded or not. One
//! that a client repeats by itself counts once: see the contract of [`super`], which does not retry.

use super::{Bucket, BucketError, Created, Object, Swapped, Tag};
use crate::layout::VolumeId;
use std::ops::{Add, Range, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Requests and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Creations and swaps of an object.
    pub puts: u64,
    /// Reads of an object or of a part of it.
    pub gets: u64,
    /// Deletions.
    pub deletes: u64,
    /// Lists of names.
    pub lists: u64,
    /// Bytes of objects that were sent.
    pub sent_bytes: u64,
    /// Bytes of objects that were received.
    pub received_bytes: u64,
}

impl Usage {
    /// What the requests cost at these prices. Traffic and space are not in it.
    pub fn cost(&self, prices: &Prices) -> f64 {
        (self.puts + self.lists) as f64 * prices.put + self.gets as f64 * prices.get
    }
}

impl Add for Usage {
    type Output = Usage;

    fn add(self, other: Usage) -> Usage {
        Usage {
            puts: self.puts + other.puts,
            gets: self.gets + other.gets,
            deletes: self.deletes + other.deletes,
            lists: self.lists + other.lists,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            received_bytes: self.received_bytes + other.received_bytes,
        }
    }
}

impl Sub for Usage {
    type Output = Usage;

    /// What was used since `earlier`, an earlier state of the same meter.
    fn sub(self, earlier: Usage) -> Usage {
        Usage {
            puts: self.puts - earlier.puts,
            gets: self.gets - earlier.gets,
            deletes: self.deletes - earlier.deletes,
            lists: self.lists - earlier.lists,
            sent_bytes: self.sent_bytes - earlier.sent_bytes,
            received_bytes: self.received_bytes - earlier.received_bytes,
        }
    }
}

/// What a service takes for a request, in dollars. Deletions are free everywhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// For a creation, a swap or a list.
    pub put: f64,
    /// For a read.
    pub get: f64,
}

impl Prices {
    /// Amazon S3 Standard, us-east-1, list price of 2026: 0.005 and 0.0004 dollars for a thousand.
    pub const S3_STANDARD: Prices = Prices { put: 0.005 / 1000.0, get: 0.0004 / 1000.0 };
}

/// What objects are for, as their names say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Bytes of the device.
    Data,
    /// Commits and fences.
    Commits,
    /// Manifests.
    Manifests,
    /// The volume's record, the pins, and probes.
    Records,
}

impl Cause {
    /// All, with their names in figures.
    pub const ALL: [(Cause, &str); 4] = [
        (Cause::Data, "data"),
        (Cause::Commits, "commits"),
        (Cause::Manifests, "manifests"),
        (Cause::Records, "records"),
    ];

    /// What an object of this name is for.
    pub fn of(name: &str) -> Cause {
        match name.split_once('/') {
            Some(("d", _)) => Cause::Data,
            Some(("c", _)) => Cause::Commits,
            Some(("m", _)) => Cause::Manifests,
            _ => Cause::Records,
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    puts: AtomicU64,
    gets: AtomicU64,
    deletes: AtomicU64,
    lists: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

/// Tells what was used so far, from any thread.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    causes: Arc<[Counters; Cause::ALL.len()]>,
}

impl Meter {
    /// What one cause has used.
    pub fn of(&self, cause: Cause) -> Usage {
        let counters = self.counters(cause);
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Usage {
            puts: value(&counters.puts),
            gets: value(&counters.gets),
            deletes: value(&counters.deletes),
            lists: value(&counters.lists),
            sent_bytes: value(&counters.sent_bytes),
            received_bytes: value(&counters.received_bytes),
        }
    }

    /// What all have used.
    pub fn total(&self) -> Usage {
        Cause::ALL.iter().fold(Usage::default(), |sum, (cause, _)| sum + self.of(*cause))
    }

    fn counters(&self, cause: Cause) -> &Counters {
        &self.causes[cause as usize]
    }
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// A bucket whose requests a [`Meter`] counts.
pub struct MeteredBucket<B> {
    inner: B,
    meter: Meter,
}

impl<B: Bucket> MeteredBucket<B> {
    /// Counts the requests to `inner`.
    pub fn new(inner: B) -> MeteredBucket<B> {
        MeteredBucket { inner, meter: Meter::default() }
    }

    /// A handle on the counters.
    pub fn meter(&self) -> Meter {
        self.meter.clone()
    }
}

impl<B: Bucket> Bucket for MeteredBucket<B> {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
        let created = self.inner.create(name, bytes);
        let counters = self.meter.counters(Cause::of(name));
        count(&counters.puts, 1);
        if created.is_ok() {
            count(&counters.sent_bytes, bytes.len() as u64);
        }
        created
    }

    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
        let swapped = self.inner.swap(name, tag, bytes);
        let counters = self.meter.counters(Cause::of(name));
        count(&counters.puts, 1);
        if swapped.is_ok() {
            count(&counters.sent_bytes, bytes.len() as u64);
        }
        swapped
    }

    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError> {
        let found = self.inner.read(name, range);
        let counters = self.meter.counters(Cause::of(name));
        count(&counters.gets, 1);
        if let Ok(Some(object)) = &found {
            count(&counters.received_bytes, object.bytes.len() as u64);
        }
        found
    }

    fn read_all(&self, names: &[String]) -> Vec<Result<Option<Object>, BucketError>> {
        let found = self.inner.read_all(names);
        for (name, found) in names.iter().zip(&found) {
            let counters = self.meter.counters(Cause::of(name));
            count(&counters.gets, 1);
            if let Ok(Some(object)) = found {
                count(&counters.received_bytes, object.bytes.len() as u64);
            }
        }
        found
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        let deleted = self.inner.delete(name);
        count(&self.meter.counters(Cause::of(name)).deletes, 1);
        deleted
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, BucketError> {
        let listed = self.inner.list(prefix);
        count(&self.meter.counters(Cause::of(prefix)).lists, 1);
        listed
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::MemoryBucket;

    #[test]
    fn each_request_counts_once_under_what_its_object_is_for() {
        let bucket = MeteredBucket::new(MemoryBucket::new());
        let meter = bucket.meter();
        let Ok(Created::New(tag)) = bucket.create("volume", &[1; 10]) else {
            panic!("the name was free");
        };
        assert!(bucket.create("d/00/1", &[2; 100]).is_ok());
        // One that is refused is billed too.
        assert_eq!(bucket.create("d/00/1", &[2; 100]), Ok(Created::Exists));
        assert!(bucket.swap("volume", &tag, &[3; 5]).is_ok());
        assert!(bucket.read("d/00/1", Some(0..30)).is_ok());
        assert!(bucket.read("c/1", None).is_ok());
        assert!(bucket.delete("m/1").is_ok());
        assert!(bucket.list("c/").is_ok());
        let data =
            Usage { puts: 2, gets: 1, sent_bytes: 200, received_bytes: 30, ..Usage::default() };
        assert_eq!(meter.of(Cause::Data), data);
        let records = Usage { puts: 2, sent_bytes: 15, ..Usage::default() };
        assert_eq!(meter.of(Cause::Records), records);
        assert_eq!(meter.of(Cause::Commits), Usage { gets: 1, lists: 1, ..Usage::default() });
        assert_eq!(meter.of(Cause::Manifests), Usage { deletes: 1, ..Usage::default() });
        let total = meter.total();
        assert_eq!(total - records, total - meter.of(Cause::Records));
        assert_eq!((total.puts, total.gets, total.deletes, total.lists), (4, 2, 1, 1));
        let cost = total.cost(&Prices::S3_STANDARD);
        assert!((cost - (5.0 * 0.000_005 + 2.0 * 0.000_000_4)).abs() < 1e-12, "{cost}");
    }
}
