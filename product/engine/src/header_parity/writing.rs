//! Writing the parity of groups that are closed.

use super::TOGETHER;
use crate::api::Buffers;
use crate::shared::Shared;
use crate::units::Stream;
use coulter_format::checksum::{self, Kind};
use coulter_format::record::Extent;

impl Shared {
    /// Writes the parity of groups that are closed when there are enough, but not while a checkpoint is being written:
    /// its cut takes all of them.
    pub(crate) fn write_header_parities(&mut self, buffers: &mut impl Buffers) {
        let may = self.poisoned.is_none() && !self.signals.checkpoint_is_active();
        if !may || self.header_parities.count_closed() < TOGETHER {
            return;
        }
        while let Some(index) = self.header_parities.groups.iter().position(|g| g.is_closed) {
            let key = self.header_parities.groups[index].first.0.into();
            let kind = Kind::HeaderParity;
            let extent = Extent { key, count: 1, kind, relocated: false };
            let Some(record) = self.metadata_record(&extent, buffers) else { break };
            let place = 1 + self.log.record(record).payload as usize;
            assert!(place < crate::api::RECORD_BLOCKS, "a record that takes it has room");
            let content = &self.header_parities.blocks[index];
            let checksum = checksum::block(kind, key, content);
            buffers.record_mut(record)[place] = *content;
            self.push_metadata(record, extent, checksum);
            self.statistics.header_parity_blocks += 1;
            self.header_parities.groups.swap_remove(index);
            let last = self.header_parities.groups.len();
            assert!(index <= last, "what was written is put last, and out");
            self.header_parities.blocks.swap(index, last);
        }
        if self.log.filling(Stream::Metadata).is_some() {
            self.seal(Stream::Metadata, buffers);
        }
    }
}
