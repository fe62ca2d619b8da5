//! Which operation may change a file's blocks, while that takes more than one step.

/// One lock for each file whose blocks an operation is changing.
#[derive(Default)]
pub(crate) struct Locks(Vec<Lock>);

struct Lock {
    inode: u64,
    owner: usize,
    waiting: Vec<usize>,
}

impl Locks {
    /// Makes the task the only one that changes the blocks of a file; false if it has to wait for
    /// that.
    pub(crate) fn lock(&mut self, task: usize, inode: u64) -> bool {
        match self.0.iter_mut().find(|lock| lock.inode == inode) {
            Some(lock) if lock.owner == task => true,
            Some(lock) => {
                lock.waiting.push(task);
                false
            }
            None => {
                self.0.push(Lock { inode, owner: task, waiting: Vec::new() });
                true
            }
        }
    }

    /// Returns whether another task changes the blocks of a file; then the task waits.
    pub(crate) fn must_wait(&mut self, task: usize, inode: u64) -> bool {
        match self.0.iter_mut().find(|lock| lock.inode == inode && lock.owner != task) {
            Some(lock) => {
                lock.waiting.push(task);
                true
            }
            None => false,
        }
    }

    /// Gives up what a task has, and wakes the tasks that waited for it.
    pub(crate) fn unlock(&mut self, task: usize, mut wake: impl FnMut(usize)) {
        while let Some(place) = self.0.iter().position(|lock| lock.owner == task) {
            self.0.swap_remove(place).waiting.into_iter().for_each(&mut wake);
        }
        assert!(self.0.iter().all(|lock| lock.owner != task), "it has no lock any more");
    }

    /// # Panics
    /// If two tasks have the lock of one file, or one that has ended has one.
    pub(crate) fn assert_invariants(&self, is_under_way: impl Fn(usize) -> bool) {
        for (place, lock) in self.0.iter().enumerate() {
            let Lock { inode, owner, .. } = lock;
            assert!(is_under_way(*owner), "the lock of {inode} belongs to a task under way");
            let again = self.0[..place].iter().any(|other| other.inode == *inode);
            assert!(!again, "one task changes the blocks of {inode}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_task_has_the_lock_of_a_file_and_wakes_those_that_waited() {
        let mut locks = Locks::default();
        assert!(locks.lock(1, 70) && locks.lock(1, 70) && locks.lock(2, 71));
        assert!(!locks.lock(3, 70), "another has it");
        assert!(locks.must_wait(4, 70) && !locks.must_wait(1, 70) && !locks.must_wait(4, 72));
        locks.assert_invariants(|task| task < 3);
        let mut woken = Vec::new();
        locks.unlock(1, |task| woken.push(task));
        assert_eq!(woken, [3, 4]);
        assert!(locks.lock(3, 70) && !locks.lock(3, 71));
    }
}
