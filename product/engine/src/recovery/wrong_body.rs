//! Why the lists of a checkpoint are refused.

use super::damaged;
use crate::error::OpenError;
use crate::memory::NoMemory;
use coulter_format::{Pba, Reason, Structure};

/// Why the lists of a checkpoint are not taken over.
pub(super) enum WrongBody {
    Field(&'static str),
    Memory(NoMemory),
}

impl WrongBody {
    pub(super) fn at(self, pba: Pba) -> OpenError {
        match self {
            WrongBody::Field(name) => damaged(Structure::Checkpoint, Reason::Field(name), pba),
            WrongBody::Memory(refused) => refused.into(),
        }
    }
}

impl From<NoMemory> for WrongBody {
    fn from(refused: NoMemory) -> WrongBody {
        WrongBody::Memory(refused)
    }
}
