//! A block of metadata, read and compared with the pointer to it.

use crate::finding::{Finding, Owner};
use crate::layout::Layout;
use crate::report::Report;
use crate::window::Window;
use coulter_format::{Block, BlockPointer, Reason, Structure, checksum};

/// Reads a metadata block and compares its checksum. `None`, with a finding, if it is not what the
/// pointer expects.
pub(crate) fn read_metadata<'a>(
    window: &'a mut Window<'_>,
    layout: &Layout,
    owner: Owner,
    pointer: BlockPointer,
    report: &mut Report,
) -> Option<&'a Block> {
    let pba = pointer.pba;
    if layout.place(pba).is_none() {
        report.add(Finding::PointerOutside { owner, pba });
        return None;
    }
    match window.block(pba) {
        Err(error) => {
            let structure: Structure = owner.structure();
            report.add(Finding::Unreadable { owner: Some(owner), structure, pba, error });
            None
        }
        Ok(block) if checksum::block(owner.kind, owner.key, block) != pointer.checksum => {
            report.add(Finding::MetadataDamaged { owner, pba, reason: Reason::Checksum });
            None
        }
        Ok(block) => Some(block),
    }
}
