//! What to do about a volume of which metadata is damaged beyond repair.

use crate::life::state::Entry;

/// What to do about a volume that is degraded, by whether it takes writes and how much of it is in
/// doubt.
pub(crate) fn remedy(entry: &Entry, in_doubt_bytes: u64) -> String {
    let name = &entry.name;
    match (entry.read_only, in_doubt_bytes) {
        (false, _) => {
            "overwrite them from a copy, or discard them; `coulter salvage` of the store, detached and before that, may \
             find what they held"
                .to_owned()
        }
        (true, 0) => format!(
            "copy the volume to a new store, then `coulter detach {name}`; nothing need be restored"
        ),
        (true, _) => format!(
            "copy what can be read to a new store, then `coulter detach {name}`; `coulter salvage` also gives what may \
             be outdated"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter::{ReadOnlyReason, State};
    use coulter_system::process::Process;

    #[test]
    fn what_to_do_depends_on_whether_writes_are_taken_and_on_what_is_in_doubt() {
        let entry = Entry::sample("a", Process { pid: 1, start_ticks: 2 });
        let read_only =
            |in_doubt_bytes| State::ReadOnly(ReadOnlyReason::Degraded { in_doubt_bytes });
        for (state, in_doubt_bytes, advice) in [
            (State::Degraded { in_doubt_bytes: 4096 }, 4096, "overwrite them"),
            (read_only(0), 0, "copy the volume"),
            (read_only(4096), 4096, "copy what can be read"),
        ] {
            let entry = entry.in_state(&state);
            assert_eq!(entry.in_doubt_bytes, Some(in_doubt_bytes));
            assert!(remedy(&entry, in_doubt_bytes).starts_with(advice), "{state}");
        }
        assert_eq!(entry.in_state(&State::Running).in_doubt_bytes, None);
    }
}
