//! Headers behind the checkpoint that are damaged, and of which the header of the next sequence tells: they are rebuilt,
//! as recovery does, and the log is gone through again.

use crate::finding::Finding;
use crate::layout::Layout;
use crate::replay::Heard;
use crate::report::Report;
use crate::window::Window;
use coulter_format::record::RecordView;
use coulter_format::superblock::Superblock;
use coulter_format::{BLOCK_SIZE, Block, Pba};
use std::ops::RangeInclusive;

/// A header that was rebuilt.
pub(crate) struct Mended {
    pba: Pba,
    /// The one that tells of it.
    holder: Pba,
    header: Block,
}

impl Mended {
    /// From now on every read finds it whole.
    pub(crate) fn tell(self, window: &mut Window<'_>, report: &mut Report) {
        let Mended { pba, holder, header } = self;
        window.mend(pba, header);
        report.add(Finding::LogHeaderDamaged { pba, holder });
    }
}

/// A header with which a walk would have gone on, if what is told of it is enough to rebuild it. Only of a record that was
/// durable: others were being written when the power went.
pub(crate) fn next(
    window: &mut Window<'_>,
    superblock: &Superblock,
    layout: &Layout,
    heard: &Heard,
) -> Option<Mended> {
    heard.ends.iter().find_map(|(end, latest)| {
        let (_, holder) = heard.echoes.iter().rev().find(|(pba, _)| pba == end)?;
        let sequences = *latest..=heard.durable;
        let header = rebuild(window, superblock, layout, (*end, sequences), *holder)?;
        Some(Mended { pba: *end, holder: *holder, header })
    })
}

fn rebuild(
    window: &mut Window<'_>,
    superblock: &Superblock,
    layout: &Layout,
    (end, sequences): (Pba, RangeInclusive<u64>),
    holder: Pba,
) -> Option<Block> {
    let store = &superblock.store;
    let content = *window.blocks(holder, 1).ok()?.first()?;
    let view = RecordView::decode(&content, store, holder).ok()?;
    let echo = view.echo().filter(|echo| {
        let (after, durable) = (*sequences.start(), *sequences.end());
        echo.pba() == end && echo.sequence() > after && echo.sequence() <= durable
    })?;
    let count = u32::from(echo.payload_size());
    let place = layout.place(end)?;
    if count >= layout.segment_blocks().saturating_sub(place.offset) {
        return None;
    }
    let payload = if count == 0 { &[] } else { window.blocks(end.plus(1), count).ok()? };
    let mut header = [0; BLOCK_SIZE];
    echo.rebuild(store, payload, &mut header).then_some(header)
}
