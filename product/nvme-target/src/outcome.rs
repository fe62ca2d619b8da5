//! Errors of the block-service contract, to the statuses of NVMe.
//!
//! What will fail again is said to be final. Hosts try the rest again, or give up on their own terms.

use coulter::service::{Operation, RequestError};
use coulter_nvme::Status;

/// The status that a host is given.
pub fn from_request_error(error: RequestError, operation: Operation) -> Status {
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
