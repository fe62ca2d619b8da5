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
//!                               bit 2: packed, see below
//!                               bit 3: its blocks are relocated; only if packed
//!                               bits 4 to 6: p; it takes whole pages of 2^p blocks, the last one perhaps in part
//!     12    4 checksum          CRC-32C of the header block, this field taken as the store's salt
//!     16   16 uuid
//!     32    8 epoch
//!     40    8 sequence
//!     48    8 durable_sequence  every record up to this one was durable when this was written
//!     56    4 pba               of this header
//!     60    2 payload_size      blocks that follow
//!     62    2 extent_count
//!     64    8 generation        of the superblock that was durable when this was written
//!     72    8 cut               every record up to this one is in the latest checkpoint that had been begun
//!     80    2 echo_size         bytes of the echo, see `echo`
//!     82   14 zero
//!     96   12 extent            × extent_count
//!      …      block word(s)     for every block of every extent, in order
//!
//! extent: 0  8 key         host address, or a metadata key (see checksum::Kind)
//!         8  2 count       blocks
//!        10  1 kind        checksum::Kind
//!        11  1 relocated   1: moved by the cleaner; applies only while the source is current
//!
//! block:  0  4 checksum    none for a discard
//!         4  4 address     only if relocated: where it was
//! ```
//!
//! A *scattered* record lies in the holes of a segment. Its payload is where [`Places`] say, a bit
//! for each of the 256 blocks behind the header: the last 32 bytes of the header block, which
//! extents and words leave free then.
//!
//! A *packed* record holds single blocks of host data, and nothing else. It has no extents: an entry
//! for each block takes their place, so that a header says of almost twice as many blocks where they
//! belong.
//!
//! ```text
//! packed: 0  5 key         host address
//!         5  4 checksum
//!         9  4 address     only if relocated: where it was
//! ```
//!
//! A *long* record is one that is packed, or has more than [`SHORT_BLOCKS_MAX`] blocks of payload. There
//! are some only in stores whose superblock says so. Who reads a record need not know of which form it is:
//! a packed block is shown as an extent of one.

use crate::bytes::{Reader, Writer, at, put, u16_at, u32_at, u64_at};
use crate::checksum::{self, Kind};
use crate::places::{PLACES_SIZE, Places};
use crate::{BLOCK_SIZE, Block, Corrupt, NUMBER_LIMIT, Pba, Reason, StoreId, Structure};

mod cost;
mod echo;

use cost::Form;
pub use cost::{Cost, HeaderRoom};
pub use echo::{Echo, echo_of, put_echo};

const MAGIC: [u8; 8] = *b"CRECORD\0";
const VERSION: u16 = 1;
const EXTENTS_START: usize = 96;
/// Bytes of an extent, without the words of its blocks.
pub const EXTENT_SIZE: usize = 12;

/// Bytes of a packed entry: its key, and all of it.
const PACKED_KEY_SIZE: usize = 5;
const PACKED_SIZE: usize = 9;
const PACKED_RELOCATED_SIZE: usize = 13;

/// Bytes of a header that extents and block words share.
pub const BODY_SIZE: usize = BLOCK_SIZE - EXTENTS_START;

/// Payload blocks of a record at most: as many as a packed header can tell of.
pub const PAYLOAD_BLOCKS_MAX: usize = BODY_SIZE / PACKED_SIZE;

/// Blocks of a packed record of relocations at most.
pub const PACKED_RELOCATED_MAX: usize = BODY_SIZE / PACKED_RELOCATED_SIZE;

/// Payload blocks at most of a record that is not long: of a scattered one, and of any in a store that
/// has no long ones.
pub const SHORT_BLOCKS_MAX: usize = 256;

/// Blocks of a write that is atomic wherever a segment has room for it: 1 MiB. Every store's records
/// hold that.
pub const ATOMIC_BLOCKS_MAX: usize = SHORT_BLOCKS_MAX;

/// Where host addresses end that a packed entry can name.
pub const PACKED_KEY_LIMIT: u64 = 1 << 40;

const _: () = assert!(PAYLOAD_BLOCKS_MAX == 444 && PACKED_RELOCATED_MAX == 307);
const _: () = assert!(SHORT_BLOCKS_MAX == crate::places::PLACES as usize);
const _: () = assert!(PAYLOAD_BLOCKS_MAX <= u16::MAX as usize);

/// The same of a scattered record.
pub const SCATTERED_BODY_SIZE: usize = BODY_SIZE - PLACES_SIZE;

const PLACES_START: usize = BLOCK_SIZE - PLACES_SIZE;

const FLAG_GOES_ON: u8 = 1;
const FLAG_SCATTERED: u8 = 2;
const FLAG_PACKED: u8 = 4;
const FLAG_RELOCATED: u8 = 8;
const PAGE_SHIFT: u8 = 4;
const PAGE_BITS: u8 = 7 << PAGE_SHIFT;
const FLAGS: u8 = FLAG_GOES_ON | FLAG_SCATTERED | FLAG_PACKED | FLAG_RELOCATED | PAGE_BITS;

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
    /// The sequence up to which the latest checkpoint went that had been begun when the header was written; 0 if
    /// that is not known.
    pub cut: u64,
    /// The header's own address.
    pub pba: Pba,
    /// Blocks of payload.
    pub payload_size: u16,
    /// Where they lie, if not in a row behind the header.
    pub scattered: Option<Places>,
    /// Whether the group that the record belongs to goes on with the next sequence: the record
    /// counts only if that one does.
    pub goes_on: bool,
    /// The record takes whole pages of 2 to the power of this blocks: nothing else is written to the last one.
    pub page_bits: u8,
}

/// Pages of a record have no more blocks than 2 to the power of this.
pub const PAGE_BITS_MAX: u8 = 6;

const _: () = assert!(1 << PAGE_BITS_MAX == crate::superblock::PAGE_BLOCKS_MAX);

impl RecordHeader {
    /// Blocks from the header to the last of the payload, both included, and to the end of that one's page.
    pub fn span(&self) -> u32 {
        let used = self.scattered.map_or(1 + u32::from(self.payload_size), |places| places.span());
        used.next_multiple_of(1 << self.page_bits)
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
    #[inline]
    pub const fn block_cost(&self) -> usize {
        match self.kind {
            Kind::Discard => 0,
            _ if self.relocated => 8,
            _ => 4,
        }
    }

    /// Bytes that the extent takes in the header, its blocks included.
    pub const fn cost(&self) -> usize {
        EXTENT_SIZE + self.block_cost() * self.count as usize
    }

    /// Blocks that the extent takes in the payload.
    #[inline]
    pub const fn payload_blocks(&self) -> usize {
        if self.kind.has_payload() { self.count as usize } else { 0 }
    }
}

/// What the header says of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockWord {
    /// The block's checksum.
    pub checksum: u32,
    /// Where a relocated block was; else nowhere.
    pub address: Pba,
}

/// A header whose extents do not fit, or whose parts disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

/// Writes a header. `words` holds one entry for every block of every extent that is no discard. It is
/// packed if the extents do not fit otherwise, and can be.
///
/// # Errors
/// [`TooLarge`] if the parts do not fit into a block, or `words`, `payload_size` or the places count
/// other blocks than the extents; the writer is expected to have counted with [`Cost`], which also
/// tells whether the record is a long one.
pub fn encode(
    header: &RecordHeader,
    store: &StoreId,
    extents: &[Extent],
    words: &[BlockWord],
    block: &mut Block,
) -> Result<(), TooLarge> {
    let cost = extents.iter().fold(Cost::default(), Cost::with);
    if cost.blocks != usize::from(header.payload_size) {
        return Err(TooLarge);
    }
    if header.scattered.is_some_and(|places| places.count() != u32::from(header.payload_size)) {
        return Err(TooLarge);
    }
    let room = if header.scattered.is_some() { HeaderRoom::Scattered } else { HeaderRoom::Long };
    let form = cost.form(room).ok_or(TooLarge)?;
    block.fill(0);
    put::<0, 8>(block, MAGIC);
    put::<8, 2>(block, VERSION.to_le_bytes());
    put::<10, 1>(block, [header.stream]);
    put::<11, 1>(block, [flags(header, form)]);
    put::<16, 16>(block, store.uuid);
    put::<32, 8>(block, header.epoch.to_le_bytes());
    put::<40, 8>(block, header.sequence.to_le_bytes());
    put::<48, 8>(block, header.durable_sequence.to_le_bytes());
    put::<56, 4>(block, header.pba.0.to_le_bytes());
    put::<60, 2>(block, header.payload_size.to_le_bytes());
    let count = if form == Form::Extents { extents.len() as u16 } else { header.payload_size };
    put::<62, 2>(block, count.to_le_bytes());
    put::<64, 8>(block, header.generation.to_le_bytes());
    put::<72, 8>(block, header.cut.to_le_bytes());
    let size = if header.scattered.is_some() { SCATTERED_BODY_SIZE } else { BODY_SIZE };
    let body = block.get_mut(EXTENTS_START..EXTENTS_START + size).unwrap_or(&mut []);
    match form {
        Form::Extents => encode_body(extents, words, body)?,
        Form::Packed { relocated } => encode_packed(extents, words, relocated, body)?,
    }
    if let Some(places) = header.scattered {
        put::<PLACES_START, PLACES_SIZE>(block, places.to_bytes());
    }
    checksum::seal::<12>(block, store.salt);
    Ok(())
}

/// The checksum of a header that was encoded into this block.
pub fn header_checksum(block: &Block) -> u32 {
    u32_at::<12>(block)
}

fn flags(header: &RecordHeader, form: Form) -> u8 {
    let flag = |set: bool, flag| if set { flag } else { 0 };
    flag(header.goes_on, FLAG_GOES_ON)
        | flag(header.scattered.is_some(), FLAG_SCATTERED)
        | flag(form != Form::Extents, FLAG_PACKED)
        | flag(form == Form::Packed { relocated: true }, FLAG_RELOCATED)
        | header.page_bits << PAGE_SHIFT
}

fn encode_packed(
    extents: &[Extent],
    words: &[BlockWord],
    relocated: bool,
    body: &mut [u8],
) -> Result<(), TooLarge> {
    let mut writer = Writer::new(body);
    let mut words = words.iter();
    for extent in extents {
        for offset in 0..u64::from(extent.count) {
            let word = words.next().ok_or(TooLarge)?;
            let key = extent.key + offset;
            writer.u32(key as u32);
            // Below the limit of packed keys, so nothing is cut off.
            writer.u8((key >> 32) as u8);
            writer.u32(word.checksum);
            if relocated {
                writer.u32(word.address.0);
            }
        }
    }
    if words.next().is_some() {
        return Err(TooLarge);
    }
    writer.finish().map(|_| ()).ok_or(TooLarge)
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
    form: Form,
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
    /// Checksum, and where a relocated block was.
    pub word: BlockWord,
    /// Where the block lies in the payload; nowhere for a discard.
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
            cut: u64_at::<72>(block),
            pba,
            payload_size: u16_at::<60>(block),
            goes_on: flags & FLAG_GOES_ON != 0,
            page_bits: (flags & PAGE_BITS) >> PAGE_SHIFT,
            scattered: (flags & FLAG_SCATTERED != 0)
                .then(|| Places::from_bytes(at::<PLACES_START, PLACES_SIZE>(block))),
        };
        let extent_count = usize::from(u16_at::<62>(block));
        let form = decode_form(flags).ok_or(corrupt(Reason::Field("flags")))?;
        let view = RecordView { header, block, extent_count, form };
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

    /// Whether its blocks are packed.
    pub fn is_packed(&self) -> bool {
        self.form != Form::Extents
    }

    /// Whether only a store that says so may hold it.
    pub fn is_long(&self) -> bool {
        self.long_field().is_some()
    }

    /// The field by which it is a long one, if it is, with its value.
    pub fn long_field(&self) -> Option<(&'static str, u64)> {
        let size = u64::from(self.header.payload_size);
        match self.is_packed() {
            true => Some(("flags", flags(&self.header, self.form).into())),
            false => (size > SHORT_BLOCKS_MAX as u64).then_some(("payload_size", size)),
        }
    }

    /// The extents in order; one for each block of a packed record.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + use<'a> {
        let (block, form) = (self.block, self.form);
        (0..self.extent_count).map_while(move |index| extent_at(block, form, index))
    }

    /// Every block and discarded range in order.
    pub fn entries(&self) -> Entries<'a> {
        // In a packed record an entry's words lie in it, and not behind all of them.
        let items = if self.is_packed() { 0 } else { self.extent_count };
        let words = EXTENTS_START + items * EXTENT_SIZE;
        Entries {
            block: self.block,
            form: self.form,
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
        let RecordHeader { epoch, sequence, durable_sequence, generation, cut, .. } = self.header;
        let numbers = [
            (epoch, "epoch"),
            (sequence, "sequence"),
            (durable_sequence, "durable_sequence"),
            (generation, "generation"),
            (cut, "cut"),
        ];
        if let Some((_, name)) = numbers.into_iter().find(|(number, _)| *number >= NUMBER_LIMIT) {
            return Err(name);
        }
        let scattered = self.header.scattered;
        if scattered.is_some() && self.is_packed() || self.header.page_bits > PAGE_BITS_MAX {
            return Err("flags");
        }
        let room = if scattered.is_some() { SCATTERED_BODY_SIZE } else { BODY_SIZE };
        if self.extent_count * self.form.item_size() > room {
            return Err("extent_count");
        }
        let mut cost = 0;
        let mut payload = 0;
        let mut count = 0;
        for extent in self.extents() {
            count += 1;
            cost += if self.is_packed() { self.form.item_size() } else { extent.cost() };
            payload += extent.payload_blocks();
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
        if !echo::fits(self.block, cost) {
            return Err("echo_size");
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

/// What the flags say of the form; none if there is no such form.
fn decode_form(flags: u8) -> Option<Form> {
    let relocated = flags & FLAG_RELOCATED != 0;
    match flags & FLAG_PACKED != 0 {
        _ if flags & !FLAGS != 0 => None,
        true => Some(Form::Packed { relocated }),
        false if relocated => None,
        false => Some(Form::Extents),
    }
}

/// An extent, or a packed block as one.
fn extent_at(block: &Block, form: Form, index: usize) -> Option<Extent> {
    let item = block.get(EXTENTS_START + index * form.item_size()..)?;
    let Form::Packed { relocated } = form else { return decode_extent(item.first_chunk()?) };
    let mut reader = Reader::new(item);
    let low = u64::from(reader.u32()?);
    let key = u64::from(reader.u8()?) << 32 | low;
    Some(Extent { key, count: 1, kind: Kind::Data, relocated })
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
    form: Form,
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
        let extent = extent_at(self.block, self.form, self.next_extent)?;
        self.next_extent += 1;
        if self.form != Form::Extents {
            self.words.take_slice(PACKED_KEY_SIZE)?;
        }
        Some(extent)
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
        let pba = self.take_place()?;
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
mod tests;
