//! The images of root pages that changed, some at a time, so that no turn takes long however many there are.
//!
//! The first are taken at the cut, the others when those before them are on the device. What a root says is where its
//! leaf pages lie, and a checkpoint must say where they lay at its cut: the segment table counts them there. Nothing
//! moves them until the last image is taken: the sweep rests while a checkpoint is written, and the cleaner begins no
//! relocation, as before the cut. That costs no room, since what it empties after a cut is of no use to this
//! checkpoint. Where all changed roots fit into the first images, the cleaner does not wait.

use super::Checkpointer;
use crate::map::journal::EMPTY_BLOCK;
use crate::shared::Shared;
use crate::units::Sequence;
use coulter_format::checksum::Kind;
use coulter_format::{BlockPointer, map_page};

/// Roots that are gone through at once. Few where the engine is verified: the simulator's stores have few roots.
const TAKEN_MAX: usize = if cfg!(feature = "verify") { 4 } else { 64 };

impl Checkpointer {
    /// Takes the first images, at the cut, behind those that are there already.
    pub(super) fn cut_roots(&mut self, shared: &mut Shared, now: Sequence) {
        let before = self.images.len();
        let (images, image_keys) = (&mut self.images, &mut self.image_keys);
        let image = |key, leaves: &mut dyn Iterator<Item = BlockPointer>| {
            images.extend_from_slice(&EMPTY_BLOCK);
            let page = images.last_mut().expect("it was just added");
            map_page::encode(leaves, page);
            image_keys.push((Kind::Root, key));
        };
        let are_more = shared.map.cut_roots(&mut shared.segments, now, TAKEN_MAX, image);
        assert!(self.images.len() - before <= TAKEN_MAX, "a turn has an end");
        shared.signals.roots_are_cut = are_more;
        let taken = (self.images.len() - before) as u64;
        let most = &mut shared.statistics.root_images_at_once;
        *most = taken.max(*most);
    }

    /// Takes the next images, all others having been written. False if there are none.
    pub(super) fn take_roots(&mut self, shared: &mut Shared) -> bool {
        // Others that changed since, if any did, are for the next checkpoint.
        while shared.signals.roots_are_cut && self.images.is_empty() {
            self.cut_roots(shared, shared.log.now());
        }
        !self.images.is_empty()
    }

    /// Forgets the images that were written.
    pub(super) fn clear_images(&mut self) {
        assert_eq!(self.next_image, 2 * self.images.len(), "what was taken before is written");
        self.images.clear();
        self.image_keys.clear();
        self.next_image = 0;
    }
}
