use super::*;
use coulter_system::process::Process;
use tempfile::TempDir;

fn directory() -> (TempDir, StateDirectory) {
    let parent = tempfile::tempdir().expect("a temporary directory can be made");
    let state = StateDirectory::open(Some(parent.path().join("state"))).expect("it can be made");
    (parent, state)
}

fn dead() -> Process {
    Process { pid: 1, start_ticks: u64::MAX }
}

#[test]
fn an_entry_comes_back_as_it_was_written_and_goes_when_removed() {
    let (_parent, state) = directory();
    let lock = state.lock().expect("nobody holds the lock");
    let written = Entry::sample("alpha", Process::current());
    state.write(&lock, &written).expect("the directory is writable");
    assert_eq!(state.entries().expect("it is readable"), [written]);
    state.remove(&lock, "alpha").expect("the directory is writable");
    assert_eq!(state.entries().expect("it is readable"), []);
    state.remove(&lock, "alpha").expect("removing twice is no error");
}

#[test]
fn only_entries_of_living_processes_that_serve_are_attached() {
    let (_parent, state) = directory();
    let lock = state.lock().expect("nobody holds the lock");
    let starting = Entry { device: None, ..Entry::sample("starting", Process::current()) };
    let alive = Entry::sample("alive", Process::current());
    for entry in [&starting, &alive, &Entry::sample("stale", dead())] {
        state.write(&lock, entry).expect("the directory is writable");
    }
    assert_eq!(state.entries().expect("it is readable").len(), 3);
    assert_eq!(state.attached().expect("it is readable"), [alive]);
    let killed = state.killed().expect("it is readable");
    assert_eq!(killed, [Entry::sample("stale", dead())]);
    assert_eq!(state.find_killed("/dev/stale").expect("it is readable").as_ref(), killed.first());
    assert_eq!(state.find_killed("alive").expect("it is readable"), None);
}

#[test]
fn a_volume_is_found_by_name_device_and_store() {
    let (parent, state) = directory();
    let lock = state.lock().expect("nobody holds the lock");
    let store = parent.path().canonicalize().expect("it exists").join("store.img");
    fs::write(&store, b"").expect("the directory is writable");
    let written = Entry { store: store.clone(), ..Entry::sample("alpha", Process::current()) };
    state.write(&lock, &written).expect("the directory is writable");
    for text in ["alpha", "/dev/alpha", store.to_str().expect("the path is text")] {
        assert_eq!(state.find(text).expect("it is attached"), written, "{text}");
    }
    assert!(matches!(state.find("alp"), Err(Error::State(StateError::NotAttached { .. }))));
    assert_eq!(state.find_ended(&lock, "alpha").expect("it is readable"), None);
}

#[test]
fn an_ended_daemon_is_found_only_when_asked_for() {
    let (_parent, state) = directory();
    let lock = state.lock().expect("nobody holds the lock");
    let written = Entry::sample("alpha", dead());
    state.write(&lock, &written).expect("the directory is writable");
    assert!(state.find("alpha").is_err());
    assert_eq!(state.find_ended(&lock, "alpha").expect("it is readable"), Some(written));
    assert_eq!(state.find_ended(&lock, "beta").expect("it is readable"), None);
}

#[test]
fn damaged_and_foreign_files_do_no_harm() {
    let (_parent, state) = directory();
    for (name, text) in [("a.json", "{"), ("b.json", "[]"), ("c.txt", "x"), ("d.json", "")] {
        fs::write(state.path().join(name), text).expect("the directory is writable");
    }
    // An entry under another name would make `detach` act on the wrong files.
    let text =
        serde_json::to_string(&Entry::sample("other", Process::current())).expect("it is JSON");
    fs::write(state.path().join("e.json"), text).expect("the directory is writable");
    assert_eq!(state.entries().expect("it is readable"), []);
}

#[test]
fn files_of_somebody_else_stay_where_they_are() {
    let (_parent, state) = directory();
    let lock = state.lock().expect("nobody holds the lock");
    for suffix in ["json", "sock", "nbd"] {
        assert_eq!(state.foreign_file("a"), None);
        let path = state.file("a", suffix);
        fs::write(&path, b"{}").expect("the directory is writable");
        assert_eq!(state.foreign_file("a"), Some(path.clone()));
        state.remove(&lock, "a").expect("there is nothing to remove");
        assert_eq!(fs::read(&path).expect("it is still there"), b"{}");
        fs::remove_file(&path).expect("it is ours");
    }
    state.write(&lock, &Entry::sample("a", dead())).expect("the directory is writable");
    let sockets = ["sock", "nbd"].map(|suffix| state.file("a", suffix));
    for socket in &sockets {
        drop(std::os::unix::net::UnixListener::bind(socket).expect("it is writable"));
    }
    fs::write(state.file("a", "log"), b"an older log").expect("the directory is writable");
    assert_eq!(state.foreign_file("a"), None, "these are a dead daemon's");
    state.remove(&lock, "a").expect("the directory is writable");
    assert!(sockets.iter().all(|socket| !socket.exists()));
    std::os::unix::fs::symlink("elsewhere", state.file("b", "log")).expect("it is writable");
    assert_eq!(state.foreign_file("b"), Some(state.file("b", "log")));
}

#[test]
fn names_that_leave_the_directory_are_refused() {
    let (_parent, state) = directory();
    for name in ["", ".", "..", "../x", "a/b", "-a", ".a", "a b", &"x".repeat(65)] {
        let refused =
            matches!(state.check_name(name), Err(Error::State(StateError::NameInvalid { .. })));
        assert!(refused, "{name:?}");
    }
    for name in ["a", "ä", "日本", "disk0", "a.b-c_d+e", &"x".repeat(40)] {
        assert!(state.check_name(name).is_ok(), "{name:?}");
    }
}

#[test]
fn a_path_too_long_for_a_socket_is_refused() {
    let parent = tempfile::tempdir().expect("a temporary directory can be made");
    let deep = parent.path().join("d".repeat(100));
    let state = StateDirectory::open(Some(deep)).expect("it can be made");
    assert!(matches!(
        state.check_name("a"),
        Err(Error::State(StateError::SocketPathTooLong { .. }))
    ));
}

#[test]
fn every_store_gets_a_valid_name() {
    let (_parent, state) = directory();
    for path in ["/srv/my disk.img", "/dev/sdb", "/", "/.hidden", "/a/-", &"x".repeat(200)] {
        let name = name_of_store(Path::new(path));
        assert!(state.check_name(&name).is_ok(), "{path} gives {name}");
    }
    assert_eq!(name_of_store(Path::new("/srv/my disk.img")), "my-disk");
    assert_eq!(name_of_store(Path::new("/dev/sdb")), "sdb");
    assert_eq!(name_of_store(Path::new("/srv/日本.img")), "日本");
    assert_eq!(name_of_store(Path::new(&format!("/srv/{}", "日".repeat(99)))).len(), 60);
}

#[test]
fn the_lock_excludes_a_second_holder() {
    let (_parent, state) = directory();
    let lock = state.lock().expect("nobody holds the lock");
    let (sender, receiver) = std::sync::mpsc::channel();
    let second = state.clone();
    let waiter = std::thread::spawn(move || {
        let _lock = second.lock().expect("the lock becomes free");
        sender.send(()).expect("the test waits");
    });
    let early = receiver.recv_timeout(std::time::Duration::from_millis(50));
    assert!(early.is_err(), "two processes hold the lock");
    drop(lock);
    receiver.recv_timeout(std::time::Duration::from_secs(10)).expect("the lock was freed");
    waiter.join().expect("the waiter does not panic");
}
