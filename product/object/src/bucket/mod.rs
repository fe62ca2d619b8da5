//! Where objects are kept.
//!
//! # Contract
//! - A name that was created and not deleted holds exactly the bytes of the one creation that won.
//! - Of any number of creations of one name at once, one wins. Of any number of swaps that name the
//!   same tag, one wins. [`crate::probe`] tests this by racing, because many services say it and do
//!   not keep it.
//! - A read that begins after a creation, a swap or a deletion was answered sees it.
//! - An error leaves it open whether the request was carried out, now or *later*, unless its kind
//!   says that it was refused. So a name is never used for other bytes: see [`crate::publish`].
//!
//! It does not retry or cache: see [`crate::publish`]. [`MeteredBucket`] counts.

#[cfg(feature = "s3")]
mod cautions;
mod directory;
#[cfg(feature = "faults")]
pub mod faulty;
mod guarded;
mod memory;
mod metered;
#[cfg(feature = "s3")]
mod s3;

pub use directory::DirectoryBucket;
pub(crate) use directory::in_words;
pub(crate) use guarded::{GuardedBucket, Silences, words_of};
pub use memory::MemoryBucket;
pub use metered::{Cause, Meter, MeteredBucket, Prices, Usage};
#[cfg(feature = "s3")]
pub use s3::{S3Bucket, S3Options};

use crate::layout::VolumeId;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// What a service calls one version of an object. Compared, never interpreted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag(pub String);

/// The end of [`Bucket::create`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created {
    /// The object is there, and it is this one.
    New(Tag),
    /// The name was taken: by somebody else, or by an earlier try of one's own.
    Exists,
}

/// The end of [`Bucket::swap`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swapped {
    /// The object is now this one.
    Done(Tag),
    /// It was not, or no longer, what the tag says.
    Changed,
}

/// Keeps objects by name.
pub trait Bucket: Send + Sync {
    /// Stores `bytes` under a name that must be free.
    ///
    /// # Errors
    /// [`BucketError`]; the outcome is unknown unless its kind says otherwise.
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError>;

    /// Replaces the object that `tag` names.
    ///
    /// # Errors
    /// [`BucketError`]; the outcome is unknown unless its kind says otherwise.
    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError>;

    /// An object, or the part of it that lies in `range`, with its tag; `None` if there is none of that
    /// name. A range past the end is cut short.
    ///
    /// # Errors
    /// [`BucketError`].
    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError>;

    /// Several objects, in any order or at once; what [`Bucket::read`] would say of each.
    fn read_all(&self, names: &[String]) -> Vec<Result<Option<Object>, BucketError>> {
        names.iter().map(|name| self.read(name, None)).collect()
    }

    /// Removes an object. A name that is free already is no error.
    ///
    /// # Errors
    /// [`BucketError`].
    fn delete(&self, name: &str) -> Result<(), BucketError>;

    /// Names that begin with `prefix`, and sizes in bytes, in no particular order. Slow and billed:
    /// only for scrubbing.
    ///
    /// # Errors
    /// [`BucketError`].
    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, BucketError>;

    /// The URL, for people.
    fn url(&self) -> String;

    /// The host that answers its requests, for people.
    fn host(&self) -> String {
        self.url()
    }

    /// What its owner has set that costs money or destroys a copy, in words. What cannot be found out is left away.
    fn cautions(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whose the objects of an epoch are: those of the volume `own`, or of one that it was cloned from.
    fn volume_of(&self, own: VolumeId, _epoch: u64) -> VolumeId {
        own
    }
}

impl<B: Bucket + ?Sized> Bucket for Arc<B> {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
        (**self).create(name, bytes)
    }
    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
        (**self).swap(name, tag, bytes)
    }
    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError> {
        (**self).read(name, range)
    }
    fn read_all(&self, names: &[String]) -> Vec<Result<Option<Object>, BucketError>> {
        (**self).read_all(names)
    }
    fn delete(&self, name: &str) -> Result<(), BucketError> {
        (**self).delete(name)
    }
    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, BucketError> {
        (**self).list(prefix)
    }
    fn url(&self) -> String {
        (**self).url()
    }
    fn host(&self) -> String {
        (**self).host()
    }
    fn cautions(&self) -> Vec<String> {
        (**self).cautions()
    }
    fn volume_of(&self, own: VolumeId, epoch: u64) -> VolumeId {
        (**self).volume_of(own, epoch)
    }
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The bytes, or the part of them that was asked for.
    pub bytes: Vec<u8>,
    /// The version that they are of.
    pub tag: Tag,
}

/// Why a request to a bucket failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketError {
    /// What kind of failure it is.
    pub kind: BucketErrorKind,
    /// What the service or the system said, for people.
    pub message: String,
    /// The service has answered, and asks for this much time before the next try.
    pub retry_after: Option<Duration>,
}

/// Kinds of failure, by what to do about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BucketErrorKind {
    /// Overloaded, not reachable, cut off, or another request for the same name was under way. Try
    /// again, later and later. Whether it was carried out is unknown.
    Busy,
    /// Nothing came for as long as an answer may take. Try again; whether it was carried out is
    /// unknown.
    Silent,
    /// The service refuses these credentials, or this clock. Try again when they may have changed.
    Denied,
    /// There is no such bucket, or no such directory.
    NoBucket,
    /// The service does not do what is needed: conditional requests, above all.
    Unsupported,
    /// There is no room left, or a quota is used up.
    Full,
    /// The service has answered that it will not do this: another try says the same.
    Refused,
}

/// Bytes of an object, and of an answer about objects, at most: far more than Coulter writes.
const ANSWER_MAX: u64 = 64 << 20;

impl BucketError {
    /// A failure of a kind. What a URL in the message asks for is left out: a signed one lets
    /// anybody do it.
    pub fn new(kind: BucketErrorKind, message: impl Into<String>) -> BucketError {
        BucketError { kind, message: without_queries(&message.into()), retry_after: None }
    }

    /// The same of a service that asks for this much time before the next try.
    #[must_use]
    pub fn retry_after(self, retry_after: Option<Duration>) -> BucketError {
        BucketError { retry_after, ..self }
    }
}

/// A text whose URLs end before their `?`, and have no user and password.
fn without_queries(text: &str) -> String {
    let ends_url = |c: char| c.is_whitespace() || "\"'<>;".contains(c);
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("://") {
        let (before, behind) = rest.split_at(start + 3);
        plain.push_str(before);
        if !before.ends_with("http://") && !before.ends_with("https://") {
            rest = behind;
            continue;
        }
        let (url, behind) = behind.split_at(behind.find(ends_url).unwrap_or(behind.len()));
        let url_plain = url.split('?').next().unwrap_or_default();
        let host_end = url_plain.find('/').unwrap_or(url_plain.len());
        let user_end = url_plain[..host_end].rfind('@').map_or(0, |at| at + 1);
        plain.push_str(&url_plain[user_end..]);
        rest = behind;
    }
    plain.push_str(rest);
    plain
}

impl fmt::Display for BucketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            BucketErrorKind::Busy if self.retry_after.is_some() => "the bucket is overloaded",
            BucketErrorKind::Busy | BucketErrorKind::Silent => "the bucket does not answer",
            BucketErrorKind::Refused => "the bucket refuses the request",
            BucketErrorKind::Denied => "the bucket refuses access",
            BucketErrorKind::NoBucket => "there is no such bucket",
            BucketErrorKind::Unsupported => "the bucket lacks what is needed",
            BucketErrorKind::Full => "the bucket is full",
        };
        write!(f, "{kind}: {}", self.message)
    }
}

impl std::error::Error for BucketError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_signed_url_lets_anybody_do_is_not_told() {
        let told = |text: &str| BucketError::new(BucketErrorKind::Refused, text).message;
        let signed = "http://127.0.0.1:1/b/c/1?X-Amz-Credential=A%2F1&X-Amz-Signature=2";
        let text = format!("s3://b/v: status 301: the bucket is at {signed}; set AWS_REGION");
        let plain =
            "s3://b/v: status 301: the bucket is at http://127.0.0.1:1/b/c/1; set AWS_REGION";
        assert_eq!(told(&text), plain);
        assert_eq!(told(&format!("{signed} {signed}")).matches("X-Amz").count(), 0);
        assert_eq!(told("https://u:p@example.org/a?b: c"), "https://example.org/a c");
        assert_eq!(told("file:///a@b/c: is that so?"), "file:///a@b/c: is that so?");
    }
}
