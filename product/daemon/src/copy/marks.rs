//! The place of a store's *marks*, and the words in them that ask for its copy.
//!
//! Marks lie beside a store in a file, as `STORE.marks`; those of a disk in `/var/lib/coulter`.
//! Whether they agree with a copy is `replication`'s to find out.

use crate::store_file::uuid_of;
use coulter_object::ship::marks::Marks;
use coulter_system::private;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Where marks of disks are kept.
const MARKS_DIRECTORY: &str = "/var/lib/coulter";

/// Where the marks of a store are kept.
pub(crate) fn marks_path(path: &Path, uuid: &[u8; 16]) -> PathBuf {
    let is_disk = path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device());
    if is_disk {
        let uuid: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let _ = private::create_directories(Path::new(MARKS_DIRECTORY));
        return Path::new(MARKS_DIRECTORY).join(format!("{uuid}.marks"));
    }
    beside(path, "marks")
}

/// The file that is called like the one at `path`, with another ending behind its name.
pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    assert!(!ending.contains('/'), "a file that is not beside its store");
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    PathBuf::from(name)
}

/// Where the marks of the store at `path` are, if it has some.
pub(crate) fn existing_marks(path: &Path) -> Option<PathBuf> {
    let of_file = beside(path, "marks");
    let place = match uuid_of(path) {
        Some(store) => marks_path(path, &store),
        None => of_file,
    };
    place.exists().then_some(place)
}

/// Keeps with the store at `path` the words of a command line that ask for its copy, or that it is
/// to have none. That only explains.
pub(crate) fn remember(path: &Path, words: Option<&str>) {
    let Some(place) = existing_marks(path) else { return };
    let words = words.unwrap_or_default();
    if let Err(error) = Marks::open(&place).and_then(|mut marks| marks.remember(words)) {
        log::warn!(error:%; "how the store is replicated is not kept with it");
    }
}

/// The words of a command line that ask for the copy which the store at `path` has. The copy
/// follows the store only if they are there.
pub fn remembered(path: &Path) -> Option<String> {
    Marks::open(&existing_marks(path)?).ok()?.remembered()
}
