//! What fails below a volume, in its daemon's log: the first of a kind as soon as it is noticed,
//! then a line a minute with a count, so that a bad disk cannot fill the log.

use coulter::Failures;
use std::io;
use std::time::{Duration, Instant};

/// The time between two lines about one kind.
const PAUSE: Duration = Duration::from_secs(60);

/// What was told so far.
#[derive(Default)]
pub(crate) struct FailureLog {
    device: Told,
    damage: Told,
}

/// How much of one kind was told, and when.
#[derive(Default)]
pub(crate) struct Told {
    count: u64,
    at: Option<Instant>,
}

impl FailureLog {
    /// Tells what is due of what has failed until `now`; all of it, if it is the end.
    pub(crate) fn tell(&mut self, failures: &Failures, now: Instant, is_end: bool) {
        if let Some(count) = self.device.news(failures.device_commands, now, is_end) {
            let error = io::Error::from_raw_os_error(failures.device_errno);
            match failures.device_offset {
                Some(last_offset) => {
                    log::error!(count, error:%, last_offset; "the device below failed commands");
                }
                None => log::error!(count, error:%; "the device below failed commands"),
            }
        }
        if let Some(count) = self.damage.news(failures.corrupt_blocks, now, is_end) {
            let what =
                "blocks are damaged, as their checksums tell; `coulter check --data` finds all";
            match failures.corrupt_offset {
                Some(last_offset) => log::error!(count, last_offset; "{what}"),
                None => log::error!(count; "{what}"),
            }
        }
    }
}

impl Told {
    /// How many there are of which nothing was told, if it is time to.
    pub(crate) fn news(&mut self, count: u64, now: Instant, is_end: bool) -> Option<u64> {
        let news = count.saturating_sub(self.count);
        let is_due = is_end || self.at.is_none_or(|at| now.duration_since(at) >= PAUSE);
        if news == 0 || !is_due {
            return None;
        }
        *self = Told { count, at: Some(now) };
        Some(news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_at_once_and_the_others_once_a_minute_with_their_count() {
        let (mut told, begin) = (Told::default(), Instant::now());
        let after = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(told.news(0, after(0), false), None);
        assert_eq!(told.news(1, after(1), false), Some(1));
        assert_eq!(told.news(900, after(2), false), None);
        assert_eq!(told.news(1000, after(60), false), None);
        assert_eq!(told.news(1001, after(61), false), Some(1000));
        assert_eq!(told.news(1001, after(200), false), None, "nothing is new");
        assert_eq!(told.news(1002, after(200), false), Some(1));
        assert_eq!(told.news(1005, after(201), true), Some(3), "it is the end");
    }
}
