//! Goal: whichever copy of the superblock is lost, the store is what it was.

use coulter_check::salvage::{self, SalvageError};
use coulter_engine::grow::Growth;
use coulter_engine::{Command, Config, OpenError, Phase, Request};
use coulter_format::checksum::crc32c;
use coulter_format::record::RecordView;
use coulter_format::superblock::Superblock;
use coulter_format::{BLOCK_SIZE, Block, Pba};
use coulter_sim::device::Device;
use coulter_sim::hand::{Hand, small, store};
use coulter_sim::random::Random;

/// Both copies of the superblock lead to the same checkpoint before anything is used again that only an
/// older one needs: whichever is damaged, or cannot be read, nothing is lost. One that could not be
/// read once led back to a state whose blocks were trimmed, and a checkpoint of that state was
/// written over the newest.
#[test]
pub(crate) fn either_copy_of_the_superblock_leads_to_all_that_was_acknowledged() {
    let config = Config { trim: true, ..small() };
    for shuts_down in [false, true] {
        let mut hand = Hand::open(store(24, 1024, None, None, 8), config);
        let mut random = Random::new(5);
        let size = hand.engine.geometry().volume_size;
        let mut expected = vec![0; size as usize];
        for moment in 0..40u8 {
            for _ in 0..300 {
                let lba = random.below(size - 8);
                assert!(hand.write(lba, 8, 1 + moment), "{:?}", hand.engine.statistics());
                expected[lba as usize..][..8].fill(1 + moment);
            }
            if shuts_down {
                hand.submit(Request::Shutdown).expect("it is always taken");
                hand.run();
            }
            for (copy, is_readable) in
                [(0, false), (0, true), (128, false), (128, true)].map(|(pba, is)| (Pba(pba), is))
            {
                let mut device = hand.device.clone();
                device.corrupt(copy, 40);
                let mut again = Hand::begin(device, config);
                again.poll();
                if !is_readable {
                    let reads_it = |command: &Command| matches!(command, Command::Read { pba, .. } if *pba == copy);
                    let found = again.out.iter().position(|(io, _)| reads_it(&io.command));
                    again.complete(found.expect("both copies are read"), Err(5));
                }
                again.run();
                assert_eq!(again.engine.phase(), Phase::Running, "without {copy:?}");
                for _ in 0..200 {
                    let lba = random.below(size);
                    let found = again.read(lba);
                    assert_eq!(found, Some(Ok(expected[lba as usize])), "{lba} without {copy:?}");
                }
            }
            hand = Hand::open(hand.device, config);
        }
    }
}

/// Of an opening that is cut off nothing may be found again but what a flush has covered: the announcement
/// of its epoch. The next one must not begin that epoch.
#[test]
fn no_epoch_is_begun_twice_be_its_records_met_or_not() {
    let mut device = Hand::open(store(28, 1024, None, None, 4), small()).device;
    device.flush_all();
    let mut highest = 0;
    for _ in 0..5 {
        let mut hand = Hand::begin(device.clone(), small());
        let mut kept = device.clone();
        // Up to the first record.
        let epoch = loop {
            hand.poll();
            let (io, data) = hand.out.first().expect("opening goes on");
            match io.command {
                Command::Write { pba, .. } if pba.0 >= 256 => {
                    let store = hand.engine.superblock().store;
                    let view = RecordView::decode(&data[0], &store, pba).expect("a record");
                    break view.header().epoch;
                }
                // What is durable before that.
                Command::Flush => {
                    kept = hand.device.clone();
                    kept.flush_all();
                }
                _ => {}
            }
            hand.complete(0, Ok(()));
        };
        assert!(epoch > highest, "epoch {epoch} after {highest}");
        highest = epoch;
        device = kept;
    }
    let hand = Hand::open(device, small());
    assert_eq!(hand.engine.superblock().epoch, highest + 1);
}

/// A device that lost the writes of both copies shows an older checkpoint, of which much may be used again.
/// Records that were written since tell of it.
#[test]
fn copies_of_the_superblock_older_than_the_records_are_refused() {
    let mut hand = Hand::open(store(24, 1024, None, None, 8), small());
    assert!(hand.write(3, 1, 1));
    let copies = [Pba(0), Pba(128)];
    let old = copies.map(|copy| {
        let mut block = [[0; BLOCK_SIZE]];
        hand.device.read(copy, &mut block);
        block
    });
    hand.submit(Request::Shutdown).expect("it is always taken");
    hand.run();
    let mut hand = Hand::open(hand.device, small());
    assert!(hand.write(3, 1, 2));
    assert_eq!(hand.flush(), Some(Ok(())));
    let mut device = hand.device;
    for (copy, block) in copies.iter().zip(&old) {
        device.write(*copy, block);
    }
    device.flush_all();
    assert!(device.check().is_err(), "the checker misses it");
    let phase = Hand::open(device, small()).engine.phase();
    let is_refused = matches!(phase, Phase::Failed(OpenError::SuperblockLost { .. }));
    assert!(is_refused, "an older state would be taken for the newest: {phase:?}");
}

/// Whatever tears the copy that is being written, the newest one that is whole is the other.
#[test]
fn the_newest_copy_of_the_superblock_is_never_overwritten() {
    let mut hand = Hand::open(store(24, 1024, None, None, 8), small());
    assert!(hand.write(3, 1, 1));
    hand.submit(Request::Shutdown).expect("it is always taken");
    hand.run();
    let mut newest = hand.engine.superblock().location();
    let mut hand = Hand::begin(hand.device, small());
    let mut count = 0;
    for is_closing in [false, true] {
        if is_closing {
            assert!(hand.write(4, 1, 1));
            hand.submit(Request::Shutdown).expect("it is always taken");
        }
        hand.poll();
        while let Some((io, _)) = hand.out.first() {
            match io.command {
                // The third copy, at 255, is written beside the second; between them lie copies of bodies.
                Command::Write { pba, .. } if [0, 128].contains(&pba.0) => {
                    assert_ne!(pba, newest, "copy {count}");
                    (newest, count) = (pba, count + 1);
                }
                _ => {}
            }
            hand.complete(0, Ok(()));
            hand.poll();
        }
    }
    assert_eq!(count, 5, "the epoch is announced, and two checkpoints have two copies each");
}

/// A newer program has written one copy, and was killed before the other. The store is refused for the one
/// that this program does not know, whichever it is: to go on from the other would overwrite the newer.
#[test]
fn a_store_of_which_either_copy_is_of_a_newer_program_is_refused() {
    let mut hand = Hand::open(store(24, 1024, None, None, 8), small());
    assert!(hand.write(3, 1, 1));
    assert_eq!(hand.flush(), Some(Ok(())));
    for copy in [Pba(0), Pba(128)] {
        for (at, value) in [(8, 3u32), (44, 0x10)] {
            let mut device = hand.device.clone();
            let mut block = [[0; BLOCK_SIZE]];
            device.read(copy, &mut block);
            block[0][at..at + 4].copy_from_slice(&value.to_le_bytes());
            block[0][12..16].fill(0);
            let checksum = crc32c(&block[0]);
            block[0][12..16].copy_from_slice(&checksum.to_le_bytes());
            device.write(copy, &block);
            device.flush_all();
            let refused = match at {
                8 => OpenError::Version(3),
                _ => OpenError::Features(0x10),
            };
            for read_only in [false, true] {
                let config = Config { read_only, ..small() };
                let phase = Hand::open(device.clone(), config).engine.phase();
                assert_eq!(phase, Phase::Failed(refused), "{copy:?} {at}");
            }
            let mut sink = Nothing;
            let mut options = Default::default();
            let salvaged = salvage::salvage(&mut device.blocks(), &mut sink, &mut options);
            assert!(matches!(salvaged, Err(SalvageError::NoSuperblock(_))), "{copy:?} {at}");
        }
    }
}

/// The process is killed between the first copy of a shutdown's superblock and its flush, and the power goes
/// while the next opening announces its epoch in the other. A device that tears within a sector leaves
/// neither copy whole, unless a flush lies in between.
#[test]
fn at_no_time_can_both_copies_of_the_superblock_be_torn() {
    fn until_superblock(hand: &mut Hand) -> (Pba, bool) {
        let mut is_flushed = false;
        loop {
            hand.poll();
            let command = hand.out.first().expect("it goes on").0.command;
            hand.complete(0, Ok(()));
            match command {
                Command::Write { pba, .. } if [0, 128].contains(&pba.0) => {
                    return (pba, is_flushed);
                }
                Command::Flush => is_flushed = true,
                _ => {}
            }
        }
    }
    fn read(device: &Device, pba: Pba) -> Block {
        let mut block = [[0; BLOCK_SIZE]];
        device.read(pba, &mut block);
        block[0]
    }
    let mut hand = Hand::open(store(24, 1024, None, None, 8), small());
    assert!(hand.write(3, 1, 7));
    assert_eq!(hand.flush(), Some(Ok(())));
    let before = hand.device.clone();
    hand.submit(Request::Shutdown).expect("it is always taken");
    let (first, _) = until_superblock(&mut hand);
    let mut again = Hand::begin(hand.device, small());
    let (second, is_flushed) = until_superblock(&mut again);
    assert_ne!(first, second);
    let mut device = again.device.clone();
    let copies = if is_flushed { vec![second] } else { vec![first, second] };
    for copy in copies {
        let mut torn = read(&before, copy);
        torn[..48].copy_from_slice(&read(&again.device, copy)[..48]);
        device.write(copy, &[torn]);
    }
    device.flush_all();
    let mut hand = Hand::open(device, small());
    assert_eq!(hand.engine.phase(), Phase::Running);
    assert_eq!(hand.read(3), Some(Ok(7)));
}

/// Takes nothing, for nothing should come.
struct Nothing;

impl salvage::Sink for Nothing {
    fn block(&mut self, lba: salvage::Lba, _content: &salvage::Block) -> std::io::Result<()> {
        panic!("host block {} was taken out", lba.0);
    }
}

/// A host may end what it has only just opened: while the flush of what was found is out, or a write of either
/// copy. What the checkpoint no longer needs was then counted for ever.
#[test]
fn a_shutdown_may_come_at_any_moment_of_an_opening() {
    let mut hand = Hand::open(store(24, 1024, None, None, 8), small());
    for lba in 0..200 {
        assert!(hand.write(lba, 1, 7));
    }
    let before = hand.device.clone();
    let mut moments = 0;
    for waits in 0.. {
        let mut hand = Hand::begin(before.clone(), small());
        hand.poll();
        while hand.engine.phase() == Phase::Opening {
            hand.complete(0, Ok(()));
            hand.poll();
        }
        for _ in 0..waits {
            if !hand.out.is_empty() {
                hand.complete(0, Ok(()));
                hand.poll();
            }
        }
        let is_running = hand.engine.phase() == Phase::Running;
        hand.submit(Request::Shutdown).expect("it is always taken");
        hand.run();
        assert_eq!(hand.engine.phase(), Phase::Closed, "after {waits} commands");
        assert_eq!(hand.device.check(), Ok(()), "after {waits} commands");
        let mut again = Hand::open(hand.device, small());
        assert_eq!(again.read(150), Some(Ok(7)), "after {waits} commands");
        moments += 1;
        if is_running {
            break;
        }
    }
    assert!(moments > 5, "{moments} moments");
}

/// A `mkfs` may take A and B at any moment: from the first superblock on that knows of the new size, C lies where that
/// superblock says, and leads to everything.
#[test]
pub(crate) fn a_store_that_grows_has_its_third_superblock_first() {
    // Copy C moves from before the log to the device's last block, which no segment takes.
    let (before, more) = (256 * 25, 257);
    let mut hand = Hand::open(store(24, 1024, None, None, 8), small());
    assert!(hand.write(3, 1, 7));
    hand.submit(Request::Shutdown).expect("it is always taken");
    hand.run();
    let mut device = hand.device;
    device.flush_all();
    device.grow(more);
    let growth = Growth { volume_size: None, spare_percent: None };
    let mut hand = Hand::begin(device, Config { growth: Some(growth), ..small() });
    hand.poll();
    let mut grown = 0;
    while !hand.out.is_empty() {
        hand.complete(0, Ok(()));
        hand.poll();
        let mut device = hand.device.clone();
        device.flush_all();
        let firsts = [Pba(0), Pba(128)].map(|pba| {
            let mut block = [[0; BLOCK_SIZE]];
            device.read(pba, &mut block);
            Superblock::decode(&block[0]).expect("both are whole")
        });
        if firsts.iter().all(|superblock| superblock.geometry.device_size == before) {
            continue;
        }
        assert_eq!(device.check(), Ok(()));
        for pba in [Pba(0), Pba(128)] {
            device.write(pba, &[[0; BLOCK_SIZE]]);
        }
        let mut again = Hand::open(device, Config { read_only: true, ..small() });
        assert_eq!(again.engine.phase(), Phase::Running, "after {grown} commands");
        assert_eq!(again.read(3), Some(Ok(7)), "after {grown} commands");
        grown += 1;
    }
    assert_eq!(hand.engine.phase(), Phase::Running);
    assert!(grown > 3, "{grown} moments");
}
