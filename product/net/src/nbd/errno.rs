//! The eight errors that NBD knows, to and from the errors of the block-service contract.

use coulter::service::{Operation, RequestError};

pub(super) const EPERM: u32 = 1;
pub(super) const EIO: u32 = 5;
pub(super) const ENOMEM: u32 = 12;
pub(super) const EINVAL: u32 = 22;
pub(super) const ENOSPC: u32 = 28;
pub(super) const EOVERFLOW: u32 = 75;
pub(super) const ESHUTDOWN: u32 = 108;

/// The error that a client is given. The protocol wants `ENOSPC` for a write beyond the end and
/// `EINVAL` for anything else beyond it, and `EPERM` for a write to a read-only export.
pub fn from_request_error(error: RequestError, operation: Operation) -> u32 {
    match error {
        RequestError::OutOfRange => out_of_range(operation),
        RequestError::Invalid => EINVAL,
        RequestError::ReadOnly => EPERM,
        RequestError::Closed => ESHUTDOWN,
        RequestError::Device { errno } => match errno {
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => ENOSPC,
            libc::ENOMEM => ENOMEM,
            _ => EIO,
        },
        _ => EIO,
    }
}

/// The error for a request that ends beyond the export.
pub fn out_of_range(operation: Operation) -> u32 {
    match operation {
        Operation::Write { .. } | Operation::WriteZeroes { .. } => ENOSPC,
        _ => EINVAL,
    }
}

/// The error of the contract that an error of a server stands for.
pub fn to_request_error(error: u32, operation: Operation) -> RequestError {
    match error {
        EPERM => RequestError::ReadOnly,
        ENOSPC if out_of_range(operation) == ENOSPC => RequestError::OutOfRange,
        EINVAL => RequestError::Invalid,
        ESHUTDOWN => RequestError::Closed,
        _ => RequestError::Device { errno: i32::try_from(error).unwrap_or(libc::EIO) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_becomes_one_of_the_protocols() {
        let write = Operation::Write { fua: false };
        let cases = [
            (RequestError::OutOfRange, write, ENOSPC),
            (RequestError::OutOfRange, Operation::WriteZeroes { fua: true }, ENOSPC),
            (RequestError::OutOfRange, Operation::Read, EINVAL),
            (RequestError::OutOfRange, Operation::Discard, EINVAL),
            (RequestError::Invalid, write, EINVAL),
            (RequestError::ReadOnly, write, EPERM),
            (RequestError::Closed, write, ESHUTDOWN),
            (RequestError::Corrupt { block: 1 }, Operation::Read, EIO),
            (RequestError::Device { errno: libc::EDQUOT }, write, ENOSPC),
            (RequestError::Device { errno: libc::ENOMEM }, write, ENOMEM),
            (RequestError::Device { errno: libc::ETIMEDOUT }, write, EIO),
        ];
        for (error, operation, expected) in cases {
            assert_eq!(from_request_error(error, operation), expected, "{error:?}");
        }
    }

    #[test]
    fn errors_keep_their_meaning_over_the_wire() {
        let write = Operation::Write { fua: false };
        for error in [
            RequestError::OutOfRange,
            RequestError::Invalid,
            RequestError::ReadOnly,
            RequestError::Closed,
            RequestError::Device { errno: libc::EIO },
        ] {
            assert_eq!(to_request_error(from_request_error(error, write), write), error);
        }
    }
}
