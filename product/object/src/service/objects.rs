//! Requests of S3, answered from a [`Bucket`].

use super::http::Message;
use super::listener::{Handler, Listener, Reply};
use crate::bucket::{Bucket, BucketError, BucketErrorKind, Created, Swapped, Tag};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Names on one page of a list: few, so that tests turn pages.
const PAGE: usize = 100;

/// One bucket, on this machine.
#[derive(Debug)]
pub struct Service {
    listener: Listener,
    configurations: Configurations,
}

/// What the bucket's owner has set: `versioning`, `object-lock`, `lifecycle`, each as S3 answers it.
type Configurations = Arc<Mutex<BTreeMap<String, String>>>;

impl Service {
    /// Answers requests for the bucket of a name from `objects`.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start(name: &str, objects: Arc<dyn Bucket>) -> io::Result<Service> {
        let configurations = Configurations::default();
        let kept = configurations.clone();
        let handler = Objects { name: name.to_string(), objects, configurations: kept };
        Ok(Service { listener: Listener::start(handler)?, configurations })
    }

    /// Has it answer that the owner has set something, such as `versioning`.
    pub fn configure(&self, kind: &str, answer: &str) {
        let mut kept = self.configurations.lock().unwrap_or_else(PoisonError::into_inner);
        kept.insert(kind.to_owned(), answer.to_owned());
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// The URL to give to clients.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address())
    }
}

struct Objects {
    name: String,
    objects: Arc<dyn Bucket>,
    configurations: Configurations,
}

impl Handler for Objects {
    fn handle(&self, request: Message) -> Reply {
        Reply::Whole(self.answer(&request).unwrap_or_else(|error| refusal(&error)))
    }
}

impl Objects {
    fn answer(&self, request: &Message) -> Result<Message, BucketError> {
        let (path, query) = request.target();
        let path = decoded(path);
        let path = path.trim_start_matches('/');
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        if !query.contains("X-Amz-Signature=") {
            return Ok(Message::error(403, "AccessDenied"));
        }
        if bucket != self.name {
            return Ok(Message::error(404, "NoSuchBucket"));
        }
        match request.method() {
            "PUT" => self.put(key, request),
            "GET" if key.is_empty() && !query.contains("list-type=") => {
                let kept = self.configurations.lock().unwrap_or_else(PoisonError::into_inner);
                let asked = |kind: &str| parameter(query, kind).is_some();
                let found = kept.iter().find(|(kind, _)| asked(kind));
                Ok(found.map_or_else(
                    || Message::error(404, "NoSuchConfiguration"),
                    |(_, answer)| Message::answer(200, answer.as_str()),
                ))
            }
            "GET" if key.is_empty() => self.list(query),
            "GET" => self.get(key, request.header("range")),
            "DELETE" => {
                self.objects.delete(key)?;
                Ok(Message::answer(204, ""))
            }
            _ => Ok(Message::error(501, "NotImplemented")),
        }
    }

    fn put(&self, key: &str, request: &Message) -> Result<Message, BucketError> {
        let done = match (request.header("if-none-match"), request.header("if-match")) {
            (Some("*"), None) => match self.objects.create(key, &request.body)? {
                Created::New(tag) => Some(tag),
                Created::Exists => None,
            },
            (None, Some(tag)) => {
                let tag = Tag(tag.trim_matches('"').to_string());
                if self.objects.read(key, Some(0..1))?.is_none() {
                    return Ok(Message::error(404, "NoSuchKey"));
                }
                match self.objects.swap(key, &tag, &request.body)? {
                    Swapped::Done(tag) => Some(tag),
                    Swapped::Changed => None,
                }
            }
            // No client of ours writes without a condition.
            _ => return Ok(Message::error(501, "NotImplemented")),
        };
        Ok(match done {
            Some(tag) => Message::answer(200, "").with("etag", quoted(&tag)),
            None => Message::error(412, "PreconditionFailed"),
        })
    }

    fn get(&self, key: &str, range: Option<&str>) -> Result<Message, BucketError> {
        let Some(whole) = self.objects.read(key, None)? else {
            return Ok(Message::error(404, "NoSuchKey"));
        };
        let tag = quoted(&whole.tag);
        let Some(range) = range else {
            return Ok(Message::answer(200, whole.bytes).with("etag", tag));
        };
        let size = whole.bytes.len() as u64;
        let Some(range) = parse_range(range).filter(|range| range.start < size) else {
            return Ok(Message::error(416, "InvalidRange"));
        };
        let part = &whole.bytes[range.start as usize..range.end.min(size) as usize];
        Ok(Message::answer(206, part).with("etag", tag))
    }

    fn list(&self, query: &str) -> Result<Message, BucketError> {
        let prefix = parameter(query, "prefix").unwrap_or_default();
        let after = parameter(query, "continuation-token").unwrap_or_default();
        let mut names = self.objects.list(&prefix)?;
        names.sort();
        names.retain(|(name, _)| *name > after);
        let is_cut = names.len() > PAGE;
        names.truncate(PAGE);
        let mut text =
            String::from("<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
        let _ = write!(text, "<IsTruncated>{is_cut}</IsTruncated><MaxKeys>{PAGE}</MaxKeys>");
        for (name, size) in &names {
            let _ = write!(
                text,
                "<Contents><Key>{name}</Key><LastModified>2020-01-01T00:00:00.000Z</LastModified>\
                 <ETag>\"0\"</ETag><Size>{size}</Size></Contents>"
            );
        }
        if let Some((last, _)) = names.last().filter(|_| is_cut) {
            let _ = write!(text, "<NextContinuationToken>{last}</NextContinuationToken>");
        }
        text.push_str("</ListBucketResult>");
        Ok(Message::answer(200, text))
    }
}

fn refusal(error: &BucketError) -> Message {
    match error.kind {
        BucketErrorKind::Busy | BucketErrorKind::Silent => Message::error(503, "SlowDown"),
        BucketErrorKind::Denied => Message::error(403, "AccessDenied"),
        BucketErrorKind::NoBucket => Message::error(404, "NoSuchBucket"),
        BucketErrorKind::Unsupported => Message::error(501, "NotImplemented"),
        BucketErrorKind::Refused => Message::error(405, "MethodNotAllowed"),
        BucketErrorKind::Full => Message::error(507, "QuotaExceeded"),
    }
}

fn quoted(tag: &Tag) -> String {
    format!("\"{}\"", tag.0)
}

/// `bytes=FIRST-LAST`.
fn parse_range(text: &str) -> Option<Range<u64>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    Some(first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?)
}

fn parameter(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(known, _)| *known == name).map(|(_, value)| decoded(value))
}

/// Text without its `%XX`; what makes no sense stays as it is.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while let Some(byte) = bytes.get(index) {
        let digits = text.get(index + 1..index + 3).filter(|_| *byte == b'%');
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(code) => {
                plain.push(code);
                index += 3;
            }
            None => {
                plain.push(*byte);
                index += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ranges_are_read_as_clients_write_them() {
        assert_eq!(decoded("/a%20b/c%2Fd%"), "/a b/c/d%");
        assert_eq!(parameter("x=1&prefix=d%2F", "prefix").as_deref(), Some("d/"));
        assert_eq!(parse_range("bytes=5-9"), Some(5..10));
        assert_eq!(parse_range("bytes=5-"), None);
    }
}
