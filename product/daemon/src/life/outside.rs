//! What others do to a volume that is served: they cut its store short, or take away its device.
//!
//! A thread of its own looks, since the file system that the store lies on may not answer, and the
//! daemon must.

use crate::life::device;
use crate::life::file_identity::FileIdentity;
use crate::life::state::{Entry, StateDirectory};
use crate::life::trouble::Trouble;
use crate::points;
use coulter_terminal::Size;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of a sector, as the kernel counts disks.
const SECTOR_SIZE: u64 = 512;

/// What is seen from time to time, until this is dropped.
pub(crate) struct Outside {
    seen: Arc<Mutex<Option<Trouble>>>,
    /// Its end ends the thread.
    _ends: Sender<()>,
}

impl Outside {
    /// Begins to look after the volume of `entry`, whose store has so many bytes. Without a thread
    /// nothing is ever seen.
    pub(crate) fn watch(
        directory: &StateDirectory,
        entry: &Entry,
        store_size: Option<u64>,
    ) -> Outside {
        let seen = Arc::new(Mutex::new(None));
        let (ends, ended) = channel();
        let store =
            entry.store_identity.zip(store_size).and_then(|it| WatchedStore::open_here(it.0, it.1));
        let (directory, entry, told) = (directory.clone(), entry.clone(), seen.clone());
        let look = move || {
            let mut lost = None;
            loop {
                // What was cut off is lost, however long the file is by now.
                lost = lost.or_else(|| store.as_ref().and_then(WatchedStore::trouble));
                let found = lost.clone().or_else(|| look(&directory, &entry));
                *told.lock().unwrap_or_else(PoisonError::into_inner) = found;
                if ended.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        if let Err(error) = thread::Builder::new().name("outside".to_owned()).spawn(look) {
            log::warn!(error:%; "nobody looks whether the store is cut short");
        }
        Outside { seen, _ends: ends }
    }

    /// The latest finding.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn look(directory: &StateDirectory, entry: &Entry) -> Option<Trouble> {
    let device = entry.device.as_deref()?;
    let told = || match points::gives_directory(entry) {
        true => {
            format!("it was unmounted from {device} while files of it are open, and ends with them")
        }
        false => format!("{device} was taken away or given to another: nobody reaches it any more"),
    };
    (!device::is_still_there(directory, entry)).then(|| Trouble::new(told()))
}

/// The file or disk that this process has open.
struct WatchedStore {
    identity: FileIdentity,
    size: u64,
    /// Where it is looked at, wherever its own path leads.
    path: PathBuf,
    /// It is a file without holes. One that has some now was cut short, even if a write behind the
    /// end has made it as long as it was: the last superblock lies in the last block.
    had_no_holes: bool,
}

impl WatchedStore {
    fn open_here(identity: FileIdentity, size: u64) -> Option<WatchedStore> {
        let open = fs::read_dir("/proc/self/fd").ok()?;
        let mut paths = open.flatten().map(|entry| entry.path());
        let path = paths.find(|path| FileIdentity::at(path).is_ok_and(|it| it == identity))?;
        let had_no_holes = identity.inode != 0 && allocated(&fs::metadata(&path).ok()?) >= size;
        Some(WatchedStore { identity, size, path, had_no_holes })
    }

    fn trouble(&self) -> Option<Trouble> {
        let metadata = fs::metadata(&self.path).ok()?;
        if FileIdentity::of(&metadata) != self.identity {
            return None;
        }
        let present = match self.identity.inode {
            0 => match size_of_disk(self.identity.device) {
                Some(size) => size,
                None => {
                    return Some(Trouble::new("the disk that it lies on is gone".to_owned()));
                }
            },
            _ if self.had_no_holes => metadata.len().min(allocated(&metadata)),
            _ => metadata.len(),
        };
        (present < self.size).then(|| {
            let (left, needed) = (Size(present), Size(self.size));
            Trouble {
                words: format!(
                    "its store was cut short: it has {left} of {needed}, and the rest is lost"
                ),
                cut_off_bytes: Some(self.size - present),
            }
        })
    }
}

/// Bytes of a file that have a place on its disk.
fn allocated(file: &fs::Metadata) -> u64 {
    file.blocks() * SECTOR_SIZE
}

/// Bytes of a disk that is there.
fn size_of_disk(number: u64) -> Option<u64> {
    let (major, minor) = (libc::major(number), libc::minor(number));
    let text = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/size")).ok()?;
    Some(text.trim_end().parse::<u64>().ok()? * SECTOR_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_store_that_was_cut_short_is_seen_wherever_it_is_by_now() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = |name: &str| directory.path().join(name);
        let file = File::create(path("a")).expect("it is writable");
        file.set_len(8192).expect("it is writable");
        let identity = FileIdentity::at(&path("a")).expect("it is there");
        let store = WatchedStore::open_here(identity, 8192).expect("it is open");
        assert_eq!(store.trouble(), None);
        fs::rename(path("a"), path("b")).expect("it is writable");
        fs::write(path("a"), "another").expect("it is writable");
        assert_eq!(store.trouble(), None);
        file.set_len(4096).expect("it is writable");
        let trouble = store.trouble().expect("half of it is gone");
        assert!(trouble.words.contains("it has 4 KiB of 8 KiB"), "{trouble:?}");
        assert_eq!(trouble.cut_off_bytes, Some(4096));
        file.set_len(16384).expect("it is writable");
        assert_eq!(store.trouble(), None);
        drop(file);
        assert_eq!(store.trouble(), None, "it is not open any more");
        assert!(WatchedStore::open_here(identity, 8192).is_none());
    }

    #[test]
    fn a_file_that_was_cut_short_and_is_long_again_has_holes() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("a");
        fs::write(&path, [1; 1 << 16]).expect("it is writable");
        let file = File::options().write(true).open(&path).expect("it is there");
        file.sync_all().expect("it is writable");
        let identity = FileIdentity::at(&path).expect("it is there");
        let store = WatchedStore::open_here(identity, 1 << 16).expect("it is open");
        assert_eq!(store.trouble(), None);
        file.set_len(1 << 15).expect("it is writable");
        file.write_all_at(&[1; 4096], (1 << 16) - 4096).expect("it is writable");
        let trouble = store.trouble().expect("a part of it is gone");
        assert!(trouble.words.contains("it has 36 KiB of 64 KiB"), "{trouble:?}");
    }

    #[test]
    fn a_disk_is_as_large_as_the_kernel_says() {
        let Ok(mut disks) = fs::read_dir("/sys/dev/block") else { return };
        let Some(Ok(disk)) = disks.next() else { return };
        let name = disk.file_name().into_string().expect("it is a number");
        let (major, minor) = name.split_once(':').expect("it has two parts");
        let number = |text: &str| text.parse().expect("it is a number");
        assert!(size_of_disk(libc::makedev(number(major), number(minor))).is_some());
        assert_eq!(size_of_disk(libc::makedev(4095, 1 << 19)), None);
    }
}
