//! The ways to reclaim space.

use crate::Engine;
use crate::placement::UnknownName;
use crate::units::Origin;
use core::fmt;
use core::str::FromStr;

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
    /// All of them, each with its name.
    pub const NAMED: [(&'static str, Reclaim); 3] = [
        ("copy-out", Reclaim::CopyOut),
        ("hole-fill", Reclaim::HoleFill),
        ("threaded", Reclaim::Threaded),
    ];

    /// Whether this one's records go into holes.
    pub(crate) fn fills_holes(self, origin: Origin) -> bool {
        match self {
            Reclaim::CopyOut => false,
            Reclaim::HoleFill => origin == Origin::Cleaning,
            Reclaim::Threaded => origin == Origin::User,
        }
    }
}

impl fmt::Display for Reclaim {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Reclaim::NAMED.iter().find(|(_, reclaim)| reclaim == self);
        formatter.write_str(name.map_or("", |(name, _)| name))
    }
}

impl FromStr for Reclaim {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Reclaim, UnknownName> {
        let found = Reclaim::NAMED.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, reclaim)| *reclaim)
            .ok_or(UnknownName { known: "copy-out, hole-fill, threaded" })
    }
}

impl Engine {
    /// How space is reclaimed.
    pub fn reclaim(&self) -> Reclaim {
        self.config.reclaim
    }

    /// Changes how space is reclaimed, from the next record on. Holes that were prepared are given
    /// up at the next checkpoint if nobody wants them any more.
    pub fn set_reclaim(&mut self, reclaim: Reclaim) {
        self.config.reclaim = reclaim;
        self.log.reclaim = reclaim;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_what_they_name() {
        for (name, reclaim) in Reclaim::NAMED {
            assert_eq!(name.parse(), Ok(reclaim));
            assert_eq!(alloc::format!("{reclaim}"), name);
        }
        assert!("sideways".parse::<Reclaim>().is_err());
    }
}
