//! Writes that the volume holds back, while others flush, time goes by and files are renamed.

use super::crashes::Mount;
use super::lower::Loss;
use super::volume::Held;
use crate::is_broken;
use coulter::buffer::Buffer;
use coulter_files::{FileService, IoError, Name, ROOT, RenameFlags, Request, Time};
use coulter_format::BLOCK_SIZE;

const TIME: Time = Time { seconds: 2000, nanoseconds: 0 };
const SECOND_NS: u64 = 1_000_000_000;
const OTHER: &[u8] = b"other";

/// A mount with a file of which blocks are in the store, and a plain one; commands are held back.
struct Scene {
    mount: Mount,
    out: Vec<Held>,
    inode: u64,
    expected: Vec<u8>,
    now_ns: u64,
}

fn block_of(inode: u64, block: usize, byte: u8) -> Request {
    let (buffer, offset) = (Buffer::copied_from(&[byte; BLOCK_SIZE]), (block * BLOCK_SIZE) as u64);
    Request::Write { inode, offset, buffer, kills_privileges: false, sync: false }
}

impl Scene {
    fn new() -> Scene {
        let (mount, mut expected) = Mount::new();
        let mut lower = mount.overlay.lower().clone();
        lower.add_file(OTHER, &[1; BLOCK_SIZE]);
        let mut mount = Mount::open(lower, mount.volume);
        let inode = mount.find().expect("it is there");
        mount.ask(block_of(inode, 1, 7)).expect("it is writable");
        expected[BLOCK_SIZE..][..BLOCK_SIZE].fill(7);
        mount.ask(Request::SyncNode { inode }).expect("it can be synced");
        Scene { mount, out: Vec::new(), inode, expected, now_ns: 0 }
    }

    /// Has the volume take what there is.
    fn take(&mut self) {
        while let Some(io) = self.mount.overlay.poll_io() {
            let held = self.mount.volume.accept(io, &self.out);
            self.out.push(held);
        }
    }

    fn write(&mut self, block: usize, byte: u8) {
        self.expected[block * BLOCK_SIZE..][..BLOCK_SIZE].fill(byte);
        self.mount.overlay.handle_request(50, block_of(self.inode, block, byte), TIME);
        self.take();
    }

    /// Completes all but what came first, and what follows from it.
    fn end_all_but_first(&mut self) {
        while self.out.len() > 1 {
            self.end(1, Ok(()));
        }
    }

    fn end(&mut self, at: usize, result: Result<(), IoError>) {
        let (id, buffer) = self.mount.volume.end(self.out.remove(at));
        self.mount.overlay.handle_completion(id, result, buffer);
        while self.mount.end_sync() {}
        self.take();
    }

    fn end_all(&mut self) {
        while !self.out.is_empty() {
            self.end(0, Ok(()));
        }
    }

    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds * 2 {
            self.now_ns += SECOND_NS / 2;
            self.mount.overlay.handle_time(self.now_ns);
            self.take();
            self.end_all();
        }
    }

    /// Another one's flush begins while a write is out, and ends before it.
    fn flush_beside_a_write(&mut self) {
        self.write(3, 9);
        self.mount.overlay.handle_request(51, Request::SyncNode { inode: self.inode }, TIME);
        self.mount.overlay.handle_time(self.now_ns);
        while self.mount.end_sync() {}
        self.take();
        self.end_all_but_first();
        self.end_all();
    }

    /// What is there under a name after a cut that takes all that may be taken of the store.
    fn after_a_cut(&self, name: &[u8]) -> Vec<u8> {
        let volume = self.mount.volume.cut(self.mount.volume.durable);
        let mut after = Mount::open(self.mount.overlay.lower().cut(Loss::Nothing), volume);
        let inode = after.find_named(name).expect("it is there");
        after.content_of(inode).expect("it can be read")
    }
}

/// Whether all is durable two seconds after the last write was answered.
fn is_flushed_in_time() -> bool {
    let mut scene = Scene::new();
    scene.flush_beside_a_write();
    scene.pass(2);
    let volume = &scene.mount.volume;
    volume.durable == volume.steps() && scene.after_a_cut(b"f") == scene.expected
}

/// Whether a file that has replaced another one is whole after a cut.
fn is_whole_when_it_replaces() -> bool {
    let mut scene = Scene::new();
    scene.flush_beside_a_write();
    let [name, new_name] = [b"f", OTHER].map(|name| Name::new(name).expect("a name"));
    let flags = RenameFlags::Replace;
    let request = Request::Rename { from: ROOT, name, to: ROOT, new_name, flags };
    scene.mount.overlay.handle_request(52, request, TIME);
    scene.take();
    scene.end_all();
    let answers = std::iter::from_fn(|| scene.mount.overlay.poll_response());
    let renamed = answers.filter(|answer| answer.id == 52).map(|answer| answer.result.is_ok());
    assert_eq!(renamed.collect::<Vec<_>>(), [true]);
    scene.after_a_cut(OTHER) == scene.expected
}

#[test]
fn a_write_that_is_out_during_a_flush_is_flushed_a_second_later() {
    assert!(is_flushed_in_time());
}

#[test]
fn a_file_that_replaces_another_is_whole_though_its_write_was_out_during_a_flush() {
    assert!(is_whole_when_it_replaces());
}

#[test]
fn the_tests_find_a_write_that_counts_as_durable_while_it_is_out() {
    crate::model::BROKEN.set(Some("in flight".to_owned()));
    assert!(is_broken("in flight"));
    let found = [is_flushed_in_time(), is_whole_when_it_replaces()];
    crate::model::BROKEN.set(None);
    assert_eq!(found, [false, false]);
}

/// A flush that nobody waits for fails: the next one to ask hears of it, and nothing is changed any more.
#[test]
fn the_error_of_a_flush_by_itself_is_told() {
    let mut scene = Scene::new();
    scene.write(3, 9);
    scene.end_all();
    scene.mount.overlay.handle_time(0);
    scene.mount.overlay.handle_time(2 * SECOND_NS);
    loop {
        scene.take();
        match scene.out.iter().position(|held| held.covers.is_some()) {
            Some(at) => break scene.end(at, Err(IoError::Failed(libc::EIO))),
            None => scene.end(0, Ok(())),
        }
    }
    scene.end_all();
    while scene.mount.overlay.poll_response().is_some() {}
    let inode = scene.inode;
    assert_eq!(scene.mount.ask(Request::SyncNode { inode }).err(), Some(libc::EROFS));
    assert_eq!(scene.mount.ask(block_of(inode, 1, 1)).err(), Some(libc::EROFS));
}

/// While the volume has no space, requests that wait for it are refused; commands that it has taken
/// are whole afterwards.
#[test]
fn without_space_below_syncs_and_writes_are_refused_and_later_all_goes_on() {
    let mut scene = Scene::new();
    scene.write(3, 9);
    scene.mount.overlay.handle_request(51, Request::SyncNode { inode: scene.inode }, TIME);
    scene.mount.overlay.handle_time(scene.now_ns);
    while scene.mount.end_sync() {}
    scene.take();
    scene.mount.overlay.handle_space(true);
    let before = scene.expected.clone();
    scene.write(2, 9);
    scene.expected = before;
    let answers: Vec<_> = std::iter::from_fn(|| scene.mount.overlay.poll_response()).collect();
    let refused =
        answers.iter().filter(|answer| answer.result.as_ref().err() == Some(&libc::ENOSPC));
    assert_eq!(refused.map(|answer| answer.id).collect::<Vec<_>>(), [51, 50]);
    scene.mount.overlay.handle_space(false);
    scene.end_all();
    let inode = scene.inode;
    scene.mount.ask(block_of(inode, 0, 8)).expect("there is space again");
    scene.expected[..BLOCK_SIZE].fill(8);
    scene.mount.ask(Request::SyncNode { inode }).expect("there is space again");
    assert_eq!(scene.after_a_cut(b"f"), scene.expected);
}
