//! Every bucket keeps the contract of `bucket`, also when many requests come at once.

use coulter_object::bucket::{
    Bucket, BucketErrorKind, Created, DirectoryBucket, MemoryBucket, Swapped,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

fn each(check: impl Fn(Arc<dyn Bucket>)) {
    check(Arc::new(MemoryBucket::new()));
    let folder = tempfile::tempdir().expect("a folder");
    check(Arc::new(DirectoryBucket::open(folder.path()).expect("a directory")));
}

#[test]
fn a_name_keeps_the_bytes_of_its_creation() {
    each(|bucket| {
        assert_eq!(bucket.read("c/1/2", None).expect("no failure"), None);
        assert!(matches!(bucket.create("c/1/2", b"one").expect("no failure"), Created::New(_)));
        assert_eq!(bucket.create("c/1/2", b"two").expect("no failure"), Created::Exists);
        let found = bucket.read("c/1/2", None).expect("no failure").expect("it is there");
        assert_eq!(found.bytes, b"one");
        let part = bucket.read("c/1/2", Some(1..100)).expect("no failure").expect("it is there");
        assert_eq!(part.bytes, b"ne", "a range past the end is cut short");
        let none = bucket.read("c/1/2", Some(50..60)).expect("no failure").expect("it is there");
        assert!(none.bytes.is_empty());
        bucket.delete("c/1/2").expect("no failure");
        bucket.delete("c/1/2").expect("a free name is no error");
        assert_eq!(bucket.read("c/1/2", None).expect("no failure"), None);
    });
}

#[test]
fn a_swap_counts_only_for_the_version_that_it_names() {
    each(|bucket| {
        let Created::New(first) = bucket.create("volume", b"1").expect("no failure") else {
            panic!("the name is free")
        };
        let Swapped::Done(second) = bucket.swap("volume", &first, b"2").expect("no failure") else {
            panic!("the version is the newest")
        };
        assert_eq!(bucket.swap("volume", &first, b"3").expect("no failure"), Swapped::Changed);
        let found = bucket.read("volume", None).expect("no failure").expect("it is there");
        assert_eq!((found.bytes.as_slice(), &found.tag), (b"2".as_slice(), &second));
        assert_eq!(bucket.swap("absent", &first, b"3").expect("no failure"), Swapped::Changed);
        assert_eq!(bucket.list("vol").expect("no failure").len(), 1, "versions are one object");
    });
}

#[test]
fn of_many_creations_at_once_one_wins() {
    each(|bucket| {
        for round in 0..50 {
            let name = format!("d/{round}");
            let wins = AtomicU32::new(0);
            std::thread::scope(|scope| {
                for thread in 0..8_u8 {
                    let (bucket, name, wins) = (&bucket, &name, &wins);
                    scope.spawn(move || {
                        let created = bucket.create(name, &[thread; 100]).expect("no failure");
                        wins.fetch_add(
                            matches!(created, Created::New(_)).into(),
                            Ordering::Relaxed,
                        );
                    });
                }
            });
            assert_eq!(wins.into_inner(), 1);
        }
    });
}

#[test]
fn swaps_at_once_count_every_one_that_was_told_so() {
    each(|bucket| {
        let bytes = 0_u64.to_le_bytes();
        assert!(matches!(bucket.create("volume", &bytes).expect("no failure"), Created::New(_)));
        let done = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                let (bucket, done) = (&bucket, &done);
                scope.spawn(move || {
                    for _ in 0..40 {
                        let found =
                            bucket.read("volume", None).expect("no failure").expect("it is there");
                        let count =
                            u64::from_le_bytes(found.bytes.try_into().expect("eight bytes"));
                        let next = (count + 1).to_le_bytes();
                        let swapped = bucket.swap("volume", &found.tag, &next).expect("no failure");
                        done.fetch_add(
                            matches!(swapped, Swapped::Done(_)).into(),
                            Ordering::Relaxed,
                        );
                    }
                });
            }
        });
        let found = bucket.read("volume", None).expect("no failure").expect("it is there");
        let count = u64::from_le_bytes(found.bytes.try_into().expect("eight bytes"));
        assert_eq!(count, u64::from(done.into_inner()), "each swap that won added one");
    });
}

#[test]
fn a_directory_that_is_gone_is_no_empty_bucket() {
    let folder = tempfile::tempdir().expect("a folder");
    let (place, elsewhere) = (folder.path().join("here"), folder.path().join("elsewhere"));
    std::fs::create_dir(&place).expect("the name is free");
    let bucket = DirectoryBucket::open(&place).expect("a directory");
    let Created::New(tag) = bucket.create("volume", b"1").expect("no failure") else {
        panic!("the name is free")
    };
    // As a share that is unmounted, and what lies below its mount point.
    std::fs::rename(&place, &elsewhere).expect("it can be moved");
    std::fs::create_dir(&place).expect("the name is free");
    assert!(bucket.create("c/1/1", b"2").is_ok(), "it is the directory that was opened");
    assert!(matches!(bucket.swap("volume", &tag, b"3"), Ok(Swapped::Done(_))));
    assert!(place.read_dir().expect("a directory").next().is_none(), "nothing is written here");
    assert_eq!(bucket.list("c/").expect("no failure"), [("c/1/1".to_owned(), 1)]);

    std::fs::remove_dir_all(&elsewhere).expect("it can be removed");
    for refused in [
        bucket.create("c/1/2", b"4").map(|_| ()),
        bucket.swap("volume", &tag, b"5").map(|_| ()),
        bucket.read("volume", None).map(|_| ()),
    ] {
        let error = refused.expect_err("the directory is gone");
        assert_eq!(error.kind, BucketErrorKind::NoBucket, "{error}");
        assert!(error.message.starts_with(place.to_str().expect("UTF-8")), "{error}");
    }
}

/// A foreign file of any size is not read into memory whole.
#[test]
fn a_file_larger_than_any_object_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary directory can be made");
    let bucket = DirectoryBucket::open(folder.path()).expect("a directory");
    let file = std::fs::File::create(folder.path().join("large")).expect("it is writable");
    file.set_len(1 << 40).expect("holes take no space");
    let error = bucket.read("large", None).unwrap_err();
    assert!(error.message.contains("large"), "{}", error.message);
    let part = bucket.read("large", Some(4096..8192)).expect("a part of it").expect("it is there");
    assert_eq!(part.bytes, [0; 4096]);
}
