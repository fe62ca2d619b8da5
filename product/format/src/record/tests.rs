use super::*;
extern crate std;
use std::vec::Vec;

const STORE: StoreId = StoreId { uuid: [9; 16], salt: 1234 };

fn header(payload_size: u16) -> RecordHeader {
    RecordHeader {
        stream: 1,
        epoch: 4,
        sequence: 1000,
        durable_sequence: 990,
        generation: 12,
        cut: 985,
        pba: Pba(5000),
        payload_size,
        scattered: None,
        goes_on: payload_size % 2 == 1,
        page_bits: 0,
    }
}

fn example() -> ([Extent; 4], Vec<BlockWord>) {
    let extents = [
        Extent { key: 70, count: 2, kind: Kind::Data, relocated: false },
        Extent { key: 10, count: 300, kind: Kind::Discard, relocated: false },
        Extent { key: 5, count: 1, kind: Kind::Data, relocated: true },
        Extent { key: 6, count: 1, kind: Kind::Discard, relocated: false },
    ];
    let word = |i: u32, address| BlockWord { checksum: i, address: Pba(address) };
    (extents, [word(1, 0), word(2, 0), word(3, 777)].to_vec())
}

#[test]
fn entries_come_back_in_order_with_their_addresses() {
    let (extents, words) = example();
    let mut block = [0xff; BLOCK_SIZE];
    encode(&header(3), &STORE, &extents, &words, &mut block).unwrap();
    let view = RecordView::decode(&block, &STORE, Pba(5000)).unwrap();
    assert_eq!(view.header(), header(3));
    assert_eq!(view.extents().collect::<Vec<_>>(), extents);
    let places: Vec<_> = view.entries().map(|e| (e.key, e.pba.0, e.word.checksum)).collect();
    assert_eq!(places, [(70, 5001, 1), (71, 5002, 2), (10, 0, 0), (5, 5003, 3), (6, 0, 0)]);
    assert_eq!(view.entries().nth(3).unwrap().word.address, Pba(777));
}

fn scattered_header() -> RecordHeader {
    let mut places = Places::default();
    [2, 9, 255].iter().for_each(|place| places.insert(*place));
    RecordHeader { scattered: Some(places), ..header(3) }
}

#[test]
fn the_payload_of_a_scattered_record_lies_at_its_places() {
    let (extents, words) = example();
    let mut block = [0xff; BLOCK_SIZE];
    encode(&scattered_header(), &STORE, &extents, &words, &mut block).unwrap();
    let view = RecordView::decode(&block, &STORE, Pba(5000)).unwrap();
    assert_eq!(view.header(), scattered_header());
    assert_eq!((view.header().span(), header(3).span()), (257, 4));
    let places: Vec<_> = view.entries().map(|e| (e.key, e.pba.0, e.word.checksum)).collect();
    assert_eq!(places, [(70, 5003, 1), (71, 5010, 2), (10, 0, 0), (5, 5256, 3), (6, 0, 0)]);
    let two = RecordHeader { payload_size: 2, ..scattered_header() };
    assert_eq!(encode(&two, &STORE, &extents[..1], &words[..2], &mut block), Err(TooLarge));
}

#[test]
fn every_flipped_bit_is_found() {
    let (extents, words) = example();
    let mut block = [0; BLOCK_SIZE];
    encode(&scattered_header(), &STORE, &extents, &words, &mut block).unwrap();
    for bit in 0..BLOCK_SIZE * 8 {
        block[bit / 8] ^= 1 << (bit % 8);
        assert!(RecordView::decode(&block, &STORE, Pba(5000)).is_err(), "bit {bit}");
        block[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_header_is_refused_at_another_address_and_in_another_store() {
    let (extents, words) = example();
    let mut block = [0; BLOCK_SIZE];
    encode(&header(3), &STORE, &extents, &words, &mut block).unwrap();
    let reason = |store, pba| RecordView::decode(&block, store, pba).unwrap_err().reason;
    assert_eq!(reason(&STORE, Pba(5001)), Reason::Address);
    assert_eq!(reason(&StoreId { uuid: [8; 16], ..STORE }, Pba(5000)), Reason::Store);
    assert_eq!(reason(&StoreId { salt: 5, ..STORE }, Pba(5000)), Reason::Checksum);
}

/// Why a header is refused that somebody changed, and made its checksum match.
fn reason_of(header: &RecordHeader, change: impl FnOnce(&mut Block)) -> Option<Reason> {
    let (extents, words) = example();
    let mut block = [0; BLOCK_SIZE];
    encode(header, &STORE, &extents, &words, &mut block).unwrap();
    change(&mut block);
    let sum = checksum::sealed::<12>(&block, STORE.salt);
    put::<12, 4>(&mut block, sum.to_le_bytes());
    RecordView::decode(&block, &STORE, Pba(5000)).err().map(|corrupt| corrupt.reason)
}

#[test]
fn a_header_whose_parts_contradict_each_other_is_refused_by_the_name_of_one() {
    // Where extents begin, and the fields of one.
    const DATA: usize = EXTENTS_START;
    const DISCARD: usize = EXTENTS_START + EXTENT_SIZE;
    const COUNT: usize = 8;
    const KIND: usize = 10;
    const RELOCATED: usize = 11;
    type Change = fn(&mut Block);
    fn put_u16(block: &mut Block, at: usize, value: u16) {
        block[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    fn put_u64(block: &mut Block, at: usize, value: u64) {
        block[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    let end_at = |end: u64| move |block: &mut Block| put_u64(block, DISCARD, end - 300);
    assert_eq!(reason_of(&header(3), end_at(crate::address::LBA_LIMIT)), None);
    let too_far = reason_of(&header(3), end_at(crate::address::LBA_LIMIT + 1));
    assert_eq!(too_far, Some(Reason::Field("extent")));
    let wrong: [(&str, Change); 14] = [
        ("extent", |block| put_u16(block, DISCARD + COUNT, 0)),
        ("extent", |block| put_u64(block, DISCARD, u64::MAX)),
        ("kind", |block| block[DISCARD + KIND] = 14),
        ("kind", |block| block[DISCARD + RELOCATED] = 1),
        ("kind", |block| block[DATA + RELOCATED] = 2),
        ("payload_size", |block| put_u16(block, 60, 2)),
        ("payload_size", |block| put_u16(block, 60, 4)),
        ("payload_size", |block| {
            // One more than a record takes, and all of it listed.
            put_u16(block, DATA + COUNT, PAYLOAD_BLOCKS_MAX as u16);
            put_u16(block, 60, PAYLOAD_BLOCKS_MAX as u16 + 1);
        }),
        ("extent_count", |block| put_u16(block, 62, (BODY_SIZE / EXTENT_SIZE) as u16 + 1)),
        ("extent_count", |block| {
            // The extents have room, their words have none.
            put_u16(block, DATA + COUNT, 1000);
            put_u16(block, 60, 1001);
        }),
        ("epoch", |block| put_u64(block, 32, NUMBER_LIMIT)),
        ("sequence", |block| put_u64(block, 40, NUMBER_LIMIT)),
        ("durable_sequence", |block| put_u64(block, 48, NUMBER_LIMIT)),
        ("generation", |block| put_u64(block, 64, NUMBER_LIMIT)),
    ];
    for (case, (name, change)) in wrong.into_iter().enumerate() {
        assert_eq!(reason_of(&header(3), change), Some(Reason::Field(name)), "case {case}");
    }
    let version = reason_of(&header(3), |block| put_u16(block, 8, VERSION + 1));
    assert_eq!(version, Some(Reason::Version(u32::from(VERSION) + 1)));
    let one_place_less = reason_of(&scattered_header(), |block| block[PLACES_START] = 0);
    assert_eq!(one_place_less, Some(Reason::Field("places")));
}

/// Single blocks that are no neighbours, from a host address on.
fn singles(first: u64, count: usize, relocated: bool) -> Vec<Extent> {
    let keys = (0..count as u64).map(|index| first + 3 * index);
    keys.map(|key| Extent { key, count: 1, kind: Kind::Data, relocated }).collect()
}

fn words_of(extents: &[Extent]) -> Vec<BlockWord> {
    let blocks = extents.iter().filter(|extent| extent.kind != Kind::Discard);
    let blocks = blocks.flat_map(|extent| (0..extent.count).map(|_| extent.block_cost() == 8));
    let word = |(index, named): (u32, bool)| BlockWord {
        checksum: 0x8000_0000 | index,
        address: if named { Pba(70_000 + index) } else { Pba::NOWHERE },
    };
    (0..).zip(blocks).map(word).collect()
}

fn cost_of(extents: &[Extent]) -> Cost {
    extents.iter().fold(Cost::default(), Cost::with)
}

/// The header of such a record, or that there is none.
fn encoded(extents: &[Extent], scattered: Option<Places>) -> Result<Block, TooLarge> {
    let payload = extents.iter().map(Extent::payload_blocks).sum::<usize>();
    let header = RecordHeader { scattered, ..header(payload as u16) };
    let mut block = [0xff; BLOCK_SIZE];
    encode(&header, &STORE, extents, &words_of(extents), &mut block).map(|()| block)
}

fn is_packed(extents: &[Extent]) -> Option<bool> {
    let block = encoded(extents, None).ok()?;
    Some(RecordView::decode(&block, &STORE, Pba(5000)).unwrap().is_packed())
}

#[test]
fn single_blocks_are_packed_when_their_extents_do_not_fit() {
    for (relocated, as_extents, packed) in [(false, 250, 444), (true, 200, 307)] {
        let form = |count| is_packed(&singles(7, count, relocated));
        assert_eq!(form(as_extents), Some(false));
        assert_eq!((form(as_extents + 1), form(packed)), (Some(true), Some(true)));
        assert_eq!(form(packed + 1), None);
    }
    // Neighbours need no entry each until there are too many of others.
    let row = Extent { key: 1 << 20, count: 194, kind: Kind::Data, relocated: false };
    let with_row = |count| [&[row][..], &singles(0, count, false)].concat();
    assert_eq!((is_packed(&with_row(200)), is_packed(&with_row(201))), (Some(false), Some(true)));
    assert_eq!((is_packed(&with_row(250)), is_packed(&with_row(251))), (Some(true), None));
}

#[test]
fn a_row_may_be_as_long_as_packed_blocks_are_many() {
    let row = |count| [Extent { key: 1 << 50, count, kind: Kind::Leaf, relocated: false }];
    let long = encoded(&row(444), None).unwrap();
    let view = RecordView::decode(&long, &STORE, Pba(5000)).unwrap();
    assert!(view.is_long() && !view.is_packed());
    assert_eq!(view.header().span(), 445);
    let short = encoded(&row(256), None).unwrap();
    assert!(!RecordView::decode(&short, &STORE, Pba(5000)).unwrap().is_long());
    assert_eq!(encoded(&row(445), None), Err(TooLarge));
}

#[test]
fn what_a_packed_entry_cannot_say_is_not_packed() {
    let full = singles(0, 300, false);
    assert_eq!(is_packed(&full), Some(true));
    let unlike = [
        Extent { key: 5, count: 1, kind: Kind::Data, relocated: true },
        Extent { key: 5, count: 1, kind: Kind::Discard, relocated: false },
        Extent { key: 5, count: 1, kind: Kind::Leaf, relocated: false },
        Extent { key: PACKED_KEY_LIMIT, count: 1, kind: Kind::Data, relocated: false },
        Extent { key: PACKED_KEY_LIMIT - 1, count: 2, kind: Kind::Data, relocated: false },
    ];
    for extent in unlike {
        for place in [0, 150, 299] {
            let mut extents = full.clone();
            extents[place] = extent;
            assert_eq!(is_packed(&extents), None, "{extent:?}");
            assert!(!cost_of(&extents).fits(HeaderRoom::Long));
        }
    }
    let mut last = full;
    last[299].key = PACKED_KEY_LIMIT - 1;
    assert_eq!(is_packed(&last), Some(true));
}

#[test]
fn a_scattered_record_is_never_packed() {
    let mut places = Places::default();
    (0..251).for_each(|place| places.insert(place));
    assert!(encoded(&singles(0, 250, false), Some(places.first(250))).is_err());
    assert!(encoded(&singles(0, 248, false), Some(places.first(248))).is_ok());
}

#[test]
fn packed_entries_are_those_that_extents_would_be() {
    for relocated in [false, true] {
        let count = if relocated { PACKED_RELOCATED_MAX } else { PAYLOAD_BLOCKS_MAX };
        let extents = singles(0x12_3456_789a, count, relocated);
        let words = words_of(&extents);
        let block = encoded(&extents, None).unwrap();
        let view = RecordView::decode(&block, &STORE, Pba(5000)).unwrap();
        assert!(view.is_packed() && view.is_long());
        assert_eq!(view.extents().collect::<Vec<_>>(), extents);
        let entries: Vec<_> = view.entries().collect();
        // In rows of a hundred, of which the extents fit.
        let mut index = 0;
        for (extents, words) in extents.chunks(100).zip(words.chunks(100)) {
            let mut block = [0; BLOCK_SIZE];
            let header = header(extents.len() as u16);
            encode(&header, &STORE, extents, words, &mut block).unwrap();
            let view = RecordView::decode(&block, &STORE, Pba(5000)).unwrap();
            assert!(!view.is_packed());
            for mut entry in view.entries() {
                entry.pba = entry.pba.plus(index as u32 / 100 * 100);
                assert_eq!(entries[index], entry, "{index}");
                index += 1;
            }
        }
        assert_eq!(index, entries.len());
    }
}

#[test]
fn every_flipped_bit_of_a_packed_header_is_found() {
    for relocated in [false, true] {
        let mut block = encoded(&singles(3, 300, relocated), None).unwrap();
        for bit in 0..BLOCK_SIZE * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(RecordView::decode(&block, &STORE, Pba(5000)).is_err(), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// Why a packed header of 300 blocks is refused that somebody changed, and made its checksum match.
fn reason_of_packed(relocated: bool, change: impl FnOnce(&mut Block)) -> Option<Reason> {
    let mut block = encoded(&singles(3, 300, relocated), None).unwrap();
    change(&mut block);
    let sum = checksum::sealed::<12>(&block, STORE.salt);
    put::<12, 4>(&mut block, sum.to_le_bytes());
    RecordView::decode(&block, &STORE, Pba(5000)).err().map(|corrupt| corrupt.reason)
}

fn put_counts(block: &mut Block, payload_size: u16, extent_count: u16) {
    put::<60, 2>(block, payload_size.to_le_bytes());
    put::<62, 2>(block, extent_count.to_le_bytes());
}

#[test]
fn a_packed_header_that_contradicts_itself_is_refused() {
    type Change = fn(&mut Block);
    let wrong: [(&str, bool, Change); 10] = [
        ("flags", false, |block| block[11] |= FLAG_SCATTERED),
        ("flags", true, |block| block[11] &= !FLAG_PACKED),
        ("flags", false, |block| block[11] |= 0x70),
        ("flags", false, |block| block[11] |= 0x80),
        ("payload_size", false, |block| put_counts(block, 299, 300)),
        ("payload_size", false, |block| put_counts(block, 301, 300)),
        ("payload_size", false, |block| put_counts(block, 300, 299)),
        ("extent_count", false, |block| put_counts(block, 445, 445)),
        ("extent_count", true, |block| put_counts(block, 308, 308)),
        // Entries of nine bytes for which there is no room with four more each.
        ("extent_count", false, |block| {
            block[11] |= FLAG_RELOCATED;
            put_counts(block, 400, 400);
        }),
    ];
    for (case, (name, relocated, change)) in wrong.into_iter().enumerate() {
        let reason = reason_of_packed(relocated, change);
        assert_eq!(reason, Some(Reason::Field(name)), "case {case}");
    }
    assert_eq!(reason_of_packed(false, |block| put_counts(block, 444, 444)), None);
    assert_eq!(reason_of_packed(true, |block| put_counts(block, 307, 307)), None);
    // What no extent says is not refused for what it could not be as one.
    assert_eq!(reason_of_packed(false, |block| block[96..].fill(0xff)), None);
}

#[test]
fn flags_that_nobody_knows_are_refused() {
    for bit in [2, 3, 7] {
        let reason = reason_of(&header(3), |block| block[11] |= 1 << bit);
        // As packed entries the example's extents are too few for its payload.
        let name = if bit == 2 { "payload_size" } else { "flags" };
        assert_eq!(reason, Some(Reason::Field(name)), "bit {bit}");
    }
}

#[test]
fn a_record_ends_where_the_page_of_its_last_block_does() {
    for (page_bits, payload_size, span) in
        [(0, 3, 4), (2, 3, 4), (2, 4, 8), (6, 1, 64), (6, 64, 128)]
    {
        let header = RecordHeader { page_bits, ..header(payload_size) };
        let extents = singles(0, payload_size.into(), false);
        let mut block = [0; BLOCK_SIZE];
        encode(&header, &STORE, &extents, &words_of(&extents), &mut block).unwrap();
        let view = RecordView::decode(&block, &STORE, header.pba).unwrap();
        assert_eq!((view.header(), view.header().span()), (header, span));
    }
    let scattered = RecordHeader { page_bits: 3, ..scattered_header() };
    let places = scattered_header().span();
    assert_eq!(scattered.span(), places.next_multiple_of(8));
    let reason = reason_of(&header(3), |block| block[11] |= 7 << 4);
    assert_eq!(reason, Some(Reason::Field("flags")), "no page is that large");
}

#[test]
fn words_that_do_not_match_the_blocks_are_refused_in_both_forms() {
    for count in [2, 300] {
        let extents = singles(0, count, false);
        let (mut words, header) = (words_of(&extents), header(count as u16));
        let mut block = [0; BLOCK_SIZE];
        words.push(BlockWord::default());
        assert_eq!(encode(&header, &STORE, &extents, &words, &mut block), Err(TooLarge));
        words.truncate(count - 1);
        assert_eq!(encode(&header, &STORE, &extents, &words, &mut block), Err(TooLarge));
    }
}

#[test]
fn random_bytes_behind_a_valid_checksum_never_panic() {
    let mut state = 88172645463325252u64;
    for _ in 0..2000 {
        let mut block = [0u8; BLOCK_SIZE];
        for byte in &mut block[60..] {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state as u8;
        }
        block[62] &= 0x7f;
        block[63] = 0;
        // The generation is one that can be.
        block[71] &= 0x3f;
        block[11] = state as u8 & 0xf;
        put::<0, 8>(&mut block, MAGIC);
        put::<8, 2>(&mut block, VERSION.to_le_bytes());
        put::<16, 16>(&mut block, STORE.uuid);
        put::<56, 4>(&mut block, 1u32.to_le_bytes());
        let sum = checksum::sealed::<12>(&block, STORE.salt);
        put::<12, 4>(&mut block, sum.to_le_bytes());
        if let Ok(view) = RecordView::decode(&block, &STORE, Pba(1)) {
            assert!(view.entries().count() <= BLOCK_SIZE);
            assert!(view.extents().count() <= BLOCK_SIZE);
        }
    }
}

#[test]
fn a_header_with_an_echo_is_sealed_anew() {
    let (extents, words) = example();
    for header in [header(3), scattered_header()] {
        for size in [FIXED_ECHO, FIXED_ECHO + 12, 1000, 3000] {
            let mut block = [0xff; BLOCK_SIZE];
            encode(&header, &STORE, &extents, &words, &mut block).unwrap();
            let before = block;
            let echo: Vec<u8> = (0..size).map(|index| (index * 31 % 255) as u8 + 1).collect();
            put_echo(&mut block, &STORE, &echo);
            assert_ne!(block, before, "it has room");
            assert_eq!(header_checksum(&block), checksum::sealed::<12>(&block, STORE.salt));
            let view = RecordView::decode(&block, &STORE, Pba(5000)).unwrap();
            assert!(view.echo().is_some_and(|echo| echo.sequence() == 999));
        }
    }
}

/// Bytes of an echo without extents.
const FIXED_ECHO: usize = 40;
