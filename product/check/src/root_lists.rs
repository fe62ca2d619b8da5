//! The pages of the list of roots, of a store of which the checkpoint lists these.
//!
//! What they tell is taken as though the body told it. A page that is damaged in both copies tells nothing: then there
//! may be roots that nobody knows of, and what their addresses hold is not known.

use crate::checkpoint::Checkpoint;
use crate::copies::{self, Copied};
use crate::finding::{Finding, Owner};
use crate::layout::Layout;
use crate::metadata::read_metadata;
use crate::report::Report;
use crate::window::Window;
use coulter_format::checksum::Kind;
use coulter_format::root_list::{self, RootEntry};
use coulter_format::superblock::Superblock;
use coulter_format::{BlockPointer, Corrupt};
use std::collections::BTreeMap;

/// Which of a root's leaves may have pages: a bit for each 32 of them.
pub(crate) type Tables = BTreeMap<u64, u16>;

/// Reads the pages, adds to the checkpoint what they list, and compares the copies of the root pages.
pub(crate) fn read(
    window: &mut Window<'_>,
    superblock: &Superblock,
    checkpoint: &mut Checkpoint,
    report: &mut Report,
) {
    let layout = Layout { geometry: superblock.geometry };
    let mut copied = Vec::new();
    let mut needed = 0;
    for (key, pointer) in (0u64..).zip(checkpoint.root_lists.clone()) {
        let owner = Owner::new(Kind::RootList, key);
        let entries = read_page(window, &layout, owner, pointer, report);
        let Some(entries) = entries else {
            checkpoint.roots_missing = true;
            report.complete = false;
            continue;
        };
        for RootEntry { key, pointer, copy, tables } in entries {
            checkpoint.roots.push((key, pointer));
            checkpoint.tables.insert(key, tables);
            copied.extend(Copied::of_page(Kind::Root, key, pointer, copy));
            needed += u64::from(tables.count_ones());
        }
    }
    if checkpoint.root_lists.is_empty() {
        return;
    }
    // Which of them are twice there is told where the body's own roots are compared.
    checkpoint.roots.sort_by_key(|(key, _)| *key);
    let most = superblock.geometry.tables_max();
    if needed > most {
        let pba = superblock.checkpoint.pba;
        report.add(Finding::CheckpointContradicts { pba, field: "tables", value: needed });
    }
    copies::verify(window, superblock, &copied, report);
    checkpoint.copies.extend(copied);
}

fn read_page(
    window: &mut Window<'_>,
    layout: &Layout,
    owner: Owner,
    pointer: BlockPointer,
    report: &mut Report,
) -> Option<Vec<RootEntry>> {
    let page = read_metadata(window, layout, owner, pointer, report)?;
    let entries: Result<Vec<_>, Corrupt> = root_list::decode(page).collect();
    match entries {
        Ok(entries) => Some(entries.into_iter().flatten().collect()),
        Err(Corrupt { reason, .. }) => {
            report.add(Finding::MetadataDamaged { owner, pba: pointer.pba, reason });
            None
        }
    }
}
