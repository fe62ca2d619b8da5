//! Requests that must have an outcome, made of tries that may have none.
//!
//! # Why this is safe
//! - *Creation*: a name is used for one content only, so to try again cannot harm. If the name is taken,
//!   the object is read and compared: it may be our own, from a try whose answer was lost.
//! - *Swap*: the new content has a counter and a nonce, so no two versions are alike. If the swap is
//!   refused, the object is read and compared as above. A try that is carried out late meets another tag,
//!   and is refused.

use crate::bucket::{Bucket, BucketError, BucketErrorKind, Created, Object, Swapped, Tag};
use std::ops::Range;
use std::time::Duration;

/// Decides whether, and when, a request is tried again.
pub trait Patience {
    /// Called after a try has failed; returns when the next one is due, `false` to give up.
    fn wait(&self, tries: u32, error: &BucketError) -> bool;

    /// Called when a request has succeeded.
    fn succeeded(&self) {}

    /// Called when a request begins: until [`Patience::ends`] its caller waits for the service.
    fn begins(&self) {}

    /// Called when a request has an outcome, or is given up.
    fn ends(&self) {}
}

/// For what is asked again before long anyway.
#[derive(Clone, Copy, Debug)]
pub struct Once;

impl Patience for Once {
    fn wait(&self, _tries: u32, _error: &BucketError) -> bool {
        false
    }
}

/// For commands that a person waits for: a service that cannot be reached is asked for a few
/// seconds, one that takes requests and answers none for half a minute, and one that answers that
/// it is overloaded for a few minutes.
#[derive(Clone, Copy, Debug)]
pub struct Briefly;

/// Tries of a request that does not reach the service.
const LOST_TRIES: u32 = 8;
/// Tries of a request to which nothing comes; each takes about 10 s.
const SILENT_TRIES: u32 = 3;
/// Tries of one that is answered with an overload: three minutes, or longer if the service asks for that.
const OVERLOADED_TRIES: u32 = 44;
/// The longest time between two of them.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The longest time between two tries that a service may ask for.
const ASKED_MAX: Duration = Duration::from_secs(60);

impl Patience for Briefly {
    fn wait(&self, tries: u32, error: &BucketError) -> bool {
        let tries_max = match error.kind {
            BucketErrorKind::Busy => error.retry_after.map_or(LOST_TRIES, |_| OVERLOADED_TRIES),
            BucketErrorKind::Silent => SILENT_TRIES,
            _ => 1,
        };
        let again = tries < tries_max;
        if again {
            std::thread::sleep(pause(tries, error));
        }
        again
    }
}

/// Time until the next try: longer and longer, and what the service asks for.
pub fn pause(tries: u32, error: &BucketError) -> Duration {
    let own = Duration::from_millis(20 << tries.min(10)).min(PAUSE_MAX);
    own.max(error.retry_after.unwrap_or_default().min(ASKED_MAX))
}

/// The end of [`create`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The object is there, and it is ours.
    Ours(Tag),
    /// Somebody else's is there, and its bytes.
    Foreign(Vec<u8>),
}

/// Stores an object under a name that nothing else is ever stored under by us.
///
/// # Errors
/// The last error, when `patience` has ended.
pub fn create(
    bucket: &dyn Bucket,
    name: &str,
    bytes: &[u8],
    patience: &dyn Patience,
) -> Result<Outcome, BucketError> {
    retried(patience, || match bucket.create(name, bytes)? {
        Created::New(tag) => Ok(Some(Outcome::Ours(tag))),
        Created::Exists => {
            let Some(Object { bytes: found, tag }) = bucket.read(name, None)? else {
                return Ok(None);
            };
            if found == bytes {
                return Ok(Some(Outcome::Ours(tag)));
            }
            // To be another's fences this host: what is read once may have been damaged on its way.
            let again = bucket.read(name, None)?;
            Ok(again.filter(|again| again.bytes == found).map(|_| Outcome::Foreign(found)))
        }
    })
}

/// Replaces the version of an object that `tag` names. `None` if it was another's by then.
///
/// # Errors
/// The last error, when `patience` has ended.
pub fn swap(
    bucket: &dyn Bucket,
    name: &str,
    tag: &Tag,
    bytes: &[u8],
    patience: &dyn Patience,
) -> Result<Option<Tag>, BucketError> {
    retried(patience, || match bucket.swap(name, tag, bytes)? {
        Swapped::Done(tag) => Ok(Some(Some(tag))),
        Swapped::Changed => {
            let found = bucket.read(name, None)?;
            Ok(Some(found.filter(|found| found.bytes == bytes).map(|found| found.tag)))
        }
    })
}

/// Reads an object, or part of it.
///
/// # Errors
/// The last error, when `patience` has ended.
pub fn read(
    bucket: &dyn Bucket,
    name: &str,
    range: Option<Range<u64>>,
    patience: &dyn Patience,
) -> Result<Option<Object>, BucketError> {
    retried(patience, || bucket.read(name, range.clone()).map(Some))
}

/// Reads several objects, all asked for at once: one round trip if no request fails.
///
/// # Errors
/// The last error, when `patience` has ended.
pub fn read_all(
    bucket: &dyn Bucket,
    names: &[String],
    patience: &dyn Patience,
) -> Result<Vec<Option<Object>>, BucketError> {
    patience.begins();
    let found = bucket.read_all(names);
    patience.ends();
    assert_eq!(found.len(), names.len(), "each name has an answer");
    let one = |(name, found): (&String, Result<_, _>)| match found {
        Ok(found) => Ok(found),
        Err(error) if !patience.wait(1, &error) => Err(error),
        // Once more, by itself, and for as long as it takes.
        Err(_) => read(bucket, name, None, patience),
    };
    names.iter().zip(found).map(one).collect()
}

/// The names that begin with `prefix`, in no particular order. Slow and billed: only to scrub.
///
/// # Errors
/// The last error, when `patience` has ended.
pub fn list(
    bucket: &dyn Bucket,
    prefix: &str,
    patience: &dyn Patience,
) -> Result<Vec<String>, BucketError> {
    let found = retried(patience, || bucket.list(prefix).map(Some))?;
    Ok(found.into_iter().map(|(name, _)| name).collect())
}

/// Removes an object.
///
/// # Errors
/// The last error, when `patience` has ended.
pub fn delete(bucket: &dyn Bucket, name: &str, patience: &dyn Patience) -> Result<(), BucketError> {
    retried(patience, || bucket.delete(name).map(Some))
}

/// Tries until there is an outcome. `None` is one more reason to try again: what was seen a moment ago is
/// gone.
fn retried<T>(
    patience: &dyn Patience,
    mut attempt: impl FnMut() -> Result<Option<T>, BucketError>,
) -> Result<T, BucketError> {
    let mut tries = 0;
    patience.begins();
    let outcome = loop {
        let error = match attempt() {
            Ok(Some(outcome)) => {
                patience.succeeded();
                break Ok(outcome);
            }
            Ok(None) => {
                BucketError::new(BucketErrorKind::Busy, "an object was there and then was not")
            }
            Err(error) => error,
        };
        tries += 1;
        if !patience.wait(tries, &error) {
            break Err(error);
        }
    };
    patience.ends();
    outcome
}
