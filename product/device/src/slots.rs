//! A table of commands in flight, addressed by small numbers that serve as tags below.
//!
//! It grows to the largest number ever in flight and never shrinks, so that a device allocates
//! nothing per command once it has seen its deepest queue.

/// A table of values with room that is used again.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(crate) fn with_capacity(capacity: usize) -> Slots<T> {
        let mut slots = Slots { slots: Vec::with_capacity(capacity), free: Vec::new() };
        slots.free.reserve(capacity);
        slots
    }

    /// Stores `value` and returns its number.
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            debug_assert!(slot.is_none(), "a free slot is empty");
            *slot = Some(value);
            return u64::from(index);
        }
        let index = self.slots.len();
        assert!(index < u32::MAX as usize, "fewer commands are in flight than tags exist");
        self.slots.push(Some(value));
        // So that giving the slot back does not allocate either.
        self.free.reserve(self.slots.len());
        index as u64
    }

    /// Takes the value of a number back.
    ///
    /// # Panics
    /// When there is none: a completion that nobody waits for is a bug in the device below.
    #[inline]
    pub(crate) fn remove(&mut self, index: u64) -> T {
        let slot = usize::try_from(index).ok().and_then(|index| self.slots.get_mut(index));
        let value = slot.and_then(Option::take);
        let value = value.expect("a completion answers a command in flight");
        self.free.push(index as u32);
        value
    }

    /// The value of a number.
    #[inline]
    pub(crate) fn value_mut(&mut self, index: u64) -> &mut T {
        let slot = usize::try_from(index).ok().and_then(|index| self.slots.get_mut(index));
        slot.and_then(Option::as_mut).expect("a completion answers a command in flight")
    }

    /// How many values there are.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_used_again() {
        let mut slots = Slots::with_capacity(2);
        let (first, second) = (slots.insert('a'), slots.insert('b'));
        assert_eq!((first, second, slots.len()), (0, 1, 2));
        assert_eq!(slots.remove(first), 'a');
        assert_eq!(slots.insert('c'), 0);
        *slots.value_mut(0) = 'd';
        assert_eq!(slots.remove(0), 'd');
        assert_eq!(slots.len(), 1);
    }

    #[test]
    #[should_panic(expected = "answers a command in flight")]
    fn a_completion_for_nobody_is_a_bug() {
        Slots::<()>::with_capacity(1).remove(0);
    }
}
