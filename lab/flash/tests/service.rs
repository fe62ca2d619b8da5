//! An emulated drive as a block service: it behaves as a disk does, partial blocks and partial pages
//! included, and its clock is right.

use coulter::buffer::Buffer;
use coulter::service::{BlockService, Operation, Request, RequestError, Session};
use coulter_device::OpenError;
use coulter_flash::{Drive, FlashStore, FtlKind, FtlOptions, Keep, Pacing, Profile};
use coulter_workload::Random;
use std::time::{Duration, Instant};

/// A drive of 8 MiB on two dies, otherwise as the profile says.
fn store(profile: &str, kind: FtlKind) -> FlashStore {
    let mut profile = Profile::named(profile).expect("it comes with the crate");
    profile.geometry.channels = 1;
    profile.geometry.dies_per_channel = 2;
    profile.geometry.planes_per_die = 1;
    profile.geometry.pages_per_block = 16;
    profile.geometry.erase_blocks = 4096;
    profile.geometry.exported_erase_blocks = 1;
    profile.log_blocks = 4;
    let profile = profile.resized(8 << 20).expect("possible");
    let profile = profile.with_spare_percent(60).expect("possible");
    let drive = Drive::new(profile, kind, FtlOptions::default(), Keep::Bytes);
    FlashStore::new(drive.expect("it works there"))
}

fn ask(
    session: &mut dyn Session,
    operation: Operation,
    offset: u64,
    buffer: Buffer,
    length: u64,
) -> Result<Buffer, RequestError> {
    session.submit(Request { tag: 7, operation, offset, length, buffer });
    session.kick();
    let mut out = Vec::new();
    session.complete(&mut out, Some(Duration::from_secs(10)));
    assert_eq!(out.len(), 1, "every request completes once");
    assert_eq!(session.outstanding(), 0);
    let completion = out.remove(0);
    assert_eq!(completion.tag, 7);
    completion.result.map(|()| completion.buffer)
}

#[test]
fn random_requests_of_whole_sectors_agree_with_a_model() {
    for (profile, kind) in [
        ("sata-tlc", FtlKind::PageMapped),
        ("qlc-iu16k", FtlKind::PageMapped),
        ("qlc-iu16k", FtlKind::Dftl),
        ("sata-tlc", FtlKind::Sftl),
    ] {
        let store = store(profile, kind);
        let service = store.serve(Pacing::Virtual).expect("nobody has it");
        let mut session = service.connect();
        let mut model = vec![0; service.size() as usize];
        let sectors = service.size() / 512;
        let mut random = Random::new(11);
        for step in 0..4000u64 {
            let first = random.below(sectors);
            let count = 1 + random.below((sectors - first).min(100));
            let (offset, length) = (first * 512, count * 512);
            let range = offset as usize..(offset + length) as usize;
            let fua = step % 3 == 0;
            let clears = match random.below(8) {
                0 => Some(Operation::Discard),
                1 => Some(Operation::WriteZeroes { fua }),
                _ => None,
            };
            if let Some(operation) = clears {
                ask(&mut *session, operation, offset, Buffer::empty(), length).expect("in range");
                model[range].fill(0);
            } else if random.below(2) == 0 {
                let bytes = vec![step as u8 | 1; length as usize];
                let buffer = Buffer::copied_from(&bytes);
                let write = Operation::Write { fua };
                ask(&mut *session, write, offset, buffer, length).expect("in range");
                model[range].copy_from_slice(&bytes);
            } else {
                let room = Buffer::zeroed(length as usize);
                let read = ask(&mut *session, Operation::Read, offset, room, length);
                assert_eq!(read.expect("in range")[..], model[range], "{profile} {kind} {offset}");
            }
            if step % 50 == 0 {
                ask(&mut *session, Operation::Flush, 0, Buffer::empty(), 0).expect("power is on");
            }
        }
    }
}

#[test]
fn what_was_flushed_or_written_through_survives_a_power_cut() {
    for kind in FtlKind::ALL {
        let store = store("sata-tlc", kind);
        let block = |byte: u8| Buffer::copied_from(&[byte; 4096]);
        let write = |fua| Operation::Write { fua };
        let service = store.serve(Pacing::Virtual).expect("nobody has it");
        let mut session = service.connect();
        ask(&mut *session, write(false), 0, block(1), 4096).expect("power is on");
        ask(&mut *session, Operation::Flush, 0, Buffer::empty(), 0).expect("power is on");
        ask(&mut *session, write(true), 65536, block(2), 4096).expect("power is on");
        ask(&mut *session, write(true), 69632, block(3), 4096).expect("power is on");
        let cleared = ask(&mut *session, Operation::Discard, 69632, Buffer::empty(), 4096);
        cleared.expect("power is on");
        drop((session, service));
        store.power_on().expect("nobody has it");
        let service = store.serve(Pacing::Virtual).expect("nobody has it");
        let mut session = service.connect();
        for (offset, byte) in [(0, 1), (65536, 2), (69632, 0)] {
            let room = Buffer::zeroed(4096);
            let read = ask(&mut *session, Operation::Read, offset, room, 4096).expect("in range");
            assert!(read.iter().all(|found| *found == byte), "{kind}: {offset}");
        }
    }
}

#[test]
fn a_drive_without_power_says_that_it_is_gone() {
    let store = store("sata-tlc", FtlKind::PageMapped);
    store.with(|drive| drive.cut_power_after(0)).expect("nobody has it");
    let service = store.serve(Pacing::Virtual).expect("nobody has it");
    let mut session = service.connect();
    let write = Operation::Write { fua: true };
    let answer = ask(&mut *session, write, 0, Buffer::zeroed(4096), 4096);
    assert_eq!(answer.err(), Some(RequestError::Device { errno: libc::ENODEV }));
}

#[test]
fn bad_requests_are_refused() {
    let service = store("sata-tlc", FtlKind::PageMapped).serve(Pacing::Virtual).expect("it is new");
    let mut session = service.connect();
    let mut answer = |operation, offset, bytes: usize, length| {
        ask(&mut *session, operation, offset, Buffer::zeroed(bytes), length).err()
    };
    let end = service.size();
    assert_eq!(answer(Operation::Read, 1, 512, 512), Some(RequestError::Invalid));
    assert_eq!(answer(Operation::Read, 0, 512, 1024), Some(RequestError::Invalid));
    assert_eq!(answer(Operation::Extents, 0, 0, 0), Some(RequestError::Invalid));
    assert_eq!(answer(Operation::Read, end, 512, 512), Some(RequestError::OutOfRange));
    assert_eq!(answer(Operation::Discard, 512, 0, !511), Some(RequestError::OutOfRange));
    assert_eq!(answer(Operation::Read, end, 0, 0), None);
}

#[test]
fn a_drive_is_open_once_until_its_last_session_is_gone() {
    let store = store("sata-tlc", FtlKind::PageMapped);
    let service = store.serve(Pacing::Virtual).expect("it is new");
    assert!(matches!(store.open(Pacing::Virtual), Err(OpenError::InUse { .. })));
    let session = service.connect();
    drop(service);
    assert!(matches!(store.serve(Pacing::Virtual), Err(OpenError::InUse { .. })));
    drop(session);
    store.open(Pacing::Virtual).expect("nobody has it");
}

#[test]
fn extents_tell_what_was_written() {
    let store = store("sata-tlc", FtlKind::PageMapped);
    let service = store.serve(Pacing::Virtual).expect("it is new");
    let mut session = service.connect();
    let write = Operation::Write { fua: false };
    ask(&mut *session, write, 8192, Buffer::zeroed(4096), 4096).expect("in range");
    let (buffer, length) = (Buffer::empty(), 16384);
    session.submit(Request { tag: 1, operation: Operation::Extents, offset: 0, length, buffer });
    let mut out = Vec::new();
    session.complete(&mut out, None);
    let runs: Vec<_> = out[0].extents.iter().map(|run| (run.length, run.mapped)).collect();
    assert_eq!(runs, [(8192, false), (4096, true), (4096, false)]);
}

#[test]
fn in_real_time_completions_wait_and_in_virtual_time_only_the_clock_moves() {
    for pacing in [Pacing::Real, Pacing::Virtual] {
        let store = store("sata-tlc", FtlKind::PageMapped);
        let service = store.serve(pacing).expect("it is new");
        let mut session = service.connect();
        let begin = Instant::now();
        let before = store.now();
        for step in 0..100 {
            let write = Operation::Write { fua: true };
            ask(&mut *session, write, step * 4096, Buffer::zeroed(4096), 4096).expect("in range");
        }
        let (real, emulated) = (begin.elapsed().as_nanos(), u128::from(store.now() - before));
        // A hundred programs, one after the other.
        let least = 100 * u128::from(Profile::named("sata-tlc").expect("it is there").program_ns);
        assert!(emulated >= least, "{emulated} ns for {least}");
        match pacing {
            Pacing::Real => assert!(real >= least, "{real} ns for {least}"),
            Pacing::Virtual => {
                assert_eq!(store.report().virtual_ns, store.now());
                assert_eq!(store.report().latency.write.count, 100);
            }
        }
    }
}
