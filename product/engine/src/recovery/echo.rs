//! A header behind the checkpoint that is damaged, or cannot be read: it is rebuilt from what the header of the next
//! sequence tells of it, and from its payload.
//!
//! # Power-loss contract
//! The record of a rebuilt header is wholly there, payload included: the checksum of what was rebuilt covers those of all
//! its blocks. So it counts as if its header had been found. Only what is attested to be durable is rebuilt: a header that
//! is missing since the power went while it was written stays missing, and what lies behind it is overwritten.

use super::PAGE;
use super::{JobKind, Recovery, Walk};
use crate::api::{Buffers, RECORD_BLOCKS, RecordRef, Target};
use crate::canary::{Canary, sings};
use crate::error::OpenError;
use crate::memory::{self, NoMemory};
use crate::shared::Shared;
use crate::units::segment_start;
use coulter_format::record::RecordView;
use coulter_format::{BLOCK_SIZE, Block, Pba};

impl Recovery {
    /// Notes of which header an intact one tells.
    pub(super) fn hear(&mut self, view: &RecordView<'_>, epoch: u64) -> Result<(), NoMemory> {
        match view.echo() {
            Some(echo) if view.header().epoch == epoch => {
                memory::push(&mut self.echoes, (echo.pba(), view.header().pba))
            }
            _ => Ok(()),
        }
    }

    /// When all walks have ended: asks for what is told of a header with which one of them would have gone on.
    /// Returns whether there is any.
    pub(super) fn ask_for_echo(&mut self, shared: &mut Shared) -> bool {
        if sings(Canary::CopyUnused) {
            return false;
        }
        for index in 0..self.walks.len() {
            let walk = &mut self.walks[index];
            let Some(end) = walk.end.filter(|_| !walk.end_is_settled) else { continue };
            walk.end_is_settled = true;
            if let Some((_, holder)) = self.echoes.iter().rev().find(|(pba, _)| *pba == end) {
                let pba = *holder;
                let kind = JobKind::Echo { walk: index };
                self.start_job(shared, kind, pba, 1, Target::Page(PAGE));
                return true;
            }
        }
        false
    }

    /// The header was read that tells of the one with which a walk ended.
    pub(super) fn take_holder(
        &mut self,
        shared: &mut Shared,
        walk: usize,
        pba: Pba,
        holder: Option<Block>,
        buffers: &mut impl Buffers,
    ) -> Result<(), OpenError> {
        let Some(holder) = holder else { return Ok(()) };
        let store = shared.superblock.store;
        let Walk { segment, latest, end, .. } = self.walks[walk];
        let end = end.expect("a walk that has ended is asked about");
        let start = segment_start(&shared.superblock.geometry, segment);
        let Ok(view) = RecordView::decode(&holder, &store, pba) else { return Ok(()) };
        let Some(echo) = view.echo() else { return Ok(()) };
        let count = u32::from(echo.payload_size());
        let room = shared.superblock.geometry.segment_blocks - (end.0 - start.0);
        if echo.pba() != end || echo.sequence() <= latest || count >= room {
            return Ok(());
        }
        // What nothing attests was being written when the power went: it is dropped, header and all.
        if echo.sequence() > self.durable {
            return Ok(());
        }
        self.rebuilt.clear();
        self.rebuilt.push(holder);
        let buffer = shared.log.lend().expect("all walks have ended");
        if count > 0 {
            let kind = JobKind::Echoed { walk, holder: pba };
            self.start_job(shared, kind, end.plus(1), count, Target::Record(buffer));
            return Ok(());
        }
        self.take_payload(shared, (walk, pba), buffer, Ok(0), buffers)?;
        shared.log.give_back(buffer);
        Ok(())
    }

    /// So many blocks of payload were read; or they were not. The walk goes on, if the header is what was written.
    pub(super) fn take_payload(
        &mut self,
        shared: &mut Shared,
        (walk, holder_pba): (usize, Pba),
        buffer: RecordRef,
        result: Result<u32, i32>,
        buffers: &mut impl Buffers,
    ) -> Result<(), OpenError> {
        let holder = self.rebuilt.pop().expect("a header tells of it");
        let store = shared.superblock.store;
        let Ok(count) = result else {
            let view = RecordView::decode(&holder, &store, holder_pba);
            let echo = view.ok().and_then(|view| view.echo());
            return echo.map_or(Ok(()), |echo| self.note_told(&echo));
        };
        let end = self.walks[walk].end.expect("a walk that has ended is asked about");
        let start = segment_start(&shared.superblock.geometry, self.walks[walk].segment);
        let mut header = [0; BLOCK_SIZE];
        let view = RecordView::decode(&holder, &store, holder_pba);
        let echo = view.ok().and_then(|view| view.echo());
        let blocks = &mut buffers.record_mut(buffer)[..1 + count as usize];
        let payload = &blocks[..count as usize];
        let is_whole = echo.is_some_and(|echo| echo.rebuild(&store, payload, &mut header));
        if !is_whole && !sings(Canary::EchoUnverified) {
            return echo.map_or(Ok(()), |echo| self.note_told(&echo));
        }
        // What fills the last page of the flash below is the record's, too. It was not read, and nothing looks at it.
        let span = RecordView::decode(&header, &store, end).map(|view| view.header().span());
        let span = (span.unwrap_or(1) as usize).max(1 + count as usize);
        if span > RECORD_BLOCKS {
            // No walk would take a record that has no buffer.
            return echo.map_or(Ok(()), |echo| self.note_told(&echo));
        }
        assert_eq!(payload.len(), count as usize, "all of it was read");
        blocks.copy_within(..count as usize, 1);
        blocks[0] = header;
        shared.statistics.metadata_copies_used += 1;
        self.mend(end, &blocks[0])?;
        // Headers behind it may attest more.
        self.walks.iter_mut().for_each(|walk| walk.end_is_settled = false);
        let offset = end.0 - start.0;
        assert!(offset < shared.superblock.geometry.segment_blocks, "a walk ends in its segment");
        self.walks[walk] = Walk { offset, probe: 0, end: None, ..self.walks[walk] };
        self.walk_on(shared, walk, &buffers.record(buffer)[..span])?;
        if self.walks[walk].end == Some(end) {
            // It is no record of this walk: asking again would never end.
            self.walks[walk].end_is_settled = true;
        }
        Ok(())
    }
}
