//! The emulator's generated loads ([`FileLoad`]) on real files: FFSB, Tiobench, Filebench's varmail and
//! TPC-C-like transactions where the programs themselves are not to be had, with the parameters of the
//! papers that measured with them.
//!
//! What is generated is the same as for the emulator's models of file systems. Here the kernel's page
//! cache and a real file system are between the load and the drive.

use crate::error::SystemsError;
use crate::small_cache::{settle, with_a_small_cache};
use coulter_flash::{FileLoad, FileOperation, Workload};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BLOCK_SIZE: u64 = 4096;
/// Files of one directory.
const FILES_MAX: u32 = 256;
/// Blocks that one call of the system writes or reads at most.
const PIECE_BLOCKS: u32 = 256;

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Operations of the load.
    pub operations: u64,
    /// Bytes written to files.
    pub bytes_written: u64,
}

/// What was done, and what somebody counted before it and after it.
#[derive(Clone, Copy, Debug)]
pub struct Measured<T> {
    /// When the files were made and overwritten.
    pub before: T,
    /// When the time was over.
    pub after: T,
    /// In between.
    pub done: Replayed,
}

/// A load in a directory.
#[derive(Debug)]
pub struct Replay {
    directory: PathBuf,
    load: Mutex<FileLoad>,
    threads: usize,
}

impl Replay {
    /// A load on files that fill `bytes` bytes of `directory` together.
    ///
    /// # Panics
    /// When the workload is not one of files.
    pub fn new(directory: &Path, workload: Workload, bytes: u64, seed: u64) -> Replay {
        assert!(workload.is_of_files(), "a load on files");
        let load = FileLoad::new(workload, bytes / BLOCK_SIZE, seed);
        let threads = load.thread_count();
        Replay { directory: directory.to_owned(), load: Mutex::new(load), threads }
    }

    /// Makes the files, and overwrites as many blocks as they have, anywhere.
    ///
    /// # Errors
    /// What the file system says.
    pub fn prepare(&self) -> Result<Replayed, SystemsError> {
        let mut done = Replayed::default();
        let creation = self.next(|load| load.creation());
        let blocks: u64 = creation.iter().map(blocks_written).sum();
        let mut buffer = filling();
        for operation in &creation {
            self.carry_out(operation, &mut buffer, &mut done)?;
        }
        for _ in 0..blocks {
            let operation = self.next(FileLoad::ageing);
            self.carry_out(&operation, &mut buffer, &mut done)?;
        }
        Ok(done)
    }

    /// All threads work for so long. Operations that are under way at the end are finished.
    ///
    /// # Errors
    /// What the file system says.
    pub fn run(&self, time: Duration) -> Result<Replayed, SystemsError> {
        let deadline = Instant::now() + time;
        let (operations, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let work = |thread| -> Result<(), SystemsError> {
            let (mut done, mut buffer) = (Replayed::default(), filling());
            while Instant::now() < deadline {
                let operation = self.next(|load| load.next(thread));
                self.carry_out(&operation, &mut buffer, &mut done)?;
            }
            operations.fetch_add(done.operations, Ordering::Relaxed);
            bytes.fetch_add(done.bytes_written, Ordering::Relaxed);
            Ok(())
        };
        let results: Vec<Result<(), SystemsError>> = std::thread::scope(|scope| {
            let started: Vec<_> =
                (0..self.threads).map(|thread| scope.spawn(move || work(thread))).collect();
            let ended = started.into_iter().map(|thread| thread.join());
            ended.map(|result| result.expect("a thread of the load does not panic")).collect()
        });
        results.into_iter().collect::<Result<(), _>>()?;
        Ok(Replayed { operations: operations.into_inner(), bytes_written: bytes.into_inner() })
    }

    /// Prepares, and has all threads work for so long, with a small cache ([`with_a_small_cache`]). All that was
    /// written is with the device below when `count` is asked.
    ///
    /// # Errors
    /// What the file system and `count` say.
    pub fn measure<T>(
        &self,
        time: Duration,
        mut count: impl FnMut() -> Result<T, SystemsError>,
    ) -> Result<Measured<T>, SystemsError> {
        with_a_small_cache(&self.directory, || self.prepare())?;
        settle(&self.directory)?;
        let before = count()?;
        let done = with_a_small_cache(&self.directory, || self.run(time))?;
        settle(&self.directory)?;
        Ok(Measured { before, after: count()?, done })
    }

    fn next<R>(&self, ask: impl FnOnce(&mut FileLoad) -> R) -> R {
        ask(&mut self.load.lock().expect("no thread panics with the load"))
    }

    fn carry_out(
        &self,
        operation: &FileOperation,
        buffer: &mut [u8],
        done: &mut Replayed,
    ) -> Result<(), SystemsError> {
        let (number, result) = match *operation {
            FileOperation::Write { file, block, count } => {
                done.bytes_written += u64::from(count) * BLOCK_SIZE;
                (file, self.write(file, block, count, buffer))
            }
            FileOperation::Read { file, block, count } => {
                (file, self.read(file, block, count, buffer))
            }
            FileOperation::Sync { file } => (file, self.sync(file)),
            FileOperation::Delete { file } => (file, fs::remove_file(self.path(file))),
        };
        done.operations += 1;
        match result {
            // Another thread has just deleted it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(|error| SystemsError::io("use", &self.path(number), error)),
        }
    }

    fn path(&self, file: u32) -> PathBuf {
        self.directory.join(format!("{}/{}", file / FILES_MAX, file % FILES_MAX))
    }

    /// The file for writing; made if it is missing.
    fn open(&self, file: u32) -> io::Result<File> {
        let path = self.path(file);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        match options.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(path.parent().expect("it lies in a directory"))?;
                options.open(&path)
            }
            other => other,
        }
    }

    fn write(&self, file: u32, block: u32, count: u32, buffer: &[u8]) -> io::Result<()> {
        let file = self.open(file)?;
        for (at, count) in pieces(block, count) {
            let bytes = &buffer[..count as usize * BLOCK_SIZE as usize];
            file.write_all_at(bytes, u64::from(at) * BLOCK_SIZE)?;
        }
        Ok(())
    }

    fn read(&self, file: u32, block: u32, count: u32, buffer: &mut [u8]) -> io::Result<()> {
        let file = File::open(self.path(file))?;
        for (at, count) in pieces(block, count) {
            let room = &mut buffer[..count as usize * BLOCK_SIZE as usize];
            // Another thread may have made the file shorter.
            let _ = file.read_at(room, u64::from(at) * BLOCK_SIZE)?;
        }
        Ok(())
    }

    fn sync(&self, file: u32) -> io::Result<()> {
        File::open(self.path(file))?.sync_all()
    }
}

fn blocks_written(operation: &FileOperation) -> u64 {
    match operation {
        FileOperation::Write { count, .. } => u64::from(*count),
        _ => 0,
    }
}

fn pieces(block: u32, count: u32) -> impl Iterator<Item = (u32, u32)> {
    let step = PIECE_BLOCKS;
    (0..count.div_ceil(step)).map(move |i| (block + i * step, step.min(count - i * step)))
}

fn filling() -> Vec<u8> {
    vec![0x5a; (PIECE_BLOCKS as u64 * BLOCK_SIZE) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn every_load_on_files_can_be_replayed() {
        let scratch = Scratch::new(&std::env::temp_dir()).expect("a directory can be made");
        for name in ["fio-rand", "ffsb:50", "postmark", "tiobench", "tpcc", "varmail"] {
            let directory = scratch.make_directory(&name.replace(':', "-")).expect("it is new");
            let workload: Workload = name.parse().expect("it is a workload");
            let replay = Replay::new(&directory, workload, 4 << 20, 1);
            let prepared = replay.prepare().expect("there is room");
            assert!(prepared.bytes_written >= 2 << 20, "{name}: {prepared:?}");
            let done = replay.run(Duration::from_millis(50)).expect("there is room");
            assert!(done.operations > 0, "{name}");
            let used: u64 = walk(&directory);
            assert!(used > 0, "{name}");
        }
    }

    #[test]
    fn what_is_counted_before_a_measurement_has_the_files_in_it() {
        let scratch = Scratch::new(&std::env::temp_dir()).expect("a directory can be made");
        let directory = scratch.make_directory("files").expect("it is new");
        let replay = Replay::new(&directory, Workload::Varmail, 4 << 20, 1);
        let mut asked = 0;
        let measured = replay.measure(Duration::from_millis(20), || {
            asked += 1;
            Ok((asked, walk(&directory)))
        });
        let Measured { before, after, done } = measured.expect("there is room");
        assert_eq!((before.0, after.0), (1, 2));
        assert!(before.1 > 0 && done.operations > 0, "{before:?} {done:?}");
        let failed = replay.measure(Duration::ZERO, || -> Result<(), SystemsError> {
            Err(SystemsError::violation("nobody can count"))
        });
        assert!(failed.is_err());
    }

    fn walk(directory: &Path) -> u64 {
        let entries = fs::read_dir(directory).expect("it is a directory").flatten();
        entries
            .map(|entry| match entry.metadata().expect("nobody removes it") {
                metadata if metadata.is_dir() => walk(&entry.path()),
                metadata => metadata.len(),
            })
            .sum()
    }
}
