//! Why a step of an operation goes no further.

use coulter_format::Corrupt;

/// The kind of a block that has to be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Node,
    Bitmap,
}

/// Why a step stops. All but an error mean: undo, wait, and do it again from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// This block has to be loaded first.
    Miss(u64, Role),
    /// Freed blocks become usable when the open set is submitted.
    Space,
    /// Blocks that it wants are being read or written.
    Conflict,
    /// The operation fails with this error number.
    Errno(i32),
}

/// The result of a step.
pub(crate) type Step<T> = Result<T, Stop>;

impl From<Corrupt> for Stop {
    fn from(_: Corrupt) -> Stop {
        Stop::Errno(libc::EIO)
    }
}

pub(crate) fn fail<T>(errno: i32) -> Step<T> {
    Err(Stop::Errno(errno))
}

/// How a step ended, once its stop was seen to.
pub(crate) enum Settled<T> {
    Done(Result<T, i32>),
    /// It is to be done again at once.
    Again,
    /// It is to be done again later; that was seen to.
    Later,
}

/// Does a step until it does not stop for want of space, and gives its value; ends or waits
/// otherwise.
macro_rules! settle {
    ($step:expr) => {
        loop {
            match $step {
                $crate::stop::Settled::Done(Ok(value)) => break value,
                $crate::stop::Settled::Done(Err(errno)) => {
                    return $crate::task::Progress::Ends(Err(errno));
                }
                $crate::stop::Settled::Again => {}
                $crate::stop::Settled::Later => return $crate::task::Progress::Waits,
            }
        }
    };
}
pub(crate) use settle;
