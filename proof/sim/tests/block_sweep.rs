//! Goal: no single damaged block costs more than itself.
//!
//! Each block in use of stores that lived (three ways of reclaiming; closed and killed) is zeroed in turn. The store is
//! then opened and read. The outcomes are counted by what the block was. What is called good is never wrong. The same
//! for pairs of blocks.
//! `cargo test -p coulter-sim --test block_sweep -- --ignored --nocapture` prints the table over every block.

mod life;

use coulter_engine::{Config, Degraded, Phase};
use coulter_format::record::RecordView;
use coulter_format::{BLOCK_SIZE, Pba};
use coulter_sim::device::Device;
use coulter_sim::hand::Hand;
use coulter_sim::random::Random;
use life::newest_superblock;
use life::uses::{Use, aged, block, uses};
use std::collections::BTreeMap;

/// How stores fared of which a block was zeroed.
#[derive(Clone, Copy, Debug, Default)]
struct Fared {
    blocks: u64,
    /// Opened, with every block of the volume as it was.
    whole: u64,
    /// Opened; some blocks are errors, and the largest number of these.
    with_errors: u64,
    errors_max: u64,
    /// Of these, with more errors than a leaf page has entries: much is in doubt.
    in_doubt: u64,
    refused: u64,
    /// Blocks that are not as they were, though nothing says so.
    wrong: u64,
}

/// Entries of a leaf page: so many blocks it costs at most.
const LEAF: u64 = 512;

type Table = BTreeMap<Use, Fared>;

/// What happens to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Zeroed,
    /// Each read of it fails.
    Unreadable,
}

/// Does harm to blocks, opens the store as `config` says, and reads all of it.
fn fare(
    device: &Device,
    (harm, places): (Harm, &[u32]),
    config: Config,
    expected: &[u8],
    spared: u64,
) -> Fared {
    let mut damaged = device.clone();
    if harm == Harm::Zeroed {
        places.iter().for_each(|pba| damaged.write(Pba(*pba), &[[0; BLOCK_SIZE]]));
        damaged.flush_all();
    }
    let mut hand = Hand::begin(damaged, config);
    if harm == Harm::Unreadable {
        hand.unreadable.extend(places.iter().map(|pba| Pba(*pba)));
    }
    hand.run();
    let mut fared = Fared { blocks: 1, ..Fared::default() };
    if hand.engine.phase() != Phase::Running {
        fared.refused = 1;
        return fared;
    }
    let mut errors = 0;
    for (lba, value) in (0..).zip(expected) {
        match hand.read(lba).expect("an answer") {
            Ok(found) => fared.wrong += u64::from(found != *value && lba != spared),
            Err(_) => errors += 1,
        }
    }
    fared.whole = u64::from(errors == 0);
    fared.with_errors = u64::from(errors > 0);
    fared.errors_max = errors;
    fared.in_doubt = u64::from(errors > LEAF);
    fared
}

/// Of blocks that nothing leads to but the map, one in so many is met by the long sweep: all of them take hours.
fn others_step() -> usize {
    let asked = std::env::var("COULTER_SWEEP_STEP").ok().and_then(|step| step.parse().ok());
    asked.unwrap_or(61)
}

/// Sweeps over every `step`th block of each use; of the blocks that nothing leads to but the map, fewer still.
fn sweep(harm: Harm, step: usize) -> Table {
    let mut table = Table::new();
    for (life, device, expected, spared) in aged() {
        let uses = uses(&device);
        let others = device.written().filter(|pba| !uses.contains_key(&pba.0));
        let others = others.step_by(if step > 1 { 97 * step } else { others_step() });
        let others: Vec<_> = others.map(|pba| (pba.0, Use::Other)).collect();
        let mut met = BTreeMap::new();
        for (pba, used) in uses.into_iter().chain(others) {
            let number = met.entry(used).or_insert(0);
            *number += 1;
            if used != Use::Other && (*number - 1) % step > 0 {
                continue;
            }
            let config = Config { degraded: Degraded::ReadOnly, ..life.config };
            let fared = fare(&device, (harm, &[pba]), config, &expected, spared);
            assert_eq!(fared.wrong, 0, "{used:?} {pba} of {life:?}");
            table.entry(used).or_default().add(fared);
        }
    }
    print_table(&format!("{harm:?} block"), &table);
    table
}

impl Fared {
    fn add(&mut self, other: Fared) {
        self.blocks += other.blocks;
        self.whole += other.whole;
        self.with_errors += other.with_errors;
        self.errors_max = self.errors_max.max(other.errors_max);
        self.in_doubt += other.in_doubt;
        self.refused += other.refused;
        self.wrong += other.wrong;
    }
}

fn print_table<T: std::fmt::Debug>(title: &str, table: &BTreeMap<T, Fared>) {
    println!("{title:<32}  count  whole errors (most) doubt refused wrong");
    for (used, f) in table {
        let Fared { blocks, whole, with_errors, errors_max, in_doubt, refused, wrong } = f;
        println!(
            "{:<32} {blocks:>6} {whole:>6} {with_errors:>6} {errors_max:>6} {in_doubt:>5} {refused:>7} {wrong:>5}",
            format!("{used:?}")
        );
    }
}

/// The header that was written last: it attests that what was flushed before it was durable.
fn last_header(device: &Device, uses: &BTreeMap<u32, Use>) -> Option<u32> {
    let store = newest_superblock(device).store;
    let headers = uses.iter().filter(|(_, used)| **used == Use::LogHeader).map(|(pba, _)| *pba);
    headers.max_by_key(|pba| {
        let content = block(device, *pba);
        let view = RecordView::decode(&content, &store, Pba(*pba)).expect("it is a header");
        view.header().sequence
    })
}

/// Zeroes so many pairs of blocks of each store, half of them pairs of which both are metadata. The header that alone
/// attests what was durable is left: without it, nothing tells a damaged record from one that was being written.
fn sweep_pairs(pairs: u64) -> BTreeMap<(Use, Use), Fared> {
    let mut table = BTreeMap::new();
    for (life, device, expected, spared) in aged() {
        let uses = uses(&device);
        let last = last_header(&device, &uses);
        let written: Vec<u32> = device.written().map(|pba| pba.0).collect();
        let listed: Vec<u32> = uses.keys().copied().collect();
        let mut random = Random::new(life.seed);
        for number in 0..pairs {
            let from = if number % 2 == 0 { &listed } else { &written };
            let mut pair = [0; 2].map(|_| from[random.below(from.len() as u64) as usize]);
            if pair[0] == pair[1] || pair.iter().any(|pba| Some(*pba) == last) {
                continue;
            }
            pair.sort_by_key(|pba| (uses.get(pba).copied().unwrap_or(Use::Other), *pba));
            let config = Config { degraded: Degraded::ReadOnly, ..life.config };
            let fared = fare(&device, (Harm::Zeroed, &pair), config, &expected, spared);
            assert_eq!(fared.wrong, 0, "{pair:?} of {life:?}");
            let [one, other] = pair.map(|pba| uses.get(&pba).copied().unwrap_or(Use::Other));
            table.entry((one, other)).or_insert_with(Fared::default).add(fared);
        }
    }
    print_table("pair zeroed", &table);
    table
}

#[test]
fn no_pair_of_damaged_blocks_gives_wrong_data() {
    let table = sweep_pairs(8);
    assert!(table.len() > 8, "many uses were met: {table:?}");
}

#[test]
#[ignore = "minutes; 10,000 pairs"]
fn no_pair_of_damaged_blocks_of_many_gives_wrong_data() {
    let table = sweep_pairs(1700);
    let met: u64 = table.values().map(|fared| fared.blocks).sum();
    assert!(met >= 10_000, "{met} pairs: {table:?}");
}

#[test]
fn no_damaged_block_gives_wrong_data() {
    assert_spared(&sweep(Harm::Zeroed, 7));
}

#[test]
#[ignore = "minutes; every block"]
fn no_damaged_block_of_all_gives_wrong_data() {
    assert_spared(&sweep(Harm::Zeroed, 1));
}

#[test]
fn no_unreadable_block_gives_wrong_data() {
    assert_readable(&sweep(Harm::Unreadable, 7));
}

#[test]
#[ignore = "minutes; every block"]
fn no_unreadable_block_of_all_gives_wrong_data() {
    assert_readable(&sweep(Harm::Unreadable, 1));
}

/// Of what there are two copies nothing is lost; elsewhere a block costs itself, or what a leaf page told.
fn assert_spared(table: &Table) {
    for (used, fared) in table {
        assert_eq!(fared.wrong, 0, "{used:?}: {fared:?}");
        match used {
            // Of the one that was written last no other tells; and where a record fills its header, it tells of none.
            Use::LogHeader => {
                assert!(4 * fared.with_errors <= fared.blocks && fared.refused == 0, "{fared:?}");
            }
            Use::Other => assert!(fared.errors_max <= LEAF && fared.refused == 0, "{fared:?}"),
            _ => assert_eq!(fared.whole, fared.blocks, "{used:?}: {fared:?}"),
        }
    }
    assert_eq!(table.len(), 9, "each use was met: {table:?}");
}

/// The same where reads fail. Where a block that cannot be read may be a header, or of a record that was not attested
/// to be durable, all is in doubt that no later record wrote: see `unreadable_log.rs`.
fn assert_readable(table: &Table) {
    for (used, fared) in table {
        match used {
            Use::LogHeader => assert!(4 * fared.in_doubt <= fared.blocks, "{fared:?}"),
            Use::Other => assert!(10 * fared.in_doubt < fared.blocks, "{fared:?}"),
            _ => assert_eq!(fared.whole, fared.blocks, "{used:?}: {fared:?}"),
        }
        assert_eq!(fared.refused, 0, "{used:?}: {fared:?}");
    }
    assert_eq!(table.len(), 9, "each use was met: {table:?}");
}
