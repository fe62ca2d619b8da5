//! Statuses of NVMe, in the terms of the block-service contract.

use coulter::service::RequestError;
use coulter_nvme::Status;

/// The error of the contract that a status stands for.
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
    use coulter::service::Operation;
    use coulter_nvme_target::from_request_error;

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
