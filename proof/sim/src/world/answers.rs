//! Whether an answer is one that the promises allow.

use super::{Expected, World, number_of, violation};
use crate::oracle::{Floor, Violation};
use crate::plan::SparseShape;
use coulter_engine::{BufferRef, Failure};
use coulter_format::Lba;

impl World {
    /// A sparse store has no room for the write of this number: it must be so.
    pub(super) fn refuse(&mut self, number: u64) -> Result<(), Violation> {
        // What it discards makes no room for what it stores.
        self.oracle.refuse_discards(number);
        let with = self.charge();
        self.oracle.refuse(number);
        let Some(sparse) = self.shape.sparse else {
            return violation("a store that is not sparse says that it is full".to_owned());
        };
        // A root that became empty counts until the next checkpoint.
        let roots_in_use = self.oracle.touched_units(|lba| self.shape.place(lba) >> 18);
        let most = with.blocks + (1 + root_charge(&sparse)) * roots_in_use;
        if self.ruins.any()
            || most > charge_max(sparse.capacity)
            || roots_in_use > u64::from(sparse.roots)
        {
            return Ok(());
        }
        violation(format!("write {number} is refused, but {with:?} and {roots_in_use} roots fit"))
    }

    /// What is mapped when all that was accepted has taken effect.
    fn charge(&self) -> Charge {
        let mapped = self.oracle.mapped();
        let units = |bits: u32| {
            let of = |lba: &u64| self.shape.place(*lba) >> bits;
            mapped.iter().map(of).collect::<std::collections::BTreeSet<_>>().len() as u64
        };
        let roots = self.shape.sparse.map_or(1, |sparse| root_charge(&sparse)) * units(18);
        Charge { blocks: mapped.len() as u64 + units(9) + roots }
    }

    /// Nothing is accepted that would be one block too many.
    pub(super) fn check_capacity(&self) -> Result<(), Violation> {
        // What is lost is not counted, and the oracle does not know what it was.
        let sparse = self.shape.sparse.filter(|_| !self.ruins.any());
        let Some(sparse) = sparse else { return Ok(()) };
        let (charge, most) = (self.charge(), charge_max(sparse.capacity));
        match charge.blocks <= most {
            true => Ok(()),
            false => violation(format!("{charge:?} blocks were accepted, of {most}")),
        }
    }

    /// On a device without fault a scrub finds nothing, whatever is written, moved and overwritten meanwhile.
    pub(super) fn check_scrub(&mut self) -> Result<(), Violation> {
        if self.tainted || self.failed || self.forgotten || self.ruins.any() {
            return Ok(());
        }
        let engine = self.engine();
        let report = engine.scrub();
        if report.blocks_damaged == 0 && report.metadata_damaged == 0 {
            return Ok(());
        }
        violation(format!("a scrub finds {:?}: {report:?}", engine.scrub_findings()))
    }

    /// Whether a request may fail so.
    pub(super) fn excuse(
        &mut self,
        expected: &Expected,
        failure: Failure,
    ) -> Result<(), Violation> {
        if let Expected::Read { lba, buffer, floors } | Expected::Presence { lba, buffer, floors } =
            expected
        {
            self.memory.take_host(*buffer);
            let is_at =
                |(lba, _): &(u64, &Floor)| failure == Failure::Corrupt(Lba(self.shape.place(*lba)));
            let at = (*lba..).zip(floors).find(is_at);
            if at.is_some_and(|(_, floor)| floor.in_doubt) {
                return Ok(());
            }
        }
        let may_be_corrupt = self.forgotten && matches!(expected, Expected::Read { .. });
        let is_corrupt = matches!(failure, Failure::Corrupt(_));
        if self.tainted || (self.failed && (!is_corrupt || may_be_corrupt)) {
            return Ok(());
        }
        violation(format!("a request failed: {failure:?}"))
    }

    pub(super) fn compare(
        &mut self,
        lba: u64,
        buffer: BufferRef,
        floors: Vec<Floor>,
    ) -> Result<(), Violation> {
        let (blocks, absent) = self.memory.take_host_and_absent(buffer);
        let blocks = blocks.iter().zip(absent);
        for (lba, ((block, absent), floor)) in (lba..).zip(blocks.zip(floors)) {
            let seen = number_of(lba, block)?;
            present_as_shown(lba, seen, absent)?;
            if !self.oracle.allows(lba, floor, seen) {
                return violation(format!("block {lba} read as {seen}, but {floor:?}"));
            }
        }
        Ok(())
    }

    pub(super) fn compare_presence(
        &mut self,
        lba: u64,
        buffer: BufferRef,
        floors: Vec<Floor>,
    ) -> Result<(), Violation> {
        let (_, absent) = self.memory.take_host_and_absent(buffer);
        for (lba, (absent, floor)) in (lba..).zip(absent.into_iter().zip(floors)) {
            let is_allowed = match absent {
                true => self.oracle.allows(lba, floor, 0),
                // What is damaged counts as mapped.
                false => self.oracle.may_be_mapped(lba, floor) || self.tainted || self.forgotten,
            };
            if !is_allowed {
                return violation(format!("block {lba} is unmapped: {absent}, but {floor:?}"));
            }
        }
        Ok(())
    }
}

/// Blocks that data and map pages take.
#[derive(Clone, Copy, Debug)]
struct Charge {
    blocks: u64,
}

/// Blocks for a root in use.
fn root_charge(sparse: &SparseShape) -> u64 {
    if sparse.lists { 2 } else { 1 }
}

/// Blocks that a sparse store of this capacity has for both.
fn charge_max(capacity: u64) -> u64 {
    capacity + capacity.div_ceil(512) + capacity.div_ceil(512 * 512)
}

/// A block is said to be mapped if it holds data, and unmapped if it holds zeros: nobody writes zeros.
pub(super) fn present_as_shown(lba: u64, number: u64, absent: bool) -> Result<(), Violation> {
    match absent == (number == 0) {
        true => Ok(()),
        false => {
            violation(format!("block {lba} of write {number} is said to be unmapped: {absent}"))
        }
    }
}
