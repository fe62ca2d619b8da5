//! The objects byte for byte, and whatever else may stand under their names.
//!
//! `testdata/objects` holds one object of each kind. What this program writes must be these bytes, for other
//! versions read them. `COULTER_WRITE_GOLDEN=1 cargo test -p coulter-object --test layout` writes them anew.

use coulter_object::layout::commit::{Content, Inline};
use coulter_object::layout::pins::CloneLine;
use coulter_object::layout::{
    Commit, Corrupt, Entry, Epoch, Manifest, Pin, Pins, Reason, Stage, VolumeId, VolumeRecord,
    checksum, data,
};
use coulter_object::names::{CommitId, ManifestId, Source};
use coulter_object::pieces::PieceMap;
use std::path::PathBuf;

const VOLUME: VolumeId = VolumeId([0x11; 16]);
const ID: CommitId = CommitId { epoch: 3, number: 258 };
const DATA: Source = Source::Data { epoch: 2, number: 77 };

fn manifest_id() -> ManifestId {
    ManifestId { commit: ID, nonce: u64::from_le_bytes([0x44; 8]) }
}

fn record() -> VolumeRecord {
    let after = CommitId { epoch: 1, number: 9 };
    VolumeRecord {
        volume: VOLUME,
        nonce: [0x22; 16],
        counter: 5,
        store: [0x33; 16],
        device_size: 96 << 20,
        chunk_size: 8 << 20,
        manifest: Some(manifest_id()),
        epochs: vec![
            Epoch { epoch: 2, stage: Stage::Begun, after },
            Epoch { epoch: 3, stage: Stage::Claiming, after: CommitId { epoch: 2, number: 4 } },
        ],
        owner: "host process 7".to_string(),
        seen: 1_700_000_000,
        ancestors: Vec::new(),
    }
}

fn pins() -> Pins {
    let pin = Pin { name: "monday".to_string(), commit: ID, manifest: manifest_id(), time: 9 };
    Pins {
        volume: VOLUME,
        nonce: [0x55; 16],
        counter: 6,
        horizon: CommitId { epoch: 2, number: 4 },
        pins: vec![pin],
        clones: vec![CloneLine {
            volume: VolumeId([0x66; 16]),
            pin: "monday".to_string(),
            path: "../new".to_string(),
        }],
    }
}

fn commit(is_fence: bool) -> Vec<u8> {
    let entries = [
        Entry { range: 0..4096, content: Content::Zeros },
        Entry { range: 8192..16384, content: Content::At(DATA, 4096) },
    ];
    let entries = if is_fence { Vec::new() } else { entries.to_vec() };
    let previous = if is_fence { 0 } else { 0xabcd };
    let mut commit =
        Commit { volume: VOLUME, nonce: [0x77; 16], id: ID, is_fence, previous, entries };
    let inline =
        Inline { ranges: std::iter::once(32768..32772).collect(), bytes: vec![1, 2, 3, 4] };
    commit.encode(&if is_fence { Inline::default() } else { inline })
}

fn manifest() -> Vec<u8> {
    let mut pieces = PieceMap::new();
    for (start, source) in [(0, DATA), (65536, Source::Commit(CommitId { epoch: 1, number: 3 }))] {
        let entry = Entry { range: start..start + 4096, content: Content::At(source, 512) };
        pieces.apply(&entry, &mut Vec::new());
    }
    let (nonce, checksum) = ([0x44; 16], 0xdcba);
    Manifest { volume: VOLUME, nonce, commit: ID, checksum, pieces }.encode()
}

fn data_object() -> Vec<u8> {
    let mut bytes = vec![0xda; 64];
    data::seal(&mut bytes, VOLUME, &DATA.name());
    bytes
}

/// An object of each kind: its file's name, its bytes, and what reads it.
type Kind = (&'static str, Vec<u8>, fn(&[u8]) -> Result<(), Corrupt>);

fn kinds() -> [Kind; 6] {
    let read_commit = |bytes: &[u8]| Commit::decode(bytes, VOLUME, ID).map(drop);
    [
        ("volume", record().encode(), |bytes| VolumeRecord::decode(bytes).map(drop)),
        ("pins", pins().encode(), |bytes| Pins::decode(bytes).map(drop)),
        ("commit", commit(false), read_commit),
        ("fence", commit(true), read_commit),
        ("manifest", manifest(), |bytes| Manifest::decode(bytes, VOLUME, ID).map(drop)),
        ("data", data_object(), |bytes| data::open(bytes.to_vec(), VOLUME, &DATA.name()).map(drop)),
    ]
}

#[test]
fn objects_are_the_bytes_that_other_versions_wrote() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/objects");
    for (name, bytes, read) in kinds() {
        let path = folder.join(name);
        if std::env::var_os("COULTER_WRITE_GOLDEN").is_some() {
            std::fs::create_dir_all(&folder).expect("there is room");
            std::fs::write(&path, &bytes).expect("there is room");
        }
        let golden = std::fs::read(&path).expect("it is part of the sources");
        assert_eq!(bytes, golden, "{name}");
        read(&golden).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let golden = std::fs::read(folder.join("volume")).expect("it is part of the sources");
    assert_eq!(VolumeRecord::decode(&golden), Ok(record()));
    let golden = std::fs::read(folder.join("pins")).expect("it is part of the sources");
    assert_eq!(Pins::decode(&golden), Ok(pins()));
}

#[test]
fn every_changed_byte_and_every_lost_one_is_found() {
    for (name, bytes, read) in kinds() {
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 0x41;
            read(&changed).expect_err("a changed byte is found");
            assert!(read(&bytes[..index]).is_err(), "{name} of {index} bytes");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(read(&longer).is_err(), "{name} and a byte");
        read(&[]).expect_err("nothing is no object");
    }
}

#[test]
fn what_has_a_right_checksum_and_makes_no_sense_is_refused_or_read_and_stops_nothing() {
    let mut refused = 0;
    for (_, bytes, read) in kinds() {
        let end = bytes.len() - 4;
        for index in 8..end {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[index] = value;
                let sum = checksum(&changed[..end]);
                changed[end..].copy_from_slice(&sum.to_le_bytes());
                refused += u32::from(read(&changed).is_err());
            }
        }
    }
    assert!(refused > 500, "fields are checked: {refused}");
}

#[test]
fn an_object_under_another_s_name_is_refused() {
    let other = CommitId { epoch: 3, number: 259 };
    Commit::decode(&commit(false), VOLUME, other).expect_err("another number");
    Commit::decode(&commit(false), VolumeId([0; 16]), ID).expect_err("another volume");
    Manifest::decode(&manifest(), VOLUME, other).expect_err("another number");
    let mut bytes = record().encode();
    let (place, end) = (85, bytes.len() - 4);
    assert_eq!(bytes[place], 3, "the epoch of the manifest");
    bytes[place] = 4;
    let sum = checksum(&bytes[..end]);
    bytes[end..].copy_from_slice(&sum.to_le_bytes());
    let reason = VolumeRecord::decode(&bytes).map_err(|corrupt| corrupt.reason);
    assert_eq!(reason, Err(Reason::Field("manifest")), "a manifest of a later epoch");
    let open = |volume, source: Source| data::open(data_object(), volume, &source.name());
    assert_eq!(open(VOLUME, DATA), Ok(vec![0xda; 64]));
    open(VOLUME, Source::Data { epoch: 2, number: 78 }).expect_err("another number");
    open(VOLUME, Source::Data { epoch: 3, number: 77 }).expect_err("another epoch");
    open(VolumeId([0; 16]), DATA).expect_err("another volume");
    VolumeRecord::decode(&pins().encode()).expect_err("another kind");
    Pins::decode(&record().encode()).expect_err("another kind");
}
