//! A store that takes in more of its device.
//!
//! Nothing moves: new segments come after the old ones, all of them free, and the volume gets
//! addresses that are not mapped yet. The superblocks stay where they are.
//!
//! # Power-loss contract
//! The new sizes become durable with a superblock, in the same way as a checkpoint does: pages of the
//! segment table for the new segments are durable before it. Until then the newest superblock is one
//! of the old sizes, and leads to a store that knows nothing of the new ones. No segment is written
//! before a checkpoint has reserved it, so none of the new ones is before that.

pub use crate::config::Growth;
use crate::create::{
    CreateOptions, POINTER_SIZE, Sparse, capacity_alike, map_size_default_of, map_size_min_of,
    plan, spare_percent_min, spare_percent_of,
};
pub use crate::error::GrowthError;
use crate::error::OpenError;
use crate::map::directory_size_of;
use crate::memory;
use crate::pacing::{Pacing, Watermarks};
use crate::shared::Shared;
use coulter_format::BlockPointer;
use coulter_format::segment_table::SEGMENTS_PER_PAGE;
use coulter_format::superblock::Geometry;

impl Shared {
    /// Takes in the rest of the device, if that is asked for. To be called when recovery is done and
    /// before its checkpoint, which makes it durable.
    ///
    /// # Errors
    /// [`OpenError::Growth`], and nothing has changed then; or [`OpenError::Memory`].
    pub(crate) fn grow(&mut self) -> Result<(), OpenError> {
        let Some(growth) = self.config.growth.filter(|_| !self.config.read_only) else {
            return Ok(());
        };
        let geometry = self.grown_geometry(growth).map_err(OpenError::Growth)?;
        let old = self.superblock.geometry;
        assert!(geometry.volume_size >= old.volume_size, "no address is lost");
        let held = self.map.holds_addresses_below(geometry.device_size);
        assert!(held, "the map was made for the whole device");
        let mut budget = self.superblock.budget;
        // A store that was made to have its whole map in memory stays one.
        let whole = budget.map_size >= old.capacity * POINTER_SIZE;
        let needed = if whole { map_size_default_of } else { map_size_min_of }(&geometry);
        // What recovery may need is let in by the frames that there are: a larger directory must not
        // leave the next opening less of them.
        let kept = budget.map_size + directory_size_of(&geometry) - directory_size_of(&old);
        budget.map_size = kept.max(needed);
        // The next opening would be refused.
        if self.config.map_size.is_some_and(|allowed| allowed < budget.map_size) {
            let refused = GrowthError::MapMemory { needed: budget.map_size };
            return Err(OpenError::Growth(refused));
        }
        self.superblock.budget = budget;
        self.superblock.geometry = geometry;
        let map_size = self.map_size();
        self.map.grow(&geometry, map_size)?;
        self.segments.grow(geometry)?;
        let pages = (geometry.segment_count as usize).div_ceil(SEGMENTS_PER_PAGE);
        assert!(pages >= self.lists.table.len(), "no page is given up");
        while self.lists.table.len() < pages {
            memory::push(&mut self.lists.table, BlockPointer::NOWHERE)?;
        }
        let marks = Watermarks::of(&geometry, &self.superblock.budget);
        self.pacing = Pacing::new(marks);
        *self.placer = self.placer.renewed(marks.spare);
        Ok(())
    }

    fn grown_geometry(&self, growth: Growth) -> Result<Geometry, GrowthError> {
        let old = self.superblock.geometry;
        let needed = spare_percent_min(old.segment_blocks) as u32;
        if growth.volume_size.is_none() && growth.spare_percent.is_some_and(|spare| spare < needed)
        {
            return Err(GrowthError::SpareTooSmall { needed });
        }
        let wishes = CreateOptions {
            device_size: self.device_size,
            volume_size: growth.volume_size,
            sparse: old.is_sparse().then_some(Sparse {
                address_limit: old.volume_size,
                root_limit: Some(old.root_limit),
                root_lists: old.root_lists,
            }),
            segment_blocks: old.segment_blocks,
            page_blocks: old.has_pages().then_some(old.page_blocks),
            // Without a wish, as little as there may be at first.
            spare_percent: growth.spare_percent.unwrap_or(0),
            store: self.superblock.store,
            label: self.superblock.label,
            map_size: None,
            journal_size: Some(self.superblock.budget.journal_size),
            run_count_limit: Some(self.superblock.budget.run_count_limit),
        };
        let (mut new, _) = plan(&wishes).map_err(GrowthError::Layout)?;
        let places = |geometry: &Geometry| (geometry.first_segment, geometry.second_superblock);
        if new.segment_count < old.segment_count || places(&new) != places(&old) {
            let log = u64::from(old.segment_count) * u64::from(old.segment_blocks);
            return Err(GrowthError::StoreShrinks { needed: u64::from(old.first_segment.0) + log });
        }
        if growth.volume_size.is_some_and(|wanted| wanted < old.capacity) {
            return Err(GrowthError::VolumeShrinks { present: old.capacity });
        }
        if growth.spare_percent.is_some() && new.capacity < old.capacity {
            let present = old.capacity;
            let limit = spare_percent_of(&Geometry { capacity: present, ..new }, &wishes);
            return Err(GrowthError::SpareTooLarge { present, limit });
        }
        if growth.volume_size.is_none() && growth.spare_percent.is_none() {
            new.capacity = new.capacity.min(capacity_alike(&new, &old, &wishes));
        }
        new.capacity = new.capacity.max(old.capacity);
        new.volume_size = if old.is_sparse() { old.volume_size } else { new.capacity };
        Ok(new)
    }
}
