//! One call below fails, whichever it is: what was asked for may be refused, and no more comes of
//! it.

use super::chance::Chance;
use super::crashes::Mount;
use super::lower::Loss;
use coulter::buffer::Buffer;
use coulter_files::{Changes, FileService, Name, ROOT, RenameFlags, Request, Time};
use coulter_format::BLOCK_SIZE;

/// Calls of a request at most.
const CALLS_MAX: u64 = 12;
/// Blocks of a file: those that are in the store come home in two pieces.
const BLOCKS: usize = 40;
const NAME: &[u8] = b"f";
const OTHER: &[u8] = b"other";

fn block_of(inode: u64, block: usize, byte: u8) -> Request {
    let (buffer, offset) = (Buffer::copied_from(&[byte; BLOCK_SIZE]), (block * BLOCK_SIZE) as u64);
    Request::Write { inode, offset, buffer, kills_privileges: false, sync: false }
}

/// A mount with a file of which two blocks are in the store, durably, and a plain one.
fn mount() -> (Mount, u64, Vec<u8>) {
    let (mount, mut expected) = Mount::with_blocks(BLOCKS);
    let mut lower = mount.overlay.lower().clone();
    lower.add_file(OTHER, &[1; BLOCK_SIZE]);
    let mut mount = Mount::open(lower, mount.volume);
    let inode = mount.find().expect("it is there");
    for block in [1, 30] {
        mount.ask(block_of(inode, block, 7)).expect("it is writable");
        expected[block * BLOCK_SIZE..][..BLOCK_SIZE].fill(7);
    }
    mount.ask(Request::SyncNode { inode }).expect("it can be synced");
    (mount, inode, expected)
}

/// Has the request's calls fail, a later one in each round; and tells whether it was refused.
fn fail_each(request: impl Fn(u64) -> Request, check: impl Fn(Mount, u64, Vec<u8>, bool)) {
    let mut refused = 0;
    for calls in 0..CALLS_MAX {
        let (mut mount, inode, expected) = mount();
        mount.overlay.lower.fail_after(calls);
        let is_refused = mount.ask(request(inode)).is_err();
        refused += u64::from(is_refused);
        mount.overlay.lower.fail_after(u64::MAX);
        check(mount, inode, expected, is_refused);
    }
    assert!(
        refused > 0 && refused < CALLS_MAX,
        "{refused} were refused: some call failed, or none"
    );
}

/// An opening that cannot look at a file does not take it for gone.
#[test]
fn a_file_is_served_again_after_an_opening_that_could_not_look_at_it() {
    let mut hidden = 0;
    for calls in 0..CALLS_MAX {
        let (mount, _, expected) = mount();
        let mut lower = mount.overlay.lower.cut(Loss::Nothing);
        lower.fail_after(calls);
        let mut blind = Mount::open(lower, mount.volume);
        blind.overlay.lower.fail_after(u64::MAX);
        assert!(blind.overlay.orphans.is_empty(), "call {calls}");
        hidden += u32::from(blind.content() != Ok(Some(expected.clone())));
        let mut after = Mount::open(blind.overlay.lower.cut(Loss::Nothing), blind.volume);
        assert!(after.content() == Ok(Some(expected)), "call {calls}");
    }
    assert!(hidden > 0, "some call was one of the opening's");
}

fn mode_of(inode: u64) -> Request {
    Request::Change { inode, changes: Changes { mode: Some(0o600), ..Changes::default() } }
}

#[test]
fn a_file_is_served_after_any_call_has_failed_that_changes_its_mode() {
    fail_each(mode_of, |mut mount, inode, expected, _| {
        assert!(mount.content_of(inode) == Ok(expected.clone()));
        mount.ask(mode_of(inode)).expect("nothing fails any more");
        let mut after = Mount::open(mount.overlay.lower.cut(Loss::Nothing), mount.volume);
        assert!(after.content() == Ok(Some(expected)));
    });
}

/// Behind the end of the lower file space is taken, which sets its time, and then the time is set
/// back.
#[test]
fn a_file_is_served_after_any_call_has_failed_that_takes_space_for_it() {
    let grow = |inode| block_of(inode, BLOCKS + 2, 9);
    fail_each(grow, |mut mount, inode, mut expected, is_refused| {
        if is_refused {
            mount.ask(grow(inode)).expect("nothing fails any more");
        }
        expected.resize((BLOCKS + 2) * BLOCK_SIZE, 0);
        expected.extend([9; BLOCK_SIZE]);
        assert!(mount.content_of(inode) == Ok(expected.clone()));
        mount.ask(Request::SyncNode { inode }).expect("nothing fails any more");
        let mut after = Mount::open(mount.overlay.lower.cut(Loss::Nothing), mount.volume);
        assert!(after.content() == Ok(Some(expected)));
    });
}

/// The kernel knows it, so it is readable without a name; after a crash it is gone without a word.
#[test]
fn a_file_that_was_unlinked_is_held_after_any_call_has_failed() {
    let name = Name::new(NAME).expect("a name");
    fail_each(
        |_| Request::Unlink { directory: ROOT, name },
        |mut mount, inode, expected, is_refused| {
            assert!(mount.content_of(inode) == Ok(expected.clone()));
            let mut after = Mount::open(mount.overlay.lower.cut(Loss::Nothing), mount.volume);
            let content = is_refused.then_some(expected);
            assert!(after.content() == Ok(content));
            assert!(after.overlay.orphans.is_empty());
        },
    );
}

#[test]
fn a_file_that_was_replaced_is_held_after_any_call_has_failed() {
    let [new_name, name] = [NAME, OTHER].map(|name| Name::new(name).expect("a name"));
    let flags = RenameFlags::Replace;
    fail_each(
        |_| Request::Rename { from: ROOT, name, to: ROOT, new_name, flags },
        |mut mount, inode, expected, is_refused| {
            assert!(mount.content_of(inode) == Ok(expected.clone()));
            let mut after = Mount::open(mount.overlay.lower.cut(Loss::Nothing), mount.volume);
            let content = if is_refused { expected } else { vec![1; BLOCK_SIZE] };
            assert!(after.content() == Ok(Some(content)));
            assert!(after.overlay.orphans.is_empty());
        },
    );
}

/// A file gets a record, for which it is synced below: that it fails takes what was written before.
#[test]
fn an_error_of_a_sync_that_nobody_asked_for_is_told_by_the_next_one() {
    let (mut mount, _) = Mount::new();
    let inode = mount.find().expect("it is there");
    let in_place = Request::Write {
        inode,
        offset: 5 * BLOCK_SIZE as u64,
        buffer: Buffer::copied_from(&[3; BLOCK_SIZE]),
        kills_privileges: false,
        sync: false,
    };
    mount.ask(in_place).expect("it is writable");
    // Its status, its mark, and then the sync.
    mount.overlay.lower.fail_after(2);
    mount.ask(block_of(inode, 1, 7)).expect_err("its mark is not durable");
    mount.overlay.lower.fail_after(u64::MAX);
    mount.ask(Request::SyncNode { inode }).expect_err("what was written may be lost");
    mount.ask(Request::SyncNode { inode }).expect("it is told once");
}

/// Brings a file home; after `steps` commands a sync of another request fails. True if the file is
/// whole after a cut, none if no sync failed.
fn bring_home_beside_a_sync_that_fails(steps: u64) -> Option<bool> {
    let (mut mount, inode, expected) = mount();
    // Else there would be nothing to sync below.
    mount.ask(mode_of(inode)).expect("nothing fails");
    let time = Time { seconds: 3000, nanoseconds: 0 };
    mount.overlay.handle_request(2, Request::Settle, time);
    for _ in 0..steps {
        mount.complete_one();
    }
    mount.overlay.handle_request(3, Request::SyncNode { inode }, time);
    mount.overlay.handle_time(0);
    mount.overlay.lower.fail_after(0);
    let has_failed = mount.end_sync() && mount.overlay.lower.fault_count() > 0;
    mount.overlay.lower.fail_after(u64::MAX);
    mount.drain();
    while mount.overlay.poll_response().is_some() {}
    mount.ask(Request::Settle).expect("nothing fails any more");
    assert_eq!(mount.overlay.store.mapped, 0);
    let is_whole = (0..8).all(|seed| {
        let lower = mount.overlay.lower.cut_by_chance(&mut Chance(seed));
        let mut after = Mount::open(lower, mount.volume.cut(mount.volume.durable));
        after.content() == Ok(Some(expected.clone()))
    });
    has_failed.then_some(is_whole)
}

#[test]
fn a_sync_that_fails_for_another_one_takes_nothing_of_what_was_brought_home_before() {
    let found: Vec<bool> = (0..12).filter_map(bring_home_beside_a_sync_that_fails).collect();
    assert!(found.len() > 3, "a sync fails: {found:?}");
    assert!(found.iter().all(|is_whole| *is_whole), "{found:?}");
    super::BROKEN.set(Some("doubt".to_owned()));
    let found: Vec<bool> = (0..12).filter_map(bring_home_beside_a_sync_that_fails).collect();
    super::BROKEN.set(None);
    assert!(found.contains(&false), "the rule is what keeps it so: {found:?}");
}

/// The size is set before the call fails that sets its mode.
#[test]
fn a_size_that_was_set_before_a_call_failed_is_durable_after_a_sync() {
    for calls in 0..CALLS_MAX {
        let (mut mount, _) = Mount::new();
        let inode = mount.find().expect("it is there");
        mount.ask(Request::SyncNode { inode }).expect("nothing fails");
        let changes = Changes { size: Some(100), mode: Some(0o600), ..Changes::default() };
        mount.overlay.lower.fail_after(calls);
        let _ = mount.ask(Request::Change { inode, changes });
        mount.overlay.lower.fail_after(u64::MAX);
        let content = mount.content_of(inode).expect("nothing fails any more");
        mount.ask(Request::SyncNode { inode }).expect("nothing fails any more");
        let mut after = Mount::open(mount.overlay.lower.cut(Loss::Everything), mount.volume);
        assert!(after.content() == Ok(Some(content)), "after {calls} calls");
    }
}
