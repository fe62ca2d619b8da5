//! Workloads on one file, and what must be there after a crash at each point of them.

use super::BROKEN;
use super::lower::{Loss, ModelLower};
use super::volume::ModelVolume;
use crate::lower::Lower;
use crate::overlay::{Options, Overlay, Remap};
use crate::recover::create;
use coulter::buffer::Buffer;
use coulter_files::{Changes, FileService, Name, ROOT, Reply, Request, Time, read_span};
use coulter_format::BLOCK_SIZE;
use std::collections::BTreeSet;

const NAME: &[u8] = b"f";
const BLOCKS: u64 = 1 << 20;

#[derive(Clone, Copy, Debug)]
enum Operation {
    /// A block, which may be remapped.
    Write(u64),
    /// Some bytes over the edge of two blocks.
    WriteBytes,
    Resize(u64),
    Sync,
    Settle,
    /// The last name goes, and the kernel forgets the file.
    Remove,
}

const OPERATIONS: [Operation; 8] = [
    Operation::Write(1),
    Operation::Write(3),
    Operation::WriteBytes,
    Operation::Resize(6000),
    Operation::Resize(20_000),
    Operation::Sync,
    Operation::Settle,
    Operation::Remove,
];

pub(super) struct Mount {
    pub(super) overlay: Overlay<ModelLower>,
    pub(super) volume: ModelVolume,
    clock: i64,
    /// What there was after each command of the last operation.
    moments: Vec<(ModelLower, ModelVolume)>,
}

impl Mount {
    pub(super) fn new() -> (Mount, Vec<u8>) {
        Mount::with_blocks(5)
    }

    pub(super) fn with_blocks(count: usize) -> (Mount, Vec<u8>) {
        let content: Vec<u8> = (0..count * BLOCK_SIZE).map(|at| (at / 97) as u8 | 1).collect();
        let lower = ModelLower::with_file(NAME, &content);
        let superblock = create([7; 16], lower.root(), BLOCKS, 10_000);
        let mut block = [0; BLOCK_SIZE];
        superblock.encode(&mut block);
        let volume = ModelVolume::holding(0, block);
        (Mount::open(lower, volume), content)
    }

    pub(super) fn open(lower: ModelLower, mut volume: ModelVolume) -> Mount {
        let options = Options { remap: Remap::Random, ..Options::default() };
        let overlay = Overlay::open(lower, &mut volume, BLOCKS, options);
        let overlay = overlay.unwrap_or_else(|error| panic!("it cannot be opened: {error}"));
        let mut mount = Mount { overlay, volume, clock: 1000, moments: Vec::new() };
        mount.drain();
        mount.overlay.lower.keep_history();
        mount
    }

    pub(super) fn drain(&mut self) {
        while self.complete_one() || self.end_sync() {}
    }

    /// For a test that has no crashes.
    pub(super) fn forget_moments(&mut self) {
        self.moments.clear();
    }

    /// Notes what a kill between the calls of the last turn would have left.
    fn note_calls(&mut self) {
        let volume = &self.volume;
        let moments = self.overlay.lower.take_history().into_iter();
        self.moments.extend(moments.map(|lower| (lower, volume.clone())));
    }

    /// Carries out a command; false if there is none.
    pub(super) fn complete_one(&mut self) -> bool {
        let Some(io) = self.overlay.poll_io() else { return false };
        self.note_calls();
        let (id, buffer) = self.volume.carry_out(io);
        self.moments.push((self.overlay.lower.clone(), self.volume.clone()));
        self.overlay.handle_completion(id, Ok(()), buffer);
        self.note_calls();
        true
    }

    /// Ends a sync of the lower directory that goes on; false if there is none.
    pub(super) fn end_sync(&mut self) -> bool {
        if !self.overlay.lower.end_sync() {
            return false;
        }
        self.moments.push((self.overlay.lower.clone(), self.volume.clone()));
        self.overlay.handle_wake();
        self.note_calls();
        true
    }

    pub(super) fn ask(&mut self, request: Request) -> Result<Reply, i32> {
        self.clock += 1;
        self.overlay.handle_request(1, request, Time { seconds: self.clock, nanoseconds: 0 });
        self.overlay.handle_time(0);
        self.note_calls();
        self.drain();
        let response = self.overlay.poll_response().expect("each request is answered");
        self.overlay.assert_invariants();
        assert!(self.overlay.is_quiet(), "nothing stays behind");
        response.result
    }

    pub(super) fn find(&mut self) -> Result<u64, i32> {
        self.find_named(NAME)
    }

    pub(super) fn find_named(&mut self, name: &[u8]) -> Result<u64, i32> {
        let name = Name::new(name).expect("a name");
        match self.ask(Request::Lookup { directory: ROOT, name })? {
            Reply::Entry(entry) => Ok(entry.number),
            reply => panic!("{reply:?}"),
        }
    }

    /// All of the file; `None` if there is none.
    pub(super) fn content(&mut self) -> Result<Option<Vec<u8>>, i32> {
        match self.find() {
            Err(libc::ENOENT) => Ok(None),
            found => self.content_of(found?).map(Some),
        }
    }

    pub(super) fn content_of(&mut self, inode: u64) -> Result<Vec<u8>, i32> {
        let Reply::Attributes(found) = self.ask(Request::Attributes { inode })? else { panic!() };
        let length = found.inode.size as u32;
        let buffer = Buffer::zeroed(read_span(0, length).max(BLOCK_SIZE));
        match self.ask(Request::Read { inode, offset: 0, length, buffer })? {
            Reply::Data(buffer, range) => Ok(buffer[range].to_vec()),
            reply => panic!("{reply:?}"),
        }
    }
}

/// What the file may be after a crash.
struct Oracle {
    /// Contents since the last sync, that of the sync first.
    contents: Vec<Vec<u8>>,
    may_be_gone: bool,
}

impl Oracle {
    fn now(&self) -> &Vec<u8> {
        self.contents.last().expect("there is one")
    }

    fn allows(&self, found: Option<&[u8]>) -> Result<(), String> {
        let Some(found) = found else {
            return if self.may_be_gone { Ok(()) } else { Err("the file is gone".into()) };
        };
        if !self.contents.iter().any(|content| content.len() == found.len()) {
            return Err(format!("it never had {} bytes", found.len()));
        }
        for (index, block) in found.chunks(BLOCK_SIZE).enumerate() {
            let is_one = self.contents.iter().any(|content| {
                let mut then = content.get(index * BLOCK_SIZE..).unwrap_or(&[]).to_vec();
                then.resize(block.len(), 0);
                then == block
            });
            if !is_one {
                return Err(format!("block {index} never was like this"));
            }
        }
        Ok(())
    }
}

/// Does an operation; false if there is no file to do it to.
fn step(
    mount: &mut Mount,
    oracle: &mut Oracle,
    operation: Operation,
    serial: u8,
) -> Result<bool, String> {
    let failed = |errno: i32| format!("{operation:?} fails with {errno}");
    let Ok(inode) = mount.find() else { return Ok(false) };
    let mut content = oracle.now().clone();
    match operation {
        Operation::Write(_) | Operation::WriteBytes => {
            let (offset, length) = match operation {
                Operation::Write(block) => (block as usize * BLOCK_SIZE, BLOCK_SIZE),
                _ => (2 * BLOCK_SIZE - 50, 100),
            };
            let bytes = vec![serial.wrapping_mul(7) | 1; length];
            let buffer = Buffer::copied_from(&bytes);
            let request = Request::Write {
                inode,
                offset: offset as u64,
                buffer,
                kills_privileges: false,
                sync: false,
            };
            mount.ask(request).map_err(failed)?;
            content.resize(content.len().max(offset + length), 0);
            content[offset..offset + length].copy_from_slice(&bytes);
        }
        Operation::Resize(size) => {
            let changes = Changes { size: Some(size), ..Changes::default() };
            mount.ask(Request::Change { inode, changes }).map_err(failed)?;
            content.resize(size as usize, 0);
        }
        Operation::Sync => {
            mount.ask(Request::SyncNode { inode }).map_err(failed)?;
            *oracle = Oracle { contents: vec![content.clone()], may_be_gone: false };
        }
        Operation::Settle => drop(mount.ask(Request::Settle).map_err(failed)?),
        Operation::Remove => {
            let name = Name::new(NAME).expect("a name");
            mount.ask(Request::Unlink { directory: ROOT, name }).map_err(failed)?;
            mount.overlay.forget(inode, u64::MAX);
            mount.drain();
            oracle.may_be_gone = true;
            return Ok(true);
        }
    }
    oracle.contents.push(content);
    let found = mount.content().map_err(failed)?;
    if found.as_ref() != Some(oracle.now()) {
        return Err("it does not read as it was written".into());
    }
    Ok(true)
}

/// Every crash that can come when both sides are like this.
fn crash_at(lower: &ModelLower, volume: &ModelVolume, oracle: &Oracle) -> Result<u64, String> {
    let mut count = 0;
    for kept in volume.durable..=volume.steps() {
        for loss in [Loss::Nothing, Loss::Everything, Loss::Data] {
            let crash = format!("{kept} of {} steps, lost below: {loss:?}", volume.steps());
            recover(Mount::open(lower.cut(loss), volume.cut(kept)), oracle)
                .map_err(|why| format!("{why} after {crash}"))?;
            count += 1;
        }
    }
    Ok(count)
}

/// What is there after a crash, and whether it can be brought home.
fn recover(mut after: Mount, oracle: &Oracle) -> Result<(), String> {
    let failed = |errno: i32| format!("error {errno}");
    let found = after.content().map_err(failed)?;
    oracle.allows(found.as_deref())?;
    if !after.overlay.orphans.is_empty() {
        return Err("an orphan".into());
    }
    if found.is_none() {
        return Ok(());
    }
    after.ask(Request::Settle).map_err(failed)?;
    let home = after.content().map_err(failed)?;
    if home != found || after.overlay.store.mapped != 0 {
        return Err("not settled".into());
    }
    Ok(())
}

/// Does an operation, with every crash in its midst and after it; the number of crashes, or none if there is
/// no file to do it to.
fn step_and_crash(
    mount: &mut Mount,
    oracle: &mut Oracle,
    operation: Operation,
    serial: u8,
) -> Result<Option<u64>, String> {
    let before = Oracle { contents: oracle.contents.clone(), may_be_gone: oracle.may_be_gone };
    mount.moments.clear();
    if !step(mount, oracle, operation, serial)? {
        return Ok(None);
    }
    let mut midst = before;
    midst.contents.push(oracle.now().clone());
    midst.may_be_gone |= oracle.may_be_gone;
    let mut crashes = 0;
    for (lower, volume) in std::mem::take(&mut mount.moments) {
        crashes += crash_at(&lower, &volume, &midst)?;
    }
    Ok(Some(crashes + crash_at(&mount.overlay.lower, &mount.volume, oracle)?))
}

/// All workloads of so many operations; the number of crashes.
fn run_all(length: u32) -> Result<u64, String> {
    run_behind(&[], length)
}

/// All workloads that begin with `head` and go on with so many operations; the number of crashes.
fn run_behind(head: &[Operation], length: u32) -> Result<u64, String> {
    let mut crashes = 0;
    for code in 0..OPERATIONS.len().pow(length) {
        let (mut mount, content) = Mount::new();
        let mut oracle = Oracle { contents: vec![content], may_be_gone: false };
        let digits = (0..length).map(|place| code / OPERATIONS.len().pow(place));
        let tail = digits.map(|digit| OPERATIONS[digit % OPERATIONS.len()]);
        let mut done = Vec::new();
        for (operation, serial) in head.iter().copied().chain(tail).zip(1..) {
            done.push(operation);
            let told = |why: String| format!("{done:?}: {why}");
            let tried = step_and_crash(&mut mount, &mut oracle, operation, serial);
            let Some(tried) = tried.map_err(told)? else { break };
            crashes += tried;
        }
    }
    Ok(crashes)
}

#[test]
fn what_was_synced_is_there_after_every_crash_of_every_short_workload() {
    let crashes = run_all(3).unwrap_or_else(|why| panic!("{why}"));
    assert!(crashes > 3000, "only {crashes} crashes were tried");
}

/// Long enough for a file that is cut off, grows again, and whose way home is taken up after a crash.
#[test]
fn what_was_synced_is_there_after_every_crash_of_every_workload_behind_a_remapped_write() {
    run_behind(&[Operation::Write(1)], 3).unwrap_or_else(|why| panic!("{why}"));
}

/// Three files whose records lie in one block, at each point of bringing them home together.
#[test]
fn files_that_come_home_at_the_same_time_are_whole_after_every_crash() {
    let names: [&[u8]; 3] = [NAME, b"g", b"h"];
    let (mount, content) = Mount::new();
    let mut lower = mount.overlay.lower.clone();
    names[1..].iter().for_each(|name| lower.add_file(name, &content));
    let mut mount = Mount::open(lower, mount.volume.clone());
    let mut expected = Vec::new();
    for (name, seed) in names.iter().zip(1..) {
        let inode = mount.find_named(name).unwrap();
        let mut bytes = content.clone();
        for block in [1, 3] {
            bytes[block * BLOCK_SIZE..][..BLOCK_SIZE].fill(seed);
            let (buffer, offset) =
                (Buffer::copied_from(&[seed; BLOCK_SIZE]), (block * BLOCK_SIZE) as u64);
            let (kills_privileges, sync) = (false, false);
            let request = Request::Write { inode, offset, buffer, kills_privileges, sync };
            mount.ask(request).unwrap();
        }
        mount.ask(Request::SyncNode { inode }).unwrap();
        expected.push(bytes);
    }
    mount.moments.clear();
    mount.ask(Request::Settle).unwrap();
    let check = |mut after: Mount| {
        for (name, bytes) in names.iter().zip(&expected) {
            let inode = after.find_named(name).unwrap();
            assert!(after.content_of(inode).unwrap() == *bytes);
        }
        assert!(after.overlay.orphans.is_empty());
        after
    };
    let mut crashes = 0;
    for (lower, volume) in std::mem::take(&mut mount.moments) {
        for kept in volume.durable..=volume.steps() {
            for loss in [Loss::Nothing, Loss::Everything, Loss::Data] {
                let mut after = check(Mount::open(lower.cut(loss), volume.cut(kept)));
                after.ask(Request::Settle).unwrap();
                assert_eq!(check(after).overlay.store.mapped, 0);
                crashes += 1;
            }
        }
    }
    assert!(crashes > 50, "only {crashes} crashes were tried");
}

#[test]
fn a_file_that_is_cut_off_and_grows_while_it_is_brought_home_has_zeros_there() {
    let time = Time { seconds: 2000, nanoseconds: 0 };
    for steps in 0..12 {
        let (mut mount, content) = Mount::new();
        let mut oracle = Oracle { contents: vec![content], may_be_gone: false };
        step(&mut mount, &mut oracle, Operation::Write(1), 1).unwrap();
        step(&mut mount, &mut oracle, Operation::Write(3), 2).unwrap();
        let mut expected = oracle.now().clone();
        let inode = mount.find().unwrap();
        mount.overlay.handle_request(2, Request::Settle, time);
        for _ in 0..steps {
            mount.complete_one();
        }
        for (id, size) in [(3, 6000), (4, 20_000)] {
            let changes = Changes { size: Some(size), ..Changes::default() };
            mount.overlay.handle_request(id, Request::Change { inode, changes }, time);
            expected.resize(size as usize, 0);
        }
        mount.drain();
        while let Some(response) = mount.overlay.poll_response() {
            response.result.unwrap();
        }
        assert!(mount.content().unwrap().unwrap() == expected, "after {steps} steps");
        mount.ask(Request::Settle).unwrap();
        assert_eq!(mount.overlay.store.mapped, 0, "after {steps} steps");
        assert!(mount.content().unwrap().unwrap() == expected, "at home, after {steps} steps");
    }
}

#[test]
fn the_tests_find_each_rule_that_is_broken() {
    let mut missed = BTreeSet::new();
    for rule in ["R2", "R4", "R5", "R6", "R7", "R8", "R12"] {
        BROKEN.set(Some(rule.to_owned()));
        let found = std::panic::catch_unwind(|| run_all(3).is_err()).unwrap_or(true);
        BROKEN.set(None);
        if !found {
            missed.insert(rule);
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// Writes to a file and syncs it, takes its mark away below, as a restored backup does, and opens again:
/// whether the file is as the lower one, and how many orphans there are.
fn restore_without_mark() -> (bool, usize) {
    let (mut mount, content) = Mount::new();
    let mut oracle = Oracle { contents: vec![content.clone()], may_be_gone: false };
    step(&mut mount, &mut oracle, Operation::Write(1), 1).unwrap();
    step(&mut mount, &mut oracle, Operation::Sync, 2).unwrap();
    let root = mount.overlay.lower.root();
    let handle = mount.overlay.lower.lookup(&root, NAME).unwrap().handle;
    mount.overlay.lower.remove_xattr(&handle, crate::MARK.as_bytes()).unwrap();
    let mut after = Mount::open(mount.overlay.lower.clone(), mount.volume.clone());
    let found = after.content();
    (found == Ok(Some(content)), after.overlay.orphans.len())
}

#[test]
fn a_file_without_its_mark_is_told_and_nothing_is_applied_to_it() {
    assert_eq!(restore_without_mark(), (true, 1));
    BROKEN.set(Some("R9".to_owned()));
    let broken = restore_without_mark();
    BROKEN.set(None);
    assert_ne!(broken, (true, 1), "the rule is what keeps it so");
}

#[test]
fn a_file_that_is_removed_while_it_is_brought_home_is_forgotten_once() {
    let time = Time { seconds: 2000, nanoseconds: 0 };
    let mut removed_in_the_midst = 0;
    for steps in 0..8 {
        let (mut mount, content) = Mount::new();
        let mut oracle = Oracle { contents: vec![content], may_be_gone: false };
        step(&mut mount, &mut oracle, Operation::Write(1), 1).unwrap();
        let inode = mount.find().unwrap();
        mount.overlay.handle_request(2, Request::Settle, time);
        for _ in 0..steps {
            mount.complete_one();
        }
        let name = Name::new(NAME).unwrap();
        mount.overlay.handle_request(3, Request::Unlink { directory: ROOT, name }, time);
        let mut is_settled = false;
        loop {
            match mount.overlay.poll_response() {
                Some(response) if response.id == 3 => {
                    response.result.unwrap();
                    break;
                }
                Some(response) => is_settled = response.result.is_ok(),
                None => assert!(mount.complete_one(), "it is answered"),
            };
        }
        removed_in_the_midst += u64::from(!is_settled);
        mount.overlay.forget(inode, u64::MAX);
        mount.drain();
        let _ = mount.overlay.poll_response();
        mount.ask(Request::Settle).unwrap();
        assert_eq!(mount.overlay.store.records.iter().flatten().count(), 0, "after {steps} steps");
        assert_eq!(mount.overlay.store.mapped, 0, "after {steps} steps");
    }
    assert!(removed_in_the_midst > 2, "{removed_in_the_midst}");
}

#[test]
fn a_file_that_others_have_changed_gives_an_error_and_no_mixture() {
    let (mut mount, _) = Mount::new();
    let mut oracle =
        Oracle { contents: vec![mount.content().unwrap().unwrap()], may_be_gone: false };
    step(&mut mount, &mut oracle, Operation::Write(1), 1).unwrap();
    step(&mut mount, &mut oracle, Operation::Sync, 2).unwrap();
    mount.overlay.lower.meddle();
    assert_eq!(mount.content(), Err(libc::EIO));
    assert_eq!(mount.ask(Request::Settle).err(), None, "nothing else is kept from coming home");
    assert!(mount.overlay.store.mapped > 0, "and nothing of it is thrown away");
    assert!(mount.overlay.report().contains("\"faults_total\":1"));
    let mut after = Mount::open(mount.overlay.lower.clone(), mount.volume.clone());
    assert_eq!(after.content(), Err(libc::EIO), "nor after opening again");
}

/// A sync that began before a change says nothing of it: whoever asks after the change waits for another one.
#[test]
fn a_sync_answers_nobody_who_asked_after_a_later_change() {
    let (mut mount, _) = Mount::new();
    let inode = mount.find().unwrap();
    let time = Time { seconds: 2000, nanoseconds: 0 };
    let cut = |size| Request::Change {
        inode,
        changes: Changes { size: Some(size), ..Changes::default() },
    };
    mount.overlay.handle_request(2, cut(9), time);
    for (id, request) in [
        (3, Request::SyncNode { inode }),
        (4, Request::SyncNode { inode }),
        (5, cut(8)),
        (6, Request::SyncNode { inode }),
    ] {
        mount.overlay.handle_request(id, request, time);
        mount.overlay.handle_time(0);
        while mount.complete_one() {}
    }
    let mut answered = Vec::new();
    let mut note = |mount: &mut Mount| {
        let found = std::iter::from_fn(|| mount.overlay.poll_response());
        let ids: Vec<u64> =
            found.map(|response| response.result.map(|_| response.id).unwrap()).collect();
        answered.push(ids);
    };
    note(&mut mount);
    assert!(mount.end_sync(), "the first sync goes on");
    while mount.complete_one() {}
    note(&mut mount);
    assert!(mount.end_sync(), "the change needs another one");
    while mount.complete_one() {}
    note(&mut mount);
    assert_eq!(answered, [vec![2, 5], vec![3, 4], vec![6]]);
    assert!(mount.overlay.is_quiet());
    let mut durable = mount.overlay.lower.cut(Loss::Everything);
    let root = durable.root();
    let found = durable.lookup(&root, NAME).unwrap();
    assert_eq!(found.status.size, 8);
}
