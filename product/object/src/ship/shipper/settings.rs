//! How a replica is kept.

use std::time::Duration;

/// What a flush waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// The local device. The remote copy lags behind.
    Local,
    /// The local device, and a commit of all that completed before.
    Remote,
}

/// How far the remote copy is behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Bytes that have completed and that no commit holds.
    pub bytes: u64,
    /// For how long something has been waiting.
    pub time: Duration,
}

/// How a replica is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What a flush waits for.
    pub ack: Ack,
    /// Time between commits while something changes.
    pub every: Duration,
    /// Bytes after which a commit is made before its time.
    pub early_bytes: u64,
    /// Bytes that may wait to be shipped; then writers wait.
    pub lag_max: u64,
    /// Bytes of a data object.
    pub object_size: u64,
    /// Bytes that a commit carries itself at most.
    pub inline_max: u64,
    /// Data objects that are being read back or stored at once: each takes memory.
    pub captures_max: usize,
    /// Bytes of memory for what was written and is not on its way yet. What finds no room is read back. 0: all is.
    pub keep_max: u64,
    /// Commits between manifests.
    pub manifest_every: u64,
    /// Time between two looks at whether another host has taken the volume over, idle or not.
    pub look_every: Duration,
}

/// The settings that may change while a replica is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// As [`Settings::every`].
    pub every: Duration,
    /// As [`Settings::lag_max`].
    pub lag_max: u64,
    /// As [`Settings::keep_max`].
    pub keep_max: u64,
}

impl Settings {
    /// The same at another pace.
    #[must_use]
    pub fn at(self, pace: Pace) -> Settings {
        let Pace { every, lag_max, keep_max } = pace;
        Settings { every, lag_max, keep_max, ..self }
    }

    /// A commit a second, objects of 8 MiB, 1 GiB of lag, 64 MiB kept in memory.
    pub const DEFAULT: Settings = Settings {
        ack: Ack::Local,
        every: Duration::from_secs(1),
        early_bytes: 64 << 20,
        lag_max: 1 << 30,
        object_size: 8 << 20,
        inline_max: 1 << 20,
        captures_max: 8,
        keep_max: 64 << 20,
        manifest_every: 256,
        look_every: Duration::from_secs(5),
    };

    /// Stops at settings that contradict each other.
    ///
    /// # Panics
    /// When they do: the caller has checked what a person typed.
    pub fn assert_consistent(&self) {
        assert!(self.object_size > 0, "an object holds something");
        assert!(self.object_size + 4 <= u64::from(u32::MAX), "offsets in an object have 32 bits");
        assert!(self.inline_max <= self.object_size, "a commit is no larger than a data object");
        assert!(self.captures_max > 0, "something can be stored");
        assert!(self.manifest_every > 0, "commits are counted from 1");
        assert!(self.lag_max >= self.object_size, "an object fits into the lag");
    }
}
