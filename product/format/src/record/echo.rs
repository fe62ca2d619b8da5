//! What a header says of the record before it, so that one damaged header behind a checkpoint loses nothing.
//!
//! The **echo** is the header of the record of the sequence before, without the checksums of its blocks: these follow
//! from the blocks. It lies at the end of the header, where extents and words leave room, and is left out where they
//! leave none. It is not the echo of a scattered record.
//!
//! ```text
//! offset size field
//!      0    4 checksum          what the header's own would be if it had no echo
//!      4    4 pba               of the header
//!      8    8 durable_sequence
//!     16    8 generation
//!     24    8 cut
//!     32    2 payload_size
//!     34    2 extent_count
//!     36    1 stream
//!     37    1 flags
//!     38    2 zero
//!     40   12 extent            × extent_count, or packed entries without their checksums
//!      …    4 address           for every relocated block of extents
//! ```

use super::{
    BODY_SIZE, EXTENT_SIZE, EXTENTS_START, Extent, FLAG_SCATTERED, Form, MAGIC, PACKED_KEY_SIZE,
    PLACES_START, RecordView, VERSION, decode_extent, decode_form,
};
use crate::bytes::{Reader, Writer, at, put, u16_at, u32_at};
use crate::checksum::{self, Kind};
use crate::{BLOCK_SIZE, Block, Pba, StoreId};

/// Bytes of an echo before its extents.
const FIXED_SIZE: usize = 40;

/// Where the fixed fields of an echo behind its checksum are in a header, and how long they are.
const FIELDS: [(usize, usize); 7] = [(56, 4), (48, 8), (64, 8), (72, 8), (60, 2), (62, 2), (10, 2)];

const ECHO_SIZE: usize = 80;

/// Writes the echo of a header that was encoded into this block and has no echo itself. Returns its size: 0 if there
/// is none of such a record.
pub fn echo_of(block: &Block, echo: &mut Block) -> usize {
    collect(block, echo).unwrap_or(0)
}

fn collect(block: &Block, echo: &mut Block) -> Option<usize> {
    let [flags] = at::<11, 1>(block);
    if flags & FLAG_SCATTERED != 0 {
        return None;
    }
    let form = decode_form(flags)?;
    let count = usize::from(u16_at::<62>(block));
    let mut out = Writer::new(echo);
    out.u32(u32_at::<12>(block));
    for (start, size) in FIELDS {
        out.put(block.get(start..start + size)?);
    }
    out.u16(0);
    let items = block.get(EXTENTS_START..)?.get(..count * form.item_size())?;
    match form {
        Form::Packed { relocated } => {
            for item in items.chunks_exact(form.item_size()) {
                out.put(item.get(..PACKED_KEY_SIZE)?);
                if relocated {
                    out.put(item.get(PACKED_KEY_SIZE + 4..)?);
                }
            }
        }
        Form::Extents => {
            out.put(items);
            let mut words = Reader::new(block.get(EXTENTS_START + items.len()..)?);
            for item in items.as_chunks::<EXTENT_SIZE>().0 {
                let extent = decode_extent(item)?;
                let words = words.take_slice(extent.block_cost() * usize::from(extent.count))?;
                if extent.relocated {
                    words.as_chunks::<8>().0.iter().for_each(|word| out.put(&word[4..]));
                }
            }
        }
    }
    out.finish()
}

/// Bytes that extents and words take in a header that was encoded into this block.
fn content_size(block: &Block) -> Option<usize> {
    let form = decode_form(at::<11, 1>(block)[0])?;
    let count = usize::from(u16_at::<62>(block));
    let items = block.get(EXTENTS_START..)?.get(..count * form.item_size())?;
    if form != Form::Extents {
        return Some(items.len());
    }
    let extents = items.as_chunks::<EXTENT_SIZE>().0.iter();
    extents.map(|item| decode_extent(item).map(|extent| extent.cost())).sum()
}

/// Where extents and words, and the echo behind them, end in a header.
fn room_end(flags: u8) -> usize {
    if flags & FLAG_SCATTERED != 0 { PLACES_START } else { EXTENTS_START + BODY_SIZE }
}

/// Adds the echo of the record before to a header that was encoded into this block, if there is room for it.
pub fn put_echo(block: &mut Block, store: &StoreId, echo: &[u8]) {
    let end = room_end(at::<11, 1>(block)[0]);
    let Some(content) = content_size(block) else { return };
    let Some(start) = end.checked_sub(echo.len()).filter(|s| *s >= EXTENTS_START + content) else {
        return;
    };
    if echo.is_empty() {
        return;
    }
    put::<ECHO_SIZE, 2>(block, (echo.len() as u16).to_le_bytes());
    let Some(target) = block.get_mut(start..end) else { return };
    target.copy_from_slice(echo);
    // Where nothing lies behind it, the checksum follows from the one before.
    let change = (end == BLOCK_SIZE).then(|| checksum::of_end(target)).flatten();
    let sum = match change {
        Some(change) => {
            let of_size = checksum::of_change::<ECHO_SIZE>(echo.len() as u32);
            u32_at::<12>(block) ^ change ^ of_size
        }
        None => checksum::sealed::<12>(block, store.salt),
    };
    put::<12, 4>(block, sum.to_le_bytes());
}

/// Whether a header with so many bytes of extents and words can have the echo that it says.
pub(super) fn fits(block: &Block, content: usize) -> bool {
    let size = usize::from(u16_at::<ECHO_SIZE>(block));
    let room = room_end(at::<11, 1>(block)[0]) - EXTENTS_START;
    size == 0 || (size >= FIXED_SIZE && content + size <= room)
}

/// What a header says of the record before it.
#[derive(Clone, Copy, Debug)]
pub struct Echo<'a> {
    bytes: &'a [u8],
    epoch: u64,
    sequence: u64,
}

impl<'a> RecordView<'a> {
    /// What it says of the record before it, if anything.
    pub fn echo(&self) -> Option<Echo<'a>> {
        let size = usize::from(u16_at::<ECHO_SIZE>(self.block));
        let end = room_end(at::<11, 1>(self.block)[0]);
        let bytes = self.block.get(end.checked_sub(size)?..end).filter(|echo| !echo.is_empty())?;
        let sequence = self.header.sequence.checked_sub(1)?;
        Some(Echo { bytes, epoch: self.header.epoch, sequence })
    }
}

impl Echo<'_> {
    fn fixed<const N: usize>(&self, offset: usize) -> [u8; N] {
        let field = self.bytes.get(offset..).and_then(|bytes| bytes.first_chunk());
        field.copied().unwrap_or([0; N])
    }

    /// Where the header of the record before lies.
    pub fn pba(&self) -> Pba {
        Pba(u32::from_le_bytes(self.fixed(4)))
    }

    /// Its sequence.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Its blocks of payload, which lie behind the header.
    pub fn payload_size(&self) -> u16 {
        u16::from_le_bytes(self.fixed(32))
    }

    /// Rebuilds the header from its payload, but for its own echo. Returns whether the result is what was written:
    /// then all of the payload is what was written, too.
    pub fn rebuild(&self, store: &StoreId, payload: &[Block], block: &mut Block) -> bool {
        block.fill(0);
        let is_built = self.build(store, payload, block).is_some();
        let sum = checksum::sealed::<12>(block, store.salt);
        put::<12, 4>(block, sum.to_le_bytes());
        is_built && sum.to_le_bytes() == self.fixed(0)
    }

    /// Tells what that record holds, extent by extent; the blocks of a packed one one by one. `None` if it is damaged:
    /// then what was told is not all.
    pub fn extents(&self, tell: &mut dyn FnMut(Extent)) -> Option<()> {
        let [flags] = self.fixed(37);
        let form = decode_form(flags)?;
        let count = usize::from(u16::from_le_bytes(self.fixed(34)));
        let mut rest = Reader::new(self.bytes.get(FIXED_SIZE..)?);
        if let Form::Packed { relocated } = form {
            for _ in 0..count {
                let mut wide = [0; 8];
                let key = rest.take::<PACKED_KEY_SIZE>()?;
                wide.first_chunk_mut::<PACKED_KEY_SIZE>()?.copy_from_slice(&key);
                let key = u64::from_le_bytes(wide);
                tell(Extent { key, count: 1, kind: Kind::Data, relocated });
                if relocated {
                    rest.take::<4>()?;
                }
            }
            return Some(());
        }
        for _ in 0..count {
            tell(decode_extent(&rest.take::<EXTENT_SIZE>()?)?);
        }
        Some(())
    }

    fn build(&self, store: &StoreId, payload: &[Block], block: &mut Block) -> Option<()> {
        put::<0, 8>(block, MAGIC);
        put::<8, 2>(block, VERSION.to_le_bytes());
        put::<16, 16>(block, store.uuid);
        put::<32, 8>(block, self.epoch.to_le_bytes());
        put::<40, 8>(block, self.sequence.to_le_bytes());
        let mut fixed = Reader::new(self.bytes.get(4..FIXED_SIZE)?);
        for (start, size) in FIELDS {
            block.get_mut(start..start + size)?.copy_from_slice(fixed.take_slice(size)?);
        }
        let [flags] = self.fixed(37);
        let form = decode_form(flags).filter(|_| flags & FLAG_SCATTERED == 0)?;
        let count = usize::from(u16::from_le_bytes(self.fixed(34)));
        let mut payload = payload.iter();
        let mut rest = Reader::new(self.bytes.get(FIXED_SIZE..)?);
        let mut body = Writer::new(block.get_mut(EXTENTS_START..BLOCK_SIZE)?);
        if let Form::Packed { relocated } = form {
            for _ in 0..count {
                let key = rest.take::<PACKED_KEY_SIZE>()?;
                let mut wide = [0; 8];
                wide.first_chunk_mut::<PACKED_KEY_SIZE>()?.copy_from_slice(&key);
                body.put(&key);
                let key = u64::from_le_bytes(wide);
                body.u32(checksum::block(Kind::Data, key, payload.next()?));
                if relocated {
                    body.put(&rest.take::<4>()?);
                }
            }
            return body.finish().map(|_| ());
        }
        let items = rest.take_slice(count.checked_mul(EXTENT_SIZE)?)?;
        body.put(items);
        for item in items.as_chunks::<EXTENT_SIZE>().0 {
            let extent = decode_extent(item)?;
            let blocks = if extent.kind.has_payload() { extent.count } else { 0 };
            for offset in 0..u64::from(blocks) {
                let key = extent.key.checked_add(offset)?;
                body.u32(checksum::block(extent.kind, key, payload.next()?));
                if extent.relocated {
                    body.put(&rest.take::<4>()?);
                }
            }
        }
        body.finish().map(|_| ())
    }
}
