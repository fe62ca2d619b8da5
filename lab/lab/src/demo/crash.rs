//! Files that are fsynced one after the other until the device dies, and what is left of them.
//!
//! A file counts as durable once `fsync` has returned for it and for its directory. Its content
//! and length follow from its number, so nothing but the count has to be remembered, and it is
//! remembered in another process than the one that is killed.

use super::content::{self, Random};
use crate::error::LabError;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Longest file, in bytes.
const FILE_SIZE_MAX: u64 = 256 << 10;

/// A thread that writes files until it cannot.
pub(crate) struct Writer {
    durable: Arc<AtomicU64>,
    thread: JoinHandle<io::Error>,
}

/// What was found afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Survivors {
    /// Files that have the length and every byte that was fsynced.
    pub(crate) whole: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
}

impl Writer {
    /// Starts writing files to `directory`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(directory: &Path) -> Result<Writer, LabError> {
        let durable = Arc::new(AtomicU64::new(0));
        let (counter, directory) = (Arc::clone(&durable), directory.to_owned());
        let work = move || {
            loop {
                let number = counter.load(Ordering::Relaxed);
                if let Err(error) = write_durably(&directory, number) {
                    return error;
                }
                counter.store(number + 1, Ordering::Release);
            }
        };
        let thread = std::thread::Builder::new()
            .name("fsync".to_owned())
            .spawn(work)
            .map_err(|source| LabError::io("write to", Path::new("many files"), source))?;
        Ok(Writer { durable, thread })
    }

    /// Files that are durable now.
    pub(crate) fn durable_count(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Waits until writing has become impossible, and says how many files were durable by then.
    pub(crate) fn wait_for_failure(self) -> u64 {
        match self.thread.join() {
            Ok(error) => log::info!("writing ended: {error}"),
            Err(_) => log::error!("the writing thread panicked"),
        }
        self.durable.load(Ordering::Acquire)
    }
}

/// Compares the first `count` files of `directory` with what was fsynced.
pub(crate) fn survivors(directory: &Path, count: u64) -> Survivors {
    let mut survivors = Survivors::default();
    for number in 0..count {
        let path = path_of(directory, number);
        match fs::read(&path) {
            Ok(bytes) if bytes == content_of(number) => {
                survivors.whole += 1;
                survivors.bytes += bytes.len() as u64;
            }
            Ok(bytes) => log::error!("{} is damaged ({} bytes)", path.display(), bytes.len()),
            Err(error) => log::error!("{} cannot be read: {error}", path.display()),
        }
    }
    survivors
}

fn write_durably(directory: &Path, number: u64) -> io::Result<()> {
    let mut file = File::create_new(path_of(directory, number))?;
    file.write_all(&content_of(number))?;
    file.sync_all()?;
    File::open(directory)?.sync_all()
}

fn path_of(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:06}"))
}

fn content_of(number: u64) -> Vec<u8> {
    let length = 1 + Random::new(number).below(FILE_SIZE_MAX);
    let mut bytes = vec![0; length as usize];
    content::fill(!number, &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_are_whole_count_as_survivors() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        for number in 0..4 {
            write_durably(directory.path(), number).expect("the directory is writable");
        }
        let all = survivors(directory.path(), 4);
        assert_eq!(all.whole, 4);
        assert!(all.bytes > 4);
        let path = path_of(directory.path(), 1);
        let mut bytes = fs::read(&path).expect("it was written");
        bytes[0] ^= 1;
        fs::write(&path, &bytes).expect("it is writable");
        fs::write(path_of(directory.path(), 2), b"").expect("it is writable");
        fs::remove_file(path_of(directory.path(), 3)).expect("it was written");
        assert_eq!(survivors(directory.path(), 4).whole, 1);
    }

    #[test]
    fn the_writer_ends_when_it_cannot_write() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        // The third file cannot be made, since its name is taken.
        fs::create_dir(path_of(directory.path(), 2)).expect("it is writable");
        let writer = Writer::start(directory.path()).expect("a thread can be started");
        assert_eq!(writer.wait_for_failure(), 2);
    }
}
