//! Which addresses a host touches.

use crate::permutation::Permutation;
use crate::random::Random;
use crate::zipf::Zipf;
use std::fmt;
use std::str::FromStr;

/// How addresses are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// Each as likely as any other.
    Uniform,
    /// Few of them often, after Zipf's law. Popular addresses are scattered over the whole range,
    /// as those of a real host are.
    Zipf {
        /// How uneven: 0 is uniform, 0.99 is usual.
        theta: f64,
    },
    /// As `Zipf`, but what is popular changes: whenever a hundredth as many addresses have been drawn
    /// as there are, the most popular fifth is shuffled. An address of that fifth may be very popular
    /// now and hardly so a little later; those outside it never become popular.
    Shift {
        /// As of `Zipf`.
        theta: f64,
    },
    /// One after the other, and from the start again.
    Sequential,
    /// A share of the addresses, scattered, gets a larger share of the accesses; both are uniform
    /// in themselves.
    HotCold {
        /// Hot addresses in a hundred, 1 to 99.
        hot_percent: u8,
        /// Accesses to hot addresses in a hundred.
        access_percent: u8,
    },
}

impl Pattern {
    /// Addresses `0..count` in this pattern, without end.
    ///
    /// # Panics
    /// When `count` is zero, or the pattern's numbers are outside what they may be.
    pub fn over(self, count: u64, seed: u64) -> Addresses {
        assert!(count > 0, "there must be addresses");
        let scatter = Permutation::new(count, seed ^ 0x5ca7_7e12);
        let choice = match self {
            Pattern::Uniform => Choice::Uniform,
            Pattern::Zipf { theta } => Choice::Zipf(Zipf::new(count, theta)),
            Pattern::Shift { theta } => Choice::Shift {
                zipf: Zipf::new(count, theta),
                shuffle: Permutation::new((count / 5).max(1), seed),
                shuffles: 0,
                left: (count / 100).max(1),
            },
            Pattern::Sequential => Choice::Sequential { next: 0 },
            Pattern::HotCold { hot_percent, access_percent } => {
                assert!((1..=99).contains(&hot_percent), "both kinds must be there");
                assert!(access_percent <= 100, "a share of a hundred");
                let hot = (count * u64::from(hot_percent) / 100).clamp(1, count);
                Choice::HotCold { hot, access_percent: access_percent.into() }
            }
        };
        Addresses { choice, count, scatter, seed, random: Random::new(seed) }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Uniform => write!(f, "uniform"),
            Pattern::Zipf { theta } => write!(f, "zipf:{theta}"),
            Pattern::Shift { theta } => write!(f, "shift:{theta}"),
            Pattern::Sequential => write!(f, "sequential"),
            Pattern::HotCold { hot_percent, access_percent } => {
                write!(f, "hot:{hot_percent}:{access_percent}")
            }
        }
    }
}

/// A pattern's name that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsePatternError(String);

impl fmt::Display for ParsePatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = "uniform, sequential, zipf:THETA, shift:THETA or hot:PERCENT:ACCESS_PERCENT";
        write!(f, "`{}` is no pattern; there are {names}", self.0)
    }
}

impl std::error::Error for ParsePatternError {}

impl FromStr for Pattern {
    type Err = ParsePatternError;

    /// Takes what `Display` writes.
    fn from_str(text: &str) -> Result<Pattern, ParsePatternError> {
        let pattern = match text.split(':').collect::<Vec<_>>()[..] {
            ["uniform"] => Some(Pattern::Uniform),
            ["sequential"] => Some(Pattern::Sequential),
            ["zipf", theta] => parse_theta(theta).map(|theta| Pattern::Zipf { theta }),
            ["shift", theta] => parse_theta(theta).map(|theta| Pattern::Shift { theta }),
            ["hot", hot, access] => {
                let hot = hot.parse().ok().filter(|hot| (1..=99).contains(hot));
                let access = access.parse().ok().filter(|access| *access <= 100);
                hot.zip(access).map(|(hot_percent, access_percent)| Pattern::HotCold {
                    hot_percent,
                    access_percent,
                })
            }
            _ => None,
        };
        pattern.ok_or_else(|| ParsePatternError(text.to_string()))
    }
}

fn parse_theta(text: &str) -> Option<f64> {
    text.parse().ok().filter(|theta: &f64| theta.is_finite() && *theta >= 0.0)
}

#[derive(Clone, Debug)]
enum Choice {
    Uniform,
    Zipf(Zipf),
    /// `left` addresses until the next shuffle.
    Shift {
        zipf: Zipf,
        shuffle: Permutation,
        shuffles: u64,
        left: u64,
    },
    Sequential {
        next: u64,
    },
    HotCold {
        hot: u64,
        access_percent: u64,
    },
}

/// Addresses in a pattern, without end.
#[derive(Clone, Debug)]
pub struct Addresses {
    choice: Choice,
    count: u64,
    scatter: Permutation,
    seed: u64,
    random: Random,
}

impl Addresses {
    /// The next address.
    #[inline]
    pub fn address(&mut self) -> u64 {
        match &mut self.choice {
            Choice::Uniform => self.random.below(self.count),
            Choice::Zipf(zipf) => self.scatter.at(zipf.rank(&mut self.random)),
            Choice::Shift { zipf, shuffle, shuffles, left } => {
                if *left == 0 {
                    *shuffles += 1;
                    *left = (self.count / 100).max(1);
                    *shuffle = Permutation::new(shuffle.count(), self.seed.wrapping_add(*shuffles));
                }
                *left -= 1;
                let rank = zipf.rank(&mut self.random);
                let place = if rank < shuffle.count() { shuffle.at(rank) } else { rank };
                self.scatter.at(place)
            }
            Choice::Sequential { next } => {
                let address = *next;
                *next = (address + 1) % self.count;
                address
            }
            Choice::HotCold { hot, access_percent } => {
                let to_hot = self.random.below(100) < *access_percent;
                let cold = self.count - *hot;
                let place = if to_hot || cold == 0 {
                    self.random.below(*hot)
                } else {
                    *hot + self.random.below(cold)
                };
                self.scatter.at(place)
            }
        }
    }

    /// Addresses are below it.
    pub fn range(&self) -> u64 {
        self.count
    }
}

impl Iterator for Addresses {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        Some(self.address())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pattern: Pattern, count: u64, samples: usize) -> Vec<u32> {
        let mut counts = vec![0; count as usize];
        pattern.over(count, 5).take(samples).for_each(|address| counts[address as usize] += 1);
        counts
    }

    #[test]
    fn uniform_addresses_pass_a_chi_square_test() {
        let counts = counts(Pattern::Uniform, 1000, 100_000);
        let chi_square: f64 = counts.iter().map(|n| (f64::from(*n) - 100.0).powi(2) / 100.0).sum();
        // 999 degrees of freedom: mean 999, standard deviation 44.7.
        assert!((chi_square - 999.0).abs() < 5.0 * 44.7, "{chi_square}");
    }

    #[test]
    fn zipf_addresses_are_few_and_scattered() {
        let counts = counts(Pattern::Zipf { theta: 0.99 }, 10_000, 100_000);
        let mut ordered = counts.clone();
        ordered.sort_unstable_by(|a, b| b.cmp(a));
        let top: u32 = ordered[..100].iter().sum();
        // The law says 0.53 of the accesses go to one address in a hundred.
        assert!((50_000..57_000).contains(&top), "{top}");
        let halves = counts.chunks(5000).map(|half| half.iter().sum::<u32>()).collect::<Vec<_>>();
        assert!(halves.iter().all(|sum| *sum > 25_000), "{halves:?}");
    }

    #[test]
    fn what_is_popular_changes_within_one_fifth_of_the_addresses() {
        const COUNT: u64 = 10_000;
        let mut addresses = Pattern::Shift { theta: 1.0 }.over(COUNT, 5);
        let mut favourites = Vec::new();
        let mut totals = vec![0u32; COUNT as usize];
        for _ in 0..400 {
            let mut counts = vec![0u32; COUNT as usize];
            for address in addresses.by_ref().take(COUNT as usize / 100) {
                counts[address as usize] += 1;
                totals[address as usize] += 1;
            }
            let favourite = (0..COUNT).max_by_key(|address| counts[*address as usize]);
            favourites.push(favourite.expect("there are addresses"));
        }
        favourites.sort_unstable();
        favourites.dedup();
        assert!(favourites.len() > 300, "{} favourites in 400 periods", favourites.len());
        totals.sort_unstable_by(|a, b| b.cmp(a));
        let hot: u32 = totals[..COUNT as usize / 5].iter().sum();
        // The law gives the first fifth 0.836 of the accesses.
        assert!(hot.abs_diff(33_440) < 600, "{hot}");
        assert!(totals[0] < 200, "none stays popular for long: {}", totals[0]);
    }

    #[test]
    fn sequential_addresses_start_again() {
        let addresses: Vec<_> = Pattern::Sequential.over(3, 0).take(7).collect();
        assert_eq!(addresses, [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn hot_addresses_get_their_share() {
        let pattern = Pattern::HotCold { hot_percent: 20, access_percent: 80 };
        let mut counts = counts(pattern, 1000, 100_000);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let hot: u32 = counts[..200].iter().sum();
        assert!(hot.abs_diff(80_000) < 700, "{hot}");
    }

    #[test]
    fn the_same_seed_gives_the_same_addresses_and_another_does_not() {
        for pattern in [Pattern::Uniform, Pattern::Zipf { theta: 0.99 }] {
            let [a, b, c] = [1, 1, 2].map(|seed| {
                let addresses = pattern.over(1 << 30, seed);
                addresses.take(100).collect::<Vec<_>>()
            });
            assert_eq!(a, b);
            assert_ne!(a, c);
        }
    }

    #[test]
    fn names_are_read_back() {
        let patterns = [
            Pattern::Uniform,
            Pattern::Sequential,
            Pattern::Zipf { theta: 0.99 },
            Pattern::Shift { theta: 1.0 },
            Pattern::HotCold { hot_percent: 10, access_percent: 90 },
        ];
        for pattern in patterns {
            assert_eq!(pattern.to_string().parse(), Ok(pattern));
        }
        for wrong in [
            "",
            "zipf",
            "zipf:-1",
            "zipf:nan",
            "shift",
            "shift:inf",
            "hot:0:50",
            "hot:10:101",
            "uniform:1",
        ] {
            assert!(wrong.parse::<Pattern>().is_err(), "{wrong}");
        }
    }
}
