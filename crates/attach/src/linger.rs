//! How long a thread that found nothing to do goes on looking before it sleeps.
//!
//! A program that waits for each of its calls, such as `tar`, comes back some ten microseconds after a reply.
//! To wake a sleeping thread takes longer than that where the processor has gone idle meanwhile, the more so
//! in a virtual machine. So a thread looks again for a while, and yields to others between two looks, if its
//! last wait was short; else it sleeps at once.
//!
//! # Invariants
//! - A thread that has nothing to do looks for at most [`WINDOW`] at a time.
//! - After a wait that was longer than it may look, it sleeps at once the next time. So it looks in vain in
//!   at most every second wait.

use std::time::{Duration, Instant};

/// How long a thread looks before it sleeps.
const WINDOW: Duration = Duration::from_micros(100);
/// The longest wait asleep after which it looks the next time. To fall asleep and to wake is a part of it.
const SHORT_SLEEP_MAX: Duration = Duration::from_micros(200);

/// The waits of one thread. The caller says what time it is.
#[derive(Debug, Default)]
pub(crate) struct Linger {
    /// When it found nothing for the first time since it last had work.
    idle_since: Option<Instant>,
    /// Whether it looks before it sleeps.
    looks: bool,
}

impl Linger {
    /// There was work.
    pub(crate) fn found(&mut self, now: impl FnOnce() -> Instant) {
        if let Some(since) = self.idle_since.take() {
            let longest = if self.looks { WINDOW } else { SHORT_SLEEP_MAX };
            self.looks = now() - since <= longest;
        }
    }

    /// There was none. Returns whether to look again; if not, the thread sleeps.
    pub(crate) fn looks_again(&mut self, now: Instant) -> bool {
        let since = *self.idle_since.get_or_insert(now);
        self.looks && now - since < WINDOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread whose waits took so many microseconds; whether it looks in the next one.
    fn looks_after(waits: &[u64]) -> bool {
        let mut linger = Linger::default();
        let mut now = Instant::now();
        for &wait in waits {
            linger.looks_again(now);
            now += Duration::from_micros(wait);
            linger.found(|| now);
        }
        linger.looks_again(now)
    }

    #[test]
    fn it_looks_after_a_short_wait_only() {
        assert!(!looks_after(&[]), "nothing is known yet");
        assert!(looks_after(&[150]));
        assert!(!looks_after(&[201]));
        assert!(looks_after(&[201, 150]));
    }

    #[test]
    fn who_looks_in_vain_sleeps_the_next_time() {
        assert!(looks_after(&[50, 100]), "found while it looked");
        assert!(!looks_after(&[50, 101]), "found after it had gone to sleep");
        assert!(looks_after(&[50, 101, 101]));
    }

    #[test]
    fn it_looks_no_longer_than_the_window() {
        let mut linger = Linger { idle_since: None, looks: true };
        let begin = Instant::now();
        assert!(linger.looks_again(begin));
        assert!(linger.looks_again(begin + WINDOW / 2));
        assert!(!linger.looks_again(begin + WINDOW));
        assert!(!linger.looks_again(begin + WINDOW * 2));
    }

    #[test]
    fn work_without_a_wait_changes_nothing() {
        let mut linger = Linger { idle_since: None, looks: true };
        linger.found(|| unreachable!("no wait has begun"));
        assert!(linger.looks);
    }
}
