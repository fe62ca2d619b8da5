//! For every structure: what is encoded is decoded unchanged, damage is found, and no bytes at all
//! make a decoder panic or loop.
//!
//! Method: random values through encoder and decoder; random bytes, also with the checksums and
//! magic numbers made right, through the decoders. `make fuzz` does the latter for longer.

use coulter_format::address::LBA_LIMIT;
use coulter_format::checkpoint::{
    BodyView, BodyWriter, CheckpointHeader, Counts, Head, Reference, RunHeader, SweepPosition,
};
use coulter_format::checksum::{self, Kind, crc32c};
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::places::Places;
use coulter_format::record::{
    BODY_SIZE, BlockWord, Cost, Entry, Extent, HeaderRoom, PACKED_KEY_LIMIT, RecordHeader,
    RecordView, SCATTERED_BODY_SIZE,
};
use coulter_format::run::{RunBlockWriter, RunEntry};
use coulter_format::segment_table::{CoarseAge, SEGMENTS_PER_PAGE, SegmentEntry, SegmentState};
use coulter_format::superblock::{
    CheckpointLocation, Geometry, LABEL_SIZE, LISTED_ROOT_LIMIT_MAX, ROOT_LIMIT_MAX,
    RecoveryBudget, Superblock,
};
use coulter_format::{
    BLOCK_SIZE, Block, BlockPointer, Lba, NUMBER_LIMIT, Pba, StoreId, map_page, record, root_list,
    run, segment_table,
};
use coulter_workload::Random;
use proptest::collection::vec;
use proptest::prelude::*;

const STORE: StoreId = StoreId { uuid: [7; 16], salt: 0x1234_5678 };

fn pointer() -> impl Strategy<Value = BlockPointer> {
    (any::<u32>(), any::<u32>())
        .prop_map(|(pba, checksum)| BlockPointer { pba: Pba(pba), checksum })
}

fn store_id() -> impl Strategy<Value = StoreId> {
    (any::<[u8; 16]>(), any::<u32>()).prop_map(|(uuid, salt)| StoreId { uuid, salt })
}

fn block() -> impl Strategy<Value = Box<Block>> {
    (any::<u64>(), vec((0..BLOCK_SIZE, any::<u8>()), 0..600)).prop_map(|(seed, bytes)| {
        let mut block = Box::new([0; BLOCK_SIZE]);
        if seed & 1 == 1 {
            Random::new(seed).fill(&mut block[..]);
        }
        bytes.into_iter().for_each(|(at, byte)| block[at] = byte);
        block
    })
}

fn superblock() -> impl Strategy<Value = Superblock> {
    let sizes = (8u32..=18, 2u32..1000, 0u64..1_000_000, any::<prop::sample::Index>());
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>(), any::<bool>());
    let budget = (0..=1u64 << 40, 1024u32..=1 << 20, 2u32..=4096);
    (store_id(), sizes, numbers, budget, any::<[[u8; 32]; 2]>()).prop_map(
        |(store, sizes, numbers, budget, label)| {
            let (shift, segment_count, extra, volume) = sizes;
            let (generation, epoch, sequence, checksum, clean) = numbers;
            // These are below 2^62.
            let [generation, epoch, sequence]: [u64; 3] =
                [generation, epoch, sequence].map(|number: u64| number >> 2);
            let segment_blocks = 1 << shift;
            let log = u64::from(segment_blocks) * u64::from(segment_count);
            let capacity = 1 + volume.index(log as usize - 1) as u64;
            let root_lists = extra % 8 == 7;
            let most = if root_lists { LISTED_ROOT_LIMIT_MAX } else { ROOT_LIMIT_MAX };
            let root_limit = if extra % 2 == 0 { 0 } else { 1 + extra as u32 % most };
            Superblock {
                store,
                generation,
                geometry: Geometry {
                    device_size: u64::from(segment_blocks) + log + extra,
                    volume_size: if root_limit == 0 { capacity } else { capacity + (extra << 30) },
                    capacity,
                    root_limit,
                    root_lists,
                    segment_blocks,
                    segment_count,
                    first_segment: Pba(segment_blocks),
                    second_superblock: Pba(segment_blocks / 2),
                    third_superblock: Pba(if clean { segment_blocks - 1 } else { 0 }),
                    page_blocks: 1,
                },
                budget: RecoveryBudget {
                    map_size: budget.0,
                    journal_size: budget.1,
                    run_count_limit: budget.2,
                },
                epoch,
                durable_sequence: sequence.wrapping_add(u64::from(checksum)),
                epoch_max: epoch / 2,
                checkpoint: CheckpointLocation {
                    sequence,
                    pba: Pba(segment_blocks + 1),
                    size: 64 + (checksum & 0xffff),
                    checksum,
                    copy: Pba(if extra % 2 == 0 { 1 } else { 0 }),
                },
                clean,
                patched: clean ^ (extra % 2 == 0),
                long_records: extra % 3 == 0,
                may_have_lost: extra % 5 < 2,
                label: label.concat().try_into().expect("two halves make a label"),
            }
        },
    )
}

const _: () = assert!(LABEL_SIZE == 64, "the strategy makes labels of two halves");

fn extent() -> impl Strategy<Value = Extent> {
    let kind = (1u8..=13).prop_map(|code| Kind::from_code(code).expect("codes 1 to 13 are kinds"));
    (0..LBA_LIMIT - 70_000, 1u16..40, kind, any::<bool>()).prop_map(
        |(key, count, kind, relocated)| {
            let relocated = relocated && kind.has_payload();
            Extent { key, count, kind, relocated }
        },
    )
}

/// A header's parts that fit into a block.
fn record_parts() -> impl Strategy<Value = (RecordHeader, Vec<Extent>, Vec<BlockWord>)> {
    let header = (any::<u8>(), any::<[u64; 4]>(), any::<u32>());
    let words = vec((any::<u32>(), any::<u32>()), 2000);
    (header, vec(extent(), 0..60), words).prop_map(
        |((stream, numbers, pba), mut extents, words)| {
            let (mut cost, mut payload) = (0, 0);
            extents.retain(|extent| {
                let blocks = if extent.kind.has_payload() { usize::from(extent.count) } else { 0 };
                let fits = cost + extent.cost() <= SCATTERED_BODY_SIZE && payload + blocks <= 256;
                if fits {
                    (cost, payload) = (cost + extent.cost(), payload + blocks);
                }
                fits
            });
            let mut words = words.into_iter();
            let mut named = Vec::new();
            for extent in extents.iter().filter(|extent| extent.kind != Kind::Discard) {
                for (checksum, address) in words.by_ref().take(extent.count.into()) {
                    let address = if extent.block_cost() == 8 { Pba(address) } else { Pba(0) };
                    named.push(BlockWord { checksum, address });
                }
            }
            let [epoch, sequence, durable_sequence, generation] =
                numbers.map(|number: u64| number % NUMBER_LIMIT);
            let (pba, payload_size) = (Pba(pba), payload as u16);
            let mut places = Places::default();
            let step = 256 / payload.max(1) as u32;
            (0..payload as u32).for_each(|index| places.insert(index * step));
            let header = RecordHeader {
                stream,
                epoch,
                sequence,
                durable_sequence,
                generation,
                cut: durable_sequence / 2,
                pba,
                payload_size,
                scattered: (sequence % 2 == 0).then_some(places),
                goes_on: sequence % 3 == 0,
                page_bits: 0,
            };
            (header, extents, named)
        },
    )
}

/// Blocks of host data, with what their header says of each: single ones and short rows, all relocated or
/// none. As many as a header holds, in whichever form.
fn data_parts() -> impl Strategy<Value = (Vec<Extent>, Vec<BlockWord>)> {
    let keys = vec((0..PACKED_KEY_LIMIT - 4, 1u16..=3), 1..450);
    let words = vec((any::<u32>(), any::<u32>()), 1400);
    (keys, words, any::<bool>(), 1u16..=3).prop_map(|(keys, words, relocated, longest)| {
        let mut cost = Cost::default();
        let mut extents = Vec::new();
        for (key, count) in keys {
            let count = count.min(longest);
            let extent = Extent { key, count, kind: Kind::Data, relocated };
            if cost.with(&extent).fits(HeaderRoom::Long) {
                cost = cost.with(&extent);
                extents.push(extent);
            }
        }
        let blocks = extents.iter().map(Extent::payload_blocks).sum();
        let word = |(checksum, address): (u32, u32)| BlockWord {
            checksum,
            address: if relocated { Pba(address) } else { Pba::NOWHERE },
        };
        (extents, words.into_iter().take(blocks).map(word).collect())
    })
}

/// The header of a record in a row.
fn row_header(payload: usize) -> RecordHeader {
    RecordHeader {
        stream: 0,
        epoch: 1,
        sequence: 2,
        durable_sequence: 1,
        generation: 2,
        cut: 0,
        pba: Pba(9000),
        payload_size: payload as u16,
        scattered: None,
        goes_on: false,
        page_bits: 0,
    }
}

fn run_entries() -> impl Strategy<Value = (u64, Vec<RunEntry>)> {
    let entry = (0u64..5000, pointer(), any::<bool>(), 1u32..=512);
    (0..LBA_LIMIT - (1 << 32), vec(entry, 1..400)).prop_map(|(base, steps)| {
        let mut lba = base;
        let entries = steps.into_iter().map(|(step, pointer, released, count)| {
            lba += step;
            let room = ENTRIES_PER_PAGE as u32 - (lba % ENTRIES_PER_PAGE as u64) as u32;
            let (count, pointer) = match pointer.is_mapped() && count % 3 > 0 {
                true => (1, pointer),
                false => (count.min(room), BlockPointer::NOWHERE),
            };
            RunEntry { lba: Lba(lba), count, pointer, released }
        });
        (base, entries.collect())
    })
}

/// The lists of a body.
#[derive(Clone, Debug)]
struct Lists {
    header: CheckpointHeader,
    heads: Vec<Option<Head>>,
    reserved: Vec<u32>,
    roots: Vec<(u64, BlockPointer)>,
    table: Vec<BlockPointer>,
    runs: Vec<(RunHeader, Vec<BlockPointer>)>,
    references: Vec<Reference>,
    copies: bool,
    root_lists: bool,
}

/// Places for the second copies of all that is listed.
fn copies_of(lists: &Lists) -> Vec<Pba> {
    let blocks: usize = lists.runs.iter().map(|(_, blocks)| blocks.len()).sum();
    (0..lists.roots.len() + lists.table.len() + blocks).map(|i| Pba(7 * i as u32)).collect()
}

/// A parity block for three references at a time; of every seventh there is none.
fn groups_of(lists: &Lists) -> Vec<Option<usize>> {
    let groups = (0..lists.references.len()).map(|i| (i % 7 != 6).then_some(i / 3));
    if lists.copies { groups.collect() } else { Vec::new() }
}

fn parities_of(lists: &Lists) -> Vec<BlockPointer> {
    let count = if lists.copies { lists.references.len().div_ceil(3) } else { 0 };
    (0..count as u32).map(|i| BlockPointer { pba: Pba(9 * i + 5), checksum: i }).collect()
}

fn lists() -> impl Strategy<Value = Lists> {
    let head = prop::option::of((0..u32::MAX, any::<u32>()))
        .prop_map(|head| head.map(|(segment, offset)| Head { segment, offset }));
    let roots = prop::collection::btree_map(any::<u64>(), pointer(), 0..20);
    let run = (any::<[u64; 2]>(), vec(pointer(), 0..9));
    let runs = prop::collection::btree_map(any::<u64>(), run, 0..9);
    let lists = (vec(head, 0..=16), vec(any::<u32>(), 0..20), roots, vec(pointer(), 0..9), runs);
    let references = vec((pointer(), any::<u64>(), any::<[u16; 2]>()), 0..20);
    let all = (any::<[u64; 5]>(), lists, references);
    all.prop_map(|(numbers, (heads, reserved, roots, table, runs), references)| {
        let [sequence, write_clock, cycle, leaf, next_run] = numbers;
        let sweep = SweepPosition { cycle, leaf };
        let runs = runs.into_iter().map(|(number, ([cycle, leaf], blocks))| {
            let block_count = blocks.len() as u32;
            (RunHeader { number, sweep: SweepPosition { cycle, leaf }, block_count }, blocks)
        });
        let reference = |(header, leaf, [cycles, runs]): (BlockPointer, _, [u16; 2])| Reference {
            pba: header.pba,
            checksum: header.checksum,
            sweep: SweepPosition { cycle: cycle.saturating_sub(cycles.into()), leaf },
            run: next_run.saturating_sub(runs.into()),
        };
        let mut references: Vec<_> = references.into_iter().map(reference).collect();
        references.sort_by_key(|reference| reference.run);
        Lists {
            references,
            copies: sequence % 2 == 1,
            root_lists: sequence % 4 == 3,
            header: CheckpointHeader { sequence, write_clock, sweep, next_run },
            heads,
            reserved: reserved.into_iter().map(|segment| segment >> 1).collect(),
            roots: roots.into_iter().collect(),
            table,
            runs: runs.collect(),
        }
    })
}

fn encode_lists(lists: &Lists) -> Vec<u8> {
    let mut bytes = vec![0xaa; 1 << 16];
    let counts = Counts {
        streams: lists.heads.len() as u16,
        reserved: lists.reserved.len() as u32,
        roots: lists.roots.len() as u32,
        table: lists.table.len() as u32,
        runs: lists.runs.len() as u32,
        references: lists.references.len() as u32,
        parities: parities_of(lists).len() as u32,
        copies: lists.copies,
        root_lists: lists.root_lists,
    };
    let mut writer = BodyWriter::new(&lists.header, &counts, &mut bytes);
    lists.heads.iter().for_each(|head| writer.head(*head));
    lists.reserved.iter().for_each(|segment| writer.reserved(*segment));
    for (key, pointer) in &lists.roots {
        if lists.root_lists {
            writer.pointer(*pointer);
        } else {
            writer.root(*key, *pointer);
        }
    }
    lists.table.iter().for_each(|pointer| writer.pointer(*pointer));
    for (run, blocks) in &lists.runs {
        writer.run(run);
        blocks.iter().for_each(|pointer| writer.pointer(*pointer));
    }
    lists.references.iter().for_each(|reference| writer.reference(reference));
    if lists.copies {
        copies_of(lists).into_iter().for_each(|pba| writer.copy(pba));
        groups_of(lists).into_iter().for_each(|parity| writer.group(parity));
        parities_of(lists).into_iter().for_each(|pointer| writer.pointer(pointer));
    }
    let size = writer.finish().expect("the lists fit into 64 KiB");
    bytes.truncate(size);
    bytes
}

/// Makes a checksum field at bytes 12..16 right, as a hostile writer would.
fn seal(block: &mut Block, salt: u32) {
    block[12..16].copy_from_slice(&salt.to_le_bytes());
    let sum = crc32c(block);
    block[12..16].copy_from_slice(&sum.to_le_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_superblock_comes_back(superblock in superblock(), filler in any::<u8>()) {
        let mut block = [filler; BLOCK_SIZE];
        superblock.encode(&mut block);
        prop_assert_eq!(Superblock::decode(&block), Ok(superblock));
    }

    #[test]
    fn a_damaged_superblock_is_found(
        superblock in superblock(), at in 0..BLOCK_SIZE, change in 1u8..
    ) {
        let mut block = [0; BLOCK_SIZE];
        superblock.encode(&mut block);
        block[at] ^= change;
        prop_assert!(Superblock::decode(&block).is_err());
    }

    #[test]
    fn any_sealed_superblock_is_consistent_or_refused(mut block in block()) {
        block[..8].copy_from_slice(b"COULTER\0");
        block[8..12].copy_from_slice(&1u32.to_le_bytes());
        block[44..48].fill(0);
        seal(&mut block, 0);
        if let Ok(superblock) = Superblock::decode(&block) {
            let geometry = superblock.geometry;
            let log = u64::from(geometry.segment_blocks) * u64::from(geometry.segment_count);
            prop_assert!(u64::from(geometry.first_segment.0) + log <= geometry.device_size);
        }
    }

    #[test]
    fn a_record_comes_back(parts in record_parts(), store in store_id()) {
        let (header, extents, words) = parts;
        let mut block = [0x55; BLOCK_SIZE];
        prop_assert_eq!(record::encode(&header, &store, &extents, &words, &mut block), Ok(()));
        let view = RecordView::decode(&block, &store, header.pba).unwrap();
        prop_assert_eq!(view.header(), header);
        prop_assert_eq!(&view.extents().collect::<Vec<_>>(), &extents);
        let entries: Vec<_> = view.entries().collect();
        let found: Vec<_> =
            entries.iter().filter(|e| e.kind != Kind::Discard).map(|e| e.word).collect();
        prop_assert_eq!(found, words);
        let inline = entries.iter().filter(|entry| entry.kind.has_payload());
        for (offset, entry) in inline.enumerate() {
            let place = match header.scattered {
                Some(places) => places.iter().nth(offset).unwrap(),
                None => offset as u32,
            };
            prop_assert_eq!(entry.pba, header.pba.plus(1 + place));
            prop_assert!(place + 1 < header.span());
        }
        let blocks: u64 = entries.iter().map(|entry| u64::from(entry.count)).sum();
        prop_assert_eq!(blocks, extents.iter().map(|extent| u64::from(extent.count)).sum::<u64>());
    }

    #[test]
    fn a_record_whose_parts_disagree_is_not_written(parts in record_parts(), store in store_id()) {
        let (header, extents, mut words) = parts;
        let mut block = [0; BLOCK_SIZE];
        let other = RecordHeader { payload_size: header.payload_size ^ 1, ..header };
        prop_assert!(record::encode(&other, &store, &extents, &words, &mut block).is_err());
        words.push(BlockWord::default());
        prop_assert!(record::encode(&header, &store, &extents, &words, &mut block).is_err());
    }

    #[test]
    fn blocks_of_host_data_come_back_in_either_form(
        parts in data_parts(), store in store_id()
    ) {
        let (extents, words) = parts;
        let header = row_header(words.len());
        let mut block = [0x55; BLOCK_SIZE];
        prop_assert_eq!(record::encode(&header, &store, &extents, &words, &mut block), Ok(()));
        let view = RecordView::decode(&block, &store, header.pba).unwrap();
        prop_assert_eq!(view.header(), header);
        let extents_cost: usize = extents.iter().map(Extent::cost).sum();
        prop_assert_eq!(view.is_packed(), extents_cost > BODY_SIZE);
        let blocks = extents.iter().flat_map(|extent| {
            (0..u64::from(extent.count)).map(|offset| (extent.key + offset, extent.relocated))
        });
        let (first, mut count) = (header.pba.plus(1), 0);
        for (index, ((key, relocated), entry)) in blocks.zip(view.entries()).enumerate() {
            let (word, pba) = (words[index], first.plus(index as u32));
            let expected = Entry { key, kind: Kind::Data, relocated, count: 1, word, pba };
            prop_assert_eq!(entry, expected);
            count += 1;
        }
        prop_assert_eq!((count, view.entries().count()), (words.len(), words.len()));
    }

    #[test]
    fn what_fits_is_written_and_what_does_not_is_not(
        extents in vec(extent(), 0..80), singles in vec(0..PACKED_KEY_LIMIT, 0..460)
    ) {
        let single = |key| Extent { key, count: 1, kind: Kind::Data, relocated: false };
        let mixed: Vec<_> = extents.iter().copied().chain(singles.into_iter().map(single)).collect();
        for extents in [&mixed[..], &mixed[extents.len()..]] {
            let cost = extents.iter().fold(Cost::default(), Cost::with);
            let payload = extents.iter().map(Extent::payload_blocks).sum();
            let named = extents.iter().filter(|extent| extent.kind != Kind::Discard);
            let word_count = named.map(|extent| usize::from(extent.count)).sum();
            let words = vec![BlockWord::default(); word_count];
            let mut block = [0; BLOCK_SIZE];
            let written =
                record::encode(&row_header(payload), &STORE, extents, &words, &mut block);
            prop_assert_eq!(written.is_ok(), cost.fits(HeaderRoom::Long));
            let is_short = written.is_ok()
                && !RecordView::decode(&block, &STORE, Pba(9000)).unwrap().is_long();
            prop_assert_eq!(is_short, cost.fits(HeaderRoom::Short));
        }
    }

    /// What a header tells of the record before is enough to rebuild that one's header, with the payload whole alone.
    #[test]
    fn a_header_is_rebuilt_from_the_next_one(
        parts in data_parts(), next in data_parts(), seed in any::<u8>(), goes_on in any::<bool>()
    ) {
        let (extents, mut words) = parts;
        let content = |index: usize| [seed.wrapping_add(index as u8); BLOCK_SIZE];
        let keys = extents.iter().flat_map(|e| e.key..e.key + u64::from(e.count));
        for (index, (key, word)) in keys.zip(&mut words).enumerate() {
            word.checksum = checksum::block(Kind::Data, key, &content(index));
        }
        let mut payload: Vec<Block> = (0..words.len()).map(content).collect();
        let header = RecordHeader { goes_on, cut: 1, ..row_header(payload.len()) };
        let (mut first, mut echo) = ([0; BLOCK_SIZE], [0; BLOCK_SIZE]);
        record::encode(&header, &STORE, &extents, &words, &mut first).unwrap();
        let size = record::echo_of(&first, &mut echo);
        // The first has an echo itself, if there is room; that is not told of.
        let alone = first;
        record::put_echo(&mut first, &STORE, &[7; 40]);
        prop_assert!(RecordView::decode(&first, &STORE, Pba(9000)).is_ok());

        let (extents, words) = next;
        let after = RecordHeader { pba: Pba(20_000), sequence: 3, ..row_header(words.len()) };
        let mut second = [0; BLOCK_SIZE];
        record::encode(&after, &STORE, &extents, &words, &mut second).unwrap();
        let entries: Vec<_> = {
            let view = RecordView::decode(&second, &STORE, Pba(20_000)).unwrap();
            prop_assert!(view.echo().is_none());
            view.entries().collect()
        };
        record::put_echo(&mut second, &STORE, &echo[..size]);
        let view = RecordView::decode(&second, &STORE, Pba(20_000)).unwrap();
        prop_assert_eq!(view.entries().collect::<Vec<_>>(), entries);
        if let Some(told) = view.echo() {
            prop_assert_eq!((told.pba(), told.sequence()), (Pba(9000), 2));
            prop_assert_eq!(usize::from(told.payload_size()), payload.len());
            let mut rebuilt = [0; BLOCK_SIZE];
            prop_assert!(told.rebuild(&STORE, &payload, &mut rebuilt));
            prop_assert_eq!(&rebuilt[..], &alone[..]);
            let index = usize::from(seed) % payload.len();
            payload[index][9] ^= 1;
            prop_assert!(!told.rebuild(&STORE, &payload, &mut rebuilt));
            payload.pop();
            prop_assert!(!told.rebuild(&STORE, &payload, &mut rebuilt));
        }
    }

    #[test]
    fn any_sealed_packed_header_is_consistent_or_refused(
        mut block in block(), store in store_id(), flags in 0u8..16, page_bits in 0u8..16,
        payload in 0u16..500,
        off in 0u16..20
    ) {
        block[..8].copy_from_slice(b"CRECORD\0");
        block[8..10].copy_from_slice(&1u16.to_le_bytes());
        block[11] = flags | page_bits << 4;
        block[16..32].copy_from_slice(&store.uuid);
        [39, 47, 55, 71, 79].into_iter().for_each(|at| block[at] &= 0x3f);
        block[56..60].copy_from_slice(&77u32.to_le_bytes());
        block[60..62].copy_from_slice(&payload.to_le_bytes());
        let count = payload + off.saturating_sub(15);
        block[62..64].copy_from_slice(&count.to_le_bytes());
        // Of no echo, or of one that may be one byte too long.
        let room = 4000usize.saturating_sub(usize::from(count) * if flags & 8 == 0 { 9 } else { 13 });
        let echo = if off < 10 { 0 } else { room + usize::from(off == 14) };
        block[80..82].copy_from_slice(&(echo as u16).to_le_bytes());
        seal(&mut block, store.salt);
        let decoded = RecordView::decode(&block, &store, Pba(77));
        let most = if flags & 8 == 0 { 444 } else { 307 };
        if flags & 4 != 0 {
            let has_echo = echo == 0 || (40..=room).contains(&echo);
            let is_intact = flags & 2 == 0 && page_bits <= 6 && count == payload && count <= most && has_echo;
            prop_assert_eq!(decoded.is_ok(), is_intact);
        }
        if let Some(view) = decoded.ok().filter(RecordView::is_packed) {
            let entries: Vec<_> = view.entries().collect();
            prop_assert_eq!(entries.len(), usize::from(payload));
            prop_assert!(entries.iter().all(|entry| entry.key < PACKED_KEY_LIMIT));
            let relocated = flags & 8 != 0;
            prop_assert!(entries.iter().all(|entry| entry.relocated == relocated));
        }
    }

    #[test]
    fn any_sealed_record_header_is_consistent_or_refused(
        mut block in block(), store in store_id(), pba in any::<u32>(),
        extents in prop_oneof![0u16..8, 0u16..400]
    ) {
        block[..8].copy_from_slice(b"CRECORD\0");
        block[8..10].copy_from_slice(&1u16.to_le_bytes());
        // Extents, scattered or not: packed ones have a test of their own.
        block[11] &= 3;
        block[16..32].copy_from_slice(&store.uuid);
        block[56..60].copy_from_slice(&pba.to_le_bytes());
        block[62..64].copy_from_slice(&extents.to_le_bytes());
        // Known kinds, small counts and a payload that adds up, so that many pass the first tests.
        let mut payload = 0u16;
        for extent in block[96..].chunks_exact_mut(12).take(extents.into()) {
            (extent[7], extent[9]) = (extent[7] & 0x7f, 0);
            extent[10] = 1 + extent[10] % 7;
            let inline = Kind::from_code(extent[10]).is_some_and(Kind::has_payload);
            extent[11] &= u8::from(inline);
            payload += if inline { u16::from(extent[8]) } else { 0 };
        }
        block[60..62].copy_from_slice(&payload.to_le_bytes());
        seal(&mut block, store.salt);
        if let Ok(view) = RecordView::decode(&block, &store, Pba(pba)) {
            let payload = view.entries().filter(|entry| entry.kind.has_payload()).count();
            prop_assert_eq!(payload, usize::from(view.header().payload_size));
            prop_assert!(view.entries().count() <= BLOCK_SIZE);
            let end = |e: coulter_format::record::Entry| e.key + u64::from(e.count);
            prop_assert!(view.entries().all(|entry| end(entry) <= LBA_LIMIT));
        }
    }

    #[test]
    fn a_map_page_comes_back(entries in vec(pointer(), 0..=ENTRIES_PER_PAGE)) {
        let mut page = [0xff; BLOCK_SIZE];
        map_page::encode(entries.iter().copied(), &mut page);
        let mut decoded: Vec<_> = map_page::decode(&page).collect();
        prop_assert_eq!(decoded.len(), ENTRIES_PER_PAGE);
        prop_assert!(decoded.split_off(entries.len()).iter().all(|e| *e == BlockPointer::NOWHERE));
        prop_assert_eq!(decoded, entries);
    }

    #[test]
    fn a_segment_table_page_comes_back(
        entries in vec(
            (any::<u32>(), 0usize..3, any::<u8>(), any::<u64>(), any::<u16>()),
            0..=SEGMENTS_PER_PAGE
        )
    ) {
        let states = [SegmentState::Free, SegmentState::Open, SegmentState::Closed];
        let entries = entries.into_iter().map(|(valid, state, stream, clock, age)| {
            let mean_age = CoarseAge::from_bits(age);
            SegmentEntry { valid, state: states[state], stream, clock, mean_age }
        });
        let mut page = [0xff; BLOCK_SIZE];
        segment_table::encode(entries.clone(), &mut page);
        let decoded: Vec<_> = segment_table::decode(&page).map(Result::unwrap).collect();
        prop_assert_eq!(decoded.len(), SEGMENTS_PER_PAGE);
        prop_assert!(entries.zip(decoded).all(|(entry, decoded)| entry == decoded));
    }

    #[test]
    fn any_page_is_decoded_to_its_end(block in block()) {
        prop_assert_eq!(map_page::decode(&block).count(), ENTRIES_PER_PAGE);
        prop_assert_eq!(segment_table::decode(&block).count(), SEGMENTS_PER_PAGE);
        prop_assert_eq!(root_list::decode(&block).count(), root_list::ROOTS_PER_PAGE);
    }

    #[test]
    fn a_run_comes_back_over_as_many_blocks_as_it_takes(entries in run_entries()) {
        let (base, entries) = entries;
        let mut decoded = Vec::new();
        let mut rest = entries.as_slice();
        let mut first = Lba(base);
        while !rest.is_empty() {
            let mut block = [0xff; BLOCK_SIZE];
            let mut writer = RunBlockWriter::new(first, &mut block);
            let pushed = rest.iter().take_while(|entry| writer.push(entry, &mut block)).count();
            prop_assert!(pushed > 0, "a new block takes an entry");
            writer.finish(&mut block);
            decoded.extend(run::decode(&block).unwrap());
            rest = &rest[pushed..];
            first = rest.first().map_or(first, |entry| entry.lba);
        }
        prop_assert_eq!(decoded, entries);
    }

    #[test]
    fn any_run_block_is_sorted_and_inside_or_refused(mut block in block(), count in 0u16..400) {
        block[..4].copy_from_slice(b"CRUN");
        block[4..6].copy_from_slice(&1u16.to_le_bytes());
        block[6..8].copy_from_slice(&count.to_le_bytes());
        block[15] &= 0x7f;
        if let Ok(entries) = run::decode(&block) {
            let entries: Vec<_> = entries.collect();
            prop_assert_eq!(entries.len(), usize::from(count));
            prop_assert!(entries.is_sorted_by_key(|entry| entry.lba));
            prop_assert!(entries.iter().all(|e| e.lba.0 + u64::from(e.count) <= LBA_LIMIT + 512));
        }
    }

    #[test]
    fn a_body_comes_back(lists in lists()) {
        let bytes = encode_lists(&lists);
        let view = BodyView::decode(&bytes).unwrap();
        let copies = if lists.copies { copies_of(&lists) } else { vec![] };
        let parities = parities_of(&lists);
        let parity = |group: Option<usize>| group.map_or(BlockPointer::NOWHERE, |i| parities[i]);
        let headers: Vec<_> = groups_of(&lists).into_iter().map(parity).collect();
        prop_assert_eq!(view.header(), lists.header);
        prop_assert_eq!(view.heads().collect::<Vec<_>>(), lists.heads);
        prop_assert_eq!(view.reserved().collect::<Vec<_>>(), lists.reserved);
        let pages: Vec<_> = lists.roots.iter().map(|(_, pointer)| *pointer).collect();
        let (roots, pages) = if lists.root_lists { (vec![], pages) } else { (lists.roots, vec![]) };
        prop_assert_eq!(view.roots().collect::<Vec<_>>(), roots);
        prop_assert_eq!(view.root_lists().collect::<Vec<_>>(), pages);
        prop_assert_eq!(view.table().collect::<Vec<_>>(), lists.table);
        let runs = view.runs().map(|(run, blocks)| (run, blocks.iter().collect::<Vec<_>>()));
        prop_assert_eq!(runs.collect::<Vec<_>>(), lists.runs);
        prop_assert_eq!(view.copies().collect::<Vec<_>>(), copies);
        prop_assert_eq!(view.header_parities().collect::<Vec<_>>(), headers);
        prop_assert_eq!(view.references().collect::<Vec<_>>(), lists.references);
    }

    #[test]
    fn a_changed_or_cut_body_never_panics(
        lists in lists(), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = encode_lists(&lists);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        if let Ok(view) = BodyView::decode(&bytes) {
            prop_assert_eq!(view.runs().count(), view.counts().runs as usize);
            let listed = view.roots().count() + view.root_lists().count();
            prop_assert_eq!(listed, view.counts().roots as usize);
        }
    }
}
