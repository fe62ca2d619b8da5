//! The pages of the list of roots, of a store that has one: those that changed are written, some at a time.
//!
//! They are written behind the root pages and their copies, for they say where these lie. Each is gone past once: what
//! the cleaner moves after that is in the next checkpoint. This one leads to where it lay, and there it stays: a segment
//! that is emptied after a cut is not opened before the checkpoint of the next cut is durable.

use super::Checkpointer;
use crate::canary::{Canary, sings};
use crate::map::journal::EMPTY_BLOCK;
use crate::shared::Shared;
use coulter_format::BlockPointer;
use coulter_format::checksum::Kind;

/// Pages whose images are in memory at once.
const IMAGES_MAX: usize = 64;

impl Checkpointer {
    /// Takes images of the next pages that changed, all other images having been written. False if there are none.
    pub(super) fn take_root_lists(&mut self, shared: &mut Shared) -> bool {
        assert!(self.images.is_empty(), "what was taken before is written");
        let lists = &mut shared.lists.root_lists;
        while lists.len() < shared.map.root_list_count() {
            assert!(lists.len() < lists.capacity(), "there is room for all pages");
            shared.map.root_list_is_to_be_written(lists.len());
            lists.push(BlockPointer::NOWHERE);
        }
        while self.images.len() < IMAGES_MAX {
            let Some(page) = shared.map.take_changed_root_list(self.next_list) else { break };
            self.next_list = page + 1;
            if sings(Canary::RootListStale) && shared.lists.root_lists[page].is_mapped() {
                continue;
            }
            self.images.extend_from_slice(&EMPTY_BLOCK);
            let image = self.images.last_mut().expect("it was just added");
            shared.map.encode_root_list(page, image);
            self.image_keys.push((Kind::RootList, page as u64));
        }
        !self.images.is_empty()
    }
}
