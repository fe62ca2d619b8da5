//! Stores that earlier versions have left are sound, open, and hold what they held.
//!
//! `cargo run -p coulter --example golden` makes the images of the present format.

use coulter::{OpenOptions, Volume};
use coulter_check::SliceBlocks;
use coulter_device::MemoryStore;
use coulter_format::FORMAT_VERSION;
use flate2::read::GzDecoder;
use std::fs::{self, File};
use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

const BLOCK: usize = 4096;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden")
}

/// All images of the present format, without `.img.gz`. No version was released of format 1.
fn images() -> Vec<PathBuf> {
    let format = root().join(format!("format-{FORMAT_VERSION}"));
    let files = fs::read_dir(format).expect("it is part of the source");
    let paths = files.flatten().map(|file| file.path().display().to_string());
    let mut images: Vec<PathBuf> =
        paths.filter_map(|path| path.strip_suffix(".img.gz").map(PathBuf::from)).collect();
    images.sort();
    images
}

fn image(path: &Path) -> Vec<u8> {
    let file = File::open(path.with_extension("img.gz")).expect("it was listed");
    let mut bytes = Vec::new();
    GzDecoder::new(file).read_to_end(&mut bytes).expect("it is whole");
    bytes
}

/// What each block is full of.
fn content(path: &Path) -> Vec<u8> {
    let list = fs::read_to_string(path.with_extension("txt")).expect("it lies beside the image");
    let mut content = Vec::new();
    for line in list.lines() {
        let numbers: Vec<usize> =
            line.split(' ').map(|word| word.parse().expect("a number")).collect();
        let [first, count, byte] = numbers[..] else { panic!("{line}") };
        assert_eq!(first, content.len(), "the list has no holes");
        content.resize(first + count, u8::try_from(byte).expect("a byte"));
    }
    content
}

fn open(store: &MemoryStore) -> Volume {
    let device = store.open().expect("nothing has it open");
    Volume::open(Box::new(device), OpenOptions::default()).expect("it is a store")
}

fn compare(volume: &Volume, content: &[u8], name: &str) {
    assert_eq!(volume.size(), (content.len() * BLOCK) as u64, "{name}");
    let mut block = [0; BLOCK];
    for (number, byte) in content.iter().enumerate() {
        volume.read_at((number * BLOCK) as u64, &mut block).expect("it is whole");
        assert!(block == [*byte; BLOCK], "{name}: block {number} is not full of {byte}");
    }
}

#[test]
fn the_present_format_has_its_images() {
    let directory = root().join(format!("format-{FORMAT_VERSION}"));
    for name in ["empty", "closed", "crashed", "patched", "paged", "packed", "copies", "listed"] {
        let there = directory.join(format!("{name}.img.gz")).exists();
        assert!(there, "make them: cargo run -p coulter --example golden");
    }
}

#[test]
fn the_patched_image_has_records_in_holes_before_its_checkpoint_and_behind_it() {
    let bytes = image(&root().join(format!("format-{FORMAT_VERSION}")).join("patched"));
    let mut states = Vec::new();
    let show = |row: &coulter_check::dump::RecordRow| {
        if row.scattered {
            states.push(row.state);
        }
        ControlFlow::Continue(())
    };
    coulter_check::dump::records(&mut SliceBlocks(&bytes), None, show);
    use coulter_check::dump::RecordState::{Contained, Replayed};
    assert!(states.contains(&Contained) && states.contains(&Replayed), "{states:?}");
}

/// Each record begins at a page of its own, be it in holes or not, and both are there.
#[test]
fn the_records_of_the_paged_image_begin_at_flash_pages() {
    let bytes = image(&root().join(format!("format-{FORMAT_VERSION}")).join("paged"));
    let mut counts = [0, 0];
    let show = |row: &coulter_check::dump::RecordRow| {
        assert_eq!(row.block % 4, 0, "block {}", row.block);
        counts[usize::from(row.scattered)] += 1;
        ControlFlow::Continue(())
    };
    coulter_check::dump::records(&mut SliceBlocks(&bytes), None, show);
    assert!(counts.iter().all(|count| *count > 10), "{counts:?}");
}

#[test]
fn the_packed_image_has_packed_records_before_its_checkpoint_and_behind_it() {
    let bytes = image(&root().join(format!("format-{FORMAT_VERSION}")).join("packed"));
    let mut states = Vec::new();
    let show = |row: &coulter_check::dump::RecordRow| {
        if row.packed {
            states.push(row.state);
        }
        ControlFlow::Continue(())
    };
    coulter_check::dump::records(&mut SliceBlocks(&bytes), None, show);
    use coulter_check::dump::RecordState::{Contained, Replayed};
    assert!(states.contains(&Contained) && states.contains(&Replayed), "{states:?}");
}

#[test]
fn the_checkpoint_of_the_packed_image_refers_to_records() {
    let bytes = image(&root().join(format!("format-{FORMAT_VERSION}")).join("packed"));
    let dumped = coulter_check::dump::checkpoint(&mut SliceBlocks(&bytes)).value;
    assert!(dumped.is_some_and(|checkpoint| !checkpoint.references.is_empty()));
}

#[test]
fn the_listed_image_has_its_roots_in_a_list_with_second_copies() {
    let bytes = image(&root().join(format!("format-{FORMAT_VERSION}")).join("listed"));
    let dumped = coulter_check::dump::checkpoint(&mut SliceBlocks(&bytes)).value;
    let dumped = dumped.expect("it is sound");
    assert_eq!((dumped.root_lists.len(), dumped.roots.len()), (1, 1));
    let kinds: Vec<String> =
        dumped.second_copies.iter().map(|copy| copy.owner.to_string()).collect();
    for wanted in
        ["the second copy of page 0 of the list of roots", "the second copy of root page 0"]
    {
        assert!(kinds.iter().any(|kind| kind == wanted), "{wanted}: {kinds:?}");
    }
}

/// Each record in holes that still counts is missed when its header is damaged; one that is dead is not.
#[test]
fn damage_of_a_record_in_holes_is_found() {
    let path = root().join(format!("format-{FORMAT_VERSION}")).join("patched");
    let mut bytes = image(&path);
    let mut headers = Vec::new();
    let show = |row: &coulter_check::dump::RecordRow| {
        headers.extend(row.scattered.then_some(row.block as usize));
        ControlFlow::Continue(())
    };
    coulter_check::dump::records(&mut SliceBlocks(&bytes), None, show);
    let mut found = 0;
    for header in &headers {
        let place = header * BLOCK + 200;
        bytes[place] ^= 1;
        let mut options = coulter_check::Options { data: true, ..Default::default() };
        found +=
            usize::from(!coulter_check::check(&mut SliceBlocks(&bytes), &mut options).is_sound());
        bytes[place] ^= 1;
    }
    println!("{found} of {} still count", headers.len());
    assert!(found > 0, "none of {} is missed", headers.len());
}

#[test]
fn a_store_of_format_1_is_refused_with_the_program_that_reads_it() {
    let bytes = image(&root().join("format-1/closed"));
    let store = MemoryStore::new(bytes.len() as u64);
    store.write_at(0, &bytes).expect("nothing has it open");
    for read_only in [false, true] {
        let device = store.open().expect("nothing has it open");
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        let error = Volume::open(Box::new(device), options).expect_err("it is of another format");
        let told = error.to_string();
        assert!(told.contains("format version 1") && told.contains("version 2"), "{told}");
    }
    let mut options = coulter_check::Options::default();
    let report = coulter_check::check(&mut SliceBlocks(&bytes), &mut options);
    assert!(!report.is_sound());
    let told: String = report.findings.iter().map(ToString::to_string).collect();
    assert!(told.contains("use a coulter that reads version 1"), "{told}");
    let mut after = vec![0; bytes.len()];
    store.read_at(0, &mut after).expect("nothing has it open");
    assert!(after == bytes, "nothing was written");
}

#[test]
fn images_of_all_formats_are_sound_and_hold_what_they_held() {
    for path in images() {
        let name = path.display().to_string();
        let (bytes, mut content) = (image(&path), content(&path));
        let mut options = coulter_check::Options { data: true, ..Default::default() };
        let report = coulter_check::check(&mut SliceBlocks(&bytes), &mut options);
        assert!(report.is_sound() && report.complete, "{name}: {:?}", report.findings);

        let store = MemoryStore::new(bytes.len() as u64);
        store.write_at(0, &bytes).expect("nothing has it open");
        let volume = open(&store);
        compare(&volume, &content, &name);
        // It goes on.
        for number in (0..content.len()).step_by(3) {
            volume.write_at((number * BLOCK) as u64, &[77; BLOCK]).expect("there is room");
            content[number] = 77;
        }
        volume.flush().expect("the device works");
        volume.abandon().expect("no bug");
        let volume = open(&store);
        compare(&volume, &content, &name);
        volume.close().expect("the device works");
    }
}
