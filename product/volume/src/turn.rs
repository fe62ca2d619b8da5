//! How many requests one turn of the loop takes.
//!
//! All writes that a turn takes go to the log as one record. A closed loop, a client that sends its
//! next request when the last is answered, then runs in lockstep: the device waits for the loop
//! while a record fills, and the loop waits for the device while the record is out. Two groups
//! keep both at work. So while no write is out, a turn takes half of the requests; the other half
//! follows at once.
//!
//! Halves below [`GROUP_MIN`] are not worth it: each record costs a header block.

/// Requests of a turn at most: a record of a mebibyte. So the device works on it while the next
/// ones are copied.
const REQUESTS_MAX: usize = 256;

/// Requests of a group, at least.
const GROUP_MIN: usize = 32;

/// Requests that a turn takes of those that wait.
pub(crate) fn take_of(waiting: usize, is_write_out: bool) -> usize {
    let half = waiting.div_ceil(2);
    let taken = if is_write_out || half < GROUP_MIN { waiting } else { half };
    let taken = taken.min(REQUESTS_MAX);
    assert_eq!(taken == 0, waiting == 0, "a turn leaves nothing without need");
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_requests_go_together_and_many_in_two_groups() {
        for waiting in 0..2 * GROUP_MIN - 1 {
            assert_eq!(take_of(waiting, false), waiting);
        }
        assert_eq!(take_of(64, false), 32);
        assert_eq!(take_of(65, false), 33);
        assert_eq!(take_of(256, false), 128);
        assert_eq!(take_of(2000, false), REQUESTS_MAX);
    }

    #[test]
    fn while_a_write_is_out_a_turn_takes_what_fills_a_record() {
        assert_eq!(take_of(1, true), 1);
        assert_eq!(take_of(255, true), 255);
        assert_eq!(take_of(300, true), REQUESTS_MAX);
    }
}
