//! The contract of what uses a file system while the power is cut.

use crate::error::SystemsError;
use crate::power::Power;
use serde::Serialize;
use std::ops::AddAssign;
use std::path::Path;

/// How much was compared, and found as it must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Things that were acknowledged as durable: files, renames, removals, pages, transactions.
    pub durable: u64,
    /// Bytes of content that were compared.
    pub bytes: u64,
}

impl AddAssign for Verified {
    fn add_assign(&mut self, other: Verified) {
        self.durable += other.durable;
        self.bytes += other.bytes;
    }
}

/// Something that uses a file system and knows what of it must survive.
///
/// # Contract
/// Calls come in this order: `prepare`; then any number of rounds of `start`, a power cut, `stop`,
/// `verify`, an orderly unmount, `settle`. The power may also go within `start`.
pub trait Workload {
    /// A word for it.
    fn name(&self) -> &'static str;

    /// Puts what is needed into an empty directory.
    ///
    /// # Errors
    /// The environment's.
    fn prepare(&mut self, directory: &Path) -> Result<(), SystemsError>;

    /// Begins to work, in the background. What is acknowledged counts only if there is `power`
    /// afterwards.
    ///
    /// # Errors
    /// The environment's; the caller forgives them when the power is gone.
    fn start(&mut self, directory: &Path, power: &Power) -> Result<(), SystemsError>;

    /// Ends all that works, and keeps in mind what was acknowledged. Afterwards nothing of it uses
    /// the directory.
    fn stop(&mut self);

    /// Compares the directory with what must be there. What is found may take the place of what
    /// might have been, but only once `settle` is called.
    ///
    /// # Errors
    /// A violation with all that is wrong.
    fn verify(&mut self, directory: &Path) -> Result<Verified, SystemsError>;

    /// What `verify` saw has become durable.
    fn settle(&mut self);
}

/// Several at once, each in a directory of its own.
impl Workload for Vec<Box<dyn Workload>> {
    fn name(&self) -> &'static str {
        self.first().map_or("nothing", |first| first.name())
    }

    fn prepare(&mut self, directory: &Path) -> Result<(), SystemsError> {
        for workload in self {
            let own = directory.join(workload.name());
            std::fs::create_dir(&own).map_err(|source| SystemsError::io("make", &own, source))?;
            workload.prepare(&own)?;
        }
        let opened = std::fs::File::open(directory).and_then(|opened| opened.sync_all());
        opened.map_err(|source| SystemsError::io("sync", directory, source))
    }

    fn start(&mut self, directory: &Path, power: &Power) -> Result<(), SystemsError> {
        self.iter_mut()
            .try_for_each(|workload| workload.start(&directory.join(workload.name()), power))
    }

    fn stop(&mut self) {
        self.iter_mut().for_each(|workload| workload.stop());
    }

    fn verify(&mut self, directory: &Path) -> Result<Verified, SystemsError> {
        let mut verified = Verified::default();
        for workload in self {
            verified += workload.verify(&directory.join(workload.name()))?;
        }
        Ok(verified)
    }

    fn settle(&mut self) {
        self.iter_mut().for_each(|workload| workload.settle());
    }
}
