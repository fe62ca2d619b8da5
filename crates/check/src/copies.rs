//! The second copies of what the checkpoint lists: both copies of each are read and compared.
//!
//! Where the first is damaged and the second is whole, whatever asks for the first is given the second from then on, as
//! recovery would.

use crate::checkpoint::Run;
use crate::finding::{BodyFault, Finding, Owner};
use crate::layout::Layout;
use crate::report::Report;
use crate::window::Window;
use coulter_format::checkpoint::{BodyView, Reference};
use coulter_format::checksum::{self, Kind, rebound};
use coulter_format::record::RecordView;
use coulter_format::superblock::Superblock;
use coulter_format::{Block, BlockPointer, Pba, StoreId};

/// A block that has a second copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    /// The second copy, as record headers name it.
    pub(crate) owner: Owner,
    pub(crate) pointer: BlockPointer,
    /// The first: where it lies, and what it must match.
    first: First,
}

#[derive(Clone, Copy, Debug)]
enum First {
    Page(Owner, BlockPointer),
    Header(Reference),
}

impl First {
    fn pba(&self) -> Pba {
        match self {
            First::Page(_, pointer) => pointer.pba,
            First::Header(reference) => reference.pba,
        }
    }

    /// Whether a block, from whichever copy, is what it should be.
    fn matches(&self, store: &StoreId, block: &Block) -> bool {
        match self {
            First::Page(owner, pointer) => {
                checksum::block(owner.kind, owner.key, block) == pointer.checksum
            }
            First::Header(reference) => RecordView::decode(block, store, reference.pba)
                .is_ok_and(|view| view.checksum() == reference.checksum),
        }
    }

    fn fault(&self, window: &mut Window<'_>, store: &StoreId, pba: Pba) -> Option<BodyFault> {
        match window.block(pba) {
            Err(error) => Some(BodyFault::Unreadable(error)),
            Ok(block) => (!self.matches(store, block)).then_some(BodyFault::Checksum),
        }
    }
}

/// All that a body lists.
pub(crate) fn listed(
    body: &BodyView<'_>,
    roots: &[(u64, BlockPointer)],
    table: &[BlockPointer],
    runs: &[Run],
    references: &[Reference],
) -> Vec<Copied> {
    let roots = roots.iter().map(|(key, pointer)| (Kind::Root, *key, *pointer));
    let table = (0..).zip(table).map(|(key, pointer)| (Kind::SegmentTable, key, *pointer));
    let runs = runs.iter().flat_map(|run| {
        let blocks = run.blocks.iter().enumerate();
        blocks.map(|(index, pointer)| (Kind::Run, run.key(index), *pointer))
    });
    let pages = roots.chain(table).chain(runs).zip(body.copies());
    let pages = pages.filter_map(|((kind, key, first), pba)| {
        let copy = kind.of_copy().filter(|_| pba != Pba::NOWHERE)?;
        let checksum = rebound(first.checksum, key, kind, copy);
        let (owner, pointer) = (Owner::new(copy, key), BlockPointer { pba, checksum });
        Some(Copied { owner, pointer, first: First::Page(Owner::new(kind, key), first) })
    });
    let headers = references.iter().zip(body.header_copies());
    let headers = headers.filter(|(_, pointer)| pointer.is_mapped());
    let headers = headers.map(|(reference, pointer)| Copied {
        owner: Owner::new(Kind::HeaderCopy, reference.pba.0.into()),
        pointer,
        first: First::Header(*reference),
    });
    pages.chain(headers).collect()
}

/// Reads both copies of each.
pub(crate) fn verify(
    window: &mut Window<'_>,
    superblock: &Superblock,
    copies: &[Copied],
    report: &mut Report,
) {
    let layout = Layout { geometry: superblock.geometry };
    let store = &superblock.store;
    for copied in copies {
        let (first, second) = (copied.first.pba(), copied.pointer.pba);
        // A pointer that leads out of the log is told of where pointers are counted.
        if layout.place(first).is_none() || layout.place(second).is_none() {
            continue;
        }
        let owner = copied.owner;
        let faults = [first, second].map(|pba| copied.first.fault(window, store, pba));
        match faults {
            [None, None] => {}
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
}
