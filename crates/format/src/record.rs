//! Records: one atomic append each.
//!
//! Several records of host data, one to each of several streams, may be a *group*: all count or none
//! does. All but the last of a group say that it goes on; their sequences follow one another
//! without a gap.
//!
//! A record is a header block, followed by its payload blocks. The header lists extents in the
//! order in which they take effect, and a checksum for every block.
//!
//! ```text
//! offset size field
//!      0    8 magic "CRECORD\0"
//!      8    2 version
//!     10    1 stream
//!     11    1 flags             bit 0: the record of the next sequence belongs to the same group
//!                               bit 1: scattered, see below
//!     12    4 checksum          CRC-32C of the header block, this field taken as the store's salt
//!     16   16 uuid
//!     32    8 epoch
//!     40    8 sequence
//!     48    8 durable_sequence  every record up to this one was durable when this was written
//!     56    4 pba               of this header
//!     60    2 payload_size      blocks that follow
//!     62    2 extent_count
//!     64    8 generation        of the superblock that was durable when this was written
//!     72   24 zero
//!     96   12 extent            × extent_count
//!      …      block word(s)     for every block of every extent, in order
//!
//! extent: 0  8 key         host address, or a metadata key (see checksum::Kind)
//!         8  2 count       blocks
//!        10  1 kind        checksum::Kind
//!        11  1 relocated   1: moved by the cleaner; applies only while the source is current
//!
//! block:  0  4 checksum    none for a discard
//!         4  4 address     only if relocated (where it was) or remote (where it is)
//! ```
//!
//! A *scattered* record lies in the holes of a segment. Its payload is where [`Places`] say, a bit
//! for each of the 256 blocks behind the header: the last 32 bytes of the header block, which
//! extents and words leave free then.

use crate::bytes::{Reader, Writer, at, put, u16_at, u32_at, u64_at};
use crate::checksum::{self, Kind};
use crate::places::{PLACES_SIZE, Places};
use crate::{BLOCK_SIZE, Block, Corrupt, NUMBER_LIMIT, Pba, Reason, StoreId, Structure};

const MAGIC: [u8; 8] = *b"CRECORD\0";
const VERSION: u16 = 1;
const EXTENTS_START: usize = 96;
const EXTENT_SIZE: usize = 12;

/// Payload blocks of a record at most: 1 MiB, the atomic write size.
pub const PAYLOAD_BLOCKS_MAX: usize = 256;

/// Bytes of a header that extents and block words share.
pub const BODY_SIZE: usize = BLOCK_SIZE - EXTENTS_START;

/// The same of a scattered record.
pub const SCATTERED_BODY_SIZE: usize = BODY_SIZE - PLACES_SIZE;

const PLACES_START: usize = BLOCK_SIZE - PLACES_SIZE;

const FLAG_GOES_ON: u8 = 1;
const FLAG_SCATTERED: u8 = 2;

/// Blocks that one discard extent covers at most.
pub const DISCARD_BLOCKS_MAX: u16 = u16::MAX;

/// The fixed part of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// The log head that the record was appended to. All records of a segment are of one, save
    /// scattered ones.
    pub stream: u8,
    /// The store's epoch.
    pub epoch: u64,
    /// The record's place in the total order.
    pub sequence: u64,
    /// Every record up to this sequence was durable when the header was written.
    pub durable_sequence: u64,
    /// Generation of the newest superblock that was durable when the header was written. A reader
    /// that only finds an older one knows that the newer one was lost.
    pub generation: u64,
    /// The header's own address.
    pub pba: Pba,
    /// Blocks of payload.
    pub payload_size: u16,
    /// Where they lie, if not in a row behind the header.
    pub scattered: Option<Places>,
    /// Whether the group that the record belongs to goes on with the next sequence: the record
    /// counts only if that one does.
    pub goes_on: bool,
}

impl RecordHeader {
    /// Blocks from the header to the last of the payload, both included.
    pub fn span(&self) -> u32 {
        self.scattered.map_or(1 + u32::from(self.payload_size), |places| places.span())
    }
}

/// A run of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First key: a host address, or what [`Kind`] says.
    pub key: u64,
    /// Blocks.
    pub count: u16,
    /// What the blocks are.
    pub kind: Kind,
    /// Whether the cleaner moved them.
    pub relocated: bool,
}

impl Extent {
    /// Bytes that each block of the extent takes in the header, besides the extent.
    pub const fn block_cost(&self) -> usize {
        match self.kind {
            Kind::Discard => 0,
            Kind::Remote => 8,
            _ if self.relocated => 8,
            _ => 4,
        }
    }

    /// Bytes that the extent takes in the header, its blocks included.
    pub const fn cost(&self) -> usize {
        EXTENT_SIZE + self.block_cost() * self.count as usize
    }

    /// Bytes of the extent alone.
    pub const FIXED_COST: usize = EXTENT_SIZE;
}

/// What the header says of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockWord {
    /// The block's checksum.
    pub checksum: u32,
    /// Where a relocated block was, or where a remote one is; else nowhere.
    pub address: Pba,
}

/// A header whose extents do not fit, or whose parts disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

/// Writes a header. `words` holds one entry for every block of every extent that is no discard.
///
/// # Errors
/// [`TooLarge`] if the parts do not fit into a block, or `words`, `payload_size` or the places count
/// other blocks than the extents; the writer is expected to have counted with [`Extent::cost`].
pub fn encode(
    header: &RecordHeader,
    store: &StoreId,
    extents: &[Extent],
    words: &[BlockWord],
    block: &mut Block,
) -> Result<(), TooLarge> {
    if payload_blocks(extents.iter()) != usize::from(header.payload_size) {
        return Err(TooLarge);
    }
    if header.scattered.is_some_and(|places| places.count() != u32::from(header.payload_size)) {
        return Err(TooLarge);
    }
    block.fill(0);
    put::<0, 8>(block, MAGIC);
    put::<8, 2>(block, VERSION.to_le_bytes());
    put::<10, 1>(block, [header.stream]);
    let flag = |set: bool, flag| if set { flag } else { 0 };
    let scattered = flag(header.scattered.is_some(), FLAG_SCATTERED);
    put::<11, 1>(block, [flag(header.goes_on, FLAG_GOES_ON) | scattered]);
    put::<16, 16>(block, store.uuid);
    put::<32, 8>(block, header.epoch.to_le_bytes());
    put::<40, 8>(block, header.sequence.to_le_bytes());
    put::<48, 8>(block, header.durable_sequence.to_le_bytes());
    put::<56, 4>(block, header.pba.0.to_le_bytes());
    put::<60, 2>(block, header.payload_size.to_le_bytes());
    put::<62, 2>(block, (extents.len() as u16).to_le_bytes());
    put::<64, 8>(block, header.generation.to_le_bytes());
    let size = if header.scattered.is_some() { SCATTERED_BODY_SIZE } else { BODY_SIZE };
    let body = block.get_mut(EXTENTS_START..EXTENTS_START + size).unwrap_or(&mut []);
    encode_body(extents, words, body)?;
    if let Some(places) = header.scattered {
        put::<PLACES_START, PLACES_SIZE>(block, places.to_bytes());
    }
    let sum = checksum::sealed::<12>(block, store.salt);
    put::<12, 4>(block, sum.to_le_bytes());
    Ok(())
}

/// The checksum of a header that was encoded into this block.
pub fn header_checksum(block: &Block) -> u32 {
    u32_at::<12>(block)
}

/// Blocks that extents take in the payload.
fn payload_blocks<'a>(extents: impl Iterator<Item = &'a Extent>) -> usize {
    let inline = extents.filter(|extent| extent.kind.has_payload());
    inline.map(|extent| usize::from(extent.count)).sum()
}

fn encode_body(extents: &[Extent], words: &[BlockWord], body: &mut [u8]) -> Result<(), TooLarge> {
    let mut writer = Writer::new(body);
    for extent in extents {
        writer.u64(extent.key);
        writer.u16(extent.count);
        writer.u8(extent.kind as u8);
        writer.u8(u8::from(extent.relocated));
    }
    let mut words = words.iter();
    for extent in extents {
        let cost = extent.block_cost();
        if cost == 0 {
            continue;
        }
        for _ in 0..extent.count {
            let word = words.next().ok_or(TooLarge)?;
            writer.u32(word.checksum);
            if cost == 8 {
                writer.u32(word.address.0);
            }
        }
    }
    if words.next().is_some() {
        return Err(TooLarge);
    }
    writer.finish().map(|_| ()).ok_or(TooLarge)
}

/// A header that was found intact.
#[derive(Clone, Copy, Debug)]
pub struct RecordView<'a> {
    header: RecordHeader,
    block: &'a Block,
    extent_count: usize,
}

/// One block, or one discarded range, of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key of the block, or the first key of a discarded range.
    pub key: u64,
    /// What it is.
    pub kind: Kind,
    /// Whether the cleaner moved it.
    pub relocated: bool,
    /// Blocks covered: 1, save for discards.
    pub count: u16,
    /// Checksum, and the source or remote address.
    pub word: BlockWord,
    /// Where the block lies: in the payload, or where a remote record says. Nowhere for a discard.
    pub pba: Pba,
}

impl<'a> RecordView<'a> {
    /// Reads a header that is expected at `pba`.
    ///
    /// # Errors
    /// [`Corrupt`] unless the block is an intact header of this very store, written for this very
    /// address. Anything may stand where a record could have been: an error is no alarm by itself.
    pub fn decode(block: &'a Block, store: &StoreId, pba: Pba) -> Result<RecordView<'a>, Corrupt> {
        let corrupt = |reason| Corrupt { structure: Structure::RecordHeader, reason };
        if at::<0, 8>(block) != MAGIC {
            return Err(corrupt(Reason::Magic));
        }
        if checksum::sealed::<12>(block, store.salt) != u32_at::<12>(block) {
            return Err(corrupt(Reason::Checksum));
        }
        let version = u16_at::<8>(block);
        if version != VERSION {
            return Err(corrupt(Reason::Version(version.into())));
        }
        if at::<16, 16>(block) != store.uuid {
            return Err(corrupt(Reason::Store));
        }
        if u32_at::<56>(block) != pba.0 {
            return Err(corrupt(Reason::Address));
        }
        let [flags] = at::<11, 1>(block);
        let header = RecordHeader {
            stream: at::<10, 1>(block)[0],
            epoch: u64_at::<32>(block),
            sequence: u64_at::<40>(block),
            durable_sequence: u64_at::<48>(block),
            generation: u64_at::<64>(block),
            pba,
            payload_size: u16_at::<60>(block),
            goes_on: flags & FLAG_GOES_ON != 0,
            scattered: (flags & FLAG_SCATTERED != 0)
                .then(|| Places::from_bytes(at::<PLACES_START, PLACES_SIZE>(block))),
        };
        let extent_count = usize::from(u16_at::<62>(block));
        let view = RecordView { header, block, extent_count };
        view.check().map_err(|name| corrupt(Reason::Field(name)))?;
        Ok(view)
    }

    /// The fixed part.
    pub fn header(&self) -> RecordHeader {
        self.header
    }

    /// The header's own checksum.
    pub fn checksum(&self) -> u32 {
        header_checksum(self.block)
    }

    /// The extents in order.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + use<'a> {
        let bytes = self.block.get(EXTENTS_START..).unwrap_or(&[]);
        bytes.as_chunks::<EXTENT_SIZE>().0.iter().take(self.extent_count).map_while(decode_extent)
    }

    /// Every block and discarded range in order.
    pub fn entries(&self) -> Entries<'a> {
        let words = EXTENTS_START + self.extent_count * EXTENT_SIZE;
        Entries {
            block: self.block,
            next_extent: 0,
            extent_count: self.extent_count,
            current: None,
            words: Reader::new(self.block.get(words..).unwrap_or(&[])),
            header: self.header.pba,
            payload: self.header.pba.plus(1),
            scattered: self.header.scattered,
        }
    }

    /// The numbers must be below their limit; the extents must be known, fit the block, and have as
    /// many payload blocks as the header says.
    fn check(&self) -> Result<(), &'static str> {
        let RecordHeader { epoch, sequence, durable_sequence, generation, .. } = self.header;
        let numbers = [
            (epoch, "epoch"),
            (sequence, "sequence"),
            (durable_sequence, "durable_sequence"),
            (generation, "generation"),
        ];
        if let Some((_, name)) = numbers.into_iter().find(|(number, _)| *number >= NUMBER_LIMIT) {
            return Err(name);
        }
        let scattered = self.header.scattered;
        let room = if scattered.is_some() { SCATTERED_BODY_SIZE } else { BODY_SIZE };
        if self.extent_count * EXTENT_SIZE > room {
            return Err("extent_count");
        }
        let mut cost = 0;
        let mut payload = 0;
        let mut count = 0;
        for extent in self.extents() {
            count += 1;
            cost += extent.cost();
            payload += if extent.kind.has_payload() { usize::from(extent.count) } else { 0 };
            // The key comes from the device: the sum must not be trusted to fit.
            let end = extent.key.checked_add(u64::from(extent.count));
            if extent.count == 0 || end.is_none_or(|end| end > crate::address::LBA_LIMIT) {
                return Err("extent");
            }
        }
        if count != self.extent_count {
            return Err("kind");
        }
        if cost > room {
            return Err("extent_count");
        }
        let size = usize::from(self.header.payload_size);
        if payload != size || size > PAYLOAD_BLOCKS_MAX {
            return Err("payload_size");
        }
        if scattered.is_some_and(|places| places.count() as usize != size) {
            return Err("places");
        }
        Ok(())
    }
}

fn decode_extent(bytes: &[u8; EXTENT_SIZE]) -> Option<Extent> {
    let mut reader = Reader::new(bytes);
    let key = reader.u64()?;
    let count = reader.u16()?;
    let kind = Kind::from_code(reader.u8()?)?;
    let relocated = match reader.u8()? {
        0 => false,
        1 if kind.has_payload() => true,
        _ => return None,
    };
    Some(Extent { key, count, kind, relocated })
}

/// The blocks of a record, in order. Made by [`RecordView::entries`].
#[derive(Debug)]
pub struct Entries<'a> {
    block: &'a Block,
    next_extent: usize,
    extent_count: usize,
    current: Option<Extent>,
    words: Reader<'a>,
    header: Pba,
    /// Where the next payload block lies, or the first place at which it can.
    payload: Pba,
    scattered: Option<Places>,
}

impl Entries<'_> {
    fn next_extent(&mut self) -> Option<Extent> {
        if self.next_extent == self.extent_count {
            return None;
        }
        let start = EXTENTS_START + self.next_extent * EXTENT_SIZE;
        self.next_extent += 1;
        decode_extent(self.block.get(start..)?.first_chunk()?)
    }

    /// Where the next payload block lies.
    fn take_place(&mut self) -> Option<Pba> {
        let pba = match &self.scattered {
            None => self.payload,
            Some(places) => {
                let first = self.header.plus(1);
                first.plus(places.next(self.payload.0.wrapping_sub(first.0))?)
            }
        };
        self.payload = pba.plus(1);
        Some(pba)
    }

    fn take_block(&mut self, extent: &mut Extent) -> Option<Entry> {
        let checksum = self.words.u32()?;
        let named = extent.block_cost() == 8;
        let address = if named { Pba(self.words.u32()?) } else { Pba::NOWHERE };
        let pba = if extent.kind.has_payload() { self.take_place()? } else { address };
        let entry = Entry {
            key: extent.key,
            kind: extent.kind,
            relocated: extent.relocated,
            count: 1,
            word: BlockWord { checksum, address },
            pba,
        };
        extent.key += 1;
        extent.count -= 1;
        Some(entry)
    }
}

impl Iterator for Entries<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let mut extent = match self.current.take() {
            Some(extent) => extent,
            None => self.next_extent()?,
        };
        if extent.kind == Kind::Discard {
            return Some(Entry {
                key: extent.key,
                kind: extent.kind,
                relocated: false,
                count: extent.count,
                word: BlockWord::default(),
                pba: Pba::NOWHERE,
            });
        }
        let entry = self.take_block(&mut extent)?;
        if extent.count > 0 {
            self.current = Some(extent);
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
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
            pba: Pba(5000),
            payload_size,
            scattered: None,
            goes_on: payload_size % 2 == 1,
        }
    }

    fn example() -> ([Extent; 4], Vec<BlockWord>) {
        let extents = [
            Extent { key: 70, count: 2, kind: Kind::Data, relocated: false },
            Extent { key: 10, count: 300, kind: Kind::Discard, relocated: false },
            Extent { key: 5, count: 1, kind: Kind::Data, relocated: true },
            Extent { key: 6, count: 1, kind: Kind::Remote, relocated: false },
        ];
        let word = |i: u32, address| BlockWord { checksum: i, address: Pba(address) };
        (extents, [word(1, 0), word(2, 0), word(3, 777), word(4, 888)].to_vec())
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
        assert_eq!(places, [(70, 5001, 1), (71, 5002, 2), (10, 0, 0), (5, 5003, 3), (6, 888, 4)]);
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
        assert_eq!(places, [(70, 5003, 1), (71, 5010, 2), (10, 0, 0), (5, 5256, 3), (6, 888, 4)]);
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
            ("kind", |block| block[DISCARD + KIND] = 9),
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

    #[test]
    fn two_hundred_and_fifty_single_blocks_fit_and_more_are_refused() {
        let extents: Vec<_> = (0..251u64)
            .map(|key| Extent { key: key * 3, count: 1, kind: Kind::Data, relocated: false })
            .collect();
        let words = std::vec![BlockWord::default(); 251];
        let mut block = [0; BLOCK_SIZE];
        let fits = encode(&header(250), &STORE, &extents[..250], &words[..250], &mut block);
        assert_eq!(fits, Ok(()));
        assert_eq!(encode(&header(251), &STORE, &extents, &words, &mut block), Err(TooLarge));
        assert_eq!(
            encode(&header(2), &STORE, &extents[..2], &words[..3], &mut block),
            Err(TooLarge)
        );
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
            block[11] = state as u8 & 3;
            put::<0, 8>(&mut block, MAGIC);
            put::<8, 2>(&mut block, VERSION.to_le_bytes());
            put::<16, 16>(&mut block, STORE.uuid);
            put::<56, 4>(&mut block, 1u32.to_le_bytes());
            let sum = checksum::sealed::<12>(&block, STORE.salt);
            put::<12, 4>(&mut block, sum.to_le_bytes());
            if let Ok(view) = RecordView::decode(&block, &STORE, Pba(1)) {
                assert!(view.entries().count() <= BLOCK_SIZE);
            }
        }
    }
}
