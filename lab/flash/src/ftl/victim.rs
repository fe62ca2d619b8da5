//! Which erase block is collected next.

use std::fmt;
use std::str::FromStr;

/// How a victim is chosen. Ties go to the lowest number, so that runs are repeatable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VictimPolicy {
    /// The fewest valid pages.
    Greedy,
    /// The best benefit / cost = age (1 - u) / 2u, u being the valid share (Kawaguchi et al. 1995).
    CostBenefit,
    /// The one that was filled first.
    Oldest,
}

impl VictimPolicy {
    /// Every policy, in order.
    pub const ALL: [VictimPolicy; 3] =
        [VictimPolicy::Greedy, VictimPolicy::CostBenefit, VictimPolicy::Oldest];

    /// Its name on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            VictimPolicy::Greedy => "greedy",
            VictimPolicy::CostBenefit => "cost-benefit",
            VictimPolicy::Oldest => "oldest",
        }
    }
}

impl fmt::Display for VictimPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for VictimPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<VictimPolicy, String> {
        let found = VictimPolicy::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| format!("`{text}` is no policy; there are greedy cost-benefit oldest"))
    }
}

/// Valid pages of each erase block, and which of them may be collected.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    /// Valid pages of every erase block.
    valid: Vec<u16>,
    /// The same for closed ones, [`NEVER`] for others: so that the search for the least is a loop
    /// over one array.
    candidates: Vec<u16>,
    closed_at: Vec<u64>,
    clock: u64,
    pages_per_block: u16,
}

const NEVER: u16 = u16::MAX;

impl Ledger {
    pub(crate) fn new(erase_blocks: u32, pages_per_block: u32) -> Ledger {
        let count = erase_blocks as usize;
        Ledger {
            valid: vec![0; count],
            candidates: vec![NEVER; count],
            closed_at: vec![0; count],
            clock: 0,
            pages_per_block: u16::try_from(pages_per_block).expect("profiles keep to 16384"),
        }
    }

    pub(crate) fn valid(&self, block: usize) -> u32 {
        self.valid[block].into()
    }

    pub(crate) fn is_closed(&self, block: usize) -> bool {
        self.candidates[block] != NEVER
    }

    #[inline]
    pub(crate) fn add(&mut self, block: usize) {
        self.clock += 1;
        self.valid[block] += 1;
        assert!(
            self.valid[block] <= self.pages_per_block,
            "no more pages are valid than there are"
        );
        if self.candidates[block] != NEVER {
            self.candidates[block] += 1;
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, block: usize) {
        assert!(self.valid[block] > 0, "the page was valid");
        self.valid[block] -= 1;
        if self.candidates[block] != NEVER {
            self.candidates[block] -= 1;
        }
    }

    pub(crate) fn close(&mut self, block: usize) {
        self.candidates[block] = self.valid[block];
        self.closed_at[block] = self.clock;
    }

    /// The block was chosen, or is empty: it is no candidate.
    pub(crate) fn withdraw(&mut self, block: usize) {
        self.candidates[block] = NEVER;
    }

    /// The closed block to collect; `None` if all of them are full of valid pages.
    pub(crate) fn victim(&self, policy: VictimPolicy) -> Option<usize> {
        let chosen = match policy {
            VictimPolicy::Greedy => {
                let least = *self.candidates.iter().min()?;
                self.candidates.iter().position(|valid| *valid == least)
            }
            VictimPolicy::CostBenefit => self.best(|ledger, block| {
                let valid = u64::from(ledger.valid[block]);
                let pages = u64::from(ledger.pages_per_block);
                let age = ledger.clock - ledger.closed_at[block] + 1;
                // Ages stay far below 2^48 and pages below 2^15: no overflow.
                (age * (pages - valid)).checked_div(2 * valid).unwrap_or(u64::MAX)
            }),
            VictimPolicy::Oldest => self.best(|ledger, block| !ledger.closed_at[block]),
        };
        chosen.filter(|block| self.candidates[*block] < self.pages_per_block)
    }

    fn best(&self, score: impl Fn(&Ledger, usize) -> u64) -> Option<usize> {
        let closed = (0..self.candidates.len())
            .filter(|block| self.candidates[*block] < self.pages_per_block);
        // `max_by_key` keeps the last of equals; the lowest number is wanted.
        closed.rev().max_by_key(|block| score(self, *block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three closed blocks of ten pages with 2, 5 and 2 valid pages, closed in the order 1, 0, 2.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::new(4, 10);
        for (block, valid) in [(1, 5), (0, 2), (2, 2)] {
            (0..valid).for_each(|_| ledger.add(block));
            ledger.close(block);
        }
        ledger
    }

    #[test]
    fn each_policy_chooses_its_own() {
        let ledger = ledger();
        assert_eq!(ledger.victim(VictimPolicy::Greedy), Some(0));
        assert_eq!(ledger.victim(VictimPolicy::Oldest), Some(1));
        assert_eq!(ledger.victim(VictimPolicy::CostBenefit), Some(0));
    }

    #[test]
    fn age_outweighs_emptiness_in_cost_benefit() {
        let mut ledger = Ledger::new(3, 10);
        (0..4).for_each(|_| ledger.add(0));
        ledger.close(0);
        // Time passes: pages are written elsewhere.
        for _ in 0..9 {
            ledger.add(2);
        }
        (0..2).for_each(|_| ledger.add(1));
        ledger.close(1);
        assert_eq!(ledger.victim(VictimPolicy::CostBenefit), Some(0));
        assert_eq!(ledger.victim(VictimPolicy::Greedy), Some(1));
    }

    #[test]
    fn a_block_full_of_valid_pages_is_no_victim() {
        let mut ledger = Ledger::new(1, 2);
        ledger.add(0);
        ledger.add(0);
        ledger.close(0);
        for policy in VictimPolicy::ALL {
            assert_eq!(ledger.victim(policy), None);
        }
        ledger.remove(0);
        assert_eq!(ledger.victim(VictimPolicy::Oldest), Some(0));
        ledger.withdraw(0);
        assert_eq!(ledger.victim(VictimPolicy::Greedy), None);
    }
}
