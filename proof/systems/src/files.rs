//! Files that are made, replaced, changed, appended to and removed, each with the call after which
//! POSIX file systems say that it is durable.
//!
//! | thing | operation | durable after |
//! |---|---|---|
//! | slot | make a file | `fsync` of the file and of its directory |
//! | slot | write another file, `fsync` it, rename it over the slot | `fsync` of the directory |
//! | slot | remove the file | `fsync` of the directory |
//! | page | overwrite pages of a file in place | `fdatasync` |
//! | journal | append pages to a file | `fdatasync` |
//!
//! Each writer has a directory of its own. One more thread writes and punches holes past the page
//! cache and never syncs, so that there is always something to lose.

use crate::error::SystemsError;
use crate::ledger::Possible;
use crate::power::Power;
use crate::workload::{Verified, Workload};
use coulter_workload::{BLOCK_SIZE, Content, Origin, Random};
use rustix::fs::{FallocateFlags, OFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

const WRITER_COUNT: u64 = 4;
const SLOT_COUNT: u64 = 24;
/// Pages of a slot's file at most; the last may be cut short.
const SLOT_PAGE_COUNT_MAX: u64 = 40;
const PAGE_COUNT: u64 = 256;
/// Pages after which a journal is begun anew.
const JOURNAL_PAGE_COUNT_MAX: u64 = 512;
/// Pages that one operation writes at most.
const RUN_COUNT_MAX: u64 = 8;
const CHURN_SIZE: u64 = 64 << 20;
/// Pages that it writes at once at most: 1 MiB.
const CHURN_RUN_MAX: u64 = 256;

/// The file numbers of what is not a slot.
const PAGES: u64 = 1 << 20;
const JOURNAL: u64 = 2 << 20;

/// What a slot may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Absent,
    Whole {
        version: u64,
    },
    /// A file that was being made when the power went, and is anything at all.
    Unfinished,
}

/// What one writer knows.
#[derive(Clone, Debug)]
struct Ledger {
    slots: Vec<Possible<Slot>>,
    pages: Vec<Possible<u64>>,
    /// The journal's generation, and its durable pages.
    journal: Possible<(u64, u64)>,
    /// The next version; never used twice.
    version: u64,
}

/// Files.
#[derive(Debug)]
pub struct Files {
    seed: u64,
    ledgers: Vec<Ledger>,
    /// What `verify` saw.
    seen: Vec<Ledger>,
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<Ledger>>,
    churner: Option<JoinHandle<()>>,
}

impl Files {
    /// What `seed` draws, in the order in which threads come to it.
    pub fn new(seed: u64) -> Files {
        Files {
            seed,
            ledgers: Vec::new(),
            seen: Vec::new(),
            stop: Arc::default(),
            writers: Vec::new(),
            churner: None,
        }
    }
}

impl Workload for Files {
    fn name(&self) -> &'static str {
        "files"
    }

    fn prepare(&mut self, directory: &Path) -> Result<(), SystemsError> {
        let failed = |source| SystemsError::io("prepare", directory, source);
        for number in 0..WRITER_COUNT {
            let place = Place::new(directory, number);
            fs::create_dir(&place.directory).map_err(failed)?;
            self.ledgers.push(place.prepare().map_err(failed)?);
        }
        let churn = File::create(directory.join("churn")).map_err(failed)?;
        churn.set_len(CHURN_SIZE).and_then(|()| churn.sync_all()).map_err(failed)?;
        sync_directory(directory).map_err(failed)
    }

    fn start(&mut self, directory: &Path, power: &Power) -> Result<(), SystemsError> {
        self.stop.store(false, Ordering::Relaxed);
        for (number, ledger) in (0..).zip(std::mem::take(&mut self.ledgers)) {
            self.seed += 1;
            let place = Place::new(directory, number);
            let (random, stop) = (Random::new(self.seed), Arc::clone(&self.stop));
            let power = power.clone();
            let body = move || Writer { place, random, power, ledger }.run(&stop);
            self.writers.push(std::thread::spawn(body));
        }
        let (path, stop) = (directory.join("churn"), Arc::clone(&self.stop));
        let random = Random::new(self.seed ^ 1 << 40);
        self.churner = Some(std::thread::spawn(move || {
            // It ends with the power, which is no news.
            let _ = churn(&path, random, &stop);
        }));
        Ok(())
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for writer in self.writers.drain(..) {
            self.ledgers.push(writer.join().expect("a writer does not panic"));
        }
        if let Some(churner) = self.churner.take() {
            churner.join().expect("it does not panic");
        }
    }

    fn verify(&mut self, directory: &Path) -> Result<Verified, SystemsError> {
        let (mut verified, mut wrong) = (Verified::default(), Vec::new());
        self.seen.clear();
        for (number, ledger) in (0..).zip(&self.ledgers) {
            let place = Place::new(directory, number);
            let mut audit = Audit { place: &place, verified: &mut verified, wrong: &mut wrong };
            self.seen.push(audit.run(ledger));
        }
        match wrong.is_empty() {
            true => Ok(verified),
            false => Err(SystemsError::violation(wrong.join("; "))),
        }
    }

    fn settle(&mut self) {
        self.ledgers = std::mem::take(&mut self.seen);
    }
}

/// One writer's directory.
#[derive(Debug)]
struct Place {
    directory: PathBuf,
    content: Content,
}

impl Place {
    fn new(directory: &Path, number: u64) -> Place {
        Place { directory: directory.join(format!("{number}")), content: Content::new(number) }
    }

    fn slot(&self, slot: u64) -> PathBuf {
        self.directory.join(format!("slot-{slot:02}"))
    }

    fn temporary(&self) -> PathBuf {
        self.directory.join("temporary")
    }

    fn pages(&self) -> PathBuf {
        self.directory.join("pages")
    }

    fn journal(&self, generation: u64) -> PathBuf {
        self.directory.join(format!("journal-{generation}"))
    }

    /// Pages `first..first + count` of file `file` as of `version`.
    fn content_of(&self, file: u64, first: u64, count: u64, version: u64) -> Vec<u8> {
        let mut bytes = vec![0; count as usize * BLOCK_SIZE];
        for (page, bytes) in (first..).zip(bytes.chunks_exact_mut(BLOCK_SIZE)) {
            self.content.fill(bytes, Origin { block: file << 32 | page, version });
        }
        bytes
    }

    /// All of a slot's file. Its length follows from the version.
    fn slot_content(&self, slot: u64, version: u64) -> Vec<u8> {
        let mut random = Random::new(version);
        let count = 1 + random.below(SLOT_PAGE_COUNT_MAX);
        let mut bytes = self.content_of(slot, 0, count, version);
        // The first bytes say the version.
        bytes.truncate(bytes.len() - random.below(BLOCK_SIZE as u64 - 16) as usize);
        bytes
    }

    fn prepare(&self) -> io::Result<Ledger> {
        let bytes = self.content_of(PAGES, 0, PAGE_COUNT, 0);
        write_new(&self.pages(), &bytes)?;
        File::create(self.journal(0))?.sync_all()?;
        sync_directory(&self.directory)?;
        Ok(Ledger {
            slots: vec![Possible::new(Slot::Absent); SLOT_COUNT as usize],
            pages: vec![Possible::new(0); PAGE_COUNT as usize],
            journal: Possible::new((0, 0)),
            version: 1,
        })
    }
}

/// A thread's work.
struct Writer {
    place: Place,
    random: Random,
    power: Power,
    ledger: Ledger,
}

impl Writer {
    fn run(mut self, stop: &AtomicBool) -> Ledger {
        while !stop.load(Ordering::Relaxed) {
            let version = self.ledger.version;
            self.ledger.version += 1;
            let outcome = match self.random.below(8) {
                0..4 => self.work_on_slot(version),
                4..6 => self.overwrite(version),
                _ => self.append(),
            };
            // The power is gone.
            if outcome.is_err() {
                break;
            }
        }
        self.ledger
    }

    fn work_on_slot(&mut self, version: u64) -> io::Result<()> {
        let slot = self.random.below(SLOT_COUNT);
        let path = self.place.slot(slot);
        let possible = &mut self.ledger.slots[slot as usize];
        match (*possible.durable(), self.random.below(4)) {
            (Slot::Whole { .. }, 0) => {
                possible.ask(Slot::Absent);
                fs::remove_file(&path)?;
            }
            (before @ (Slot::Absent | Slot::Unfinished), 0..2) => {
                if before == Slot::Unfinished {
                    possible.ask(Slot::Absent);
                    fs::remove_file(&path)?;
                }
                // Half a file may be left if the power goes before its `fsync`.
                possible.ask(Slot::Unfinished);
                possible.ask(Slot::Whole { version });
                write_new(&path, &self.place.slot_content(slot, version))?;
            }
            _ => {
                let _ = fs::remove_file(self.place.temporary());
                write_new(&self.place.temporary(), &self.place.slot_content(slot, version))?;
                possible.ask(Slot::Whole { version });
                fs::rename(self.place.temporary(), &path)?;
            }
        }
        sync_directory(&self.place.directory)?;
        self.power.check()?;
        self.ledger.slots[slot as usize].acknowledge();
        Ok(())
    }

    fn overwrite(&mut self, version: u64) -> io::Result<()> {
        let count = 1 + self.random.below(RUN_COUNT_MAX);
        let first = self.random.below(PAGE_COUNT - count + 1);
        let pages = first as usize..(first + count) as usize;
        let bytes = self.place.content_of(PAGES, first, count, version);
        let file = OpenOptions::new().write(true).open(self.place.pages())?;
        self.ledger.pages[pages.clone()].iter_mut().for_each(|page| page.ask(version));
        file.write_all_at(&bytes, first * BLOCK_SIZE as u64)?;
        file.sync_data()?;
        self.power.check()?;
        self.ledger.pages[pages].iter_mut().for_each(Possible::acknowledge);
        Ok(())
    }

    fn append(&mut self) -> io::Result<()> {
        let (generation, length) = *self.ledger.journal.durable();
        if length >= JOURNAL_PAGE_COUNT_MAX {
            return self.begin_journal(generation);
        }
        let count = 1 + self.random.below(RUN_COUNT_MAX);
        let bytes = self.place.content_of(JOURNAL + generation, length, count, 0);
        let file = OpenOptions::new().write(true).open(self.place.journal(generation))?;
        file.write_all_at(&bytes, length * BLOCK_SIZE as u64)?;
        file.sync_data()?;
        self.power.check()?;
        self.ledger.journal.settle((generation, length + count));
        Ok(())
    }

    /// The new one is durable before the old one goes.
    fn begin_journal(&mut self, old: u64) -> io::Result<()> {
        let new = old + 1;
        let _ = fs::remove_file(self.place.journal(new));
        write_new(&self.place.journal(new), &[])?;
        sync_directory(&self.place.directory)?;
        self.power.check()?;
        self.ledger.journal.settle((new, 0));
        fs::remove_file(self.place.journal(old))
    }
}

/// Compares one writer's directory with its ledger.
struct Audit<'a> {
    place: &'a Place,
    verified: &'a mut Verified,
    wrong: &'a mut Vec<String>,
}

impl Audit<'_> {
    /// The ledger as it is if what was found is durable.
    fn run(&mut self, ledger: &Ledger) -> Ledger {
        let mut seen = ledger.clone();
        for (number, slot) in (0..).zip(&mut seen.slots) {
            let found = self.slot(number, slot);
            slot.settle(found);
        }
        self.pages(&mut seen.pages);
        self.journal(*ledger.journal.durable());
        seen
    }

    fn blame(&mut self, path: &Path, what: impl std::fmt::Display) {
        self.wrong.push(format!("{}: {what}", path.display()));
    }

    fn slot(&mut self, number: u64, possible: &Possible<Slot>) -> Slot {
        let path = self.place.slot(number);
        let bytes = match fs::read(&path) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.blame(&path, error);
                return *possible.durable();
            }
        };
        let version = bytes.as_deref().and_then(version_of);
        let found = match (&bytes, version) {
            (None, _) => Slot::Absent,
            (Some(bytes), Some(version)) if *bytes == self.place.slot_content(number, version) => {
                Slot::Whole { version }
            }
            (Some(_), _) => Slot::Unfinished,
        };
        if !possible.allows(&found) {
            let length = bytes.as_ref().map_or(0, Vec::len);
            self.blame(&path, format!("found {found:?} of {length} bytes, not {possible:?}"));
            return *possible.durable();
        }
        self.verified.durable += u64::from(found == *possible.durable());
        self.verified.bytes += bytes.map_or(0, |bytes| bytes.len() as u64);
        found
    }

    fn pages(&mut self, pages: &mut [Possible<u64>]) {
        let path = self.place.pages();
        let bytes = match fs::read(&path) {
            Ok(bytes) if bytes.len() as u64 == PAGE_COUNT * BLOCK_SIZE as u64 => bytes,
            Ok(bytes) => return self.blame(&path, format!("{} bytes long", bytes.len())),
            Err(error) => return self.blame(&path, error),
        };
        for (number, (page, bytes)) in (0u64..).zip(pages.iter_mut().zip(bytes.chunks(BLOCK_SIZE)))
        {
            let origin = self.place.content.origin(bytes);
            let expected = PAGES << 32 | number;
            match origin {
                Some(origin) if origin.block == expected && page.allows(&origin.version) => {
                    self.verified.durable += u64::from(page.is_certain());
                    self.verified.bytes += BLOCK_SIZE as u64;
                    page.settle(origin.version);
                }
                other => self.blame(&path, format!("page {number}: {other:?}, not {page:?}")),
            }
        }
    }

    fn journal(&mut self, (generation, length): (u64, u64)) {
        let path = self.place.journal(generation);
        let expected = self.place.content_of(JOURNAL + generation, 0, length, 0);
        match fs::read(&path) {
            // What was being appended may be there, in part or not at all.
            Ok(bytes) if bytes.starts_with(&expected) => {
                self.verified.durable += length;
                self.verified.bytes += expected.len() as u64;
            }
            Ok(bytes) => {
                let same = bytes.iter().zip(&expected).take_while(|(a, b)| a == b).count();
                let lengths = format!("{} of {} bytes", bytes.len(), expected.len());
                self.blame(&path, format!("{lengths}, the first {same} of them right"));
            }
            Err(error) => self.blame(&path, error),
        }
    }
}

/// The version that a slot's file says it has.
fn version_of(bytes: &[u8]) -> Option<u64> {
    let (_, rest) = bytes.split_first_chunk::<8>()?;
    Some(u64::from_le_bytes(*rest.first_chunk()?))
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Writes and discards past the page cache, and never syncs.
fn churn(path: &Path, mut random: Random, stop: &AtomicBool) -> io::Result<()> {
    let flags = OFlags::DIRECT.bits() as i32;
    let file = OpenOptions::new().write(true).custom_flags(flags).open(path)?;
    let mut memory = coulter_device::AlignedMemory::zeroed(CHURN_RUN_MAX as usize * BLOCK_SIZE);
    memory.chunks_mut(8).for_each(|bytes| bytes.copy_from_slice(&random.bits().to_le_bytes()));
    while !stop.load(Ordering::Relaxed) {
        let magnitude = random.below(9);
        let pages = 1 + random.below(1 << magnitude);
        let length = pages * BLOCK_SIZE as u64;
        let offset = random.below(CHURN_SIZE / BLOCK_SIZE as u64 - pages + 1) * BLOCK_SIZE as u64;
        if random.below(16) == 0 {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, punch, offset, length)?;
        } else {
            file.write_all_at(&memory[..length as usize], offset)?;
        }
        // It shall not crowd out the writers, who wait for flushes.
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    Ok(())
}
