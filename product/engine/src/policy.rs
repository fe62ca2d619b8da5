//! Which segment to clean.

use crate::named::{Named, print_and_parse_by_name};

/// How the cleaner chooses its victim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum VictimPolicy {
    /// The segment with the fewest valid blocks.
    Greedy,
    /// The most space for the least copying, weighed with age: (1 − u) · age / (1 + u), u being the
    /// share of valid blocks. Old segments lose no more blocks by waiting; young ones do.
    /// Rosenblum and Ousterhout 1992; age is counted in blocks written by the host, not in time.
    CostBenefit,
    /// The same with less weight on age and more on copying: (1 − u) / u · √age, the score of SepBIT's
    /// simulator (Wang et al., FAST 2022). Where blocks are placed by lifetime it rewrites least.
    #[default]
    DampedAge,
}

impl Named for VictimPolicy {
    const NAMED: &'static [(&'static str, VictimPolicy)] = &[
        ("greedy", VictimPolicy::Greedy),
        ("cost-benefit", VictimPolicy::CostBenefit),
        ("damped-age", VictimPolicy::DampedAge),
    ];
}

print_and_parse_by_name!(VictimPolicy);

/// A segment that could be cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Valid blocks.
    pub valid: u32,
    /// Blocks in the segment.
    pub size: u32,
    /// Host blocks written since the segment was closed.
    pub age: u64,
    /// The same for all closed segments, on average.
    pub mean_age: u64,
}

impl VictimPolicy {
    /// Higher is better; zero is not worth cleaning.
    pub fn score(self, candidate: Candidate) -> u64 {
        let Candidate { valid, size, age, .. } = candidate;
        let free = u64::from(size.saturating_sub(valid));
        match self {
            VictimPolicy::Greedy => free,
            // 2^36 blocks of age (256 TiB written) and 2^18 blocks of segment stay below 2^64 after
            // the shift that keeps small quotients apart.
            VictimPolicy::CostBenefit => {
                let age = age.clamp(1, 1 << 36);
                ((free * age) << 8) / (u64::from(size) + u64::from(valid))
            }
            // The root is below 2^30 and the quotient below 2^30 too.
            VictimPolicy::DampedAge => {
                let root = (age.clamp(1, 1 << 44) << 16).isqrt();
                (free << 12) / u64::from(valid.max(1)) * root
            }
        }
    }
}

/// The score of a segment of metadata. All of its pages and runs are written anew once in a round of
/// the sweep, so it empties soon, and by itself: what is copied out of it sooner is dead soon after.
/// It is worth cleaning when next to nothing is left in it, or when the rest has been there for long,
/// as pages have that nobody writes to.
pub(crate) fn postponed(score: u64) -> u64 {
    (score / 64).max(u64::from(score > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD_AND_FULLER: Candidate =
        Candidate { valid: 600, size: 1000, age: 10_000, mean_age: 0 };
    const YOUNG_AND_EMPTIER: Candidate =
        Candidate { valid: 400, size: 1000, age: 100, mean_age: 0 };

    #[test]
    fn greedy_takes_the_emptiest_and_the_others_prefer_the_old() {
        let better =
            |policy: VictimPolicy| policy.score(OLD_AND_FULLER) > policy.score(YOUNG_AND_EMPTIER);
        assert!(!better(VictimPolicy::Greedy));
        assert!(better(VictimPolicy::CostBenefit));
        assert!(better(VictimPolicy::DampedAge));
    }

    #[test]
    fn the_root_gives_age_less_weight() {
        let older = Candidate { valid: 800, size: 1000, age: 1000, mean_age: 0 };
        let emptier = Candidate { valid: 500, size: 1000, age: 300, mean_age: 0 };
        let better = |policy: VictimPolicy| policy.score(older) > policy.score(emptier);
        // 1/9 · 1000 against 1/3 · 300; 1/4 · √1000 against 1 · √300.
        assert!(better(VictimPolicy::CostBenefit));
        assert!(!better(VictimPolicy::DampedAge));
    }

    #[test]
    fn metadata_is_copied_when_little_is_left_or_what_is_left_has_been_there_for_long() {
        let host = Candidate { valid: 700, size: 1000, age: 1_000_000, mean_age: 0 };
        let better = |valid, age| {
            let metadata =
                VictimPolicy::DampedAge.score(Candidate { valid, size: 1000, age, mean_age: 0 });
            postponed(metadata) > VictimPolicy::DampedAge.score(host)
        };
        assert!(!better(300, 1_000_000));
        assert!(better(30, 1_000_000));
        assert!(better(100, 20_000_000));
        assert_eq!(postponed(0), 0, "what is full is still not worth it");
        assert_eq!(postponed(1), 1, "what is worth something stays so");
    }

    #[test]
    fn a_full_segment_is_never_worth_cleaning() {
        let full = Candidate { valid: 1000, size: 1000, age: u64::MAX, mean_age: 0 };
        for (name, policy) in VictimPolicy::NAMED {
            assert_eq!(policy.score(full), 0, "{name}");
        }
    }

    #[test]
    fn the_largest_candidate_does_not_overflow() {
        let largest = Candidate { valid: 0, size: 1 << 18, age: u64::MAX, mean_age: 0 };
        for (name, policy) in VictimPolicy::NAMED {
            assert!(policy.score(largest) > 0, "{name}");
        }
    }
}
