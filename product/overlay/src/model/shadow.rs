//! The contents that a file of a life by chance may have: each block and the size, with their
//! values since the last sync that was answered.

use coulter_format::{BLOCK_SIZE, Block};
use std::ops::Range;
use std::rc::Rc;

/// Blocks of a file at most.
pub(super) const FILE_BLOCKS: usize = 6;

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is not answered: it may be there or not.
    Out,
    Done,
    /// It was refused: part of it may be there.
    Failed,
}

/// The values of something, in the order in which they were set.
#[derive(Clone, Debug)]
pub(super) struct History<T> {
    values: Vec<(T, Fate)>,
    /// The number of the one that is durable.
    durable: usize,
    /// A sync failed: only values from this number on can be durable by another one.
    doubted: usize,
}

impl<T> History<T> {
    fn new(value: T) -> History<T> {
        History { values: vec![(value, Fate::Done)], durable: 0, doubted: 0 }
    }

    /// Sets a value; this is its number.
    fn push(&mut self, value: T) -> usize {
        assert!(self.is_certain(), "changes of one thing come one after the other");
        self.values.push((value, Fate::Out));
        self.values.len() - 1
    }

    fn end(&mut self, number: usize, is_done: bool) {
        let fate = &mut self.values[number].1;
        assert_eq!(*fate, Fate::Out, "a change is answered once");
        *fate = if is_done { Fate::Done } else { Fate::Failed };
    }

    /// The number of the last value that is there for certain.
    fn done(&self) -> usize {
        let done = self.values.iter().rposition(|(_, fate)| *fate == Fate::Done);
        done.expect("the first one is")
    }

    /// The last value that is there for certain.
    pub(super) fn now(&self) -> &T {
        &self.values[self.done()].0
    }

    fn is_certain(&self) -> bool {
        self.values.last().is_some_and(|(_, fate)| *fate == Fate::Done)
    }

    /// Values from a number on, or from the durable one on.
    fn since(&self, number: Option<usize>) -> impl Iterator<Item = &T> {
        self.values[number.unwrap_or(self.durable)..].iter().map(|(value, _)| value)
    }

    fn make_durable(&mut self, number: usize) {
        if number >= self.doubted {
            self.durable = self.durable.max(number);
        }
    }

    fn doubt(&mut self) {
        self.doubted = self.values.len();
    }

    /// It was looked at, which takes no doubt away.
    fn settle_on(&mut self, value: T) {
        let was_doubted = self.doubted == self.values.len();
        self.doubted += usize::from(was_doubted);
        self.values.push((value, Fate::Done));
    }
}

/// Numbers of what a file was at a time.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    size: usize,
    blocks: Vec<usize>,
}

/// A change that is on its way.
#[derive(Clone, Debug, Default)]
pub(super) struct Change {
    size: Option<usize>,
    blocks: Vec<(usize, usize)>,
    /// Blocks that no other change may touch: none for all of the file.
    range: Option<Range<usize>>,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(super) struct Shadow {
    pub(super) inode: Option<u64>,
    pub(super) size: History<u64>,
    blocks: Vec<History<Rc<Block>>>,
    /// Changes on their way: the request, and what it uses.
    changes: Vec<(u64, Option<Range<usize>>)>,
    /// A change failed: it is to be looked at before the next one.
    pub(super) is_uncertain: bool,
}

impl Shadow {
    pub(super) fn new(content: &[u8]) -> Shadow {
        let blocks = (0..FILE_BLOCKS).map(|index| History::new(block_of(content, index)));
        Shadow {
            inode: None,
            size: History::new(content.len() as u64),
            blocks: blocks.collect(),
            changes: Vec::new(),
            is_uncertain: false,
        }
    }

    pub(super) fn moment(&self) -> Moment {
        let blocks = self.blocks.iter().map(History::done).collect();
        Moment { size: self.size.done(), blocks }
    }

    /// True if a change of a range of blocks, or of all of the file, can begin.
    pub(super) fn is_free(&self, range: &Option<Range<usize>>) -> bool {
        self.changes.iter().all(|(_, other)| match (other, range) {
            (Some(other), Some(range)) => other.end <= range.start || range.end <= other.start,
            _ => false,
        })
    }

    pub(super) fn is_idle(&self) -> bool {
        self.changes.is_empty()
    }

    /// Bytes are written.
    pub(super) fn write(&mut self, id: u64, offset: usize, bytes: &[u8]) -> Change {
        let end = offset + bytes.len();
        let range = offset / BLOCK_SIZE..end.div_ceil(BLOCK_SIZE);
        let mut change = Change::default();
        for index in range.clone() {
            let mut block = (**self.blocks[index].now()).to_vec();
            let start = index * BLOCK_SIZE;
            let (from, to) = (offset.max(start), end.min(start + BLOCK_SIZE));
            block[from - start..to - start].copy_from_slice(&bytes[from - offset..to - offset]);
            change.blocks.push((index, self.blocks[index].push(block_of(&block, 0))));
        }
        if end as u64 > *self.size.now() {
            change.size = Some(self.size.push(end as u64));
        } else {
            change.range = Some(range);
        }
        self.begin(id, change)
    }

    /// It gets another size.
    pub(super) fn resize(&mut self, id: u64, size: u64) -> Change {
        let mut change = Change::default();
        if size < *self.size.now() {
            for index in size as usize / BLOCK_SIZE..FILE_BLOCKS {
                let kept = (size as usize).saturating_sub(index * BLOCK_SIZE);
                let block = block_of(&self.blocks[index].now()[..kept.min(BLOCK_SIZE)], 0);
                change.blocks.push((index, self.blocks[index].push(block)));
            }
        }
        change.size = Some(self.size.push(size));
        self.begin(id, change)
    }

    /// Blocks become zeros.
    pub(super) fn punch(&mut self, id: u64, range: Range<usize>) -> Change {
        let mut change = Change { range: Some(range.clone()), ..Change::default() };
        for index in range {
            change.blocks.push((index, self.blocks[index].push(block_of(&[], 0))));
        }
        self.begin(id, change)
    }

    fn begin(&mut self, id: u64, change: Change) -> Change {
        assert!(self.is_free(&change.range), "the driver looks first");
        self.changes.push((id, change.range.clone()));
        change
    }

    /// A change was answered.
    pub(super) fn end(&mut self, id: u64, change: &Change, is_done: bool) {
        self.changes.retain(|(other, _)| *other != id);
        change.size.iter().for_each(|number| self.size.end(*number, is_done));
        change.blocks.iter().for_each(|(index, number)| self.blocks[*index].end(*number, is_done));
        self.is_uncertain |= !is_done;
    }

    /// A sync may have failed: what was not durable then may never be.
    pub(super) fn doubt(&mut self) {
        self.blocks.iter_mut().for_each(History::doubt);
    }

    /// A sync that came at this moment was answered.
    pub(super) fn make_durable(&mut self, moment: &Moment) {
        self.size.make_durable(moment.size);
        for (block, number) in self.blocks.iter_mut().zip(&moment.blocks) {
            block.make_durable(*number);
        }
    }

    /// A write that was to be durable was answered.
    pub(super) fn make_change_durable(&mut self, change: &Change) {
        change.size.iter().for_each(|number| self.size.make_durable(*number));
        for (index, number) in &change.blocks {
            self.blocks[*index].make_durable(*number);
        }
    }

    /// Checks bytes that a read of `length` at `offset` found, which began at a moment.
    pub(super) fn check_read(
        &self,
        (offset, length): (usize, usize),
        found: &[u8],
        moment: &Moment,
    ) -> Result<(), String> {
        self.check(offset, found, Some(moment))?;
        let fits = |size: &u64| (*size as usize).saturating_sub(offset).min(length) == found.len();
        let mut sizes = self.size.since(Some(moment.size));
        if sizes.any(fits) { Ok(()) } else { Err(format!("{} bytes were read", found.len())) }
    }

    /// Checks the content that was found after a crash.
    pub(super) fn check_content(&self, found: &[u8]) -> Result<(), String> {
        if self.size.since(None).all(|size| *size != found.len() as u64) {
            return Err(format!("it never had {} bytes", found.len()));
        }
        self.check(0, found, None)
    }

    fn check(&self, offset: usize, found: &[u8], moment: Option<&Moment>) -> Result<(), String> {
        let mut at = 0;
        while at < found.len() {
            let (index, start) = ((offset + at) / BLOCK_SIZE, (offset + at) % BLOCK_SIZE);
            let part = &found[at..found.len().min(at + BLOCK_SIZE - start)];
            let block = self.blocks.get(index).ok_or("it is longer than it ever was")?;
            let number = moment.map(|moment| moment.blocks[index]);
            if !block.since(number).any(|value| value[start..start + part.len()] == *part) {
                let start = &part[..part.len().min(12)];
                return Err(format!("block {index} was never like this: {start:?}"));
            }
            at += part.len();
        }
        Ok(())
    }

    /// Takes the content that was found as certain.
    pub(super) fn settle_on(&mut self, content: &[u8]) -> Result<(), String> {
        assert!(self.is_idle(), "nothing changes it now");
        self.check_read((0, usize::MAX), content, &self.moment())?;
        self.size.settle_on(content.len() as u64);
        for (index, block) in self.blocks.iter_mut().enumerate() {
            block.settle_on(block_of(content, index));
        }
        self.is_uncertain = false;
        Ok(())
    }
}

/// A block of a file, with zeros behind its end.
fn block_of(content: &[u8], index: usize) -> Rc<Block> {
    let mut block = [0; BLOCK_SIZE];
    let start = content.len().min(index * BLOCK_SIZE);
    let part = &content[start..content.len().min(start + BLOCK_SIZE)];
    block[..part.len()].copy_from_slice(part);
    Rc::new(block)
}

#[test]
fn a_value_is_durable_by_a_sync_that_came_after_it_and_by_none_that_failed_before() {
    let mut history = History::new(0);
    let first = history.push(1);
    history.end(first, true);
    let second = history.push(2);
    history.make_durable(first);
    assert_eq!(history.since(None).copied().collect::<Vec<_>>(), [1, 2]);
    history.end(second, true);
    history.doubt();
    history.make_durable(second);
    assert_eq!(history.since(None).copied().collect::<Vec<_>>(), [1, 2], "a sync has failed");
    let third = history.push(3);
    history.end(third, true);
    history.make_durable(third);
    assert_eq!(history.since(None).copied().collect::<Vec<_>>(), [3]);
}
