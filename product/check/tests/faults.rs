//! Every kind of finding is found: each is set up on purpose, with all checksums right where the
//! fault is one of meaning.

mod model;

use coulter_check::{BlockFn, Finding, Options, ReadBlocks, ReadError, Report, Severity, check};
use coulter_format::checksum::Kind;
use coulter_format::superblock::Superblock;
use coulter_format::{BLOCK_SIZE, Block, Pba, Structure};
use model::{Image, Model, SEGMENT};
use std::collections::BTreeSet;

fn check_image(image: &Image) -> Report {
    check(&mut image.reader(), &mut Options { data: true, ..Options::default() })
}

/// The name of a finding as JSON has it.
fn name(finding: &Finding) -> String {
    let value = serde_json::to_value(finding).unwrap();
    value["finding"].as_str().unwrap().to_owned()
}

fn names(report: &Report) -> BTreeSet<String> {
    report.findings.iter().map(name).collect()
}

/// A store with leaf pages, a live run, and nothing to be replayed.
fn settled() -> Model {
    let mut model = Model::new(16);
    model.checkpoint(false);
    model.write(0, 20);
    model.write(600, 20);
    model.checkpoint(false);
    model.sweep(9);
    model.write(3, 4);
    model.checkpoint(false);
    let report = check_image(&model.image);
    assert!(report.findings.is_empty(), "{:?}", names(&report));
    model
}

#[track_caller]
fn assert_found(image: &Image, expected: &str) -> Report {
    let report = check_image(image);
    assert!(names(&report).contains(expected), "{expected} is not in {:?}", names(&report));
    report
}

#[test]
fn a_device_without_a_store() {
    let report = assert_found(&Image { size_blocks: 5000, ..Image::default() }, "not_a_store");
    assert!(!report.complete);
    assert_eq!(report.findings.len(), 1);
}

#[test]
fn a_superblock_of_another_version() {
    let model = settled();
    let mut image = model.image.clone();
    for pba in [0, SEGMENT / 2] {
        let mut block = image.block(pba);
        block[8] = 3;
        model::reseal::seal(&mut block, 0);
        image.put(pba, block);
    }
    let report = assert_found(&image, "other_version");
    assert!(names(&report).contains("no_superblock"));
    assert!(report.findings[0].to_string().contains("use a coulter that reads version 3"));
}

/// Nothing is damaged, and nobody should restore a backup.
#[test]
fn a_superblock_with_features_that_came_later() {
    let model = settled();
    let mut image = model.image.clone();
    for pba in [0, SEGMENT / 2] {
        let mut block = image.block(pba);
        block[47] = 0x40;
        model::reseal::seal(&mut block, 0);
        image.put(pba, block);
    }
    let report = assert_found(&image, "other_features");
    assert!(!names(&report).contains("no_superblock"));
    let said = report.findings[0].to_string();
    assert!(said.contains("features (0x40000000)") && said.contains("newer"), "{said}");
}

#[test]
fn a_half_formatted_store() {
    let model = settled();
    for (pba, copy) in [(0, 'A'), (SEGMENT / 2, 'B')] {
        let mut image = model.image.clone();
        image.put(pba, [0; BLOCK_SIZE]);
        let report = check_image(&image);
        let missing = report.findings.iter().find(|f| name(f) == "superblock_missing").unwrap();
        assert!(missing.to_string().starts_with(&format!("superblock {copy} at block {pba}")));
        assert_eq!(missing.severity(), Severity::Warning);
    }
}

/// The third copy is whole, and yet the store is not: it is not opened for writing.
#[test]
fn a_store_whose_first_two_superblocks_are_gone() {
    let model = settled();
    let newest = model.superblock.location().0;
    let other = if newest == 0 { SEGMENT / 2 } else { 0 };
    let mut image = model.image.clone();
    let mut with_third = model.superblock;
    with_third.geometry.third_superblock = with_third.geometry.best_third_superblock();
    let mut block = [0; BLOCK_SIZE];
    with_third.encode(&mut block);
    image.put(with_third.geometry.third_superblock.0, block);
    image.put(newest, [0; BLOCK_SIZE]);
    image.put(other, block);
    let report = assert_found(&image, "first_superblocks_lost");
    assert!(names(&report).contains("superblock_misplaced"));
    image.put(other, [0xff; BLOCK_SIZE]);
    let report = assert_found(&image, "first_superblocks_lost");
    assert!(!names(&report).contains("superblock_missing"), "no checkpoint writes it again");
    let said = report.findings[0].to_string();
    assert!(said.contains("read-only") && said.contains("salvage"), "{said}");
}

#[test]
fn a_superblock_at_the_wrong_place() {
    let model = settled();
    let mut image = model.image.clone();
    let newest = image.block(model.superblock.location().0);
    let other = if model.superblock.location().0 == 0 { SEGMENT / 2 } else { 0 };
    image.put(other, newest);
    assert_found(&image, "superblock_misplaced");
}

type ChangeSuperblock = fn(&mut Superblock);

#[test]
fn a_superblock_of_another_store() {
    let model = settled();
    let cases: [(&str, ChangeSuperblock); 8] = [
        ("uuid", |s| s.store.uuid[0] ^= 1),
        ("salt", |s| s.store.salt ^= 1),
        ("segment_blocks", |s| (s.geometry.segment_blocks, s.geometry.segment_count) = (512, 8)),
        ("first_segment", |s| {
            s.geometry.first_segment.0 += 1;
            s.geometry.segment_count -= 1;
        }),
        ("second_superblock", |s| s.geometry.second_superblock = Pba(SEGMENT / 4)),
        // These only grow.
        ("segment_count", |s| {
            s.geometry.device_size += u64::from(SEGMENT);
            s.geometry.segment_count += 1;
        }),
        ("epoch", |s| s.epoch += 1),
        ("checkpoint_sequence", |s| s.checkpoint.sequence += 1),
    ];
    for (field, change) in cases {
        let mut image = model.image.clone();
        let mut put = |superblock: &Superblock| {
            let mut block = [0; BLOCK_SIZE];
            superblock.encode(&mut block);
            image.put(superblock.location().0, block);
        };
        // The newest is the second copy, which lies where it says itself.
        let generation = model.superblock.generation.next_multiple_of(2) + 1;
        put(&Superblock { generation, ..model.superblock });
        let mut foreign = Superblock { generation: generation - 1, ..model.superblock };
        change(&mut foreign);
        put(&foreign);
        let report = assert_found(&image, "superblocks_disagree");
        let said = format!("`{field}`");
        assert!(report.findings.iter().any(|f| f.to_string().contains(&said)), "{field}");
    }
}

#[test]
fn a_left_over_superblock_of_another_segment_size() {
    let mut model = Model::new(16);
    model.checkpoint(false);
    let mut image = model.image.clone();
    let mut older = model.superblock;
    older.geometry.segment_blocks = 512;
    older.geometry.segment_count = 7;
    older.geometry.first_segment = Pba(512);
    older.geometry.second_superblock = Pba(64);
    (older.geometry.volume_size, older.geometry.capacity) = (100, 100);
    older.checkpoint.pba = Pba(513);
    older.generation = 1;
    let mut block = [0; BLOCK_SIZE];
    older.encode(&mut block);
    image.put(64, block);
    // No place where a superblock may lie: nobody looks there.
    assert!(check_image(&image).is_sound());
    image.put(SEGMENT / 2, block);
    assert_found(&image, "superblock_misplaced");
}

#[test]
fn a_newest_superblock_that_was_lost() {
    let mut model = settled();
    model.write(100, 1);
    let mut image = model.image.clone();
    let newest = model.superblock.location().0;
    image.damage(newest, 60, 1);
    let report = assert_found(&image, "superblock_lost");
    assert!(names(&report).contains("superblock_damaged"));
    image.damage(if newest == 0 { SEGMENT / 2 } else { 0 }, 60, 1);
    assert_found(&image, "no_superblock");
}

#[test]
fn a_device_that_was_cut_short() {
    let model = settled();
    let mut image = model.image.clone();
    image.size_blocks -= 1;
    let report = assert_found(&image, "device_truncated");
    assert!(!report.complete);
    assert!(report.findings[0].to_string().contains(&format!("{} blocks", image.size_blocks)));
}

#[test]
fn blocks_that_cannot_be_read() {
    let model = Model::rich();
    let bad = |pba: Pba| {
        let image = &model.image;
        let read = move |at: Pba, block: &mut Block| {
            if at == pba {
                return Err(ReadError::Io(std::io::Error::other("medium error")));
            }
            image.reader().read(at, std::slice::from_mut(block))
        };
        let mut device = BlockFn { size_blocks: image.size_blocks, read };
        check(&mut device, &mut Options { data: true, ..Options::default() })
    };
    for class in model::rich::Class::ALL {
        let (_, _, pba) = model.blocks_of(class)[0];
        let report = bad(pba);
        assert!(!report.is_sound(), "{class:?}");
        let text: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
        let told =
            report.findings.iter().any(|f| name(f) == "unreadable" || f.address() == Some(pba));
        assert!(told, "{class:?}: {text:?}");
    }
}

#[test]
fn a_checkpoint_that_is_damaged_or_contradicts_the_superblock() {
    let model = settled();
    let mut image = model.image.clone();
    image.damage(model.body[0].0, 9, 1);
    let report = assert_found(&image, "checkpoint_damaged");
    assert!(!report.complete);
    let head = model.heads[0].unwrap();
    let reserved = *model.queue.front().unwrap();
    let roots = 88 + 4 * model.queue.len();
    let runs = roots + 16 * model.roots.len() + 8 * model.table.len();
    // Field, offset in the body, new value.
    let fields = [
        ("sequence", 8, 1u32),
        ("head", 64, 0xffff),
        ("head", 68, SEGMENT + 1),
        ("head", 72, head.segment),
        ("reserved", 88, 0xffff),
        ("reserved", 92, reserved),
        ("root", roots, 1),
        ("run", 40, 0),
        ("run sweep_position", runs + 8, 99),
    ];
    for (field, at, value) in fields {
        assert_contradicts(&model, field, |bytes| {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        });
    }
}

#[track_caller]
fn assert_contradicts(model: &Model, field: &str, change: impl FnOnce(&mut [u8])) {
    let mut image = model.image.clone();
    model.rewrite_body(&mut image, change);
    let report = assert_found(&image, "checkpoint_contradicts");
    let said = format!("`{field}`");
    assert!(report.findings.iter().any(|f| f.to_string().contains(&said)), "{field}");
}

/// The bytes of one list are said to be another's.
#[test]
fn lists_of_a_checkpoint_that_are_too_long_or_too_short() {
    let model = settled();
    let add = |bytes: &mut [u8], at: usize, more: u32| {
        let count = u32::from_le_bytes(*bytes[at..].first_chunk().unwrap());
        bytes[at..at + 4].copy_from_slice(&count.wrapping_add(more).to_le_bytes());
    };
    assert_contradicts(&model, "stream_count", |bytes| {
        bytes[6] -= 1;
        add(bytes, 48, 2);
    });
    assert_contradicts(&model, "table_count", |bytes| {
        add(bytes, 56, 4 + model.runs[0].blocks.len() as u32);
        add(bytes, 60, u32::MAX);
    });
    let mut model = Model::new(16);
    for lba in 0..3 {
        model.write(lba, 1);
        model.checkpoint(false);
    }
    assert_eq!(model.runs.len(), 3);
    let mut image = model.image.clone();
    model.rewrite_superblock(&mut image, |block| block[108] = 2);
    let report = assert_found(&image, "checkpoint_contradicts");
    assert!(report.findings.iter().any(|f| f.to_string().contains("`run_count`")));
}

#[test]
fn numbers_of_a_checkpoint_that_have_come_to_their_end() {
    let model = settled();
    // The upper halves of the clock, the sweep's cycle and the number of the next run.
    for (field, at, bit) in [("write_clock", 20, 29), ("sweep_cycle", 36, 29), ("next_run", 44, 10)]
    {
        let mut image = model.image.clone();
        model.rewrite_body(&mut image, |bytes| {
            bytes[at..at + 4].copy_from_slice(&(1u32 << bit).to_le_bytes());
        });
        let report = assert_found(&image, "number_spent");
        let said = format!(" for its {field}, ");
        assert!(report.findings.iter().any(|f| f.to_string().contains(&said)), "{field}");
    }
}

#[test]
fn damaged_metadata_says_what_it_means() {
    let model = settled();
    let cases = [
        (model.roots[&0].pba, "reads of its 1 GiB"),
        (model.leaves[&1].pointer.pba, "reads of its 2 MiB"),
        (model.table[0].pba, "which of 256 segments"),
        (model.runs.last().unwrap().blocks[0].pba, "updates of the map are lost"),
    ];
    for (pba, consequence) in cases {
        let mut image = model.image.clone();
        image.damage(pba.0, 77, 8);
        let report = assert_found(&image, "metadata_damaged");
        assert!(report.findings.iter().any(|f| f.to_string().contains(consequence)));
        assert!(!report.complete);
    }
}

/// Damage hides what lies behind it; what cannot be known is not called a fault.
#[test]
fn one_damaged_page_gives_one_finding() {
    let model = Model::rich();
    let (_, _, leaf) = model.blocks_of(model::rich::Class::Leaf)[0];
    let (_, _, run) = model.blocks_of(model::rich::Class::Run)[0];
    for pba in [leaf, run] {
        let mut image = model.image.clone();
        image.damage(pba.0, 77, 8);
        let report = check_image(&image);
        let faults = report.findings.iter().filter(|f| f.severity() > Severity::Info);
        // The page, and that its record's header says otherwise of it.
        let text: Vec<_> = faults.map(ToString::to_string).collect();
        assert_eq!(text.len(), 1, "{text:#?}");
        assert!(report.counters.leaves_unknown > 0);
    }
}

#[test]
fn a_run_whose_blocks_are_not_sorted() {
    let mut model = Model::new(24);
    model.checkpoint(false);
    for start in 0..16 {
        model.write(start * 24, 24);
    }
    model.checkpoint(false);
    let run = model.runs[0].clone();
    assert!(run.blocks.len() > 1);
    let mut image = model.image.clone();
    let key = run.number << 20 | 1;
    model.rewrite(&mut image, Kind::Run, key, run.blocks[1].pba, &mut |block| {
        block[8..16].copy_from_slice(&0u64.to_le_bytes());
    });
    assert_found(&image, "run_unsorted");
}

/// Sets the pointer of an entry in a leaf page.
fn set_entry(model: &Model, image: &mut Image, lba: u64, pba: u32) {
    let key = lba / 512;
    let at = (lba % 512) as usize * 8;
    let leaf = model.leaves[&key].pointer.pba;
    model.rewrite(image, Kind::Leaf, key, leaf, &mut |block| {
        block[at..at + 4].copy_from_slice(&pba.to_le_bytes());
    });
}

#[test]
fn pointers_that_lead_nowhere_or_to_the_wrong_block() {
    let model = settled();
    let lba = 601;
    let mut image = model.image.clone();
    set_entry(&model, &mut image, lba, 17);
    assert_found(&image, "pointer_outside");

    let mut image = model.image.clone();
    let free = *model.queue.back().unwrap();
    set_entry(&model, &mut image, lba, model.start(free).0 + 1);
    let report = assert_found(&image, "pointer_into_free");
    assert!(names(&report).contains("record_missing"));

    let mut image = model.image.clone();
    let behind_head = model.heads[0].unwrap();
    set_entry(&model, &mut image, lba, model.start(behind_head.segment).0 + behind_head.offset);
    assert_found(&image, "pointer_into_free");

    // What was written after a checkpoint is nothing that a page of it can lead to.
    let mut later = model.clone();
    later.write(50, 1);
    let mut image = later.image.clone();
    set_entry(&later, &mut image, lba, later.map[&50].pba.0);
    assert_found(&image, "pointer_into_free");

    let mut image = model.image.clone();
    set_entry(&model, &mut image, lba, Pba::LOST.0);
    assert_found(&image, "blocks_lost");

    let mut image = model.image.clone();
    set_entry(&model, &mut image, lba, model.map[&602].pba.0);
    let report = assert_found(&image, "block_shared");
    let names = names(&report);
    assert!(names.contains("pointer_mismatch") && names.contains("data_damaged"), "{names:?}");
    let shared = report.findings.iter().find(|f| name(f) == "block_shared").unwrap();
    let text = shared.to_string();
    assert!(text.contains("host block 601 and host block 602"), "{text}");
}

#[test]
fn a_mapped_address_behind_the_volume() {
    let mut model = settled();
    model.write(model.superblock.geometry.volume_size + 5, 1);
    model.checkpoint(false);
    // In a run it is a fault: whoever opens the store would hold a leaf that no volume of its size has.
    let report = assert_found(&model.image, "metadata_damaged");
    assert_eq!(report.worst(), Some(Severity::Fault));
    // In a leaf page it takes up space, and no more than that.
    for _ in 0..2 {
        model.sweep(9);
        model.checkpoint(false);
    }
    let report = assert_found(&model.image, "outside_volume");
    assert_eq!(report.worst(), Some(Severity::Warning));
}

#[test]
fn a_record_header_that_is_damaged() {
    let model = settled();
    let header = model.record_of(model.map[&601].pba);
    let mut image = model.image.clone();
    image.damage(header.0, 200, 1);
    let report = assert_found(&image, "record_missing");
    assert!(names(&report).contains("chain_broken"));
    let missing = report.findings.iter().find(|f| name(f) == "record_missing").unwrap();
    assert_eq!(missing.address(), Some(header));
    assert!(missing.to_string().contains("its 20 blocks in use"), "{missing}");
    // The data can be read all the same.
    assert_eq!(report.counters.data_blocks, 40);
    assert!(!names(&report).contains("data_damaged"));
}

#[test]
fn a_segment_table_that_miscounts() {
    let model = settled();
    let segment = model.segment_of(model.map[&601].pba) as usize;
    let counted = model.valid_counts()[segment];
    for (valid, expected) in [(counted - 1, "valid_too_low"), (counted + 1, "valid_too_high")] {
        let mut image = model.image.clone();
        model.rewrite(&mut image, Kind::SegmentTable, 0, model.table[0].pba, &mut |block| {
            block[segment * 16..segment * 16 + 4].copy_from_slice(&valid.to_le_bytes());
        });
        let report = assert_found(&image, expected);
        assert_eq!(report.findings.len(), 1);
    }
}

#[test]
fn a_segment_table_that_contradicts_the_lists() {
    let model = settled();
    let head = model.heads[0].unwrap().segment;
    let reserved = *model.queue.front().unwrap();
    let free = 15;
    let cases = [
        (free, 0, 9u32, "free_with_blocks"),
        (free, 1, 0, "open_without_head"),
        (free, 2, 9999, "too_many_blocks"),
        (head, 0, 0, "head_of_free"),
        (reserved, 2, 0, "reserved_not_free"),
        (head, 3, 0, "head_of_patched"),
    ];
    for (segment, state, valid, fault) in cases {
        let mut image = model.image.clone();
        model.rewrite(&mut image, Kind::SegmentTable, 0, model.table[0].pba, &mut |block| {
            let at = segment as usize * 16;
            block[at..at + 4].copy_from_slice(&valid.to_le_bytes());
            block[at + 4] = state;
        });
        let report = assert_found(&image, "segment_contradicts");
        let json = serde_json::to_string(&report).unwrap();
        assert!(json.contains(fault), "{fault}: {json}");
    }
}

#[test]
fn holes_where_none_can_be() {
    let model = settled();
    let mut image = model.image.clone();
    model.rewrite_body(&mut image, |bytes| bytes[91] |= 0x80);
    let report = assert_found(&image, "segment_contradicts");
    assert!(serde_json::to_string(&report).unwrap().contains("holes_not_patched"));
    // A reader that knows no holes would take dead records for living ones.
    let segment = model.segment_of(model.map[&601].pba) as usize;
    let mut image = model.image.clone();
    model.rewrite(&mut image, Kind::SegmentTable, 0, model.table[0].pba, &mut |block| {
        block[segment * 16 + 4] = 3;
    });
    let report = assert_found(&image, "checkpoint_contradicts");
    assert!(report.findings.iter().any(|f| f.to_string().contains("`incompatible_features`")));
}

#[test]
fn a_durable_record_that_is_missing() {
    let mut model = settled();
    model.write(50, 3);
    let first = *model.records.last().unwrap();
    model.write(60, 3);
    model.flush();
    model.write(70, 1);
    let mut image = model.image.clone();
    image.damage(first.0, 40, 1);
    let report = assert_found(&image, "durable_record_missing");
    let finding = report.findings.iter().find(|f| name(f) == "durable_record_missing").unwrap();
    let sequence = model.superblock.durable_sequence + 1;
    assert!(finding.to_string().starts_with(&format!("record {sequence} cannot be found")));
    // Even when the record itself is the last that can be reached.
    let mut short = model.clone();
    short.image.damage(first.0, 0, 1);
    assert_found(&short.image, "durable_record_missing");
}

#[test]
fn a_record_of_the_checkpoint_itself_that_is_missing() {
    let model = settled();
    let mut image = model.image.clone();
    let header = model.record_of(model.body[0]);
    image.damage(header.0, 40, 1);
    assert_found(&image, "durable_record_missing");
}

#[test]
fn two_records_of_one_sequence() {
    let mut model = settled();
    model.write(50, 1);
    let first = *model.records.last().unwrap();
    model.relocate(&[600]);
    let second = *model.records.last().unwrap();
    let mut image = model.image.clone();
    let sequence = model.sequence - 1;
    model.rewrite_header(&mut image, second, |block| {
        block[40..48].copy_from_slice(&sequence.to_le_bytes());
    });
    let report = assert_found(&image, "sequence_twice");
    let twins: BTreeSet<_> = [first.0, second.0].into();
    let text = report.findings.iter().map(ToString::to_string).collect::<String>();
    assert!(twins.iter().all(|pba| text.contains(&pba.to_string())), "{text}");
}

type ChangeBlock<'a> = &'a dyn Fn(&mut Block);

#[test]
fn a_record_of_another_stream_or_of_no_address() {
    let mut model = settled();
    model.discard(602, 2);
    let header = *model.records.last().unwrap();
    let volume_size = model.superblock.geometry.volume_size;
    let changes: [(&str, ChangeBlock<'_>); 2] = [
        ("stream", &|block| block[10] = 1),
        ("key", &|block| block[96..104].copy_from_slice(&volume_size.to_le_bytes())),
    ];
    for (field, change) in changes {
        let mut image = model.image.clone();
        model.rewrite_header(&mut image, header, change);
        let report = assert_found(&image, "record_contradicts");
        let said = format!(" for its {field}, ");
        assert!(report.findings.iter().any(|f| f.to_string().contains(&said)), "{field}");
    }
}

#[test]
fn a_record_of_an_earlier_epoch_or_of_a_group_without_its_end_does_not_count() {
    let mut model = settled();
    model.write(50, 1);
    let header = *model.records.last().unwrap();
    let before = check_image(&model.image).recovery.records_to_replay;
    assert_eq!(before, 1);
    let changes: [fn(&mut Block); 2] =
        [|block| block[32..40].copy_from_slice(&0u64.to_le_bytes()), |block| block[11] |= 1];
    for change in changes {
        let mut image = model.image.clone();
        model.rewrite_header(&mut image, header, change);
        let report = check_image(&image);
        assert_eq!(report.recovery.records_to_replay, 0);
        assert_eq!(report.worst().unwrap_or(Severity::Info), Severity::Info);
    }
}

/// The block goes on to lie where it was: recovery says so, and so the checker must.
#[test]
fn a_relocation_that_did_not_arrive_costs_nothing() {
    let mut model = settled();
    model.relocate(&[600]);
    let mut image = model.image.clone();
    image.damage(model.map[&600].pba.0, 9, 1);
    let report = check_image(&image);
    assert!(!names(&report).contains("data_damaged"), "{:?}", names(&report));
    assert_eq!(report.recovery.records_to_replay, 1);
}

#[test]
fn a_relocation_from_where_the_block_never_was() {
    let mut model = settled();
    let there = model.map[&601];
    let elsewhere = model.map[&605];
    model.map.insert(601, coulter_format::BlockPointer { pba: elsewhere.pba, ..there });
    model.relocate(&[601]);
    model.map.insert(601, there);
    let report = assert_found(&model.image, "relocation_unfounded");
    assert!(report.findings.iter().any(|f| f.address() == Some(elsewhere.pba)));
}

#[test]
fn a_store_that_says_it_was_closed_but_was_written() {
    let mut model = settled();
    model.checkpoint(true);
    model.write(9, 1);
    let report = assert_found(&model.image, "clean_but_written");
    assert_eq!(report.worst(), Some(Severity::Warning));
}

#[test]
fn damaged_data() {
    let model = settled();
    let mut image = model.image.clone();
    let pba = model.map[&601].pba;
    image.damage(pba.0, 4095, 0x80);
    let report = assert_found(&image, "data_damaged");
    assert_eq!(report.findings.len(), 1);
    assert_eq!(report.findings[0].structure(), Structure::Data);
    assert!(report.findings[0].to_string().starts_with("host block 601 at block"));
    // Without the data, nobody sees it.
    assert!(check(&mut image.reader(), &mut Options::default()).is_sound());
}

#[test]
fn findings_beyond_the_limit_are_counted() {
    let model = settled();
    let mut image = model.image.clone();
    let pba = model.map[&601].pba.0;
    (0..5).for_each(|offset| image.damage(pba + offset, 0, 1));
    let mut options = Options { data: true, findings_max: 2, ..Options::default() };
    let report = check(&mut image.reader(), &mut options);
    assert_eq!((report.findings.len(), report.findings_omitted), (2, 3));
    assert_eq!(report.counters.faults, 5);
}

#[test]
fn the_json_of_a_finding_has_all_that_a_script_needs() {
    let model = settled();
    let mut image = model.image.clone();
    image.damage(model.map[&601].pba.0, 0, 1);
    let json = serde_json::to_value(check_image(&image)).unwrap();
    let finding = &json["findings"][0];
    assert_eq!(finding["severity"], "fault");
    assert_eq!(finding["structure"], "data block");
    assert_eq!(finding["address_block"], model.map[&601].pba.0);
    assert_eq!(finding["facts"]["finding"], "data_damaged");
    assert_eq!(finding["facts"]["lba"], 601);
    assert!(finding["message"].as_str().unwrap().contains("restore"));
    assert_eq!(json["complete"], true);
    assert_eq!(json["counters"]["faults"], 1);
    assert_eq!(json["store"]["uuid"], "61206d6f-6465-6c20-6f66-2073746f7265");
}
