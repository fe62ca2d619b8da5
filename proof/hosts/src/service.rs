//! The bucket of the world, and who runs next.
//!
//! # Invariants
//! - One host runs at any time: the one that `running` names. It gives its turn away at its next request.
//! - What a request does to the objects is done at one instant, whatever its caller is told.
//!
//! A request that is told to have failed may be carried out at any later time, once, or never.

use crate::canary::Canary;
use crate::chooser::Chooser;
use crate::oracle::Oracle;
use crate::tally::Tally;
use coulter_object::bucket::{Bucket, BucketError, BucketErrorKind, Created, Object, Swapped, Tag};
use coulter_object::publish::Patience;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Tries of one request at most, so that a run ends.
const TRIES_MAX: u32 = 60;

/// How often what happens to a request that changes something, by weight: carried out; carried out and
/// unanswered; late; refused; in conflict; its host killed.
pub type Weights = [u32; 6];

/// A request that may be carried out later.
#[derive(Clone, Debug)]
enum Request {
    Create(String, Vec<u8>),
    Swap(String, Tag, Vec<u8>),
    Delete(String),
}

/// What a request that was carried out has done.
#[derive(Debug)]
enum Done {
    Created(Tag),
    Swapped(Tag),
    /// Its condition did not hold.
    Condition,
    Deleted,
}

/// Everything that hosts share.
pub(crate) struct State {
    pub(crate) chooser: Chooser,
    pub(crate) oracle: Oracle,
    pub(crate) tally: Tally,
    pub(crate) canary: Option<Canary>,
    /// The number of the last write.
    pub(crate) stamp: u64,
    weights: Weights,
    objects: BTreeMap<String, (u64, Vec<u8>)>,
    version: u64,
    late: Vec<Request>,
    running: usize,
    is_alive: Vec<bool>,
    is_killed: Vec<bool>,
    violation: Option<String>,
}

impl State {
    /// Something is broken; the first finding counts.
    pub(crate) fn violated(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// Whether something is broken.
    pub(crate) fn is_violated(&self) -> bool {
        self.violation.is_some()
    }

    /// Keeps an error of the oracle.
    pub(crate) fn check(&mut self, outcome: Result<(), String>) {
        if let Err(what) = outcome {
            self.violated(what);
        }
    }

    fn carry_out(&mut self, request: &Request) -> Done {
        match request {
            Request::Create(name, bytes) => {
                let is_careless = self.canary == Some(Canary::CarelessCreation);
                if self.objects.contains_key(name) && !is_careless {
                    return Done::Condition;
                }
                Done::Created(self.store(name, bytes))
            }
            Request::Swap(name, tag, bytes) => {
                let current = self.objects.get(name).map(|(version, _)| version.to_string());
                let is_careless = self.canary == Some(Canary::CarelessSwap);
                if current.as_ref() != Some(&tag.0) && !is_careless {
                    return Done::Condition;
                }
                Done::Swapped(self.store(name, bytes))
            }
            Request::Delete(name) => {
                self.objects.remove(name);
                Done::Deleted
            }
        }
    }

    fn store(&mut self, name: &str, bytes: &[u8]) -> Tag {
        self.version += 1;
        self.objects.insert(name.to_string(), (self.version, bytes.to_vec()));
        Tag(self.version.to_string())
    }

    /// One of the requests that are late, if it comes now.
    fn carry_out_late(&mut self) {
        if self.late.is_empty() || self.chooser.pick(&[4, 1]) == 0 {
            return;
        }
        let index = self.chooser.any(self.late.len());
        let request = self.late.swap_remove(index);
        self.tally.late_carried_out += 1;
        self.carry_out(&request);
    }
}

/// The world.
pub(crate) struct Shared {
    state: Mutex<State>,
    /// One for each host.
    turns: Vec<Condvar>,
}

impl Shared {
    pub(crate) fn new(
        host_count: usize,
        chooser: Chooser,
        weights: Weights,
        canary: Option<Canary>,
    ) -> Shared {
        let state = State {
            chooser,
            oracle: Oracle::default(),
            tally: Tally::default(),
            canary,
            stamp: 0,
            weights,
            objects: BTreeMap::new(),
            version: 0,
            late: Vec::new(),
            running: 0,
            is_alive: vec![true; host_count],
            is_killed: vec![false; host_count],
            violation: None,
        };
        let turns = (0..host_count).map(|_| Condvar::new()).collect();
        Shared { state: Mutex::new(state), turns }
    }

    /// For the host that runs, between its requests.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a host may begin.
    pub(crate) fn begin(&self, host: usize) {
        drop(self.wait(self.lock(), host));
    }

    fn wait<'a>(&self, mut state: MutexGuard<'a, State>, host: usize) -> MutexGuard<'a, State> {
        while state.running != host {
            state = self.turns[host].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// The host has come to its end.
    pub(crate) fn end(&self, host: usize) {
        let mut state = self.lock();
        state.is_alive[host] = false;
        let alive: Vec<usize> = (0..self.turns.len()).filter(|one| state.is_alive[*one]).collect();
        if alive.is_empty() {
            return;
        }
        let next = alive[state.chooser.any(alive.len())];
        state.running = next;
        self.turns[next].notify_one();
    }

    /// Gives the turn to whoever is next, and comes back when that is this host again.
    fn turn(&self, host: usize) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        assert_eq!(state.running, host, "one host runs at any time");
        let mut hosts = vec![host];
        hosts.extend((0..self.turns.len()).filter(|one| *one != host && state.is_alive[*one]));
        let weights: Vec<u32> =
            (0..hosts.len()).map(|index| if index == 0 { 3 } else { 1 }).collect();
        let next = hosts[state.chooser.pick(&weights)];
        if next == host {
            return state;
        }
        state.running = next;
        self.turns[next].notify_one();
        self.wait(state, host)
    }

    /// A host that was killed comes back.
    pub(crate) fn revive(&self, host: usize) {
        self.lock().is_killed[host] = false;
    }

    /// Whether a host was killed, or the run is over.
    pub(crate) fn is_over(&self, host: usize) -> bool {
        let state = self.lock();
        state.is_killed[host] || state.violation.is_some()
    }

    /// What is broken.
    pub(crate) fn violation(&self) -> Option<String> {
        self.lock().violation.clone()
    }

    /// Carries out everything that is late: nobody runs any more.
    pub(crate) fn carry_out_all_late(&self) {
        let mut state = self.lock();
        while !state.late.is_empty() {
            let count = state.late.len();
            let index = state.chooser.any(count);
            let request = state.late.swap_remove(index);
            state.carry_out(&request);
        }
    }
}

/// The bucket as one host sees it.
#[derive(Clone)]
pub(crate) struct HostBucket {
    pub(crate) shared: Arc<Shared>,
    pub(crate) host: usize,
}

impl HostBucket {
    fn change(&self, request: Request) -> Result<Done, BucketError> {
        let mut state = self.shared.turn(self.host);
        state.carry_out_late();
        if state.is_killed[self.host] || state.violation.is_some() {
            return Err(failed("it is over"));
        }
        let weights = state.weights;
        match state.chooser.pick(&weights) {
            0 => {
                let done = state.carry_out(&request);
                match done {
                    Done::Condition => state.tally.conditions += 1,
                    _ => state.tally.answered += 1,
                }
                Ok(done)
            }
            1 => {
                state.carry_out(&request);
                state.tally.unanswered += 1;
                Err(failed("500"))
            }
            2 => {
                state.late.push(request);
                state.tally.late += 1;
                Err(failed("timeout"))
            }
            3 => {
                state.tally.refused += 1;
                Err(failed("503"))
            }
            4 => {
                state.tally.conflicts += 1;
                Err(failed("409"))
            }
            _ => {
                state.tally.killed += 1;
                state.is_killed[self.host] = true;
                match state.chooser.any(3) {
                    0 => drop(state.carry_out(&request)),
                    1 => state.late.push(request),
                    _ => {}
                }
                Err(failed("killed"))
            }
        }
    }

    fn look<T>(&self, look: impl FnOnce(&State) -> T) -> Result<T, BucketError> {
        let mut state = self.shared.turn(self.host);
        state.carry_out_late();
        if state.is_killed[self.host] || state.violation.is_some() {
            return Err(failed("it is over"));
        }
        let [well, unanswered, ..] = state.weights;
        if state.chooser.pick(&[well, unanswered]) == 1 {
            state.tally.unread += 1;
            return Err(failed("cut"));
        }
        state.tally.answered += 1;
        Ok(look(&state))
    }
}

fn failed(message: &str) -> BucketError {
    BucketError::new(BucketErrorKind::Busy, message)
}

impl Bucket for HostBucket {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
        match self.change(Request::Create(name.to_string(), bytes.to_vec()))? {
            Done::Created(tag) => Ok(Created::New(tag)),
            _ => Ok(Created::Exists),
        }
    }

    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
        match self.change(Request::Swap(name.to_string(), tag.clone(), bytes.to_vec()))? {
            Done::Swapped(tag) => Ok(Swapped::Done(tag)),
            _ => Ok(Swapped::Changed),
        }
    }

    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError> {
        self.look(|state| read(state, name, range))
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        self.change(Request::Delete(name.to_string())).map(drop)
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, BucketError> {
        self.look(|state| list(state, prefix))
    }

    fn url(&self) -> String {
        format!("world:{}", self.host)
    }
}

fn read(state: &State, name: &str, range: Option<Range<u64>>) -> Option<Object> {
    let (version, bytes) = state.objects.get(name)?;
    let size = bytes.len() as u64;
    let range = range.unwrap_or(0..size);
    let part = range.start.min(size) as usize..range.end.min(size) as usize;
    Some(Object { bytes: bytes[part].to_vec(), tag: Tag(version.to_string()) })
}

fn list(state: &State, prefix: &str) -> Vec<(String, u64)> {
    let found = state.objects.iter().filter(|(name, _)| name.starts_with(prefix));
    found.map(|(name, (_, bytes))| (name.clone(), bytes.len() as u64)).collect()
}

/// The bucket as the oracle sees it: it takes no turn, and nothing fails.
pub(crate) struct Truth(pub(crate) Arc<Shared>);

impl Bucket for Truth {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
        match self.0.lock().carry_out(&Request::Create(name.to_string(), bytes.to_vec())) {
            Done::Created(tag) => Ok(Created::New(tag)),
            _ => Ok(Created::Exists),
        }
    }

    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
        let request = Request::Swap(name.to_string(), tag.clone(), bytes.to_vec());
        match self.0.lock().carry_out(&request) {
            Done::Swapped(tag) => Ok(Swapped::Done(tag)),
            _ => Ok(Swapped::Changed),
        }
    }

    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError> {
        Ok(read(&self.0.lock(), name, range))
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        self.0.lock().carry_out(&Request::Delete(name.to_string()));
        Ok(())
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, BucketError> {
        Ok(list(&self.0.lock(), prefix))
    }

    fn url(&self) -> String {
        "world:".to_string()
    }
}

/// Tries again until the host is killed.
pub(crate) struct Persistent {
    pub(crate) shared: Arc<Shared>,
    pub(crate) host: usize,
}

impl Patience for Persistent {
    fn wait(&self, tries: u32, _: &BucketError) -> bool {
        !self.shared.is_over(self.host) && tries < TRIES_MAX
    }
}

/// Never tries again.
pub(crate) struct Once;

impl Patience for Once {
    fn wait(&self, _: u32, _: &BucketError) -> bool {
        false
    }
}

impl fmt::Debug for HostBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBucket").field("host", &self.host).finish_non_exhaustive()
    }
}
