//! One thread that changes a small tree, and the tree after each of its operations.
//!
//! After a crash the tree must be the one after the first *n* operations, and *n* includes all that came
//! before the last sync. Only a file system that keeps the order of everything can pass.

use crate::error::SystemsError;
use crate::power::Power;
use crate::program::failed;
use crate::workload::{Verified, Workload};
use coulter_workload::Random;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

const BLOCK: u64 = 4096;
const DIRECTORIES: u64 = 4;
const NAMES: u64 = 12;
/// Blocks of a write at most: such a write is one step wherever its blocks lie.
const WRITE_BLOCKS_MAX: u64 = 24;
const FILE_BLOCKS_MAX: u64 = 64;
/// One operation in so many is a sync.
const SYNC_SHARE: u64 = 40;

/// What stands behind a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Directory,
    /// The number of the file.
    File(u64),
}

/// A tree: paths, and the files that they lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tree {
    names: BTreeMap<String, Kind>,
    files: BTreeMap<u64, Vec<u8>>,
}

/// One step.
#[derive(Clone, Debug)]
enum Operation {
    Create { path: String, file: u64 },
    Write { path: String, offset: u64, length: u64, byte: u8 },
    Resize { path: String, size: u64 },
    Remove { path: String },
    Rename { from: String, to: String },
    Link { from: String, to: String },
    MakeDirectory { path: String },
    RemoveDirectory { path: String },
}

/// What may be found.
#[derive(Clone, Debug, Default)]
struct Ledger {
    /// As it was synced.
    synced: Tree,
    /// What was asked for since, in order.
    since: Vec<Operation>,
    next_file: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Prefix {
    seed: u64,
    ledger: Ledger,
    seen: Ledger,
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<Ledger>>,
}

impl Prefix {
    /// What `seed` draws.
    pub fn new(seed: u64) -> Prefix {
        Prefix {
            seed,
            ledger: Ledger::default(),
            seen: Ledger::default(),
            stop: Arc::default(),
            worker: None,
        }
    }
}

impl Workload for Prefix {
    fn name(&self) -> &'static str {
        "prefix"
    }

    fn prepare(&mut self, _directory: &Path) -> Result<(), SystemsError> {
        Ok(())
    }

    fn start(&mut self, directory: &Path, power: &Power) -> Result<(), SystemsError> {
        self.stop.store(false, Ordering::Relaxed);
        self.seed += 1;
        let (directory, power) = (directory.to_owned(), power.clone());
        let (random, stop) = (Random::new(self.seed), Arc::clone(&self.stop));
        let ledger = std::mem::take(&mut self.ledger);
        let body = move || work(&directory, &power, random, ledger, &stop);
        self.worker = Some(std::thread::spawn(body));
        Ok(())
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            self.ledger = worker.join().expect("it does not panic");
        }
    }

    fn verify(&mut self, directory: &Path) -> Result<Verified, SystemsError> {
        let found = Tree::read(directory).map_err(failed("read", directory))?;
        let mut tree = self.ledger.synced.clone();
        let mut operations = self.ledger.since.iter();
        while !found.is_like(&tree) {
            let Some(operation) = operations.next() else {
                return Err(SystemsError::violation(self.difference(&found)));
            };
            tree.apply(operation);
        }
        let bytes = tree.files.values().map(|content| content.len() as u64).sum();
        let durable = tree.names.len() as u64;
        self.seen = Ledger { synced: tree, since: Vec::new(), next_file: self.ledger.next_file };
        Ok(Verified { durable, bytes })
    }

    fn settle(&mut self) {
        self.ledger = std::mem::take(&mut self.seen);
    }
}

impl Prefix {
    /// How what was found differs from the state that is most like it.
    fn difference(&self, found: &Tree) -> String {
        let mut tree = self.ledger.synced.clone();
        let mut best = (tree.differences(found), 0);
        for (number, operation) in self.ledger.since.iter().enumerate() {
            tree.apply(operation);
            let differences = tree.differences(found);
            if differences.len() < best.0.len() {
                best = (differences, number + 1);
            }
        }
        let (differences, number) = best;
        let around =
            &self.ledger.since[number.saturating_sub(3)..(number + 3).min(self.ledger.since.len())];
        format!(
            "the tree is that of no point in time; nearest is the one after {number} of {} operations, \
             around {around:?}: {}",
            self.ledger.since.len(),
            differences.join("; ")
        )
    }
}

/// Works until it is told to stop, or nothing works any more.
fn work(
    directory: &Path,
    power: &Power,
    mut random: Random,
    mut ledger: Ledger,
    stop: &AtomicBool,
) -> Ledger {
    let mut now = ledger.synced.clone();
    ledger.since.iter().for_each(|operation| now.apply(operation));
    while !stop.load(Ordering::Relaxed) {
        if random.below(SYNC_SHARE) == 0 {
            let synced = File::open(directory).and_then(|opened| opened.sync_all());
            if synced.and_then(|()| power.check()).is_err() {
                break;
            }
            ledger.synced = now.clone();
            ledger.since.clear();
            continue;
        }
        let Some(operation) = now.choose(&mut random, ledger.next_file) else { continue };
        ledger.next_file += 1;
        ledger.since.push(operation.clone());
        if operation.carry_out(directory).is_err() {
            break;
        }
        now.apply(&operation);
    }
    ledger
}

/// What a write puts at each byte: the same for a byte wherever the write begins.
fn filling(offset: u64, length: u64, byte: u8) -> Vec<u8> {
    (offset..offset + length).map(|at| byte ^ (at / 97) as u8).collect()
}

impl Operation {
    fn carry_out(&self, directory: &Path) -> io::Result<()> {
        let at = |path: &String| directory.join(path);
        let open = |path| OpenOptions::new().write(true).open(at(path));
        match self {
            Operation::Create { path, .. } => File::create_new(at(path)).map(drop),
            Operation::Write { path, offset, length, byte } => {
                open(path)?.write_all_at(&filling(*offset, *length, *byte), *offset)
            }
            Operation::Resize { path, size } => open(path)?.set_len(*size),
            Operation::Remove { path } => fs::remove_file(at(path)),
            Operation::Rename { from, to } => fs::rename(at(from), at(to)),
            Operation::Link { from, to } => fs::hard_link(at(from), at(to)),
            Operation::MakeDirectory { path } => fs::create_dir(at(path)),
            Operation::RemoveDirectory { path } => fs::remove_dir(at(path)),
        }
    }
}

impl Tree {
    /// The tree as it is.
    fn read(directory: &Path) -> io::Result<Tree> {
        let mut tree = Tree::default();
        let mut left = vec![String::new()];
        while let Some(path) = left.pop() {
            for entry in fs::read_dir(directory.join(&path))? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                let name = if path.is_empty() { name } else { format!("{path}/{name}") };
                let status = entry.metadata()?;
                if status.is_dir() {
                    left.push(name.clone());
                    tree.names.insert(name, Kind::Directory);
                } else {
                    tree.files.insert(status.ino(), fs::read(entry.path())?);
                    tree.names.insert(name, Kind::File(status.ino()));
                }
            }
        }
        Ok(tree)
    }

    /// Whether the other one has the same names, contents and links; files may have other numbers.
    fn is_like(&self, other: &Tree) -> bool {
        self.names.len() == other.names.len()
            && self.files.len() == other.files.len()
            && self.differences(other).is_empty()
    }

    /// Names that are not the same in both.
    fn differences(&self, other: &Tree) -> Vec<String> {
        let mut differences = Vec::new();
        let paths = self.names.keys().chain(other.names.keys());
        let paths: std::collections::BTreeSet<&String> = paths.collect();
        for path in paths {
            let (one, two) = (self.seen_at(path), other.seen_at(path));
            if one != two {
                let tell = |seen: Option<Option<(u64, &[u8])>>| match seen {
                    None => "nothing".to_owned(),
                    Some(None) => "a directory".to_owned(),
                    Some(Some((links, content))) => {
                        format!("{} bytes, {links} links", content.len())
                    }
                };
                differences.push(format!("{path}: {} against {}", tell(one), tell(two)));
            }
        }
        differences
    }

    /// A directory, or the number of names and the content of a file.
    #[expect(clippy::option_option, reason = "nothing, a directory, a file")]
    fn seen_at(&self, path: &str) -> Option<Option<(u64, &[u8])>> {
        Some(match self.names.get(path)? {
            Kind::Directory => None,
            Kind::File(file) => {
                let links = self.names.values().filter(|kind| **kind == Kind::File(*file)).count();
                Some((links as u64, &self.files[file]))
            }
        })
    }

    /// An operation that succeeds, if the draw gives one.
    fn choose(&self, random: &mut Random, next_file: u64) -> Option<Operation> {
        let directory = |random: &mut Random| match random.below(DIRECTORIES + 1) {
            0 => String::new(),
            number => format!("d{number}"),
        };
        let draw = |random: &mut Random| {
            let (directory, name) = (directory(random), random.below(NAMES));
            let is_there = directory.is_empty() || self.names.contains_key(&directory);
            let separator = if directory.is_empty() { "" } else { "/" };
            is_there.then(|| format!("{directory}{separator}f{name}"))
        };
        let choice = random.below(20);
        if choice == 18 {
            let path = format!("d{}", 1 + random.below(DIRECTORIES));
            let is_full = self.names.keys().any(|name| name.starts_with(&format!("{path}/")));
            return match self.names.contains_key(&path) {
                false => Some(Operation::MakeDirectory { path }),
                true if is_full => None,
                true => Some(Operation::RemoveDirectory { path }),
            };
        }
        if choice == 19 {
            let [from, to] = [(), ()].map(|()| format!("d{}", 1 + random.below(DIRECTORIES)));
            let fits = self.names.contains_key(&from) && !self.names.contains_key(&to);
            return fits.then_some(Operation::Rename { from, to });
        }
        let path = draw(random)?;
        let Some(Kind::File(file)) = self.names.get(&path) else {
            return Some(Operation::Create { path, file: next_file });
        };
        Some(match choice {
            0..10 => {
                let blocks = 1 + random.below(WRITE_BLOCKS_MAX);
                let offset = random.below(FILE_BLOCKS_MAX - blocks) * BLOCK;
                let length = blocks * BLOCK - random.below(2) * random.below(BLOCK);
                Operation::Write { path, offset, length, byte: random.below(256) as u8 }
            }
            10..12 => {
                let size = self.files[file].len() as u64 + 2 * BLOCK;
                Operation::Resize { path, size: random.below(size) }
            }
            12..14 => Operation::Remove { path },
            14..17 => {
                let to = draw(random)?;
                // Two names of one file are left as they are by a rename.
                if self.names.get(&to) == self.names.get(&path) {
                    return None;
                }
                Operation::Rename { from: path, to }
            }
            _ => {
                let to = draw(random)?;
                if self.names.contains_key(&to) {
                    return None;
                }
                Operation::Link { from: path, to }
            }
        })
    }

    fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::Create { path, file } => {
                self.names.insert(path.clone(), Kind::File(*file));
                self.files.insert(*file, Vec::new());
            }
            Operation::Write { path, offset, length, byte } => {
                let content = self.content(path);
                let end = (offset + length) as usize;
                content.resize(content.len().max(end), 0);
                content[*offset as usize..end].copy_from_slice(&filling(*offset, *length, *byte));
            }
            Operation::Resize { path, size } => self.content(path).resize(*size as usize, 0),
            Operation::Remove { path } => self.take(path),
            Operation::Rename { from, to } => self.rename(from, to),
            Operation::Link { from, to } => {
                let kind = self.names[from].clone();
                self.names.insert(to.clone(), kind);
            }
            Operation::MakeDirectory { path } => {
                self.names.insert(path.clone(), Kind::Directory);
            }
            Operation::RemoveDirectory { path } => self.take(path),
        }
    }

    fn content(&mut self, path: &str) -> &mut Vec<u8> {
        let Some(Kind::File(file)) = self.names.get(path) else { panic!("{path} is a file") };
        self.files.get_mut(file).expect("a file has a content")
    }

    fn take(&mut self, path: &str) {
        if let Some(Kind::File(file)) = self.names.remove(path)
            && !self.names.values().any(|kind| *kind == Kind::File(file))
        {
            self.files.remove(&file);
        }
    }

    /// With all that is below.
    fn rename(&mut self, from: &str, to: &str) {
        self.take(to);
        let below = format!("{from}/");
        let moved: Vec<String> = self
            .names
            .keys()
            .filter(|name| *name == from || name.starts_with(&below))
            .cloned()
            .collect();
        for name in moved {
            let kind = self.names.remove(&name).expect("it was just there");
            self.names.insert(format!("{to}{}", &name[from.len()..]), kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scratch;

    /// A directory in which many operations were done, and what was noted of them.
    fn worked(scratch: &Scratch) -> Prefix {
        let mut prefix = Prefix::new(3);
        let mut random = Random::new(9);
        let mut now = Tree::default();
        while prefix.ledger.since.len() < 400 {
            let number = prefix.ledger.next_file;
            let Some(operation) = now.choose(&mut random, number) else { continue };
            operation.carry_out(scratch.directory()).expect("it succeeds by choice");
            now.apply(&operation);
            prefix.ledger.next_file += 1;
            prefix.ledger.since.push(operation);
        }
        prefix
    }

    #[test]
    fn a_tree_is_found_after_its_operations_and_not_after_others() {
        let scratch = Scratch::new(Path::new("/var/tmp")).expect("there is room");
        // What locks the directory is no part of the tree.
        fs::remove_file(scratch.path("lock")).expect("it is there");
        let mut prefix = worked(&scratch);
        prefix.verify(scratch.directory()).expect("it is the state after all");
        prefix.settle();
        assert!(prefix.ledger.since.is_empty() && prefix.ledger.synced.names.len() > 5);
        // One more file than there can be: a later operation without an earlier one.
        let path = "f99".to_owned();
        prefix.ledger.since.push(Operation::Create { path: path.clone(), file: 9999 });
        let (offset, length, byte) = (0, 5000, 1);
        prefix.ledger.since.push(Operation::Write { path, offset, length, byte });
        fs::write(scratch.path("f99"), filling(0, 4096, 1)).expect("there is room");
        let error = prefix.verify(scratch.directory()).expect_err("half a write is no state");
        assert!(error.is_violation() && error.to_string().contains("f99"), "{error}");
    }
}
