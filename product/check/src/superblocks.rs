//! Finding the newest superblock, and saying what is wrong with the other copy.

use crate::finding::{Copy, Finding};
use crate::report::Report;
use crate::window::Window;
use coulter_format::superblock::{FIRST_SUPERBLOCK, Superblock, third_superblocks};
use coulter_format::{Corrupt, NUMBER_LIMIT_AT_OPENING, Pba, Reason, Structure};

/// What lies where a superblock may lie.
#[derive(Debug)]
pub(crate) struct SuperblockCopy {
    pub(crate) pba: Pba,
    /// `None` if the block could not be read.
    pub(crate) content: Option<Result<Superblock, Corrupt>>,
}

impl SuperblockCopy {
    /// A valid superblock that belongs here.
    pub(crate) fn valid(&self) -> Option<&Superblock> {
        let superblock = self.content.as_ref()?.as_ref().ok()?;
        superblock.belongs_at(self.pba).then_some(superblock)
    }

    /// Which copy this is the place of.
    pub(crate) fn copy(&self) -> Copy {
        match self.pba {
            FIRST_SUPERBLOCK => Copy::A,
            Pba(pba) if pba.is_power_of_two() => Copy::B,
            _ => Copy::C,
        }
    }

    /// Blank, overwritten or damaged, so that nothing can be said of whose it was.
    fn is_no_superblock(&self) -> bool {
        let foreign = |reason| matches!(reason, Reason::Version(_) | Reason::Features(_));
        self.reason().is_some_and(|reason| !foreign(reason))
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

/// Reads every place that the device has, and those of the third copy: the one that the newest of the others
/// names, or, if there is none, all that there may be.
pub(crate) fn read(window: &mut Window<'_>, report: &mut Report) -> Vec<SuperblockCopy> {
    let mut found = Vec::new();
    read_places(window, places(), &mut found, report);
    match newest(&found).map(|newest| newest.geometry.third_superblock) {
        Some(third) => {
            let third = Some(third).filter(|third| *third != Pba::NOWHERE);
            read_places(window, third.into_iter(), &mut found, report);
        }
        None => {
            let thirds = third_superblocks(window.size_blocks());
            read_places(window, thirds, &mut found, report);
        }
    }
    found
}

fn read_places(
    window: &mut Window<'_>,
    places: impl Iterator<Item = Pba>,
    found: &mut Vec<SuperblockCopy>,
    report: &mut Report,
) {
    for pba in places {
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
        found.push(SuperblockCopy { pba, content });
    }
}

/// The newest valid superblock: of the first two copies; the third counts only if both are gone.
pub(crate) fn newest(places: &[SuperblockCopy]) -> Option<Superblock> {
    let newest_of = |is_third: bool| {
        let places = places.iter().filter(|place| (place.copy() == Copy::C) == is_third);
        places.filter_map(SuperblockCopy::valid).max_by_key(|found| found.generation).copied()
    };
    newest_of(false).or_else(|| newest_of(true))
}

/// Finds the newest superblock; reports on all others.
pub(crate) fn check(window: &mut Window<'_>, report: &mut Report) -> Option<Superblock> {
    let places = read(window, report);
    let Some(newest) = newest(&places) else {
        report_none(&places, report);
        return None;
    };
    let first_two_are_lost = !places.iter().any(|p| p.copy() != Copy::C && p.valid().is_some());
    if first_two_are_lost {
        report.add(Finding::FirstSuperblocksLost { third: newest.geometry.third_superblock });
    }
    for place in &places {
        let geometry = &newest.geometry;
        let copies = [FIRST_SUPERBLOCK, geometry.second_superblock, geometry.third_superblock];
        let expected = copies.contains(&place.pba);
        if expected && first_two_are_lost && place.is_no_superblock() {
            // The finding above says it, and no checkpoint will write this copy again.
            continue;
        } else if expected {
            check_copy(place, &newest, report);
        } else if place.pba < newest.geometry.first_segment && place.valid().is_some() {
            let (used, other) = (newest.location(), place.pba);
            let field = "second_superblock";
            report.add(Finding::SuperblocksDisagree { field, used, other });
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
fn check_copy(place: &SuperblockCopy, newest: &Superblock, report: &mut Report) {
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
        Some(Ok(other)) if !other.belongs_at(pba) => {
            let generation = other.generation;
            report.add(Finding::SuperblockMisplaced { copy, pba, generation });
        }
        Some(Ok(other)) => {
            if let Some(field) = difference(newest, other) {
                let (used, other) = (newest.location(), pba);
                report.add(Finding::SuperblocksDisagree { field, used, other });
            }
        }
    }
}

/// The first field that two superblocks of one store cannot differ in. The sizes of device and
/// volume only grow. Two that lead to the same checkpoint differ in their generation and in `epoch_max` alone.
fn difference(newest: &Superblock, other: &Superblock) -> Option<&'static str> {
    let (new, old) = (&newest.geometry, &other.geometry);
    let fields = [
        ("uuid", newest.store.uuid == other.store.uuid),
        ("salt", newest.store.salt == other.store.salt),
        ("segment_blocks", new.segment_blocks == old.segment_blocks),
        ("first_segment", new.first_segment == old.first_segment),
        ("second_superblock", new.second_superblock == old.second_superblock),
        ("page_blocks", new.page_blocks == old.page_blocks),
        ("segment_count", new.segment_count >= old.segment_count),
        ("epoch", newest.epoch >= other.epoch),
        ("checkpoint_sequence", newest.checkpoint.sequence >= other.checkpoint.sequence),
    ];
    let differs = fields.into_iter().find(|(_, agrees)| !agrees).map(|(name, _)| name);
    differs.or_else(|| state_difference(newest, other))
}

/// The first field in which two superblocks that lead to the same checkpoint differ, and should not.
fn state_difference(newest: &Superblock, other: &Superblock) -> Option<&'static str> {
    let is_same =
        newest.epoch == other.epoch && newest.checkpoint.sequence == other.checkpoint.sequence;
    // Two openings, of which the second did not see what the first had written last, number alike.
    let of_another = newest.generation == other.generation && newest.epoch_max != other.epoch_max;
    if !is_same || of_another {
        return None;
    }
    let (new, old) = (&newest.checkpoint, &other.checkpoint);
    let fields = [
        ("checkpoint_pba", new.pba == old.pba),
        ("checkpoint_size", new.size == old.size),
        ("checkpoint_checksum", new.checksum == old.checksum),
        ("checkpoint_copy", new.copy == old.copy),
        ("durable_sequence", newest.durable_sequence == other.durable_sequence),
        ("flags", newest.clean == other.clean),
        (
            "incompatible_features",
            newest.patched == other.patched && newest.long_records == other.long_records,
        ),
        ("compatible_features", newest.may_have_lost == other.may_have_lost),
        ("recovery_map_size", newest.budget == other.budget),
        ("label", newest.label == other.label),
        ("capacity", newest.geometry == other.geometry),
    ];
    fields.into_iter().find(|(_, agrees)| !agrees).map(|(name, _)| name)
}

/// No superblock is valid: says of each place that looks like one what is wrong with it.
fn report_none(places: &[SuperblockCopy], report: &mut Report) {
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
