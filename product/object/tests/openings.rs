//! Hosts that die soon after each opening, hundreds of times: the volume stays one that can be opened, and quickly.

mod stamped;

use coulter_object::bucket::{MemoryBucket, MeteredBucket};
use coulter_object::history;
use coulter_object::history::restore::restore;
use coulter_object::history::takeover::{self, Claim, NewVolume};
use coulter_object::layout::commit::{Content, Inline};
use coulter_object::layout::{Commit, Entry, Stage, VolumeRecord, nonce};
use coulter_object::names::CommitId;
use coulter_object::publish::Briefly;
use coulter_object::ship::marks::Marks;
use coulter_object::{
    Bucket,
    history::{snapshot, verify},
};
use stamped::stepping::{Step, SteppingBucket};
use stamped::{BUSY, MIB, STORE, STORE_SIZE, opening};
use std::sync::{Arc, Mutex};

/// More than a record can name.
const OPENINGS: u64 = 600;

/// Bytes of what each commit of these tests holds.
const CELL: u64 = 4096;

fn new_volume(bucket: &dyn Bucket) -> Claim {
    let owner = "test".to_string();
    let new = NewVolume { store: STORE, device_size: STORE_SIZE, chunk_size: 8 << 20, owner };
    takeover::create(bucket, &new, 0, &Briefly).expect("the bucket is empty")
}

fn claim(bucket: &dyn Bucket) -> Claim {
    takeover::claim(bucket, "test", 0, &Briefly).expect("nobody else claims")
}

/// The first commit of a claim: it stamps one cell.
fn commit(bucket: &dyn Bucket, claim: &Claim, stamp: u64) {
    let id = CommitId { epoch: claim.epoch, number: 1 };
    let start = stamp % 100 * CELL;
    let bytes = stamp.to_le_bytes().repeat(CELL as usize / 8);
    let inline = Inline { ranges: std::iter::once(start..start + CELL).collect(), bytes };
    let (volume, previous) = (claim.record.volume, claim.history.checksum);
    let zeros = Entry { range: MIB..MIB + CELL, content: Content::Zeros };
    let entries = vec![zeros];
    let mut commit = Commit { volume, nonce: nonce(), id, is_fence: false, previous, entries };
    bucket.create(&id.name(), &commit.encode(&inline)).expect("memory has room");
}

/// What the copy holds now must be the last stamp of each cell.
fn assert_stamps(bucket: &dyn Bucket, stamps: impl Iterator<Item = u64>) {
    let mut expected = vec![0; STORE_SIZE as usize];
    for stamp in stamps {
        let start = (stamp % 100 * CELL) as usize;
        let bytes = stamp.to_le_bytes().repeat(CELL as usize / 8);
        expected[start..start + CELL as usize].copy_from_slice(&bytes);
    }
    let (record, history) = history::newest(bucket, &Briefly).expect("there is a volume");
    history.pieces.assert_invariants();
    let memory = Mutex::new(vec![0; STORE_SIZE as usize]);
    restore(bucket, record.volume, &history.pieces, &memory, 4, &Briefly, &|_| {})
        .expect("nothing is missing");
    assert!(memory.into_inner().expect("no panic") == expected, "each cell has its last stamp");
    let report = verify::verify(bucket, 1, &Briefly, &|_, _| {}).expect("the bucket answers");
    assert!(report.faults.is_empty(), "{:?}", report.faults);
}

/// Requests that one more opening reads with.
fn reads_of_an_opening(memory: &MemoryBucket) -> u64 {
    let metered = MeteredBucket::new(Arc::new(memory.clone()));
    claim(&metered);
    metered.meter().total().gets
}

#[test]
fn a_volume_can_be_opened_after_hundreds_of_openings_without_a_commit() {
    let memory = MemoryBucket::new();
    let first = new_volume(&memory);
    for _ in 0..OPENINGS {
        let opened = claim(&memory);
        opened.history.refuse_nothing().expect_err("nothing was shipped");
    }
    commit(&memory, &claim(&memory), 1);
    for _ in 0..OPENINGS {
        assert_eq!(claim(&memory).history.commit_count, 1);
    }
    let last = claim(&memory);
    assert_eq!(last.epoch, first.epoch + 2 * OPENINGS + 2, "each opening has its own epoch");
    assert_stamps(&memory, 1..2);
    let reads = reads_of_an_opening(&memory);
    assert!(reads < 60, "{reads} requests");
}

#[test]
fn a_volume_can_be_opened_after_hundreds_of_openings_of_one_commit_and_no_manifest() {
    let memory = MemoryBucket::new();
    commit(&memory, &new_volume(&memory), 0);
    for stamp in 1..OPENINGS {
        commit(&memory, &claim(&memory), stamp);
        if stamp == 7 {
            snapshot::create(&memory, "kept", 0, &Briefly).expect("it can be kept");
        }
        // Every other host makes no commit.
        if stamp % 2 == 0 {
            claim(&memory);
        }
    }
    assert_stamps(&memory, 0..OPENINGS);
    let reads = reads_of_an_opening(&memory);
    assert!(reads < 200, "{reads} requests");
    let (_, manifest) = snapshot::read(&memory, "kept", &Briefly).expect("it is kept");
    assert_eq!(manifest.pieces.total(), 8 * CELL, "the snapshot is what it was");

    // The next host collects what the manifests of the openings have made garbage.
    let bucket: Arc<dyn Bucket> = Arc::new(memory.clone());
    let claim = claim(&memory);
    let store = stamped::restored(&memory, &claim.history.pieces);
    let opening = opening(bucket, BUSY, Marks::in_memory());
    let inner = store.open().expect("it is free");
    let shipped = coulter_object::ShippedDevice::take_over(inner, opening, claim);
    let (mut device, replica) = shipped.expect("marks in memory");
    let manifests = || memory.list("m/").expect("memory lists").len();
    let mut stamp = 0_u64;
    while manifests() > 3 {
        stamp += 1;
        let bytes = stamp.to_le_bytes().repeat(CELL as usize / 8);
        write(&mut device, &bytes);
        assert!(stamp < 3000, "{} manifests are left", manifests());
    }
    assert!(!replica.status().is_fenced);
}

/// Writes to the first cell, and waits for a commit of that.
fn write(device: &mut impl coulter_device::Device, bytes: &[u8]) {
    use coulter_device::{AlignedMemory, Command, Wait};
    let mut memory = AlignedMemory::zeroed(bytes.len());
    memory.copy_from_slice(bytes);
    let write = Command::write(1, 0, bytes.len() as u64, memory.as_mut_pointer());
    for command in [write, Command::flush(2)] {
        // SAFETY: the memory lives until its command has completed.
        unsafe { device.submit(command) };
        let mut done = Vec::new();
        while done.is_empty() {
            device.poll(&mut done, Wait::Forever).expect("nothing fails");
        }
    }
}

#[test]
fn a_volume_can_be_opened_after_hundreds_of_hosts_that_died_while_they_took_it_over() {
    let memory = MemoryBucket::new();
    commit(&memory, &new_volume(&memory), 3);
    // At each of its changes: the claim, the fence, the beginning.
    let is_begun =
        |record: VolumeRecord| record.newest().is_some_and(|newest| newest.stage == Stage::Begun);
    let mut claimed = 0;
    for at in 1..=OPENINGS {
        for step in [Step::EndsBefore, Step::EndsAfter] {
            let lost = SteppingBucket::new(memory.clone(), at % 3 + 1, step);
            // The fence of one that was lost is the next one's.
            let _ = takeover::claim(&lost, "test", 0, &Briefly);
            let (record, _) = history::record(&memory, &Briefly).expect("there is a volume");
            claimed += u64::from(!is_begun(record));
        }
    }
    assert!(claimed > OPENINGS / 2, "{claimed} have only claimed");
    assert_stamps(&memory, std::iter::once(3));
    let reads = reads_of_an_opening(&memory);
    assert!(reads < 60, "{reads} requests");
    commit(&memory, &claim(&memory), 4);
    assert_stamps(&memory, 3..5);
}
