//! The client for S3, against a service of our own, and behind a proxy that fails.

mod stamped;

use coulter_object::bucket::{
    BucketErrorKind, Created, MemoryBucket, S3Bucket, S3Options, Swapped,
};
use coulter_object::service::{Conditions, Fault, Proxy, Service};
use coulter_object::{Bucket, probe};
use stamped::life::live;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A client of the bucket `bucket` at an endpoint.
fn client(endpoint: &str, folder: &Path) -> Arc<dyn Bucket> {
    Arc::new(S3Bucket::open("bucket", "some/volume", &options(endpoint, folder)).expect("a URL"))
}

fn options(endpoint: &str, folder: &Path) -> S3Options {
    let file = folder.join("credentials");
    let text = "[default]\naws_access_key_id=key\naws_secret_access_key=secret\n";
    std::fs::write(&file, text).expect("there is room");
    S3Options {
        endpoint: endpoint.to_string(),
        region: "us-east-1".to_string(),
        is_virtual_host: false,
        credentials_file: Some((file, "default".to_string())),
        timeout: Duration::from_secs(20),
    }
}

/// A service, a proxy before it, and a client behind the proxy.
fn behind_proxy(folder: &Path) -> (MemoryBucket, Service, Proxy, Arc<dyn Bucket>) {
    let memory = MemoryBucket::new();
    let service = Service::start("bucket", Arc::new(memory.clone())).expect("a free port");
    let proxy = Proxy::start(service.address(), 7).expect("a free port");
    let bucket = client(&proxy.endpoint(), folder);
    (memory, service, proxy, bucket)
}

#[test]
fn a_service_that_keeps_its_word_passes_the_probe() {
    let folder = tempfile::tempdir().expect("a folder");
    let (memory, _service, proxy, bucket) = behind_proxy(folder.path());
    probe::race(&*bucket).expect("memory is atomic");
    assert_eq!(memory.list("").expect("memory lists").len(), 0, "the probe cleans up");
    assert!(proxy.counts().0 > 4000, "it races for 150 rounds");
}

#[test]
fn a_list_of_many_pages_is_read_to_its_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let (memory, _service, _proxy, bucket) = behind_proxy(folder.path());
    for number in 0..250 {
        let name = format!("d/{number:03}");
        assert!(matches!(bucket.create(&name, b"one").expect("no failure"), Created::New(_)));
    }
    memory.create("some/volumes/of/another", b"").expect("no failure");
    let mut names = bucket.list("d/").expect("no failure");
    names.sort();
    assert_eq!((names.len(), &names[249]), (250, &("d/249".to_string(), 3)));
    assert_eq!(bucket.list("").expect("no failure").len(), 250, "another volume's are its own");
}

#[test]
fn each_failure_is_told_for_what_it_is_and_none_for_another_s_object() {
    let folder = tempfile::tempdir().expect("a folder");
    let (memory, _service, proxy, bucket) = behind_proxy(folder.path());
    let is_there = |name: &str| {
        memory.read(&format!("some/volume/{name}"), None).expect("memory reads").is_some()
    };
    let cases = [
        (Fault::SlowDown, BucketErrorKind::Busy, false),
        (Fault::ErrorAfter, BucketErrorKind::Busy, true),
        (Fault::Conflict, BucketErrorKind::Busy, false),
        (Fault::Cut, BucketErrorKind::Busy, true),
        (Fault::Lost, BucketErrorKind::Busy, true),
        (Fault::Denied, BucketErrorKind::Denied, false),
        (Fault::Skewed, BucketErrorKind::Denied, false),
        (Fault::Expired, BucketErrorKind::Denied, false),
        (Fault::NoBucket, BucketErrorKind::NoBucket, false),
    ];
    for (fault, kind, is_carried_out) in cases {
        let name = format!("c/{fault:?}");
        proxy.set_conditions(Conditions { rates: vec![(fault, 1000)], ..Conditions::default() });
        let error = bucket.create(&name, b"one").expect_err("every request fails");
        assert_eq!(error.kind, kind, "{fault:?}: {error}");
        assert_eq!(is_there(&name), is_carried_out, "{fault:?}");
        proxy.set_conditions(Conditions::default());
        // What became of it is found out by trying again.
        let again = bucket.create(&name, b"one").expect("no failure");
        assert_eq!(again == Created::Exists, is_carried_out, "{fault:?}");
        let found = bucket.read(&name, None).expect("no failure").expect("it is there");
        assert_eq!(found.bytes, b"one");
        proxy.set_conditions(Conditions { rates: vec![(fault, 1000)], ..Conditions::default() });
        let swapped = bucket.swap(&name, &found.tag, b"two").expect_err("every request fails");
        assert_eq!(swapped.kind, kind, "{fault:?}: {swapped}");
        proxy.set_conditions(Conditions::default());
        let again = bucket.swap(&name, &found.tag, b"two").expect("no failure");
        assert_eq!(again == Swapped::Changed, is_carried_out, "{fault:?}");
    }
    assert_eq!(proxy.counts().1, 2 * cases.len() as u64);
}

#[test]
fn credentials_that_have_expired_are_read_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_memory, _service, proxy, bucket) = behind_proxy(folder.path());
    bucket.create("one", b"1").expect("no failure");
    let file = folder.path().join("credentials");
    std::fs::remove_file(&file).expect("it is there");
    bucket.read("one", None).expect("they are known for a while");
    proxy.set_conditions(Conditions {
        rates: vec![(Fault::Expired, 1000)],
        ..Conditions::default()
    });
    let error = bucket.read("one", None).expect_err("they have expired");
    assert_eq!(error.kind, BucketErrorKind::Denied);
    proxy.set_conditions(Conditions::default());
    let error = bucket.read("one", None).expect_err("there are none any more");
    assert!(error.message.contains("AWS_ACCESS_KEY_ID"), "{error}");
    options(&proxy.endpoint(), folder.path());
    assert!(bucket.read("one", None).expect("they are there again").is_some());
}

#[test]
fn a_service_that_takes_too_long_is_silent() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_memory, _service, proxy, _bucket) = behind_proxy(folder.path());
    let timeout = Duration::from_millis(200);
    let options = S3Options { timeout, ..options(&proxy.endpoint(), folder.path()) };
    let bucket = S3Bucket::open("bucket", "some/volume", &options).expect("a URL");
    let get_latency = Duration::from_secs(2);
    proxy.set_conditions(Conditions { get_latency, ..Conditions::default() });
    let error = bucket.read("one", None).expect_err("it takes too long");
    assert_eq!(error.kind, BucketErrorKind::Silent, "{error}");
}

#[test]
fn a_volume_lives_in_fair_weather() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_memory, _service, _proxy, bucket) = behind_proxy(folder.path());
    live(&bucket, 1, 500);
}

#[test]
fn a_volume_lives_behind_a_service_that_fails_in_every_way() {
    for seed in 0..3 {
        let folder = tempfile::tempdir().expect("a folder");
        let (_memory, _service, proxy, bucket) = behind_proxy(folder.path());
        let rates = vec![
            (Fault::SlowDown, 20),
            (Fault::ErrorAfter, 20),
            (Fault::Conflict, 20),
            (Fault::Cut, 20),
            (Fault::Lost, 20),
        ];
        proxy.set_conditions(Conditions { rates, ..Conditions::default() });
        live(&bucket, seed, 400);
        assert!(proxy.counts().1 > 20, "faults were met: {:?}", proxy.counts());
    }
}
