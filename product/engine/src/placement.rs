//! Where blocks go: those that will be overwritten at about the same time belong together, for then
//! a segment empties by itself and little is left to relocate.
//!
//! How long a block will live is inferred from how long the one before it at the same address has
//! lived: its segment knows, to within a segment, when its blocks were written. Nothing is kept for
//! single blocks. What counts as short is learned: the mean life ℓ of the last sixteen segments of
//! the shortest-lived stream. After SepBIT (Wang et al., FAST 2022), with these departures: ages are
//! those of segments; host data has three classes where SepBIT has two, for at a Zipf exponent of
//! 0.99 and 17.65 % of spare space the third is worth 6 % of all writes; and relocated blocks are
//! told apart by age alone.
//!
//! ```text
//!              user                 cleaning
//! age < ℓ      User                 Cleaning
//!     < 4 ℓ    UserWarm             Cleaning
//!     < 16 ℓ   UserCold             CleaningWarm
//!     beyond   UserCold             CleaningCold      (also what was never written, or is unknown)
//! ```
//!
//! # Invariants
//! - All of it is advice: any block may lie in any stream.
//! - Writes of a *group*, records of several user streams that count together, may be told apart;
//!   those of one address never are (see `group`).

use crate::named::{Named, print_and_parse_by_name};
use crate::segments::Lives;
use crate::units::{Stream, mean};

/// Which blocks share segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// Everything goes to one stream, in the order in which it comes.
    Mixed,
    /// What the host writes and what the cleaner relocates are apart.
    Apart,
    /// Besides, blocks are told apart by how long they are expected to live.
    #[default]
    Lifetime,
    /// By the address, without sense: reaches every stream quickly. For tests.
    #[doc(hidden)]
    Scattered,
}

impl Named for Placement {
    const NAMED: &'static [(&'static str, Placement)] = &[
        ("mixed", Placement::Mixed),
        ("apart", Placement::Apart),
        ("lifetime", Placement::Lifetime),
    ];
}

print_and_parse_by_name!(Placement);

/// Segments whose lives make up ℓ.
const LIVES: u32 = 16;

/// Blocks in a group, on average, from which host data is told apart, and below which it no longer
/// is: each record costs a header, and small records cost more than is won.
const GROUP_SPLIT: u64 = 32;
const GROUP_JOIN: u64 = 16;

/// Overwrites that are looked at before it is decided whether blocks differ, one in so many if
/// nothing is told apart.
const SKEW_OVERWRITES: u64 = 4096;
const SAMPLE_EVERY: u32 = 8;

/// How many halves of what would be the case if all blocks were alike must be young for blocks to be
/// told apart, and to go on with it.
const SKEW_ENTER_HALVES: u128 = 4;
const SKEW_LEAVE_HALVES: u128 = 3;

/// Spare segments below which all go together: every stream keeps a segment open.
pub(crate) const SPARE_SEGMENTS_MIN: u32 = 24;

/// What has been learned about lifetimes.
#[derive(Debug, Default)]
pub(crate) struct Placer {
    placement: Placement,
    /// ℓ, in user blocks; zero while unknown.
    life: u64,
    /// Lives that ended since ℓ was last set: how many, and how long in sum.
    ended: u32,
    lived: u128,
    /// Sixteen times the average blocks of a group.
    group_average: u64,
    groups_are_large: bool,
    /// Overwrites looked at, and how many of them were of blocks younger than ℓ.
    overwrites: u64,
    young: u64,
    /// Whether some blocks are overwritten much sooner than others.
    is_skewed: bool,
    /// Writes until the next one is looked at although nothing is told apart.
    until_sample: u32,
    enough_segments: bool,
}

impl Placer {
    pub(crate) fn new(placement: Placement, spare_segments: u32) -> Placer {
        let enough_segments = spare_segments >= SPARE_SEGMENTS_MIN;
        Placer { placement, enough_segments, ..Placer::default() }
    }

    pub(crate) fn placement(&self) -> Placement {
        self.placement
    }

    pub(crate) fn set_placement(&mut self, placement: Placement) {
        self.placement = placement;
    }

    /// How it is done, for a store that has so many spare segments now. Nothing has been learned.
    pub(crate) fn renewed(&self, spare_segments: u32) -> Placer {
        Placer::new(self.placement, spare_segments)
    }

    /// Segments of [`Stream::User`] were freed at this time.
    pub(crate) fn learn(&mut self, lives: Lives, clock: u64) {
        let ends = u128::from(lives.count) * u128::from(clock);
        self.lived += ends.saturating_sub(lives.sum_opened);
        self.ended += lives.count;
        assert!(self.ended < 1 << 24, "no more segments end than there are");
        if self.ended >= LIVES {
            self.life = mean(self.lived, self.ended).max(1);
            (self.ended, self.lived) = (0, 0);
            assert!(self.life > 0, "a segment lives for a write at least");
        }
    }

    /// A group of so many blocks was sealed.
    pub(crate) fn group_sealed(&mut self, blocks: u64) {
        self.group_average = self.group_average - self.group_average / 16 + blocks;
        let average = self.group_average / 16;
        assert!(blocks <= 1 << 20, "a group is a few records");
        let limit = if self.groups_are_large { GROUP_JOIN } else { GROUP_SPLIT };
        self.groups_are_large = average >= limit;
    }

    /// Whether host data is told apart now.
    pub(crate) fn splits_user_data(&self) -> bool {
        let lifetimes = self.groups_are_large && self.knows_lives();
        (self.placement == Placement::Lifetime && lifetimes)
            || self.placement == Placement::Scattered
    }

    fn knows_lives(&self) -> bool {
        self.life > 0 && self.enough_segments && self.is_skewed
    }

    /// Whether to look at a write although nothing is told apart.
    pub(crate) fn wants_sample(&mut self) -> bool {
        if self.placement != Placement::Lifetime || self.life == 0 {
            return false;
        }
        let wanted = self.until_sample == 0;
        self.until_sample = if wanted { SAMPLE_EVERY - 1 } else { self.until_sample - 1 };
        wanted
    }

    /// A block of this age was overwritten.
    pub(crate) fn note_overwrite(&mut self, age: Option<u64>) {
        let Some(age) = age else { return };
        self.overwrites += 1;
        self.young += u64::from(age < self.life);
        assert!(self.young <= self.overwrites, "the young are some of them");
    }

    /// Decides, for a store with so many blocks, whether ages tell anything. If all blocks were
    /// alike, a share of 1 − e^−x of the overwrites would be of blocks younger than ℓ, x being ℓ
    /// per block of the store; nearly x / (1 + x / 2).
    pub(crate) fn judge_skew(&mut self, blocks: u64) {
        if self.overwrites < SKEW_OVERWRITES {
            return;
        }
        assert!(self.young <= self.overwrites, "the young are some of them");
        let (young, all) = (u128::from(self.young), u128::from(self.overwrites));
        let (life, blocks) = (u128::from(self.life), u128::from(blocks.max(1)));
        // young / all against times · life / (blocks + life / 2), in halves.
        let times = if self.is_skewed { SKEW_LEAVE_HALVES } else { SKEW_ENTER_HALVES };
        self.is_skewed = young * (2 * blocks + life) > all * times * life;
        (self.overwrites, self.young) = (0, 0);
    }

    /// Where to put a host block whose forerunner at the same address is so old.
    pub(crate) fn user_stream(&self, age: Option<u64>) -> Stream {
        match age {
            Some(age) if age < self.life => Stream::User,
            Some(age) if age < self.life.saturating_mul(4) => Stream::UserWarm,
            _ => Stream::UserCold,
        }
    }

    /// Where to put what is relocated from a segment whose blocks are so old.
    pub(crate) fn cleaning_stream(&self, age: u64) -> Stream {
        match self.placement {
            Placement::Mixed => Stream::User,
            Placement::Scattered => Stream::CLEANING[(age % 3) as usize],
            Placement::Lifetime if self.knows_lives() => {
                if age < self.life.saturating_mul(4) {
                    Stream::Cleaning
                } else if age < self.life.saturating_mul(16) {
                    Stream::CleaningWarm
                } else {
                    Stream::CleaningCold
                }
            }
            _ => Stream::Cleaning,
        }
    }

    /// The streams that relocations may go to.
    pub(crate) fn cleaning_streams(&self) -> &'static [Stream] {
        match self.placement {
            Placement::Mixed => &Stream::USER[..1],
            _ => &Stream::CLEANING,
        }
    }

    /// The streams that anything goes to.
    pub(crate) fn streams(&self) -> &'static [Stream] {
        match self.placement {
            Placement::Mixed => &[Stream::User, Stream::Metadata],
            Placement::Apart => &[Stream::User, Stream::Cleaning, Stream::Metadata],
            _ => &Stream::ALL,
        }
    }

    /// ℓ, in user blocks; zero while unknown.
    pub(crate) fn life(&self) -> u64 {
        self.life
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knowing(life: u64) -> Placer {
        let mut placer = Placer::new(Placement::Lifetime, 100);
        let opened = u128::from(LIVES) * 1_000_000;
        placer.learn(Lives { count: LIVES, sum_opened: opened }, 1_000_000 + life);
        (0..SKEW_OVERWRITES).for_each(|_| placer.note_overwrite(Some(0)));
        placer.judge_skew(100 * life);
        placer
    }

    #[test]
    fn blocks_are_told_apart_by_age_once_lives_are_known_and_groups_large() {
        let mut placer = Placer::new(Placement::Lifetime, 100);
        assert!(!placer.splits_user_data());
        assert_eq!(placer.cleaning_stream(u64::MAX), Stream::Cleaning);
        placer = knowing(1000);
        assert_eq!(placer.life(), 1000);
        assert!(!placer.splits_user_data(), "no group was large");
        (0..64).for_each(|_| placer.group_sealed(100));
        assert!(placer.splits_user_data());
        let user = [Some(0), Some(999), Some(1000), Some(3999), Some(4000), None];
        let expected = [
            Stream::User,
            Stream::User,
            Stream::UserWarm,
            Stream::UserWarm,
            Stream::UserCold,
            Stream::UserCold,
        ];
        assert_eq!(user.map(|age| placer.user_stream(age)), expected);
        let cleaning = [0, 3999, 4000, 15_999, 16_000].map(|age| placer.cleaning_stream(age));
        let (young, warm, cold) = (Stream::Cleaning, Stream::CleaningWarm, Stream::CleaningCold);
        assert_eq!(cleaning, [young, young, warm, warm, cold]);
        (0..256).for_each(|_| placer.group_sealed(1));
        assert!(!placer.splits_user_data(), "groups are small");
    }

    #[test]
    fn where_all_blocks_are_alike_none_is_told_apart() {
        let mut placer = knowing(1000);
        assert!(placer.is_skewed);
        // A tenth of the store is overwritten within ℓ: so many are young anyway.
        for write in 0..SKEW_OVERWRITES {
            placer.note_overwrite(Some(if write % 10 == 0 { 500 } else { 5000 }));
        }
        placer.judge_skew(10_000);
        assert!(!placer.is_skewed);
        assert_eq!(placer.cleaning_stream(u64::MAX), Stream::Cleaning);
        // One and a half times as many do not suffice to begin with it.
        for write in 0..SKEW_OVERWRITES {
            placer.note_overwrite(Some(if write % 100 < 15 { 500 } else { 5000 }));
        }
        placer.judge_skew(10_000);
        assert!(!placer.is_skewed);
    }

    #[test]
    fn with_few_spare_segments_all_stays_together() {
        let mut placer = Placer::new(Placement::Lifetime, SPARE_SEGMENTS_MIN - 1);
        placer.learn(Lives { count: LIVES, sum_opened: 0 }, 1000);
        (0..64).for_each(|_| placer.group_sealed(100));
        assert!(!placer.splits_user_data());
        assert_eq!(placer.cleaning_stream(u64::MAX), Stream::Cleaning);
    }
}
