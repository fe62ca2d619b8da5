//! A bucket that fails in every way that a real one can: by a seed, and always within the contract.

use super::{Bucket, BucketError, BucketErrorKind, Created, Object, Swapped, Tag};
use fastrand::Rng;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How often what happens, in thousandths of all requests that change something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// It is not carried out, and fails.
    pub refused: u32,
    /// It is carried out, and fails: the answer was lost.
    pub unanswered: u32,
    /// It fails, and is carried out later, if its condition holds then.
    pub late: u32,
    /// Reads that fail.
    pub unread: u32,
}

/// A request that will be carried out later.
#[derive(Debug)]
enum Late {
    Create(String, Vec<u8>),
    Swap(String, Tag, Vec<u8>),
}

#[derive(Debug)]
struct State {
    random: Rng,
    rates: Rates,
    late: Vec<Late>,
    /// How many of those were carried out.
    late_count: u64,
    is_down: bool,
}

/// A bucket around a bucket. Clones are handles on the same one.
#[derive(Clone)]
pub struct FaultyBucket {
    inner: Arc<dyn Bucket>,
    state: Arc<Mutex<State>>,
}

impl FaultyBucket {
    /// Fails requests to `inner` at `rates`, by `seed`.
    pub fn new(inner: Arc<dyn Bucket>, rates: Rates, seed: u64) -> FaultyBucket {
        let state = State {
            random: Rng::with_seed(seed),
            rates,
            late: Vec::new(),
            late_count: 0,
            is_down: false,
        };
        FaultyBucket { inner, state: Arc::new(Mutex::new(state)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails everything, or no longer.
    pub fn set_down(&self, is_down: bool) {
        self.lock().is_down = is_down;
    }

    /// Changes how often it fails.
    pub fn set_rates(&self, rates: Rates) {
        self.lock().rates = rates;
    }

    /// Carries out everything that was to happen later; returns how many ever did.
    pub fn carry_out_late(&self) -> u64 {
        let mut state = self.lock();
        let late = std::mem::take(&mut state.late);
        state.late_count += late.len() as u64;
        let count = state.late_count;
        drop(state);
        for request in late {
            self.carry_out(request);
        }
        count
    }

    fn carry_out(&self, request: Late) {
        // Nobody hears how it ended.
        match request {
            Late::Create(name, bytes) => drop(self.inner.create(&name, &bytes)),
            Late::Swap(name, tag, bytes) => drop(self.inner.swap(&name, &tag, &bytes)),
        }
    }

    /// A request that changes something: carried out, or not, or later.
    fn change<T>(
        &self,
        now: impl FnOnce() -> Result<T, BucketError>,
        later: impl FnOnce() -> Late,
    ) -> Result<T, BucketError> {
        let mut state = self.lock();
        if state.is_down {
            return Err(lost());
        }
        // Sometimes one of the late ones arrives just before this one.
        let due = (!state.late.is_empty() && state.draw() < 300).then(|| {
            let index = state.draw() as usize % state.late.len();
            state.late_count += 1;
            state.late.swap_remove(index)
        });
        let draw = state.draw();
        let rates = state.rates;
        let is_late = draw >= rates.refused + rates.unanswered
            && draw < rates.refused + rates.unanswered + rates.late;
        if is_late {
            state.late.push(later());
            drop(state);
            due.into_iter().for_each(|request| self.carry_out(request));
            return Err(lost());
        }
        drop(state);
        due.into_iter().for_each(|request| self.carry_out(request));
        if draw < rates.refused {
            return Err(lost());
        }
        let done = now()?;
        if draw < rates.refused + rates.unanswered { Err(lost()) } else { Ok(done) }
    }

    fn look<T>(&self, read: impl FnOnce() -> Result<T, BucketError>) -> Result<T, BucketError> {
        let mut state = self.lock();
        if state.is_down || state.draw() < state.rates.unread {
            return Err(lost());
        }
        drop(state);
        read()
    }
}

impl State {
    /// A number below 1000.
    fn draw(&mut self) -> u32 {
        self.random.u32(..1000)
    }
}

fn lost() -> BucketError {
    BucketError::new(BucketErrorKind::Busy, "the answer was lost")
}

impl Bucket for FaultyBucket {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
        let later = || Late::Create(name.to_string(), bytes.to_vec());
        self.change(|| self.inner.create(name, bytes), later)
    }

    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
        let later = || Late::Swap(name.to_string(), tag.clone(), bytes.to_vec());
        self.change(|| self.inner.swap(name, tag, bytes), later)
    }

    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError> {
        self.look(|| self.inner.read(name, range))
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        // To delete twice is to delete once, so an answer that was lost is all that can go wrong.
        self.look(|| self.inner.delete(name))
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, BucketError> {
        self.look(|| self.inner.list(prefix))
    }

    fn url(&self) -> String {
        self.inner.url()
    }
}
