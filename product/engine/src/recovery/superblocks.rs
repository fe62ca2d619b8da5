//! The superblocks: both copies are looked for, and the newest valid one is adopted.

use super::{JobKind, Recovery, SuperblockError, damaged};
use crate::api::{Buffers, PageRef, Target};
use crate::config::Prepare;
use crate::error::OpenError;
use crate::map::{EntryWidth, Map};
use crate::pacing::{Pacing, Watermarks};
use crate::segments::Segments;
use crate::shared::Shared;
use coulter_format::superblock::{FIRST_SUPERBLOCK, Superblock, third_superblocks};
use coulter_format::{Corrupt, NUMBER_LIMIT_AT_OPENING, Pba, Reason, Structure};

/// Where superblock B lies for every segment size that there can be.
const SECOND_SUPERBLOCKS: [Pba; 11] = {
    let mut places = [Pba(0); 11];
    let mut index = 0;
    while index < places.len() {
        places[index] = Pba(128 << index);
        index += 1;
    }
    places
};

impl Recovery {
    pub(super) fn read_superblocks(
        &mut self,
        shared: &mut Shared,
        buffers: &mut impl Buffers,
    ) -> Result<bool, OpenError> {
        if !self.begun {
            self.begun = true;
            let places = core::iter::once(FIRST_SUPERBLOCK).chain(SECOND_SUPERBLOCKS);
            let device_size = shared.device_size;
            let places = places.filter(|pba| u64::from(pba.0) < device_size);
            for (index, pba) in places.enumerate() {
                let page = Target::Page(PageRef(index as u16));
                self.start_job(shared, JobKind::Superblock(pba), pba, 1, page);
            }
        }
        while let Some((job, result)) = self.take_job() {
            let Target::Page(page) = job.target else { unreachable!("superblocks go to pages") };
            match result.map(|()| Superblock::decode(buffers.page(page))) {
                Err(errno) => self.superblock_errors.push(SuperblockError::Device(errno)),
                Ok(Err(corrupt)) => {
                    self.superblock_errors.push(SuperblockError::Corrupt(job.pba, corrupt));
                }
                Ok(Ok(superblock)) => {
                    if !superblock.belongs_at(job.pba) {
                        continue;
                    }
                    let newer =
                        self.newest.is_none_or(|best| superblock.generation > best.generation);
                    if newer {
                        self.newest = Some(superblock);
                    }
                }
            }
        }
        if self.jobs_out() {
            return Ok(false);
        }
        let is_of_another = of_another_program(self, |_| true).is_some();
        if self.newest.is_none() && !self.third_is_sought && !is_of_another {
            self.third_is_sought = true;
            for (index, pba) in third_superblocks(shared.device_size).enumerate() {
                let page = Target::Page(PageRef(index as u16));
                self.start_job(shared, JobKind::Superblock(pba), pba, 1, page);
            }
            // On a device of a block or none there is no place for one.
            if self.jobs_out() {
                return Ok(false);
            }
        }
        let Some(superblock) = self.newest else { return Err(no_superblock(self)) };
        // What has overwritten the first two may be somebody's, and is not overwritten in turn.
        if self.third_is_sought && !shared.config.read_only {
            return Err(OpenError::FirstSuperblocksLost);
        }
        // It may be the newer one. To go on from the other would overwrite it.
        let places = [FIRST_SUPERBLOCK, superblock.geometry.second_superblock];
        if let Some(error) = of_another_program(self, |pba| places.contains(&pba)) {
            return Err(error);
        }
        self.adopt(shared, superblock)?;
        Ok(true)
    }

    fn adopt(&mut self, shared: &mut Shared, superblock: Superblock) -> Result<(), OpenError> {
        let geometry = superblock.geometry;
        let end = u64::from(geometry.first_segment.0)
            + u64::from(geometry.segment_blocks) * u64::from(geometry.segment_count);
        if end > shared.device_size {
            return Err(OpenError::Truncated { needed: end, found: shared.device_size });
        }
        if !shared.config.read_only {
            let numbers = [
                (superblock.generation, "generation"),
                (superblock.epoch, "epoch"),
                (superblock.epoch_max, "epoch_max"),
                (superblock.checkpoint.sequence, "checkpoint_sequence"),
            ];
            let spent = numbers.iter().find(|(number, _)| *number >= NUMBER_LIMIT_AT_OPENING);
            if let Some((_, name)) = spent {
                let place = superblock.location();
                return Err(damaged(Structure::Superblock, Reason::Field(name), place));
            }
        }
        shared.superblock = superblock;
        let needed = superblock.budget.map_size;
        let map_size = shared.map_size();
        let too_small = OpenError::MapMemory { needed };
        if map_size < needed {
            return Err(too_small);
        }
        // A store that grows has addresses up to the end of the device as soon as it is opened.
        let grows = shared.config.growth.is_some() && !shared.config.read_only;
        let width = EntryWidth::of_addresses_below(if grows { shared.device_size } else { end });
        if !make_map(shared, map_size, width)? {
            return Err(too_small);
        }
        *shared.segments = Segments::new(geometry)?;
        if shared.config.prepare == Prepare::Space {
            shared.segments.need_space();
        }
        shared.set_reclaim(shared.config.reclaim);
        let (wanted, atomic) = (shared.config.pad_pages, shared.config.atomic_page_blocks);
        shared.segments.holes.set_pads(wanted, geometry.page_blocks, atomic)?;
        assert!(shared.log.order.is_empty(), "nothing is on its way while a store is opened");
        let marks = Watermarks::of(&geometry, &superblock.budget);
        shared.pacing = Pacing::new(marks);
        *shared.placer = shared.placer.renewed(marks.spare);
        shared.log.applied = superblock.checkpoint.sequence;
        Ok(())
    }
}

/// Makes the map of the store that was found. False if that is too little memory for it.
// Not inlined: its locals would enlarge the caller's stack frame.
#[inline(never)]
fn make_map(shared: &mut Shared, map_size: u64, width: EntryWidth) -> Result<bool, OpenError> {
    let Superblock { geometry, budget, .. } = &shared.superblock;
    let map = Map::new(geometry, map_size, width, *budget)?;
    let fits = map.is_some();
    if let Some(map) = map {
        *shared.map = map;
    }
    Ok(fits)
}

/// That a whole superblock in one of these places is of a version, or has features, that are not known here.
fn of_another_program(r: &Recovery, is_place: impl Fn(Pba) -> bool) -> Option<OpenError> {
    r.superblock_errors.iter().find_map(|error| match error {
        SuperblockError::Corrupt(pba, corrupt) if is_place(*pba) => match corrupt.reason {
            Reason::Version(version) => Some(OpenError::Version(version)),
            Reason::Features(features) => Some(OpenError::Features(features)),
            _ => None,
        },
        _ => None,
    })
}

/// What to say when no superblock is valid.
fn no_superblock(r: &Recovery) -> OpenError {
    if let Some(error) = of_another_program(r, |_| true) {
        return error;
    }
    let mut answer = OpenError::NotAStore;
    for error in &r.superblock_errors {
        match error {
            SuperblockError::Corrupt(_, Corrupt { reason: Reason::Magic, .. }) => {}
            SuperblockError::Corrupt(_, corrupt) => {
                answer = OpenError::Damaged { corrupt: *corrupt, pba: FIRST_SUPERBLOCK };
            }
            SuperblockError::Device(errno) if answer == OpenError::NotAStore => {
                answer = OpenError::Device(*errno);
            }
            SuperblockError::Device(_) => {}
        }
    }
    answer
}
