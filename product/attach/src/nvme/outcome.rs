//! Errors of the block-service contract, to and from the statuses of NVMe.
//!
//! What will fail again is said to be final. Hosts try the rest again, or give up on their own terms.

use coulter::service::{Operation, RequestError};
use coulter_nvme::Status;

/// The status that a host is given.
pub(super) fn from_request_error(error: RequestError, operation: Operation) -> Status {
    let writes = !matches!(operation, Operation::Read | Operation::Extents);
    match error {
        RequestError::OutOfRange => Status::LBA_OUT_OF_RANGE.final_one(),
        RequestError::Invalid => Status::INVALID_FIELD.final_one(),
        RequestError::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED.final_one(),
        RequestError::Corrupt { .. } => Status::UNRECOVERED_READ.final_one(),
        RequestError::Device { errno } => match errno {
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Status::CAPACITY_EXCEEDED.final_one(),
            // A volume that failed to write refuses to from then on.
            _ if writes => Status::WRITE_FAULT.final_one(),
            _ => Status::INTERNAL_ERROR,
        },
        RequestError::Closed => Status::NAMESPACE_NOT_READY,
        _ => Status::INTERNAL_ERROR.final_one(),
    }
}

/// What a status means in the terms of the contract.
pub(super) fn to_request_error(status: Status) -> RequestError {
    match status.code_and_type() {
        Status::LBA_OUT_OF_RANGE => RequestError::OutOfRange,
        Status::INVALID_FIELD | Status::INVALID_SGL_LENGTH => RequestError::Invalid,
        Status::NAMESPACE_WRITE_PROTECTED => RequestError::ReadOnly,
        Status::NAMESPACE_NOT_READY => RequestError::Closed,
        Status::CAPACITY_EXCEEDED => RequestError::Device { errno: libc::ENOSPC },
        _ => RequestError::Device { errno: libc::EIO },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_meaning_over_the_wire() {
        let write = Operation::Write { fua: false };
        for error in [
            RequestError::OutOfRange,
            RequestError::Invalid,
            RequestError::ReadOnly,
            RequestError::Closed,
            RequestError::Device { errno: libc::EIO },
            RequestError::Device { errno: libc::ENOSPC },
        ] {
            assert_eq!(to_request_error(from_request_error(error, write)), error);
        }
        let damaged = from_request_error(RequestError::Corrupt { block: 1 }, Operation::Read);
        assert_eq!(damaged, Status::UNRECOVERED_READ.final_one());
    }
}
