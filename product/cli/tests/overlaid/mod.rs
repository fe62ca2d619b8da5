//! A directory with an overlay over it, and files of which blocks are in the store.

use crate::sandbox::{Sandbox, send, write_and_sync};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

pub(crate) const BLOCK: usize = 4096;
/// Blocks of the files that are made here.
pub(crate) const BLOCKS: usize = 256;
/// Their blocks that are overwritten: no two follow each other.
pub(crate) const OVERWRITTEN: [usize; 5] = [9, 200, 3, 130, 77];

/// See the module's documentation. The directory is `data` in the sandbox.
pub(crate) struct Overlaid {
    pub(crate) sandbox: Sandbox,
    pub(crate) directory: PathBuf,
    pub(crate) pid: u32,
}

/// Whether all overlays of this run are to be mounted with `--cache back`.
pub(crate) fn writes_back() -> bool {
    std::env::var("COULTER_OVERLAY_CACHE").is_ok_and(|cache| cache == "back")
}

/// Writes, and hears what comes of it: with write-back that is told at the next sync.
pub(crate) fn write_and_hear(file: &File, bytes: &[u8], offset: u64) -> std::io::Result<()> {
    file.write_all_at(bytes, offset)?;
    if writes_back() { file.sync_all() } else { Ok(()) }
}

/// Puts the overlay over `directory`; gives back its daemon.
#[track_caller]
pub(crate) fn put_over(sandbox: &Sandbox, directory: &str, options: &[&str]) -> u32 {
    let words = ["overlay", directory, "--store-size", "256M", "--json"];
    let back = if writes_back() { &["--cache", "back"][..] } else { &[] };
    let is_said = options.contains(&"--cache");
    let entry = sandbox.json(&[&words[..], if is_said { &[] } else { back }, options].concat());
    entry["pid"].as_u64().expect("it has a process") as u32
}

/// What `status` tells.
#[track_caller]
pub(crate) fn status(sandbox: &Sandbox, directory: &str) -> Value {
    sandbox.json(&["overlay", "status", directory, "--json"])
}

/// The content of a new file; `seed` tells files apart.
pub(crate) fn content(seed: u8) -> Vec<u8> {
    (0..BLOCKS * BLOCK).map(|at| (at / BLOCK) as u8 ^ (at % 251) as u8 ^ seed).collect()
}

/// Overwrites blocks at random, in the file and in what it should hold, and syncs.
pub(crate) fn scatter(file: &File, expected: &mut [u8], seed: u8) {
    for block in OVERWRITTEN {
        let bytes = [seed ^ block as u8; BLOCK];
        file.write_all_at(&bytes, (block * BLOCK) as u64).expect("it is writable");
        expected[block * BLOCK..][..BLOCK].copy_from_slice(&bytes);
    }
    file.sync_all().expect("it can be synced");
}

impl Overlaid {
    /// An empty directory with an overlay over it.
    pub(crate) fn new() -> Overlaid {
        let sandbox = Sandbox::new();
        let directory = sandbox.make_directory("data");
        let pid = put_over(&sandbox, "data", &[]);
        Overlaid { sandbox, directory, pid }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// A file of which blocks are in the store, open, and what it holds.
    pub(crate) fn scattered(&self, name: &str, seed: u8) -> (File, Vec<u8>) {
        let (path, mut expected) = (self.path(name), content(seed));
        write_and_sync(&path, &expected);
        let file = OpenOptions::new().read(true).write(true).open(path).expect("it is there");
        let before = self.stored();
        scatter(&file, &mut expected, seed);
        assert!(self.stored() > before, "blocks of it are in the store");
        (file, expected)
    }

    /// Bytes in the store.
    pub(crate) fn stored(&self) -> u64 {
        status(&self.sandbox, "data")["stored_bytes"].as_u64().expect("it is a number")
    }

    /// Kills the daemon and puts the overlay over the directory again.
    pub(crate) fn kill_and_go_on(&mut self) {
        send(self.pid, "KILL");
        self.pid = put_over(&self.sandbox, "data", &[]);
    }

    /// Takes the overlay away; nothing of it is left.
    #[track_caller]
    pub(crate) fn detach(&self) {
        self.sandbox.ok(&["overlay", "detach", "data"]);
        assert!(!self.path(".coulter").exists(), "what is hidden goes");
    }
}

/// What a file holds, and whether it is that: a difference is told by its first block.
#[track_caller]
pub(crate) fn assert_holds(file: &File, expected: &[u8]) {
    let mut found = vec![0; expected.len() + 1];
    let mut size = 0;
    while let Ok(count @ 1..) = file.read_at(&mut found[size..], size as u64) {
        size += count;
    }
    assert_eq!(size, expected.len(), "its size");
    let differs = (0..size).find(|at| found[*at] != expected[*at]);
    assert_eq!(
        differs.map(|at| (at / BLOCK, found[at], expected[at])),
        None,
        "block, found, expected"
    );
}
