//! What is wrong with a copy, with its objects, and with what is asked of it: refused or told, with a reason.

mod sandbox;

use coulter_object::bucket::MemoryBucket;
use coulter_object::service::Service;
use sandbox::{Sandbox, can_mount};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

/// A store, and the URL of its copy, which has all of it.
fn with_copy() -> (Sandbox, String) {
    let sandbox = Sandbox::new();
    sandbox.make_directory("bucket");
    sandbox.ok(&["create", "disk.img", "--store-size", "96M", "--segment-size", "2M"]);
    let url = url_of(&sandbox, "vol");
    ship(&sandbox, "disk.img", &url);
    (sandbox, url)
}

fn url_of(sandbox: &Sandbox, name: &str) -> String {
    format!("file://{}", sandbox.path("bucket").join(name).display())
}

/// Opening a store writes a checkpoint, so each time ships something.
fn ship(sandbox: &Sandbox, store: &str, url: &str) {
    sandbox.ok(&attach(store, url));
    sandbox.ok(&["detach", "vol"]);
}

fn attach<'a>(store: &'a str, url: &'a str) -> Vec<&'a str> {
    let words = ["attach", store, "--via", "nbd-server", "--name", "vol", "--replicate", url];
    [&words[..], &["--ack", "remote"]].concat()
}

fn is_told(sandbox: &Sandbox, code: i32, words: &[&str], what: &str) {
    let error = sandbox.fails(code, words);
    assert!(error.contains(what), "{words:?}: {error}");
}

/// The files of the copy whose path begins with a name: all versions of an object that is swapped, or all objects of a
/// kind.
fn files(sandbox: &Sandbox, name: &str) -> Vec<PathBuf> {
    let base = sandbox.path("bucket/vol");
    let (mut found, mut folders) = (Vec::new(), vec![base.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("it is readable").flatten() {
            let path = entry.path();
            let below =
                path.strip_prefix(&base).expect("it is below").to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if below.starts_with(name) {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "the copy has no {name}");
    found
}

fn change(files: &[PathBuf], change: impl Fn(&mut Vec<u8>)) {
    for path in files {
        let mut bytes = fs::read(path).expect("it is there");
        change(&mut bytes);
        fs::write(path, bytes).expect("it is ours");
    }
}

/// The objects as they are, for later.
fn keep(sandbox: &Sandbox, from: &str, to: &str) {
    let _ = fs::remove_dir_all(sandbox.path(to));
    let copied =
        Command::new("cp").arg("-a").arg(sandbox.path(from)).arg(sandbox.path(to)).status();
    assert!(copied.expect("there is cp").success());
}

#[test]
fn urls_that_are_none_are_refused_by_every_verb_that_takes_one() {
    let sandbox = Sandbox::new();
    let wrong = [
        ("ftp://host/vol", "neither with s3://"),
        ("S3://bucket/vol", "neither with s3://"),
        ("s3:/bucket/vol", "neither with s3://"),
        ("", "neither with s3://"),
        ("s3://", "3 to 63 letters"),
        ("s3://b/vol", "3 to 63 letters"),
        ("s3://bu cket/vol", "3 to 63 letters"),
        ("s3://bucket", "names no prefix"),
        ("s3://bucket//", "names no prefix"),
        ("file://relative/vol", "not absolute"),
        ("file:///", "not absolute"),
        ("file:///mnt/../vol", "'.' or '..'"),
        ("s3://bucket/./vol", "'.' or '..'"),
        ("s3://bucket/a\nb", "control character"),
    ];
    for (url, reason) in wrong {
        for words in [
            &["restore", url, "x.img"][..],
            &["replica", "status", url],
            &["replica", "verify", url],
            &["snapshot", "create", &format!("{url}@one")],
            &["snapshot", "list", url],
            &["snapshot", "prune", url, "--keep", "last=1"],
            &["diff", url, url],
            &["clone", url, "s3://bucket/new"],
            &["clone", "s3://bucket/vol", url],
            &["move", "disk.img", url],
            &["attach", "disk.img", "--replicate", url],
            &["replicate", "disk", url],
        ] {
            is_told(&sandbox, 2, words, reason);
        }
    }
    assert!(!sandbox.path("x.img").exists());
}

#[test]
fn names_of_snapshots_are_text_without_what_urls_and_terminals_need() {
    let (sandbox, url) = with_copy();
    let long = "x".repeat(256);
    for (name, reason) in [
        ("", "1 to 255 bytes"),
        (long.as_str(), "1 to 255 bytes"),
        ("a/b", "must not hold"),
        ("a\nb", "must not hold"),
        ("a\u{1b}[31mb", "must not hold"),
        ("a\u{7f}", "must not hold"),
    ] {
        for verb in ["create", "delete", "rollback"] {
            is_told(&sandbox, 2, &["snapshot", verb, &format!("{url}@{name}")], reason);
        }
    }
    let long = "x".repeat(255);
    for name in ["-", ".", "..", " ", "Größe 7", "a:b", "%2f", "'\"`$(x)", long.as_str()] {
        let full = format!("{url}@{name}");
        sandbox.ok(&["snapshot", "create", &full]);
        let list = sandbox.json(&["snapshot", "list", &url, "--json"]);
        assert_eq!(list[0]["name"], name);
        sandbox.ok(&["snapshot", "delete", &full]);
    }
}

#[test]
fn odd_words_in_place_of_volumes_are_told_apart() {
    let (sandbox, url) = with_copy();
    is_told(&sandbox, 1, &["replicate", "", &url], "is not attached");
    is_told(&sandbox, 1, &["replicate", "no such", &url], "is not attached");
    is_told(&sandbox, 2, &["replicate", &url, &url], "which volume");
    is_told(&sandbox, 2, &["replicate", "vol", "--status", "--stop"], "cannot be used with");
    is_told(&sandbox, 1, &["move", "nothing.img", &url], "nothing.img");
    is_told(&sandbox, 1, &["restore", &url, "disk.img"], "something is there already");
    is_told(&sandbox, 1, &["restore", &url, "no/such/directory/x.img"], "no such file");
    is_told(&sandbox, 2, &["snapshot", "list", &format!("{url}@x")], "leave '@x' away");
    fs::write(sandbox.path("text"), "no store").expect("there is room");
    is_told(&sandbox, 1, &["replicate", "text", &url_of(&sandbox, "new")], "text");
    fs::create_dir(sandbox.path("folder")).expect("there is room");
    is_told(&sandbox, 2, &["replicate", "folder", &url_of(&sandbox, "new")], "folder");
}

/// Each kind of object: of another version, cut short, of another kind, and gone.
#[test]
fn objects_that_cannot_be_read_are_named_and_nothing_is_restored_from_them() {
    let (sandbox, url) = with_copy();
    let one = format!("{url}@one");
    sandbox.ok(&["snapshot", "create", &one]);
    keep(&sandbox, "bucket/vol", "kept");
    let with = |name: &str, edit: &dyn Fn(&mut Vec<u8>), reason: &str| {
        keep(&sandbox, "kept", "bucket/vol");
        change(&files(&sandbox, name), edit);
        for (what, file) in [(&url, "x.img"), (&one, "y.img")] {
            // The newest state needs no pins and no manifest of a snapshot; a snapshot needs no commits.
            let output = sandbox.run(&["restore", what, file]);
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            if !output.status.success() {
                assert!(error.contains(reason), "{name}: {error}");
                assert!(
                    !sandbox.path(file).exists() && !sandbox.path(&format!("{file}.part")).exists()
                );
            }
            let _ = fs::remove_file(sandbox.path(file));
        }
        let output = sandbox.run(&["replica", "verify", &url]);
        let told =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {told}");
        assert!(told.contains(reason), "{name}: {told}");
    };
    for kind in ["volume", "pins", "m/", "c/"] {
        with(kind, &|bytes| bytes[8] = 9, "version 9; this program knows version 1");
        with(kind, &|bytes| bytes[0] ^= 1, "it is not one");
        with(kind, &|bytes| bytes.truncate(40), "");
        with(kind, &|bytes| bytes.truncate(2), "it ends too early");
        with(kind, &|bytes| *bytes.last_mut().expect("it is not empty") ^= 1, "checksum");
    }
    with("d/", &|bytes| bytes.truncate(1000), "the checksum does not match");
    with("d/", &|bytes| bytes.truncate(3), "it ends too early");
    with("d/", &|bytes| bytes[9] ^= 1, "the checksum does not match");
}

/// An object under the name of another one of its kind.
#[test]
fn objects_that_changed_places_are_named() {
    let (sandbox, url) = with_copy();
    sandbox.ok(&["snapshot", "create", &format!("{url}@one")]);
    ship(&sandbox, "disk.img", &url);
    sandbox.ok(&["snapshot", "create", &format!("{url}@two")]);
    for kind in ["c/", "m/"] {
        let all = files(&sandbox, kind);
        let [one, .., other] = &all[..] else { panic!("two of {kind} are needed: {all:?}") };
        let (first, second) = (fs::read(one).expect("there"), fs::read(other).expect("there"));
        fs::write(one, &second).and_then(|()| fs::write(other, &first)).expect("they are ours");
        let output = sandbox.run(&["replica", "verify", &url]);
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(1), "{kind}: {told}");
        assert!(told.contains("it is not the object that its name says"), "{kind}: {told}");
        fs::write(one, &first).and_then(|()| fs::write(other, &second)).expect("they are ours");
        sandbox.ok(&["replica", "verify", &url]);
    }
    // The name of a data object stands nowhere in it, and its checksum tells it.
    let all = files(&sandbox, "d/");
    let [one, .., other] = &all[..] else { panic!("two data objects are needed: {all:?}") };
    let (first, second) = (fs::read(one).expect("there"), fs::read(other).expect("there"));
    fs::write(one, &second).and_then(|()| fs::write(other, &first)).expect("they are ours");
    let output = sandbox.run(&["replica", "verify", &url]);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("the checksum does not match"), "{told}");
    let error = sandbox.fails(1, &["restore", &url, "x.img"]);
    assert!(error.contains("the checksum does not match"), "{error}");
}

#[test]
fn a_commit_that_is_missing_between_others_is_named() {
    let (sandbox, url) = with_copy();
    let words = [&attach("disk.img", &url)[..], &["--every", "10ms"]].concat();
    let uri = sandbox.ok(&words).trim_end().to_owned();
    fs::write(sandbox.path("written"), vec![7; 1 << 20]).expect("there is room");
    for _ in 0..6 {
        let mut copy = Command::new("nbdcopy");
        let copy = copy.args(["--flush", "written", &uri]).current_dir(sandbox.path("."));
        assert!(copy.status().expect("libnbd's programs are installed").success());
    }
    // Without an end in order, no manifest stands behind them.
    sandbox.signal("vol", "KILL");
    let commits = files(&sandbox, "c/");
    let gap = &commits[commits.len() - 3];
    let bytes = fs::read(gap).expect("it is there");
    fs::remove_file(gap).expect("it is ours");
    let output = sandbox.run(&["replica", "verify", &url]);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    let name = gap.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(told.contains("missing") && told.contains(&name), "{told}");
    for words in [
        &["restore", &url, "x.img"][..],
        &["restore", &url, "x.img", "--take-over"],
        &["snapshot", "create", &format!("{url}@new")],
        &["attach", &url, "--cache", "cache.img", "--take-over"],
    ] {
        let error = sandbox.fails(1, words);
        assert!(error.contains("is missing, and commit"), "{words:?}: {error}");
    }
    keep(&sandbox, "bucket/vol", "damaged");
    let take = ["restore", &url, "x.img", "--take-over", "--despite-damage"];
    let output = sandbox.run(&take);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    assert!(told.contains("warning") && told.contains("is given up"), "{told}");
    sandbox.ok(&["replica", "verify", &url]);
    sandbox.ok(&["check", "x.img", "--data"]);
    keep(&sandbox, "damaged", "bucket/vol");
    fs::write(gap, bytes).expect("it is ours");
    sandbox.ok(&["replica", "verify", &url]);
}

#[test]
fn damaged_pins_are_no_reason_to_lose_the_volume_and_help_names_a_way_out() {
    let (sandbox, url) = with_copy();
    let one = format!("{url}@one");
    sandbox.ok(&["snapshot", "create", &one]);
    keep(&sandbox, "bucket/vol", "kept");
    change(&files(&sandbox, "pins"), |bytes| bytes[20] ^= 1);
    for words in [
        &["snapshot", "create", &format!("{url}@two")][..],
        &["snapshot", "list", &url],
        &["snapshot", "delete", &one],
        &["snapshot", "prune", &url, "--keep", "last=1"],
        &["restore", &one, "x.img"],
        &["clone", &one, &url_of(&sandbox, "new")],
    ] {
        is_told(&sandbox, 1, words, "'pins' is damaged");
        is_told(&sandbox, 1, words, "another URL");
    }
    // The volume goes on, and nothing is deleted meanwhile.
    ship(&sandbox, "disk.img", &url);
    sandbox.ok(&["restore", &url, "y.img"]);
    sandbox.ok(&["check", "y.img", "--data"]);
}

#[test]
fn a_store_that_is_older_than_its_copy_is_refused_with_its_marks_and_without() {
    let (sandbox, url) = with_copy();
    let _ = fs::create_dir(sandbox.path("backup"));
    for name in ["disk.img", "disk.img.marks"] {
        fs::copy(sandbox.path(name), sandbox.path("backup").join(name)).expect("there is room");
    }
    ship(&sandbox, "disk.img", &url);
    for name in ["disk.img", "disk.img.marks"] {
        fs::copy(sandbox.path("backup").join(name), sandbox.path(name)).expect("there is room");
    }
    is_told(&sandbox, 1, &attach("disk.img", &url), "not what was shipped last");
    is_told(&sandbox, 1, &["replicate", "disk.img", &url], "not what was shipped last");
    is_told(&sandbox, 1, &["move", "disk.img", &url], "not what was shipped last");
    fs::remove_file(sandbox.path("disk.img.marks")).expect("it is ours");
    is_told(&sandbox, 1, &attach("disk.img", &url), "nothing tells what was shipped last");
    let reseeded = [&attach("disk.img", &url)[..], &["--reseed"]].concat();
    sandbox.ok(&reseeded);
    sandbox.ok(&["detach", "vol"]);
    sandbox.ok(&["restore", &url, "x.img"]);
    sandbox.ok(&["check", "x.img", "--data"]);
}

#[test]
fn a_copy_that_is_older_than_its_store_is_refused() {
    let (sandbox, url) = with_copy();
    keep(&sandbox, "bucket/vol", "backup");
    ship(&sandbox, "disk.img", &url);
    keep(&sandbox, "backup", "bucket/vol");
    is_told(
        &sandbox,
        1,
        &attach("disk.img", &url),
        "the copy is older than what was shipped to it",
    );
    is_told(&sandbox, 1, &["replicate", "disk.img", &url], "--reseed");
    sandbox.ok(&["replicate", "disk.img", &url, "--reseed"]);
    sandbox.ok(&["restore", &url, "x.img"]);
    sandbox.ok(&["check", "x.img", "--data"]);
}

#[test]
fn of_two_copies_of_one_store_the_one_that_is_behind_is_refused_until_it_is_shipped_anew() {
    let (sandbox, url) = with_copy();
    let other = url_of(&sandbox, "other");
    ship(&sandbox, "disk.img", &other);
    is_told(&sandbox, 1, &attach("disk.img", &url), "shipped to another volume");
    sandbox.ok(&["restore", &url, "old.img"]);
    sandbox.ok(&["check", "old.img", "--data"]);
    sandbox.ok(&["replicate", "disk.img", &url, "--reseed"]);
    is_told(&sandbox, 1, &attach("disk.img", &other), "shipped to another volume");
    // The copy of another store is never replaced in passing.
    sandbox.ok(&["create", "b.img", "--store-size", "96M", "--segment-size", "2M"]);
    is_told(&sandbox, 1, &attach("b.img", &url), "another store's volume");
    is_told(&sandbox, 1, &["replicate", "b.img", &url, "--reseed"], "another store's volume");
}

#[test]
fn a_url_below_which_an_earlier_volume_has_left_objects_is_refused() {
    let (sandbox, url) = with_copy();
    for name in ["volume", "pins"] {
        for file in files(&sandbox, name) {
            fs::remove_file(file).expect("it is ours");
        }
    }
    is_told(&sandbox, 1, &["replica", "status", &url], "no replicated volume here");
    sandbox.ok(&["create", "b.img", "--store-size", "96M", "--segment-size", "2M"]);
    is_told(&sandbox, 1, &attach("b.img", &url), "of an earlier volume");
    is_told(&sandbox, 1, &["replicate", "b.img", &url], "name another URL");
    is_told(&sandbox, 1, &attach("disk.img", &url), "of an earlier volume");
}

#[test]
fn a_take_over_for_which_there_is_no_space_is_refused_before_it_is_made() {
    let Some(_right) = can_mount("a_take_over_for_which_there_is_no_space_is_refused") else {
        return;
    };
    let (sandbox, url) = with_copy();
    let small = sandbox.make_directory("small");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=128k", "none"])
        .arg(&small)
        .status()
        .expect("there is mount");
    assert!(mounted.success());
    let words =
        ["attach", &url, "--cache", "small/cache.img", "--via", "nbd-server", "--take-over"];
    let output = sandbox.run(&words);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let restore = sandbox.run(&["restore", &url, "small/x.img", "--take-over"]);
    let refusal = String::from_utf8_lossy(&restore.stderr).into_owned();
    let left: Vec<_> = fs::read_dir(&small).expect("it is readable").flatten().collect();
    let unmounted = Command::new("umount").arg(&small).status().expect("there is umount");
    assert!(unmounted.success());
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("no space for the cache") && error.contains("more space"), "{error}");
    assert_eq!(restore.status.code(), Some(1), "{refusal}");
    for words in ["cannot take over", "the file system of small has", "still its host's"] {
        assert!(refusal.contains(words), "{refusal}");
    }
    assert!(left.is_empty(), "{left:?}");
    ship(&sandbox, "disk.img", &url);
}

#[test]
fn buckets_that_keep_lock_or_expire_objects_are_warned_of() {
    let mut sandbox = Sandbox::new();
    let service = Service::start("bucket", Arc::new(MemoryBucket::new())).expect("a free port");
    sandbox.set_variable("AWS_ENDPOINT_URL", &service.endpoint());
    sandbox.set_variable("AWS_ACCESS_KEY_ID", "key");
    sandbox.set_variable("AWS_SECRET_ACCESS_KEY", "secret");
    sandbox.ok(&["create", "disk.img", "--store-size", "96M", "--segment-size", "2M"]);
    let warnings = |prefix: &str| {
        let url = format!("s3://bucket/{prefix}");
        let output = sandbox.run(&[&attach("disk.img", &url)[..], &["--reseed"]].concat());
        assert!(output.status.success());
        let told = sandbox.ok(&["replicate", "vol", "--status"]);
        sandbox.ok(&["detach", "vol"]);
        let note = String::from_utf8_lossy(&output.stderr).into_owned();
        (note, told, sandbox.ok(&["replica", "status", &url]))
    };
    let (note, told, status) = warnings("plain");
    assert!(!note.contains("warning") && !told.contains("caution") && !status.contains("caution"));
    service.configure(
        "versioning",
        "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>",
    );
    service.configure(
        "object-lock",
        "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled>",
    );
    service.configure(
        "lifecycle",
        "<LifecycleConfiguration><Rule><ID>tidy</ID><Filter><Prefix>vol</Prefix></Filter>\
         <Status>Enabled</Status><Expiration><Days>30</Days></Expiration></Rule></LifecycleConfiguration>",
    );
    let (note, told, status) = warnings("vol");
    for what in ["keeps versions", "locks objects", "the lifecycle rule 'tidy' deletes objects"] {
        assert!(note.contains("warning") && note.contains(what), "{note}");
        assert!(told.contains("caution") && told.contains(what), "{told}");
        assert!(status.contains("caution") && status.contains(what), "{status}");
    }
    let (note, ..) = warnings("else");
    assert!(note.contains("keeps versions") && !note.contains("'tidy'"), "{note}");
}

#[test]
fn an_at_sign_means_the_same_to_every_verb() {
    let (sandbox, url) = with_copy();
    for words in [
        &["attach", "disk.img", "--replicate", &format!("{url}@x")][..],
        &["replicate", "disk.img", &format!("{url}@x")],
    ] {
        is_told(&sandbox, 2, words, "name of a snapshot");
    }
}

#[test]
fn a_copy_inside_of_another_is_refused_and_foreign_files_are_no_damage() {
    let (sandbox, url) = with_copy();
    sandbox.ok(&["create", "other.img", "--store-size", "96M", "--segment-size", "2M"]);
    let inside = format!("{url}/inner");
    let words = attach("other.img", &inside);
    is_told(&sandbox, 1, &words, "inside of the copy");
    is_told(&sandbox, 1, &["clone", &url, &inside], "inside of the copy");
    for path in files(&sandbox, "") {
        let beside = path.parent().expect("it lies somewhere").join("Thumbs.db");
        fs::write(beside, "foreign").expect("the directory is writable");
    }
    sandbox.ok(&["replica", "verify", &url]);
    sandbox.ok(&["restore", &url, "x.img", "--take-over"]);
    sandbox.ok(&["check", "x.img", "--data"]);
}
