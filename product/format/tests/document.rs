//! `docs/format.md` says what the codecs do: its example is their output, and its tables have no
//! gaps and name the fields of the example.
//!
//! Every field of the example has a value of its own, and the test finds it at the offset and with
//! the size that the table gives.

use coulter_format::checkpoint::{
    BodyWriter, CheckpointHeader, Counts, Head, Reference, RunHeader, SweepPosition,
};
use coulter_format::checksum::{self, Kind, crc32c};
use coulter_format::places::Places;
use coulter_format::record::{BlockWord, Extent, RecordHeader};
use coulter_format::root_list::{self, RootEntry};
use coulter_format::run::{RunBlockWriter, RunEntry};
use coulter_format::segment_table::{CoarseAge, SegmentEntry, SegmentState};
use coulter_format::superblock::{CheckpointLocation, Geometry, RecoveryBudget, Superblock};
use coulter_format::{
    BLOCK_SIZE, Block, BlockPointer, Lba, Pba, StoreId, map_page, record, segment_table,
};
use std::fmt::Write;
use std::path::PathBuf;

const BEGIN: &str = "<!-- example begins -->";
const END: &str = "<!-- example ends -->";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/format.md")
}

/// A field of the example: where it lies, and the bytes that its value has.
struct Field {
    table: &'static str,
    name: &'static str,
    offset: usize,
    bytes: Vec<u8>,
    meaning: String,
}

/// A structure of the example.
struct Part {
    title: &'static str,
    bytes: Vec<u8>,
    fields: Vec<Field>,
}

/// Collects the fields of one structure.
struct Fields {
    table: &'static str,
    start: usize,
    fields: Vec<Field>,
}

impl Fields {
    fn add(&mut self, name: &'static str, offset: usize, bytes: &[u8], meaning: impl ToString) {
        let (table, offset, bytes) = (self.table, self.start + offset, bytes.to_vec());
        self.fields.push(Field { table, name, offset, bytes, meaning: meaning.to_string() });
    }

    fn u8(&mut self, name: &'static str, offset: usize, value: u8) {
        self.add(name, offset, &[value], value);
    }

    fn u16(&mut self, name: &'static str, offset: usize, value: u16) {
        self.add(name, offset, &value.to_le_bytes(), value);
    }

    fn u32(&mut self, name: &'static str, offset: usize, value: u32) {
        self.add(name, offset, &value.to_le_bytes(), value);
    }

    fn sum(&mut self, name: &'static str, offset: usize, value: u32) {
        self.add(name, offset, &value.to_le_bytes(), format!("{value:#010x}"));
    }

    fn u64(&mut self, name: &'static str, offset: usize, value: u64) {
        self.add(name, offset, &value.to_le_bytes(), value);
    }
}

const STORE: StoreId = StoreId { uuid: *b"0123456789abcdef", salt: 0x5a17_c0de };

fn le32(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}

/// The example's data: host blocks 70 and 71 full of 0x11 and 0x22.
fn data(lba: u64) -> ([u8; BLOCK_SIZE], u32) {
    let block = [if lba == 70 { 0x11 } else { 0x22 }; BLOCK_SIZE];
    let sum = checksum::block(Kind::Data, lba, &block);
    (block, sum)
}

fn superblock_part(body: &[u8]) -> Part {
    let mut label = [0; 64];
    label[..7].copy_from_slice(b"example");
    let superblock = Superblock {
        store: STORE,
        generation: 7,
        geometry: Geometry {
            device_size: 10_240,
            volume_size: 6000,
            capacity: 6000,
            root_limit: 0,
            root_lists: false,
            segment_blocks: 256,
            segment_count: 39,
            first_segment: Pba(256),
            second_superblock: Pba(128),
            third_superblock: Pba(255),
            page_blocks: 1,
        },
        budget: RecoveryBudget { map_size: 1_048_576, journal_size: 1024, run_count_limit: 128 },
        epoch: 3,
        checkpoint: CheckpointLocation {
            sequence: 41,
            pba: Pba(300),
            size: body.len() as u32,
            checksum: crc32c(body),
            copy: Pba(129),
        },
        durable_sequence: 45,
        epoch_max: 3,
        clean: true,
        patched: false,
        long_records: true,
        may_have_lost: false,
        label,
    };
    let mut block = [0; BLOCK_SIZE];
    superblock.encode(&mut block);
    let mut of = Fields { table: "superblock", start: 0, fields: Vec::new() };
    of.add("magic", 0, b"COULTER\0", "\"COULTER\\0\"");
    of.u32("version", 8, 2);
    of.sum("checksum", 12, le32(&block, 12));
    of.add("uuid", 16, b"0123456789abcdef", "\"0123456789abcdef\"");
    of.u64("generation", 32, 7);
    of.sum("salt", 40, 0x5a17_c0de);
    of.u32("incompatible_features", 44, 2);
    of.u32("compatible_features", 48, 0);
    of.u32("segment_blocks", 52, 256);
    of.u32("segment_count", 56, 39);
    of.u32("first_segment", 60, 256);
    of.u32("second_superblock", 64, 128);
    of.u32("flags", 68, 1);
    of.u64("device_size", 72, 10_240);
    of.u64("volume_size", 80, 6000);
    of.u64("epoch", 88, 3);
    of.u64("recovery_map_size", 96, 1_048_576);
    of.u32("journal_size", 104, 1024);
    of.u32("run_count_limit", 108, 128);
    of.u64("checkpoint_sequence", 112, 41);
    of.u32("checkpoint_pba", 120, 300);
    of.u32("checkpoint_size", 124, body.len() as u32);
    of.sum("checkpoint_checksum", 128, crc32c(body));
    of.u64("durable_sequence", 136, 45);
    of.u64("epoch_max", 144, 3);
    of.u64("capacity", 152, 6000);
    of.u32("root_limit", 160, 0);
    of.u32("third_superblock", 164, 255);
    of.u32("checkpoint_copy", 168, 129);
    of.u32("page_blocks", 172, 0);
    of.add("label", 192, b"example\0", "\"example\", 57 zero bytes more");
    Part { title: "Superblock B, generation 7", bytes: block.to_vec(), fields: of.fields }
}

fn record_part() -> Part {
    let header = RecordHeader {
        stream: 1,
        epoch: 3,
        sequence: 46,
        durable_sequence: 45,
        generation: 7,
        cut: 40,
        pba: Pba(600),
        payload_size: 2,
        scattered: None,
        goes_on: true,
        page_bits: 0,
    };
    let extents = [
        Extent { key: 70, count: 1, kind: Kind::Data, relocated: false },
        Extent { key: 512, count: 300, kind: Kind::Discard, relocated: false },
        Extent { key: 71, count: 1, kind: Kind::Data, relocated: true },
    ];
    let words = [
        BlockWord { checksum: data(70).1, address: Pba::NOWHERE },
        BlockWord { checksum: data(71).1, address: Pba(555) },
    ];
    let mut block = [0; BLOCK_SIZE];
    record::encode(&header, &STORE, &extents, &words, &mut block).expect("three extents fit");
    let mut of = Fields { table: "record", start: 0, fields: Vec::new() };
    of.add("magic", 0, b"CRECORD\0", "\"CRECORD\\0\"");
    of.u16("version", 8, 1);
    of.u8("stream", 10, 1);
    of.add("flags", 11, &[1], "the group goes on");
    of.sum("checksum", 12, le32(&block, 12));
    of.add("uuid", 16, b"0123456789abcdef", "\"0123456789abcdef\"");
    of.u64("epoch", 32, 3);
    of.u64("sequence", 40, 46);
    of.u64("durable_sequence", 48, 45);
    of.u32("pba", 56, 600);
    of.u16("payload_size", 60, 2);
    of.u16("extent_count", 62, 3);
    of.u64("generation", 64, 7);
    of.u64("cut", 72, 40);
    for (extent, start) in extents.iter().zip([96, 108, 120]) {
        (of.table, of.start) = ("extent", start);
        of.u64("key", 0, extent.key);
        of.u16("count", 8, extent.count);
        of.add("kind", 10, &[extent.kind as u8], format!("{:?}", extent.kind));
        of.u8("relocated", 11, extent.relocated.into());
    }
    (of.table, of.start) = ("word", 132);
    of.sum("checksum", 0, data(70).1);
    of.start = 136;
    of.sum("checksum", 0, data(71).1);
    of.u32("address", 4, 555);
    let title = "Record header at block 600: host block 70, a discard, host block 71 moved from \
                 block 555";
    Part { title, bytes: block.to_vec(), fields: of.fields }
}

fn scattered_part() -> Part {
    let mut places = Places::default();
    [0, 9].into_iter().for_each(|place| places.insert(place));
    let header = RecordHeader {
        stream: 3,
        epoch: 3,
        sequence: 47,
        durable_sequence: 46,
        generation: 7,
        cut: 40,
        pba: Pba(650),
        payload_size: 2,
        scattered: Some(places),
        goes_on: false,
        page_bits: 0,
    };
    let extents = [Extent { key: 70, count: 2, kind: Kind::Data, relocated: false }];
    let words = [70, 71].map(|lba| BlockWord { checksum: data(lba).1, address: Pba::NOWHERE });
    let mut block = [0; BLOCK_SIZE];
    record::encode(&header, &STORE, &extents, &words, &mut block).expect("an extent fits");
    let before: Block = record_part().bytes.try_into().expect("a header is a block");
    let mut echo = [0; BLOCK_SIZE];
    let size = record::echo_of(&before, &mut echo);
    record::put_echo(&mut block, &STORE, &echo[..size]);
    let mut of = Fields { table: "record", start: 0, fields: Vec::new() };
    of.u8("stream", 10, 3);
    of.add("flags", 11, &[2], "scattered");
    of.u32("pba", 56, 650);
    of.u16("payload_size", 60, 2);
    of.u16("echo_size", 80, 80);
    (of.table, of.start) = ("echo", 4064 - size);
    of.sum("checksum", 0, le32(&before, 12));
    of.u32("pba", 4, 600);
    of.u64("durable_sequence", 8, 45);
    of.u64("generation", 16, 7);
    of.u64("cut", 24, 40);
    of.u16("payload_size", 32, 2);
    of.u16("extent_count", 34, 3);
    of.u8("stream", 36, 1);
    of.add("flags", 37, &[1], "the group goes on");
    for (start, lba) in [(40, "70"), (52, "512, a discard of 300"), (64, "71, relocated")] {
        of.add("extent", start, &before[start + 56..][..12], format!("host block {lba}"));
    }
    of.u32("address", 76, 555);
    (of.table, of.start) = ("", 0);
    of.add("places", 4064, &[1, 2, 0, 0], "blocks 651 and 660, 28 zero bytes more");
    let title = "Scattered record header at block 650: host blocks 70 and 71";
    Part { title, bytes: block.to_vec(), fields: of.fields }
}

fn packed_part() -> Part {
    let header = RecordHeader {
        stream: 1,
        epoch: 3,
        sequence: 48,
        durable_sequence: 46,
        generation: 7,
        cut: 40,
        pba: Pba(1024),
        payload_size: 300,
        scattered: None,
        goes_on: false,
        page_bits: 0,
    };
    let key = |index: u64| (1 << 32) + 70 + 2 * index;
    let extents: Vec<_> = (0..300)
        .map(|index| Extent { key: key(index), count: 1, kind: Kind::Data, relocated: true })
        .collect();
    let source = |index: u64| 2048 + 5 * index as u32;
    let words: Vec<_> = (0..300)
        .map(|index| BlockWord { checksum: data(key(index)).1, address: Pba(source(index)) })
        .collect();
    let mut block = [0; BLOCK_SIZE];
    record::encode(&header, &STORE, &extents, &words, &mut block).expect("they can be packed");
    let mut of = Fields { table: "record", start: 0, fields: Vec::new() };
    of.add("flags", 11, &[12], "packed, relocated");
    of.u32("pba", 56, 1024);
    of.u16("payload_size", 60, 300);
    of.u16("extent_count", 62, 300);
    for (index, start) in [(0, 96), (1, 109), (299, 96 + 299 * 13)] {
        (of.table, of.start) = ("packed", start);
        of.add("key", 0, &key(index).to_le_bytes()[..5], key(index));
        of.sum("checksum", 5, data(key(index)).1);
        of.u32("address", 9, source(index));
    }
    let title = "Packed record header at block 1024: 300 host blocks moved, of which the first two and the \
                 last";
    Part { title, bytes: block.to_vec(), fields: of.fields }
}

fn map_part() -> Part {
    let mut block = [0; BLOCK_SIZE];
    let nowhere = std::iter::repeat_n(BlockPointer::NOWHERE, 70);
    let entry = BlockPointer { pba: Pba(601), checksum: data(70).1 };
    map_page::encode(nowhere.chain([entry]), &mut block);
    let mut of = Fields { table: "entry", start: 70 * 8, fields: Vec::new() };
    of.u32("pba", 0, 601);
    of.sum("checksum", 4, data(70).1);
    Part { title: "Leaf page 0, entry 70", bytes: block.to_vec(), fields: of.fields }
}

fn run_part() -> Part {
    let whole =
        RunEntry { lba: Lba(512), count: 512, pointer: BlockPointer::NOWHERE, released: false };
    let pointer = BlockPointer { pba: Pba(601), checksum: data(70).1 };
    let one = RunEntry { lba: Lba(70), count: 1, pointer, released: true };
    let mut block = [0; BLOCK_SIZE];
    let mut writer = RunBlockWriter::new(Lba(64), &mut block);
    assert!(writer.push(&one, &mut block) && writer.push(&whole, &mut block));
    writer.finish(&mut block);
    let mut of = Fields { table: "run", start: 0, fields: Vec::new() };
    of.add("magic", 0, b"CRUN", "\"CRUN\"");
    of.u16("version", 4, 1);
    of.u16("count", 6, 2);
    of.u64("base", 8, 64);
    (of.table, of.start) = ("run_entry", 16);
    of.add("offset", 0, &(6u32 | 1 << 31).to_le_bytes(), "host block 70, released");
    of.u32("pba", 4, 601);
    of.sum("word", 8, data(70).1);
    of.start = 28;
    of.add("offset", 0, &448u32.to_le_bytes(), "host block 512, not released");
    of.u32("pba", 4, 0);
    of.add("word", 8, &512u32.to_le_bytes(), "512 host blocks unmapped");
    Part { title: "Run block", bytes: block.to_vec(), fields: of.fields }
}

fn segment_part() -> Part {
    let state = SegmentState::Closed;
    let mean_age = CoarseAge::from_blocks(5000);
    let entry = SegmentEntry { valid: 200, state, stream: 1, clock: 99_000, mean_age };
    let mut block = [0; BLOCK_SIZE];
    segment_table::encode([entry].into_iter(), &mut block);
    let mut of = Fields { table: "segment", start: 0, fields: Vec::new() };
    of.u32("valid", 0, 200);
    of.add("state", 4, &[2], "closed");
    of.u8("stream", 5, 1);
    of.add("mean_age", 6, &mean_age.to_bits().to_le_bytes(), "5000 host blocks");
    of.u64("clock", 8, 99_000);
    Part { title: "Segment table page 0, segment 0", bytes: block.to_vec(), fields: of.fields }
}

fn root_list_part() -> Part {
    let pointer = BlockPointer { pba: Pba(290), checksum: 0xa1 };
    let entry = RootEntry { key: 70_000, pointer, copy: Pba(310), tables: 0x8001 };
    let mut block = [0; BLOCK_SIZE];
    root_list::encode([Some(entry)].into_iter(), &mut block);
    let mut of = Fields { table: "root_list", start: 0, fields: Vec::new() };
    of.u64("key", 0, 70_000);
    of.u32("pba", 8, 290);
    of.sum("checksum", 12, 0xa1);
    of.u32("copy", 16, 310);
    of.add("tables", 20, &[0x01, 0x80], "leaves 0 to 31 and 480 to 511");
    Part { title: "Page 0 of the list of roots", bytes: block.to_vec(), fields: of.fields }
}

fn body_part() -> Part {
    let header = CheckpointHeader {
        sequence: 41,
        write_clock: 99_100,
        sweep: SweepPosition { cycle: 4, leaf: 60 },
        next_run: 18,
    };
    let counts = Counts {
        streams: 3,
        reserved: 3,
        roots: 1,
        table: 1,
        runs: 1,
        references: 1,
        parities: 1,
        copies: true,
        root_lists: false,
    };
    let mut bytes = vec![0; BLOCK_SIZE];
    let mut writer = BodyWriter::new(&header, &counts, &mut bytes);
    writer.head(Some(Head { segment: 1, offset: 88 }));
    writer.head(None);
    writer.head(Some(Head { segment: 0, offset: 40 }));
    [5, 6].into_iter().for_each(|segment| writer.reserved(segment));
    writer.reserved_holes(7);
    writer.root(0, BlockPointer { pba: Pba(290), checksum: 0xa1 });
    writer.pointer(BlockPointer { pba: Pba(291), checksum: 0xb2 });
    let written = SweepPosition { cycle: 3, leaf: 100 };
    writer.run(&RunHeader { number: 17, sweep: written, block_count: 1 });
    writer.pointer(BlockPointer { pba: Pba(292), checksum: 0xc3 });
    let sweep = SweepPosition { cycle: 4, leaf: 20 };
    writer.reference(&Reference { pba: Pba(600), checksum: 0x2573_823b, sweep, run: 17 });
    (310..313).for_each(|pba| writer.copy(Pba(pba)));
    writer.group(Some(0));
    writer.pointer(BlockPointer { pba: Pba(313), checksum: 0xd4 });
    let size = writer.finish().expect("it fits");
    bytes.truncate(size);
    let mut of = Fields { table: "body", start: 0, fields: Vec::new() };
    of.add("magic", 0, b"CCKP", "\"CCKP\"");
    of.u16("version", 4, 4);
    of.u16("stream_count", 6, 3);
    of.u64("sequence", 8, 41);
    of.u64("write_clock", 16, 99_100);
    of.u64("sweep_position", 24, 60);
    of.u64("sweep_cycle", 32, 4);
    of.u64("next_run", 40, 18);
    of.u32("reserved_count", 48, 3);
    of.u32("root_count", 52, 1);
    of.u32("table_count", 56, 1);
    of.u32("run_count", 60, 1);
    of.u32("reference_count", 64, 1);
    of.u32("parity_count", 68, 1);
    // The lists have no table of offsets.
    of.table = "";
    of.add("head of stream 0", 72, &[1, 0, 0, 0, 88, 0, 0, 0], "segment 1, offset 88");
    of.add("head of stream 1", 80, &[255, 255, 255, 255, 0, 0, 0, 0], "none");
    of.add("head of stream 2", 88, &[0, 0, 0, 0, 40, 0, 0, 0], "segment 0, offset 40");
    of.u32("reserved", 96, 5);
    of.u32("reserved", 100, 6);
    of.add("reserved", 104, &[7, 0, 0, 0x80], "the holes of 7");
    of.u64("root key", 108, 0);
    of.add("root page", 116, &[0x22, 1, 0, 0, 0xa1, 0, 0, 0], "block 290, checksum 0xa1");
    of.add("table page", 124, &[0x23, 1, 0, 0, 0xb2, 0, 0, 0], "block 291, checksum 0xb2");
    of.u64("run number", 132, 17);
    of.u64("run sweep_cycle", 140, 3);
    of.u64("run sweep_position", 148, 100);
    of.u32("run blocks", 156, 1);
    of.u32("zero", 160, 0);
    of.add("run block", 164, &[0x24, 1, 0, 0, 0xc3, 0, 0, 0], "block 292, checksum 0xc3");
    of.add(
        "record",
        172,
        &[0x58, 2, 0, 0, 0x3b, 0x82, 0x73, 0x25],
        "block 600, checksum 0x2573823b",
    );
    of.u64("record sweep_position", 180, 20);
    of.u16("record sweep_cycles", 188, 0);
    of.u16("record runs", 190, 1);
    of.u32("copy of root page", 192, 310);
    of.u32("copy of table page", 196, 311);
    of.u32("copy of run block", 200, 312);
    of.u16("group of record", 204, 0);
    of.add("parity", 206, &[0x39, 1, 0, 0, 0xd4, 0, 0, 0], "block 313, checksum 0xd4");
    assert_eq!(size, 214, "every byte of the body is told of");
    Part { title: "Checkpoint body", bytes, fields: of.fields }
}

fn parts() -> Vec<Part> {
    let body = body_part();
    let superblock = superblock_part(&body.bytes);
    let records = [record_part(), scattered_part(), packed_part()];
    let pages = [map_part(), run_part(), segment_part(), root_list_part(), body];
    [superblock].into_iter().chain(records).chain(pages).collect()
}

/// The example as it stands in the document.
fn render() -> String {
    let mut text = String::from("\n");
    for Part { title, bytes, fields } in parts() {
        writeln!(text, "{title}:\n\n```text").unwrap();
        for Field { name, offset, bytes: value, meaning, .. } in fields {
            assert_eq!(bytes[offset..offset + value.len()], value, "{name} at {offset}");
            let mut hex = value.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>();
            let rest = hex.split_off(hex.len().min(8)).concat();
            writeln!(text, "{offset:>5}  {:<16}  {name} = {meaning}", hex.concat()).unwrap();
            if !rest.is_empty() {
                writeln!(text, "       {rest}").unwrap();
            }
        }
        writeln!(text, "```\n").unwrap();
    }
    text
}

/// The rows of a table of the document: offset, size, name.
fn rows(document: &str, table: &str) -> Vec<(usize, usize, String)> {
    let mark = format!("<!-- table: {table} -->");
    let (_, after) = document.split_once(&mark).unwrap_or_else(|| panic!("no table {table}"));
    let lines = after.lines().skip(3).take_while(|line| line.starts_with('|'));
    lines
        .map(|line| {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            let number = |cell: &str| cell.parse().unwrap_or_else(|_| panic!("a number: {line}"));
            (number(cells[1]), number(cells[2]), cells[3].to_owned())
        })
        .collect()
}

#[test]
fn the_example_is_what_the_codecs_write() {
    let document = std::fs::read_to_string(path()).unwrap();
    let (before, rest) = document.split_once(BEGIN).expect("the example's begin");
    let (example, after) = rest.split_once(END).expect("the example's end");
    let rendered = render();
    if std::env::var_os("COULTER_BLESS").is_some() {
        std::fs::write(path(), format!("{before}{BEGIN}{rendered}{END}{after}")).unwrap();
        return;
    }
    assert!(example == rendered, "docs/format.md has another example; COULTER_BLESS=1 renews it");
}

#[test]
fn the_tables_have_no_gaps_and_end_where_the_structure_ends() {
    let document = std::fs::read_to_string(path()).unwrap();
    let ends = [
        ("superblock", 4096),
        ("record", 108),
        ("echo", 52),
        ("extent", 12),
        ("word", 8),
        ("packed", 13),
        ("entry", 8),
        ("run", 28),
        ("run_entry", 12),
        ("segment", 16),
        ("root_list", 22),
        ("body", 72),
    ];
    for (table, end) in ends {
        let mut next = 0;
        for (offset, size, name) in rows(&document, table) {
            assert_eq!(offset, next, "{name} of {table} follows the field before it");
            next = offset + size;
        }
        assert_eq!(next, end, "{table} ends");
    }
}

#[test]
fn every_field_of_the_tables_is_in_the_example_and_where_the_table_says() {
    let document = std::fs::read_to_string(path()).unwrap();
    let parts = parts();
    let fields: Vec<_> = parts.iter().flat_map(|part| &part.fields).collect();
    for table in [
        "superblock",
        "record",
        "echo",
        "extent",
        "word",
        "packed",
        "entry",
        "run",
        "run_entry",
        "segment",
        "root_list",
        "body",
    ] {
        let base = match table {
            "extent" | "packed" => 96,
            "word" => 136,
            "echo" => 3984,
            "entry" => 560,
            "run_entry" => 16,
            _ => 0,
        };
        for (offset, size, name) in rows(&document, table) {
            // Lists are told of field by field.
            if name == "zero" || (name == "extent" || name == "entry") && size == 12 {
                continue;
            }
            let here = |field: &&&Field| {
                field.table == table && field.name == name && field.offset == base + offset
            };
            let field = fields.iter().find(here).unwrap_or_else(|| panic!("{table} {name}"));
            let shown = if name == "label" { 8 } else { size };
            assert_eq!(field.bytes.len(), shown, "{name} of {table} has {size} bytes");
        }
    }
}
