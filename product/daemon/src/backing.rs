//! What lies behind an attach point, as the daemon sees it.

use crate::copy::replication::Replication;
use crate::error::{DaemonError, Error, OpenError};
use crate::growth::{Grown, Growth};
use crate::life::state::Entry;
use crate::opening::Opening;
use crate::service::status::Facts;
use coulter::scrub::{Scrub, ScrubOrder};
use coulter::service::BlockService;
use coulter::tuning::{Retuning, SpacePatience, Tuning};
use coulter::{Failures, State};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Something that a daemon can be told to serve: a store, or what else a program has.
pub trait Source: Send {
    /// What stands for it in lists: the absolute path of a store.
    fn store(&self) -> PathBuf;

    /// A name for the volume, when the user gives none.
    fn name(&self) -> String;

    /// Whether [`Source::store`] is the path of a file or disk, which one daemon serves at most. Of
    /// anything else there may be any number.
    fn is_at_its_path(&self) -> bool;

    /// Lets it grow over all of its file or disk, while nobody has it open.
    ///
    /// # Errors
    /// Why it does not.
    fn grow(&self, _growth: Growth) -> Result<Grown, Error> {
        Err(OpenError::NotGrown {
            path: self.store(),
            reason: "it is no store in a file or on a disk".to_owned(),
            is_usage: false,
        }
        .into())
    }

    /// Opens it.
    ///
    /// # Errors
    /// Whatever keeps it from being opened.
    fn open(&self, opening: &Opening) -> Result<Box<dyn Backing>, Error>;
}

/// Something that is open in this process and serves blocks.
pub trait Backing {
    /// Its blocks, for attach points. What it is, they say: `describe`.
    fn service(&self) -> Arc<dyn BlockService>;

    /// Bytes of the file or disk that it needs, if it lies in one.
    fn store_size(&self) -> Option<u64> {
        None
    }

    /// What it can do at the moment.
    fn state(&self) -> State;

    /// How long requests have waited of which none was answered; `None` if none waits.
    fn unanswered_for(&self) -> Option<Duration>;

    /// What has failed so far.
    fn failures(&self) -> Failures;

    /// What it is doing. `entry` is how it is attached, for `uptime` so far.
    fn status(&self, entry: &Entry, uptime: Duration) -> Facts;

    /// Changes settings; what they are then. `None` if it has none to be changed, or has ended.
    fn tune(&self, retuning: Retuning) -> Option<Tuning>;

    /// Has writes and flushes wait for space below the store for ten seconds at most. For a service
    /// that ends, before anything that waits for a flush.
    fn hurry(&self) {
        let most = SpacePatience::of(Duration::from_secs(10)).expect("ten seconds are in range");
        let now = self.tune(Retuning::default());
        if now.is_some_and(|now| now.space_patience.time() > most.time()) {
            self.tune(Retuning { space_patience: Some(most), ..Retuning::default() });
        }
    }

    /// Begins or ends a scrub; how far it is then. `None` if it is nothing that can be scrubbed, or
    /// has ended.
    fn scrub(&self, _order: ScrubOrder) -> Option<Scrub> {
        None
    }

    /// Why no other process could go on with it, if that is so; in words that follow "because".
    fn bound_to_the_process(&self) -> Option<&'static str> {
        None
    }

    /// It is about to be closed, and nobody uses it. `false`: it goes on after all.
    fn leave(&self, _leaves: bool) {}

    /// Changes how its copy is kept, at once and where it is; `false` if it has no copy that
    /// follows.
    fn adjust(&self, _replication: &Replication) -> bool {
        false
    }

    /// Refuses writes and flushes from now on, because a part of what lies below is lost.
    fn refuse_writes(&self) {}

    /// Asks for a commit to its copy; `false` if it has none.
    fn commit(&self) -> bool {
        false
    }

    /// Does what only this kind of backing understands, asked for by a command of the program that
    /// gave it.
    ///
    /// # Errors
    /// [`DaemonError::NotUnderstood`]; whatever kept it from doing so.
    fn command(&self, entry: &Entry, words: &[String]) -> Result<(), Error> {
        let (name, words) = (entry.name.clone(), words.join(" "));
        Err(DaemonError::NotUnderstood { name, words }.into())
    }

    /// Makes everything durable and closes it. Gives back what is known at the end of something
    /// that is gone then.
    ///
    /// # Errors
    /// What kept it from closing in order; it is closed all the same.
    fn close(self: Box<Self>, entry: &Entry, uptime: Duration) -> Result<Option<Facts>, Error>;
}
