//! A lower directory in memory, with one level of names, that says what a power cut would leave.
//!
//! Changes that were not synced are lost apart from each other: the attributes of each file, each
//! block of it, each name. A rename is whole or not there. Syncs go on until they are told to end,
//! in any order, and cover what was there when they began. A sync that fails takes what it was to
//! write: a later one does not bring it back.

use super::bytes::Bytes;
use super::chance::Chance;
use super::trace;
use crate::lower::{Handle, Outcome};
use coulter_files::Time;
use coulter_format::Block;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

pub(super) const ROOT: u64 = 2;
/// The number of the first inode.
pub(super) const FIRST: u64 = 10;
pub(super) const BLOCK: u64 = coulter_format::BLOCK_SIZE as u64;
/// Versions of a file that are kept, that of the last sync first.
const VERSIONS_MAX: usize = 12;

/// What a power cut takes of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    Nothing,
    Everything,
    /// Names, sizes, times and attributes stay, data goes.
    Data,
}

/// An inode: its number and its generation.
pub(super) type Key = (u64, u64);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct File {
    pub(super) data: Bytes,
    /// Blocks that have space.
    pub(super) allocated: BTreeSet<u64>,
    pub(super) links: u32,
    pub(super) mode: u32,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) modified: i64,
    pub(super) changed: i64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Begun {
    Sync(Key),
    SyncAll,
    /// Nothing that a power cut would respect.
    WriteOut,
}

#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) files: BTreeMap<Key, Rc<File>>,
    pub(super) names: BTreeMap<Vec<u8>, Key>,
}

/// A change of names that a power cut keeps or takes as a whole: each name, and what it stands for
/// afterwards.
#[derive(Clone, Debug)]
pub(super) struct Renaming {
    serial: u64,
    names: Vec<(Vec<u8>, Option<Key>)>,
    /// Inodes that come, go or move.
    keys: Vec<Key>,
}

/// Versions of a file since the last sync that covered it, each with when it came.
pub(super) type Versions = Vec<(u64, Rc<File>)>;

/// How calls fail.
#[derive(Clone, Debug)]
pub(super) struct Faults {
    chance: Chance,
    when: When,
    count: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    /// By chance, one of this number.
    OneOf(u64),
    /// One, after this number of others.
    After(u64),
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelLower {
    pub(super) now: State,
    pub(super) versions: BTreeMap<Key, Versions>,
    /// Names that a power cut leaves, and changes since.
    pub(super) durable_names: BTreeMap<Vec<u8>, Key>,
    pub(super) renamings: Vec<Renaming>,
    /// Blocks that a failed sync took, and what is on the disk instead.
    pub(super) lost: BTreeMap<Key, BTreeMap<u64, Rc<Block>>>,
    pub(super) held: BTreeSet<Key>,
    pub(super) clock: i64,
    /// Counts changes.
    pub(super) serial: u64,
    pub(super) generation: u64,
    /// Syncs that go on: tag, serial at the beginning, and kind.
    pub(super) begun: VecDeque<(u64, u64, Begun)>,
    pub(super) ended: VecDeque<(u64, Outcome<()>)>,
    pub(super) faults: Option<Faults>,
    /// What there was before each change, if somebody wants to know.
    pub(super) history: Option<Vec<State>>,
}

pub(super) fn handle((number, generation): Key) -> Handle {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..].copy_from_slice(&generation.to_le_bytes());
    Handle::new(1, &bytes).expect("it is short")
}

pub(super) fn key(handle: &Handle) -> Key {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("it was made here"));
    (word(&handle.bytes()[..8]), word(&handle.bytes()[8..]))
}

/// The blocks of a range of bytes.
pub(super) fn blocks(offset: u64, length: u64) -> Range<u64> {
    offset / BLOCK..(offset + length).div_ceil(BLOCK)
}

pub(super) fn time(seconds: i64) -> Time {
    Time { seconds, nanoseconds: 0 }
}

impl ModelLower {
    /// One file of this content, durable.
    pub(crate) fn with_file(name: &[u8], content: &[u8]) -> ModelLower {
        let mut lower = ModelLower { clock: 1, ..ModelLower::default() };
        lower.add_file(name, content);
        lower
    }

    /// One more.
    pub(crate) fn add_file(&mut self, name: &[u8], content: &[u8]) {
        let key = (FIRST + self.now.files.len() as u64, 0);
        let allocated = blocks(0, content.len() as u64).collect();
        let (data, mode) = (Bytes::new(content), 0o644);
        let file = Rc::new(File { data, mode, links: 1, allocated, ..File::default() });
        self.now.files.insert(key, file);
        self.now.names.insert(name.to_vec(), key);
        *self = ModelLower { faults: self.faults.take(), ..self.restarted(self.now.clone()) };
    }

    /// All of it is durable, and nothing is under way.
    pub(super) fn restarted(&self, now: State) -> ModelLower {
        let versions = now.files.iter().map(|(key, file)| (*key, vec![(0, file.clone())]));
        ModelLower {
            versions: versions.collect(),
            durable_names: now.names.clone(),
            now,
            clock: self.clock,
            generation: self.generation,
            ..ModelLower::default()
        }
    }

    /// From now on one call of `one_of` fails; with 0 none does.
    pub(crate) fn fail_one_of(&mut self, one_of: u64, chance: Chance) {
        self.faults =
            (one_of > 0).then_some(Faults { chance, when: When::OneOf(one_of), count: 0 });
    }

    /// One call fails, after this number of others.
    pub(crate) fn fail_after(&mut self, calls: u64) {
        let (chance, when) = (Chance(calls), When::After(calls));
        self.faults = Some(Faults { chance, when, count: 0 });
    }

    /// Calls that have failed.
    pub(crate) fn fault_count(&self) -> u64 {
        self.faults.as_ref().map_or(0, |faults| faults.count)
    }

    /// Syncs that go on.
    pub(crate) fn begun_count(&self) -> usize {
        self.begun.len()
    }

    /// Ends what was begun first; false if there is none.
    pub(crate) fn end_sync(&mut self) -> bool {
        self.end_sync_at(0)
    }

    /// Ends what was begun at this place; false if nothing was.
    pub(crate) fn end_sync_at(&mut self, at: usize) -> bool {
        let Some((tag, serial, begun)) = self.begun.remove(at) else { return false };
        let result = match begun {
            Begun::WriteOut => Ok(()),
            Begun::Sync(key) => self.fail().inspect_err(|_| self.lose(key, serial)),
            Begun::SyncAll => self.fail(),
        };
        match begun {
            Begun::Sync(key) if result.is_ok() => self.make_durable(key, serial),
            Begun::SyncAll if result.is_ok() => self.make_all_durable(serial),
            _ => {}
        }
        trace(|| format!("  below {begun:?} of {serial} ends: {result:?}"));
        self.ended.push_back((tag, result));
        true
    }

    /// From now on what there was before each change is kept.
    pub(crate) fn keep_history(&mut self) {
        self.history = Some(Vec::new());
    }

    /// What a kill would have left before each change since this was asked for last.
    pub(crate) fn take_history(&mut self) -> Vec<ModelLower> {
        let history = self.history.as_mut().map(std::mem::take).unwrap_or_default();
        // A power cut at that time leaves no more than one that comes now.
        let quiet = (VecDeque::new(), None);
        let moment = |now| {
            let (begun, history) = quiet.clone();
            ModelLower { now, begun, history, faults: None, ..self.clone() }
        };
        history.into_iter().map(moment).collect()
    }

    /// What is there after a power cut.
    pub(crate) fn cut(&self, loss: Loss) -> ModelLower {
        let durable = |key: &Key| self.versions.get(key).map(|versions| versions[0].1.clone());
        let names = if loss == Loss::Everything { &self.durable_names } else { &self.now.names };
        let mut files = BTreeMap::new();
        for key in names.values() {
            let now = self.now.files.get(key).cloned();
            let file = match loss {
                Loss::Nothing => now,
                Loss::Everything => durable(key),
                Loss::Data => now.map(|now| {
                    let mut data = durable(key).map(|old| old.data.clone()).unwrap_or_default();
                    data.resize(now.data.size());
                    Rc::new(File { data, ..(*now).clone() })
                }),
            };
            files.insert(*key, file.expect("a file with a name is there"));
        }
        self.left(files, names.clone())
    }

    /// The directory after a power cut that takes by chance all that it may take.
    pub(crate) fn cut_by_chance(&self, chance: &mut Chance) -> ModelLower {
        let mut names = self.durable_names.clone();
        let mut missing: Vec<&Renaming> = Vec::new();
        // None is lost at all by every other one, so that a long way is seen whole, too.
        let odds = chance.below(3);
        for renaming in &self.renamings {
            let depends = missing.iter().any(|other| renaming.depends_on(other));
            if depends || chance.below(2) < odds {
                missing.push(renaming);
            } else {
                renaming.apply(&mut names);
            }
        }
        let mut files = BTreeMap::new();
        for key in names.values() {
            files.insert(*key, Rc::new(self.file_by_chance(*key, chance)));
        }
        self.left(files, names)
    }

    /// A file after a power cut: attributes of one of its versions, each block of one.
    pub(super) fn file_by_chance(&self, key: Key, chance: &mut Chance) -> File {
        let versions = &self.versions[&key];
        let count = versions.len() as u64;
        let which = chance.below(3);
        let pick = |chance: &mut Chance| match which {
            0 => 0,
            1 => count - 1,
            _ => chance.below(count),
        } as usize;
        let mut file = (*versions[pick(chance)].1).clone();
        trace(|| {
            let told = versions.iter().map(|(came, file)| (*came, file.data.size()));
            let lost = self.lost.get(&key).map(|blocks| blocks.keys().collect::<Vec<_>>());
            format!("  of {key:?} {:?}, lost {lost:?}", told.collect::<Vec<_>>())
        });
        for block in blocks(0, file.data.size() as u64) {
            let lost = self.lost.get(&key).and_then(|blocks| blocks.get(&block));
            let bytes = match lost {
                Some(bytes) => bytes.clone(),
                None => versions[pick(chance)].1.data.block(block),
            };
            file.data.set_block(block, &bytes);
        }
        file
    }

    pub(super) fn left(
        &self,
        mut files: BTreeMap<Key, Rc<File>>,
        names: BTreeMap<Vec<u8>, Key>,
    ) -> ModelLower {
        for (key, file) in &mut files {
            let links = names.values().filter(|other| *other == key).count() as u32;
            if file.links != links {
                Rc::make_mut(file).links = links;
            }
        }
        self.restarted(State { files, names })
    }

    /// Names, sizes and times in a line.
    pub(super) fn told(&self) -> String {
        let told = |(name, key): (&Vec<u8>, &Key)| {
            let size = self.now.files.get(key).map(|file| file.data.size());
            format!("{} {key:?} {size:?}", name.escape_ascii())
        };
        self.now.names.iter().map(told).collect::<Vec<_>>().join(", ")
    }

    /// Somebody else writes to the file.
    pub(crate) fn meddle(&mut self) {
        let file = self.touched((FIRST, 0)).expect("it is there");
        let mut first = [0];
        file.data.read(0, &mut first);
        file.data.write(0, &[first[0] ^ 1]);
        file.modified = file.changed;
        self.note_version((FIRST, 0));
    }

    /// By chance the call fails.
    pub(super) fn fail(&mut self) -> Outcome<()> {
        let Some(faults) = &mut self.faults else { return Ok(()) };
        let fails = match &mut faults.when {
            When::OneOf(count) => faults.chance.one_of(*count),
            When::After(calls) => {
                let is_it = *calls == 0;
                *calls = calls.wrapping_sub(1);
                is_it
            }
        };
        if !fails {
            return Ok(());
        }
        faults.count += 1;
        trace(|| "  below a call fails".to_owned());
        let errors = [libc::EIO, libc::ENOSPC, libc::EINTR, libc::EDQUOT];
        Err(errors[faults.chance.below(errors.len() as u64) as usize])
    }

    /// By chance a call that fails does part of its work.
    pub(super) fn half(&mut self) -> bool {
        self.faults.as_mut().is_some_and(|faults| faults.chance.below(2) == 0)
    }

    pub(super) fn file(&self, node: &Handle) -> Outcome<&Rc<File>> {
        self.now.files.get(&key(node)).ok_or(libc::ESTALE)
    }

    pub(super) fn note_history(&mut self) {
        if let Some(history) = &mut self.history {
            history.push(self.now.clone());
        }
    }

    /// The file, which is changed: [`ModelLower::note_version`] comes after that.
    pub(super) fn touched(&mut self, key: Key) -> Outcome<&mut File> {
        self.clock += 1;
        self.note_history();
        let file = self.now.files.get_mut(&key).ok_or(libc::ESTALE)?;
        let file = Rc::make_mut(file);
        file.changed = self.clock;
        Ok(file)
    }

    pub(super) fn note_version(&mut self, key: Key) {
        self.serial += 1;
        let Some(file) = self.now.files.get(&key) else { return };
        let versions = self.versions.entry(key).or_default();
        versions.push((self.serial, file.clone()));
        if versions.len() > VERSIONS_MAX && self.begun.is_empty() {
            // The first and the last of them are needed, and what a sync that goes on covers.
            versions.remove(1 + self.serial as usize % (VERSIONS_MAX - 1));
        }
    }

    pub(super) fn change(&mut self, node: &Handle, change: impl FnOnce(&mut File)) -> Outcome<()> {
        change(self.touched(key(node))?);
        self.note_version(key(node));
        Ok(())
    }

    /// Bytes are written: what a failed sync took is there again.
    pub(super) fn put(&mut self, node: &Handle, offset: u64, bytes: &[u8]) -> Outcome<()> {
        self.change(node, |file| {
            file.allocated.extend(blocks(offset, bytes.len() as u64));
            file.data.write(offset as usize, bytes);
            file.modified = file.changed;
        })?;
        trace(|| format!("  below {:?} written: {offset}, {}", key(node), bytes.len()));
        if let Some(lost) = self.lost.get_mut(&key(node)) {
            lost.retain(|block, _| !blocks(offset, bytes.len() as u64).contains(block));
        }
        Ok(())
    }

    pub(super) fn rename_now(&mut self, names: Vec<(Vec<u8>, Option<Key>)>) {
        self.serial += 1;
        let before = names.iter().filter_map(|(name, _)| self.now.names.get(name));
        let keys = before.copied().chain(names.iter().filter_map(|(_, key)| *key)).collect();
        let renaming = Renaming { serial: self.serial, names, keys };
        renaming.apply(&mut self.now.names);
        self.renamings.push(renaming);
    }

    /// An inode without names goes when it is not held.
    pub(super) fn reap(&mut self, key: Key) {
        let is_gone = self.now.files.get(&key).is_some_and(|file| file.links == 0);
        if is_gone && !self.held.contains(&key) {
            self.now.files.remove(&key);
        }
    }

    pub(super) fn drop_link(&mut self, key: Key) -> Outcome<()> {
        self.touched(key)?.links -= 1;
        self.note_version(key);
        self.reap(key);
        Ok(())
    }

    /// Makes a file as of `serial` durable, with the name that it was made with.
    pub(super) fn make_durable(&mut self, key: Key, serial: u64) {
        if let Some(versions) = self.versions.get_mut(&key) {
            let first = versions.iter().rposition(|(came, _)| *came <= serial).unwrap_or(0);
            versions.drain(..first);
        }
        if key.0 == ROOT {
            return self.make_names_durable(serial);
        }
        let is_made = |renaming: &Renaming| {
            renaming.keys == [key] && renaming.names.iter().all(|(_, after)| after.is_some())
        };
        if let Some(at) = self.renamings.iter().position(is_made) {
            let made = self.renamings[at].serial;
            self.make_names_durable(made.min(serial));
        }
    }

    pub(super) fn make_names_durable(&mut self, serial: u64) {
        let count = self.renamings.iter().take_while(|other| other.serial <= serial).count();
        for renaming in self.renamings.drain(..count) {
            renaming.apply(&mut self.durable_names);
        }
        let (now, names, log) = (&self.now.files, &self.durable_names, &self.renamings);
        self.versions.retain(|key, _| {
            let is_named = names.values().any(|other| other == key);
            now.contains_key(key) || is_named || log.iter().any(|other| other.keys.contains(key))
        });
        let versions = &self.versions;
        self.lost.retain(|key, _| versions.contains_key(key));
    }

    pub(super) fn make_all_durable(&mut self, serial: u64) {
        let keys: Vec<Key> = self.versions.keys().copied().collect();
        keys.into_iter().for_each(|key| self.make_durable(key, serial));
        self.make_names_durable(serial);
    }

    /// A sync of a file failed: what it was to write stays as it is on the disk.
    pub(super) fn lose(&mut self, key: Key, serial: u64) {
        trace(|| format!("  below {key:?} loses what it was to write"));
        let Some(versions) = self.versions.get(&key) else { return };
        let old = &versions[0].1.data;
        let then = versions.iter().rfind(|(came, _)| *came <= serial).unwrap_or(&versions[0]);
        let now = self.now.files.get(&key).unwrap_or(&then.1);
        let lost = self.lost.entry(key).or_default();
        for block in blocks(0, then.1.data.size() as u64) {
            let (before, wanted) = (old.block(block), then.1.data.block(block));
            // A block that was written again meanwhile is written by the next sync.
            // And the end of a block that is cut off is made zeros again when the file grows.
            let kept = wanted.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            let is_cut = before[..kept] == wanted[..kept];
            if !is_cut && wanted == now.data.block(block) {
                lost.entry(block).or_insert(before);
            }
        }
    }
}

impl Renaming {
    pub(super) fn apply(&self, names: &mut BTreeMap<Vec<u8>, Key>) {
        for (name, key) in &self.names {
            match key {
                Some(key) => names.insert(name.clone(), *key),
                None => names.remove(name),
            };
        }
    }

    /// True if it cannot be there without an earlier one.
    pub(super) fn depends_on(&self, earlier: &Renaming) -> bool {
        let has_name = |name: &Vec<u8>| earlier.names.iter().any(|(other, _)| other == name);
        let has_number = |key: &Key| earlier.keys.iter().any(|other| other.0 == key.0);
        self.names.iter().any(|(name, _)| has_name(name)) || self.keys.iter().any(has_number)
    }
}
