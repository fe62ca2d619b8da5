//! Nodes that the kernel has forgotten: a file handle of the mount may still name them.
//!
//! A server of files, or a program with `name_to_handle_at`, keeps a handle for as long as it likes. When the kernel
//! has dropped the node from its caches it looks `.` up by the number in the handle.

use crate::lower::Handle;
use std::collections::{HashMap, VecDeque};

/// Nodes that are remembered at most, about 100 bytes each.
const NODES_MAX: usize = 1 << 18;

/// The nodes that were forgotten last, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    handles: HashMap<u64, Handle>,
    /// Numbers in the order in which they came; each is in `handles`.
    order: VecDeque<u64>,
}

impl Remembered {
    /// Notes a node that the kernel forgets. The oldest one goes if there are too many.
    pub(crate) fn add(&mut self, number: u64, handle: Handle) {
        if self.handles.insert(number, handle).is_none() {
            self.order.push_back(number);
        }
        if self.order.len() > NODES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.handles.remove(&oldest);
        }
        assert_eq!(self.order.len(), self.handles.len(), "each node is in both");
    }

    /// The handle of a node that was forgotten.
    pub(crate) fn handle_of(&self, number: u64) -> Option<Handle> {
        self.handles.get(&number).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_nodes_are_remembered_with_their_latest_handles() {
        let handle = |byte: u8| Handle::new(1, &[byte; 8]).expect("it is short");
        let mut nodes = Remembered::default();
        for number in 0..NODES_MAX as u64 + 10 {
            nodes.add(number, handle(1));
        }
        assert_eq!(nodes.handle_of(9), None, "ten have gone");
        assert_eq!(nodes.handle_of(10), Some(handle(1)));
        nodes.add(10, handle(2));
        assert_eq!(nodes.handle_of(10), Some(handle(2)));
        assert_eq!(nodes.handle_of(11), Some(handle(1)), "nothing went for it");
    }
}
