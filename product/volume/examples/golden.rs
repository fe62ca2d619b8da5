//! Makes golden images of the present format: `cargo run -p coulter --example golden`, with the names of
//! those that are wanted behind it if not all are.
//!
//! Each is a small store as some life left it, compressed, and beside it a list of what its volume
//! holds. They lie in `testdata/golden/format-N` and are opened by `tests/golden.rs` of every later
//! version; those of released formats are never made anew. Those before `packed` were made when there were
//! no long records and no second copies, and stay as they are for what they say of such stores. `format-1-three-streams` was made before
//! there were seven streams.

use coulter::buffer::Buffer;
use coulter::service::{BlockService as _, Operation, Request};
use coulter::tuning::{Placement, Reclaim, Retuning};
use coulter::{CreateOptions, OpenOptions, Volume, create};
use coulter_device::MemoryStore;
use coulter_workload::Random;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::error::Error;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

const BLOCK: u64 = 4096;
const DEVICE_SIZE: u64 = 30 << 20;
/// Three segments hold superblocks, and many must be spare for holes to be filled.
const FLASH_SIZE: u64 = 64 << 20;

/// A store, and what each block of its volume is full of.
struct Golden {
    store: MemoryStore,
    content: Vec<u8>,
    random: Random,
    reclaim: Reclaim,
    placement: Placement,
}

impl Golden {
    fn new() -> Result<Golden, Box<dyn Error>> {
        Golden::of_size(DEVICE_SIZE, None)
    }

    fn of_size(size: u64, page_size: Option<u64>) -> Result<Golden, Box<dyn Error>> {
        let store = MemoryStore::new(size);
        let options = CreateOptions {
            segment_size: Some(2 << 20),
            page_size,
            uuid: Some(*b"golden image\0\0\0\0"),
            label: "golden".to_owned(),
            ..CreateOptions::default()
        };
        let geometry = create(Box::new(store.open()?), &options)?;
        let content = vec![0; (geometry.volume_size_bytes / BLOCK) as usize];
        let (reclaim, placement) = (Reclaim::CopyOut, Placement::Scattered);
        Ok(Golden { store, content, random: Random::new(1), reclaim, placement })
    }

    /// A sparse store of which the roots are in a list of their own, for it may have so many.
    fn with_root_list() -> Result<Golden, Box<dyn Error>> {
        let store = MemoryStore::new(FLASH_SIZE);
        let options = CreateOptions {
            volume_size: Some(16 << 20),
            address_space: Some(16 << 20),
            stretch_limit: Some(40_000),
            segment_size: Some(2 << 20),
            uuid: Some(*b"golden image\0\0\0\0"),
            label: "golden".to_owned(),
            ..CreateOptions::default()
        };
        let geometry = create(Box::new(store.open()?), &options)?;
        let content = vec![0; (geometry.volume_size_bytes / BLOCK) as usize];
        let (reclaim, placement) = (Reclaim::CopyOut, Placement::Mixed);
        Ok(Golden { store, content, random: Random::new(1), reclaim, placement })
    }

    fn open(&self) -> Result<Volume, Box<dyn Error>> {
        let volume = Volume::open(Box::new(self.store.open()?), OpenOptions::default())?;
        // Scattered, every stream is there.
        let placement = Some(self.placement);
        let reclaim = Some(self.reclaim);
        volume.tune(Retuning { placement, reclaim, ..Retuning::default() });
        Ok(volume)
    }

    /// Writes and discards at random.
    fn use_it(&mut self, volume: &Volume, operations: u64) -> Result<(), Box<dyn Error>> {
        for number in 0..operations {
            let magnitude = self.random.below(8);
            let count = 1 + self.random.below(1 << magnitude);
            let first = self.random.below(self.content.len() as u64 - count + 1);
            let byte = if self.random.below(8) == 0 { 0 } else { number as u8 };
            let (offset, length) = (first * BLOCK, count * BLOCK);
            match byte {
                0 => volume.discard(offset, length)?,
                _ => volume.write_at(offset, &vec![byte; length as usize])?,
            }
            self.content[first as usize..(first + count) as usize].fill(byte);
        }
        Ok(volume.flush()?)
    }

    /// Writes so many single blocks at once.
    fn burst(&mut self, volume: &Volume, count: u64) -> Result<(), Box<dyn Error>> {
        let mut session = volume.connect();
        for number in 0..count {
            let block = self.random.below(self.content.len() as u64);
            let byte = 1 + (number % 200) as u8;
            let mut buffer = Buffer::zeroed(BLOCK as usize);
            buffer.fill(byte);
            let (operation, offset) = (Operation::Write { fua: false }, block * BLOCK);
            session.submit(Request { tag: number, operation, offset, length: BLOCK, buffer });
            self.content[block as usize] = byte;
        }
        let mut completions = Vec::new();
        while session.outstanding() > 0 {
            session.complete(&mut completions, None);
        }
        for completion in completions {
            completion.result?;
        }
        Ok(volume.flush()?)
    }

    fn save(&self, name: &str) -> Result<(), Box<dyn Error>> {
        let directory = directory();
        fs::create_dir_all(&directory)?;
        let mut bytes = vec![0; self.store.size() as usize];
        self.store.read_at(0, &mut bytes)?;
        let image = directory.join(format!("{name}.img.gz"));
        let mut encoder = GzEncoder::new(File::create(&image)?, Compression::best());
        encoder.write_all(&bytes)?;
        encoder.finish()?;
        // Runs of equal blocks: first, count, byte.
        let mut list = String::new();
        let mut first = 0;
        for run in self.content.chunk_by(|a, b| a == b) {
            writeln!(list, "{first} {} {}", run.len(), run[0])?;
            first += run.len();
        }
        fs::write(directory.join(format!("{name}.txt")), list)?;
        println!("{}: {} bytes", image.display(), fs::metadata(&image)?.len());
        Ok(())
    }
}

fn directory() -> PathBuf {
    let version = coulter_format::FORMAT_VERSION;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden");
    root.join(format!("format-{version}"))
}

fn empty() -> Result<Golden, Box<dyn Error>> {
    Golden::new()
}

fn closed() -> Result<Golden, Box<dyn Error>> {
    let mut golden = Golden::new()?;
    let volume = golden.open()?;
    golden.use_it(&volume, 60)?;
    volume.close()?;
    Ok(golden)
}

/// Cleaned, with checkpoints, runs, a log behind them, and a second life.
fn crashed() -> Result<Golden, Box<dyn Error>> {
    let mut golden = Golden::new()?;
    for operations in [330, 20] {
        let volume = golden.open()?;
        golden.use_it(&volume, operations)?;
        volume.abandon()?;
    }
    Ok(golden)
}

/// The same with records in holes, before the latest checkpoint and behind it.
fn patched() -> Result<Golden, Box<dyn Error>> {
    let mut golden = Golden { reclaim: Reclaim::Threaded, ..Golden::new()? };
    // Single blocks all over a full volume: segments have holes everywhere.
    for (bursts, count) in [(40, 900), (12, 300)] {
        let volume = golden.open()?;
        for _ in 0..bursts {
            golden.burst(&volume, count)?;
        }
        volume.abandon()?;
    }
    Ok(golden)
}

/// The same of a store that knows the page size of the flash below.
fn paged() -> Result<Golden, Box<dyn Error>> {
    let mut golden = Golden::of_size(FLASH_SIZE, Some(16 << 10))?;
    // Of ranges, so that whole pages die.
    for operations in [1600, 150] {
        let volume = golden.open()?;
        golden.use_it(&volume, operations)?;
        volume.abandon()?;
    }
    Ok(golden)
}

/// With packed records, before the latest checkpoint and behind it. All host data goes to one stream: in
/// three, none of them would be full. How many requests the volume finds at once is not the same each time:
/// `tests/golden.rs` says whether the image is one to keep.
fn packed() -> Result<Golden, Box<dyn Error>> {
    let mut golden = Golden { placement: Placement::Mixed, ..Golden::new()? };
    for (bursts, count) in [(14, 1200), (2, 900)] {
        let volume = golden.open()?;
        for _ in 0..bursts {
            golden.use_it(&volume, 3)?;
            golden.burst(&volume, count)?;
        }
        volume.abandon()?;
    }
    Ok(golden)
}

/// The life of `crashed`, its roots in a list.
fn listed() -> Result<Golden, Box<dyn Error>> {
    let mut golden = Golden::with_root_list()?;
    for operations in [330, 20] {
        let volume = golden.open()?;
        golden.use_it(&volume, operations)?;
        volume.abandon()?;
    }
    Ok(golden)
}

fn main() -> Result<(), Box<dyn Error>> {
    type Life = fn() -> Result<Golden, Box<dyn Error>>;
    let lives: [(&str, Life); 8] = [
        ("empty", empty),
        ("closed", closed),
        ("crashed", crashed),
        ("patched", patched),
        ("paged", paged),
        ("packed", packed),
        // The life of `crashed`, since checkpoints list second copies.
        ("copies", crashed),
        ("listed", listed),
    ];
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for (name, life) in lives {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            life()?.save(name)?;
        }
    }
    Ok(())
}
