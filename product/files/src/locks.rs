//! Which operation may change a file's blocks, while that takes more than one step.

use std::collections::VecDeque;

/// One lock for each file whose blocks an operation is changing.
#[derive(Default)]
pub(crate) struct Locks(Vec<Lock>);

struct Lock {
    inode: u64,
    owner: usize,
    waiting: Vec<usize>,
}

impl Locks {
    /// Makes the task the only one that changes the blocks of a file; false if it has to wait for that.
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

    /// Gives up what a task has, and makes the tasks ready that waited for it.
    pub(crate) fn unlock(&mut self, task: usize, ready: &mut VecDeque<usize>) {
        while let Some(place) = self.0.iter().position(|lock| lock.owner == task) {
            ready.extend(self.0.swap_remove(place).waiting);
        }
    }
}
