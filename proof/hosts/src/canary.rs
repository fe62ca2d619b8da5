//! Deliberate mistakes that the oracle must find.

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// A flush is answered before its commit was created.
    EarlyAnswer,
    /// The fence behind the old host's last commit is deleted.
    FenceDeleted,
    /// After an unknown outcome a name is used for other bytes.
    NameReused,
    /// Another's object under a commit's name counts as one's own.
    AnyForOurs,
    /// One's own object, whose answer was lost, counts as another's.
    OwnForForeign,
    /// Objects are collected before the manifest that does without them is durable.
    EarlyCollection,
    /// The collector does not look at the snapshots.
    PinsIgnored,
    /// A write passes over a range that a commit counts and that was not read back.
    MixedCommit,
    /// A copy is restored over what was there.
    RestoredOverOld,
    /// A flush that the copy has is answered without the local device.
    NoLocalFlush,
    /// After a power cut a host ships on from where the copy is, though its device may be another by then.
    MarksIgnored,
    /// A write does not replace what was kept in memory of the one before.
    StaleKept,
    /// A snapshot is made without a look at how far objects may have been deleted.
    HorizonIgnored,
    /// A host that was taken over takes the volume back because the other one has not committed yet.
    TakenBack,
    /// A host that finds at a look that another has the volume goes on answering.
    LookIgnored,
    /// The bucket creates what is there already.
    CarelessCreation,
    /// The bucket swaps whatever is there.
    CarelessSwap,
}

impl Canary {
    /// All of them.
    pub const ALL: [Canary; 17] = [
        Canary::EarlyAnswer,
        Canary::FenceDeleted,
        Canary::NameReused,
        Canary::AnyForOurs,
        Canary::OwnForForeign,
        Canary::EarlyCollection,
        Canary::PinsIgnored,
        Canary::MixedCommit,
        Canary::RestoredOverOld,
        Canary::NoLocalFlush,
        Canary::MarksIgnored,
        Canary::StaleKept,
        Canary::HorizonIgnored,
        Canary::TakenBack,
        Canary::LookIgnored,
        Canary::CarelessCreation,
        Canary::CarelessSwap,
    ];
}
