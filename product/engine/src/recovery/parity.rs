//! Headers that a checkpoint refers to and that are damaged: each is rebuilt from the parity of its group.

use super::PAGE;
use super::fetch::{repair, verify_header};
use super::wrong_body::WrongBody;
use super::{Item, JobKind, Recovery};
use crate::api::Target;
use crate::error::OpenError;
use crate::header_parity::xor;
use crate::memory;
use crate::references::Referred;
use crate::shared::Shared;
use crate::units::segment_of;
use alloc::vec::Vec;
use coulter_format::checkpoint::BodyView;
use coulter_format::checksum::Kind;
use coulter_format::{Block, Pba};

/// Takes over where the parity blocks lie, and returns the references with their groups: those of a group name the
/// same block.
pub(super) fn take_parities(
    shared: &mut Shared,
    body: &BodyView<'_>,
) -> Result<Vec<Referred>, WrongBody> {
    let geometry = shared.superblock.geometry;
    let alone = body.references().map(|reference| Referred { reference, group: reference.pba });
    let mut all = memory::listed(alone)?;
    let mut parities = memory::list(all.len())?;
    for (index, pointer) in body.header_parities().enumerate() {
        if pointer.is_mapped() {
            segment_of(&geometry, pointer.pba).ok_or(WrongBody::Field("copy"))?;
            memory::push(&mut parities, (pointer.pba, index, pointer))?;
        }
    }
    parities.sort_unstable_by_key(|(pba, index, _)| (*pba, *index));
    for group in parities.chunk_by(|(a, ..), (b, ..)| a == b) {
        let (_, first_index, pointer) = group[0];
        let first = all[first_index].reference;
        let mut last = None;
        for (_, index, _) in group {
            let referred = &mut all[*index];
            let reference = referred.reference;
            let is_behind = last.is_none_or(|last| reference.pba > last);
            let segment = segment_of(&geometry, reference.pba);
            let belongs = segment == segment_of(&geometry, first.pba) && reference.run == first.run;
            if !is_behind || !belongs || reference.pba == pointer.pba {
                return Err(WrongBody::Field("reference"));
            }
            last = Some(reference.pba);
            assert!(reference.pba >= first.pba, "a group is known by its first header");
            referred.group = first.pba;
        }
        let key = u64::from(first.pba.0);
        if shared.lists.copies.try_put(Kind::HeaderParity, key, pointer)?.is_some() {
            return Err(WrongBody::Field("reference"));
        }
    }
    Ok(all)
}

impl Recovery {
    /// Item `next` is a header that is damaged. Its group is read one by one: first the parity, then the others.
    pub(super) fn begin_rebuild(
        &mut self,
        shared: &mut Shared,
        next: usize,
        end: usize,
        referred: &Referred,
    ) {
        self.rebuilt.clear();
        let parity = shared.lists.copies.pointer(Kind::HeaderParity, referred.group.0.into());
        let pba = parity.expect("there is a parity block").pba;
        self.read_member(shared, JobKind::Rebuild { next, end, member: 0 }, pba);
    }

    fn read_member(&mut self, shared: &mut Shared, kind: JobKind, pba: Pba) {
        self.start_job(shared, kind, pba, 1, Target::Page(PAGE));
        self.hurry_newest();
    }

    /// The block of a group was read: `member` 0 is the parity, the others are headers in their order.
    pub(super) fn rebuild_on(
        &mut self,
        shared: &mut Shared,
        next: usize,
        end: usize,
        member: usize,
        block: Result<&Block, OpenError>,
    ) -> Result<(), OpenError> {
        let Item::Header(referred) = self.items[next] else {
            unreachable!("only headers are rebuilt")
        };
        let others: Vec<_> = {
            let group = shared.lists.references.of_group(referred.group);
            memory::listed(group.filter(|other| **other != referred.reference).copied())?
        };
        let block = block.and_then(|block| match member.checked_sub(1) {
            None => Ok(block),
            Some(index) => verify_header(shared, &others[index], block).map(|()| block),
        });
        // What is wrong with the header is what is told if another one is damaged as well.
        let Ok(block) = block else { return self.give_up_header(shared, next, end) };
        match self.rebuilt.first_mut() {
            Some(rebuilt) => xor(rebuilt, block),
            None => self.rebuilt.extend_from_slice(core::slice::from_ref(block)),
        }
        if let Some(reference) = others.get(member) {
            let kind = JobKind::Rebuild { next, end, member: member + 1 };
            self.read_member(shared, kind, reference.pba);
            return Ok(());
        }
        assert_eq!(member, others.len(), "all of the group were read");
        // The list, for a block is too much for the stack.
        let rebuilt = core::mem::take(&mut self.rebuilt);
        let block = rebuilt.first().expect("the parity was read");
        if verify_header(shared, &referred.reference, block).is_err() {
            return self.give_up_header(shared, next, end);
        }
        let item = self.items[next];
        self.take_item(shared, &item, block)?;
        repair(shared, &item, block);
        self.mend(referred.reference.pba, block)?;
        self.rebuilt = rebuilt;
        self.fetch_one_by_one(shared, next + 1, end, false);
        Ok(())
    }

    fn give_up_header(
        &mut self,
        shared: &mut Shared,
        next: usize,
        end: usize,
    ) -> Result<(), OpenError> {
        let error = self.first_error();
        self.give_up_item(shared, next, error)?;
        self.fetch_one_by_one(shared, next + 1, end, false);
        Ok(())
    }

    fn first_error(&mut self) -> OpenError {
        self.item_error.take().expect("a header is rebuilt because something was wrong with it")
    }
}
