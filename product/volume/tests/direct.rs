//! Goal: clients that read the device themselves see what the contract says, whatever is written,
//! discarded, cleaned and trimmed meanwhile.

use coulter::buffer::Buffer;
use coulter::service::{BlockService, Operation, Request};
use coulter::tuning::Retuning;
use coulter::{Acknowledge, CreateOptions, OpenOptions, Volume, create, device};
use coulter_workload::Random;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

const BLOCK: usize = 4096;
/// Blocks that one writer writes, in order, and nobody else.
const GROUP: u64 = 4;
/// Every so many changes of a block is a discard.
const DISCARD_EVERY: u64 = 7;

struct Store(NamedTempFile);

impl Store {
    fn new(size: u64) -> Store {
        // Where tests have a disk: what is in memory alone knows no O_DIRECT, which is fine too.
        let file = NamedTempFile::new().expect("there is room");
        file.as_file().set_len(size).expect("there is room");
        let store = Store(file);
        let options = CreateOptions {
            segment_size: Some(2 << 20),
            spare_percent: 25,
            ..CreateOptions::default()
        };
        create(store.device(), &options).expect("it is large enough");
        store
    }

    fn device(&self) -> Box<dyn device::Device> {
        device::open_path(self.0.path(), &device::OpenOptions::default()).expect("nobody has it")
    }

    /// `None` where the system refuses io_uring: then there are no such clients.
    fn open(&self, options: OpenOptions) -> Option<Volume> {
        let device = self.device();
        let is_uring = device.read_source().is_some();
        let volume = Volume::open(device, options).expect("it opens");
        if !is_uring {
            println!("SKIPPED: this system refuses io_uring");
            return None;
        }
        Some(volume)
    }
}

/// What a block holds after its change of this number.
fn content(lba: u64, version: u64, block: &mut [u8]) {
    for (index, word) in block.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let mixed = (lba << 32 ^ version).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        *word = match index {
            0 => lba.to_le_bytes(),
            1 => version.to_le_bytes(),
            _ => mixed.rotate_left(index as u32).to_le_bytes(),
        };
    }
}

fn is_discard(version: u64) -> bool {
    version.is_multiple_of(DISCARD_EVERY)
}

/// The changes of every block: how many were begun, answered, and seen by anybody.
struct Model {
    begun: Vec<AtomicU64>,
    answered: Vec<AtomicU64>,
    seen: Vec<AtomicU64>,
}

impl Model {
    fn new(blocks: u64) -> Model {
        let none = || (0..blocks).map(|_| AtomicU64::new(0)).collect();
        Model { begun: none(), answered: none(), seen: none() }
    }

    fn blocks(&self) -> u64 {
        self.begun.len() as u64
    }

    /// The oldest change that a read which begins now may see.
    fn floor(&self, lba: u64) -> u64 {
        let answered = self.answered[lba as usize].load(Ordering::SeqCst);
        answered.max(self.seen[lba as usize].load(Ordering::SeqCst))
    }

    fn check(&self, lba: u64, floor: u64, block: &[u8]) {
        let begun = self.begun[lba as usize].load(Ordering::SeqCst);
        if block.iter().all(|byte| *byte == 0) {
            let zero = (floor..=begun).any(is_discard);
            assert!(zero, "block {lba} is zero, its changes being {floor} to {begun}");
            return;
        }
        let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight"));
        let version = word(8);
        let mut expected = [0; BLOCK];
        content(lba, version, &mut expected);
        assert!(block == expected, "block {lba} holds what was never written: {version}");
        let range = floor..=begun;
        assert!(range.contains(&version), "block {lba} is of change {version}, not {range:?}");
        self.seen[lba as usize].fetch_max(version, Ordering::SeqCst);
    }
}

/// Changes blocks of its own groups, a few at a time, until the end.
fn write(volume: &Volume, model: &Model, writer: u64, writers: u64, ended: &AtomicBool) {
    let mut random = Random::new(writer + 1);
    let mut buffer = Buffer::zeroed(GROUP as usize * BLOCK);
    let groups = model.blocks() / GROUP / writers;
    let begun = Instant::now();
    while !ended.load(Ordering::Relaxed) {
        // All writers pause at once: nothing is put in while a write may be answered before it has its place.
        while begun.elapsed().as_millis() % 100 >= 70 {
            std::thread::sleep(Duration::from_millis(2));
        }
        let group = random.below(groups) * writers + writer;
        let first = group * GROUP + random.below(GROUP);
        let count = 1 + random.below((group + 1) * GROUP - first);
        // All of one kind: the next change of the first block says which.
        let next = |lba: u64| model.answered[lba as usize].load(Ordering::SeqCst) + 1;
        let is_discarded = is_discard(next(first));
        let same = |lba: &u64| is_discard(next(*lba)) == is_discarded;
        let count = (first..first + count).take_while(same).count() as u64;
        let lbas = first..first + count;
        for lba in lbas.clone() {
            model.begun[lba as usize].store(next(lba), Ordering::SeqCst);
        }
        let (offset, length) = (first * BLOCK as u64, count * BLOCK as u64);
        if is_discarded {
            volume.discard(offset, length).expect("it is discarded");
        } else {
            for (lba, block) in lbas.clone().zip(buffer.chunks_mut(BLOCK)) {
                content(lba, next(lba), block);
            }
            volume.write_at(offset, &buffer[..length as usize]).expect("it is written");
        }
        for lba in lbas {
            let version = next(lba);
            model.answered[lba as usize].store(version, Ordering::SeqCst);
        }
    }
}

/// Reads one request after the other.
fn read(volume: &Volume, model: &Model, seed: u64, ended: &AtomicBool) {
    let mut random = Random::new(seed);
    let mut buffer = Buffer::zeroed(GROUP as usize * BLOCK);
    while !ended.load(Ordering::Relaxed) {
        let count = 1 + random.below(GROUP);
        let first = random.below(model.blocks() - count);
        let floors: Vec<u64> = (first..first + count).map(|lba| model.floor(lba)).collect();
        let bytes = &mut buffer[..count as usize * BLOCK];
        volume.read_at(first * BLOCK as u64, bytes).expect("it is read");
        for ((lba, floor), block) in (first..).zip(floors).zip(bytes.chunks(BLOCK)) {
            model.check(lba, floor, block);
        }
    }
}

/// The same, many at a time.
fn read_many(volume: &Volume, model: &Model, seed: u64, ended: &AtomicBool) {
    const DEPTH: u64 = 16;
    let mut random = Random::new(seed);
    let mut session = volume.connect();
    let mut asked: Vec<(u64, Vec<u64>)> = vec![(0, Vec::new()); DEPTH as usize];
    let mut idle: Vec<(u64, Buffer)> = (0..DEPTH).map(|tag| (tag, Buffer::zeroed(BLOCK))).collect();
    let mut completions = Vec::new();
    loop {
        let goes_on = !ended.load(Ordering::Relaxed);
        while goes_on && let Some((tag, buffer)) = idle.pop() {
            let lba = random.below(model.blocks());
            asked[tag as usize] = (lba, vec![model.floor(lba)]);
            let (offset, length) = (lba * BLOCK as u64, BLOCK as u64);
            session.submit(Request { tag, operation: Operation::Read, offset, length, buffer });
        }
        if idle.len() as u64 == DEPTH {
            return;
        }
        match random.below(3) {
            0 => session.complete(&mut completions, None),
            1 => session.complete(&mut completions, Some(Duration::ZERO)),
            _ => {
                session.kick();
                let mut fds = [rustix::event::PollFd::from_borrowed_fd(
                    session.completion_fd(),
                    rustix::event::PollFlags::IN,
                )];
                rustix::event::poll(&mut fds, None).expect("a descriptor can be polled");
                session.complete(&mut completions, Some(Duration::ZERO));
            }
        }
        for completion in completions.drain(..) {
            completion.result.expect("it is read");
            let (lba, floors) = &asked[completion.tag as usize];
            model.check(*lba, floors[0], &completion.buffer);
            idle.push((completion.tag, completion.buffer));
        }
    }
}

fn hammer(acknowledge: Acknowledge, read_cache: u64) {
    let seconds = std::env::var("COULTER_HAMMER_SECONDS").ok().and_then(|s| s.parse().ok());
    let store = Store::new(48 << 20);
    let options = OpenOptions { trim: true, acknowledge, read_cache, ..OpenOptions::default() };
    let Some(volume) = store.open(options) else { return };
    let model = Model::new(volume.size() / BLOCK as u64 / GROUP * GROUP);
    let ended = AtomicBool::new(false);
    let writers = 2;
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let (volume, model, ended) = (&volume, &model, &ended);
            scope.spawn(move || write(volume, model, writer, writers, ended));
        }
        for reader in 0..2 {
            let (volume, model, ended) = (&volume, &model, &ended);
            scope.spawn(move || read(volume, model, 100 + reader, ended));
            scope.spawn(move || read_many(volume, model, 200 + reader, ended));
        }
        std::thread::sleep(Duration::from_secs(seconds.unwrap_or(4)));
        // A machine with other work comes later to where segments are cleaned.
        let patience = Instant::now() + Duration::from_secs(60);
        while volume.statistics().space.segments_cleaned == 0 && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(50));
        }
        ended.store(true, Ordering::Relaxed);
    });
    let statistics = volume.statistics();
    let used = statistics.read_cache;
    println!("{used:?}, {:?}", statistics.space);
    assert!(used.hits > 100 && used.misses > 0, "clients read by themselves: {used:?}");
    assert_eq!(used.mismatches, 0, "nothing changed under a client");
    assert!(statistics.space.segments_cleaned > 0, "there was cleaning meanwhile");
    let floors = |lba: u64| model.answered[lba as usize].load(Ordering::SeqCst);
    let mut block = Buffer::zeroed(BLOCK);
    for lba in 0..model.blocks() {
        volume.read_at(lba * BLOCK as u64, &mut block).expect("it is read");
        model.check(lba, floors(lba), &block);
    }
    volume.close().expect("it closes");
}

#[test]
fn clients_see_what_the_contract_says_while_everything_is_moved() {
    hammer(Acknowledge::Written, 8 << 20);
}

/// Many addresses share a slot.
#[test]
fn clients_see_what_the_contract_says_with_a_small_cache() {
    hammer(Acknowledge::Written, 32 << 10);
}

/// What is answered is not on the device yet.
#[test]
fn clients_see_what_the_contract_says_of_writes_answered_from_memory() {
    hammer(Acknowledge::Buffered, 8 << 20);
}

fn patterned(version: u64) -> Buffer {
    let mut buffer = Buffer::zeroed(BLOCK);
    content(0, version, &mut buffer);
    buffer
}

#[test]
fn a_block_that_was_read_once_is_read_without_the_loop() {
    let store = Store::new(48 << 20);
    let Some(volume) = store.open(OpenOptions::default()) else { return };
    volume.write_at(0, &patterned(1)).expect("it is written");
    let before = volume.statistics();
    let mut block = Buffer::zeroed(BLOCK);
    for _ in 0..10 {
        volume.read_at(0, &mut block).expect("it is read");
    }
    assert!(block[..] == patterned(1)[..]);
    let after = volume.statistics();
    assert_eq!(after.read_cache.hits - before.read_cache.hits, 10);
    assert_eq!(after.requests.reads - before.requests.reads, 10, "they count as all reads do");
    assert_eq!(after.read_latency.count - before.read_latency.count, 10);
    assert_eq!(after.map.hits, before.map.hits, "the loop looked nothing up");
    volume.discard(0, BLOCK as u64).expect("it is discarded");
    volume.read_at(0, &mut block).expect("it is read");
    assert!(block.iter().all(|byte| *byte == 0), "a discard is seen at once");
    volume.close().expect("it closes");
}

#[test]
fn without_a_cache_the_loop_reads() {
    let store = Store::new(48 << 20);
    let options = OpenOptions { read_cache: 0, ..OpenOptions::default() };
    let Some(volume) = store.open(options) else { return };
    volume.write_at(0, &patterned(1)).expect("it is written");
    let mut block = Buffer::zeroed(BLOCK);
    volume.read_at(0, &mut block).expect("it is read");
    assert_eq!(volume.statistics().read_cache, coulter::statistics::ReadCacheUse::default());
    volume.close().expect("it closes");
}

/// The loop says which block, and counts it.
#[test]
fn a_damaged_block_is_an_error_also_if_a_client_reads_it() {
    let store = Store::new(48 << 20);
    let Some(volume) = store.open(OpenOptions::default()) else { return };
    volume.write_at(0, &patterned(1)).expect("it is written");
    let mut block = Buffer::zeroed(BLOCK);
    volume.read_at(0, &mut block).expect("it is read");
    assert_eq!(volume.statistics().read_cache.hits, 1);
    damage(store.0.path(), &patterned(1));
    let error = volume.read_at(0, &mut block).expect_err("it is damaged");
    assert_eq!(error, coulter::service::RequestError::Corrupt { block: 0 });
    let statistics = volume.statistics();
    assert_eq!(statistics.requests.corrupt, 1);
    assert!(statistics.read_cache.mismatches > 0);
    volume.close().expect("it closes");
}

/// Changes a byte of every copy of a block in a file.
fn damage(path: &std::path::Path, block: &[u8]) {
    use std::os::unix::fs::FileExt;
    let bytes = std::fs::read(path).expect("it can be read");
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("it can be written");
    let copies = bytes.chunks(BLOCK).enumerate().filter(|(_, copy)| *copy == block);
    let mut found = 0;
    for (index, _) in copies {
        let offset = (index * BLOCK + 100) as u64;
        file.write_all_at(&[!block[100]], offset).expect("it can be written");
        found += 1;
    }
    file.sync_all().expect("it is written");
    assert!(found > 0, "the block is somewhere");
}

/// A session that outlives its volume keeps the file from nobody, and completes with `Closed`.
#[test]
fn after_the_end_nothing_is_read_and_the_file_is_free() {
    let store = Store::new(48 << 20);
    let Some(volume) = store.open(OpenOptions::default()) else { return };
    volume.write_at(0, &patterned(1)).expect("it is written");
    let mut session = volume.connect();
    let ask = |session: &mut dyn coulter::service::Session| {
        for tag in 0..4 {
            let buffer = Buffer::zeroed(BLOCK);
            let (offset, length) = (0, BLOCK as u64);
            session.submit(Request { tag, operation: Operation::Read, offset, length, buffer });
        }
        let mut completions = Vec::new();
        let begun = Instant::now();
        while session.outstanding() > 0 {
            session.complete(&mut completions, None);
            assert!(begun.elapsed() < Duration::from_secs(20), "every request ends");
        }
        completions.iter().filter(|completion| completion.result.is_ok()).count()
    };
    assert_eq!(ask(&mut *session), 4);
    assert_eq!(volume.statistics().read_cache.hits, 4);
    volume.close().expect("it closes");
    assert_eq!(ask(&mut *session), 0);
    let again = store.open(OpenOptions { tuning: Retuning::default(), ..OpenOptions::default() });
    again.expect("it was opened before").close().expect("it closes");
}
