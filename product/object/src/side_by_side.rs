//! Work on several threads at once, or on fewer if the system starts no more.

use std::sync::{PoisonError, RwLock};
use std::thread::{Builder, scope};

/// Runs `work` on `count` threads, one of them the caller's: each call takes what no other has taken.
pub(crate) fn share(count: usize, work: impl Fn() + Sync) {
    scope(|scope| {
        for _ in 1..count {
            if Builder::new().spawn_scoped(scope, &work).is_err() {
                break;
            }
        }
        work();
    });
}

/// Runs `work` with each number below `count`, all of them at the same time. Returns how many threads were started.
pub(crate) fn race(count: usize, work: impl Fn(usize) + Sync) -> usize {
    let gate = RwLock::new(());
    let (work, gate) = (&work, &gate);
    scope(|scope| {
        let closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let start = |number| {
            Builder::new().spawn_scoped(scope, move || {
                drop(gate.read().unwrap_or_else(PoisonError::into_inner));
                work(number);
            })
        };
        let started = (0..count).take_while(|number| start(*number).is_ok()).count();
        drop(closed);
        started
    })
}
