//! What objects are called.
//!
//! ```text
//! volume                     who may write, and where the newest manifest is       swapped
//! pins                       snapshots, and how far objects may have been deleted  swapped
//! c/<epoch:016x>/<n:016x>    commit n of an epoch, or the fence that ended it      created
//! d/<shard:02x>/<epoch:016x>-<k:016x>   bytes of the device                        created
//! m/<epoch:016x>-<n:016x>-<nonce:016x>  the manifest of all up to commit n         created
//! ```
//!
//! A data object's shard is the low byte of its number: services split the load by prefix.

use std::fmt;

/// The object that says who may write.
pub const VOLUME: &str = "volume";

/// The object that names the snapshots.
pub const PINS: &str = "pins";

/// A commit's place in the history: commits of an epoch are numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitId {
    /// The epoch: one opening of the volume by one host.
    pub epoch: u64,
    /// The number within it; 0 stands for its beginning, before any commit.
    pub number: u64,
}

impl CommitId {
    /// The one behind it in the same epoch.
    pub fn next(self) -> CommitId {
        CommitId { number: self.number + 1, ..self }
    }

    /// The object's name.
    pub fn name(self) -> String {
        format!("c/{:016x}/{:016x}", self.epoch, self.number)
    }

    /// The commit whose object has this name; `None` if no commit's has: other programs leave files, too.
    pub fn of_name(name: &str) -> Option<CommitId> {
        let (epoch, number) = name.strip_prefix("c/")?.split_once('/')?;
        let number_of = |digits| u64::from_str_radix(digits, 16).ok();
        let id = CommitId { epoch: number_of(epoch)?, number: number_of(number)? };
        (id.name() == name).then_some(id)
    }

    /// With what the names of an epoch's commits begin.
    pub fn names_of(epoch: u64) -> String {
        format!("c/{epoch:016x}/")
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.number)
    }
}

/// An object that holds bytes of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A data object: the epoch that made it, and its number there.
    Data {
        /// The epoch.
        epoch: u64,
        /// The number, from 0.
        number: u64,
    },
    /// A commit that carries the bytes itself.
    Commit(CommitId),
}

impl Source {
    /// The epoch that made it.
    pub fn epoch(self) -> u64 {
        match self {
            Source::Data { epoch, .. } | Source::Commit(CommitId { epoch, .. }) => epoch,
        }
    }

    /// The data object of this name; `None` if no data object's has it.
    pub fn of_data_name(name: &str) -> Option<Source> {
        let (epoch, number) = name.strip_prefix("d/")?.split_once('/')?.1.split_once('-')?;
        let number_of = |digits| u64::from_str_radix(digits, 16).ok();
        let source = Source::Data { epoch: number_of(epoch)?, number: number_of(number)? };
        (source.name() == name).then_some(source)
    }

    /// The object's name.
    pub fn name(self) -> String {
        match self {
            Source::Data { epoch, number } => {
                format!("d/{:02x}/{epoch:016x}-{number:016x}", number & 0xff)
            }
            Source::Commit(id) => id.name(),
        }
    }
}

/// The name of a manifest. The nonce keeps apart manifests of one commit that different hosts write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ManifestId {
    /// The last commit that it counts.
    pub commit: CommitId,
    /// Random.
    pub nonce: u64,
}

impl ManifestId {
    /// The object's name.
    pub fn name(self) -> String {
        let CommitId { epoch, number } = self.commit;
        format!("m/{epoch:016x}-{number:016x}-{:016x}", self.nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_documented() {
        let commit = CommitId { epoch: 3, number: 258 };
        assert_eq!(commit.name(), "c/0000000000000003/0000000000000102");
        let data = Source::Data { epoch: 3, number: 258 };
        assert_eq!(data.name(), "d/02/0000000000000003-0000000000000102");
        assert_eq!(Source::of_data_name(&data.name()), Some(data));
        assert_eq!(Source::of_data_name("d/03/0000000000000003-0000000000000102"), None);
        let manifest = ManifestId { commit, nonce: 1 };
        assert_eq!(manifest.name(), "m/0000000000000003-0000000000000102-0000000000000001");
    }
}
