//! Goal: out of a store that cannot be opened any more comes all that was in it, and what may not be as it
//! was is said to be so.

mod life;

use coulter_check::salvage::State;
use coulter_check::{check, dump};
use coulter_engine::{Config, Phase};
use coulter_format::record::RecordView;
use coulter_format::{BLOCK_SIZE, Pba, StoreId};
use coulter_sim::device::Device;
use coulter_sim::hand::Hand;
use coulter_sim::random::Random;
use life::{Life, Outcome, damage, newest_superblock, outcome};

/// Whether the engine opens it.
fn opens(device: &Device, config: Config) -> bool {
    Hand::open(device.clone(), config).engine.phase() == Phase::Running
}

#[test]
fn out_of_a_sound_store_comes_all_of_it() {
    for life in Life::all(0..8) {
        let (device, expected) = life.live();
        let outcome = outcome(&device, &expected, 1 << 20);
        assert!(outcome.salvage.is_whole(), "{life:?} {outcome:?}");
        assert_eq!(outcome.silent, 0, "{life:?}");
        let mapped = check(&mut device.blocks(), &mut coulter_check::Options::default());
        assert_eq!(outcome.salvage.whole_blocks, mapped.counters.mapped_blocks);
    }
}

/// Every structure that opening needs, one after the other, with all second copies. Data are intact in all of
/// these.
#[test]
fn whatever_metadata_is_damaged_all_that_was_written_last_comes_out() {
    let (mut not_opened, mut found) = (0, 0);
    for life in Life::all(0..12) {
        let (device, expected) = life.live();
        let dumped = dump::checkpoint(&mut device.blocks()).value.expect("it is sound");
        let newest = newest_superblock(&device);
        let body = vec![newest.checkpoint.pba.0, newest.checkpoint.copy.0];
        let runs: Vec<u32> =
            dumped.runs.iter().flat_map(|run| run.blocks.iter().map(|place| place.block)).collect();
        let tables: Vec<u32> = dumped.table.iter().map(|place| place.block).collect();
        let roots: Vec<u32> = dumped.roots.iter().map(|root| root.place.block).collect();
        let mut cases = vec![body, vec![newest.location().0]];
        cases.extend(runs.iter().map(|block| vec![*block]));
        cases.extend([runs, tables, roots].into_iter().filter(|blocks| !blocks.is_empty()));
        let copies: Vec<u32> = dumped.second_copies.iter().map(|copy| copy.block).collect();
        for places in cases {
            let device = damage(&device, &[places.clone(), copies.clone()].concat());
            not_opened += u32::from(!opens(&device, life.config));
            for events_max in [1 << 20, 3000] {
                let outcome = outcome(&device, &expected, events_max);
                let Outcome { silent, outdated, missed, .. } = outcome;
                assert_eq!(
                    (silent, outdated, missed),
                    (0, 0, 0),
                    "{places:?} {life:?} {outcome:?}"
                );
                assert_eq!(outcome.salvage.records_missing, 0, "{places:?} {life:?} {outcome:?}");
                found += outcome.salvage.found_blocks;
            }
        }
    }
    assert!(not_opened > 40, "{not_opened}");
    assert!(found > 1000, "{found}");
}

/// Whose blocks they were is not known any more. How many that may be is.
#[test]
fn a_damaged_header_that_was_referred_to_leaves_no_more_blocks_in_doubt_than_it_had() {
    let mut cases = 0;
    for life in Life::all(0..12).filter(|life| life.config.reference_blocks == 8) {
        let (device, expected) = life.live();
        let dumped = dump::checkpoint(&mut device.blocks()).value.expect("it is sound");
        for reference in dumped.references.iter().step_by(3) {
            let pba = Pba(reference.header.block);
            let mut blocks = [[0; BLOCK_SIZE]];
            device.read(pba, &mut blocks);
            let view = RecordView::decode(&blocks[0], &StoreId { uuid: [6; 16], salt: 1 }, pba);
            let payload = u64::from(view.expect("it is intact").header().payload_size);
            let places: Vec<u32> =
                [Some(pba.0), reference.parity_block].into_iter().flatten().collect();
            let device = damage(&device, &places);
            assert!(!opens(&device, life.config));
            let Outcome { silent, outdated, salvage, .. } = outcome(&device, &expected, 1 << 20);
            assert!(salvage.stale_max >= payload, "{salvage:?}");
            assert!(silent + outdated <= payload, "{silent} {outdated} {life:?} {salvage:?}");
            cases += 1;
        }
    }
    assert!(cases > 20, "{cases}");
}

/// Neither the map nor anything else that leads to it: only records, and leaf pages among them.
#[test]
fn without_a_checkpoint_the_log_tells_where_everything_lies() {
    for life in Life::all(0..24) {
        let (device, expected) = life.live();
        let newest = newest_superblock(&device);
        let blocks = newest.checkpoint.size.div_ceil(BLOCK_SIZE as u32);
        let copies = [newest.checkpoint.pba.0, newest.checkpoint.copy.0];
        let body = copies.into_iter().flat_map(|first| first..first + blocks);
        let dumped = dump::checkpoint(&mut device.blocks()).value.expect("it is sound");
        let roots = dumped.roots.iter().map(|root| root.place.block);
        let runs = dumped.runs.iter().flat_map(|run| run.blocks.iter().map(|place| place.block));
        let copies = dumped.second_copies.iter().map(|copy| copy.block);
        let all: Vec<u32> = body.chain(roots).chain(runs).chain(copies).collect();
        let outcome = outcome(&damage(&device, &all), &expected, 1 << 20);
        let Outcome { silent, outdated, missed, .. } = outcome;
        assert_eq!((silent, outdated, missed), (0, 0, 0), "{life:?} {outcome:?}");
    }
}

/// A record that was durable is gone, and others that were durable come after it.
#[test]
fn what_was_durable_behind_a_missing_record_comes_out() {
    let mut cases = 0;
    for life in Life::all(0..20).filter(|life| !life.closed) {
        let (device, expected) = life.live();
        let newest = newest_superblock(&device);
        let store = newest.store;
        let after: Vec<Pba> = device
            .written()
            .filter(|pba| {
                let mut blocks = [[0; BLOCK_SIZE]];
                device.read(*pba, &mut blocks);
                let view = RecordView::decode(&blocks[0], &store, *pba);
                view.is_ok_and(|view| {
                    let header = view.header();
                    header.epoch == newest.epoch && header.sequence > newest.checkpoint.sequence + 1
                })
            })
            .collect();
        for pba in after.iter().step_by(1 + after.len() / 6) {
            let mut blocks = [[0; BLOCK_SIZE]];
            device.read(*pba, &mut blocks);
            let view = RecordView::decode(&blocks[0], &store, *pba).expect("it is intact");
            let entries: u64 = view.entries().map(|entry| u64::from(entry.count)).sum();
            // With its payload whole it would be rebuilt from what the next header tells of it.
            let header = view.header();
            let is_in_a_row = header.scattered.is_none() && header.payload_size > 0;
            let payload = is_in_a_row.then_some(pba.0 + 1);
            let places: Vec<u32> = [pba.0].into_iter().chain(payload).collect();
            let device = damage(&device, &places);
            if opens(&device, life.config) {
                // Of the last ones nothing tells that they were durable.
                continue;
            }
            let Outcome { silent, outdated, resurrected, salvage, .. } =
                outcome(&device, &expected, 1 << 20);
            assert!(silent + outdated <= entries, "{silent} {outdated} {life:?} {salvage:?}");
            assert!(resurrected <= 2000, "{resurrected}");
            cases += 1;
        }
    }
    assert!(cases > 10, "{cases}");
}

/// Blocks of data that are gone are said to be, and no other is.
#[test]
fn data_that_are_damaged_are_lost_unless_there_is_another_copy() {
    let (mut lost, mut copied) = (0, 0);
    // Of one that was killed, a damaged block may be taken for one that was never written whole.
    for life in Life::all(0..12).filter(|life| life.closed) {
        let (device, expected) = life.live();
        let range = dump::MapRange::ALL;
        let mut places = Vec::new();
        dump::map(&mut device.blocks(), range, |row: &dump::MapRow| {
            let blocks = 0..row.blocks;
            places.extend(blocks.map(|at| (row.host_block + u64::from(at), row.block + at)));
            std::ops::ControlFlow::Continue(())
        });
        let mut random = Random::new(life.seed);
        let chosen: Vec<_> =
            (0..40).map(|_| places[random.below(places.len() as u64) as usize]).collect();
        let blocks: Vec<u32> = chosen.iter().map(|(_, block)| *block).collect();
        let outcome = outcome(&damage(&device, &blocks), &expected, 1 << 20);
        assert_eq!((outcome.silent, outcome.outdated), (0, 0), "{life:?} {outcome:?}");
        for range in &outcome.salvage.ranges {
            assert_eq!(range.state, State::Lost);
            let hosts = range.lba..range.lba + range.blocks;
            for lba in hosts {
                assert!(chosen.iter().any(|(host, _)| *host == lba), "host block {lba}");
            }
        }
        lost += outcome.salvage.lost_blocks;
        let mut hosts: Vec<_> = chosen.iter().map(|(host, _)| *host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        copied += hosts.len() as u64 - outcome.salvage.lost_blocks;
    }
    assert!(lost > 50 && copied > 0, "{lost} {copied}");
}
