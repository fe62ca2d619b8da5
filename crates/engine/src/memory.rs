//! Memory that is asked for while a store is opened, and may be refused.
//!
//! Where there is no operating system a request that is too large ends everything. So all that is in
//! proportion to a store or its configuration is asked for here: what is refused is an error of opening, and
//! a large table comes in pieces of at most [`PIECE_SIZE`].

use crate::api::OpenError;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

/// Bytes of a piece at most.
pub(crate) const PIECE_SIZE: usize = 1 << 20;

/// So many bytes were asked for, and refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory {
    bytes: usize,
}

impl NoMemory {
    fn of<T>(count: usize) -> NoMemory {
        NoMemory { bytes: count.saturating_mul(size_of::<T>()) }
    }
}

impl From<NoMemory> for OpenError {
    fn from(refused: NoMemory) -> OpenError {
        OpenError::Memory { needed: refused.bytes as u64 }
    }
}

/// An empty list with room for so many.
pub(crate) fn list<T>(room: usize) -> Result<Vec<T>, NoMemory> {
    let mut list = Vec::new();
    list.try_reserve_exact(room).map_err(|_| NoMemory::of::<T>(room))?;
    Ok(list)
}

/// An empty queue with room for so many.
pub(crate) fn queue<T>(room: usize) -> Result<VecDeque<T>, NoMemory> {
    let mut queue = VecDeque::new();
    queue.try_reserve_exact(room).map_err(|_| NoMemory::of::<T>(room))?;
    Ok(queue)
}

/// The same value so many times.
pub(crate) fn filled<T: Clone>(value: T, count: usize) -> Result<Vec<T>, NoMemory> {
    let mut filled = list(count)?;
    filled.resize(count, value);
    Ok(filled)
}

/// All that comes.
pub(crate) fn listed<T>(items: impl IntoIterator<Item = T>) -> Result<Vec<T>, NoMemory> {
    let mut all = Vec::new();
    for item in items {
        push(&mut all, item)?;
    }
    Ok(all)
}

/// Room for one more.
pub(crate) fn reserve<T>(list: &mut Vec<T>) -> Result<(), NoMemory> {
    list.try_reserve(1).map_err(|_| NoMemory::of::<T>(list.len() + 1))
}

/// One more.
pub(crate) fn push<T>(list: &mut Vec<T>, item: T) -> Result<(), NoMemory> {
    reserve(list)?;
    list.push(item);
    Ok(())
}

/// A table of which the size does not change, in pieces.
#[derive(Clone, Debug)]
pub(crate) struct Pieces<T> {
    pieces: Vec<Vec<T>>,
    length: usize,
}

impl<T: Clone> Pieces<T> {
    /// Items of a piece: a power of two of them.
    const SHIFT: u32 = (PIECE_SIZE / size_of::<T>()).ilog2();

    /// The same value so many times.
    pub(crate) fn filled(value: T, length: usize) -> Result<Pieces<T>, NoMemory> {
        let mut pieces = list(length.div_ceil(1 << Self::SHIFT))?;
        let mut left = length;
        while left > 0 {
            let count = left.min(1 << Self::SHIFT);
            pieces.push(filled(value.clone(), count)?);
            left -= count;
        }
        assert!(pieces.len() << Self::SHIFT >= length, "there is a piece for each");
        Ok(Pieces { pieces, length })
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.pieces.get(index >> Self::SHIFT)?.get(index & ((1 << Self::SHIFT) - 1))
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.pieces.get_mut(index >> Self::SHIFT)?.get_mut(index & ((1 << Self::SHIFT) - 1))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pieces.iter().flatten()
    }

    /// From this one on.
    pub(crate) fn iter_from(&self, first: usize) -> impl Iterator<Item = &T> {
        (first..self.length).map(|index| &self[index])
    }
}

impl<T: Clone> Index<usize> for Pieces<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: usize) -> &T {
        &self.pieces[index >> Self::SHIFT][index & ((1 << Self::SHIFT) - 1)]
    }
}

impl<T: Clone> IndexMut<usize> for Pieces<T> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut T {
        &mut self.pieces[index >> Self::SHIFT][index & ((1 << Self::SHIFT) - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_piece_is_larger_than_it_may_be_and_each_item_has_its_place() {
        let count = 3 * PIECE_SIZE / size_of::<[u32; 5]>() + 7;
        let mut table = Pieces::filled([0u32; 5], count).expect("there is memory");
        for index in 0..count {
            table[index] = [index as u32; 5];
        }
        let sizes = table.pieces.iter().map(|piece| piece.capacity() * size_of::<[u32; 5]>());
        assert!(sizes.clone().count() > 3 && sizes.clone().all(|size| size <= PIECE_SIZE));
        assert!(table.iter().map(|item| item[3] as usize).eq(0..count));
        assert!(table.iter_from(count - 2).map(|item| item[0] as usize).eq(count - 2..count));
        assert_eq!(table.get(count), None);
        assert_eq!(table.len(), count);
    }

    #[test]
    fn what_cannot_be_had_is_an_error() {
        let refused = list::<u64>(usize::MAX / 8).expect_err("nobody has that much");
        assert!(
            matches!(OpenError::from(refused), OpenError::Memory { needed } if needed > 1 << 60)
        );
        assert!(queue::<u64>(usize::MAX / 8).is_err());
    }
}
