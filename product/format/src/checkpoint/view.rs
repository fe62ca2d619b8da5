//! Reading a body. Its checksum was verified; what it says was not.

use super::*;
use crate::bytes::Reader;
use crate::{BlockPointer, Corrupt, Reason, Structure};

/// A body that was found intact.
#[derive(Clone, Copy, Debug)]
pub struct BodyView<'a> {
    header: CheckpointHeader,
    counts: Counts,
    heads: &'a [u8],
    reserved: &'a [u8],
    roots: &'a [u8],
    table: &'a [u8],
    runs: &'a [u8],
    references: &'a [u8],
    copies: &'a [u8],
    groups: &'a [u8],
    parities: &'a [u8],
}

impl<'a> BodyView<'a> {
    /// Reads a body whose checksum was verified against the superblock.
    ///
    /// # Errors
    /// [`Corrupt`] when it is no checkpoint, of another version, or its pieces do not add up.
    pub fn decode(bytes: &'a [u8]) -> Result<BodyView<'a>, Corrupt> {
        let corrupt = |reason| Corrupt { structure: Structure::Checkpoint, reason };
        let mut reader = Reader::new(bytes);
        if reader.take() != Some(MAGIC) {
            return Err(corrupt(Reason::Magic));
        }
        let (has_references, has_copies, root_lists) = match reader.u16() {
            Some(VERSION) => (false, false, false),
            Some(VERSION_WITH_REFERENCES) => (true, false, false),
            Some(VERSION_WITH_COPIES) => (true, true, false),
            Some(VERSION_WITH_ROOT_LISTS) => (true, true, true),
            other => return Err(corrupt(Reason::Version(other.unwrap_or(0).into()))),
        };
        let view = Self::decode_pieces(reader, has_references, has_copies, root_lists)
            .ok_or(corrupt(Reason::Field("size")))?;
        if usize::from(view.counts.streams) > STREAM_COUNT_MAX {
            return Err(corrupt(Reason::Field("stream_count")));
        }
        if view.runs().count() != view.counts.runs as usize {
            return Err(corrupt(Reason::Field("run_count")));
        }
        if !view.roots().is_sorted_by(|(one, _), (next, _)| one < next) {
            return Err(corrupt(Reason::Field("root")));
        }
        if !view.runs().is_sorted_by(|(one, _), (next, _)| one.number < next.number) {
            return Err(corrupt(Reason::Field("run")));
        }
        let read = view.references().count();
        let rising = view.references().is_sorted_by_key(|reference| reference.run);
        if read != view.counts.references as usize || !rising {
            return Err(corrupt(Reason::Field("reference")));
        }
        if !view
            .groups()
            .flatten()
            .all(|parity| usize::from(parity) < view.parities.len() / PARITY_SIZE)
        {
            return Err(corrupt(Reason::Field("group")));
        }
        Ok(view)
    }

    fn decode_pieces(
        mut reader: Reader<'a>,
        has_references: bool,
        has_copies: bool,
        root_lists: bool,
    ) -> Option<BodyView<'a>> {
        let streams = reader.u16()?;
        let sequence = reader.u64()?;
        let write_clock = reader.u64()?;
        let leaf = reader.u64()?;
        let cycle = reader.u64()?;
        let next_run = reader.u64()?;
        let mut counts = Counts {
            streams,
            reserved: reader.u32()?,
            roots: reader.u32()?,
            root_lists,
            table: reader.u32()?,
            runs: reader.u32()?,
            references: 0,
            parities: 0,
            copies: has_copies,
        };
        if has_references {
            counts.references = reader.u32()?;
            counts.parities = reader.u32().map(|count| if has_copies { count } else { 0 })?;
        }
        let sweep = SweepPosition { cycle, leaf };
        let header = CheckpointHeader { sequence, write_clock, sweep, next_run };
        let heads = reader.take_slice(usize::from(streams) * 8)?;
        let reserved = reader.take_slice((counts.reserved as usize).checked_mul(4)?)?;
        let roots = reader.take_slice((counts.roots as usize).checked_mul(if root_lists {
            8
        } else {
            16
        })?)?;
        let table = reader.take_slice((counts.table as usize).checked_mul(8)?)?;
        let rest = reader.rest();
        let mut probe = Reader::new(rest);
        let (mut length, mut run_blocks) = (0usize, 0usize);
        for _ in 0..counts.runs {
            let (_, blocks) = read_run(&mut probe)?;
            length = length.checked_add(RUN_HEADER_SIZE)?.checked_add(blocks.len())?;
            run_blocks = run_blocks.checked_add(blocks.len() / 8)?;
        }
        let (runs, rest) = rest.split_at_checked(length)?;
        let references = (counts.references as usize).checked_mul(REFERENCE_SIZE)?;
        let (references, after) = rest.split_at_checked(references)?;
        let (mut copies, mut groups, mut parities) = (&[][..], &[][..], &[][..]);
        if has_copies {
            let pages = (counts.roots as usize).checked_add(counts.table as usize)?;
            let count = pages.checked_add(run_blocks)?;
            let mut rest;
            (copies, rest) = after.split_at_checked(count.checked_mul(COPY_SIZE)?)?;
            let references = counts.references as usize;
            (groups, rest) = rest.split_at_checked(references.checked_mul(GROUP_SIZE)?)?;
            parities = rest.get(..(counts.parities as usize).checked_mul(PARITY_SIZE)?)?;
        }
        Some(BodyView {
            header,
            counts,
            heads,
            reserved,
            roots,
            table,
            runs,
            references,
            copies,
            groups,
            parities,
        })
    }

    /// The fixed part.
    pub fn header(&self) -> CheckpointHeader {
        self.header
    }

    /// How many of each piece there are.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The heads in order of stream.
    pub fn heads(&self) -> impl Iterator<Item = Option<Head>> + use<'a> {
        pairs(self.heads)
            .map(|(segment, offset)| (segment != NO_SEGMENT).then_some(Head { segment, offset }))
    }

    /// The segments that may be opened next, in order.
    pub fn reserved(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.listed().filter(|segment| segment & HOLES == 0)
    }

    /// The segments into whose holes records may be written.
    pub fn reserved_holes(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.listed().filter(|segment| segment & HOLES != 0).map(|segment| segment & !HOLES)
    }

    fn listed(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.reserved.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
    }

    /// The root pages by key; none if they are in pages of their own.
    pub fn roots(&self) -> impl Iterator<Item = (u64, BlockPointer)> + use<'a> {
        let roots = if self.counts.root_lists { &[] } else { self.roots };
        roots.as_chunks::<16>().0.iter().map_while(|bytes| {
            let mut reader = Reader::new(bytes);
            Some((reader.u64()?, read_pointer(&mut reader)?))
        })
    }

    /// The pages of the list of roots, in order of index; none if the body lists the roots.
    pub fn root_lists(&self) -> impl Iterator<Item = BlockPointer> + use<'a> {
        let pages = if self.counts.root_lists { self.roots } else { &[] };
        pairs(pages).map(|(pba, checksum)| BlockPointer { pba: Pba(pba), checksum })
    }

    /// The pages of the segment table.
    pub fn table(&self) -> impl Iterator<Item = BlockPointer> + use<'a> {
        pairs(self.table).map(|(pba, checksum)| BlockPointer { pba: Pba(pba), checksum })
    }

    /// The records whose headers say what changed, oldest first. Ends early at one that cannot be.
    pub fn references(&self) -> impl Iterator<Item = Reference> + use<'a> {
        let header = self.header;
        self.references.as_chunks::<REFERENCE_SIZE>().0.iter().map_while(move |bytes| {
            let mut reader = Reader::new(bytes);
            let BlockPointer { pba, checksum } = read_pointer(&mut reader)?;
            let leaf = reader.u64()?;
            let cycle = header.sweep.cycle.checked_sub(reader.u16()?.into())?;
            let run = header.next_run.checked_sub(reader.u16()?.into())?;
            let sweep = SweepPosition { cycle, leaf };
            Some(Reference { pba, checksum, sweep, run })
        })
    }

    /// Where the second copies lie of the root pages, the table pages and the blocks of the runs, in that order;
    /// nowhere if there is none. Empty if the body lists none.
    pub fn copies(&self) -> impl Iterator<Item = Pba> + use<'a> {
        self.copies.as_chunks::<COPY_SIZE>().0.iter().map(|bytes| Pba(u32::from_le_bytes(*bytes)))
    }

    /// The parity blocks of the headers that are referred to, in the order of the references; nowhere if there is
    /// none. Headers with the same block are a group. Empty if the body lists none.
    pub fn header_parities(&self) -> impl Iterator<Item = BlockPointer> + use<'a> {
        let parities = self.parities;
        self.groups()
            .map(move |parity| {
                let start = usize::from(parity?) * PARITY_SIZE;
                let (pba, checksum) = pairs(parities.get(start..)?).next()?;
                Some(BlockPointer { pba: Pba(pba), checksum })
            })
            .map(|parity| parity.unwrap_or(BlockPointer::NOWHERE))
    }

    /// Which of the parity blocks is of the header of each reference.
    fn groups(&self) -> impl Iterator<Item = Option<u16>> + use<'a> {
        let groups = self.groups.as_chunks::<GROUP_SIZE>().0.iter();
        groups.map(|bytes| Some(u16::from_le_bytes(*bytes)).filter(|parity| *parity != NO_PARITY))
    }

    /// The runs, oldest first, each with its blocks.
    pub fn runs(&self) -> Runs<'a> {
        Runs { reader: Reader::new(self.runs) }
    }
}

const RUN_HEADER_SIZE: usize = 32;

fn pairs(bytes: &[u8]) -> impl Iterator<Item = (u32, u32)> + '_ {
    bytes.as_chunks::<8>().0.iter().map_while(|bytes| {
        let mut reader = Reader::new(bytes);
        Some((reader.u32()?, reader.u32()?))
    })
}

fn read_pointer(reader: &mut Reader<'_>) -> Option<BlockPointer> {
    Some(BlockPointer { pba: Pba(reader.u32()?), checksum: reader.u32()? })
}

fn read_run<'a>(reader: &mut Reader<'a>) -> Option<(RunHeader, &'a [u8])> {
    let number = reader.u64()?;
    let cycle = reader.u64()?;
    let leaf = reader.u64()?;
    let block_count = reader.u32()?;
    let _zero = reader.u32()?;
    let blocks = reader.take_slice((block_count as usize).checked_mul(8)?)?;
    Some((RunHeader { number, sweep: SweepPosition { cycle, leaf }, block_count }, blocks))
}

/// The runs of a body. Made by [`BodyView::runs`].
#[derive(Debug)]
pub struct Runs<'a> {
    reader: Reader<'a>,
}

/// The blocks of a run, in order.
#[derive(Clone, Copy, Debug)]
pub struct RunBlocks<'a>(&'a [u8]);

impl<'a> RunBlocks<'a> {
    /// Pointers in order.
    pub fn iter(&self) -> impl Iterator<Item = BlockPointer> + use<'a> {
        pairs(self.0).map(|(pba, checksum)| BlockPointer { pba: Pba(pba), checksum })
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = (RunHeader, RunBlocks<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let (header, blocks) = read_run(&mut self.reader)?;
        Some((header, RunBlocks(blocks)))
    }
}
