//! Named scenarios: faults that reading the code had found before any seed did, each as it was
//! reproduced.

use coulter_engine::create::{CreateOptions, LayoutError, map_size_min, plan};
use coulter_engine::units::Stream;
use coulter_engine::{Command, Config, OpenError, Phase, Request};
use coulter_format::record::RecordView;
use coulter_format::{BLOCK_SIZE, Lba, Pba, StoreId};
use coulter_sim::device::{Device, Loss};
use coulter_sim::hand::{Hand, small, small_options, store, store_of};
use coulter_sim::random::Random;

/// A record fails while another one fills: the writes in the filling one are never answered.
#[test]
fn poison_answers_everybody() {
    let mut h = Hand::open(store(24, 1024, None, None, 8), small());
    let mut ids = vec![];
    for lba in 0..2 {
        ids.push(h.try_write(lba, 1, 1).unwrap());
        h.poll();
    }
    assert_eq!(h.out.len(), 2);
    for lba in 2..5 {
        ids.push(h.try_write(lba, 1, 1).unwrap());
        h.poll();
    }
    assert_eq!(h.out.len(), 2, "the third record fills");
    h.complete(0, Err(5));
    h.run();
    let unanswered: Vec<_> = ids.iter().filter(|id| !h.answers.contains_key(id)).collect();
    assert!(
        unanswered.is_empty(),
        "never answered: {unanswered:?}, activity {}",
        h.engine.activity()
    );
}

/// More map memory than four times the journal in frames: no relocation is ever admitted.
#[test]
fn much_map_memory_lets_the_cleaner_work() {
    let config = Config { map_size: Some(80 << 20), ..small() };
    let mut h = Hand::open(store(24, 1024, None, None, 8), config);
    let mut r = Random::new(1);
    let size = h.engine.geometry().volume_size;
    for i in 0..60_000u64 {
        assert!(
            h.write(r.below(size), 1, (i % 200) as u8),
            "stands still after {i} writes of {size} blocks: {:?}",
            h.engine.statistics()
        );
    }
}

/// A read error while the log is walked: what was flushed is dropped and a new epoch begins.
#[test]
fn a_read_error_while_opening_loses_nothing() {
    let mut h = Hand::open(store(24, 1024, None, None, 8), small());
    assert!(h.write(3, 1, 9));
    assert_eq!(h.flush(), Some(Ok(())));
    let mut device = h.device.clone();
    device.flush_all();
    let mut lost = vec![];
    for n in 0..200 {
        let mut o = Hand::begin(device.clone(), small());
        let mut count = 0;
        loop {
            o.poll();
            if o.out.is_empty() {
                break;
            }
            let read = matches!(o.out[0].0.command, Command::Read { .. });
            let fail = read && count == n;
            count += usize::from(read);
            o.complete(0, if fail { Err(5) } else { Ok(()) });
        }
        if count <= n {
            break;
        }
        if o.engine.phase() == Phase::Running {
            let seen = o.read(3);
            if seen != Some(Ok(9)) {
                lost.push((n, seen));
            }
        }
        // And once more, without any fault.
        o.device.flush_all();
        let mut o = Hand::open(o.device.clone(), small());
        if o.engine.phase() == Phase::Running && o.read(3) != Some(Ok(9)) {
            lost.push((n, o.read(3)));
        }
    }
    assert!(lost.is_empty(), "flushed data lost by one failed read at opening: {lost:?}");
}

/// A header of a checkpoint's own records rots: what was flushed after is dropped without a word.
#[test]
fn a_rotten_metadata_header_behind_the_checkpoint_is_not_a_torn_tail() {
    let mut h = Hand::open(store(24, 1024, None, None, 8), small());
    for lba in 0..1100 {
        assert!(h.write(lba, 1, 1));
    }
    assert!(h.write(3, 1, 9));
    assert_eq!(h.flush(), Some(Ok(())));
    let mut device = h.device.clone();
    device.flush_all();
    let s = h.engine.superblock();
    println!("checkpoint {:?} applied {}", s.checkpoint, h.engine.statistics().applied_sequence);
    for which in 0..2 {
        let mut device = device.clone();
        // The body's header, or that of the record before it (images).
        let mut at = s.checkpoint.pba.0 - 1;
        if which == 1 {
            loop {
                at -= 1;
                let mut b = [[0u8; 4096]];
                device.read(Pba(at), &mut b);
                if coulter_format::record::RecordView::decode(&b[0], &s.store, Pba(at)).is_ok() {
                    break;
                }
            }
        }
        device.corrupt(Pba(at), 50);
        let mut o = Hand::open(device, small());
        println!("{:?} dropped {}", o.engine.phase(), o.engine.statistics().records_dropped);
        if o.engine.phase() == Phase::Running {
            assert_eq!(o.read(3), Some(Ok(9)), "flushed, and gone without a word");
        }
    }
}

/// The checkpoint's own records lie behind its cut. No record after them need tell that they were durable:
/// the superblock does.
#[test]
fn a_rotten_header_of_the_last_checkpoint_is_no_torn_tail() {
    let mut h = Hand::open(store(24, 1024, None, None, 8), small());
    assert!(h.write(3, 1, 9));
    h.submit(Request::Shutdown).unwrap();
    h.run();
    let body = h.engine.superblock().checkpoint.pba;
    let mut device = h.device;
    device.flush_all();
    device.corrupt(Pba(body.0 - 1), 50);
    assert!(device.check().is_err(), "the checker misses it");
    let phase = Hand::open(device, small()).engine.phase();
    let is_missed = matches!(phase, Phase::Failed(OpenError::DurableRecordMissing { .. }));
    assert!(is_missed, "{phase:?}");
}

/// Where the record with so many blocks of payload lies.
fn header_of(device: &Device, payload_size: u16) -> Pba {
    let store = StoreId { uuid: [6; 16], salt: 1 };
    let mut block = [[0; BLOCK_SIZE]];
    let mut places = (0..device.size() as u32).map(Pba).filter(|pba| {
        device.read(*pba, &mut block);
        RecordView::decode(&block[0], &store, *pba)
            .is_ok_and(|view| view.header().payload_size == payload_size)
    });
    let found = places.next_back();
    found.expect("it was written")
}

/// The header of a flushed record is damaged, and a block of its payload, without which it is not rebuilt; a record
/// behind it says that it was durable: the store is not opened, and the checker says why.
fn is_missed(mut device: Device, payload_size: u16) {
    device.flush_all();
    let header = header_of(&device, payload_size);
    device.corrupt(header, 50);
    device.corrupt(header.plus(1), 50);
    assert!(device.check().is_err(), "the checker misses {payload_size} blocks");
    let phase = Hand::open(device, small()).engine.phase();
    let is_missed = matches!(phase, Phase::Failed(OpenError::DurableRecordMissing { .. }));
    assert!(
        is_missed,
        "{payload_size} blocks were flushed, and are gone without a word: {phase:?}"
    );
}

/// Behind a damaged header the search ended a block too early to meet the next one, if the record
/// was as long as can be.
#[test]
fn a_damaged_header_of_a_record_of_any_length_is_no_torn_tail() {
    for count in [1, 100, 254, 255, 256] {
        let mut h = Hand::open(store_of(24, 1024, 1024, None, None, 8), small());
        assert!(h.write(0, count, 1));
        assert_eq!(h.flush(), Some(Ok(())));
        assert!(h.write(1000, 2, 2));
        is_missed(h.device, count as u16);
    }
}

/// Whether anything had been written to the segments opened before was asked when only their first
/// blocks had been looked at: from the eighth on none was searched.
#[test]
fn a_damaged_first_header_of_any_reserved_segment_is_no_torn_tail() {
    for before in 0..14 {
        let mut h = Hand::open(store(60, 8192, None, None, 8), small());
        for segment in 0..before {
            assert!(h.write(segment * 255, 255, 1), "a segment is full");
        }
        assert!(h.write(5000, 10, 2));
        assert_eq!(h.flush(), Some(Ok(())));
        assert!(h.write(6000, 2, 3));
        is_missed(h.device, 10);
    }
}

/// Reads and flushes are served before the first checkpoint. What was replayed may lie in the device's cache
/// only, if no more than the process had died.
#[test]
fn a_flush_right_after_opening_covers_what_was_replayed() {
    let mut h = Hand::open(store(24, 1024, None, None, 8), small());
    assert_eq!(h.flush(), Some(Ok(())));
    assert!(h.write(3, 1, 9));
    let mut again = Hand::begin(h.device, small());
    again.poll();
    while again.engine.phase() == Phase::Opening {
        again.complete(0, Ok(()));
        again.poll();
    }
    assert_eq!(again.engine.phase(), Phase::Recovered);
    let id = again.submit(Request::Flush).unwrap();
    again.poll();
    while !again.answers.contains_key(&id) {
        again.complete(0, Ok(()));
        again.poll();
    }
    assert_eq!(again.answers[&id], Ok(()));
    let mut device = again.device;
    device.cut(Loss::Everything, &mut Random::new(1));
    let mut h = Hand::open(device, small());
    assert_eq!(h.engine.phase(), Phase::Running);
    assert_eq!(h.read(3), Some(Ok(9)), "a flush was answered, and what it covers is gone");
}

/// With FUA, no flush of the host's is to be waited for.
#[test]
fn what_is_written_or_discarded_with_fua_is_durable_when_it_is_answered() {
    let mut h = Hand::open(store(24, 1024, None, None, 8), small());
    assert!(h.write(3, 2, 7));
    assert_eq!(h.flush(), Some(Ok(())));
    let buffer = h.memory.add_host(vec![[9; BLOCK_SIZE]]);
    let write = Request::Write { lba: Lba(3), count: 1, buffer, fua: true };
    let discard = Request::Discard { lba: Lba(4), count: 1, fua: true };
    for request in [write, discard] {
        let id = h.submit(request).unwrap();
        h.poll();
        while !h.answers.contains_key(&id) {
            h.complete(0, Ok(()));
            h.poll();
        }
        assert_eq!(h.answers[&id], Ok(()));
        let mut device = h.device.clone();
        device.cut(Loss::Everything, &mut Random::new(1));
        let mut again = Hand::open(device, small());
        let expected = if request == write { 7 } else { 0 };
        assert_eq!((again.read(3), again.read(4)), (Some(Ok(9)), Some(Ok(expected))));
    }
}

/// A segment is trimmed while a read of it is in flight.
#[test]
fn a_read_in_flight_is_not_trimmed_away() {
    let config = Config { trim: true, ..small() };
    let mut h = Hand::open(store(24, 1024, None, None, 8), config);
    for lba in 0..250 {
        assert!(h.write(lba, 1, 7));
    }
    let buffer = h.memory.add_host(vec![[0xee; 4096]]);
    let id = h.submit(Request::Read { lba: Lba(3), count: 1, buffer }).unwrap();
    h.poll();
    assert_eq!(h.out.len(), 1);
    let held = h.out.remove(0);
    let Command::Read { pba, .. } = held.0.command else { panic!() };
    let mut r = Random::new(4);
    let mut trimmed = false;
    'outer: for i in 0..6000u64 {
        let id = h.try_write(r.below(600), 1, (i % 200) as u8);
        if id.is_none() {
            println!("busy at {i}");
            break;
        }
        loop {
            h.poll();
            if h.out.is_empty() {
                break;
            }
            if let Command::Discard { pba: start, count } = h.out[0].0.command
                && (start.0..start.0 + count).contains(&pba.0)
            {
                trimmed = true;
                h.complete(0, Ok(()));
                break 'outer;
            }
            h.complete(0, Ok(()));
        }
    }
    println!("trimmed under the read: {trimmed}");
    h.out.insert(0, held);
    h.run();
    assert_eq!(
        h.answers.get(&id),
        Some(&Ok(())),
        "an intact block was read while it was overwritten"
    );
}

/// A shutdown while a discard waits for room.
#[test]
fn a_shutdown_does_not_forget_a_discard() {
    let mut h = Hand::open(store(24, 1024, None, None, 8), small());
    for lba in 0..1500 {
        assert!(h.write(lba, 1, 1));
    }
    let mut writes = vec![];
    // Hold everything back so that the journal fills.
    while let Some(id) = h.try_write(writes.len() as u64 % 1000, 200, 2) {
        writes.push(id);
        h.poll();
    }
    let discard = h.submit(Request::Discard { lba: Lba(1), count: 3000, fua: false });
    let shutdown = h.submit(Request::Shutdown).unwrap();
    h.run();
    println!(
        "{} writes, discard {discard:?}, shutdown {:?}",
        writes.len(),
        h.answers.get(&shutdown)
    );
    if let Some(discard) = discard {
        assert!(
            h.answers.contains_key(&discard),
            "never answered; activity {}",
            h.engine.activity()
        );
    }
}

/// Nothing is written after a clean shutdown was answered.
#[test]
fn a_clean_shutdown_is_the_last_write() {
    let mut h = Hand::open(store(60, 1024, None, None, 4), small());
    let mut r = Random::new(1);
    for _ in 0..3000 {
        assert!(h.write(r.below(8000), 1, 1));
    }
    let id = h.submit(Request::Shutdown).unwrap();
    let mut after = 0;
    loop {
        h.poll();
        if h.out.is_empty() {
            break;
        }
        if h.answers.contains_key(&id) && matches!(h.out[0].0.command, Command::Write { .. }) {
            after += 1;
        }
        h.complete(0, Ok(()));
    }
    assert_eq!(after, 0, "writes after the shutdown was answered");
}

/// A discard that needs more room than the journal has left, while no checkpoint is due.
#[test]
fn a_discard_is_not_stuck_on_a_nearly_full_journal() {
    let mut h = Hand::open(store(60, 1024, None, None, 8), small());
    let size = h.engine.geometry().volume_size;
    for lba in 0..size {
        assert!(h.write(lba, 1, 1));
    }
    // Fill the journal to just below its size after a checkpoint.
    let before = h.engine.statistics().checkpoints;
    while h.engine.statistics().checkpoints == before {
        assert!(h.write(0, 1, 1));
    }
    for i in 0..1015u64 {
        assert!(h.write(i, 1, 1));
    }
    let id = h.submit(Request::Discard { lba: Lba(1), count: size - 2, fua: false }).unwrap();
    h.run();
    println!("size {size} checkpoints {}", h.engine.statistics().checkpoints);
    assert!(
        h.answers.contains_key(&id),
        "the discard hangs, and with it every later write: {:?}",
        h.try_write(1, 1, 1)
    );
}

/// The smallest spare space and little map memory.
#[test]
fn little_spare_and_little_map_memory_go_on() {
    for segments in [60u64, 200] {
        let limit = match plan(&opts(segments, Some(u64::MAX / 4096))) {
            Err(LayoutError::VolumeTooLarge { limit }) => limit,
            other => panic!("{other:?}"),
        };
        let map = map_size_min(limit);
        let mut h = Hand::open(
            store(segments, 1024, Some(limit), Some(map), 4),
            Config { map_size: Some(map), ..small() },
        );
        assert_eq!(h.engine.phase(), Phase::Running);
        let mut r = Random::new(1);
        for lba in 0..limit / 64 {
            assert!(h.write(lba * 64, 64, 1), "filling {lba}: {:?}", h.engine.statistics());
        }
        for i in 0..limit * 4 {
            assert!(
                h.write(r.below(limit), 1, (i % 200) as u8),
                "{segments} segments: stands still after {i} of {limit}: {:?}",
                h.engine.statistics()
            );
        }
    }
}

fn opts(segments: u64, volume: Option<u64>) -> CreateOptions {
    CreateOptions {
        volume_size: volume,
        run_count_limit: Some(4),
        ..small_options(256 * (segments + 1))
    }
}

/// Memory for nearly all arrays: arrays that change took the frames that were kept for the sweep,
/// which could then load no page, and the cleaner, which waited for one, never went on.
#[test]
fn changed_arrays_leave_the_sweep_its_frames() {
    // Those of 400 that stood still.
    for seed in [49, 145, 200, 220] {
        overwrite_in_lives(seed);
    }
}

/// Overwrites a volume at random, with as many writes at once as the engine takes and commands that
/// complete in any order, through several openings.
fn overwrite_in_lives(seed: u64) {
    let mut r = Random::new(seed);
    let volume = (40 + r.below(90)) * 512;
    let segments = (volume * (140 + r.below(200)) / 100).div_ceil(250) + 30;
    let journal = 1024 << r.below(4);
    let runs = 8 << r.below(5);
    let batch_depth = 1 + r.below(2) as u32;
    let config = Config { record_count: 24, page_count: 64, batch_depth, ..Config::default() };
    let config = Config { request_count: 1024, ..config };
    let device = store(segments, journal as u32, Some(volume), None, runs as u32);
    let mut h = Hand::open(device, config);
    for life in 0..6 {
        overwrite(&mut h, &mut r, volume, 20_000, &format!("seed {seed}, life {life}"));
        if r.below(2) == 0 {
            h.run();
        }
        h.device.flush_all();
        h = Hand::open(h.device, config);
    }
}

/// Writes so many blocks at random, as many at once as the engine takes.
fn overwrite(h: &mut Hand, r: &mut Random, volume: u64, count: u64, story: &str) {
    for i in 0..count {
        let mut tries = 0;
        while h.try_write(r.below(volume), 1, (i % 200) as u8).is_none() {
            h.poll();
            let commands = h.out.len() as u64;
            if commands > 0 {
                h.complete(r.below(commands) as usize, Ok(()));
            }
            tries = if commands > 0 { 0 } else { tries + 1 };
            assert!(tries < 8, "{story}, write {i} stands still: {:?}", h.engine.statistics());
        }
    }
}

/// With host data and relocations in one stream the host used up the segments that were left to the
/// cleaner, and both stood still.
#[test]
fn a_full_volume_goes_on_however_blocks_are_placed_and_victims_chosen() {
    use coulter_engine::named::Named;
    use coulter_engine::placement::Placement;
    use coulter_engine::policy::VictimPolicy;
    let placements =
        [Placement::Mixed, Placement::Apart, Placement::Lifetime, Placement::Scattered];
    let volume = plan(&opts(100, None)).expect("it fits").0.volume_size;
    for (turn, placement) in placements.into_iter().enumerate() {
        for (policy, victims) in VictimPolicy::NAMED.iter().copied() {
            let config = Config { record_count: 24, page_count: 64, placement, victims, ..small() };
            let config = Config { request_count: 1024, ..config };
            let mut h = Hand::open(store(100, 1024, None, None, 4), config);
            let mut r = Random::new(turn as u64);
            for lba in (0..volume - 64).step_by(64) {
                assert!(h.write(lba, 64, 1), "filling {lba}: {:?}", h.engine.statistics());
            }
            let mut go_on = |placement: Placement| {
                h.engine.set_placement(placement);
                let story = format!("{placement}, {policy}");
                overwrite(&mut h, &mut r, volume, volume, &story);
            };
            go_on(placement);
            go_on(placements[(turn + 1) % placements.len()]);
            go_on(placement);
        }
    }
}

/// One record of leaf pages is long under way, and the sweep goes on until no frame is left. Then that
/// record fails: the frames of pages that never arrive stayed taken, and reads waited for ever.
#[test]
fn with_little_map_memory_reads_go_on_after_a_failed_write() {
    let mut was_full = 0;
    for seed in [0, 16, 28, 32] {
        let mut r = Random::new(seed);
        let map = map_size_min(1200 * 256);
        let mut h = Hand::open(store(1200, 1024, None, Some(map), 4), small());
        let size = h.engine.geometry().volume_size;
        for lba in (0..size - 128).step_by(128) {
            assert!(h.write(lba, 128, 1));
        }
        let mut leaves = h.engine.statistics().leaf_blocks;
        let (mut left, mut held, mut refused) = (r.below(150), None, 0);
        while refused < 20 {
            h.poll();
            let leaves_before = std::mem::replace(&mut leaves, h.engine.statistics().leaf_blocks);
            if held.is_none() && leaves > leaves_before {
                left = u64::saturating_sub(left, 1);
                let metadata = |command: &Command| {
                    matches!(command, Command::Write { stream: Stream::Metadata, .. })
                };
                let mut out = h.out.iter().filter(|_| left == 0);
                held = out.find(|(io, _)| metadata(&io.command)).map(|(io, _)| io.id);
            }
            if let Some(next) = h.out.iter().position(|(io, _)| Some(io.id) != held) {
                h.complete(next, Ok(()));
                refused = 0;
            } else if h.try_write(r.below(size), 1, 2).is_none() {
                refused += 1;
            }
        }
        let statistics = h.engine.statistics();
        was_full += u32::from(statistics.map_bytes + 4096 > statistics.map_bytes_limit);
        let held = h.out.iter().position(|(io, _)| Some(io.id) == held);
        h.complete(held.expect("it is under way"), Err(5));
        h.run();
        for lba in (0..size).step_by(512) {
            assert!(h.read(lba).is_some_and(|read| read.is_ok()), "seed {seed}, {lba}");
        }
    }
    assert!(was_full > 0, "there is a life in which all memory was taken");
}
