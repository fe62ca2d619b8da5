//! Many records: nothing that goes on by itself, and no request about one file, looks at all of
//! them.

use super::crashes::Mount;
use crate::overlay::SettleWhen;
use crate::store::Adopted;
use coulter::buffer::Buffer;
use coulter_files::{Ending, FileService, Request, Time};
use coulter_format::BLOCK_SIZE;
use coulter_format::overlay::{Handle, Record, RecordState};

const SECOND_NS: u64 = 1_000_000_000;
/// Records that are there without being asked for.
const COUNT: u64 = 200_000;
/// Looks at records that one step may take.
const LOOKS_MAX: u64 = 64;

/// A file that has lost its name, whose blocks cannot come home.
fn nameless(number: u64) -> Adopted {
    let handle = Handle::new(1, &number.to_le_bytes()).expect("it is short");
    let mut id = [9; 16];
    id[..8].copy_from_slice(&number.to_le_bytes());
    Adopted::new(Record {
        state: RecordState::Live,
        is_nameless: true,
        is_taking_space: false,
        id,
        handle,
        number,
        size: 0,
        lower_valid: 0,
        modified: Time::default(),
        lower: Default::default(),
    })
}

fn looks(mount: &mut Mount, what: &str, step: impl FnOnce(&mut Mount)) {
    mount.overlay.store.looks.set(0);
    step(mount);
    let looks = mount.overlay.store.looks.get();
    assert!(looks <= LOOKS_MAX, "{what} looked at {looks} records");
}

#[test]
fn no_step_looks_at_all_records() {
    let (mut mount, _) = Mount::new();
    for number in 0..COUNT {
        let place = mount.overlay.store.add_record(nameless((1 << 20) + number));
        assert!(place.is_some(), "there are places for a million");
    }
    let inode = mount.find().expect("it is there");
    let write = move || {
        let buffer = Buffer::copied_from(&[7; BLOCK_SIZE]);
        let (offset, kills_privileges, sync) = (BLOCK_SIZE as u64, false, false);
        Request::Write { inode, offset, buffer, kills_privileges, sync }
    };
    looks(&mut mount, "a write", |mount| drop(mount.ask(write()).expect("it is writable")));
    looks(&mut mount, "a sync", |mount| {
        mount.ask(Request::Sync).expect("it can be synced");
    });
    looks(&mut mount, "settling", |mount| {
        mount.ask(Request::Settle).expect("it can come home");
    });
    mount.ask(write()).expect("it is writable");
    mount.overlay.options.settle = SettleWhen::Idle;
    looks(&mut mount, "an idle mount", |mount| {
        for second in 0..40 {
            mount.overlay.handle_time(second * SECOND_NS);
            mount.drain();
        }
    });
    assert_eq!(mount.overlay.store.mapped, 0, "it came home by itself");
    mount.overlay.assert_invariants();
    looks(&mut mount, "the end", |mount| {
        mount.overlay.handle_end(9, Ending::Unmounted, Time::default());
        mount.drain();
    });
    let answer = mount.overlay.poll_response().expect("the end is answered");
    assert!(answer.result.is_ok(), "{answer:?}");
}
