//! What every recovery begins with: looking through the flash.

use crate::nand::{Nand, Oob, PowerCut};
use crate::units::{EraseBlock, Lpn, Ns, Ppn};

/// A programmed page and its out-of-band part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) page: Ppn,
    pub(crate) oob: Oob,
}

/// Reads the out-of-band part of every page of every erase block that is in use, in order, and the
/// first page of the others. Erase blocks without a readable page are erased: an erase or their
/// first program was torn.
///
/// `visit` is told of each page. The result is when all of that is done.
pub(crate) fn walk(nand: &mut Nand, at: Ns, mut visit: impl FnMut(Found)) -> Result<Ns, PowerCut> {
    let geometry = *nand.geometry();
    for block in (0..geometry.erase_blocks).map(EraseBlock) {
        if nand.is_empty(block) {
            nand.scan(at, geometry.page(block, 0))?;
            continue;
        }
        let mut readable = false;
        for page in (0..nand.next_offset(block)).map(|offset| geometry.page(block, offset)) {
            if let (Some(oob), _) = nand.scan(at, page)? {
                readable = true;
                visit(Found { page, oob });
            }
        }
        if !readable {
            nand.erase(at, block)?;
        }
    }
    Ok(nand.time.idle_at().max(at))
}

/// The newest page of each logical page that the host has not given up, as the raw numbers of
/// physical pages ([`NO_PAGE`] for none), and when that is known.
///
/// Of a page and its copy, which are equal, the copy is taken: work of a collection that the power
/// cut short then need not be done again, or cuts in a row could use up all free erase blocks.
pub(crate) fn newest_pages(nand: &mut Nand, at: Ns) -> Result<(Vec<u32>, Ns), PowerCut> {
    let count = nand.geometry().logical_pages() as usize;
    let mut newest = vec![NO_PAGE; count];
    let mut ages = vec![(0, 0); count];
    let written: Vec<_> =
        (0..nand.geometry().erase_blocks).map(|block| nand.written(EraseBlock(block))).collect();
    let geometry = *nand.geometry();
    let ready = walk(nand, at, |Found { page, oob }| {
        if oob.lpn & Oob::MAP != 0 {
            return;
        }
        let index = oob.lpn as usize;
        let age = (oob.sequence, written[geometry.block_of(page).index()]);
        if newest[index] == NO_PAGE || age > ages[index] {
            newest[index] = page.0;
            ages[index] = age;
        }
    })?;
    for (lpn, page) in newest.iter_mut().enumerate() {
        if nand.is_trimmed(Lpn(lpn as u32)) {
            *page = NO_PAGE;
        }
    }
    Ok((newest, ready))
}

/// Stands for no page where page numbers are kept raw.
pub(crate) const NO_PAGE: u32 = u32::MAX;
