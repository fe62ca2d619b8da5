//! Headers behind the checkpoint that are damaged, and of which the header of the next sequence tells: they are rebuilt,
//! as recovery does, before the log is gone through.

use crate::checkpoint::Checkpoint;
use crate::finding::Finding;
use crate::layout::Layout;
use crate::replay::{self, Heard};
use crate::report::Report;
use crate::window::Window;
use coulter_format::record::RecordView;
use coulter_format::superblock::Superblock;
use coulter_format::{BLOCK_SIZE, Block, Pba};

/// Rebuilds what can be: every later read finds the headers whole.
pub(crate) fn mend(
    window: &mut Window<'_>,
    superblock: &Superblock,
    checkpoint: &Checkpoint,
    layout: &Layout,
    report: &mut Report,
) {
    // What is rebuilt may lead to more; each round mends one.
    loop {
        let heard = replay::hear(window, superblock, checkpoint, layout);
        let Some(mended) = next(window, superblock, layout, &heard) else { return };
        let Mended { pba, holder, sequence, header } = mended;
        window.mend(pba, header);
        // What was not durable was being written when the power went.
        if sequence <= heard.durable {
            report.add(Finding::LogHeaderDamaged { pba, holder });
        }
    }
}

/// A header that was rebuilt.
struct Mended {
    pba: Pba,
    /// The one that tells of it.
    holder: Pba,
    sequence: u64,
    header: Block,
}

/// A header with which a walk would have gone on.
fn next(
    window: &mut Window<'_>,
    superblock: &Superblock,
    layout: &Layout,
    heard: &Heard,
) -> Option<Mended> {
    heard.ends.iter().find_map(|(end, latest)| {
        let (_, holder) = heard.echoes.iter().rev().find(|(pba, _)| pba == end)?;
        let (sequence, header) = rebuild(window, superblock, layout, (*end, *latest), *holder)?;
        Some(Mended { pba: *end, holder: *holder, sequence, header })
    })
}

fn rebuild(
    window: &mut Window<'_>,
    superblock: &Superblock,
    layout: &Layout,
    (end, latest): (Pba, u64),
    holder: Pba,
) -> Option<(u64, Block)> {
    let store = &superblock.store;
    let content = *window.blocks(holder, 1).ok()?.first()?;
    let view = RecordView::decode(&content, store, holder).ok()?;
    let echo = view.echo().filter(|echo| echo.pba() == end && echo.sequence() > latest)?;
    let count = u32::from(echo.payload_size());
    let place = layout.place(end)?;
    if count >= layout.segment_blocks().saturating_sub(place.offset) {
        return None;
    }
    let payload = if count == 0 { &[] } else { window.blocks(end.plus(1), count).ok()? };
    let mut header = [0; BLOCK_SIZE];
    echo.rebuild(store, payload, &mut header).then_some((echo.sequence(), header))
}
