//! The objects of a copy: what stands in a bucket may have been written by anyone who may write there.
//!
//! The first byte says whether first bytes and checksum are made right, as a hostile writer would: else nearly every
//! input ends at the first comparison.

use crate::input::Input;
use coulter_object::bucket::{Bucket, MemoryBucket};
use coulter_object::history::{self, rollback, snapshot, takeover, verify};
use coulter_object::layout::{Commit, Corrupt, Manifest, Pins, VolumeId, VolumeRecord, checksum};
use coulter_object::names::{CommitId, ManifestId, PINS, VOLUME};
use coulter_object::publish::Briefly;

/// What `product/object/tests/layout.rs` made the golden objects of.
const OF: VolumeId = VolumeId([0x11; 16]);
const ID: CommitId = CommitId { epoch: 3, number: 258 };

const GOLDEN_VOLUME: &[u8] = include_bytes!("../../../testdata/objects/volume");
const GOLDEN_PINS: &[u8] = include_bytes!("../../../testdata/objects/pins");
const GOLDEN_COMMIT: &[u8] = include_bytes!("../../../testdata/objects/commit");
const GOLDEN_FENCE: &[u8] = include_bytes!("../../../testdata/objects/fence");
const GOLDEN_MANIFEST: &[u8] = include_bytes!("../../../testdata/objects/manifest");

/// Bytes at the beginning of an object that are the same in each of its kind: magic, version.
const SAME: usize = 12;
/// Bytes in which features, volume and nonce stand behind these.
const HEAD: usize = 48;

/// The golden objects of a target, each as it is, and to be made right.
pub(crate) fn seeds(target: &str) -> Option<Vec<Vec<u8>>> {
    let golden: &[&[u8]] = match target {
        "object_volume" => &[GOLDEN_VOLUME],
        "object_pins" => &[GOLDEN_PINS],
        "object_commit" => &[GOLDEN_COMMIT, GOLDEN_FENCE],
        "object_manifest" => &[GOLDEN_MANIFEST],
        "object_copy" => return Some(copies()),
        _ => return None,
    };
    let marked = |bytes: &&[u8]| [0, 1].map(|first| [&[first], *bytes].concat());
    Some(golden.iter().flat_map(marked).collect())
}

/// An object from an input; if its first byte says so, with what `golden` begins with and a checksum that is right.
fn hostile(bytes: &[u8], golden: &[u8]) -> Vec<u8> {
    let mut input = Input::new(bytes);
    let is_sealed = input.byte().is_multiple_of(2);
    let mut object = input.rest().to_vec();
    if is_sealed && object.len() >= SAME + 4 {
        object[..SAME].copy_from_slice(&golden[..SAME]);
        seal(&mut object);
    }
    object
}

fn seal(object: &mut [u8]) {
    let end = object.len() - 4;
    let sum = checksum(&object[..end]);
    object[end..].copy_from_slice(&sum.to_le_bytes());
}

/// What was accepted is written, and read as it is.
fn comes_back<T: PartialEq + std::fmt::Debug>(
    first: &T,
    encoded: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, Corrupt>,
) {
    assert_eq!(decode(encoded).as_ref(), Ok(first));
}

pub(crate) fn volume(bytes: &[u8]) {
    let object = hostile(bytes, GOLDEN_VOLUME);
    let Ok(record) = VolumeRecord::decode(&object) else { return };
    comes_back(&record, &record.encode(), VolumeRecord::decode);
}

pub(crate) fn pins(bytes: &[u8]) {
    let object = hostile(bytes, GOLDEN_PINS);
    let Ok(pins) = Pins::decode(&object) else { return };
    comes_back(&pins, &pins.encode(), Pins::decode);
}

pub(crate) fn commit(bytes: &[u8]) {
    let object = hostile(bytes, GOLDEN_COMMIT);
    let Ok(commit) = Commit::decode(&object, OF, ID) else { return };
    let mut pieces = coulter_object::pieces::PieceMap::new();
    for entry in &commit.entries {
        assert!(entry.range.start < entry.range.end, "a range is not empty");
        pieces.apply(entry, &mut Vec::new());
    }
    pieces.assert_invariants();
}

pub(crate) fn manifest(bytes: &[u8]) {
    let object = hostile(bytes, GOLDEN_MANIFEST);
    let Ok(manifest) = Manifest::decode(&object, OF, ID) else { return };
    manifest.pieces.assert_invariants();
    comes_back(&manifest, &manifest.encode(), |bytes| Manifest::decode(bytes, OF, ID));
}

/// A whole copy of hostile objects, each where the others say it is: read, verified, taken over, rolled back.
///
/// The input is a list: kind, two bytes of length, the object behind its volume and nonce.
pub(crate) fn copy(bytes: &[u8]) {
    let bucket = MemoryBucket::new();
    let mut input = Input::new(bytes);
    let mut names = Names::default();
    for _ in 0..16 {
        if input.is_empty() {
            break;
        }
        let kind = input.byte() % 4;
        let length = usize::from(input.byte()) + (usize::from(input.byte()) << 8);
        let fields: Vec<u8> = (0..length.min(1024)).map(|_| input.byte()).collect();
        let golden =
            [GOLDEN_VOLUME, GOLDEN_PINS, GOLDEN_MANIFEST, GOLDEN_COMMIT][usize::from(kind)];
        let mut object = [&golden[..HEAD], &fields, &[0; 4]].concat();
        seal(&mut object);
        let name = names.of(kind, &object);
        let _ = bucket.create(&name, &object);
    }
    let Ok((record, history)) = history::newest(&bucket, &Briefly) else { return };
    history.pieces.assert_invariants();
    let _ = snapshot::pins(&bucket, &record, &Briefly);
    let _ = verify::verify(&bucket, 1, &Briefly, &|_, _| {});
    let _ = snapshot::create(&bucket, "new", 0, &Briefly);
    let _ = rollback::rollback(&bucket, "monday", "fuzzer", 0, &|_| true, &Briefly);
    let _ = takeover::claim(&bucket, "fuzzer", 0, &Briefly);
    let _ = takeover::claim_anyway(&bucket, "fuzzer", 0, &Briefly);
}

/// Where objects are looked for, by those before them.
#[derive(Default)]
struct Names {
    manifest: Option<ManifestId>,
    last: Option<CommitId>,
}

impl Names {
    /// The name under which an object is read, if it is.
    fn of(&mut self, kind: u8, object: &[u8]) -> String {
        match kind {
            0 => {
                if let Ok(record) = VolumeRecord::decode(object) {
                    self.manifest = record.manifest;
                    self.last = record.manifest.map(|manifest| manifest.commit);
                }
                VOLUME.to_owned()
            }
            1 => PINS.to_owned(),
            2 => self.manifest.map_or_else(|| "m".to_owned(), |manifest| manifest.name()),
            _ => {
                let word = |at: usize| {
                    let bytes = object.get(at..at + 8).and_then(|bytes| bytes.first_chunk());
                    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
                };
                CommitId { epoch: word(HEAD), number: word(HEAD + 8) }.name()
            }
        }
    }
}

/// Copies to begin with: one of the golden objects, and one of a volume without a manifest.
fn copies() -> Vec<Vec<u8>> {
    let item = |kind: u8, object: &[u8]| {
        let fields = &object[HEAD..object.len() - 4];
        let length = (fields.len() as u16).to_le_bytes();
        [&[kind], &length[..], fields].concat()
    };
    let golden = [
        item(0, GOLDEN_VOLUME),
        item(1, GOLDEN_PINS),
        item(2, GOLDEN_MANIFEST),
        item(3, GOLDEN_COMMIT),
    ];
    let mut record = VolumeRecord::decode(GOLDEN_VOLUME).expect("it is golden");
    record.manifest = None;
    let fence = item(3, GOLDEN_FENCE);
    vec![golden.concat(), [item(0, &record.encode()), item(1, GOLDEN_PINS), fence].concat()]
}
