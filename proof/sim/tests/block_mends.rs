//! Goal: a damaged block of metadata is named by the checker, and a scrub writes it anew.
//!
//! Each block of which there is a second source is zeroed in turn, of stores that lived (three ways of reclaiming; closed
//! and killed): while the store is closed, and behind the back of an engine that runs.
//! `cargo test -p coulter-sim --test block_mends -- --ignored` is the long one.

mod life;

use coulter_check::{Options, check};
use coulter_engine::Request;
use coulter_format::{BLOCK_SIZE, Pba};
use coulter_sim::device::Device;
use coulter_sim::hand::Hand;
use life::uses::{Use, aged, uses};

fn zero(device: &mut Device, pba: u32) {
    device.write(Pba(pba), &[[0; BLOCK_SIZE]]);
    device.flush_all();
}

/// What the checker says of a store that is closed in some way.
fn named(device: &Device) -> Vec<Pba> {
    let report = check(&mut device.blocks(), &mut Options::default());
    report.findings.iter().filter_map(|finding| finding.address()).collect()
}

fn mend_each(step: usize) {
    let (mut closed, mut running) = (0, 0);
    for (life, device, expected, spared) in aged() {
        let has_source = |used: Use| !matches!(used, Use::LogHeader | Use::Other);
        let metadata = |device: &Device| -> Vec<(u32, Use)> {
            uses(device).into_iter().filter(|(_, used)| has_source(*used)).collect()
        };
        for (pba, used) in metadata(&device).into_iter().step_by(step) {
            let context = format!("{used:?} {pba} of {life:?}");
            let mut damaged = device.clone();
            zero(&mut damaged, pba);
            assert!(named(&damaged).contains(&Pba(pba)), "{context}: it is named");
            let mut hand = Hand::open(damaged, life.config);
            scrub_and_close(&mut hand, &context);
            closed += 1;
        }
        // An opening writes a checkpoint: what is damaged from then on is damaged behind its back.
        let mut opened = Hand::open(device.clone(), life.config);
        opened.run();
        for (pba, used) in metadata(&opened.device).into_iter().step_by(step) {
            let context = format!("{used:?} {pba} of {life:?}, while it runs");
            let mut hand = Hand::open(device.clone(), life.config);
            hand.run();
            zero(&mut hand.device, pba);
            assert!(hand.engine.start_scrub(0), "there is memory");
            hand.run();
            let report = hand.engine.scrub();
            assert_eq!((report.metadata_damaged, report.metadata_repaired), (1, 1), "{context}");
            for (lba, value) in (0..).zip(&expected).filter(|(lba, _)| *lba != spared) {
                assert_eq!(hand.read(lba), Some(Ok(*value)), "{context}: {lba}");
            }
            scrub_and_close(&mut hand, &context);
            running += 1;
        }
    }
    println!("{closed} blocks named and mended, {running} behind the back of a running engine");
    assert!(closed >= 18 && running >= 18, "{closed}, {running}");
}

/// A scrub finds nothing that it cannot mend, and the checker nothing that counts afterwards.
fn scrub_and_close(hand: &mut Hand, context: &str) {
    assert!(hand.engine.start_scrub(0), "there is memory");
    hand.run();
    let report = hand.engine.scrub();
    assert_eq!(report.metadata_damaged, report.metadata_repaired, "{context}: {report:?}");
    assert_eq!(report.blocks_damaged, 0, "{context}: {report:?}");
    hand.submit(Request::Shutdown).expect("it is always taken");
    hand.run();
    match hand.device.check() {
        Ok(()) => {}
        // A header stays where its record is, until nothing of that counts. Only who would empty its segment needs it.
        Err(what) => {
            let is_header = context.starts_with("ReferredHeader");
            let is_harmless = what.contains("RecordMissing") || what.contains("ChainBroken");
            assert!(is_header && is_harmless, "{context}: {what}");
        }
    }
}

#[test]
fn a_damaged_block_of_metadata_is_named_and_mended() {
    mend_each(17);
}

#[test]
#[ignore = "minutes; each block"]
fn each_damaged_block_of_metadata_is_named_and_mended() {
    mend_each(1);
}
