//! Knows which states the promises allow.

use crate::plan::CELL_COUNT;
use std::collections::BTreeMap;

/// What the device holds: the number of the write in each cell, 0 for zeros.
pub type Cells = [u64; CELL_COUNT];

/// One opening of the volume.
#[derive(Clone, Debug, Default)]
struct Life {
    /// What it found, and what it was after each write.
    states: Vec<Cells>,
    /// The last of them that a flush has acknowledged.
    acknowledged: usize,
    /// The first of them that the local device was in: the copy may have held more.
    local: usize,
    /// The one that the next opening found.
    found_by_next: Option<usize>,
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    /// By epoch.
    lives: BTreeMap<u64, Life>,
    pins: BTreeMap<String, Cells>,
    /// Names that are being given up, and by how many hosts: what is kept meanwhile may go, too.
    leaving: BTreeMap<String, u32>,
}

impl Oracle {
    /// An opening has begun as `epoch`, behind a commit of the epoch `before`, and found this.
    ///
    /// # Errors
    /// The broken rule.
    pub fn began(&mut self, epoch: u64, before: u64, found: Cells) -> Result<(), String> {
        self.check_found(before, found, true)?;
        let life = Life { states: vec![found], ..Life::default() };
        if self.lives.insert(epoch, life).is_some() {
            return Err(format!("epoch {epoch} was given to two"));
        }
        Ok(())
    }

    /// Somebody finds this as the state of an epoch.
    ///
    /// # Errors
    /// The broken rule.
    pub fn check_found(&mut self, epoch: u64, found: Cells, is_last: bool) -> Result<(), String> {
        let Some(life) = self.lives.get_mut(&epoch) else {
            let is_empty = found == Cells::default();
            return if is_empty { Ok(()) } else { Err(format!("{found:?} before any write")) };
        };
        let index = life.states.iter().rposition(|state| *state == found);
        let index = index
            .ok_or_else(|| format!("{found:?} is no state of epoch {epoch}: {:?}", life.states))?;
        if index < life.acknowledged {
            let flushed = life.acknowledged;
            return Err(format!("epoch {epoch}: {flushed} was acknowledged, {index} was found"));
        }
        if is_last {
            life.found_by_next = Some(index);
        }
        Ok(())
    }

    /// The device of an epoch's host is this now.
    pub fn changed(&mut self, epoch: u64, cells: Cells) {
        self.lives.get_mut(&epoch).expect("it has begun").states.push(cells);
    }

    /// The device of an epoch's host holds this at its beginning.
    pub fn begins_with(&mut self, epoch: u64, cells: Cells) {
        self.changed(epoch, cells);
        let newest = self.newest(epoch);
        self.lives.get_mut(&epoch).expect("it has begun").local = newest;
    }

    /// The newest state of an epoch.
    pub fn newest(&self, epoch: u64) -> usize {
        self.lives[&epoch].states.len() - 1
    }

    /// Whether an epoch's beginning was seen.
    pub fn knows(&self, epoch: u64) -> bool {
        self.lives.contains_key(&epoch)
    }

    /// A flush has acknowledged a state of an epoch.
    ///
    /// # Errors
    /// The broken rule.
    pub fn acknowledged(&mut self, epoch: u64, state: usize) -> Result<(), String> {
        let life = self.lives.get_mut(&epoch).expect("it has begun");
        life.acknowledged = life.acknowledged.max(state);
        match life.found_by_next {
            Some(found) if found < state => Err(format!(
                "epoch {epoch} acknowledged {state} after the next host had found {found}"
            )),
            _ => Ok(()),
        }
    }

    /// The host of an epoch answers from what it holds, having looked whether the volume is its
    /// own.
    ///
    /// # Errors
    /// The broken rule.
    pub fn answers(&self, epoch: u64) -> Result<(), String> {
        match self.lives.last_key_value() {
            Some((newest, _)) if *newest > epoch => {
                Err(format!("epoch {epoch} answers though epoch {newest} has begun"))
            }
            _ => Ok(()),
        }
    }

    /// After a power cut the local device holds this.
    ///
    /// # Errors
    /// The broken rule.
    pub fn check_local(&self, epoch: u64, cells: Cells) -> Result<(), String> {
        let life = &self.lives[&epoch];
        let since = life.acknowledged.max(life.local);
        let flushed = life.states[since];
        // What a cell holds is what was acknowledged, or what was written to it later.
        for (index, cell) in cells.iter().enumerate() {
            let later = &life.states[since..];
            if !later.iter().any(|state| state[index] == *cell) {
                return Err(format!(
                    "epoch {epoch}: cell {index} holds {cell} after a power cut, {} was acknowledged",
                    flushed[index]
                ));
            }
        }
        Ok(())
    }

    /// A snapshot was made, and is this.
    pub fn kept(&mut self, name: &str, cells: Cells) {
        if self.leaving.get(name).is_none_or(|count| *count == 0) {
            self.pins.insert(name.to_string(), cells);
        }
    }

    /// A snapshot is about to be given up.
    pub fn gives_up(&mut self, name: &str) {
        self.pins.remove(name);
        *self.leaving.entry(name.to_string()).or_default() += 1;
    }

    /// It was, or the attempt has ended.
    pub fn has_given_up(&mut self, name: &str) {
        let count = self.leaving.get_mut(name).expect("an attempt ends after it has begun");
        *count = count.checked_sub(1).expect("an attempt ends once");
    }

    /// The snapshots that there must be.
    pub fn pins(&self) -> Vec<(String, Cells)> {
        self.pins.iter().map(|(name, cells)| (name.clone(), *cells)).collect()
    }
}
