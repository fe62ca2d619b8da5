//! Which states the promises allow.
//!
//! Every accepted write or discard gets a number; a block's content tells the number of the write
//! that it came from. After a crash the volume must equal the state after some prefix of the
//! accepted operations, and that prefix must contain everything that a completed flush covers.
//!
//! # Addresses in doubt
//! After damage beyond repair a block may be in doubt: reading it is an error until an operation that names it takes effect,
//! and over crashes for as long as that operation is not kept. It is an error only where the damage explains it, and a block
//! in doubt answers no data, neither older nor the right ones: what was unknown once is known no better later.

use std::ops::Range;

/// One accepted operation: all of it takes effect, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What it changes. No block is in two parts.
    pub parts: Vec<Part>,
}

/// One range of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First block.
    pub lba: u64,
    /// Blocks.
    pub count: u64,
    /// A discard instead of a write.
    pub discard: bool,
}

impl Operation {
    /// A write of one range.
    pub fn write(lba: u64, count: u64) -> Operation {
        Operation { parts: vec![Part { lba, count, discard: false }] }
    }

    /// A discard of one range.
    pub fn discard(lba: u64, count: u64) -> Operation {
        Operation { parts: vec![Part { lba, count, discard: true }] }
    }
}

impl Part {
    fn range(&self) -> Range<usize> {
        self.lba as usize..(self.lba + self.count) as usize
    }

    /// What the operation of this number leaves in the part's blocks.
    fn content(&self, number: u64) -> u64 {
        if self.discard { 0 } else { number }
    }
}

/// The promises, as a model.
#[derive(Clone, Debug)]
pub struct Oracle {
    /// Content of each block before `operations`: the number of its write, or zero.
    base: Vec<u64>,
    /// Number of the first of `operations`.
    first: u64,
    operations: Vec<Operation>,
    completed: Vec<bool>,
    /// Operations below this number must survive a cut.
    durable: u64,
    /// The latest accepted discard of each block.
    latest_discard: Vec<u64>,
    /// The latest accepted write of each block.
    latest_write: Vec<u64>,
    /// Blocks that any operation ever named.
    touched: Vec<bool>,
    /// Blocks of which `base` was in doubt.
    doubt: Vec<bool>,
}

/// Blocks read at once at most.
const RANGE_MAX: u64 = 512;

/// What a read must show at least; see [`Oracle::floor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floor {
    /// The operation that was completed last.
    pub operation: u64,
    /// The number that it left in the block.
    pub content: u64,
    /// Since no operation on the block was completed since it is in doubt: it must be an error, or something newer.
    pub in_doubt: bool,
}

/// What the volume shows that no allowed state explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// A sentence.
    pub what: String,
}

impl Oracle {
    /// An empty volume of so many blocks.
    pub fn new(volume_size: u64) -> Oracle {
        Oracle {
            base: vec![0; volume_size as usize],
            first: 1,
            operations: Vec::new(),
            completed: Vec::new(),
            durable: 1,
            latest_discard: vec![0; volume_size as usize],
            latest_write: vec![0; volume_size as usize],
            touched: vec![false; volume_size as usize],
            doubt: vec![false; volume_size as usize],
        }
    }

    /// The next range of blocks from `lba` on that any write ever named: all others are zero.
    pub fn touched(&self, lba: u64) -> Option<Range<u64>> {
        let rest = self.touched.get(lba as usize..)?;
        let start = lba + rest.iter().position(|touched| *touched)? as u64;
        let count = self.touched[start as usize..].iter().take_while(|touched| **touched).count();
        Some(start..start + (count as u64).min(RANGE_MAX))
    }

    /// Notes an operation in order of acceptance; returns its number.
    pub fn accept(&mut self, operation: Operation) -> u64 {
        let number = self.next_number();
        for part in &operation.parts {
            if part.discard {
                self.latest_discard[part.range()].fill(number);
            } else {
                self.touched[part.range()].fill(true);
                self.latest_write[part.range()].fill(number);
            }
        }
        self.operations.push(operation);
        self.completed.push(false);
        self.first + self.operations.len() as u64 - 1
    }

    /// The number that the next accepted operation will get.
    pub fn next_number(&self) -> u64 {
        self.first + self.operations.len() as u64
    }

    /// An operation was acknowledged.
    pub fn complete(&mut self, number: u64) {
        self.completed[(number - self.first) as usize] = true;
    }

    /// Operations below this have all been acknowledged.
    pub fn completed_prefix(&self) -> u64 {
        let open = self.completed.iter().position(|completed| !completed);
        self.first + open.unwrap_or(self.completed.len()) as u64
    }

    /// Every operation that was complete when a flush was submitted is durable now.
    pub fn durable_up_to(&mut self, number: u64) {
        self.durable = self.durable.max(number);
    }

    /// What a read of a block that is submitted now must show at least: the operation that was
    /// completed last, and the content that it left.
    pub fn floor(&self, lba: u64) -> Floor {
        let (content, in_doubt) = (self.base[lba as usize], self.doubt[lba as usize]);
        let mut floor = Floor { operation: self.base_operation(), content, in_doubt };
        for (index, operation) in self.operations.iter().enumerate() {
            let covering =
                operation.parts.iter().find(|part| part.range().contains(&(lba as usize)));
            if let Some(part) = covering
                && self.completed[index]
            {
                let number = self.first + index as u64;
                let content = part.content(number);
                floor = Floor { operation: number, content, in_doubt: false };
            }
        }
        floor
    }

    fn base_operation(&self) -> u64 {
        self.first - 1
    }

    /// Whether a read may show `seen`: its floor, or anything accepted after that. Operations are
    /// applied in order of acceptance, so nothing older can come back.
    pub fn allows(&self, lba: u64, floor: Floor, seen: u64) -> bool {
        (seen == floor.content && !floor.in_doubt)
            || (seen > floor.operation && seen < self.next_number())
            || (seen == 0 && self.latest_discard[lba as usize] > floor.operation)
    }

    /// Whether a block may be said to be mapped by an answer to what was asked at this floor.
    pub fn may_be_mapped(&self, lba: u64, floor: Floor) -> bool {
        floor.content != 0 || floor.in_doubt || self.latest_write[lba as usize] > floor.operation
    }

    /// The write of this number discards nothing.
    pub fn refuse_discards(&mut self, number: u64) {
        let index = (number - self.first) as usize;
        self.operations[index].parts.retain(|part| !part.discard);
    }

    /// The write of this number was refused, and changes nothing.
    pub fn refuse(&mut self, number: u64) {
        let index = (number - self.first) as usize;
        self.operations[index].parts.clear();
        self.completed[index] = true;
    }

    /// The blocks that are mapped when all that was accepted has taken effect.
    pub fn mapped(&self) -> Vec<u64> {
        let mut state: Vec<bool> = self.base.iter().map(|number| *number > 0).collect();
        for part in self.operations.iter().flat_map(|operation| &operation.parts) {
            state[part.range()].fill(!part.discard);
        }
        (0..).zip(state).filter(|(_, mapped)| *mapped).map(|(lba, _)| lba).collect()
    }

    /// Stretches, told apart by `unit`, of which any block was ever written.
    pub fn touched_units(&self, unit: impl Fn(u64) -> u64) -> u64 {
        let touched = (0..).zip(&self.touched).filter(|(_, touched)| **touched);
        let units = touched.map(|(lba, _)| unit(lba));
        units.collect::<std::collections::BTreeSet<_>>().len() as u64
    }

    /// Blocks in doubt, as of the latest opening.
    pub fn in_doubt(&self) -> u64 {
        self.doubt.iter().filter(|doubt| **doubt).count() as u64
    }

    /// Compares the volume after a crash. `observed` holds each block's number, or `None` if reading it was an error.
    /// Goes on from the state that was found. `lossless`: everything acknowledged must be there. `damaged`: whether what
    /// lies damaged on the device explains that a block is an error.
    ///
    /// # Errors
    /// A [`Violation`] if no allowed prefix gives this state.
    pub fn recover(
        &mut self,
        observed: &[Option<u64>],
        lossless: bool,
        damaged: impl Fn(u64) -> bool,
    ) -> Result<(), Violation> {
        let must = if lossless { self.completed_prefix() } else { self.durable };
        let mut state = self.base.clone();
        let mut doubt = self.doubt.clone();
        let is_wrong = |lba: usize, state: &[u64], doubt: &[bool]| match observed[lba] {
            Some(seen) => doubt[lba] || seen != state[lba],
            None => !doubt[lba] && !damaged(lba as u64),
        };
        let mut wrong = (0..state.len()).filter(|lba| is_wrong(*lba, &state, &doubt)).count();
        let mut best = (usize::MAX, 0);
        let mut found = None;
        for length in 0..=self.operations.len() {
            let next = self.first + length as u64;
            if next >= must && wrong < best.0 {
                best = (wrong, next);
            }
            if next >= must && wrong == 0 {
                found = Some((length, state.clone()));
            }
            let Some(operation) = self.operations.get(length) else { break };
            for part in &operation.parts {
                for lba in part.range() {
                    wrong -= usize::from(is_wrong(lba, &state, &doubt));
                    (state[lba], doubt[lba]) = (part.content(next), false);
                    wrong += usize::from(is_wrong(lba, &state, &doubt));
                }
            }
        }
        let Some((_, state)) = found else { return Err(self.explain(observed, must, best)) };
        self.first += self.operations.len() as u64;
        self.base = state;
        self.doubt = observed.iter().map(Option::is_none).collect();
        self.operations.clear();
        self.completed.clear();
        self.durable = self.first;
        Ok(())
    }

    fn explain(&self, observed: &[Option<u64>], must: u64, best: (usize, u64)) -> Violation {
        let mut state = self.base.clone();
        for (index, operation) in self.operations.iter().enumerate() {
            let number = self.first + index as u64;
            if number >= best.1 {
                break;
            }
            for part in &operation.parts {
                state[part.range()].fill(part.content(number));
            }
        }
        let doubt = &self.doubt;
        let seen = state.iter().zip(observed).enumerate();
        let differing = seen.filter(|(lba, (want, seen))| **seen != Some(**want) || doubt[*lba]);
        let examples: Vec<_> =
            differing.take(5).map(|(lba, (want, seen))| (lba, *want, *seen, doubt[lba])).collect();
        let (wrong, prefix) = best;
        Violation {
            what: format!(
                "no prefix of operations {}..{} that contains those below {must} gives this \
                 state; nearest: below {prefix}, {wrong} blocks differ, e.g. (block, expected, \
                 seen, in doubt before) {examples:?}",
                self.first,
                self.first + self.operations.len() as u64
            ),
        }
    }

    /// Forgets operations that are durable and complete, to keep the list short.
    pub fn settle(&mut self) {
        let settled = self.durable.min(self.completed_prefix());
        let count = (settled - self.first) as usize;
        for (index, operation) in self.operations.drain(..count).enumerate() {
            let number = self.first + index as u64;
            for part in operation.parts {
                self.base[part.range()].fill(part.content(number));
                self.doubt[part.range()].fill(false);
            }
        }
        self.completed.drain(..count);
        self.first = settled;
    }
}
