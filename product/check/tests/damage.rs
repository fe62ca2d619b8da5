//! Damage to every structure is found, and no damage makes the check panic.
//!
//! Method: a store in which everything occurs (`Model::rich`); one block of a structure is damaged
//! in one of several ways, and the check must find fault. Every structure is checksummed with its
//! key and kept beside its address, so the rate must be 100 %. What is *not* claimed: damage to
//! blocks that nothing uses, and to the very last record, of which nothing tells that it was
//! durable. `cargo test --test damage -- --nocapture` prints the table.

mod model;

use coulter_check::dump::{self, MapRange};
use coulter_check::{Options, Report, Severity, check, salvage};
use coulter_format::{BLOCK_SIZE, Pba};
use coulter_workload::Random;
use model::rich::Class;
use model::{Image, Model};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// An index below `limit`.
fn below(random: &mut Random, limit: usize) -> usize {
    random.below(limit as u64) as usize
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Damage {
    Bit,
    Sector,
    Zeros,
    Misdirected,
    Torn,
}

impl Damage {
    const ALL: [Damage; 5] =
        [Damage::Bit, Damage::Sector, Damage::Zeros, Damage::Misdirected, Damage::Torn];
}

/// Damages one block; false if that changes nothing.
fn damage(
    image: &mut Image,
    pba: Pba,
    others: &[Pba],
    damage: Damage,
    random: &mut Random,
) -> bool {
    let before = image.block(pba.0);
    let mut block = before;
    let other = image.block(others[below(random, others.len())].0);
    match damage {
        Damage::Bit => block[below(random, BLOCK_SIZE)] ^= 1 << below(random, 8),
        Damage::Sector => {
            let start = below(random, 8) * 512;
            block[start..start + 512].iter_mut().for_each(|byte| *byte ^= 0xa5);
        }
        Damage::Zeros => block.fill(0),
        Damage::Misdirected => block = other,
        Damage::Torn => {
            let sectors = 1 + below(random, 7);
            block[sectors * 512..].copy_from_slice(&other[sectors * 512..]);
        }
    }
    image.put(pba.0, block);
    block != before
}

fn check_image(image: &Image) -> Report {
    check(&mut image.reader(), &mut Options { data: true, ..Options::default() })
}

#[test]
fn the_rich_store_is_sound_and_has_everything() {
    let model = Model::rich();
    let report = check_image(&model.image);
    let text: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert!(report.is_sound(), "{text:#?}");
    let counters = report.counters;
    assert_eq!(counters.mapped_blocks, model.map.len() as u64);
    assert!(counters.unreleased_blocks > 0);
    assert!(counters.run_updates > 0);
    assert!(report.recovery.needed);
    for class in Class::ALL {
        assert!(!model.blocks_of(class).is_empty(), "{class:?}");
    }
    assert!(model.blocks_of(Class::Run).len() > 2);
    let mut opened = model.opened.clone();
    opened.sort_unstable();
    opened.dedup();
    assert!(opened.len() < model.opened.len(), "some segments were written twice");
}

#[test]
fn damage_to_every_structure_is_found() {
    const TRIALS: usize = 60;
    let model = Model::rich();
    let mut random = Random::new(7);
    let mut table = BTreeMap::new();
    let places_of = |class: &Class| model.blocks_of(*class).into_iter().map(|(_, _, pba)| pba);
    let others: Vec<_> = Class::ALL.iter().flat_map(|class| places_of(class).take(40)).collect();
    for class in Class::ALL {
        let places: Vec<_> = places_of(&class).collect();
        for kind in Damage::ALL {
            let (mut damaged, mut found) = (0, 0);
            for trial in 0..TRIALS {
                let mut image = model.image.clone();
                let pba = places[(trial + below(&mut random, places.len())) % places.len()];
                if !damage(&mut image, pba, &others, kind, &mut random) {
                    continue;
                }
                damaged += 1;
                let report = check_image(&image);
                if report.worst() >= Some(Severity::Warning) {
                    found += 1;
                } else {
                    println!("{class:?} {kind:?} at {}: not found", pba.0);
                }
            }
            table.insert((class, kind), (damaged, found));
        }
    }
    println!("structure    damage        damaged  found");
    for ((class, kind), (damaged, found)) in &table {
        let (class, kind) = (format!("{class:?}"), format!("{kind:?}"));
        println!("{class:<12} {kind:<12} {damaged:>8} {found:>6}");
    }
    assert!(table.values().all(|(damaged, found)| damaged == found));
    let total: usize = table.values().map(|(damaged, _)| damaged).sum();
    assert!(total > TRIALS * 30, "the table is no empty promise");
}

/// The finding names the block that was damaged, or the structure that holds it.
#[test]
fn a_finding_names_the_damaged_block() {
    let model = Model::rich();
    for class in Class::ALL {
        for (_, _, pba) in model.blocks_of(class).into_iter().step_by(7) {
            let mut image = model.image.clone();
            image.damage(pba.0, 100, 0x10);
            let report = check_image(&image);
            let first = if class == Class::Body { model.body[0] } else { pba };
            // A header that replay needs is missed as a sequence.
            let named = |finding: &coulter_check::Finding| match finding.address() {
                Some(address) => address == first,
                None => class == Class::Header && finding.to_string().starts_with("record "),
            };
            let text: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
            assert!(report.findings.iter().any(named), "{class:?} at {}: {text:#?}", pba.0);
        }
    }
}

/// What was taken out: each block once.
#[derive(Default)]
struct Taken(BTreeSet<u64>);

impl salvage::Sink for Taken {
    fn block(&mut self, lba: salvage::Lba, _content: &salvage::Block) -> std::io::Result<()> {
        assert!(self.0.insert(lba.0), "host block {} was taken out twice", lba.0);
        Ok(())
    }
}

/// Whatever the bytes: no panic, an end, and a report that can be printed.
fn look_at_everything(image: &Image) {
    let mut options = Options { data: true, findings_max: 200, ..Options::default() };
    let report = check(&mut image.reader(), &mut options);
    let json = serde_json::to_string(&report).unwrap();
    assert!(json.contains("\"complete\""));
    report.findings.iter().for_each(|finding| assert!(!finding.to_string().is_empty()));
    let superblocks = dump::superblock(&mut image.reader());
    superblocks.value.iter().flatten().for_each(|copy| assert!(!copy.to_string().is_empty()));
    let checkpoint = dump::checkpoint(&mut image.reader());
    checkpoint.value.iter().for_each(|body| assert!(!body.to_string().is_empty()));
    let go_on = |text: String| match text.is_empty() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    dump::segments(&mut image.reader(), |row| go_on(row.to_string()));
    dump::records(&mut image.reader(), None, |row| go_on(row.to_string()));
    let mut options = salvage::Options { events_max: 2000, ..Default::default() };
    let mut taken = Taken::default();
    if let Ok(found) = salvage::salvage(&mut image.reader(), &mut taken, &mut options) {
        assert_eq!(taken.0.len() as u64, found.whole_blocks + found.found_blocks);
        assert!(serde_json::to_string(&found).unwrap().contains("\"lost_blocks\""));
    }
    let mut rows = 0;
    dump::map(&mut image.reader(), MapRange::ALL, |row| {
        rows += 1;
        if rows > 5000 { ControlFlow::Break(()) } else { go_on(row.to_string()) }
    });
}

fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..8)
}

thread_local! {
    static RICH: Model = Model::rich();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_damage_never_panics(
        hits in prop::collection::vec((any::<prop::sample::Index>(), 0..BLOCK_SIZE, 1u8..), 1..40)
    ) {
        RICH.with(|model| {
            let mut image = model.image.clone();
            let places: Vec<_> = image.blocks.keys().copied().collect();
            for (at, byte, change) in &hits {
                image.damage(*at.get(&places), *byte, *change);
            }
            look_at_everything(&image);
        });
    }

    /// The same with all checksums made right again: only the values are wrong.
    #[test]
    fn hostile_metadata_never_panics(
        class in 0usize..6, which in any::<prop::sample::Index>(), changes in changes(),
        wild in any::<[u8; 4]>(),
    ) {
        RICH.with(|model| {
            let mut image = model.image.clone();
            let class = Class::ALL[class];
            let (kind, key, pba) = *which.get(&model.blocks_of(class));
            let change = |bytes: &mut [u8]| {
                for (at, byte) in &changes {
                    // Every other change is a whole word, so that addresses and counts go wild.
                    let at = at.index(bytes.len());
                    match bytes.get_mut(at & !3..(at & !3) + 4) {
                        Some(word) if byte & 1 == 1 => word.copy_from_slice(&wild),
                        _ => bytes[at] ^= byte,
                    }
                }
            };
            match class {
                Class::Superblock => {
                    model.rewrite_superblock(&mut image, |block| change(&mut block[8..144]));
                }
                Class::Body => model.rewrite_body(&mut image, change),
                _ => model.rewrite(&mut image, kind, key, pba, &mut |block| change(block)),
            }
            look_at_everything(&image);
        });
    }

    #[test]
    fn hostile_headers_never_panic(which in any::<prop::sample::Index>(), changes in changes()) {
        RICH.with(|model| {
            let mut image = model.image.clone();
            let pba = *which.get(&model.records);
            model.rewrite_header(&mut image, pba, |block| {
                for (at, byte) in &changes {
                    // The fixed part and the first extents, where the meaning is.
                    block[32 + at.index(120)] ^= byte;
                }
            });
            look_at_everything(&image);
        });
    }
}

#[test]
fn devices_of_every_small_size_and_of_random_bytes_never_panic() {
    let mut random = Random::new(3);
    for size_blocks in [0, 1, 2, 127, 128, 129, 256, 257, 600] {
        let mut image = Image { size_blocks, ..Image::default() };
        look_at_everything(&image);
        for pba in 0..size_blocks as u32 {
            let mut block = [0; BLOCK_SIZE];
            block.iter_mut().for_each(|byte| *byte = below(&mut random, 256) as u8);
            image.put(pba, block);
        }
        look_at_everything(&image);
    }
}

#[test]
fn a_store_cut_short_anywhere_never_panics() {
    let model = Model::rich();
    for size_blocks in (0..model.image.size_blocks).step_by(97) {
        let mut image = model.image.clone();
        image.size_blocks = size_blocks;
        look_at_everything(&image);
        let report = check_image(&image);
        assert!(!report.is_sound(), "{size_blocks} blocks");
    }
}
