//! Flash translation layers: where each logical page lies, and how erase blocks become free again.
//!
//! # Contract of an FTL
//! - [`Ftl::write`] returns when the page is on flash; a page is written whole. If it returns
//!   [`PowerCut`] the page is old or new after recovery, as are none of the others.
//! - [`Ftl::locate`] names the newest page, or none if the host never wrote it or gave it up.
//! - [`Ftl::trim`] is called after the trim is in the journal; pages that are trimmed read as
//!   never written, also after a power cut.
//! - Recovery gets nothing but the [`Nand`]: tables in memory are gone. It may itself be cut, any
//!   number of times.
//! - Memory that it reports is what the drive's controller would need, in the entry sizes that its
//!   paper gives; the emulator's own may differ.
//!
//! `conformance` tests hold every FTL to this.

mod bast;
mod block_map;
mod dftl;
mod fast;
mod free;
mod map_cache;
mod page_mapped;
mod redo;
mod scan;
mod sftl;
mod space;
mod victim;

use crate::counters::FtlCounters;
use crate::nand::{Done, Nand, PowerCut};
use crate::profile::Profile;
use crate::units::{Lpn, Ns, Ppn};
use std::fmt;
use std::str::FromStr;

pub use page_mapped::Placement;
pub use victim::VictimPolicy;

/// A page on its way from the host to flash.
#[derive(Clone, Copy, Debug)]
pub struct PageWrite<'a> {
    /// Which.
    pub lpn: Lpn,
    /// When the host wrote it; higher than any before.
    pub sequence: u64,
    /// What is kept of its content.
    pub content: &'a [u8],
    /// The placement handle that the host named; 0 if it named none.
    pub handle: u8,
    /// Why: `Host`, or `Rmw` if part of it was read from flash first.
    pub cause: crate::counters::Cause,
}

/// Memory that a controller needs for its map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct MapMemory {
    /// Bytes of tables that are always there.
    pub tables_bytes: u64,
    /// Bytes of caches and of log or replacement tables, at their largest.
    pub cache_bytes: u64,
}

/// A flash translation layer; see the [module's contract](self).
pub trait Ftl: Send + fmt::Debug {
    /// Its kind.
    fn kind(&self) -> FtlKind;

    /// Puts a page on flash.
    ///
    /// # Errors
    /// [`PowerCut`].
    fn write(&mut self, nand: &mut Nand, at: Ns, page: PageWrite<'_>) -> Done;

    /// Where a logical page lies, and when that is known.
    ///
    /// # Errors
    /// [`PowerCut`].
    fn locate(&mut self, nand: &mut Nand, at: Ns, lpn: Lpn) -> Result<(Option<Ppn>, Ns), PowerCut>;

    /// Forgets a logical page.
    ///
    /// # Errors
    /// [`PowerCut`].
    fn trim(&mut self, nand: &mut Nand, at: Ns, lpn: Lpn) -> Done;

    /// Where a logical page lies, at no cost: for checks.
    fn peek(&self, nand: &Nand, lpn: Lpn) -> Option<Ppn>;

    /// What it did so far.
    fn counters(&self) -> &FtlCounters;

    /// What its map needs.
    fn memory(&self) -> MapMemory;

    /// Erase blocks that are empty and not in use.
    fn free_blocks(&self) -> usize;

    /// Stops at tables that contradict each other or the flash. Takes time in proportion to the
    /// drive.
    ///
    /// # Panics
    /// When they do.
    fn assert_consistent(&self, nand: &Nand);
}

/// The FTLs that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FtlKind {
    /// A map of pages, all in memory.
    PageMapped,
    /// A map of pages on flash, cached on demand.
    Dftl,
    /// A map of erase blocks, each of which may have its own log block.
    Bast,
    /// A map of erase blocks with log blocks shared by all.
    Fast,
    /// A map of erase blocks and nothing else.
    Redo,
    /// A map of erase blocks, each of which may have a replacement written in place.
    Sftl,
}

impl FtlKind {
    /// Every kind, in order.
    pub const ALL: [FtlKind; 6] = [
        FtlKind::PageMapped,
        FtlKind::Dftl,
        FtlKind::Bast,
        FtlKind::Fast,
        FtlKind::Redo,
        FtlKind::Sftl,
    ];

    /// Its name on command lines and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            FtlKind::PageMapped => "page",
            FtlKind::Dftl => "dftl",
            FtlKind::Bast => "bast",
            FtlKind::Fast => "fast",
            FtlKind::Redo => "redo",
            FtlKind::Sftl => "sftl",
        }
    }
}

impl fmt::Display for FtlKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FtlKind {
    type Err = FtlError;

    fn from_str(text: &str) -> Result<FtlKind, FtlError> {
        let found = FtlKind::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| FtlError::Unknown { name: text.to_string() })
    }
}

/// What an FTL may be told beyond the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FtlOptions {
    /// How the page-mapped FTL and DFTL choose what to collect.
    pub victims: VictimPolicy,
    /// How the page-mapped FTL keeps writes apart.
    pub placement: Placement,
    /// Whether DFTL, when it writes a map page because one entry leaves the cache, writes the
    /// other changed entries of that page too. The paper's does not.
    pub batch_evictions: bool,
}

impl Default for FtlOptions {
    fn default() -> FtlOptions {
        FtlOptions {
            victims: VictimPolicy::Greedy,
            placement: Placement::Mixed,
            batch_evictions: false,
        }
    }
}

/// Why there is no such FTL on such a drive.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FtlError {
    /// None has this name.
    Unknown {
        /// The name.
        name: String,
    },
    /// The drive has too little spare space for it to work at all.
    TooLittleSpare {
        /// Which.
        kind: FtlKind,
        /// Spare erase blocks that it needs.
        needed: u32,
        /// Those that there are.
        spare: u32,
    },
    /// It cannot do what was asked.
    Unable {
        /// Which.
        kind: FtlKind,
        /// What.
        what: &'static str,
    },
}

impl fmt::Display for FtlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FtlError::Unknown { name } => {
                write!(f, "`{name}` is no FTL; there are")?;
                FtlKind::ALL.iter().try_for_each(|kind| write!(f, " {kind}"))
            }
            FtlError::TooLittleSpare { kind, needed, spare } => {
                write!(f, "{kind} needs {needed} spare erase blocks, the drive has {spare}")
            }
            FtlError::Unable { kind, what } => write!(f, "{kind} cannot {what}"),
        }
    }
}

impl std::error::Error for FtlError {}

/// Whether an FTL can work on a drive.
///
/// # Errors
/// Why not.
pub fn check(kind: FtlKind, profile: &Profile, options: &FtlOptions) -> Result<(), FtlError> {
    if kind != FtlKind::PageMapped && options.placement != Placement::Mixed {
        return Err(FtlError::Unable { kind, what: "keep streams apart" });
    }
    let collects = matches!(kind, FtlKind::PageMapped | FtlKind::Dftl);
    if !collects && options.victims != VictimPolicy::Greedy {
        return Err(FtlError::Unable { kind, what: "choose victims: it has none" });
    }
    let needed = match kind {
        FtlKind::PageMapped => page_mapped::spare_needed(options),
        FtlKind::Dftl => dftl::spare_needed(profile),
        FtlKind::Bast => profile.log_blocks + 2,
        FtlKind::Fast => profile.log_blocks.max(2) + 2,
        FtlKind::Redo => 2,
        FtlKind::Sftl => profile.log_blocks + 2,
    };
    let spare = profile.geometry.spare_erase_blocks();
    if spare < needed {
        return Err(FtlError::TooLittleSpare { kind, needed, spare });
    }
    Ok(())
}

/// An FTL on new flash.
///
/// # Errors
/// If it cannot work there.
pub fn create(
    kind: FtlKind,
    profile: &Profile,
    options: FtlOptions,
) -> Result<Box<dyn Ftl>, FtlError> {
    check(kind, profile, &options)?;
    let mut empty = Nand::new(profile, crate::content::Keep::Nothing);
    // A scan of empty flash finds nothing and costs nothing that anybody sees.
    let (ftl, _) =
        recover(kind, profile, options, &mut empty, 0).expect("no power cut was asked for");
    Ok(ftl)
}

/// The FTL that finds its tables again on flash that has lost power; `at` is when it came back,
/// the result when the drive is ready.
///
/// # Errors
/// [`PowerCut`], if that was asked for again.
///
/// # Panics
/// When the FTL cannot work on the drive: see [`check`].
pub fn recover(
    kind: FtlKind,
    profile: &Profile,
    options: FtlOptions,
    nand: &mut Nand,
    at: Ns,
) -> Result<(Box<dyn Ftl>, Ns), PowerCut> {
    fn boxed<F: Ftl + 'static>((ftl, at): (F, Ns)) -> (Box<dyn Ftl>, Ns) {
        (Box::new(ftl), at)
    }
    match kind {
        FtlKind::PageMapped => page_mapped::PageMapped::recover(nand, options, at).map(boxed),
        FtlKind::Dftl => dftl::Dftl::recover(nand, profile, options, at).map(boxed),
        FtlKind::Bast => bast::Bast::recover(nand, profile, at).map(boxed),
        FtlKind::Fast => fast::Fast::recover(nand, profile, at).map(boxed),
        FtlKind::Redo => redo::Redo::recover(nand, at).map(boxed),
        FtlKind::Sftl => sftl::Sftl::recover(nand, profile, at).map(boxed),
    }
}
