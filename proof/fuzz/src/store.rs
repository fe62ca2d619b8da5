//! A small store that the engine has written: models of its structures, and the store itself with
//! damage.

use crate::input::Input;
use coulter_check::BlockFn;
use coulter_engine::Config;
use coulter_engine::create::{CreateOptions, Sparse};
use coulter_format::checkpoint::BodyView;
use coulter_format::record::RecordView;
use coulter_format::superblock::Superblock;
use coulter_format::{BLOCK_SIZE, Block, Lba, Pba, StoreId};
use coulter_sim::device::Device;
use coulter_sim::hand::{Hand, small, store, store_like};
use coulter_workload::Random;
use std::sync::OnceLock;

const SEGMENT_COUNT: u64 = 16;
const JOURNAL_SIZE: u32 = 1024;
const RUN_COUNT_LIMIT: u32 = 8;
/// Changes to a store at most.
const CHANGE_COUNT_MAX: usize = 12;

/// An empty store.
pub(crate) fn empty() -> Device {
    store(SEGMENT_COUNT, JOURNAL_SIZE, None, None, RUN_COUNT_LIMIT)
}

/// The same of a store that knows the page of the flash below: four blocks.
pub(crate) fn on_flash() -> Device {
    store_like(&CreateOptions {
        // One for each superblock.
        device_size: 256 * (SEGMENT_COUNT + 3),
        volume_size: None,
        sparse: None,
        segment_blocks: 256,
        page_blocks: Some(4),
        spare_percent: 20,
        store: StoreId { uuid: [6; 16], salt: 1 },
        label: [0; 64],
        map_size: None,
        journal_size: Some(JOURNAL_SIZE),
        run_count_limit: Some(RUN_COUNT_LIMIT),
    })
}

/// The same of a sparse store of which the roots are in a list.
pub(crate) fn with_root_list() -> Device {
    store_like(&CreateOptions {
        device_size: 256 * (SEGMENT_COUNT + 1),
        volume_size: Some(1300),
        sparse: Some(Sparse { address_limit: 1300, root_limit: Some(300), root_lists: true }),
        segment_blocks: 256,
        page_blocks: None,
        spare_percent: 20,
        store: StoreId { uuid: [6; 16], salt: 1 },
        label: [0; 64],
        map_size: None,
        journal_size: Some(JOURNAL_SIZE),
        run_count_limit: Some(RUN_COUNT_LIMIT),
    })
}

thread_local! {
    static USED: Device = make_used();
}

/// One that was written to, cleaned, and lost its power. Clones share what they do not change.
fn used() -> Device {
    USED.with(Device::clone)
}

fn make_used() -> Device {
    used_with(small())
}

fn used_with(config: Config) -> Device {
    let mut hand = Hand::open(empty(), config);
    write_over(&mut hand);
    hand.device.flush_all();
    hand.device
}

/// The body of a checkpoint that refers to headers, with their parity.
pub(crate) fn body_with_references() -> Vec<u8> {
    let models = Models::of(&used_with(Config { reference_blocks: 1, ..small() }));
    let view = BodyView::decode(&models.body).expect("the engine wrote it");
    assert!(view.counts().references > 0 && view.counts().parities > 0, "{:?}", view.counts());
    models.body
}

/// Writes three times as many blocks as there are.
pub(crate) fn write_over(hand: &mut Hand) {
    let mut random = Random::new(1);
    let size = hand.engine.geometry().volume_size;
    for number in 0..3 * size {
        assert!(hand.write(random.below(size), 1, number as u8), "there is always room");
    }
}

/// One of each structure, as the engine wrote it.
pub(crate) struct Models {
    pub(crate) superblock: Block,
    pub(crate) record_header: Block,
    /// The body of the newest checkpoint.
    pub(crate) body: Vec<u8>,
    /// Zeros if there is no run.
    pub(crate) run_block: Block,
    newest: Superblock,
}

/// The models. They are made once.
pub(crate) fn models() -> &'static Models {
    static MODELS: OnceLock<Models> = OnceLock::new();
    MODELS.get_or_init(|| Models::of(&used()))
}

impl Models {
    fn of(device: &Device) -> Models {
        let block = |pba: Pba| {
            let mut block = [[0; BLOCK_SIZE]];
            device.read(pba, &mut block);
            block[0]
        };
        let superblock = block(Pba(0));
        let first = Superblock::decode(&superblock).expect("the engine wrote it");
        let second = Superblock::decode(&block(first.geometry.second_superblock));
        let copies = second.into_iter().chain([first]);
        let newest = copies.max_by_key(|copy| copy.generation).expect("one is there");

        let location = newest.checkpoint;
        let count = location.size.div_ceil(BLOCK_SIZE as u32);
        let blocks = (0..count).map(|offset| block(location.pba.plus(offset)));
        let mut body: Vec<u8> = blocks.flatten().collect();
        body.truncate(location.size as usize);
        let view = BodyView::decode(&body).expect("the engine wrote it");
        let mut listed = Vec::new();
        for (_, run) in view.runs() {
            listed.extend(run.iter());
        }
        let run_block = listed.first().map_or([0; BLOCK_SIZE], |pointer| block(pointer.pba));

        let geometry = newest.geometry;
        let start = |segment| geometry.first_segment.plus(segment * geometry.segment_blocks);
        let is_header = |pba: &Pba| RecordView::decode(&block(*pba), &newest.store, *pba).is_ok();
        let header = (0..geometry.segment_count).map(start).find(is_header);
        let record_header = block(header.expect("it was written to"));
        Models { superblock, record_header, body, run_block, newest }
    }
}

/// Changes bytes of the used store, and has it checked, opened and used. Errors are what is
/// expected of either; only a panic is a fault.
pub(crate) fn damaged(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut device = used();
    let newest = models().newest;
    let geometry = newest.geometry;
    for _ in 0..CHANGE_COUNT_MAX {
        if input.is_empty() {
            break;
        }
        let pba = place(&mut input, device.size());
        let mut changed = [[0; BLOCK_SIZE]];
        device.read(pba, &mut changed);
        let at = input.below(BLOCK_SIZE as u64) as usize;
        changed[0][at] ^= input.byte();
        if input.byte().is_multiple_of(4) {
            let salt = if pba < geometry.first_segment { 0 } else { newest.store.salt };
            crate::decoders::seal(&mut changed[0], salt);
        }
        device.write(pba, &changed);
    }
    device.flush_all();
    let mut blocks = BlockFn {
        size_blocks: device.size(),
        read: |pba: Pba, block: &mut Block| {
            let mut read = [[0; BLOCK_SIZE]];
            device.read(pba, &mut read);
            *block = read[0];
            Ok(())
        },
    };
    let mut options = coulter_check::Options { data: true, ..Default::default() };
    let _ = coulter_check::check(&mut blocks, &mut options);
    let mut salvage = coulter_check::salvage::Options { events_max: 4096, ..Default::default() };
    let _ = coulter_check::salvage::salvage(&mut blocks, &mut Taken::default(), &mut salvage);
    let mut hand = Hand::open(device, small());
    for lba in (0..geometry.volume_size).step_by(97) {
        let _ = hand.read(lba);
    }
    for lba in (0..geometry.volume_size).step_by(61) {
        let _ = hand.write(lba, 1, 1);
    }
    assert!(Lba(geometry.volume_size) > Lba(0), "a volume has blocks");
}

/// What was taken out: each block once.
#[derive(Default)]
pub(crate) struct Taken(std::collections::BTreeSet<u64>);

impl coulter_check::salvage::Sink for Taken {
    fn block(&mut self, lba: Lba, _content: &Block) -> std::io::Result<()> {
        assert!(self.0.insert(lba.0), "host block {} was taken out twice", lba.0);
        Ok(())
    }
}

/// A block: more often than not one of the superblocks, the checkpoint, or a segment's first.
fn place(input: &mut Input<'_>, size: u64) -> Pba {
    let superblock = models().newest;
    let geometry = superblock.geometry;
    let location = superblock.checkpoint;
    match input.byte() % 6 {
        0 => Pba(0),
        1 => geometry.second_superblock,
        2 => {
            let count = u64::from(location.size.div_ceil(BLOCK_SIZE as u32));
            location.pba.plus(input.below(count) as u32)
        }
        3 => Pba(location.pba.0 - 1),
        4 => {
            let segment = input.below(u64::from(geometry.segment_count)) as u32;
            geometry.first_segment.plus(segment * geometry.segment_blocks)
        }
        _ => Pba(input.below(size) as u32),
    }
}
