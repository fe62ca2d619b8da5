//! What a service answers, and how slowly: by a server that says what the test wants.

use coulter_object::bucket::{Bucket, BucketErrorKind, Created, S3Bucket, S3Options};
use coulter_object::publish::{self, Briefly, Outcome};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const CREATED: &str = "HTTP/1.1 200 OK\r\netag: \"1\"\r\ncontent-length: 0\r\n\r\n";

fn bucket(server: &TcpListener, folder: &Path, timeout: Duration) -> S3Bucket {
    let file = folder.join("credentials");
    let text = "[default]\naws_access_key_id = A\naws_secret_access_key = B\n";
    std::fs::write(&file, text).expect("the folder is writable");
    let options = S3Options {
        endpoint: format!("http://{}", server.local_addr().expect("it listens")),
        region: "us-east-1".to_string(),
        is_virtual_host: false,
        credentials_file: Some((file, "default".to_string())),
        timeout,
    };
    S3Bucket::open("bucket", "volume", &options).expect("a URL of this machine")
}

/// Reads a request, its body in parts of 64 KiB with a pause after each.
fn read_request(stream: &mut TcpStream, pause: Duration) -> Option<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let mut left: usize = length.map_or(0, |length| length.trim().parse().expect("a number"));
    let mut part = vec![0; 64 << 10];
    while left > 0 {
        let count = left.min(part.len());
        stream.read_exact(&mut part[..count]).ok()?;
        left -= count;
        thread::sleep(pause);
    }
    Some(())
}

/// A server that gives each request the next answer, and the last one from then on. Returns the requests so far, too.
fn serve(answers: Vec<String>, pause: Duration) -> (TcpListener, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let count = Arc::new(AtomicUsize::new(0));
    let (server, counter) = (listener.try_clone().expect("a descriptor"), count.clone());
    let answers = Arc::new(answers);
    thread::spawn(move || {
        for stream in server.incoming() {
            let Ok(mut stream) = stream else { return };
            let (answers, counter) = (answers.clone(), counter.clone());
            thread::spawn(move || {
                while read_request(&mut stream, pause).is_some() {
                    let number = counter.fetch_add(1, Ordering::SeqCst);
                    let answer = answers.get(number).or(answers.last()).expect("there is one");
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (listener, count)
}

fn answer(status: &str, headers: &str, code: &str) -> String {
    let body = format!("<Error><Code>{code}</Code></Error>");
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
}

/// A service that has no end of names, or always the same page, is no reason to collect them all.
#[test]
fn a_list_without_an_end_is_refused() {
    let body = "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
        <IsTruncated>true</IsTruncated><MaxKeys>1000</MaxKeys>\
        <NextContinuationToken>a</NextContinuationToken></ListBucketResult>";
    let page = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let (server, count) = serve(vec![page], Duration::ZERO);
    let folder = tempfile::tempdir().expect("a temporary directory can be made");
    let error = bucket(&server, folder.path(), Duration::from_secs(5)).list("d/").unwrap_err();
    assert_eq!(error.kind, BucketErrorKind::Unsupported);
    assert!(error.message.contains("followed by itself"), "{}", error.message);
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

#[test]
fn a_slow_line_is_no_failure_and_one_that_stands_still_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, count) = serve(vec![CREATED.to_owned()], Duration::from_millis(20));
    // All of it takes longer than a part of it may.
    let patience = Duration::from_millis(600);
    let slow = bucket(&server, folder.path(), patience);
    let start = Instant::now();
    thread::scope(|scope| {
        for number in 0..6 {
            let slow = &slow;
            scope.spawn(move || {
                let created = slow.create(&format!("d/00/{number}"), &vec![7; 12 << 20]);
                assert!(matches!(created, Ok(Created::New(_))), "{created:?}");
            });
        }
    });
    assert!(start.elapsed() > 4 * patience, "{:?}: it was slow", start.elapsed());
    assert_eq!(count.load(Ordering::SeqCst), 6, "nothing began anew");

    let deaf = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let start = Instant::now();
    let failed = bucket(&deaf, folder.path(), Duration::from_millis(300));
    let failed = failed.create("d/00/1", &vec![7; 12 << 20]).expect_err("nobody reads");
    assert_eq!(failed.kind, BucketErrorKind::Silent, "{failed}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn answers_are_no_silence_and_permanent_ones_are_not_asked_for_again() {
    let folder = tempfile::tempdir().expect("a folder");
    for (status, headers, code, kind, word) in [
        ("301 Moved", "x-amz-bucket-region: eu-1\r\n", "", BucketErrorKind::Refused, "eu-1"),
        ("307 Go", "location: https://there/\r\n", "", BucketErrorKind::Refused, "https://there/"),
        ("402 Pay", "", "", BucketErrorKind::Refused, "402"),
        ("405 No", "", "MethodNotAllowed", BucketErrorKind::Refused, "MethodNotAllowed"),
        ("403 No", "", "RequestTimeTooSkewed", BucketErrorKind::Denied, "clock"),
        ("501 No", "", "NotImplemented", BucketErrorKind::Unsupported, "501"),
        ("507 No", "", "", BucketErrorKind::Full, "507"),
    ] {
        let (server, count) = serve(vec![answer(status, headers, code)], Duration::ZERO);
        let bucket = bucket(&server, folder.path(), Duration::from_secs(5));
        let failed = publish::create(&bucket, "d/00/1", b"x", &Briefly).expect_err(status);
        assert_eq!(failed.kind, kind, "{failed}");
        assert!(failed.to_string().contains(word), "{failed}");
        assert!(!failed.to_string().contains("does not answer"), "{failed}");
        assert_eq!(count.load(Ordering::SeqCst), 1, "{status}");
    }
}

#[test]
fn a_service_that_asks_for_time_gets_it_and_is_asked_again_for_long() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut answers = vec![answer("503 Slow", "retry-after: 2\r\n", "SlowDown")];
    answers.extend((0..9).map(|_| answer("503 Slow", "", "SlowDown")));
    answers.push(CREATED.to_owned());
    let (server, count) = serve(answers, Duration::ZERO);
    let bucket = bucket(&server, folder.path(), Duration::from_secs(5));
    let start = Instant::now();
    let created = publish::create(&bucket, "d/00/1", b"x", &Briefly);
    assert!(matches!(created, Ok(Outcome::Ours(_))), "{created:?}");
    assert_eq!(count.load(Ordering::SeqCst), 11);
    assert!(start.elapsed() > Duration::from_secs(7), "{:?}", start.elapsed());
}
