//! An emulated drive as a device: the device suite, and a Coulter volume on it.

use coulter::tuning::{Reclaim, Retuning};
use coulter::{CreateOptions, OpenOptions, Volume};
use coulter_device::conformance::Access;
use coulter_device::{Device, OpenError, blocking, conformance_suite};
use coulter_flash::{
    Drive, FlashStore, FtlKind, FtlOptions, Keep, Pacing, Placement, Profile, Run, Workload, run,
};
use coulter_workload::{BLOCK_SIZE, Content, Origin, Pattern, Random};

/// A drive of `mebibytes` with erase blocks of 256 KiB on four dies.
fn profile(mebibytes: u32, spare_percent: u32) -> Profile {
    let mut profile = Profile::named("sata-tlc").expect("it comes with the crate");
    profile.geometry.channels = 2;
    profile.geometry.dies_per_channel = 2;
    profile.geometry.planes_per_die = 1;
    profile.geometry.pages_per_block = 64;
    profile.geometry.exported_erase_blocks = mebibytes * 4;
    profile.geometry.erase_blocks = profile.geometry.exported_erase_blocks + 1;
    profile.buffer_pages = 64;
    profile.log_blocks = 8;
    profile.with_spare_percent(spare_percent).expect("possible")
}

fn store(profile: Profile, kind: FtlKind) -> FlashStore {
    let drive = Drive::new(profile, kind, FtlOptions::default(), Keep::Bytes);
    FlashStore::new(drive.expect("it works there"))
}

fn fixture(kind: FtlKind, pacing: Pacing) -> impl Fn(Access) -> Result<Box<dyn Device>, OpenError> {
    let store = store(profile(8, 40), kind);
    move |access| {
        Ok(match access {
            Access::ReadWrite => Box::new(store.open(pacing)?),
            Access::ReadOnly => Box::new(store.open_read_only(pacing)?),
        })
    }
}

conformance_suite!(page_mapped, fixture(FtlKind::PageMapped, Pacing::Virtual));
conformance_suite!(page_mapped_in_real_time, fixture(FtlKind::PageMapped, Pacing::Real));
conformance_suite!(sftl, fixture(FtlKind::Sftl, Pacing::Virtual));

#[test]
fn real_time_is_as_long_as_virtual_time() {
    let store = store(profile(8, 40), FtlKind::PageMapped);
    let mut device = store.open(Pacing::Real).expect("nothing has it open");
    let mut memory = coulter_device::AlignedMemory::zeroed(1 << 20);
    let begin = std::time::Instant::now();
    for at in 0..4 {
        blocking::write(&mut device, at << 20, &mut memory).expect("a write in range");
    }
    blocking::flush(&mut device).expect("power is on");
    let passed = begin.elapsed().as_nanos();
    drop(device);
    let emulated = u128::from(store.now());
    // 4 MiB over a link of 530 MB/s take eight milliseconds at least.
    assert!(emulated > 7_900_000, "{emulated}");
    assert!(passed >= emulated * 9 / 10, "{passed} ns of real time for {emulated}");
}

fn create_options(segment_size: u64, spare_percent: u32) -> CreateOptions {
    CreateOptions { segment_size: Some(segment_size), spare_percent, ..CreateOptions::default() }
}

/// Opens a volume on the drive.
fn open(store: &FlashStore) -> Volume {
    open_with(store, false)
}

fn open_with(store: &FlashStore, trim: bool) -> Volume {
    let device = Box::new(store.open(Pacing::Virtual).expect("nothing has it open"));
    Volume::open(device, OpenOptions { trim, ..OpenOptions::default() })
        .expect("a store lies there")
}

fn create(store: &FlashStore, options: &CreateOptions) {
    let device = store.open(Pacing::Virtual).expect("nothing has it open");
    coulter::create(Box::new(device), options).expect("it fits");
}

#[test]
fn a_volume_on_a_drive_keeps_what_was_flushed_over_power_cuts() {
    let mut cleaned = 0;
    for kind in FtlKind::ALL {
        let store = store(profile(32, 40), kind);
        create(&store, &create_options(2 << 20, 30));
        let content = Content::new(3);
        let mut random = Random::new(4);
        let mut durable: Vec<u64> = Vec::new();
        fill(&store, &content, &mut durable);
        for life in 0..6u64 {
            // The first cuts come early, so that they hit recovery, too.
            let cut = 300 + random.below(6000 * (1 + life));
            store.with(|drive| drive.cut_power_after(cut)).expect("nothing has it open");
            if let Ok(device) = store.open(Pacing::Virtual)
                && let Ok(volume) = Volume::open(Box::new(device), OpenOptions::default())
            {
                // Each way to reclaim, twice on each FTL.
                let ways = [Reclaim::CopyOut, Reclaim::HoleFill, Reclaim::Threaded];
                let reclaim = Some(ways[life as usize % ways.len()]);
                volume.tune(Retuning { reclaim, ..Retuning::default() });
                live(&volume, &content, &mut random, &mut durable, life);
                cleaned += volume.statistics().space.segments_cleaned;
                let _ = volume.abandon();
            }
            store.power_on().expect("nothing has it open");
            let volume = open(&store);
            let mut bytes = vec![0; BLOCK_SIZE];
            for (block, version) in durable.iter().enumerate().filter(|(_, v)| **v > 0) {
                volume.read_at((block * BLOCK_SIZE) as u64, &mut bytes).expect("it can be read");
                let origin = content.origin(&bytes).expect("whole content");
                assert_eq!(origin.block, block as u64, "{kind}");
                assert!(origin.version >= *version, "{kind}: block {block} is older than flushed");
            }
            volume.close().expect("power is on");
        }
    }
    assert!(cleaned > 20, "only {cleaned} segments were cleaned");
}

/// Writes every block once, so that there is something to reclaim.
fn fill(store: &FlashStore, content: &Content, durable: &mut Vec<u64>) {
    let volume = open(store);
    let blocks = volume.size() / BLOCK_SIZE as u64;
    let mut bytes = vec![0; BLOCK_SIZE];
    for block in 0..blocks {
        content.fill(&mut bytes, Origin { block, version: 1 });
        volume.write_at(block * BLOCK_SIZE as u64, &bytes).expect("power is on");
    }
    volume.close().expect("power is on");
    durable.resize(blocks as usize, 1);
}

/// Writes until the power fails; notes what was flushed.
fn live(
    volume: &Volume,
    content: &Content,
    random: &mut Random,
    durable: &mut Vec<u64>,
    life: u64,
) {
    let blocks = volume.size() / BLOCK_SIZE as u64;
    durable.resize(blocks as usize, 0);
    let mut bytes = vec![0; BLOCK_SIZE];
    for step in 0..400u64 {
        let mut written = Vec::new();
        for place in 0..16u64 {
            let (block, version) = (random.below(blocks), life << 32 | step << 8 | place | 1 << 40);
            content.fill(&mut bytes, Origin { block, version });
            if volume.write_at(block * BLOCK_SIZE as u64, &bytes).is_err() {
                return;
            }
            written.push((block, version));
        }
        if volume.flush().is_err() {
            return;
        }
        written.into_iter().for_each(|(block, version)| durable[block as usize] = version);
    }
}

/// Bytes programmed and bytes written to the drive, for each byte that the host wrote.
#[derive(Debug)]
struct Amplification {
    device: f64,
    total: f64,
}

/// What the drive is told of the volume's segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    /// Which are free: trim.
    Free,
    /// That, and the streams that the engine names.
    FreeAndNamed,
    /// Nothing, but it keeps segments that are written at the same time apart.
    Detects,
}

/// Random writes of a block until the store is in balance, then measured.
fn on_coulter(
    drive: Profile,
    options: &CreateOptions,
    pattern: Pattern,
    told: Told,
) -> Amplification {
    let mut ftl = FtlOptions::default();
    match told {
        Told::Nothing | Told::Free => {}
        Told::FreeAndNamed => ftl.placement = Placement::Handles { count: 8 },
        Told::Detects => ftl.placement = Placement::Handles { count: 4 },
    }
    let drive = Drive::new(drive, FtlKind::PageMapped, ftl, Keep::Bytes).expect("it works there");
    let store = FlashStore::new(drive);
    let segment_size = options.segment_size.expect("it is given");
    match told {
        Told::Nothing | Told::Free => Ok(()),
        Told::FreeAndNamed => store.follow_streams(8),
        Told::Detects => store.detect_streams(segment_size, 4),
    }
    .expect("nothing has it open");
    let trim = matches!(told, Told::Free | Told::FreeAndNamed);
    create(&store, options);
    let volume = open_with(&store, trim);
    let blocks = volume.size() / BLOCK_SIZE as u64;
    let bytes = vec![7; BLOCK_SIZE * 16];
    for first in (0..blocks).step_by(16) {
        let count = 16.min(blocks - first) as usize;
        let offset = first * BLOCK_SIZE as u64;
        volume.write_at(offset, &bytes[..count * BLOCK_SIZE]).expect("power is on");
    }
    let mut addresses = pattern.over(blocks, 5);
    let mut write = |volume: &Volume, count: u64| {
        // In batches, as a busy host: calls one by one would write a header block for each.
        std::thread::scope(|scope| {
            let threads: Vec<Vec<u64>> =
                (0..32).map(|_| (0..count / 32).map(|_| addresses.address()).collect()).collect();
            for places in threads {
                let bytes = &bytes[..BLOCK_SIZE];
                scope.spawn(move || {
                    for block in places {
                        let offset = block * BLOCK_SIZE as u64;
                        volume.write_at(offset, bytes).expect("power is on");
                    }
                });
            }
        });
    };
    write(&volume, 2 * blocks);
    volume.close().expect("power is on");
    let before = store.with(|drive| (*drive.counters(), *drive.nand().counters())).expect("closed");
    let volume = open_with(&store, trim);
    write(&volume, 2 * blocks);
    volume.close().expect("power is on");
    let after = store.with(|drive| (*drive.counters(), *drive.nand().counters())).expect("closed");
    let programmed = after.1.since(&before.1).programs.total() as f64;
    let written = after.0.since(&before.0).blocks_written as f64;
    let user = (2 * blocks / 32 * 32) as f64;
    Amplification { device: programmed / written, total: programmed / user }
}

/// The same writes to the drive itself.
fn plain(drive: Profile, pattern: Pattern, fill_percent: u32) -> f64 {
    let workload = Workload::Blocks { pattern, count: 1, reads_percent: 0 };
    let mut plan = Run::new(drive, FtlKind::PageMapped, workload);
    plan.ageing_percent = 300;
    plan.bytes = plan.profile.geometry.exported_bytes() * 2;
    plan.fill_percent = fill_percent;
    run(&plan).expect("it works").total_write_amplification
}

#[test]
fn a_volume_leaves_the_drive_nothing_to_copy() {
    for pattern in [Pattern::Uniform, Pattern::Zipf { theta: 0.99 }] {
        // Segments of several rows of erase blocks, as 32 MiB are on a drive of usual size.
        let drive = profile(256, 7);
        let [nothing, free, named, detects] =
            [Told::Nothing, Told::Free, Told::FreeAndNamed, Told::Detects]
                .map(|told| on_coulter(drive.clone(), &create_options(8 << 20, 20), pattern, told));
        let [full, as_full] = [100, 80].map(|percent| plain(drive.clone(), pattern, percent));
        println!(
            "{pattern}: with trim {free:.3?}, and streams {named:.3?}; told nothing {nothing:.3?}, \
             but finding streams {detects:.3?}; the drive alone {full:.3}, filled only as far {as_full:.3}"
        );
        for told in [&free, &named, &detects] {
            assert!(told.device <= 1.02, "{pattern}: {told:?}");
            assert!(told.total < full, "{pattern}: {told:?}, the drive alone {full}");
        }
    }
}
