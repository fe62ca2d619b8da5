//! A restore whose service fails, or that is interrupted, goes on where it stopped; commands
//! that wait for a service say so.

mod sandbox;

use coulter_object::bucket::{
    Bucket, BucketError, BucketErrorKind, Created, MemoryBucket, Object, Swapped, Tag,
};
use coulter_object::service::Service;
use sandbox::{Sandbox, send, wait_until};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const URL: &str = "s3://bucket/vol";

/// A bucket that answers a number of requests for data, and then fails.
struct Failing {
    inner: MemoryBucket,
    /// Requests for data that are answered still.
    left: AtomicUsize,
    /// Objects of data that were sent.
    sent: AtomicUsize,
    /// How all other requests for data fail; and whether every request does.
    fault: Mutex<(BucketErrorKind, bool)>,
}

impl Failing {
    fn set(&self, left: usize, kind: BucketErrorKind, is_everything: bool) {
        self.left.store(left, Ordering::SeqCst);
        self.sent.store(0, Ordering::SeqCst);
        *self.fault.lock().expect("no panic") = (kind, is_everything);
    }

    fn mend(&self) {
        self.set(usize::MAX, BucketErrorKind::Busy, false);
    }

    fn check(&self, name: &str) -> Result<(), BucketError> {
        let (kind, is_everything) = *self.fault.lock().expect("no panic");
        let failure = || Err(BucketError::new(kind, "told to"));
        if is_everything {
            return failure();
        }
        if !name.starts_with("vol/d/") {
            return Ok(());
        }
        let take = |left: usize| left.checked_sub(1);
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
            return failure();
        }
        self.sent.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

impl Bucket for Failing {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
        self.inner.create(name, bytes)
    }
    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
        self.inner.swap(name, tag, bytes)
    }
    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError> {
        self.check(name)?;
        self.inner.read(name, range)
    }
    fn delete(&self, name: &str) -> Result<(), BucketError> {
        self.inner.delete(name)
    }
    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, BucketError> {
        self.inner.list(prefix)
    }
    fn url(&self) -> String {
        "failing".to_owned()
    }
}

/// A volume in a bucket, with several objects of data. Returns how many, and what a restore
/// makes of it.
fn with_copy() -> (Sandbox, Arc<Failing>, Service, usize, Vec<u8>) {
    let mut sandbox = Sandbox::new();
    let bucket = Failing {
        inner: MemoryBucket::new(),
        left: AtomicUsize::new(usize::MAX),
        sent: AtomicUsize::new(0),
        fault: Mutex::new((BucketErrorKind::Busy, false)),
    };
    let bucket = Arc::new(bucket);
    let service = Service::start("bucket", bucket.clone()).expect("a free port");
    sandbox.set_variable("AWS_ENDPOINT_URL", &service.endpoint());
    sandbox.set_variable("AWS_ACCESS_KEY_ID", "key");
    sandbox.set_variable("AWS_SECRET_ACCESS_KEY", "secret");
    sandbox.ok(&["create", "disk.img", "--store-size", "96M", "--segment-size", "2M"]);
    let words =
        ["attach", "disk.img", "--via", "nbd-server", "--replicate", URL, "--ack", "remote"];
    let content = |round: u32| (0..8_u32 << 20).map(move |at| (at.wrapping_mul(round) >> 9) as u8);
    for round in [3, 5, 7, 11] {
        let uri = sandbox.ok(&words).trim_end().to_owned();
        fs::write(sandbox.path("written"), content(round).collect::<Vec<u8>>()).expect("room");
        let mut copy = Command::new("nbdcopy");
        let copy = copy.args(["--flush", "written", &uri]).current_dir(sandbox.path("."));
        assert!(copy.status().expect("libnbd's programs are installed").success());
        sandbox.ok(&["detach", "disk"]);
    }
    bucket.mend();
    sandbox.ok(&["restore", URL, "whole.img"]);
    let count = bucket.sent.load(Ordering::SeqCst);
    assert!(count > 3, "several objects: {count}");
    let whole = fs::read(sandbox.path("whole.img")).expect("it is there");
    (sandbox, bucket, service, count, whole)
}

fn start(sandbox: &Sandbox, words: &[&str]) -> Child {
    let file = File::create(sandbox.path("said")).expect("the directory is writable");
    sandbox.command(words).stderr(file).spawn().expect("the program can be started")
}

fn said(sandbox: &Sandbox) -> String {
    fs::read_to_string(sandbox.path("said")).unwrap_or_default()
}

/// Files of a restore to `x.img`, with their permissions.
fn files(sandbox: &Sandbox) -> Vec<(String, u32)> {
    let entries = fs::read_dir(sandbox.path(".")).expect("it is a directory").flatten();
    let of = |entry: fs::DirEntry| {
        let mode = entry.metadata().expect("it is there").mode() & 0o777;
        (entry.file_name().to_string_lossy().into_owned(), mode)
    };
    let mut found: Vec<_> = entries.map(of).filter(|(name, _)| name.starts_with("x.img")).collect();
    found.sort();
    found
}

fn half_made() -> Vec<(String, u32)> {
    ["x.img.part", "x.img.part.notes"].map(|name| (name.to_owned(), 0o600)).to_vec()
}

#[test]
fn a_restore_whose_service_fails_goes_on_where_it_stopped() {
    let (sandbox, bucket, _service, count, whole) = with_copy();
    bucket.set(2, BucketErrorKind::Denied, false);
    let error = sandbox.fails(1, &["restore", URL, "x.img"]);
    for words in ["refuses access", "x.img.part", "the same command goes on"] {
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(files(&sandbox), half_made());
    bucket.mend();
    let output = sandbox.run(&["restore", URL, "x.img"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    assert!(told.contains("going on from x.img.part"), "{told}");
    assert_eq!(bucket.sent.load(Ordering::SeqCst), count - 2, "what is there is kept");
    assert_eq!(files(&sandbox), [("x.img".to_owned(), 0o600)]);
    assert_eq!(fs::read(sandbox.path("x.img")).expect("it is there"), whole);

    // Nothing was fetched: nothing stays.
    fs::remove_file(sandbox.path("x.img")).expect("it is there");
    bucket.set(0, BucketErrorKind::Denied, true);
    sandbox.fails(1, &["restore", URL, "x.img"]);
    assert_eq!(files(&sandbox), []);
}

#[test]
fn a_wait_for_a_service_is_told_and_an_interrupted_restore_goes_on() {
    let (sandbox, bucket, _service, count, whole) = with_copy();
    bucket.set(1, BucketErrorKind::Busy, false);
    let mut restore = start(&sandbox, &["restore", URL, "x.img", "--take-over"]);
    let began = std::time::Instant::now();
    wait_until("the wait is told", || said(&sandbox).contains("waiting for"));
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    for words in ["overloaded", "503", "asked again for", "until 20"] {
        assert!(said(&sandbox).contains(words), "{}", said(&sandbox));
    }
    send(restore.id(), "INT");
    assert_eq!(restore.wait().expect("it was started").code(), Some(1));
    for words in ["interrupted", "x.img.part", "the same command goes on"] {
        assert!(said(&sandbox).contains(words), "{}", said(&sandbox));
    }
    assert_eq!(files(&sandbox), half_made());
    bucket.mend();
    sandbox.ok(&["restore", URL, "x.img", "--take-over"]);
    assert_eq!(bucket.sent.load(Ordering::SeqCst), count - 1, "what is there is kept");
    assert_eq!(fs::read(sandbox.path("x.img")).expect("it is there"), whole);
    let words = ["attach", "x.img", "--via", "nbd-server", "--replicate", URL, "--ack", "remote"];
    sandbox.ok(&words);
    sandbox.ok(&["detach", "x"]);

    bucket.set(usize::MAX, BucketErrorKind::Busy, true);
    let mut snapshot = start(&sandbox, &["snapshot", "create", &format!("{URL}@one")]);
    wait_until("the wait is told", || said(&sandbox).contains("asked again for"));
    bucket.mend();
    assert!(snapshot.wait().expect("it was started").success(), "{}", said(&sandbox));
}
