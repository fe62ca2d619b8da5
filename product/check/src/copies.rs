//! The second copies of what the checkpoint lists: both copies of each are read and compared; and the parity of the
//! headers that it refers to.
//!
//! Where the first is damaged and the second is whole, whatever asks for the first is given the second from then on, as
//! recovery would; and what the parity says where a header is damaged.

use crate::finding::{BodyFault, Finding, Owner};
use crate::layout::Layout;
use crate::report::Report;
use crate::run::Run;
use crate::window::Window;
use coulter_format::checkpoint::{BodyView, Reference};
use coulter_format::checksum::{self, Kind, rebound};
use coulter_format::record::RecordView;
use coulter_format::superblock::Superblock;
use coulter_format::{BLOCK_SIZE, Block, BlockPointer, Pba, StoreId};
use std::collections::BTreeMap;

/// A block that has a second copy.
#[derive(Clone, Debug)]
pub(crate) struct Copied {
    /// The second copy, or the parity block, as record headers name it.
    pub(crate) owner: Owner,
    pub(crate) pointer: BlockPointer,
    /// What it is for: where that lies, and what it must match.
    first: First,
}

#[derive(Clone, Debug)]
enum First {
    Page(Owner, BlockPointer),
    /// A group of headers.
    Headers(Vec<Reference>),
}

/// Whether a block is what it should be, or what is wrong with it.
fn fault(window: &mut Window<'_>, pba: Pba, matches: impl Fn(&Block) -> bool) -> Option<BodyFault> {
    match window.block(pba) {
        Err(error) => Some(BodyFault::Unreadable(error)),
        Ok(block) => (!matches(block)).then_some(BodyFault::Checksum),
    }
}

fn is_header(store: &StoreId, reference: &Reference, block: &Block) -> bool {
    RecordView::decode(block, store, reference.pba)
        .is_ok_and(|view| view.checksum() == reference.checksum)
}

impl Copied {
    /// The second copy of a page, if it has one.
    pub(crate) fn of_page(kind: Kind, key: u64, first: BlockPointer, pba: Pba) -> Option<Copied> {
        let copy = kind.of_copy().filter(|_| pba != Pba::NOWHERE)?;
        let checksum = rebound(first.checksum, key, kind, copy);
        let (owner, pointer) = (Owner::new(copy, key), BlockPointer { pba, checksum });
        Some(Copied { owner, pointer, first: First::Page(Owner::new(kind, key), first) })
    }

    /// Headers of which it is the parity, if it is that.
    pub(crate) fn headers(&self) -> &[Reference] {
        match &self.first {
            First::Page(..) => &[],
            First::Headers(members) => members,
        }
    }
}

/// All that a body lists: of the roots, or of the pages of their list.
pub(crate) fn listed(
    body: &BodyView<'_>,
    (kind, roots): (Kind, &[(u64, BlockPointer)]),
    table: &[BlockPointer],
    runs: &[Run],
    references: &[Reference],
) -> Vec<Copied> {
    let roots = roots.iter().map(|(key, pointer)| (kind, *key, *pointer));
    let table = (0..).zip(table).map(|(key, pointer)| (Kind::SegmentTable, key, *pointer));
    let runs = runs.iter().flat_map(|run| {
        let blocks = run.blocks.iter().enumerate();
        blocks.map(|(index, pointer)| (Kind::Run, run.key(index), *pointer))
    });
    let pages = roots.chain(table).chain(runs).zip(body.copies());
    let pages =
        pages.filter_map(|((kind, key, first), pba)| Copied::of_page(kind, key, first, pba));
    let mut groups: BTreeMap<Pba, Copied> = BTreeMap::new();
    for (reference, pointer) in references.iter().zip(body.header_parities()) {
        if !pointer.is_mapped() {
            continue;
        }
        let group = groups.entry(pointer.pba).or_insert_with(|| Copied {
            owner: Owner::new(Kind::HeaderParity, reference.pba.0.into()),
            pointer,
            first: First::Headers(Vec::new()),
        });
        if let First::Headers(members) = &mut group.first {
            members.push(*reference);
        }
    }
    pages.chain(groups.into_values()).collect()
}

/// Reads both copies of each, and each group of headers with its parity.
pub(crate) fn verify(
    window: &mut Window<'_>,
    superblock: &Superblock,
    copies: &[Copied],
    report: &mut Report,
) {
    let layout = Layout { geometry: superblock.geometry };
    for Copied { owner, pointer, first } in copies {
        // A pointer that leads out of the log is told of where pointers are counted.
        if layout.place(pointer.pba).is_none() {
            continue;
        }
        match first {
            First::Page(_, first) if layout.place(first.pba).is_none() => {}
            First::Page(page, first) => {
                let matches =
                    |block: &Block| checksum::block(page.kind, page.key, block) == first.checksum;
                let faults = [first.pba, pointer.pba].map(|pba| fault(window, pba, matches));
                compare(window, *owner, first.pba, pointer.pba, faults, report);
            }
            First::Headers(members) => {
                verify_group(window, &superblock.store, *owner, *pointer, members, report);
            }
        }
    }
}

/// Tells of damage to the first copy, the second, or both.
fn compare(
    window: &mut Window<'_>,
    owner: Owner,
    first: Pba,
    second: Pba,
    faults: [Option<BodyFault>; 2],
    report: &mut Report,
) {
    match faults {
        [None, None] => compare_content(window, owner, first, second, BLOCK_SIZE, report),
        [None, Some(fault)] => {
            report.add(Finding::CopyDamaged { owner, pba: second, whole: Some(first), fault });
        }
        [Some(fault), None] => {
            window.redirect(first, second);
            report.add(Finding::CopyDamaged { owner, pba: first, whole: Some(second), fault });
        }
        // What the loss of the first means is told where it is needed.
        [Some(_), Some(fault)] => {
            report.add(Finding::CopyDamaged { owner, pba: second, whole: None, fault });
        }
    }
}

/// Tells whether two blocks that match their checksum differ in their first `size` bytes: a checksum is no proof.
pub(crate) fn compare_content(
    window: &mut Window<'_>,
    owner: Owner,
    used: Pba,
    other: Pba,
    size: usize,
    report: &mut Report,
) {
    let Ok(first) = window.block(used).copied() else { return };
    let Ok(second) = window.block(other) else { return };
    let mut pairs = first.iter().zip(second).take(size);
    if let Some(offset) = pairs.position(|(one, two)| one != two) {
        report.add(Finding::CopiesDiffer { owner, used, other, offset });
    }
}

/// Reads a group of headers and its parity. One that is damaged is rebuilt from the others.
fn verify_group(
    window: &mut Window<'_>,
    store: &StoreId,
    owner: Owner,
    parity: BlockPointer,
    members: &[Reference],
    report: &mut Report,
) {
    let whole = parity.pba;
    let mut sum = [0; BLOCK_SIZE];
    let mut damaged = Vec::new();
    for reference in members {
        match fault(window, reference.pba, |block| is_header(store, reference, block)) {
            Some(fault) => damaged.push((reference, fault)),
            None => add(window, reference.pba, &mut sum),
        }
    }
    let matches = |block: &Block| checksum::block(owner.kind, owner.key, block) == parity.checksum;
    let parity_fault = fault(window, whole, matches);
    let others = damaged.len() > 1;
    match (damaged.pop(), parity_fault) {
        (None, None) => {
            // It is intact, but of other headers.
            add(window, whole, &mut sum);
            if sum != [0; BLOCK_SIZE] {
                let fault = BodyFault::Checksum;
                report.add(Finding::CopyDamaged { owner, pba: whole, whole: None, fault });
            }
        }
        (None, Some(fault)) => {
            let first = members.first().map(|reference| reference.pba);
            report.add(Finding::CopyDamaged { owner, pba: whole, whole: first, fault });
        }
        (Some((reference, fault)), None) if !others => {
            add(window, whole, &mut sum);
            if is_header(store, reference, &sum) {
                window.replace(reference.pba, sum);
                let (pba, whole, fault) = (reference.pba, Some(whole), fault);
                report.add(Finding::CopyDamaged { owner, pba, whole, fault });
            }
        }
        // What the loss of a header means is told where it is needed.
        (Some(_), Some(fault)) => {
            report.add(Finding::CopyDamaged { owner, pba: whole, whole: None, fault });
        }
        (Some(_), None) => {}
    }
}

/// Adds a block that can be read to a parity.
fn add(window: &mut Window<'_>, pba: Pba, sum: &mut Block) {
    if let Ok(block) = window.block(pba) {
        sum.iter_mut().zip(block).for_each(|(sum, byte)| *sum ^= byte);
    }
}
