//! Files for tests, removed when the test ends.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod privileged;

use coulter_device::conformance::Access;
use coulter_device::{Device, Engine, OpenError, OpenOptions, open_path};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// A directory that is removed with its last handle.
#[derive(Clone, Debug)]
pub(crate) struct Scratch {
    directory: Arc<Directory>,
}

#[derive(Debug)]
struct Directory(PathBuf);

impl Scratch {
    /// An empty directory in the place for the tests' files, which is on a disk.
    pub(crate) fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("coulter-device-{}-{number}", process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).expect("a directory for the test's files");
        Scratch { directory: Arc::new(Directory(path)) }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.0.join(name)
    }

    /// A sparse file of `size` bytes, and this directory with it.
    pub(crate) fn file(&self, name: &str, size: u64) -> ScratchFile {
        let path = self.path(name);
        let file = File::create(&path).expect("a file for the test");
        file.set_len(size).expect("a size for the file");
        ScratchFile { path, _scratch: self.clone() }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A file in a [`Scratch`].
#[derive(Debug)]
pub(crate) struct ScratchFile {
    pub(crate) path: PathBuf,
    _scratch: Scratch,
}

/// Opens the file as the conformance suite demands.
pub(crate) fn file_fixture(
    file: ScratchFile,
    options: OpenOptions,
) -> impl Fn(Access) -> Result<Box<dyn Device>, OpenError> {
    move |access| {
        // The whole of it, so that its directory lasts as long as the fixture.
        let file = &file;
        open_as(&file.path, &options, access)
    }
}

pub(crate) fn open_as(
    path: &Path,
    options: &OpenOptions,
    access: Access,
) -> Result<Box<dyn Device>, OpenError> {
    let read_only = access == Access::ReadOnly;
    open_path(path, &OpenOptions { read_only, ..options.clone() })
}

/// io_uring, or what is taken instead of it where the system that runs the tests forbids it.
pub(crate) fn uring() -> Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    *ENGINE.get_or_init(|| {
        let file = Scratch::new().file("probe", 1 << 20);
        let options = OpenOptions { engine: Engine::Uring, ..OpenOptions::default() };
        match open_path(&file.path, &options) {
            Err(OpenError::NoIoUring { source, .. }) => {
                println!("io_uring is not tested, for this system refuses it: {source}");
                Engine::Automatic
            }
            _ => Engine::Uring,
        }
    })
}
