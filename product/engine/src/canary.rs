//! Deliberate mistakes, to see that the simulator would find them.
//!
//! They are compiled in only with `--cfg coulter_canary`, which the build script of
//! `proof/canary-engine` sets for that crate alone: it is this source under another name, and nothing
//! but the tests in `proof/canary-sim` depends on it. In the engine itself [`sings`] is `false` at
//! compile time.

#![cfg_attr(
    not(coulter_canary),
    allow(dead_code, unreachable_pub, reason = "in the engine itself no mistake is ever chosen")
)]

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// A FLUSH is answered without a device flush.
    FlushDropped,
    /// A write is answered when its record is complete, although one before it is not.
    AcknowledgedEarly,
    /// Segments freed are opened before a checkpoint is durable that no longer needs them.
    SegmentReusedEarly,
    /// Opening goes on in the old epoch.
    EpochNotBumped,
    /// Reads do not compare checksums.
    ChecksumIgnored,
    /// A relocation takes effect although the address was overwritten meanwhile.
    OverwriteIgnored,
    /// A record counts although its payload did not arrive.
    TornRecordAccepted,
    /// Replay forgets discards.
    DiscardForgotten,
    /// A freed segment is trimmed while it is being read.
    ReaderIgnored,
    /// The array of a leaf is given up although its page is not written yet.
    PageEvictedEarly,
    /// The superblock is written without a flush before.
    SuperblockUnordered,
    /// What a checkpoint frees is used again while only one copy of the superblock leads to it.
    SuperblockSingle,
    /// The first superblock of a store that has grown names a copy C that is not there yet.
    ThirdNamedEarly,
    /// A run says of an unchanged array that its page counts nothing.
    UnchangedReleased,
    /// Runs die one leaf too soon.
    RunDiesEarly,
    /// Recovery takes the first records of a group whose last ones did not arrive.
    GroupHalved,
    /// Writes of one address may go to two records of a group.
    GroupUnordered,
    /// Holes are filled although only memory knows that they are dead.
    HoleFilledEarly,
    /// Holes are filled while their old content is being read.
    HoleReaderIgnored,
    /// Blocks of a flash page of which others are needed are holes.
    PartOfPageFilled,
    /// Partly dead pages are padded although nobody said that the device writes them whole or not at all.
    PaddedUnasked,
    /// A block that a page is padded with is not written as it was read.
    PadDisplaced,
    /// Recovery does not look for records in reserved holes.
    HolesForgotten,
    /// The cleaner takes the word of a header that is left over.
    StaleHeaderBelieved,
    /// What a run says again of leaves that were swept is not counted for recovery.
    RunUncounted,
    /// Pages of the list of roots are not written anew.
    RootListStale,
    /// Updates are taken although recovery would have no memory for them.
    RecoveryOverfilled,
    /// The cleaner passes over the record of which it had read the header.
    RecordPassedOver,
    /// A buffer is used again while a read that nobody wants any more still fills it.
    AbandonedBufferReused,
    /// A flush that failed is tried again.
    FlushRetried,
    /// A checkpoint refers to records of which not every block took effect, or of whose addresses other
    /// locations are counted, and no run says so.
    ReferenceUnfounded,
    /// A checkpoint goes on referring to records of segments that were emptied.
    ReferenceOutlives,
    /// Long records are written although the superblock says that there are none.
    LongRecordsUnannounced,
    /// A write of several ranges goes into two records.
    ManyTorn,
    /// The map goes on waiting for the second relocation that came too late.
    RelocationKept,
    /// The map goes on keeping a cell for the first relocation that came too late.
    PromiseKept,
    /// A segment is opened while the device still writes zeros into it.
    OpenedWhilePrepared,
    /// A client reads what it looked up without looking again once it is counted.
    CachedReadUnchecked,
    /// What changes stays in the cache of translations.
    CacheNotEmptied,
    /// Segments are used again while clients read them.
    CachedReaderIgnored,
    /// The superblock names a second copy of the checkpoint's body that nobody has written.
    BodyCopyMissing,
    /// The body names the place of the first copy for the second one as well.
    CopyInPlace,
    /// What is damaged is not read from its second copy.
    CopyUnused,
    /// A header is left out of the parity of its group.
    ParityIncomplete,
    /// A record of which a block cannot be read is dropped, though it may have been durable.
    UnreadableDropped,
    /// A header that is rebuilt from what another one tells of it counts though its payload is not what was written.
    EchoUnverified,
    /// A scrub takes the blocks of every third segment for intact, and does not read them.
    ScrubSkipsSegment,
    /// A scrub does not compare checksums.
    ScrubBelieves,
    /// What is in doubt is not marked lost in the map, so that it is forgotten with the next checkpoint.
    DoubtForgotten,
    /// An address comes into doubt, and what was known of it before is still told.
    DoubtAnswered,
}

impl Canary {
    /// All of them.
    pub const ALL: [Canary; 49] = [
        Canary::FlushDropped,
        Canary::AcknowledgedEarly,
        Canary::SegmentReusedEarly,
        Canary::EpochNotBumped,
        Canary::ChecksumIgnored,
        Canary::OverwriteIgnored,
        Canary::TornRecordAccepted,
        Canary::DiscardForgotten,
        Canary::ReaderIgnored,
        Canary::PageEvictedEarly,
        Canary::SuperblockUnordered,
        Canary::SuperblockSingle,
        Canary::ThirdNamedEarly,
        Canary::UnchangedReleased,
        Canary::RunDiesEarly,
        Canary::GroupHalved,
        Canary::GroupUnordered,
        Canary::HoleFilledEarly,
        Canary::HoleReaderIgnored,
        Canary::PartOfPageFilled,
        Canary::PaddedUnasked,
        Canary::PadDisplaced,
        Canary::HolesForgotten,
        Canary::StaleHeaderBelieved,
        Canary::RunUncounted,
        Canary::RecoveryOverfilled,
        Canary::RecordPassedOver,
        Canary::AbandonedBufferReused,
        Canary::FlushRetried,
        Canary::ReferenceUnfounded,
        Canary::ReferenceOutlives,
        Canary::LongRecordsUnannounced,
        Canary::ManyTorn,
        Canary::RelocationKept,
        Canary::PromiseKept,
        Canary::OpenedWhilePrepared,
        Canary::BodyCopyMissing,
        Canary::CachedReadUnchecked,
        Canary::CacheNotEmptied,
        Canary::CachedReaderIgnored,
        Canary::CopyInPlace,
        Canary::CopyUnused,
        Canary::ParityIncomplete,
        Canary::UnreadableDropped,
        Canary::EchoUnverified,
        Canary::ScrubSkipsSegment,
        Canary::ScrubBelieves,
        Canary::DoubtForgotten,
        Canary::DoubtAnswered,
    ];
}

#[cfg(coulter_canary)]
mod chosen {
    extern crate std;

    use super::Canary;
    use core::cell::Cell;

    std::thread_local! {
        static CHOSEN: Cell<Option<Canary>> = const { Cell::new(None) };
    }

    /// Lets one mistake happen from now on, on this thread.
    pub fn choose(canary: Option<Canary>) {
        CHOSEN.with(|chosen| chosen.set(canary));
    }

    pub(crate) fn sings(canary: Canary) -> bool {
        CHOSEN.with(|chosen| chosen.get() == Some(canary))
    }
}

#[cfg(coulter_canary)]
pub use chosen::choose;
#[cfg(coulter_canary)]
pub(crate) use chosen::sings;

/// Whether a mistake is to be made. Never.
#[cfg(not(coulter_canary))]
pub(crate) const fn sings(_: Canary) -> bool {
    false
}
