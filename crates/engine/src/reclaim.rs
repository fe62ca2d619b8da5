//! The ways to reclaim space.

use crate::Engine;
use crate::named::{Named, print_and_parse_by_name};
use crate::units::Origin;

/// How the space of blocks that are dead is used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reclaim {
    /// What is valid in a segment is copied into an empty one; the segment becomes empty.
    #[default]
    CopyOut,
    /// The same, but into the holes of fuller segments: an empty one is not used up. Han and Son 2021,
    /// and Sung et al. 2022, with the departures that `holes` tells of.
    HoleFill,
    /// Host data is written into the holes of segments, with nothing copied, as long as there are
    /// enough of them; else as with copy-out. Choi et al. 2015, S-LFS.
    Threaded,
}

impl Reclaim {
    /// Whether this one's records go into holes.
    pub(crate) fn fills_holes(self, origin: Origin) -> bool {
        match self {
            Reclaim::CopyOut => false,
            Reclaim::HoleFill => origin == Origin::Cleaning,
            Reclaim::Threaded => origin == Origin::User,
        }
    }
}

impl Named for Reclaim {
    const NAMED: &'static [(&'static str, Reclaim)] = &[
        ("copy-out", Reclaim::CopyOut),
        ("hole-fill", Reclaim::HoleFill),
        ("threaded", Reclaim::Threaded),
    ];
}

print_and_parse_by_name!(Reclaim);

impl Engine {
    /// How space is reclaimed.
    pub fn reclaim(&self) -> Reclaim {
        self.shared.config.reclaim
    }

    /// Changes how space is reclaimed, from the next record on. Holes that were prepared are given
    /// up at the next checkpoint if nobody wants them any more.
    pub fn set_reclaim(&mut self, reclaim: Reclaim) {
        self.shared.config.reclaim = reclaim;
        self.shared.log.reclaim = reclaim;
    }
}
