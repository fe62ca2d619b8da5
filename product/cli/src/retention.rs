//! Which snapshots of a schedule are kept: a pure function of their times.
//!
//! `hourly=24,daily=7` keeps the newest snapshot of each of the 24 newest hours that have one, and the newest of each
//! of the 7 newest days that have one. A snapshot may be kept for several reasons. Hours, days, weeks (from Monday),
//! months and years are those of UTC.
//!
//! Periods without a snapshot are not counted: after a month in which a host was off, the snapshots from before it are
//! still there. So the count of what is kept never exceeds the sum of the numbers, and never falls because time passes.

use std::fmt;
use std::str::FromStr;

/// Seconds of an hour, and of a day.
const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// A kind of period, by the name that it has in `--keep`, and the number of the period of a time.
type Kind = (&'static str, fn(u64) -> u64);

/// The kinds. Each snapshot is a period of its own to `last`.
const KINDS: [Kind; 6] = [
    ("last", |_| 0),
    ("hourly", |time| time / HOUR),
    ("daily", |time| time / DAY),
    // 1 January 1970 was a Thursday.
    ("weekly", |time| (time / DAY + 3) / 7),
    ("monthly", |time| month(time / DAY)),
    ("yearly", |time| month(time / DAY) / 12),
];

/// Periods of a kind at most.
const COUNT_MAX: u32 = 4096;

/// How many snapshots of each kind of period are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retention {
    counts: [u32; KINDS.len()],
}

impl Retention {
    /// For each snapshot whether it is kept. `times` are in seconds since 1970, in any order; of snapshots with one time
    /// the later in the list counts as newer.
    pub(crate) fn kept(&self, times: &[u64]) -> Vec<bool> {
        let mut newest_first: Vec<usize> = (0..times.len()).collect();
        newest_first.sort_by_key(|index| std::cmp::Reverse((times[*index], *index)));
        let mut kept = vec![false; times.len()];
        for ((name, period_of), count) in KINDS.iter().zip(self.counts) {
            let (mut left, mut period) = (count, None);
            for index in &newest_first {
                let now = period_of(times[*index]);
                if left == 0 {
                    break;
                }
                if *name == "last" || period != Some(now) {
                    kept[*index] = true;
                    left -= 1;
                }
                period = Some(now);
            }
        }
        assert!(times.is_empty() || kept[newest_first[0]], "the newest is always kept");
        kept
    }
}

/// Months since the year 0 of the day with this number since 1970, in the Gregorian calendar.
///
/// As in Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms": years begin in March, so that the day that comes
/// and goes is the last.
fn month(day: u64) -> u64 {
    const DAYS_OF_ERA: u64 = 146_097;
    let day = day + 719_468;
    let (era, of_era) = (day / DAYS_OF_ERA, day % DAYS_OF_ERA);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    (era * 400 + year) * 12 + from_march + 2
}

impl FromStr for Retention {
    type Err = String;

    fn from_str(text: &str) -> Result<Retention, String> {
        let mut counts = [0; KINDS.len()];
        for part in text.split(',') {
            let (name, count) =
                part.split_once('=').ok_or_else(|| format!("'{part}' is not KIND=COUNT"))?;
            let index = KINDS.iter().position(|(known, _)| *known == name).ok_or_else(|| {
                let known = KINDS.map(|(known, _)| known).join(", ");
                format!("'{name}' is none of {known}")
            })?;
            let count: u32 = count.parse().map_err(|_| format!("'{count}' is not a number"))?;
            if !(1..=COUNT_MAX).contains(&count) {
                return Err(format!("{name} is from 1 to {COUNT_MAX}"));
            }
            if counts[index] != 0 {
                return Err(format!("{name} is there twice"));
            }
            counts[index] = count;
        }
        Ok(Retention { counts })
    }
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = KINDS.iter().zip(self.counts).filter(|(_, count)| *count > 0);
        let parts: Vec<String> =
            parts.map(|((name, _), count)| format!("{name}={count}")).collect();
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> u64 {
        let time = humantime::parse_rfc3339(text).expect("a time");
        time.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs()
    }

    /// Which of the times are kept, in their order.
    fn kept<'a>(keep: &str, times: &[&'a str]) -> Vec<&'a str> {
        let keep: Retention = keep.parse().expect("a retention");
        let seconds: Vec<u64> = times.iter().map(|text| time(text)).collect();
        let kept = keep.kept(&seconds);
        times.iter().zip(kept).filter(|(_, kept)| *kept).map(|(time, _)| *time).collect()
    }

    #[test]
    fn the_newest_of_each_period_is_kept() {
        const TIMES: [&str; 8] = [
            "2024-02-28T23:10:00Z",
            "2024-02-28T23:50:00Z",
            "2024-02-29T00:10:00Z",
            "2024-02-29T23:59:59Z",
            "2024-03-01T00:00:00Z",
            "2024-03-04T10:00:00Z", // a Monday
            "2024-12-30T10:00:00Z", // a Monday
            "2025-01-05T10:00:00Z", // the Sunday of that week
        ];
        for (keep, indexes) in [
            ("last=1", &[7][..]),
            ("last=3", &[5, 6, 7]),
            ("last=100", &[0, 1, 2, 3, 4, 5, 6, 7]),
            ("hourly=2", &[6, 7]),
            ("hourly=6", &[2, 3, 4, 5, 6, 7]),
            ("hourly=7", &[1, 2, 3, 4, 5, 6, 7]),
            ("daily=5", &[3, 4, 5, 6, 7]),
            ("daily=6", &[1, 3, 4, 5, 6, 7]),
            ("weekly=1", &[7]),
            ("weekly=2", &[5, 7]),
            ("weekly=3", &[4, 5, 7]),
            ("monthly=3", &[5, 6, 7]),
            ("monthly=9", &[3, 5, 6, 7]),
            ("yearly=1", &[7]),
            ("yearly=9", &[6, 7]),
            ("hourly=1,monthly=3,yearly=2", &[5, 6, 7]),
        ] {
            let expected: Vec<&str> = indexes.iter().map(|index| TIMES[*index]).collect();
            assert_eq!(kept(keep, &TIMES), expected, "{keep}");
        }
        assert!(kept("daily=1", &[]).is_empty());
    }

    #[test]
    fn order_and_equal_times_make_no_difference_to_how_many_are_kept() {
        let keep: Retention = "hourly=2,daily=2".parse().expect("a retention");
        assert_eq!(keep.kept(&[7200, 0, 3600]), [true, false, true]);
        assert_eq!(keep.kept(&[5, 5, 5]), [false, false, true]);
        assert_eq!(keep.kept(&[0]), [true]);
        assert_eq!(keep.kept(&[u64::from(u32::MAX) * 4, 0]), [true, true]);
    }

    /// A snapshot an hour for two years, pruned each time: what stays is what one pruning at the end would keep.
    #[test]
    fn pruning_again_and_again_keeps_what_pruning_once_would() {
        let keep: Retention = "hourly=24,daily=7,weekly=4,monthly=12".parse().expect("a retention");
        let start = time("2023-06-15T09:30:00Z");
        let all: Vec<u64> = (0..2 * 365 * 24).map(|hour| start + hour * HOUR).collect();
        let prune = |times: &[u64]| -> Vec<u64> {
            times
                .iter()
                .zip(keep.kept(times))
                .filter(|(_, kept)| *kept)
                .map(|(it, _)| *it)
                .collect()
        };
        let mut there: Vec<u64> = Vec::new();
        for time in &all {
            there.push(*time);
            there = prune(&there);
            assert!(there.len() <= 24 + 7 + 4 + 12);
        }
        // The oldest of what pruning once keeps may have begun in a period that had just begun.
        assert_eq!(there, prune(&all));
    }

    #[test]
    fn months_and_years_are_those_of_the_calendar() {
        for (text, year, number) in [
            ("1970-01-01T00:00:00Z", 1970, 1),
            ("1999-12-31T23:59:59Z", 1999, 12),
            ("2000-02-29T00:00:00Z", 2000, 2),
            ("2000-03-01T00:00:00Z", 2000, 3),
            ("2024-02-29T23:59:59Z", 2024, 2),
            ("2100-02-28T23:59:59Z", 2100, 2),
            ("2100-03-01T00:00:00Z", 2100, 3),
        ] {
            assert_eq!(month(time(text) / DAY), year * 12 + number - 1, "{text}");
        }
    }

    #[test]
    fn what_is_no_retention_is_refused_with_a_reason() {
        for (text, reason) in [
            ("", "is not KIND=COUNT"),
            ("daily", "is not KIND=COUNT"),
            ("daily=7,", "is not KIND=COUNT"),
            ("minutely=7", "'minutely' is none of last, hourly"),
            ("daily=", "'' is not a number"),
            ("daily=-1", "'-1' is not a number"),
            ("daily=0", "daily is from 1 to"),
            ("daily=5000", "daily is from 1 to"),
            ("daily=1,daily=2", "daily is there twice"),
        ] {
            let error = text.parse::<Retention>().expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
        let keep: Retention = "daily=7,hourly=24".parse().expect("a retention");
        assert_eq!(keep.to_string(), "hourly=24,daily=7");
    }
}
