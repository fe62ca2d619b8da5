//! A command on its way in the device within.

use crate::ship::shipper::JobId;
use coulter_device::Command;
use std::collections::BTreeMap;
use std::ops::Range;

/// A command on its way in the device within.
#[derive(Debug)]
pub(super) enum Flight {
    /// A command of the host. Crossed: another that changes some of the same bytes was on its way at the same time, so nobody
    /// but the device knows what it left.
    Host { command: Command, is_crossed: bool },
    /// A flush of the host, with its number in the order of submission, from 1 on.
    Flush(Command, u64),
    /// A part of what a job reads: first byte in its memory, and the range.
    ReadBack(JobId, u64, Range<u64>),
    /// The first block of the device, to tell a bad block, at this range of a job, from a device that is gone.
    Witness(JobId, u64, Range<u64>),
}

/// What a flight changes.
pub(super) fn changed_range(flight: &Flight) -> Option<Range<u64>> {
    match flight {
        Flight::Host { command, .. } => changes(command),
        Flight::Flush(..) | Flight::ReadBack(..) | Flight::Witness(..) => None,
    }
}

/// The number of a flush.
pub(super) fn flush_number(flight: &Flight) -> Option<u64> {
    match flight {
        Flight::Flush(_, number) => Some(*number),
        Flight::Host { .. } | Flight::ReadBack(..) | Flight::Witness(..) => None,
    }
}

/// Whether a command that is about to be passed changes what one on its way does; that one is crossed then, too.
pub(super) fn is_crossed(flights: &mut BTreeMap<u64, Flight>, command: &Command) -> bool {
    let Some(range) = changes(command) else { return false };
    let mut is_any = false;
    for flight in flights.values_mut() {
        let Flight::Host { command, is_crossed } = flight else { continue };
        let other = changes(command);
        if other.is_some_and(|other| other.start < range.end && range.start < other.end) {
            (*is_crossed, is_any) = (true, true);
        }
    }
    is_any
}

/// What a command of the host changes.
fn changes(command: &Command) -> Option<Range<u64>> {
    let range = command.offset..command.offset.saturating_add(command.length);
    command.kind.changes_content().then_some(range)
}
