//! Objects in a bucket of an S3-compatible service.
//!
//! Requests are signed by `rusty-s3` and sent by `ureq`, which blocks: the uploader has threads for
//! that. Neither repeats a request by itself, so every outcome is seen by [`crate::publish`].
//!
//! # What answers mean
//! - `412`: the condition does not hold. `409`: another request for the same name was under way, so try
//!   again; it does *not* mean that the object exists.
//! - `403`, and `400` of a token that has expired: credentials or clock. They are read anew before the next try.
//! - `404` of a read: no such object, unless the service says `NoSuchBucket`.
//! - `429` and `5xx`: overloaded, and `Retry-After` is kept. Other answers: refused, and another try says the same.
//! - Every failure of the connection: the outcome is unknown.
//!
//! # Does not
//! send credentials over a plain connection, save to this machine: see [`S3Options::from_environment`].

use super::{ANSWER_MAX, cautions};
use super::{Bucket, BucketError, BucketErrorKind, Created, Object, Swapped, Tag};
use rusty_s3::actions::{ListObjectsV2, S3Action};
use rusty_s3::{Bucket as Place, Credentials, UrlStyle};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};
use ureq::http::Response;
use ureq::{Agent, Body};

/// How long a signature is good for. A clock that differs by more than 15 minutes is refused anyway.
const SIGNED_FOR: Duration = Duration::from_secs(900);
/// How long credentials are used before they are read anew.
const CREDENTIALS_FOR: Duration = Duration::from_secs(60);
/// Connections that are kept for the next request: as many as there are requests at once.
const CONNECTIONS_KEPT: usize = 40;
/// How long an answer to a request that sends little may stay away.
const ANSWER_WITHIN: Duration = Duration::from_secs(9);
/// Bytes that are little: no line takes seconds for them.
const LITTLE_MAX: usize = 64 << 10;
/// How many times longer an answer may stay away than a part of a request may take to be sent.
const READS_WAIT_LONGER: u32 = 4;
/// Pages of a list at most: names of ten million objects.
const PAGES_MAX: usize = 10_000;

/// Where the service is, and who is asking.
#[derive(Clone, Debug)]
pub struct S3Options {
    /// `https://…`; or `http://…` of this machine.
    pub endpoint: String,
    /// The region, which is part of each signature.
    pub region: String,
    /// Whether the bucket is part of the host's name, as Amazon wants it.
    pub is_virtual_host: bool,
    /// The file that holds credentials if the environment has none, and which of its profiles counts.
    pub credentials_file: Option<(PathBuf, String)>,
    /// How long a request may send nothing; for an answer it waits longer, because the system still sends what it
    /// has taken. A request that goes on has no limit: a slow line is no reason to begin anew.
    pub timeout: Duration,
}

impl S3Options {
    /// As the variables say that all tools for S3 read: `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`,
    /// `AWS_REGION`, `AWS_DEFAULT_REGION`, `AWS_SHARED_CREDENTIALS_FILE`, `AWS_PROFILE`. Credentials are
    /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`, or else in the file.
    pub fn from_environment() -> S3Options {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let region = variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION"));
        let region = region.unwrap_or_else(|| "us-east-1".to_string());
        let endpoint = variable("AWS_ENDPOINT_URL_S3").or_else(|| variable("AWS_ENDPOINT_URL"));
        let is_virtual_host = endpoint.is_none();
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let file = variable("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from);
        let file = file.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".aws/credentials")));
        let profile = variable("AWS_PROFILE").unwrap_or_else(|| "default".to_string());
        S3Options {
            endpoint,
            region,
            is_virtual_host,
            credentials_file: file.map(|file| (file, profile)),
            timeout: Duration::from_secs(30),
        }
    }
}

/// Objects in a bucket of an S3-compatible service.
pub struct S3Bucket {
    /// For requests that send much: the system still sends what it has taken.
    agent: Agent,
    /// For all others.
    quick: Agent,
    place: Place,
    /// Ends with a slash, or is empty.
    prefix: String,
    file: Option<(PathBuf, String)>,
    credentials: Mutex<Option<(Credentials, Instant)>>,
}

impl S3Bucket {
    /// The bucket of a name, and the part of it whose names begin with `prefix` and a slash.
    ///
    /// # Errors
    /// [`BucketErrorKind::Unsupported`] if the endpoint is no URL, or a plain one of another machine.
    pub fn open(name: &str, prefix: &str, options: &S3Options) -> Result<S3Bucket, BucketError> {
        let unsupported = |message: String| BucketError::new(BucketErrorKind::Unsupported, message);
        let style = if options.is_virtual_host { UrlStyle::VirtualHost } else { UrlStyle::Path };
        // What is judged is what the signed URLs are made of: two parsers could read one text in two ways.
        let url = options.endpoint.parse();
        let url: url::Url =
            url.map_err(|error| unsupported(format!("{}: {error}", options.endpoint)))?;
        let is_plain = match (url.scheme(), url.host_str()) {
            ("https", Some(_)) => false,
            ("http", Some(host)) if is_this_machine(host) => true,
            ("http", Some(_)) => {
                let message = format!("{}: credentials are sent over https only", options.endpoint);
                return Err(unsupported(message));
            }
            _ => {
                let message = format!("{}: it is no https:// URL of a host", options.endpoint);
                return Err(unsupported(message));
            }
        };
        let place = Place::new(url, style, name.to_string(), options.region.clone());
        let place = place.map_err(|error| unsupported(format!("bucket '{name}': {error}")))?;
        let agent = |answer_within: Duration| -> Agent {
            let mut config = Agent::config_builder();
            if is_plain {
                // No proxy sees requests for this machine.
                config = config.proxy(None);
            }
            let config = config
                .http_status_as_error(false)
                .timeout_connect(Some(Duration::from_secs(5)))
                .timeout_per_write(Some(options.timeout))
                .timeout_per_read(Some(answer_within))
                .max_redirects(0)
                .max_idle_connections(CONNECTIONS_KEPT)
                .max_idle_connections_per_host(CONNECTIONS_KEPT);
            config.build().into()
        };
        let patient = READS_WAIT_LONGER * options.timeout;
        let (agent, quick) = (agent(patient), agent(ANSWER_WITHIN.min(patient)));
        let prefix = prefix.trim_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        let file = options.credentials_file.clone();
        let credentials = Mutex::new(None);
        Ok(S3Bucket { agent, quick, place, prefix, file, credentials })
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn credentials(&self) -> Result<Credentials, BucketError> {
        let mut known = self.credentials.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((credentials, at)) = &*known
            && at.elapsed() < CREDENTIALS_FOR
        {
            return Ok(credentials.clone());
        }
        let from_file =
            || self.file.as_ref().and_then(|(path, profile)| read_profile(path, profile));
        let found = Credentials::from_env().or_else(from_file).ok_or_else(|| {
            let message = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them \
                to ~/.aws/credentials";
            BucketError::new(BucketErrorKind::Denied, message)
        })?;
        *known = Some((found.clone(), Instant::now()));
        Ok(found)
    }

    /// What to make of an answer that is none of those that the request expects.
    fn failure(&self, mut response: Response<Body>) -> BucketError {
        let status = response.status().as_u16();
        let text =
            response.body_mut().with_config().limit(64 << 10).read_to_string().unwrap_or_default();
        let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
        let code = code.map_or("", |(code, _)| code);
        let header = |name: &str| response.headers().get(name).and_then(|it| it.to_str().ok());
        let asked = header("retry-after").and_then(|text| text.trim().parse().ok());
        let elsewhere = header("location").or_else(|| header("x-amz-bucket-region"));
        let elsewhere = elsewhere.map(str::to_owned);
        let kind = match (status, code) {
            (404, _) => BucketErrorKind::NoBucket,
            (401 | 403, _) | (400, "ExpiredToken" | "TokenRefreshRequired" | "InvalidToken") => {
                *self.credentials.lock().unwrap_or_else(PoisonError::into_inner) = None;
                BucketErrorKind::Denied
            }
            (501, _) | (400, "NotImplemented") => BucketErrorKind::Unsupported,
            (507, _) | (_, "QuotaExceeded" | "XMinioStorageFull") => BucketErrorKind::Full,
            // `409`: another request for the name is under way. A body that was cut off is `400`.
            (408 | 409 | 425 | 429 | 500..=599, _) | (400, "RequestTimeout" | "IncompleteBody") => {
                BucketErrorKind::Busy
            }
            _ => BucketErrorKind::Refused,
        };
        let code = if code.is_empty() { String::new() } else { format!(" {code}") };
        let what = match (status, code.trim(), elsewhere) {
            (300..=399, _, Some(place)) => {
                format!(": the bucket is at {place}; set AWS_ENDPOINT_URL or AWS_REGION for it")
            }
            (300..=399, ..) => ": the bucket is in another place; set AWS_REGION for it".to_owned(),
            (_, "RequestTimeTooSkewed", _) => ": the clock of this host is wrong".to_owned(),
            _ => String::new(),
        };
        let message = format!("{}: status {status}{code}{what}", self.url());
        let is_overload = matches!(status, 429 | 500..=599) && kind == BucketErrorKind::Busy;
        let retry_after = is_overload.then(|| Duration::from_secs(asked.unwrap_or(0)));
        BucketError::new(kind, message).retry_after(retry_after)
    }

    fn unreachable(&self, error: &ureq::Error) -> BucketError {
        let (url, host) = (self.url(), self.host());
        match error {
            ureq::Error::Timeout(_) => BucketError::new(
                BucketErrorKind::Silent,
                format!("{url}: no answer from {host}: {error}"),
            ),
            _ => BucketError::new(BucketErrorKind::Busy, format!("{url}: {host}: {error}")),
        }
    }

    /// The bucket's configuration of a kind; `None` if it has none, or these credentials may not read it.
    fn configuration(&self, kind: &str) -> Option<String> {
        let credentials = self.credentials().ok()?;
        let mut action = self.place.get_object(Some(&credentials), "");
        action.query_mut().insert(kind.to_owned(), "");
        let mut response = self.quick.get(action.sign(SIGNED_FOR).as_str()).call().ok()?;
        if response.status().as_u16() != 200 {
            return None;
        }
        response.body_mut().with_config().limit(1 << 20).read_to_string().ok()
    }

    /// A conditional PUT. `None` if the condition does not hold.
    fn put(
        &self,
        name: &str,
        bytes: &[u8],
        condition: (&'static str, &str),
    ) -> Result<Option<Tag>, BucketError> {
        let credentials = self.credentials()?;
        let key = self.key(name);
        let mut action = self.place.put_object(Some(&credentials), &key);
        action.headers_mut().insert(condition.0, condition.1);
        let url = action.sign(SIGNED_FOR);
        let agent = if bytes.len() <= LITTLE_MAX { &self.quick } else { &self.agent };
        let sent = agent.put(url.as_str()).header(condition.0, condition.1).send(bytes);
        let response = sent.map_err(|error| self.unreachable(&error))?;
        match response.status().as_u16() {
            200 | 201 | 204 => Ok(Some(tag_of(&response, self)?)),
            412 => Ok(None),
            // A swap of what is not there.
            404 if condition.0 == "if-match" => {
                let failure = self.failure(response);
                if failure.message.contains("NoSuchBucket") { Err(failure) } else { Ok(None) }
            }
            _ => Err(self.failure(response)),
        }
    }
}

impl Bucket for S3Bucket {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
        let created = self.put(name, bytes, ("if-none-match", "*"))?;
        Ok(created.map_or(Created::Exists, Created::New))
    }

    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
        let swapped = self.put(name, bytes, ("if-match", &tag.0))?;
        Ok(swapped.map_or(Swapped::Changed, Swapped::Done))
    }

    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError> {
        if range.as_ref().is_some_and(Range::is_empty) {
            let object = self.read(name, Some(0..1))?;
            return Ok(object.map(|object| Object { bytes: Vec::new(), ..object }));
        }
        let credentials = self.credentials()?;
        let key = self.key(name);
        let url = self.place.get_object(Some(&credentials), &key).sign(SIGNED_FOR);
        let mut request = self.quick.get(url.as_str());
        if let Some(Range { start, end }) = range {
            request = request.header("range", format!("bytes={start}-{}", end - 1));
        }
        let mut response = request.call().map_err(|error| self.unreachable(&error))?;
        match response.status().as_u16() {
            200 | 206 => {
                let tag = tag_of(&response, self)?;
                let body = response.body_mut().with_config().limit(ANSWER_MAX).read_to_vec();
                let bytes = body.map_err(|error| self.unreachable(&error))?;
                Ok(Some(Object { bytes, tag }))
            }
            // The range begins at or behind the end.
            416 => {
                let object = self.read(name, None)?;
                Ok(object.map(|object| Object { bytes: Vec::new(), ..object }))
            }
            404 => {
                let failure = self.failure(response);
                if failure.message.contains("NoSuchBucket") { Err(failure) } else { Ok(None) }
            }
            _ => Err(self.failure(response)),
        }
    }

    fn read_all(&self, names: &[String]) -> Vec<Result<Option<Object>, BucketError>> {
        if let [name] = names {
            return vec![self.read(name, None)];
        }
        // A request waits for the network nearly all of its time.
        std::thread::scope(|scope| {
            let start = |name| {
                std::thread::Builder::new().spawn_scoped(scope, move || self.read(name, None))
            };
            let threads: Vec<_> = names.iter().map(|name| (name, start(name))).collect();
            let one = |(name, thread): (&String, io::Result<ScopedJoinHandle<'_, _>>)| match thread
            {
                Ok(thread) => thread.join().unwrap_or_else(|cause| resume_unwind(cause)),
                // No thread can be started now: one after the other takes longer, and is as good.
                Err(_) => self.read(name, None),
            };
            threads.into_iter().map(one).collect()
        })
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        let credentials = self.credentials()?;
        let key = self.key(name);
        let url = self.place.delete_object(Some(&credentials), &key).sign(SIGNED_FOR);
        let response =
            self.quick.delete(url.as_str()).call().map_err(|error| self.unreachable(&error))?;
        match response.status().as_u16() {
            200..=299 | 404 => Ok(()),
            _ => Err(self.failure(response)),
        }
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, BucketError> {
        let mut found = Vec::new();
        let mut token: Option<String> = None;
        let key = self.key(prefix);
        let unusable = |reason: &dyn fmt::Display| {
            let message = format!("{}: a list: {reason}", self.url());
            BucketError::new(BucketErrorKind::Unsupported, message)
        };
        for _ in 0..PAGES_MAX {
            let credentials = self.credentials()?;
            let mut action = self.place.list_objects_v2(Some(&credentials));
            action.with_prefix(&*key);
            if let Some(token) = &token {
                action.with_continuation_token(token.as_str());
            }
            let url = action.sign(SIGNED_FOR);
            let mut response =
                self.quick.get(url.as_str()).call().map_err(|error| self.unreachable(&error))?;
            if response.status().as_u16() != 200 {
                return Err(self.failure(response));
            }
            let text = response.body_mut().with_config().limit(ANSWER_MAX).read_to_string();
            let text = text.map_err(|error| self.unreachable(&error))?;
            let page = ListObjectsV2::parse_response(&text).map_err(|error| unusable(&error))?;
            let names = page.contents.into_iter().filter_map(|content| {
                Some((
                    content.key.strip_prefix(&self.prefix)?.to_string(),
                    content.size.unwrap_or(0),
                ))
            });
            found.extend(names);
            if page.next_continuation_token.is_none() {
                return Ok(found);
            }
            if page.next_continuation_token == token {
                return Err(unusable(&"a page says that it is followed by itself"));
            }
            token = page.next_continuation_token;
        }
        Err(unusable(&format!("more than {PAGES_MAX} pages")))
    }

    fn cautions(&self) -> Vec<String> {
        cautions::of(&|kind| self.configuration(kind), &self.prefix)
    }

    fn host(&self) -> String {
        let url = self.place.base_url();
        let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
        format!("{}{port}", url.host_str().unwrap_or_default())
    }

    fn url(&self) -> String {
        format!("s3://{}/{}", self.place.name(), self.prefix.trim_end_matches('/'))
    }
}

impl fmt::Debug for S3Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S3Bucket({})", self.url())
    }
}

/// Whether a host of a URL is this machine, whatever a name server says.
fn is_this_machine(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn tag_of(response: &Response<Body>, bucket: &S3Bucket) -> Result<Tag, BucketError> {
    let tag = response.headers().get("etag").and_then(|tag| tag.to_str().ok());
    tag.map(|tag| Tag(tag.to_string())).ok_or_else(|| {
        let message = format!("{}: an answer without an ETag", bucket.url());
        BucketError::new(BucketErrorKind::Unsupported, message)
    })
}

/// The credentials of a profile in a file of lines `[profile]` and `name = value`.
fn read_profile(path: &Path, profile: &str) -> Option<Credentials> {
    let text = std::fs::read_to_string(path).ok()?;
    let (mut is_ours, mut key, mut secret, mut token) = (false, None, None, None);
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            is_ours = name.trim() == profile;
        } else if let Some((name, value)) = line.split_once('=').filter(|_| is_ours) {
            let value = Some(value.trim().to_string());
            match name.trim() {
                "aws_access_key_id" => key = value,
                "aws_secret_access_key" => secret = value,
                "aws_session_token" => token = value,
                _ => {}
            }
        }
    }
    let (key, secret) = (key?, secret?);
    Some(match token {
        Some(token) => Credentials::new_with_token(key, secret, token),
        None => Credentials::new(key, secret),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(endpoint: &str) -> S3Options {
        S3Options {
            endpoint: endpoint.to_string(),
            region: "us-east-1".to_string(),
            is_virtual_host: false,
            credentials_file: None,
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn credentials_leave_this_machine_only_encrypted() {
        S3Bucket::open("one", "two/", &options("http://127.0.0.1:1")).expect("this machine");
        S3Bucket::open("one", "two/", &options("https://example.org")).expect("encrypted");
        let refused = S3Bucket::open("one", "", &options("http://example.org")).expect_err("plain");
        assert_eq!(refused.kind, BucketErrorKind::Unsupported);
        for here in
            ["http://127.0.0.1:1", "http://127.8.9.1", "http://[::1]:1", "http://localhost:9"]
        {
            S3Bucket::open("one", "", &options(here)).expect("this machine");
        }
        for elsewhere in [
            "http://127.0.0.1.example.invalid",
            "http://127.example.invalid:80",
            "http://127.0.0.1@example.invalid",
            "http://user:127.0.0.1@example.invalid/127.0.0.1",
            "http://example.invalid#127.0.0.1",
            "http://example.invalid\\@127.0.0.1",
            "http://localhost.example.invalid",
            "http://[::2]",
            "http://0.0.0.0",
            "http://128.0.0.1",
            "ftp://127.0.0.1",
            "nonsense",
        ] {
            let refused = S3Bucket::open("one", "", &options(elsewhere)).expect_err(elsewhere);
            assert_eq!(refused.kind, BucketErrorKind::Unsupported, "{elsewhere}");
        }
    }

    #[test]
    fn a_profile_is_found_among_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("credentials");
        let text = "[default]\naws_access_key_id = A\naws_secret_access_key=B\n\n[other]\n\
            aws_access_key_id=C\naws_secret_access_key = D\naws_session_token = E\n[half]\naws_access_key_id=F\n";
        std::fs::write(&path, text).expect("the file is written");
        let found = read_profile(&path, "other").expect("it is there");
        assert_eq!((found.key(), found.secret(), found.token()), ("C", "D", Some("E")));
        assert_eq!(read_profile(&path, "default").expect("it is there").token(), None);
        assert!(read_profile(&path, "half").is_none(), "half of it is nothing");
        assert!(read_profile(&path, "absent").is_none());
    }
}
