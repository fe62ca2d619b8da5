//! Changes that a volume goes through while hosts wait: another program, a larger store, another
//! copy.
//!
//! Here is found out whether one can be, before anything is closed; the service then does it.

use super::Serving;
use crate::copy::copying::{CopyOrder, Copying};
use crate::copy::replication::Replication;
use crate::copy::trial;
use crate::error::{DaemonError, Error, OpenError};
use crate::service::control::Reply;
use crate::service::handover;
use crate::service::status::Facts;
use crate::store_file::size_of;
use coulter::State;
use coulter_system::mounts;
use std::os::fd::OwnedFd;
use std::path::Path;

impl Serving {
    /// Checks that this could go on as `program`.
    pub(super) fn check_restart(&self, program: &Path) -> Result<(), Error> {
        let refused = |reason: &str| DaemonError::Restart {
            name: self.entry.name.clone(),
            reason: reason.to_owned(),
        };
        if let Some(reason) = self.backing.bound_to_the_process() {
            return Err(refused(reason).into());
        }
        // While no program runs that serves the volume, nothing can be read from it.
        let mounts = mounts::mounts_of(Path::new(&self.point.device())).unwrap_or_default();
        if mounts.iter().any(|mount| program.starts_with(&mount.mount_point)) {
            return Err(refused("the program lies on the volume itself").into());
        }
        handover::check_store(&self.entry, self.read_only)?;
        handover::check(&self.entry.name, program)?;
        if let Some(replication) = &self.replication {
            trial::try_copy(replication)
                .map_err(|reason| refused(&format!("its copy cannot be used now: {reason}")))?;
        }
        Ok(())
    }

    /// Has hosts wait, if the store can be closed, grown and opened again.
    pub(super) fn prepare_growth(&mut self) -> Result<OwnedFd, Error> {
        self.check_growth()?;
        if let Some(replication) = &self.replication {
            trial::try_copy(replication).map_err(|reason| OpenError::NotGrown {
                path: self.entry.store.clone(),
                reason: format!("its copy cannot be used now: {reason}"),
                is_usage: false,
            })?;
        }
        self.hand_over().map_err(|_| {
            let reason = format!(
                "it is attached by {}, which cannot wait for it: detach it first",
                self.entry.via
            );
            OpenError::NotGrown { path: self.entry.store.clone(), reason, is_usage: false }.into()
        })
    }

    /// Checks that its store could be closed, grown and opened again.
    fn check_growth(&self) -> Result<(), Error> {
        let path = self.entry.store.clone();
        let refused = |reason: String| OpenError::NotGrown { path, reason, is_usage: false };
        if self.read_only {
            return Err(refused("it is attached read-only".to_owned()).into());
        }
        let facts = self.backing.status(&self.entry, self.since.elapsed());
        if let Facts::Volume(status) = facts
            && status.replica.is_some_and(|replica| replica.missing_bytes > 0)
        {
            let reason = "its cache is not filled yet, and is as large as the copy until then";
            return Err(refused(reason.to_owned()).into());
        }
        if let Some(reason) = self.backing.bound_to_the_process() {
            return Err(refused(reason.to_owned()).into());
        }
        handover::check_store(&self.entry, self.read_only)?;
        // Closed, it could not be opened again.
        let needed = self.backing.store_size().unwrap_or(0);
        let store = &self.entry.store;
        let found = size_of(store).map_err(|source| Error::io("look at", store, source))?;
        if found < needed {
            return Err(refused(format!(
                "it has become shorter: it has {found} bytes, and the store needs {needed}"
            ))
            .into());
        }
        Ok(())
    }

    /// Has hosts wait, if the store can be closed, and opened again with another replication.
    pub(super) fn prepare_copying(
        &mut self,
        order: &CopyOrder,
    ) -> Result<(Option<Replication>, OwnedFd), Error> {
        let replication = self.check_copying(order)?;
        if let Some(replication) = &replication {
            trial::try_copy(replication).map_err(|reason| self.not_copied(reason))?;
        }
        log::info!("changing the replication when what is asked for is done");
        let descriptor = self.hand_over().map_err(|_| {
            self.not_copied(format!(
                "it is attached by {}, which cannot wait for it: detach it, and attach it as it is to be replicated",
                self.entry.via
            ))
        })?;
        Ok((replication, descriptor))
    }

    /// Has hosts wait until the store is open again. A bucket that takes nothing delays that
    /// briefly.
    pub(super) fn hand_over(&mut self) -> Result<OwnedFd, Error> {
        self.backing.leave(true);
        let handed = self.point.hand_over();
        if handed.is_err() {
            self.backing.leave(false);
        }
        handed
    }

    /// Changes settings of the copy at once, whatever the volume is attached by and whatever the
    /// bucket does. Flushes that wait now follow, too.
    pub(super) fn adjust(&mut self, order: &CopyOrder) -> Reply {
        assert!(order.only_adjusts(), "a new opening of the store is needed");
        let applied = order.applied(self.replication.as_ref());
        let replication = match applied {
            Ok(Some(replication)) => replication,
            Ok(None) => {
                return Reply::Failed(self.not_copied("it has no copy".to_owned()).report());
            }
            Err(error) => return Reply::Failed(self.not_copied(error.to_string()).report()),
        };
        let before = self.replication.replace(replication.clone());
        let replication =
            Replication { cache: before.as_ref().and_then(|before| before.cache), ..replication };
        if !self.backing.adjust(&replication) {
            self.replication = before;
            let why = "another host has the volume, or it is no volume that is replicated";
            return Reply::Failed(self.not_copied(why.to_owned()).report());
        }
        log::info!(words:% = replication.words(); "the copy is kept in another way");
        let url = Some(replication.url.to_string());
        self.replication = Some(replication);
        Reply::Copying(Copying { url_before: url.clone(), url, behind: None })
    }

    pub(super) fn not_copied(&self, reason: String) -> Error {
        DaemonError::NotCopied { name: self.entry.name.clone(), reason }.into()
    }

    /// What an order makes of the replication, if the store can be closed and opened again so.
    fn check_copying(&self, order: &CopyOrder) -> Result<Option<Replication>, Error> {
        let refused = |reason: &str| self.not_copied(reason.to_owned());
        let replication = order.applied(self.replication.as_ref());
        let replication = replication.map_err(|error| refused(&error.to_string()))?;
        if self.read_only {
            return Err(refused("it is attached read-only"));
        }
        let facts = self.backing.status(&self.entry, self.since.elapsed());
        let Facts::Volume(status) = facts else { return Err(refused("it is no volume")) };
        if let Some(replica) = &status.replica {
            // It must not become the valid one again, and its users have met errors.
            if replica.is_fenced {
                return Err(refused("another host has taken the volume over"));
            }
            if replica.missing_bytes > 0 {
                return Err(refused("its cache is not filled yet, and needs the copy until then"));
            }
        }
        if self.backing.state() != State::Running {
            return Err(refused(&self.backing.state().to_string()));
        }
        if let Some(reason) = self.backing.bound_to_the_process() {
            return Err(refused(reason));
        }
        handover::check_store(&self.entry, self.read_only)?;
        Ok(replication)
    }
}
