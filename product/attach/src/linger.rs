//! How long a thread that found nothing to do goes on looking before it sleeps.
//!
//! A program that waits for each of its calls, such as `tar`, comes back some ten microseconds after a reply.
//! To wake a sleeping thread takes longer than that where the processor has gone idle meanwhile, the more so
//! in a virtual machine. So a thread looks again for a while, if its last wait was short; else it sleeps at
//! once. Between two looks it yields. Where that takes long, others want the processor: the scheduler prefers
//! a thread that wakes to one that has used its time for looking, so the thread does not look for a while then.
//!
//! # Invariants
//! - A thread that has nothing to do looks for at most `WINDOW` at a time.
//! - After a wait that was longer than it may look, it sleeps at once the next time. So it looks in vain in
//!   at most every second wait.
//! - After it gave its processor to another thread, it looks no more for `PAUSE_MIN` at the least, for
//!   `PAUSE_MAX` where that happens again and again.

use std::time::{Duration, Instant};

/// How long a thread looks before it sleeps.
const WINDOW: Duration = Duration::from_micros(100);
/// The longest wait asleep after which it looks the next time. To fall asleep and to wake is a part of it.
const SHORT_SLEEP_MAX: Duration = Duration::from_micros(200);
/// The longest time between two looks in which nobody else has had the processor, or only who asks next: that one
/// runs for tens of microseconds, others for a slice of the scheduler's, which is more than a millisecond.
const LOOK_MAX: Duration = Duration::from_micros(500);
/// How long it does not look after somebody else has had the processor, the first time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The same, if it happens each time.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The waits of one thread. The caller says what time it is.
#[derive(Debug)]
pub struct Linger {
    /// When it found nothing for the first time since it last had work.
    idle_since: Option<Instant>,
    /// When it was told to look again.
    looked_at: Option<Instant>,
    /// Whether it looks before it sleeps.
    looks: bool,
    /// Until when it does not, for others want the processor.
    paused_until: Option<Instant>,
    /// How long the next such pause is.
    pause: Duration,
}

impl Default for Linger {
    fn default() -> Linger {
        let (idle_since, looked_at, paused_until) = (None, None, None);
        Linger { idle_since, looked_at, looks: false, paused_until, pause: PAUSE_MIN }
    }
}

impl Linger {
    /// There was work.
    pub fn found(&mut self, now: impl FnOnce() -> Instant) {
        let Some(since) = self.idle_since.take() else { return };
        let now = now();
        let longest = if self.looks { WINDOW } else { SHORT_SLEEP_MAX };
        self.looks = now - since <= longest;
        self.heed_others(now);
    }

    /// There was none. Returns whether to yield and look again; if not, the thread sleeps.
    pub fn looks_again(&mut self, now: Instant) -> bool {
        self.heed_others(now);
        let since = *self.idle_since.get_or_insert(now);
        let may_look = self.paused_until.is_none_or(|until| now >= until);
        let goes_on = self.looks && may_look && now - since < WINDOW;
        self.looked_at = goes_on.then_some(now);
        goes_on
    }

    /// A look is over. If it took long, somebody else had the processor.
    fn heed_others(&mut self, now: Instant) {
        let Some(looked_at) = self.looked_at.take() else { return };
        if now - looked_at > LOOK_MAX {
            self.paused_until = Some(now + self.pause);
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        } else if self.paused_until.is_none_or(|until| now >= until + PAUSE_MIN) {
            self.pause = PAUSE_MIN;
        }
        assert!((PAUSE_MIN..=PAUSE_MAX).contains(&self.pause), "a pause is bounded");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that has waited as often, for as many microseconds each time; and the time then.
    fn after(waits: &[u64]) -> (Linger, Instant) {
        let mut linger = Linger::default();
        let mut now = Instant::now();
        for &wait in waits {
            let end = now + Duration::from_micros(wait);
            // Each look takes a microsecond.
            while linger.looks_again(now) && now < end {
                now += Duration::from_micros(1);
            }
            now = end.max(now);
            linger.found(|| now);
        }
        (linger, now)
    }

    fn looks_after(waits: &[u64]) -> bool {
        let (mut linger, now) = after(waits);
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
        assert!(looks_after(&[50, 99]), "found while it looked");
        assert!(!looks_after(&[50, 110]), "found after it had gone to sleep");
        assert!(looks_after(&[50, 110, 110]));
    }

    #[test]
    fn it_looks_no_longer_than_the_window() {
        let (mut linger, mut now) = after(&[50]);
        let begin = now;
        while linger.looks_again(now) {
            now += Duration::from_micros(1);
        }
        assert_eq!(now - begin, WINDOW);
    }

    #[test]
    fn work_without_a_wait_changes_nothing() {
        let (mut linger, _) = after(&[50]);
        linger.found(|| unreachable!("no wait has begun"));
        assert!(linger.looks);
    }

    #[test]
    fn it_does_not_look_while_others_want_the_processor() {
        let (mut linger, mut now) = after(&[50]);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert!(linger.looks_again(now));
            now += Duration::from_millis(3); // another thread's turn
            linger.found(|| now);
            let begin = now;
            while !linger.looks_again(now) {
                now += Duration::from_micros(150);
                linger.found(|| now);
            }
            pauses.push((now - begin).as_millis());
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        // It forgets once it has looked undisturbed for a while.
        for after in [Duration::from_micros(1), PAUSE_MIN] {
            assert_eq!(linger.pause, PAUSE_MAX);
            linger.found(|| now + Duration::from_micros(1));
            now += after;
            assert!(linger.looks_again(now));
        }
        linger.found(|| now + Duration::from_micros(1));
        assert_eq!(linger.pause, PAUSE_MIN);
    }
}
