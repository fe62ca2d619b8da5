//! One host: a device of a few cells, and what ships it.

use crate::canary::Canary;
use crate::careless::WithoutHorizon;
use crate::contents::{CELL_SIZE, DEVICE_SIZE, contents, fill};
use crate::oracle::Cells;
use crate::plan::{CELL_COUNT, Op};
use crate::service::{HostBucket, Once, Persistent, Shared, Truth};
use coulter_object::bucket::{Bucket, Created};
use coulter_object::history::{self, snapshot, takeover, takeover::Claim};
use coulter_object::layout::{Stage, VolumeId, data};
use coulter_object::publish::{self, Outcome};
use coulter_object::ranges::RangeSet;
use coulter_object::ship::device::{Opening, adopt, begin};
use coulter_object::ship::housekeeper::Housekeeper;
use coulter_object::ship::kept::{Bundle, Kept};
use coulter_object::ship::marks::Marks;
use coulter_object::ship::shipper::{Action, JobId};
use coulter_object::{Ack, ReplicaError, Settings, Shipper};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a page of what is kept in memory: two cells.
const PAGE_SIZE: u64 = 2 * CELL_SIZE;
/// Steps of work that one wait takes at most.
const STEPS_MAX: u32 = 2000;

/// Objects of three cells, commits that carry one, and a manifest for every third commit.
const SETTINGS: Settings = Settings {
    ack: Ack::Remote,
    every: Duration::from_millis(4),
    early_bytes: 5 * CELL_SIZE,
    lag_max: 7 * CELL_SIZE,
    object_size: 3 * CELL_SIZE,
    inline_max: CELL_SIZE,
    captures_max: 2,
    keep_max: 0,
    manifest_every: 3,
    look_every: Duration::from_secs(1),
};

/// Why a life has ended before its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Killed, or a claim that did not succeed: the host begins anew.
    Lost,
    /// Another host has the volume.
    Fenced,
}

/// Something to be done in the background, in any order.
#[derive(Debug)]
enum Job {
    /// Reads back what is missing of these bytes: where it goes, and the range.
    Read(JobId, Vec<u8>, Vec<(usize, Range<u64>)>),
    Create(JobId, String, Vec<u8>),
    /// Creates an object of what was kept.
    CreateOf(JobId, String, Bundle),
}

/// The volume while this host has it.
struct Live {
    volume: VolumeId,
    epoch: u64,
    shipper: Shipper,
    house: Housekeeper,
    jobs: Vec<Job>,
    /// What need not be read back.
    kept: Kept,
    /// Manifests and collections, which are done in order.
    papers: VecDeque<Action>,
    /// Flushes that wait for their answer, and the state that they acknowledge.
    flushes: BTreeMap<u64, usize>,
    /// What each object captures.
    captured: BTreeMap<JobId, Vec<Range<u64>>>,
    now: Duration,
    token: u64,
}

/// See the [module](self).
pub(crate) struct Host {
    shared: Arc<Shared>,
    index: usize,
    bucket: Arc<HostBucket>,
    patience: Persistent,
    opening: Opening,
    device: Cells,
    /// What a power cut leaves at least.
    durable: Cells,
    /// The epoch that its local store belongs to.
    store_epoch: Option<u64>,
    live: Option<Live>,
}

impl Host {
    pub(crate) fn new(shared: Arc<Shared>, index: usize) -> Host {
        let bucket = Arc::new(HostBucket { shared: shared.clone(), host: index });
        let opening = Opening {
            bucket: bucket.clone(),
            settings: SETTINGS,
            marks: Marks::in_memory(),
            store: [1; 16],
            owner: format!("host {index}"),
            content: std::iter::once(0..DEVICE_SIZE).collect(),
            reseed: false,
            has_ended: |_| true,
        };
        let patience = Persistent { shared: shared.clone(), host: index };
        let (device, durable) = (Cells::default(), Cells::default());
        Host {
            shared,
            index,
            bucket,
            patience,
            opening,
            device,
            durable,
            store_epoch: None,
            live: None,
        }
    }

    /// Does what its plan says.
    pub(crate) fn run(mut self, ops: &[Op]) {
        for op in ops {
            let outcome = self.perform(*op);
            if self.shared.violation().is_some() {
                return;
            }
            if let Err(ended) = outcome {
                self.end_life(ended);
            }
        }
        if self.live.is_some() {
            let _ = self.drain();
        }
    }

    fn perform(&mut self, op: Op) -> Result<(), Ended> {
        if op == Op::TakeOver {
            if self.live.take().is_some() {
                self.lose_power();
            }
            return self.take_over();
        }
        if self.live.is_none() {
            self.open()?;
        }
        match op {
            Op::Write(cell) => self.change(cell, true),
            Op::Discard(cell) => self.change(cell, false),
            Op::Flush => self.flush(),
            Op::Work(steps) => {
                for _ in 0..steps {
                    self.work()?;
                }
                Ok(())
            }
            Op::Look => self.look(),
            Op::Keep(name) => self.keep(&format!("pin {name}")),
            Op::GiveUp(name) => self.give_up(&format!("pin {name}")),
            Op::PowerCut => Err(Ended::Lost),
            Op::TakeOver => unreachable!("it is done above"),
        }
    }

    fn end_life(&mut self, ended: Ended) {
        let live = self.live.take();
        self.shared.revive(self.index);
        if live.is_some() {
            self.lose_power();
        }
        if ended == Ended::Fenced {
            // Its store is of the past: what it does next it does with a copy.
            self.store_epoch = None;
        }
    }

    /// The device keeps any part of what was not flushed.
    fn lose_power(&mut self) {
        let Some(epoch) = self.store_epoch else { return };
        let mut state = self.shared.lock();
        state.tally.power_cuts += 1;
        for cell in 0..CELL_COUNT {
            if self.device[cell] != self.durable[cell] && state.chooser.any(2) == 1 {
                self.device[cell] = self.durable[cell];
            }
        }
        self.durable = self.device;
        let checked = state.oracle.check_local(epoch, self.device);
        state.check(checked);
    }

    /// Goes on with the local store, or makes the volume, or takes a copy.
    fn open(&mut self) -> Result<(), Ended> {
        if self.store_epoch.is_none() && self.index > 0 {
            return self.take_over();
        }
        let is_lost = self.is_taken_over();
        let began = match begin(&mut self.opening, DEVICE_SIZE, &self.patience) {
            // The mistake: no process of the other host runs.
            Err(ReplicaError::InUse(_)) if self.canary() == Some(Canary::TakenBack) => {
                let owner = self.opening.claimant();
                let claim = takeover::claim(&*self.bucket, &owner, 0, &self.patience);
                claim.map(|claim| (claim, self.opening.content.clone()))
            }
            other => other,
        };
        if is_lost && began.is_ok() {
            let index = self.index;
            self.shared.lock().violated(format!("host {index} undoes a take-over"));
            return Err(Ended::Lost);
        }
        match began {
            // The copy may be newer than what a power cut has left here, or older.
            Ok((claim, _)) if self.canary() == Some(Canary::MarksIgnored) && claim.epoch > 1 => {
                self.start(claim, RangeSet::new())
            }
            Ok((claim, unsure)) => self.start(claim, unsure),
            Err(ReplicaError::Diverged(_) | ReplicaError::InUse(_)) => self.take_over(),
            Err(error) => self.refused(error),
        }
    }

    /// Whether the volume is another store's: a take-over has begun that is not this store's claim.
    fn is_taken_over(&self) -> bool {
        let truth = Truth(self.shared.clone());
        let Ok((record, _)) = history::record(&truth, &Once) else { return false };
        let newest = record.newest().filter(|newest| newest.stage == Stage::Begun);
        let ours = self.opening.marks.owner().map_or(0, |owner| owner.epoch);
        let is_signed = record.owner.ends_with(&self.opening.marks.signature());
        newest.is_some_and(|newest| newest.epoch > ours) && !is_signed
    }

    fn take_over(&mut self) -> Result<(), Ended> {
        let claim = takeover::claim(&*self.bucket, "other", 0, &self.patience);
        let claim = match claim {
            Ok(claim) => claim,
            Err(error) => return self.refused(error),
        };
        if self.canary() == Some(Canary::FenceDeleted) {
            let _ = Truth(self.shared.clone()).delete(&claim.after.next().name());
        }
        let is_over_old = self.canary() == Some(Canary::RestoredOverOld);
        let mut device = if is_over_old { self.device } else { Cells::default() };
        match fill(&*self.bucket, &claim, &claim.history.pieces, &mut device, &self.patience) {
            Ok(()) => {}
            Err(error) => return self.refused(error),
        }
        (self.device, self.durable) = (device, device);
        self.opening.marks = Marks::in_memory();
        adopt(&mut self.opening.marks, &claim, DEVICE_SIZE, false).expect("marks in memory");
        self.start(claim, RangeSet::new())
    }

    /// A claim, or a copy, did not come about.
    fn refused(&mut self, error: ReplicaError) -> Result<(), Ended> {
        let is_legal = matches!(
            error,
            // Another host was first; or it has the volume by now, and has collected what this one reads.
            ReplicaError::Bucket(_) | ReplicaError::TakenOver | ReplicaError::NoVolume
        ) || matches!(&error, ReplicaError::Missing(_) | ReplicaError::Broken(_))
            && self.is_overtaken();
        if !is_legal {
            self.shared.lock().violated(format!("host {}: {error}", self.index));
        }
        Err(Ended::Lost)
    }

    /// Whether the record names an epoch that nobody but another host can have made.
    fn is_overtaken(&self) -> bool {
        let truth = Truth(self.shared.clone());
        let record = history::record(&truth, &Once);
        record.is_ok_and(|(record, _)| record.owner != self.opening.claimant())
    }

    fn start(&mut self, claim: Claim, unsure: RangeSet) -> Result<(), Ended> {
        self.shared.lock().tally.claims += 1;
        check_claim(&self.shared, &claim);
        check_pins(&self.shared);
        let epoch = claim.epoch;
        {
            let mut state = self.shared.lock();
            if state.is_violated() {
                return Err(Ended::Lost);
            }
            // What the copy holds, and then what is here.
            state.oracle.begins_with(epoch, self.device);
        }
        self.store_epoch = Some(epoch);
        let volume = claim.record.volume;
        let shipper = Shipper::new(SETTINGS, volume, claim.history, unsure);
        let house = Housekeeper::new(self.bucket.clone(), claim.record, claim.tag);
        self.live = Some(Live {
            volume,
            epoch,
            shipper,
            house,
            jobs: Vec::new(),
            // In every third epoch nothing is kept, and in others too little.
            kept: Kept::new(epoch % 3 * 2 * PAGE_SIZE, PAGE_SIZE),
            papers: VecDeque::new(),
            flushes: BTreeMap::new(),
            captured: BTreeMap::new(),
            now: Duration::ZERO,
            token: 0,
        });
        Ok(())
    }

    fn canary(&self) -> Option<Canary> {
        self.shared.lock().canary
    }

    fn live(&mut self) -> &mut Live {
        self.live.as_mut().expect("the host has the volume")
    }

    fn change(&mut self, cell: usize, is_write: bool) -> Result<(), Ended> {
        let start = cell as u64 * CELL_SIZE;
        let range = start..start + CELL_SIZE;
        if self.canary() != Some(Canary::MixedCommit) {
            let mut steps = 0;
            while !self.live().shipper.admits(&range) {
                self.work()?;
                steps += 1;
                assert!(steps < STEPS_MAX, "a write is let through some time");
            }
        }
        self.opening.marks.set(&[0]).expect("marks in memory");
        let epoch = self.live().epoch;
        let mut state = self.shared.lock();
        state.stamp += 1;
        self.device[cell] = if is_write { state.stamp } else { 0 };
        state.oracle.changed(epoch, self.device);
        drop(state);
        let is_stale = self.canary() == Some(Canary::StaleKept);
        let bytes = self.device[cell].to_le_bytes();
        let Live { shipper, kept, .. } = self.live();
        if is_write {
            shipper.handle_written(range.clone());
            // The mistake: what is there already is not written over.
            if !(is_stale && kept.holds(&range)) {
                kept.keep(&range, &bytes);
            }
        } else {
            shipper.handle_discarded(range.clone());
            kept.forget(&range);
        }
        kept.assert_invariants();
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Ended> {
        let canary = self.canary();
        if canary != Some(Canary::NoLocalFlush) {
            self.durable = self.device;
        }
        let epoch = self.live().epoch;
        let newest = self.shared.lock().oracle.newest(epoch);
        let live = self.live();
        live.token += 1;
        let token = live.token;
        live.flushes.insert(token, newest);
        live.shipper.handle_flush(token);
        live.shipper.handle_flushed(token);
        if canary == Some(Canary::EarlyAnswer) {
            self.acknowledge(token);
            return Ok(());
        }
        let mut steps = 0;
        while self.live().flushes.contains_key(&token) {
            self.work()?;
            steps += 1;
            assert!(steps < STEPS_MAX, "a flush is answered some time");
        }
        Ok(())
    }

    /// Looks whether the volume is its own still, and answers a read if so.
    fn look(&mut self) -> Result<(), Ended> {
        let Live { volume, epoch, .. } = *self.live();
        match takeover::is_another_hosts(&*self.bucket, volume, epoch, &Once) {
            Ok(true) if self.canary() != Some(Canary::LookIgnored) => return Err(self.fenced()),
            Ok(_) => {}
            Err(_) if self.shared.is_over(self.index) => return Err(Ended::Lost),
            // It knows no more than before.
            Err(_) => return Ok(()),
        }
        let mut state = self.shared.lock();
        let checked = state.oracle.answers(epoch);
        state.check(checked);
        Ok(())
    }

    fn acknowledge(&mut self, token: u64) {
        let live = self.live();
        let epoch = live.epoch;
        let Some(state_index) = live.flushes.remove(&token) else { return };
        let mut state = self.shared.lock();
        state.tally.acknowledged += 1;
        let checked = state.oracle.acknowledged(epoch, state_index);
        state.check(checked);
    }

    /// Does one thing that waits to be done.
    fn work(&mut self) -> Result<(), Ended> {
        let live = self.live();
        live.now += Duration::from_millis(1);
        while let Some(action) = live.shipper.poll(live.now) {
            match action {
                Action::Read { job, ranges } => {
                    live.captured.insert(job, ranges.clone());
                    gather(live, job, &ranges);
                }
                Action::Create { job, name, bytes } => {
                    live.jobs.push(Job::Create(job, name, bytes))
                }
                Action::Flushed(token) => {
                    self.acknowledge(token);
                    return Ok(());
                }
                paper @ (Action::Manifest { .. } | Action::Collect { .. }) => {
                    live.papers.push_back(paper);
                }
            }
        }
        if live.shipper.is_fenced() {
            return Err(self.fenced());
        }
        let (jobs, papers) = (live.jobs.len(), usize::from(!live.papers.is_empty()));
        if jobs + papers == 0 {
            return Ok(());
        }
        let choice = self.shared.lock().chooser.any(jobs + papers);
        if choice == jobs {
            let paper = self.live().papers.pop_front().expect("there is one");
            return self.do_paper(paper);
        }
        match self.live().jobs.remove(choice) {
            Job::Read(job, mut bytes, missing) => {
                for (start, range) in missing {
                    let found = self.read(std::slice::from_ref(&range));
                    bytes[start..start + found.len()].copy_from_slice(&found);
                }
                self.live().shipper.handle_read(job, bytes, 0);
                Ok(())
            }
            Job::CreateOf(job, name, bundle) => {
                let mut bytes = Vec::new();
                bundle.copy_into(&mut bytes);
                let live = self.live();
                live.kept.give_back(bundle);
                data::seal(&mut bytes, live.volume, &name);
                self.create(job, &name, &bytes)
            }
            Job::Create(job, name, bytes) => self.create(job, &name, &bytes),
        }
    }

    fn read(&self, ranges: &[Range<u64>]) -> Vec<u8> {
        let all: Vec<u8> = self.device.iter().flat_map(|cell| cell.to_le_bytes()).collect();
        let parts = ranges.iter().map(|range| &all[range.start as usize..range.end as usize]);
        parts.flatten().copied().collect()
    }

    fn create(&mut self, job: JobId, name: &str, bytes: &[u8]) -> Result<(), Ended> {
        let is_ours = match self.canary() {
            Some(Canary::NameReused) if name.starts_with("d/") => {
                match publish::create(&*self.bucket, name, bytes, &Once) {
                    Ok(outcome) => matches!(outcome, Outcome::Ours(_)),
                    Err(_) => {
                        let ranges = self.live().captured.get(&job).cloned();
                        let mut now = self.read(&ranges.expect("it was read"));
                        data::seal(&mut now, self.live().volume, name);
                        matches!(self.publish(name, &now)?, Outcome::Ours(_))
                    }
                }
            }
            Some(Canary::AnyForOurs) => {
                self.publish(name, bytes)?;
                true
            }
            Some(Canary::OwnForForeign) => loop {
                match self.bucket.create(name, bytes) {
                    Ok(created) => break created != Created::Exists,
                    Err(_) if self.shared.is_over(self.index) => return Err(Ended::Lost),
                    Err(_) => {}
                }
            },
            _ => matches!(self.publish(name, bytes)?, Outcome::Ours(_)),
        };
        self.live().shipper.handle_created(job, is_ours);
        if is_ours { Ok(()) } else { Err(self.fenced()) }
    }

    fn publish(&self, name: &str, bytes: &[u8]) -> Result<Outcome, Ended> {
        publish::create(&*self.bucket, name, bytes, &self.patience).map_err(|_| Ended::Lost)
    }

    fn do_paper(&mut self, paper: Action) -> Result<(), Ended> {
        let canary = self.canary();
        let patience = Persistent { shared: self.shared.clone(), host: self.index };
        let live = self.live();
        let done = match paper {
            Action::Manifest { id, .. } if canary == Some(Canary::EarlyCollection) => {
                live.shipper.handle_manifest(id);
                Ok(())
            }
            Action::Manifest { id, manifest } => {
                let stored = live.house.store_manifest(id, &manifest, &patience);
                stored.map(|()| live.shipper.handle_manifest(id))
            }
            Action::Collect { sources, .. } if canary == Some(Canary::PinsIgnored) => {
                let truth = Truth(self.shared.clone());
                sources.iter().for_each(|source| drop(truth.delete(&source.name())));
                Ok(())
            }
            Action::Collect { horizon, sources } => live.house.collect(horizon, sources, &patience),
            _ => unreachable!("nothing else is a paper"),
        };
        match done {
            Ok(()) => Ok(()),
            Err(ReplicaError::TakenOver) => Err(self.fenced()),
            Err(ReplicaError::Bucket(_)) => Err(Ended::Lost),
            // A snapshot was given up meanwhile: nothing is deleted this time.
            Err(_) => Ok(()),
        }
    }

    /// This host was told that another has the volume: one must have claimed it.
    fn fenced(&mut self) -> Ended {
        let epoch = self.live().epoch;
        let truth = Truth(self.shared.clone());
        let record = history::record(&truth, &Once);
        let newest = record.ok().and_then(|(record, _)| Some(record.newest()?.epoch));
        let mut state = self.shared.lock();
        state.tally.fenced += 1;
        if newest.is_none_or(|newest| newest <= epoch) {
            state.violated(format!("epoch {epoch} is fenced, and nobody has claimed the volume"));
        }
        Ended::Fenced
    }

    fn keep(&mut self, name: &str) -> Result<(), Ended> {
        let is_known = self.shared.lock().oracle.pins().iter().any(|(known, _)| known == name);
        if is_known {
            return Ok(());
        }
        let kept = match self.canary() {
            Some(Canary::HorizonIgnored) => {
                snapshot::create(&WithoutHorizon(self.bucket.clone()), name, 0, &self.patience)
            }
            _ => snapshot::create(&*self.bucket, name, 0, &self.patience),
        };
        match kept {
            Ok(_) => {
                let truth = Truth(self.shared.clone());
                let found = read_pin(&truth, name);
                let mut state = self.shared.lock();
                match found {
                    Ok(cells) => {
                        state.tally.snapshots += 1;
                        state.oracle.kept(name, cells);
                    }
                    Err(error) => state.violated(format!("{name}, just made: {error}")),
                }
                Ok(())
            }
            Err(_) if self.shared.is_over(self.index) => Err(Ended::Lost),
            // Overtaken by the collector, or by another host that keeps the same name.
            Err(_) => Ok(()),
        }
    }

    fn give_up(&mut self, name: &str) -> Result<(), Ended> {
        self.shared.lock().oracle.gives_up(name);
        let deleted = snapshot::delete(&*self.bucket, name, &self.patience);
        self.shared.lock().oracle.has_given_up(name);
        match deleted {
            Err(_) if self.shared.is_over(self.index) => Err(Ended::Lost),
            _ => Ok(()),
        }
    }

    /// Ships what is left.
    fn drain(&mut self) -> Result<(), Ended> {
        self.live().shipper.ask_for_commit();
        for _ in 0..STEPS_MAX {
            let live = self.live();
            if live.shipper.is_idle() && live.jobs.is_empty() && live.papers.is_empty() {
                break;
            }
            self.work()?;
        }
        Ok(())
    }
}

/// Gathers the bytes of a job, as [`coulter_object::ShippedDevice`] does.
fn gather(live: &mut Live, job: JobId, ranges: &[Range<u64>]) {
    if live.shipper.is_capture(job)
        && let Some(bundle) = live.kept.take(ranges)
    {
        let name = live.shipper.handle_kept(job);
        live.jobs.push(Job::CreateOf(job, name, bundle));
        return;
    }
    let (mut bytes, mut missing) = (Vec::new(), Vec::new());
    for range in ranges {
        let start = bytes.len();
        bytes.resize(start + (range.end - range.start) as usize, 0);
        for part in live.kept.take_part(range, &mut bytes[start..]) {
            missing.push((start + (part.start - range.start) as usize, part));
        }
    }
    if missing.is_empty() {
        live.shipper.handle_read(job, bytes, 0);
    } else {
        live.jobs.push(Job::Read(job, bytes, missing));
    }
}

/// What a claim has found must be a state of the host before it, with all that was acknowledged.
pub(crate) fn check_claim(shared: &Arc<Shared>, claim: &Claim) {
    let truth = Truth(shared.clone());
    let found = contents(&truth, claim.record.volume, &claim.history.pieces);
    let mut state = shared.lock();
    let found = match found {
        Ok(found) => found,
        Err(error) => return state.violated(format!("epoch {}: {error}", claim.epoch)),
    };
    // An opening whose host was killed before it knew: it has written nothing.
    let mut before = claim.after.epoch;
    while before > 0 && !state.oracle.knows(before) {
        before -= 1;
    }
    let checked = state.oracle.began(claim.epoch, before, found);
    state.check(checked);
}

/// Every snapshot that was not given up is what it was.
pub(crate) fn check_pins(shared: &Arc<Shared>) {
    let truth = Truth(shared.clone());
    let pins = shared.lock().oracle.pins();
    for (name, cells) in pins {
        match read_pin(&truth, &name) {
            Ok(found) if found == cells => {}
            Ok(found) => shared.lock().violated(format!("{name} is {found:?}, not {cells:?}")),
            Err(error) => shared.lock().violated(format!("{name}: {error}")),
        }
    }
}

fn read_pin(truth: &Truth, name: &str) -> Result<Cells, ReplicaError> {
    let (record, manifest) = snapshot::read(truth, name, &Once)?;
    contents(truth, record.volume, &manifest.pieces)
}
