//! Finding the newest superblock, and saying what is wrong with the other copy.

use crate::finding::{Copy, Finding};
use crate::report::Report;
use crate::window::Window;
use coulter_format::superblock::{FIRST_SUPERBLOCK, Superblock};
use coulter_format::{Corrupt, NUMBER_LIMIT_AT_OPENING, Pba, Reason, Structure};

/// What lies where a superblock may lie.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) pba: Pba,
    /// `None` if the block could not be read.
    pub(crate) content: Option<Result<Superblock, Corrupt>>,
}

impl Place {
    /// A valid superblock that belongs here.
    pub(crate) fn valid(&self) -> Option<&Superblock> {
        let superblock = self.content.as_ref()?.as_ref().ok()?;
        (superblock.location() == self.pba).then_some(superblock)
    }

    /// Which copy this is the place of.
    pub(crate) fn copy(&self) -> Copy {
        if self.pba == FIRST_SUPERBLOCK { Copy::A } else { Copy::B }
    }

    fn reason(&self) -> Option<Reason> {
        self.content.as_ref()?.as_ref().err().map(|corrupt| corrupt.reason)
    }
}

/// All places where a superblock may lie: B lies at half a segment, and a segment has 2^8 to 2^18
/// blocks.
fn places() -> impl Iterator<Item = Pba> {
    std::iter::once(FIRST_SUPERBLOCK).chain((7..18).map(|shift| Pba(1 << shift)))
}

/// Reads every place that the device has.
pub(crate) fn read(window: &mut Window<'_>, report: &mut Report) -> Vec<Place> {
    let mut found = Vec::new();
    for pba in places() {
        if u64::from(pba.0) >= window.size_blocks() {
            continue;
        }
        let content = match window.block(pba) {
            Ok(block) => Some(Superblock::decode(block)),
            Err(error) => {
                let structure = Structure::Superblock;
                report.add(Finding::Unreadable { owner: None, structure, pba, error });
                None
            }
        };
        found.push(Place { pba, content });
    }
    found
}

/// The newest valid superblock.
pub(crate) fn newest(places: &[Place]) -> Option<Superblock> {
    places.iter().filter_map(Place::valid).max_by_key(|found| found.generation).copied()
}

/// Finds the newest superblock; reports on all others.
pub(crate) fn check(window: &mut Window<'_>, report: &mut Report) -> Option<Superblock> {
    let places = read(window, report);
    let Some(newest) = newest(&places) else {
        report_none(&places, report);
        return None;
    };
    for place in &places {
        let expected =
            place.pba == FIRST_SUPERBLOCK || place.pba == newest.geometry.second_superblock;
        if expected {
            check_copy(place, &newest, report);
        } else if place.pba < newest.geometry.first_segment && place.valid().is_some() {
            report.add(Finding::SuperblocksDisagree { field: "second_superblock" });
        }
    }
    check_numbers(&newest, report);
    Some(newest)
}

/// Numbers that go up by one at a time.
fn check_numbers(newest: &Superblock, report: &mut Report) {
    let numbers = [
        ("generation", newest.generation),
        ("epoch", newest.epoch),
        ("epoch_max", newest.epoch_max),
        ("checkpoint_sequence", newest.checkpoint.sequence),
    ];
    for (field, value) in numbers {
        if value >= NUMBER_LIMIT_AT_OPENING {
            let (structure, pba) = (Structure::Superblock, newest.location());
            report.add(Finding::NumberSpent { structure, pba, field, value });
        }
    }
}

/// One of the two places where a copy of this store belongs.
fn check_copy(place: &Place, newest: &Superblock, report: &mut Report) {
    let (copy, pba) = (place.copy(), place.pba);
    match &place.content {
        None => {}
        Some(Err(Corrupt { reason: Reason::Magic, .. })) => {
            report.add(Finding::SuperblockMissing { copy, pba });
        }
        Some(Err(Corrupt { reason: Reason::Version(version), .. })) => {
            report.add(Finding::OtherVersion { copy, version: *version });
        }
        Some(Err(Corrupt { reason: Reason::Features(unknown), .. })) => {
            report.add(Finding::OtherFeatures { copy, unknown: *unknown });
        }
        Some(Err(Corrupt { reason, .. })) => {
            report.add(Finding::SuperblockDamaged { copy, pba, reason: *reason });
        }
        Some(Ok(other)) if other.location() != pba => {
            let generation = other.generation;
            report.add(Finding::SuperblockMisplaced { copy, pba, generation });
        }
        Some(Ok(other)) => {
            if let Some(field) = difference(newest, other) {
                report.add(Finding::SuperblocksDisagree { field });
            }
        }
    }
}

/// The first field that two superblocks of one store cannot differ in. The sizes of device and
/// volume only grow.
fn difference(newest: &Superblock, other: &Superblock) -> Option<&'static str> {
    let (new, old) = (&newest.geometry, &other.geometry);
    let fields = [
        ("uuid", newest.store.uuid == other.store.uuid),
        ("salt", newest.store.salt == other.store.salt),
        ("segment_size", new.segment_size == old.segment_size),
        ("first_segment", new.first_segment == old.first_segment),
        ("second_superblock", new.second_superblock == old.second_superblock),
        ("segment_count", new.segment_count >= old.segment_count),
        ("epoch", newest.epoch >= other.epoch),
        ("checkpoint_sequence", newest.checkpoint.sequence >= other.checkpoint.sequence),
    ];
    fields.into_iter().find(|(_, agrees)| !agrees).map(|(name, _)| name)
}

/// No superblock is valid: says of each place that looks like one what is wrong with it.
fn report_none(places: &[Place], report: &mut Report) {
    let unreadable = places.iter().any(|place| place.content.is_none());
    let (mut any, mut newer) = (unreadable, false);
    for place in places {
        let (copy, pba) = (place.copy(), place.pba);
        if let Some(Ok(misplaced)) = &place.content {
            let generation = misplaced.generation;
            report.add(Finding::SuperblockMisplaced { copy, pba, generation });
            any = true;
        }
        match place.reason() {
            None | Some(Reason::Magic) => continue,
            Some(Reason::Version(version)) => report.add(Finding::OtherVersion { copy, version }),
            Some(Reason::Features(unknown)) => {
                report.add(Finding::OtherFeatures { copy, unknown });
                newer = true;
            }
            Some(reason) => report.add(Finding::SuperblockDamaged { copy, pba, reason }),
        }
        any = true;
    }
    // Another program finds all of it: nothing is lost.
    if !newer {
        report.add(if any { Finding::NoSuperblock } else { Finding::NotAStore });
    }
}
