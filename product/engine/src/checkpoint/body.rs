//! The body of a checkpoint: the lists of where all of it lies, in one record, and a second copy of them before
//! the log.

use super::{Checkpointer, CutStage, ERRNO_TOO_LARGE, Lists, RUN_KEY_SHIFT, Run};
use crate::api::{Buffers, Command, RecordRef, Target};
use crate::canary::{Canary, sings};
use crate::create::body_copy_place;
use crate::ios::Purpose;
use crate::shared::Shared;
use crate::units::{Origin, Stream};
use coulter_format::checkpoint::{BODY_SIZE_MAX, BodyWriter, CheckpointHeader, Counts, RunHeader};
use coulter_format::checksum::{self, Kind, crc32c};
use coulter_format::record::{BlockWord, Extent};
use coulter_format::superblock::{CheckpointLocation, Superblock};
use coulter_format::{BLOCK_SIZE, Block, BlockPointer, Pba};

impl Checkpointer {
    pub(super) fn write_body(&mut self, shared: &mut Shared, buffers: &mut impl Buffers) {
        if self.body_copy.is_some() {
            return;
        }
        if self.new_location.is_some() {
            if shared.log.is_quiet(Origin::Metadata) && sings(Canary::SuperblockUnordered) {
                self.flushing = shared.log.durable;
                self.write_superblock(shared, buffers);
            } else if shared.log.is_quiet(Origin::Metadata) {
                self.checkpoint_flush(shared, CutStage::Flush);
            }
            return;
        }
        if !shared.log.can_begin_metadata() {
            return;
        }
        let Some(copy) = shared.log.lend_to_checkpoint() else { return };
        let mut body = core::mem::take(&mut self.body);
        match self.encode_body(shared, &mut body) {
            Some(size) => self.put_body(shared, &mut body, size, copy, buffers),
            None => {
                shared.log.give_back(copy);
                shared.poison(ERRNO_TOO_LARGE);
            }
        }
        self.body = body;
    }

    /// Puts a body of `size` bytes into a record of its own, if there is one to be had, and its second copy
    /// before the log by way of `copy`, which was lent.
    fn put_body(
        &mut self,
        shared: &mut Shared,
        body: &mut [u8],
        size: usize,
        copy: RecordRef,
        buffers: &mut impl Buffers,
    ) {
        let count = size.div_ceil(BLOCK_SIZE) as u32;
        assert!(size <= BODY_SIZE_MAX as usize, "a body is one record");
        let extent =
            Extent { key: 0, count: count as u16, kind: Kind::Checkpoint, relocated: false };
        let Some(record) = shared.metadata_record(&extent, buffers) else {
            shared.log.give_back(copy);
            return;
        };
        // An earlier body may have been longer.
        body[size..count as usize * BLOCK_SIZE].fill(0);
        let (blocks, _) = body.as_chunks::<BLOCK_SIZE>();
        let payload = &mut buffers.record_mut(record)[1..=count as usize];
        for (index, (target, block)) in payload.iter_mut().zip(blocks).enumerate() {
            *target = *block;
            let checksum = checksum::block(Kind::Checkpoint, index as u64, block);
            let word = BlockWord { checksum, address: Pba::NOWHERE };
            shared.log.record_mut(record).words.push(word);
        }
        shared.log.record_mut(record).push_extent(extent);
        shared.statistics.checkpoint_blocks += u64::from(count);
        self.new_location = Some(CheckpointLocation {
            sequence: self.cut.sequence,
            pba: shared.log.record(record).header_pba.plus(1),
            size: size as u32,
            checksum: crc32c(&body[..size]),
            copy: self.write_body_copy(shared, &blocks[..count as usize], copy, buffers),
        });
        shared.seal(Stream::Metadata, buffers);
    }

    /// Writes the second copy, which lies before the log: no damage to a segment reaches it. Returns where.
    fn write_body_copy(
        &mut self,
        shared: &mut Shared,
        blocks: &[Block],
        buffer: RecordRef,
        buffers: &mut impl Buffers,
    ) -> Pba {
        assert!(self.body_copy.is_none(), "one checkpoint is written at a time");
        let count = blocks.len() as u32;
        let Superblock { geometry, checkpoint, .. } = &shared.superblock;
        let pba = body_copy_place(geometry, count, checkpoint.copy);
        if pba == Pba::NOWHERE || sings(Canary::BodyCopyMissing) {
            shared.log.give_back(buffer);
            return pba;
        }
        buffers.record_mut(buffer)[..blocks.len()].copy_from_slice(blocks);
        let (source, stream) = (Target::Record(buffer), Stream::Metadata);
        shared.ios.start(Purpose::Checkpoint, Command::Write { pba, count, source, stream });
        self.body_copy = Some(buffer);
        shared.statistics.checkpoint_blocks += u64::from(count);
        pba
    }

    fn encode_body(&mut self, shared: &Shared, bytes: &mut [u8]) -> Option<usize> {
        let Lists { runs, references, table, next_run, copies, .. } = &*shared.lists;
        let cut = &self.cut;
        let references = references.first(cut.references);
        let header = CheckpointHeader {
            sequence: cut.sequence,
            write_clock: cut.write_clock,
            sweep: cut.sweep,
            next_run: *next_run,
        };
        let root_lists = shared.superblock.geometry.root_lists;
        self.parities.list(references, copies);
        let parities = &self.parities;
        let counts = Counts {
            streams: Stream::COUNT as u16,
            reserved: (cut.reserved.len() + cut.holes.len()) as u32,
            roots: match root_lists {
                true => shared.lists.root_lists.len() as u32,
                false => shared.map.root_page_count() as u32,
            },
            root_lists,
            table: table.len() as u32,
            runs: runs.len() as u32,
            references: references.len() as u32,
            parities: parities.pointers().count() as u32,
            copies: true,
        };
        let mut writer = BodyWriter::new(&header, &counts, bytes);
        cut.heads.iter().for_each(|head| writer.head(*head));
        cut.reserved.iter().for_each(|segment| writer.reserved(*segment));
        cut.holes.iter().for_each(|segment| writer.reserved_holes(*segment));
        if root_lists {
            shared.lists.root_lists.iter().for_each(|pointer| writer.pointer(*pointer));
        } else {
            shared.map.root_pages().for_each(|(key, pointer)| writer.root(key, pointer));
        }
        table.iter().for_each(|pointer| writer.pointer(*pointer));
        for run in runs.iter() {
            let Run { number, sweep, blocks } = run;
            let block_count = blocks.len() as u32;
            writer.run(&RunHeader { number: *number, sweep: *sweep, block_count });
            blocks.iter().for_each(|pointer| writer.pointer(*pointer));
        }
        references.iter().for_each(|referred| writer.reference(&referred.reference));
        let place = |copy: Option<BlockPointer>, first: BlockPointer| match copy {
            _ if sings(Canary::CopyInPlace) => first.pba,
            Some(copy) => copy.pba,
            None => Pba::NOWHERE,
        };
        if root_lists {
            let mut pages = copies.in_order(Kind::RootListCopy);
            for (key, page) in (0..).zip(&shared.lists.root_lists) {
                writer.copy(place(pages.pointer(key), *page));
            }
        } else {
            for ((_, page), copy) in shared.map.root_pages().zip(shared.map.root_copies()) {
                writer.copy(if sings(Canary::CopyInPlace) { page.pba } else { copy });
            }
        }
        let mut pages = copies.in_order(Kind::TableCopy);
        for (key, page) in (0..).zip(table) {
            writer.copy(place(pages.pointer(key), *page));
        }
        let mut of_runs = copies.in_order(Kind::RunCopy);
        for Run { number, blocks, .. } in runs.iter() {
            for (index, block) in (0..).zip(blocks) {
                let copy = of_runs.pointer(number << RUN_KEY_SHIFT | index);
                writer.copy(place(copy, *block));
            }
        }
        parities.groups().for_each(|parity| writer.group(parity));
        parities.pointers().for_each(|pointer| writer.pointer(pointer));
        writer.finish()
    }
}
