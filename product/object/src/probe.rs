//! Does a bucket keep its word? Many services and proxies say that a conditional request succeeded when
//! it did not, or carry out two that race.
//!
//! A request after the other tells nothing of that: a server that looks first and writes then passes. So
//! [`race`] sends many at once.

use crate::bucket::{Bucket, BucketError, BucketErrorKind, Created, Swapped, Tag};
use crate::random::random_u64;
use crate::side_by_side;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Requests that race.
const RACERS: usize = 16;

/// Races of each kind. A server that loses one race in sixty is found nine times in ten.
const ROUNDS: usize = 150;

/// Times that a sequence of requests is begun on a bucket that fails now and then.
const TRIES_MAX: u32 = 8;

/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// What a bucket does wrong.
#[derive(Debug)]
#[non_exhaustive]
pub enum ProbeError {
    /// It failed.
    Bucket(BucketError),
    /// It carries out a conditional request whose condition does not hold: which.
    Ignored(&'static str),
    /// Of requests that exclude each other it carried out several: which kind, and how many.
    Raced(&'static str, u32),
    /// What was stored is not read back.
    Forgetful,
}

impl std::fmt::Display for ProbeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProbeError::Bucket(error) => error.fmt(f),
            ProbeError::Ignored(what) => {
                write!(
                    f,
                    "the bucket ignores conditions: it carried out a {what} that it must refuse"
                )
            }
            ProbeError::Raced(what, count) => {
                write!(
                    f,
                    "the bucket is not atomic: {count} of {RACERS} racing {what}s succeeded, not 1"
                )
            }
            ProbeError::Forgetful => write!(f, "the bucket does not give back what was stored"),
        }
    }
}

impl std::error::Error for ProbeError {}

impl From<BucketError> for ProbeError {
    fn from(error: BucketError) -> ProbeError {
        ProbeError::Bucket(error)
    }
}

/// Sends one request after the other: cheap, for every opening.
///
/// # Errors
/// [`ProbeError`].
pub fn sequence(bucket: &dyn Bucket) -> Result<(), ProbeError> {
    let mut tries = 1;
    loop {
        let name = name();
        let outcome = in_sequence(bucket, &name);
        // A name of its own that nobody looks for: what is left of it matters little.
        let _ = bucket.delete(&name);
        match outcome {
            // What became of a request that failed is unknown, so the whole sequence begins anew.
            Err(ProbeError::Bucket(error))
                if error.kind == BucketErrorKind::Busy && tries < TRIES_MAX =>
            {
                std::thread::sleep(PAUSE);
                tries += 1;
            }
            outcome => return outcome,
        }
    }
}

fn in_sequence(bucket: &dyn Bucket, name: &str) -> Result<(), ProbeError> {
    let Created::New(first) = bucket.create(name, b"one")? else {
        return Err(ProbeError::Forgetful);
    };
    if matches!(bucket.create(name, b"two")?, Created::New(_)) {
        return Err(ProbeError::Ignored("creation"));
    }
    let found = bucket.read(name, None)?.ok_or(ProbeError::Forgetful)?;
    if found.bytes != b"one" || found.tag != first {
        return Err(ProbeError::Forgetful);
    }
    let Swapped::Done(second) = bucket.swap(name, &first, b"three")? else {
        return Err(ProbeError::Forgetful);
    };
    if first == second {
        return Err(ProbeError::Forgetful);
    }
    if matches!(bucket.swap(name, &first, b"four")?, Swapped::Done(_)) {
        return Err(ProbeError::Ignored("swap"));
    }
    Ok(())
}

/// Sends many requests at once, over and over: for a new volume.
///
/// # Errors
/// [`ProbeError`].
pub fn race(bucket: &dyn Bucket) -> Result<(), ProbeError> {
    sequence(bucket)?;
    for _ in 0..ROUNDS {
        let name = name();
        let outcome = race_once(bucket, &name);
        let _ = bucket.delete(&name);
        outcome?;
    }
    Ok(())
}

fn race_once(bucket: &dyn Bucket, name: &str) -> Result<(), ProbeError> {
    let created = at_once(0, |bytes| Ok(matches!(bucket.create(name, bytes)?, Created::New(_))))?;
    if created != 1 {
        return Err(ProbeError::Raced("creation", created));
    }
    let Tag(tag) = settled(|| bucket.read(name, None))?.ok_or(ProbeError::Forgetful)?.tag;
    let tag = Tag(tag);
    // Most services make the tag of the content: what is stored must differ from what is there, or one that
    // keeps its word lets a second swap pass.
    let swap = |bytes: &[u8]| Ok(matches!(bucket.swap(name, &tag, bytes)?, Swapped::Done(_)));
    let swapped = at_once(RACERS, swap)?;
    if swapped != 1 {
        return Err(ProbeError::Raced("swap", swapped));
    }
    Ok(())
}

/// Runs `request` on many threads at once, each with content of its own, numbered from `first` on; returns how
/// many succeeded. A round in which one failed tells nothing, and counts as one success.
fn at_once(
    first: usize,
    request: impl Fn(&[u8]) -> Result<bool, BucketError> + Sync,
) -> Result<u32, ProbeError> {
    let (wins, failures) = (AtomicU32::new(0), AtomicU32::new(0));
    let started = side_by_side::race(RACERS, |racer| {
        // Large enough that a server which looks and then reads the body takes a while.
        match request(&vec![(first + racer) as u8; 4096]) {
            Ok(won) => wins.fetch_add(won.into(), Ordering::Relaxed),
            Err(_) => failures.fetch_add(1, Ordering::Relaxed),
        };
    });
    if started < RACERS {
        let message = "the system starts too few threads to test it";
        return Err(BucketError::new(BucketErrorKind::Busy, message).into());
    }
    let (wins, failures) = (wins.into_inner(), failures.into_inner());
    Ok(if wins == 0 && failures > 0 { 1 } else { wins })
}

/// Reads, which may be tried again.
fn settled<T>(mut request: impl FnMut() -> Result<T, BucketError>) -> Result<T, ProbeError> {
    match request() {
        Err(error) if error.kind == BucketErrorKind::Busy => {
            std::thread::sleep(PAUSE);
            Ok(request()?)
        }
        other => Ok(other?),
    }
}

fn name() -> String {
    format!("probe/{:016x}", random_u64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::faulty::{FaultyBucket, Rates};
    use crate::bucket::{MemoryBucket, Object};
    use std::ops::Range;
    use std::sync::Arc;

    /// Looks first and writes then, as some servers do.
    struct Careless(MemoryBucket);

    impl Bucket for Careless {
        fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
            if self.0.read(name, None)?.is_some() {
                return Ok(Created::Exists);
            }
            std::thread::sleep(Duration::from_micros(200));
            self.0.delete(name)?;
            match self.0.create(name, bytes)? {
                Created::Exists => Ok(Created::New(Tag("lost".to_string()))),
                new => Ok(new),
            }
        }
        fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
            self.0.swap(name, tag, bytes)
        }
        fn read(
            &self,
            name: &str,
            range: Option<Range<u64>>,
        ) -> Result<Option<Object>, BucketError> {
            self.0.read(name, range)
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

    #[test]
    fn an_atomic_bucket_passes_and_leaves_nothing() {
        let bucket = MemoryBucket::new();
        race(&bucket).expect("memory is atomic");
        assert_eq!(bucket.list("").expect("memory lists").len(), 0, "the probe cleans up");
    }

    /// Makes tags of the content, as most services do.
    struct Hashing(MemoryBucket);

    impl Hashing {
        fn tag(bytes: &[u8]) -> Tag {
            Tag(format!("{:08x}", crate::layout::checksum(bytes)))
        }
    }

    impl Bucket for Hashing {
        fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
            Ok(match self.0.create(name, bytes)? {
                Created::New(_) => Created::New(Hashing::tag(bytes)),
                Created::Exists => Created::Exists,
            })
        }
        fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
            let Some(found) = self.0.read(name, None)? else { return Ok(Swapped::Changed) };
            if Hashing::tag(&found.bytes) != *tag {
                return Ok(Swapped::Changed);
            }
            Ok(match self.0.swap(name, &found.tag, bytes)? {
                Swapped::Done(_) => Swapped::Done(Hashing::tag(bytes)),
                Swapped::Changed => Swapped::Changed,
            })
        }
        fn read(
            &self,
            name: &str,
            range: Option<Range<u64>>,
        ) -> Result<Option<Object>, BucketError> {
            let whole = self.0.read(name, None)?;
            let found = self.0.read(name, range)?;
            Ok(whole.zip(found).map(|(whole, found)| Object {
                bytes: found.bytes,
                tag: Hashing::tag(&whole.bytes),
            }))
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

    #[test]
    fn a_bucket_whose_tags_are_hashes_of_the_content_passes() {
        race(&Hashing(MemoryBucket::new())).expect("it is atomic");
    }

    #[test]
    fn a_bucket_that_fails_now_and_then_is_not_taken_for_one_that_breaks_its_word() {
        let rates = Rates { refused: 40, unanswered: 80, late: 0, unread: 40 };
        for seed in 0..5 {
            let bucket = FaultyBucket::new(Arc::new(MemoryBucket::new()), rates, seed);
            sequence(&bucket).expect("some try meets no failure");
        }
    }

    #[test]
    fn a_bucket_that_looks_first_and_writes_then_passes_in_sequence_and_not_in_a_race() {
        let bucket = Careless(MemoryBucket::new());
        sequence(&bucket).expect("one after the other it keeps its word");
        assert!(matches!(race(&bucket), Err(ProbeError::Raced("creation", _))));
    }
}
