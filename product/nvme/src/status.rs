//! How a command went: a type, a code, and whether it is of use to try again.

/// Bits 14 to 0 of a completion's status: do-not-retry, more, type, code.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

const DO_NOT_RETRY: u16 = 1 << 14;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $kind:literal, $code:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Status = Status(($kind << 8) | $code);)*

            /// What it means.
            pub fn text(self) -> &'static str {
                match self.code_and_type() {
                    $(Status::$name => $text,)*
                    _ => "unknown status",
                }
            }
        }
    };
}

statuses! {
    /// Done.
    SUCCESS = 0, 0x00, "success";
    /// There is no such command here.
    INVALID_OPCODE = 0, 0x01, "invalid opcode";
    /// A field has a value that is not supported.
    INVALID_FIELD = 0, 0x02, "invalid field";
    /// The data could not be moved.
    DATA_TRANSFER_ERROR = 0, 0x04, "data transfer error";
    /// The target failed.
    INTERNAL_ERROR = 0, 0x06, "internal error";
    /// Somebody asked for that.
    ABORTED_BY_REQUEST = 0, 0x07, "aborted by request";
    /// The queue is gone.
    ABORTED_SQ_DELETION = 0, 0x08, "aborted for the deletion of its queue";
    /// There is no such namespace.
    INVALID_NAMESPACE = 0, 0x0b, "invalid namespace";
    /// Not now, or not before something else.
    SEQUENCE_ERROR = 0, 0x0c, "command sequence error";
    /// The descriptors of data are more than they may be.
    INVALID_SGL_COUNT = 0, 0x0e, "invalid number of SGL descriptors";
    /// The data is not as long as the command says.
    INVALID_SGL_LENGTH = 0, 0x0f, "data length invalid";
    /// The data is described in a way that is not supported.
    INVALID_SGL_TYPE = 0, 0x11, "SGL descriptor type invalid";
    /// The data in the capsule does not begin at its beginning.
    INVALID_SGL_OFFSET = 0, 0x16, "SGL offset invalid";
    /// The host identifier is not consistent.
    HOST_ID_INCONSISTENT = 0, 0x18, "host identifier inconsistent format";
    /// No sign of life of the host.
    KEEP_ALIVE_EXPIRED = 0, 0x19, "keep alive timer expired";
    /// The namespace is protected from writes.
    NAMESPACE_WRITE_PROTECTED = 0, 0x20, "namespace is write protected";
    /// Nothing was done; try again.
    COMMAND_INTERRUPTED = 0, 0x21, "command interrupted";
    /// Data was damaged on its way.
    TRANSIENT_TRANSPORT_ERROR = 0, 0x22, "transient transport error";
    /// Beyond the end.
    LBA_OUT_OF_RANGE = 0, 0x80, "LBA out of range";
    /// There is no room.
    CAPACITY_EXCEEDED = 0, 0x81, "capacity exceeded";
    /// The namespace is not ready.
    NAMESPACE_NOT_READY = 0, 0x82, "namespace not ready";
    /// There is no such queue, or it is not as it has to be.
    INVALID_QUEUE_ID = 1, 0x01, "invalid queue identifier";
    /// More event requests than are taken.
    ASYNC_EVENT_LIMIT = 1, 0x05, "asynchronous event request limit exceeded";
    /// There is no such log.
    INVALID_LOG_PAGE = 1, 0x09, "invalid log page";
    /// The feature cannot be saved.
    FEATURE_NOT_SAVEABLE = 1, 0x0d, "feature identifier not saveable";
    /// The feature cannot be changed.
    FEATURE_NOT_CHANGEABLE = 1, 0x0e, "feature not changeable";
    /// Connect in a format that is not supported.
    CONNECT_INCOMPATIBLE = 1, 0x80, "incompatible format";
    /// The controller has a host, or is not free yet.
    CONNECT_BUSY = 1, 0x81, "controller busy";
    /// Connect with a parameter that is wrong.
    CONNECT_INVALID = 1, 0x82, "connect invalid parameters";
    /// Connect by a host that is not let in.
    CONNECT_INVALID_HOST = 1, 0x84, "connect invalid host";
    /// The queue is of another kind.
    INVALID_QUEUE_TYPE = 1, 0x85, "invalid queue type";
    /// Who are you?
    AUTH_REQUIRED = 1, 0x91, "authentication required";
    /// The data could not be written.
    WRITE_FAULT = 2, 0x80, "write fault";
    /// The data is damaged.
    UNRECOVERED_READ = 2, 0x81, "unrecovered read error";
    /// It is not the same.
    COMPARE_FAILURE = 2, 0x85, "compare failure";
    /// There is no way at the moment.
    PATH_ERROR = 3, 0x70, "host path error";
}

impl Status {
    /// The same, with the advice not to try again.
    pub fn final_one(self) -> Status {
        Status(self.0 | DO_NOT_RETRY)
    }

    /// Whether trying again is of no use.
    pub fn is_final(self) -> bool {
        self.0 & DO_NOT_RETRY != 0
    }

    /// Whether the command was carried out.
    pub fn is_success(self) -> bool {
        self.code_and_type() == Status::SUCCESS
    }

    /// The same without anything but type and code.
    pub fn code_and_type(self) -> Status {
        Status(self.0 & 0x7ff)
    }

    /// The status code type.
    pub fn kind(self) -> u8 {
        (self.0 >> 8) as u8 & 7
    }

    /// The status code.
    pub fn code(self) -> u8 {
        self.0 as u8
    }
}

impl core::fmt::Display for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({:02x}/{:02x})", self.text(), self.kind(), self.code())
    }
}

impl core::fmt::Debug for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let advice = if self.is_final() { ", final" } else { "" };
        write!(f, "Status({:02x}/{:02x}{advice})", self.kind(), self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_codes_stand_where_they_belong() {
        let status = Status::COMPARE_FAILURE.final_one();
        assert_eq!((status.kind(), status.code(), status.0), (2, 0x85, 0x4285));
        assert_eq!(status.text(), "compare failure");
        assert!(Status::SUCCESS.is_success() && !status.is_success());
    }
}
