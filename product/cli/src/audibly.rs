//! Waits for the service of a copy, and says so on standard error: what is waited for, for how
//! long, until when.
//!
//! A command waits for one copy at a time, so the state is the program's. A thread looks at it,
//! because a request may stand still without an end.

use coulter_object::publish::{self, Patience};
use coulter_object::{BucketError, BucketErrorKind};
use coulter_terminal::{self as terminal, ProgressBar};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// For commands that a person waits for. A service that has not answered yet is asked for a few
/// seconds: its address may be wrong. One that has, or that answers with an overload, is asked
/// for minutes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Audibly;

/// How long a service is asked that has never answered.
const SILENT: Duration = Duration::from_secs(5);
/// How long one is asked that has answered before, or is overloaded.
const OUTAGE: Duration = Duration::from_secs(180);
/// The wait that is told first, and the time between two lines.
const FIRST: Duration = Duration::from_secs(5);
const NEXT: Duration = Duration::from_secs(30);
/// How often the thread looks.
const LOOK: Duration = Duration::from_millis(250);

#[derive(Debug)]
struct State {
    has_thread: bool,
    has_answered: bool,
    /// Requests that have no outcome yet.
    asked: usize,
    /// When one was answered last; or when the first was sent, if none was under way.
    since: Option<Instant>,
    told: Option<Instant>,
    /// The latest failure, and when the service is given up.
    failure: Option<(BucketError, Instant)>,
    bar: Option<ProgressBar>,
}

static STATE: Mutex<State> = Mutex::new(State {
    has_thread: false,
    has_answered: false,
    asked: 0,
    since: None,
    told: None,
    failure: None,
    bar: None,
});

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shows the lines above a bar from now on.
pub(crate) fn beside(bar: &ProgressBar) {
    state().bar = Some(bar.clone());
}

impl Patience for Audibly {
    fn wait(&self, tries: u32, error: &BucketError) -> bool {
        let mut state = state();
        let limit = match error.retry_after {
            None if !state.has_answered => SILENT,
            _ => OUTAGE,
        };
        let now = Instant::now();
        let until = state.failure.as_ref().map_or(now + limit, |(_, until)| *until);
        state.failure = Some((error.clone(), until));
        drop(state);
        let left = until.saturating_duration_since(Instant::now());
        let again = error.kind == BucketErrorKind::Busy && !left.is_zero();
        if again {
            std::thread::sleep(publish::pause(tries, error).min(left));
        }
        again
    }

    fn succeeded(&self) {
        let mut state = state();
        (state.has_answered, state.failure) = (true, None);
        (state.since, state.told) = (Some(Instant::now()), None);
    }

    fn begins(&self) {
        let mut state = state();
        if state.asked == 0 {
            (state.since, state.told) = (Some(Instant::now()), None);
        }
        state.asked += 1;
        if !state.has_thread {
            // Without a thread the command works, and waits in silence.
            let builder = std::thread::Builder::new().name("waiting".to_owned());
            state.has_thread = builder.spawn(watch).is_ok();
        }
    }

    fn ends(&self) {
        state().asked -= 1;
    }
}

fn watch() {
    loop {
        std::thread::sleep(LOOK);
        let mut state = state();
        let Some(since) = state.since.filter(|_| state.asked > 0) else { continue };
        let is_due = state.told.map_or(since.elapsed() >= FIRST, |told| told.elapsed() >= NEXT);
        if !is_due {
            continue;
        }
        state.told = Some(Instant::now());
        let line = line(since.elapsed(), state.failure.as_ref());
        let bar = state.bar.clone();
        drop(state);
        match bar {
            Some(bar) => bar.suspend(|| terminal::note(&line)),
            None => terminal::note(&line),
        }
    }
}

/// The line about a wait.
fn line(waited: Duration, failure: Option<&(BucketError, Instant)>) -> String {
    let waited = waited.as_secs();
    let Some((error, until)) = failure else {
        return format!(
            "waiting for the copy's service for {waited} s: no request was answered in full; \
             one in which nothing moves is given up after 2 minutes"
        );
    };
    let left = until.saturating_duration_since(Instant::now());
    let until = humantime::format_rfc3339_seconds(SystemTime::now() + left);
    format!(
        "waiting for the copy's service for {waited} s: {error}; asked again for {} s, until \
         {until}",
        left.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_of_what_for_how_long_and_until_when() {
        let error = BucketError::new(BucketErrorKind::Busy, "s3://b/v: connection refused");
        let until = Instant::now() + Duration::from_secs(100);
        let told = line(Duration::from_secs(7), Some(&(error, until)));
        for word in ["for 7 s", "s3://b/v: connection refused", "s, until 2"] {
            assert!(told.contains(word), "{told}");
        }
    }
}
