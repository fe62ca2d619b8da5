//! Taking a name for a store in the state directory, and giving it back.

use crate::acknowledge::Acknowledge;
use crate::error::{DaemonError, Error, StateError};
use crate::job::Job;
use crate::life::daemon_state::DaemonState;
use crate::life::device_link;
use crate::life::file_identity::FileIdentity;
use crate::life::liveness::{self, Liveness};
use crate::life::reclaim;
use crate::life::state::{Entry, LOCK, StateDirectory, StateLock};
use crate::life::verbs::{Course, Verb};
use coulter_system::process::Process;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What a daemon has to its name.
pub(crate) struct Claim {
    /// Its entry, as far as it is known.
    pub(crate) entry: Entry,
    /// The entry of the daemon before, whose device waits and is to be taken over.
    pub(crate) waiting: Option<Entry>,
    /// What shows that this daemon lives.
    pub(crate) liveness: Liveness,
}

/// How long another daemon is waited for that has not told yet that it serves the store: the one of
/// a command that was killed finds out then that nobody listens, and ends. As long as for the
/// store's own lock.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long a daemon that serves waits for whoever holds the lock of the directory.
const LOCK_PATIENCE: Duration = Duration::from_millis(200);

/// How often is looked in that time.
const PAUSE: Duration = Duration::from_millis(5);

/// Records that this process is about to serve the store of `job`. What ended daemons have left is
/// cleared away first, save devices that wait for a daemon, and dead mounts of other stores.
///
/// # Errors
/// [`StateError::AlreadyAttached`], [`StateError::NameTaken`], [`StateError::ForeignFile`];
/// [`DaemonError::Ending`] of one that goes on ending; [`StateError::DeviceWaits`] if there is a
/// device of this store and it is not to be taken over; [`DaemonError::BufferedOutlived`] if it
/// must not be.
pub(crate) fn claim(
    state: &StateDirectory,
    job: &Job,
    answers: Answers<'_>,
) -> Result<Claim, Error> {
    claim_within(state, job, answers, PATIENCE)
}

/// Asks the daemon of an entry for an answer: `true` if one came.
pub(crate) type Answers<'a> = &'a dyn Fn(&Entry) -> bool;

fn claim_within(
    state: &StateDirectory,
    job: &Job,
    answers: Answers<'_>,
    patience: Duration,
) -> Result<Claim, Error> {
    let start = Instant::now();
    loop {
        match try_claim(state, job) {
            Err(Error::Daemon(DaemonError::Ending { .. })) if start.elapsed() < patience => {
                thread::sleep(PAUSE);
            }
            Err(Error::State(StateError::AlreadyAttached { name, .. }))
                if start.elapsed() < patience && !is_settled(state, &name, answers) =>
            {
                thread::sleep(PAUSE);
            }
            claimed => return claimed,
        }
    }
}

/// True if waiting for the daemon of `name` changes nothing: it serves and `answers`, or it is
/// stopped.
fn is_settled(state: &StateDirectory, name: &str, answers: Answers<'_>) -> bool {
    let entries = state.entries().unwrap_or_default();
    let Some(entry) = entries.iter().find(|entry| entry.name == name) else { return false };
    if entry.process.is_stopped() {
        return true;
    }
    match DaemonState::look(state, entry).course(Verb::Attach) {
        Course::Await => false,
        _ => entry.device.is_some() && answers(entry),
    }
}

fn try_claim(state: &StateDirectory, job: &Job) -> Result<Claim, Error> {
    let lock = state.lock()?;
    let store = job.source.store();
    let is_one = job.source.is_at_its_path();
    let Others { taken, rival, waiting, ended } = others(state, &store, is_one)?;
    ended.iter().try_for_each(|entry| reclaim::reclaim(state, &lock, entry))?;
    if let Some(rival) = rival {
        if rival.ending {
            return Err(DaemonError::ending(&rival).into());
        }
        let Entry { name, device, .. } = rival;
        return Err(StateError::AlreadyAttached { store, name, device }.into());
    }
    if let (Some(waiting), false) = (&waiting, job.recover) {
        let (name, device) = (Some(waiting.name.clone()), waiting.device.clone());
        let device = device.unwrap_or_default();
        return Err(StateError::DeviceWaits { store, name, device }.into());
    }
    if let (Some(waiting), Acknowledge::Buffered) = (&waiting, job.opening.acknowledge) {
        return Err(DaemonError::BufferedOutlived { device: waiting.device.clone() }.into());
    }
    let entry = match &waiting {
        // Not the device: until it is served again, it is not attached.
        Some(waiting) => Entry {
            device: None,
            process: Process::current(),
            ending: false,
            ..waiting.clone().without_failure()
        },
        None => Entry {
            name: choose_name(state, job, &taken)?,
            device: None,
            via: job.point.kind().via(),
            process: Process::current(),
            uuid: String::new(),
            label: String::new(),
            version: String::new(),
            volume_size_bytes: 0,
            store_size_bytes: 0,
            read_only: job.opening.read_only,
            failure: None,
            in_doubt_bytes: None,
            cut_off_bytes: None,
            ending: false,
            acknowledge: job.opening.acknowledge,
            again: job.point.again(),
            attached_at_unix_seconds: unix_seconds(),
            metrics: None,
            store_identity: FileIdentity::at(&store).ok().filter(|_| is_one),
            store,
        },
    };
    assert!(entry.device.is_none(), "until it serves, it is not attached");
    assert!(taken.iter().all(|other| other.name != entry.name), "two daemons of one name");
    // First: an entry without it would be taken for that of a daemon which has ended.
    let liveness = hold(state, &entry)?;
    state.write(&lock, &entry)?;
    Ok(Claim { entry, waiting, liveness })
}

/// The other daemons of the directory, by what an attach does about them.
#[derive(Default)]
struct Others {
    /// Their names are taken.
    taken: Vec<Entry>,
    /// It has the store.
    rival: Option<Entry>,
    /// Its device waits for the daemon of the store.
    waiting: Option<Entry>,
    /// They left something, which nothing needs any more.
    ended: Vec<Entry>,
}

/// Looks at all daemons of the directory, as one that is to serve `store` does. The caller holds
/// the lock. `is_one`: only one daemon may serve the store.
fn others(state: &StateDirectory, store: &Path, is_one: bool) -> Result<Others, Error> {
    let mut others = Others::default();
    for entry in state.entries()? {
        let found = DaemonState::look(state, &entry);
        let is_own = match found.lives() {
            true => is_one && entry.is_of(store) == Some(true),
            false => entry.store == store,
        };
        match found.course(if is_own { Verb::Attach } else { Verb::AttachOther }) {
            Course::Leave => others.taken.push(entry),
            Course::ClearAway => others.ended.push(entry),
            Course::TakeOver => _ = others.waiting.get_or_insert(entry),
            Course::PassOver => {}
            Course::Await | Course::Refuse => _ = others.rival.get_or_insert(entry),
            course @ (Course::Ask | Course::Show | Course::TellKilled) => {
                unreachable!("{course:?} is no course of an attach")
            }
        }
    }
    Ok(others)
}

/// What shows everybody that this process lives, as the daemon of `entry`.
///
/// # Errors
/// When the file cannot be made or locked.
pub(crate) fn hold(state: &StateDirectory, entry: &Entry) -> Result<Liveness, Error> {
    let path = state.file(&entry.name, LOCK);
    Liveness::hold(path.clone()).map_err(|source| Error::io("lock", &path, source))
}

/// The user's name, or one made from the file name; of what is no file or disk, with a number if
/// that is taken.
fn choose_name(state: &StateDirectory, job: &Job, taken: &[Entry]) -> Result<String, Error> {
    let owner = |name: &str| taken.iter().find(|entry| entry.name == name);
    let name = match &job.opening.name {
        Some(name) => match owner(name) {
            Some(entry) => {
                let (name, store) = (name.clone(), entry.store.clone());
                return Err(StateError::NameTaken { name, store }.into());
            }
            None => name.clone(),
        },
        None => {
            let stem = job.source.name();
            // A name that depends on what else is attached would be another one tomorrow.
            if let Some(entry) = owner(&stem).filter(|_| job.source.is_at_its_path()) {
                return Err(StateError::NameTaken { name: stem, store: entry.store.clone() }.into());
            }
            // One more candidate than there are names taken: one of them is free, and if only
            // somebody else's files are in the way, the error names one of them.
            let numbered = (2..taken.len() + 3).map(|number| format!("{stem}-{number}"));
            let mut candidates = std::iter::once(stem.clone()).chain(numbered);
            // One whose entry somebody deleted will have it back.
            let is_held = |name: &str| liveness::is_held(&state.file(name, LOCK));
            candidates.find(|name| owner(name).is_none() && !is_held(name)).unwrap_or(stem)
        }
    };
    state.check_name(&name)?;
    // A daemon whose entry is gone already may have left something.
    job.point.kind().release_leftovers(state, &name)?;
    match state.foreign_file(&name) {
        Some(path) => Err(StateError::ForeignFile { name, path }.into()),
        None => Ok(name),
    }
}

/// Publishes the facts that are known once the volume is served.
///
/// # Errors
/// When the entry cannot be written.
pub(crate) fn publish(state: &StateDirectory, entry: &Entry) -> Result<(), Error> {
    let lock: StateLock = state.lock()?;
    state.write(&lock, entry)?;
    device_link::make(entry);
    Ok(())
}

/// Makes what the directory says of this daemon what `entry` says: it has changed, or somebody has
/// deleted it, or all of the directory; who cleans up by age takes the files of a daemon that has
/// run for long. The holder of the lock may be stopped: the wait is short, for a service
/// goes on meanwhile. Gives back whether the entry was gone.
///
/// # Errors
/// [`StateError::NameTaken`] when another daemon has come to have the name;
/// [`StateError::LockHeld`]; when the directory or the entry cannot be written.
pub(crate) fn keep(state: &StateDirectory, entry: &Entry) -> Result<bool, Error> {
    let found = || match state.entry(&entry.name) {
        Some(Entry { process, name, store, .. }) if process != entry.process => {
            Err(StateError::NameTaken { name, store })
        }
        found => Ok(found),
    };
    if found()?.as_ref() == Some(entry) {
        return Ok(false);
    }
    let state = StateDirectory::open(Some(state.path().to_owned()))?;
    let lock = state.lock_within(LOCK_PATIENCE)?;
    let was_gone = found()?.is_none();
    state.write(&lock, entry).map(|()| was_gone)
}

/// Gives the name back, unless another daemon has come to have it.
///
/// # Errors
/// When the entry cannot be removed.
pub(crate) fn release(state: &StateDirectory, entry: &Entry) -> Result<(), Error> {
    let lock = state.lock()?;
    if state.entry(&entry.name).is_some_and(|found| found.process != entry.process) {
        return Ok(());
    }
    device_link::remove(entry);
    state.remove(&lock, &entry.name)
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opening::Opening;
    use crate::points::NbdServerPoint;
    use crate::store::Store;
    use std::os::unix::net::UnixListener;
    use std::path::{Path, PathBuf};
    use tempfile::TempDir;

    fn directory() -> (TempDir, StateDirectory) {
        let parent = tempfile::tempdir().expect("a temporary directory can be made");
        let state = StateDirectory::open(Some(parent.path().join("s"))).expect("it can be made");
        (parent, state)
    }

    /// No daemon of these tests answers.
    fn claim(state: &StateDirectory, job: &Job) -> Result<Claim, Error> {
        super::claim(state, job, &|_| false)
    }

    fn claim_within(state: &StateDirectory, job: &Job, patience: Duration) -> Result<Claim, Error> {
        super::claim_within(state, job, &|_| false, patience)
    }

    fn job(store: &str, name: Option<&str>) -> Job {
        Job {
            source: Box::new(Store::at(PathBuf::from(store))),
            point: Box::new(NbdServerPoint::InState),
            opening: Opening { name: name.map(str::to_owned), ..Opening::default() },
            recover: false,
        }
    }

    #[test]
    fn a_store_is_claimed_once_and_again_after_release() {
        let (_parent, state) = directory();
        let first = claim(&state, &job("/srv/a.img", None)).expect("nobody serves it").entry;
        assert_eq!(first.name, "a");
        let again = claim(&state, &job("/srv/a.img", Some("b")));
        assert!(matches!(again, Err(Error::State(StateError::AlreadyAttached { .. }))));
        release(&state, &first).expect("it was claimed");
        claim(&state, &job("/srv/a.img", Some("b"))).expect("it was released");
    }

    #[test]
    fn a_daemon_that_has_not_served_yet_is_waited_for() {
        let (_parent, state) = directory();
        let first = claim(&state, &job("/srv/a.img", None)).expect("nobody serves it").entry;
        let mut other = std::process::Command::new("sleep").arg("60").spawn().expect("it can run");
        let process = Process::with_pid(other.id()).expect("it runs");
        publish(&state, &Entry { process, ..first }).expect("the directory is writable");
        let impatient = claim_within(&state, &job("/srv/a.img", None), Duration::ZERO);
        assert!(matches!(impatient, Err(Error::State(StateError::AlreadyAttached { .. }))));
        let killer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            other.kill().and_then(|()| other.wait())
        });
        let claimed = claim_within(&state, &job("/srv/a.img", None), Duration::from_secs(60));
        killer.join().expect("no panic").expect("it was killed");
        assert_eq!(claimed.expect("it has ended").entry.name, "a");
    }

    #[test]
    fn a_daemon_that_is_ending_is_waited_for() {
        let (_parent, state) = directory();
        let first = claim(&state, &job("/srv/a.img", None)).expect("nobody serves it").entry;
        let ending = Entry { ending: true, ..first };
        publish(&state, &ending).expect("the directory is writable");
        let impatient = claim_within(&state, &job("/srv/a.img", None), Duration::ZERO);
        assert!(matches!(impatient, Err(Error::Daemon(DaemonError::Ending { .. }))));
        let directory = state.clone();
        let ends = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            release(&directory, &ending)
        });
        let claimed = claim_within(&state, &job("/srv/a.img", None), Duration::from_secs(60));
        ends.join().expect("no panic").expect("it was claimed");
        assert_eq!(claimed.expect("it has ended").entry.name, "a");
    }

    #[test]
    fn an_entry_that_somebody_deleted_is_written_again() {
        let (_parent, state) = directory();
        let entry = claim(&state, &job("/srv/a.img", None)).expect("nobody serves it").entry;
        assert!(!keep(&state, &entry).expect("it is there"));
        std::fs::remove_file(state.file("a", "json")).expect("it is there");
        assert!(keep(&state, &entry).expect("the directory is writable"));
        std::fs::remove_dir_all(state.path()).expect("it is ours");
        assert!(keep(&state, &entry).expect("the directory can be made"));
        assert_eq!(state.entries().expect("it is readable"), [entry]);
    }

    #[test]
    fn an_entry_that_has_changed_is_written_but_not_while_another_holds_the_lock() {
        let (_parent, state) = directory();
        let before = claim(&state, &job("/srv/a.img", None)).expect("nobody serves it").entry;
        let after = Entry { ending: true, ..before.clone() };
        let lock = state.lock().expect("nobody holds it");
        assert!(!keep(&state, &before).expect("there is nothing to write"));
        let refused = keep(&state, &after);
        assert!(matches!(refused, Err(Error::State(StateError::LockHeld { .. }))));
        assert_eq!(state.entry("a"), Some(before));
        drop(lock);
        assert!(!keep(&state, &after).expect("nobody holds it"), "it was there");
        assert_eq!(state.entry("a"), Some(after));
    }

    #[test]
    fn a_name_that_another_daemon_has_is_neither_taken_nor_given_back() {
        let (_parent, state) = directory();
        let entry = claim(&state, &job("/srv/a.img", None)).expect("nobody serves it").entry;
        let other = Entry { process: Process { pid: 1, start_ticks: 0 }, ..entry.clone() };
        std::fs::remove_file(state.file("a", "json")).expect("it is there");
        publish(&state, &other).expect("the directory is writable");
        let refused = keep(&state, &entry);
        assert!(matches!(refused, Err(Error::State(StateError::NameTaken { .. }))));
        release(&state, &entry).expect("there is nothing to do");
        assert_eq!(state.entries().expect("it is readable"), [other]);
    }

    #[test]
    fn a_name_that_is_taken_is_refused_whether_it_was_chosen_or_not() {
        let (_parent, state) = directory();
        let first = claim(&state, &job("/1/a.img", None)).expect("the store is free").entry;
        assert_eq!(first.name, "a");
        for second in [job("/2/a.img", None), job("/4/x.img", Some("a"))] {
            let taken = claim(&state, &second);
            assert!(matches!(taken, Err(Error::State(StateError::NameTaken { .. }))));
        }
        let other = claim(&state, &job("/2/a.img", Some("b"))).expect("it is free").entry;
        assert_eq!(other.name, "b");
    }

    #[test]
    fn what_an_ended_daemon_left_does_not_stand_in_the_way() {
        let (_parent, state) = directory();
        let first = claim(&state, &job("/srv/a.img", None)).expect("nobody serves it").entry;
        let dead = Process { pid: 1, start_ticks: u64::MAX };
        publish(&state, &Entry { process: dead, ..first }).expect("the directory is writable");
        let socket = state.file("a", "sock");
        drop(UnixListener::bind(&socket).expect("the directory is writable"));
        let second = claim(&state, &job("/srv/a.img", None)).expect("its daemon has ended").entry;
        assert_eq!(second.name, "a");
        assert!(!Path::new(&socket).exists(), "the dead daemon's socket is still there");
    }

    #[test]
    fn a_name_whose_files_are_somebody_elses_is_refused_and_they_stay() {
        let (_parent, state) = directory();
        for suffix in ["json", "sock", "nbd"] {
            let path = state.file("a", suffix);
            std::fs::write(&path, b"theirs").expect("the directory is writable");
            for name in [None, Some("a")] {
                let refused = claim(&state, &job("/srv/a.img", name)).err().expect("it is refused");
                assert!(refused.to_string().contains(&path.display().to_string()), "{refused}");
            }
            assert_eq!(std::fs::read(&path).expect("it is still there"), b"theirs");
            std::fs::remove_file(&path).expect("it is ours");
        }
    }

    #[test]
    fn a_chosen_name_is_checked() {
        let (_parent, state) = directory();
        let refused = claim(&state, &job("/srv/a.img", Some("../a")));
        assert!(matches!(refused, Err(Error::State(StateError::NameInvalid { .. }))));
        assert_eq!(state.entries().expect("it is readable"), []);
    }
}
