//! Memory that is asked for while a store is opened, and may be refused.
//!
//! Where there is no operating system a request that is too large ends everything. So all that is in
//! proportion to a store or its configuration is asked for here: what is refused is an error of opening, and
//! a large table comes in pieces of at most [`PIECE_SIZE`].

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut, Index, IndexMut};

/// Bytes of a piece at most.
pub(crate) const PIECE_SIZE: usize = 1 << 20;

/// So many bytes were asked for, and refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory {
    pub(crate) bytes: usize,
}

impl NoMemory {
    fn of<T>(count: usize) -> NoMemory {
        NoMemory { bytes: count.saturating_mul(size_of::<T>()) }
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

/// An array of the same value, made where it stays: a kernel's stack has not the room.
pub(crate) fn boxed<T: Clone, const COUNT: usize>(value: T) -> Result<Box<[T; COUNT]>, NoMemory> {
    match filled(value, COUNT)?.into_boxed_slice().try_into() {
        Ok(array) => Ok(array),
        Err(_) => unreachable!("the list has this many items"),
    }
}

/// A value that lies apart from its owner, which a kernel's stack then has room for.
pub(crate) struct Apart<T>(Box<[T; 1]>);

impl<T> Apart<T> {
    // Not inline: else the caller's stack holds the value twice.
    #[inline(never)]
    pub(crate) fn new(value: T) -> Result<Apart<T>, NoMemory> {
        let mut one = list(1)?;
        one.push(value);
        match one.into_boxed_slice().try_into() {
            Ok(apart) => Ok(Apart(apart)),
            Err(_) => unreachable!("the list has one item"),
        }
    }
}

impl<T> Deref for Apart<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0[0]
    }
}

impl<T> DerefMut for Apart<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0[0]
    }
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

/// Makes room for `room` items in all, those in the list included.
pub(crate) fn reserve_in_all<T>(list: &mut Vec<T>, room: usize) -> Result<(), NoMemory> {
    list.try_reserve_exact(room.saturating_sub(list.len())).map_err(|_| NoMemory::of::<T>(room))
}

/// The same for a list of which the length grows step by step: what is there is not moved each time.
pub(crate) fn reserve_amply<T>(list: &mut Vec<T>, room: usize) -> Result<(), NoMemory> {
    list.try_reserve(room.saturating_sub(list.len())).map_err(|_| NoMemory::of::<T>(room))
}

/// One more.
pub(crate) fn push<T>(list: &mut Vec<T>, item: T) -> Result<(), NoMemory> {
    reserve(list)?;
    list.push(item);
    Ok(())
}

/// Items of a piece of a table.
const PIECE_ITEMS: usize = 256;

/// A table of which the size does not change, in pieces.
///
/// A piece is an array: an item is found with a shift and one comparison, as in a list. Behind the last item
/// the last piece holds the value that the table was filled with; nothing reads or counts it.
#[derive(Clone, Debug)]
pub(crate) struct Pieces<T> {
    pieces: Vec<Box<[T; PIECE_ITEMS]>>,
    length: usize,
}

impl<T: Clone> Pieces<T> {
    /// The same value so many times.
    pub(crate) fn filled(value: T, length: usize) -> Result<Pieces<T>, NoMemory> {
        const {
            assert!(PIECE_ITEMS * size_of::<T>() <= PIECE_SIZE, "no piece is larger than it may be")
        };
        let mut pieces = list(length.div_ceil(PIECE_ITEMS))?;
        for _ in 0..length.div_ceil(PIECE_ITEMS) {
            pieces.push(boxed(value.clone())?);
        }
        assert!(pieces.len() * PIECE_ITEMS >= length, "there is a piece for each");
        Ok(Pieces { pieces, length })
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        (index < self.length).then(|| &self[index])
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        if index < self.length { Some(&mut self[index]) } else { None }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pieces.iter().flat_map(|piece| piece.iter()).take(self.length)
    }

    /// From this one on.
    pub(crate) fn iter_from(&self, first: usize) -> impl Iterator<Item = &T> {
        (first..self.length).map(|index| &self[index])
    }
}

impl<T> Index<usize> for Pieces<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: usize) -> &T {
        debug_assert!(index < self.length, "the table is shorter");
        &self.pieces[index / PIECE_ITEMS][index % PIECE_ITEMS]
    }
}

impl<T> IndexMut<usize> for Pieces<T> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut T {
        debug_assert!(index < self.length, "the table is shorter");
        &mut self.pieces[index / PIECE_ITEMS][index % PIECE_ITEMS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::OpenError;

    #[test]
    fn no_piece_is_larger_than_it_may_be_and_each_item_has_its_place() {
        let count = 3 * PIECE_ITEMS + 7;
        let mut table = Pieces::filled([0u32; 5], count).expect("there is memory");
        for index in 0..count {
            table[index] = [index as u32; 5];
        }
        let sizes = table.pieces.iter().map(|piece| size_of_val(&**piece));
        assert_eq!(sizes.clone().count(), 4);
        assert!(sizes.clone().all(|size| size <= PIECE_SIZE));
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
