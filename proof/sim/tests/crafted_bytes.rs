//! Named scenarios: metadata with intact checksums that cannot be true. Only a mistake or malice makes
//! it; it must end in an error and never in a panic.

use coulter_engine::{Config, OpenError, Phase, Request};
use coulter_format::checkpoint::{BodyView, Head};
use coulter_format::checksum::{self, Kind, crc32c};
use coulter_format::record::{self, BlockWord, Extent, RecordHeader};
use coulter_format::superblock::{CheckpointLocation, Superblock};
use coulter_format::{BLOCK_SIZE, Block, Corrupt, Pba, Reason, Structure};
use coulter_sim::device::Device;
use coulter_sim::hand::{Hand, small, store};

/// A store with data in it, shut down, and its superblock.
fn shut_down() -> (Device, Superblock) {
    let mut hand = Hand::open(store(60, 1024, None, None, 4), small());
    for lba in 0..3000 {
        assert!(hand.write(lba, 1, 3));
    }
    let shutdown = hand.submit(Request::Shutdown).expect("always taken");
    hand.run();
    assert_eq!(hand.answers.get(&shutdown), Some(&Ok(())));
    let superblock = *hand.engine.superblock();
    let mut device = hand.device.clone();
    device.flush_all();
    (device, superblock)
}

fn write_superblock(device: &mut Device, superblock: &Superblock) {
    let mut block = [0; BLOCK_SIZE];
    superblock.encode(&mut block);
    device.write(superblock.location(), &[block]);
    device.flush_all();
}

fn body(device: &Device, superblock: &Superblock) -> Vec<u8> {
    let size = superblock.checkpoint.size as usize;
    let mut blocks = vec![[0; BLOCK_SIZE]; size.div_ceil(BLOCK_SIZE)];
    device.read(superblock.checkpoint.pba, &mut blocks);
    blocks.as_flattened()[..size].to_vec()
}

/// Changes the checkpoint's body, and the checksum above it.
fn change_body(device: &mut Device, superblock: &Superblock, change: impl FnOnce(&mut [u8])) {
    let location = superblock.checkpoint;
    let mut bytes = body(device, superblock);
    change(&mut bytes);
    let mut blocks = vec![[0; BLOCK_SIZE]; bytes.len().div_ceil(BLOCK_SIZE)];
    blocks.as_flattened_mut()[..bytes.len()].copy_from_slice(&bytes);
    device.write(location.pba, &blocks);
    let checkpoint = CheckpointLocation { checksum: crc32c(&bytes), ..location };
    write_superblock(device, &Superblock { checkpoint, ..*superblock });
}

/// Changes a page that the body lists, and every checksum above it. `at` is where the body does.
fn change_page(
    device: &mut Device,
    superblock: &Superblock,
    (kind, key): (Kind, u64),
    at: usize,
    change: impl Fn(&mut Block),
) {
    let pba = Pba(u32_at(&body(device, superblock), at));
    let mut page = [[0; BLOCK_SIZE]];
    device.read(pba, &mut page);
    change(&mut page[0]);
    device.write(pba, &page);
    let checksum = checksum::block(kind, key, &page[0]);
    change_body(device, superblock, |body| put(body, at + 4, &checksum.to_le_bytes()));
}

/// Changes the first page of the segment table, and every checksum above it.
fn change_table(device: &mut Device, superblock: &Superblock, change: impl Fn(&mut Block)) {
    let at = Lists::of(&body(device, superblock)).table;
    change_page(device, superblock, (Kind::SegmentTable, 0), at, change);
}

/// Where the lists begin in a body that lists second copies.
const LISTS: usize = 72;

/// Where the lists of a body begin.
struct Lists {
    reserved: usize,
    roots: usize,
    table: usize,
    runs: usize,
}

impl Lists {
    fn of(body: &[u8]) -> Lists {
        let view = BodyView::decode(body).expect("intact");
        let reserved = LISTS + 8 * view.heads().count();
        let roots = reserved + 4 * view.counts().reserved as usize;
        let table = roots + 16 * view.roots().count();
        Lists { reserved, roots, table, runs: table + 8 * view.table().count() }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// A header as the next record of the host would have it, and where it would lie.
fn next_record(device: &Device, superblock: &Superblock) -> RecordHeader {
    let body = body(device, superblock);
    let head = BodyView::decode(&body).expect("intact").heads().next().expect("seven streams");
    let Head { segment, offset } = head.expect("the host wrote");
    let geometry = superblock.geometry;
    RecordHeader {
        stream: 0,
        epoch: superblock.epoch,
        // The checkpoint's own records lie between.
        sequence: superblock.durable_sequence + 1,
        durable_sequence: superblock.durable_sequence,
        generation: superblock.generation - 1,
        cut: superblock.checkpoint.sequence,
        pba: geometry.first_segment.plus(segment * geometry.segment_blocks + offset),
        payload_size: 0,
        scattered: None,
        goes_on: false,
        page_bits: 0,
    }
}

/// Puts a record there; its blocks are full of nines.
fn write_record(device: &mut Device, superblock: &Superblock, header: &RecordHeader, what: Extent) {
    let content = [9; BLOCK_SIZE];
    let blocks = if what.kind == Kind::Discard { 0 } else { what.count };
    let word = |offset| {
        let checksum = checksum::block(what.kind, what.key.wrapping_add(offset), &content);
        BlockWord { checksum, address: Pba::NOWHERE }
    };
    let words: Vec<_> = (0..u64::from(blocks)).map(word).collect();
    let mut block = [0; BLOCK_SIZE];
    let header = RecordHeader { payload_size: blocks, ..*header };
    record::encode(&header, &superblock.store, &[what], &words, &mut block).expect("it fits");
    device.write(header.pba, &[block]);
    let payload = vec![content; usize::from(blocks)];
    device.write(header.pba.plus(1), &payload);
    device.flush_all();
}

fn data(key: u64, count: u16) -> Extent {
    Extent { key, count, kind: Kind::Data, relocated: false }
}

/// The store is not opened for this reason, and the checker does not call it sound.
fn assert_refused(device: &Device, structure: Structure, field: &'static str) {
    let found = device.check();
    assert!(found.is_err(), "the checker finds no fault where {field} of the {structure} is wrong");
    let hand = Hand::open(device.clone(), small());
    let Phase::Failed(OpenError::Damaged { corrupt, .. }) = hand.engine.phase() else {
        panic!("{field} of the {structure}: {:?}", hand.engine.phase());
    };
    assert_eq!(corrupt, Corrupt { structure, reason: Reason::Field(field) });
}

/// Read-only it is opened, and holds what it held.
fn assert_readable(device: &Device) {
    let config = Config { read_only: true, ..small() };
    let mut hand = Hand::open(device.clone(), config);
    assert_eq!(hand.engine.phase(), Phase::Running);
    assert_eq!(hand.read(2999), Some(Ok(3)));
}

#[test]
fn a_segment_table_that_counts_too_little_makes_the_volume_read_only() {
    let (mut device, superblock) = shut_down();
    change_table(&mut device, &superblock, |page| {
        for entry in page.chunks_exact_mut(16) {
            let valid = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
            entry[..4].copy_from_slice(&(valid.min(1)).to_le_bytes());
        }
    });
    let mut hand = Hand::open(device, small());
    assert_eq!(hand.engine.phase(), Phase::Running);
    assert_eq!(hand.read(7), Some(Ok(3)));
    let mut refused = false;
    for lba in 0..3000 {
        refused |= !hand.write(lba, 1, 4);
    }
    assert!(refused, "no segment is freed by such counts");
    assert_eq!(hand.engine.read_only(), Some(117));
    assert_eq!(hand.read(2999), Some(Ok(3)), "reads go on");
}

#[test]
fn a_segment_table_that_counts_too_much_is_refused() {
    let (mut device, superblock) = shut_down();
    change_table(&mut device, &superblock, |page| {
        page.chunks_exact_mut(16).for_each(|entry| entry[..4].copy_from_slice(&[0xff; 4]));
    });
    let hand = Hand::open(device, small());
    assert!(matches!(hand.engine.phase(), Phase::Failed(OpenError::Damaged { .. })));
}

#[test]
fn numbers_that_would_overflow_are_refused() {
    let (device, superblock) = shut_down();
    let largest = u64::MAX;
    let checkpoint = superblock.checkpoint;
    let sequence = CheckpointLocation { sequence: largest, ..checkpoint };
    // In the same copy: it goes by the last bit.
    let generation = largest - 1 + superblock.generation % 2;
    for crafted in [
        Superblock { generation, ..superblock },
        Superblock { epoch: largest, ..superblock },
        Superblock { checkpoint: sequence, ..superblock },
    ] {
        let mut device = device.clone();
        write_superblock(&mut device, &crafted);
        // The other copy counts, and what came after it is replayed.
        let mut hand = Hand::open(device, small());
        assert_eq!(hand.engine.phase(), Phase::Running);
        assert_eq!(hand.read(2999), Some(Ok(3)));
        assert!(hand.write(1, 1, 9));
    }
}

#[test]
fn a_segment_that_is_listed_twice_is_refused() {
    let (device, superblock) = shut_down();
    let lists = Lists::of(&body(&device, &superblock));
    // The heads of the host and of the cleaner, or of metadata.
    let mut heads = device.clone();
    change_body(&mut heads, &superblock, |body| {
        let head = body[LISTS..LISTS + 8].to_vec();
        put(body, LISTS + 8, &head);
    });
    assert_refused(&heads, Structure::Checkpoint, "head");
    for mark in [0, 1u32 << 31] {
        let mut reserved = device.clone();
        let segment = u32_at(&body(&device, &superblock), lists.reserved);
        change_body(&mut reserved, &superblock, |body| {
            put(body, lists.reserved, &(segment | mark).to_le_bytes());
            put(body, lists.reserved + 4, &(segment | mark).to_le_bytes());
        });
        assert_refused(&reserved, Structure::Checkpoint, "reserved");
    }
    // Where the table agrees that there are holes.
    let mut holes = device.clone();
    let patched = Superblock { patched: true, ..superblock };
    let segment = u32_at(&body(&device, &superblock), lists.reserved);
    change_table(&mut holes, &patched, |page| page[16 * segment as usize + 4] = 3);
    let mut newest = [[0; BLOCK_SIZE]];
    holes.read(superblock.location(), &mut newest);
    let patched = Superblock::decode(&newest[0]).expect("it was written");
    change_body(&mut holes, &patched, |body| {
        put(body, lists.reserved, &(segment | 1 << 31).to_le_bytes());
        put(body, lists.reserved + 4, &(segment | 1 << 31).to_le_bytes());
    });
    assert_refused(&holes, Structure::Checkpoint, "reserved");
}

/// What rotted is not believed, be it as possible as it may.
#[test]
fn a_checkpoint_of_which_a_part_rotted_is_refused() {
    let (device, superblock) = shut_down();
    let body = body(&device, &superblock);
    let lists = Lists::of(&body);
    let view = BodyView::decode(&body).expect("intact");
    assert_eq!((view.roots().count(), view.table().count()), (1, 1));
    let copies: Vec<Pba> = view.copies().collect();
    let parts = [
        // The clock, which could be any number.
        (superblock.checkpoint.pba, 16, Structure::Checkpoint),
        (Pba(u32_at(&body, lists.table)), 8, Structure::SegmentTable),
        (Pba(u32_at(&body, lists.runs + 32)), 20, Structure::Run),
    ];
    for (pba, byte, structure) in parts {
        let mut device = device.clone();
        device.corrupt(pba, byte);
        match structure {
            Structure::Checkpoint => device.corrupt(superblock.checkpoint.copy, byte),
            Structure::SegmentTable => device.corrupt(copies[1], byte),
            _ => device.corrupt(copies[2], byte),
        }
        let phase = Hand::open(device, small()).engine.phase();
        let Phase::Failed(OpenError::Damaged { corrupt, pba: place }) = phase else {
            panic!("{structure}: {phase:?}");
        };
        let expected = Corrupt { structure, reason: Reason::Checksum };
        assert_eq!((corrupt, place), (expected, pba));
    }
}

#[test]
fn pointers_out_of_the_log_are_refused() {
    let (device, superblock) = shut_down();
    let lists = Lists::of(&body(&device, &superblock));
    let outside = (superblock.geometry.first_segment.0 - 1).to_le_bytes();
    let mut root = device.clone();
    change_body(&mut root, &superblock, |body| put(body, lists.roots + 8, &outside));
    assert_refused(&root, Structure::Checkpoint, "root");

    for (at, field) in [(lists.table, "table"), (lists.runs + 32, "run")] {
        let mut list = device.clone();
        change_body(&mut list, &superblock, |body| put(body, at, &outside));
        assert_refused(&list, Structure::Checkpoint, field);
    }

    let mut run = device.clone();
    let body = body(&device, &superblock);
    let first = BodyView::decode(&body).expect("intact").runs().next();
    let key = first.expect("there is one").0.number << 20;
    change_page(&mut run, &superblock, (Kind::Run, key), lists.runs + 32, |block| {
        put(block, 16 + 4, &outside)
    });
    assert_refused(&run, Structure::Run, "pba");
}

#[test]
fn a_checkpoint_that_contradicts_its_table_is_refused() {
    let (device, superblock) = shut_down();
    let geometry = superblock.geometry;
    let body = body(&device, &superblock);
    let lists = Lists::of(&body);
    let mut head = device.clone();
    let beyond = geometry.segment_blocks + 1;
    change_body(&mut head, &superblock, |body| put(body, LISTS + 4, &beyond.to_le_bytes()));
    assert_refused(&head, Structure::Checkpoint, "head");

    let mut run = device.clone();
    change_body(&mut run, &superblock, |body| put(body, 40, &0u64.to_le_bytes()));
    assert_refused(&run, Structure::Checkpoint, "next_run");

    // A root page in a segment that is free.
    let mut root = device.clone();
    let free = u32_at(&body, lists.reserved);
    let in_free = geometry.first_segment.plus(free * geometry.segment_blocks + 1);
    let in_free = in_free.0.to_le_bytes();
    change_body(&mut root, &superblock, |body| put(body, lists.roots + 8, &in_free));
    assert_refused(&root, Structure::Checkpoint, "pba");

    let mut valid = device.clone();
    change_table(&mut valid, &superblock, |page| page[16 * free as usize] = 1);
    assert_refused(&valid, Structure::SegmentTable, "valid");

    // No room is left for what the checkpoint itself lists.
    let mut full = device.clone();
    change_table(&mut full, &superblock, |page| {
        for entry in page.chunks_exact_mut(16).filter(|entry| entry[4] > 0) {
            put(entry, 0, &geometry.segment_blocks.to_le_bytes());
        }
    });
    assert_refused(&full, Structure::Checkpoint, "pba");
}

/// An overwrite takes back a count that was never there: of such a table no segment may be freed.
#[test]
fn a_segment_table_that_replay_finds_wrong_is_refused() {
    let (mut device, superblock) = shut_down();
    let header = next_record(&device, &superblock);
    change_table(&mut device, &superblock, |page| {
        page.chunks_exact_mut(16).for_each(|entry| put(entry, 0, &[0; 4]));
    });
    // It lies some segments before the head, and a run says so.
    write_record(&mut device, &superblock, &header, data(2700, 1));
    assert_refused(&device, Structure::SegmentTable, "valid");
}

#[test]
fn a_relocation_from_where_nothing_can_lie_is_refused() {
    let (mut device, superblock) = shut_down();
    let header = next_record(&device, &superblock);
    let geometry = superblock.geometry;
    // The source may be free by now, but it lay in the log.
    let content = [9; BLOCK_SIZE];
    let extent = Extent { key: 7, count: 1, kind: Kind::Data, relocated: true };
    let address = geometry.second_superblock;
    let word = BlockWord { checksum: checksum::block(Kind::Data, 7, &content), address };
    let header = RecordHeader { payload_size: 1, ..header };
    let mut block = [0; BLOCK_SIZE];
    record::encode(&header, &superblock.store, &[extent], &[word], &mut block).expect("it fits");
    device.write(header.pba, &[block, content]);
    device.flush_all();
    assert_refused(&device, Structure::RecordHeader, "address");
}

/// A copy of the superblock that lies where the other one belongs was misdirected, however new it says
/// it is.
#[test]
fn a_superblock_at_the_place_of_the_other_is_not_believed() {
    let (mut device, superblock) = shut_down();
    let checkpoint = CheckpointLocation { checksum: 7, ..superblock.checkpoint };
    let generation = superblock.generation + 2;
    let newer = Superblock { generation, checkpoint, ..superblock };
    let place = Superblock { generation: generation + 1, ..superblock }.location();
    let mut block = [0; BLOCK_SIZE];
    newer.encode(&mut block);
    device.write(place, &[block]);
    device.flush_all();
    let mut hand = Hand::open(device, small());
    assert_eq!(hand.engine.phase(), Phase::Running);
    assert_eq!(hand.read(2999), Some(Ok(3)));
}

/// Headers of dead records lie anywhere in a patched segment: a head in one would be taken for all of them.
#[test]
fn a_head_and_holes_in_one_segment_are_refused() {
    let (mut device, superblock) = shut_down();
    let body = body(&device, &superblock);
    let head = BodyView::decode(&body).expect("intact").heads().flatten().next();
    let head = head.expect("the host wrote").segment as usize;
    let patched = Superblock { patched: true, ..superblock };
    change_table(&mut device, &patched, |page| page[16 * head + 4] = 3);
    assert_refused(&device, Structure::Checkpoint, "head");
}

#[test]
fn holes_of_a_segment_that_was_never_patched_are_refused() {
    let (mut device, superblock) = shut_down();
    let lists = Lists::of(&body(&device, &superblock));
    let mut closed = None;
    let table = Pba(u32_at(&body(&device, &superblock), lists.table));
    let mut page = [[0; BLOCK_SIZE]];
    device.read(table, &mut page);
    for (segment, entry) in page[0].chunks_exact(16).enumerate() {
        closed = closed.or((entry[4] == 2).then_some(segment as u32));
    }
    let holes = closed.expect("segments are full") | 1 << 31;
    change_body(&mut device, &superblock, |body| put(body, lists.reserved, &holes.to_le_bytes()));
    assert_refused(&device, Structure::Checkpoint, "reserved");
}

#[test]
fn a_head_at_the_start_of_its_segment_is_no_reason_to_panic() {
    let (mut device, superblock) = shut_down();
    change_body(&mut device, &superblock, |body| put(body, 68, &0u32.to_le_bytes()));
    let _ = device.check();
    let hand = Hand::open(device, small());
    assert!(matches!(hand.engine.phase(), Phase::Failed(_) | Phase::Running));
}

#[test]
fn a_record_of_another_stream_than_its_segment_is_refused() {
    let (device, superblock) = shut_down();
    let header = next_record(&device, &superblock);
    for stream in [1, 2, 6] {
        let mut device = device.clone();
        let header = RecordHeader { stream, ..header };
        write_record(&mut device, &superblock, &header, data(7, 1));
        assert_refused(&device, Structure::RecordHeader, "stream");
    }
    // It is the stream alone that is wrong with it.
    let mut device = device.clone();
    write_record(&mut device, &superblock, &header, data(7, 1));
    let mut hand = Hand::open(device, small());
    assert_eq!(hand.read(7), Some(Ok(9)));
}

#[test]
fn two_streams_in_one_new_segment_are_refused() {
    let (mut device, superblock) = shut_down();
    let lists = Lists::of(&body(&device, &superblock));
    let segment = u32_at(&body(&device, &superblock), lists.reserved);
    let geometry = superblock.geometry;
    let pba = geometry.first_segment.plus(segment * geometry.segment_blocks);
    let first = RecordHeader { pba, ..next_record(&device, &superblock) };
    let second = RecordHeader { stream: 1, sequence: first.sequence + 1, ..first };
    write_record(&mut device, &superblock, &first, data(7, 1));
    let second = RecordHeader { pba: pba.plus(2), ..second };
    write_record(&mut device, &superblock, &second, data(8, 1));
    assert_refused(&device, Structure::RecordHeader, "stream");
}

/// The next one of each number would be one that no reader accepts.
#[test]
fn numbers_at_their_limit_are_refused_for_writing_and_can_be_read() {
    let (device, superblock) = shut_down();
    let most = (1 << 62) - 1;
    let generation = most - 1 + superblock.generation % 2;
    let mut last = device.clone();
    write_superblock(&mut last, &Superblock { generation, ..superblock });
    assert_refused(&last, Structure::Superblock, "generation");
    assert_readable(&last);

    let mut last = device.clone();
    // The checkpoint's own records are of another epoch then.
    let durable_sequence = superblock.checkpoint.sequence;
    write_superblock(&mut last, &Superblock { epoch: most, durable_sequence, ..superblock });
    assert_refused(&last, Structure::Superblock, "epoch");
    assert_readable(&last);

    // A store as old as that, with all that it says of sequences.
    let mut last = device.clone();
    change_body(&mut last, &superblock, |body| put(body, 8, &(most - 1).to_le_bytes()));
    let mut newest = [[0; BLOCK_SIZE]];
    last.read(superblock.location(), &mut newest);
    let mut newest = Superblock::decode(&newest[0]).expect("it was written");
    newest.checkpoint.sequence = most - 1;
    newest.durable_sequence = most - 1;
    write_superblock(&mut last, &newest);
    assert_refused(&last, Structure::Superblock, "checkpoint_sequence");
    assert_readable(&last);
}

#[test]
fn a_record_of_an_epoch_at_the_limit_is_refused_for_writing() {
    let (mut device, superblock) = shut_down();
    let header = next_record(&device, &superblock);
    let header = RecordHeader { epoch: (1 << 62) - 1, ..header };
    write_record(&mut device, &superblock, &header, data(7, 1));
    assert_refused(&device, Structure::RecordHeader, "epoch");
    assert_readable(&device);
}

/// No writer makes them: so they are no records. If they were believed, the next superblock would not
/// be valid, nor any after that.
#[test]
fn a_header_with_numbers_beyond_their_limit_is_no_record() {
    let (device, superblock) = shut_down();
    let header = next_record(&device, &superblock);
    for limit in [1 << 62, u64::MAX] {
        for header in [
            RecordHeader { epoch: limit, ..header },
            RecordHeader { sequence: limit, ..header },
            RecordHeader { durable_sequence: limit, ..header },
            RecordHeader { generation: limit, ..header },
        ] {
            let mut device = device.clone();
            write_record(&mut device, &superblock, &header, data(7, 1));
            for _ in 0..2 {
                let mut hand = Hand::open(device.clone(), small());
                assert_eq!(hand.engine.phase(), Phase::Running);
                assert_eq!(hand.read(7), Some(Ok(3)));
                device = hand.device.clone();
                device.flush_all();
            }
        }
    }
}

#[test]
fn records_of_addresses_behind_the_volume_are_refused() {
    let (device, superblock) = shut_down();
    let header = next_record(&device, &superblock);
    let size = superblock.geometry.volume_size;
    let discard = |key, count| Extent { key, count, kind: Kind::Discard, relocated: false };
    for extent in [
        data(size, 1),
        data(size - 1, 2),
        data(1 << 40, 1),
        data((1 << 63) - 1, 1),
        discard(size, 1),
        discard(size - 1, 2),
        discard(1 << 50, 65_535),
    ] {
        let mut device = device.clone();
        write_record(&mut device, &superblock, &header, extent);
        assert_refused(&device, Structure::RecordHeader, "key");
    }
    let mut device = device.clone();
    write_record(&mut device, &superblock, &header, data(size - 1, 1));
    let mut hand = Hand::open(device, small());
    assert_eq!(hand.read(size - 1), Some(Ok(9)));
}

#[test]
fn map_pages_and_runs_of_addresses_behind_the_volume_are_refused() {
    let (device, superblock) = shut_down();
    let lists = Lists::of(&body(&device, &superblock));
    let size = superblock.geometry.volume_size;
    let mut root = device.clone();
    change_body(&mut root, &superblock, |body| put(body, lists.roots, &1u64.to_le_bytes()));
    assert_refused(&root, Structure::Checkpoint, "root");

    let mut run = device.clone();
    let body = body(&device, &superblock);
    let first = BodyView::decode(&body).expect("intact").runs().next();
    let key = first.expect("there is one").0.number << 20;
    for base in [size.next_multiple_of(512), 1 << 40, (1 << 63) - (1 << 20)] {
        change_page(&mut run, &superblock, (Kind::Run, key), lists.runs + 32, |block| {
            put(block, 8, &base.to_le_bytes())
        });
        assert_refused(&run, Structure::Run, "lba");
    }
}
