//! The parts of the log's room, compared with a walk over the device: every host block is read to learn
//! where it lies, every other block is classified by what is stored there.

use super::room::Looks;
use super::*;
use coulter_engine::occupancy::Use;
use coulter_format::Pba;
use coulter_format::record::RecordView;
use std::collections::HashSet;

const SEGMENT_BLOCKS: u32 = 256;

/// A store that was overwritten for a while, with nothing under way.
fn overwritten(options: &Options) -> Bench<'_> {
    let mut bench = Bench::new(options).expect("such a store");
    for pass in 0..4 {
        bench.pass("overwriting", pass, 4).expect("it works");
    }
    let rig = &mut bench.store.rig;
    while rig.engine.activity() > 0 || rig.engine.host_blocks_on_their_way() > 0 {
        rig.turn().expect("it works");
    }
    bench
}

/// What the walk found.
#[derive(Debug, Default)]
struct Walk {
    empty: u64,
    metadata: u64,
    open: u64,
    /// In segments of host data: what is stored there, so no host data, and how much of that is headers.
    stored: u64,
    headers: u64,
    /// And neither current nor stored.
    dead: u64,
    /// The last blocks of segments may be too little for a record, and never have been written.
    perhaps_unwritten: u64,
}

fn walk(bench: &Bench, current: &HashSet<Pba>) -> Walk {
    let engine = &bench.store.rig.engine;
    let store = engine.superblock().store;
    let mut walk = Walk::default();
    for segment in engine.occupancy() {
        let blocks = (0..SEGMENT_BLOCKS).map(|offset| segment.start.plus(offset));
        let (written, unwritten) =
            (SEGMENT_BLOCKS - segment.unwritten, u64::from(segment.unwritten));
        if segment.used_for != Use::HostData {
            assert!(!blocks.clone().any(|pba| current.contains(&pba)), "{segment:?}");
            match segment.used_for {
                Use::Empty => walk.empty += u64::from(SEGMENT_BLOCKS),
                _ => walk.metadata += u64::from(written),
            }
        } else {
            for (offset, pba) in (0..written).zip(blocks) {
                let stored = bench.store.rig.device.stored(pba);
                let is_dead = stored.is_none() && !current.contains(&pba);
                let is_header = stored
                    .as_ref()
                    .is_some_and(|block| RecordView::decode(block, &store, pba).is_ok());
                walk.stored += u64::from(stored.is_some());
                walk.headers += u64::from(is_header);
                walk.dead += u64::from(is_dead);
                walk.perhaps_unwritten += u64::from(is_dead && offset + 1 == SEGMENT_BLOCKS);
            }
        }
        walk.open += unwritten;
    }
    walk
}

/// Where the host blocks lie. While they are read the cleaner may end what it was about.
fn places(bench: &mut Bench) -> HashSet<Pba> {
    let volume = bench.store.blocks;
    for _ in 0..8 {
        let before = bench.now().written.applied_sequence;
        let places = (0..volume).map(|lba| bench.store.rig.place_of(lba).expect("it is read"));
        let places = places.collect();
        if bench.now().written.applied_sequence == before {
            return places;
        }
    }
    panic!("the cleaner does not come to rest");
}

#[test]
fn the_parts_are_what_a_walk_over_the_device_finds() {
    for reclaim in [Reclaim::CopyOut, Reclaim::HoleFill, Reclaim::Threaded] {
        for workload in [Pattern::Uniform, Pattern::Zipf { theta: 0.99 }] {
            let shape = Shape {
                blocks: 20_000,
                segment_blocks: Some(SEGMENT_BLOCKS),
                spare: 0.3,
                reserve: Reserve::Segments(9),
                map_memory: None,
                queue_depth: 256,
            };
            // With one stream more or less at times, segments would be closed before they are full.
            let placement = Placement::Apart;
            let config = Config { reclaim, placement, ..Config::default() };
            let options = Options { workload, shape, config, ..Options::default() };
            let mut bench = overwritten(&options);
            let volume = bench.store.blocks;
            let current = places(&mut bench);
            let hole_blocks = bench.now().written.hole_blocks;
            assert_eq!(hole_blocks > 0, reclaim != Reclaim::CopyOut, "{reclaim}");
            assert_eq!(current.len() as u64, volume, "no two host blocks lie at one place");

            let (engine, device) = (&bench.store.rig.engine, &bench.store.rig.device);
            let host_blocks = device.host_blocks.as_ref().expect("they are noted");
            assert!(current.iter().all(|pba| host_blocks.contains(*pba)), "{reclaim}");
            let mut looks = Looks::default();
            looks.look(engine, host_blocks, volume);
            let walk = walk(&bench, &current);
            let told = format!("{reclaim}, {workload}: {looks:?} against {walk:?}");
            assert_eq!(looks.empty, walk.empty, "{told}");
            assert_eq!(looks.metadata, walk.metadata, "{told}");
            assert_eq!(looks.open, walk.open, "{told}");
            let dead = looks.garbage + looks.moved;
            assert!(dead <= walk.dead, "{told}");
            assert!(dead + walk.perhaps_unwritten >= walk.dead, "{told}");
            let unwritten = walk.dead - dead;
            assert_eq!(looks.headers, walk.stored + unwritten, "{told}");
            // Which is not so little that it proves nothing.
            assert!(dead > volume / 10, "{told}");
            assert!(walk.headers > volume / 500, "{told}");
            assert!(walk.perhaps_unwritten < dead / 20, "{told}");
        }
    }
}
