//! Workloads of ACE beside writes and syncs that are out, with commands that complete in any order.

use super::ace::Op;
use super::history::{End, History};
use super::{Mount, Random, Volume, check, orphan_count};
use coulter::buffer::Buffer;
use coulter_files::Request;
use std::hash::{DefaultHasher, Hash, Hasher};

const VOLUME_BLOCKS: u64 = 2048;
const CACHE_BLOCKS: usize = 300;
/// Files that are written beside the workload, in a directory that is last in each listing.
const BESIDE: [&str; 2] = ["zz/x", "zz/y"];

fn hashed(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The tree without the directory beside.
fn tree(mount: &mut Mount) -> u64 {
    let dump = mount.dump();
    hashed(dump.lines().filter(|line| !line.starts_with("/zz")).collect::<Vec<_>>())
}

/// The volume that a workload begins with.
pub struct Begin(Volume);

impl Begin {
    pub fn new(ops: &[Op]) -> Begin {
        let mut mount = Mount::new(VOLUME_BLOCKS, CACHE_BLOCKS, 1);
        mount.mkdir("zz").expect("room");
        for path in BESIDE {
            mount.create(path).expect("room");
        }
        for (number, op) in (1..).zip(ops) {
            mount.perform(*op, number).expect("the tree is made");
        }
        mount.sync();
        mount.settle();
        Begin(mount.volume().cut(mount.volume().log.len()))
    }

    /// The tree before and after each operation.
    fn states(&self, ops: &[Op]) -> Vec<u64> {
        let mut mount = Mount::of(self.0.clone(), CACHE_BLOCKS, 1);
        let mut states = vec![tree(&mut mount)];
        for (number, op) in (1..).zip(ops) {
            let _ = mount.perform(*op, number);
            states.push(tree(&mut mount));
        }
        states
    }

    /// Does the operations beside others, and cuts the log everywhere. Returns how often, and the
    /// commands that were out when an operation began.
    pub fn cut_everywhere(&self, ops: &[Op], seed: u64) -> (u64, usize) {
        let states = self.states(ops);
        let mut workload = Workload::new(self.0.clone(), states[0], seed);
        for (number, op) in (1..).zip(ops) {
            workload.beside();
            workload.sync();
            workload.beside();
            workload.out += workload.mount.backend.out_count();
            workload.history.begin(0, states[number]);
            let _ = workload.mount.perform(*op, number as u64);
            workload.history.end(0, End::Done);
            workload.take_answers();
        }
        workload.sync();
        workload.complete(1000);
        let volume = workload.mount.volume();
        for kept in 0..=volume.log.len() {
            workload.check(kept, &format!("{ops:?} with seed {seed} cut after {kept}"));
        }
        (volume.log.len() as u64 + 1, workload.out)
    }
}

/// A workload under way.
struct Workload {
    mount: Mount,
    history: History,
    random: Random,
    inodes: [u64; BESIDE.len()],
    contents: [Vec<u8>; BESIDE.len()],
    writes: [Option<u64>; BESIDE.len()],
    syncs: Vec<(u64, Vec<usize>)>,
    out: usize,
}

impl Workload {
    fn new(volume: Volume, state: u64, seed: u64) -> Workload {
        let mut mount = Mount::of(volume, CACHE_BLOCKS, seed);
        let inodes = BESIDE.map(|path| mount.path(path).expect("it is there"));
        let empty = hashed(Vec::<u8>::new());
        mount.settle();
        mount.backend.is_late = true;
        Workload {
            mount,
            history: History::new(&[state, empty, empty]),
            random: Random::new(seed ^ 99),
            inodes,
            contents: Default::default(),
            writes: [None; BESIDE.len()],
            syncs: Vec::new(),
            out: 0,
        }
    }

    /// Begins writes, small and large, over old bytes and new ones; and lets some commands
    /// complete.
    fn beside(&mut self) {
        for file in 0..BESIDE.len() {
            if self.writes[file].is_some() {
                continue;
            }
            let from = (self.random.below(4) * 3000) as usize;
            let large = if self.random.chance(50) { 140_000 } else { 5000 };
            let bytes = vec![self.random.bits() as u8; large];
            let content = &mut self.contents[file];
            content.resize(content.len().max(from + bytes.len()), 0);
            content[from..from + bytes.len()].copy_from_slice(&bytes);
            self.history.begin(file + 1, hashed(&*content));
            let (inode, buffer) = (self.inodes[file], Buffer::copied_from(&bytes));
            let (offset, kills_privileges, sync) = (from as u64, false, false);
            let request = Request::Write { inode, offset, buffer, kills_privileges, sync };
            self.writes[file] = Some(self.mount.submit(request));
        }
        self.take_answers();
        let count = self.random.below(4);
        self.complete(count);
    }

    fn sync(&mut self) {
        let least = self.history.answered();
        self.syncs.push((self.mount.submit(Request::Sync), least));
        self.take_answers();
    }

    fn complete(&mut self, count: u64) {
        for _ in 0..count {
            self.mount.complete_one();
            self.take_answers();
            self.mount.files.assert_invariants();
        }
    }

    fn take_answers(&mut self) {
        for (file, write) in (1..).zip(&mut self.writes) {
            if let Some(answer) = write.and_then(|write| self.mount.answer(write)) {
                answer.expect("there is room");
                self.history.end(file, End::Done);
                *write = None;
            }
        }
        let (mount, history) = (&mut self.mount, &mut self.history);
        self.syncs.retain(|(sync, least)| {
            let Some(answer) = mount.answer(*sync) else { return true };
            answer.expect("nothing fails");
            history.cover(mount.volume().durable, least.clone());
            false
        });
    }

    fn check(&self, kept: usize, what: &str) {
        assert!(self.syncs.is_empty(), "{what}: all syncs were answered");
        let left = self.mount.volume().cut(kept);
        let findings = check(&left);
        assert!(findings.is_empty(), "{what}: {findings:?}");
        let mut mount = Mount::of(left, CACHE_BLOCKS, kept as u64);
        let mut found = vec![tree(&mut mount)];
        for inode in self.inodes {
            found.push(hashed(mount.read(inode, 0, 1 << 18).expect("it is there")));
        }
        if let Err(how) = self.history.explain(kept, &found) {
            panic!("{what}: {how}");
        }
        mount.sync();
        mount.settle();
        let findings = check(mount.volume());
        assert!(findings.is_empty(), "{what}, mounted: {findings:?}");
        assert_eq!(orphan_count(mount.volume()), 0, "{what}: orphans go");
    }
}
