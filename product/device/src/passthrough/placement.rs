//! Flexible data placement (FDP): the handles by which a drive is told which writes belong together.
//!
//! The log marks each write with its stream. A drive with placement gets the stream as a handle, and so puts
//! data that is freed at the same time into the same reclaim unit. It is a hint: a drive without it, or one that
//! does not tell its handles, gets plain writes.

use coulter_nvme::Sqe;
use coulter_nvme::opcode::io;

/// The bit of a controller's attributes (CTRATT) that says that it can place data.
pub(super) const ATTRIBUTE: u32 = 1 << 19;
/// Handles that are used: there are fewer streams.
const HANDLES_MAX: usize = 8;
const HEADER_SIZE: usize = 16;
const DESCRIPTOR_SIZE: usize = 32;
/// Bytes of the answer that is asked for.
pub(super) const STATUS_SIZE: usize = HEADER_SIZE + HANDLES_MAX * DESCRIPTOR_SIZE;
/// The operation of I/O Management Receive that tells the handles.
const HANDLE_STATUS: u32 = 1;

/// The handles of a namespace, at most [`HANDLES_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Placement {
    handles: [u16; HANDLES_MAX],
    count: usize,
}

/// The command whose answer [`Placement::decode`] takes.
pub(super) fn ask(nsid: u32) -> Sqe {
    Sqe::new(io::MANAGEMENT_RECEIVE, nsid)
        .with_dword(10, HANDLE_STATUS)
        .with_dword(11, STATUS_SIZE as u32 / 4 - 1)
}

impl Placement {
    #[cfg(test)]
    pub(super) fn of(list: &[u16]) -> Placement {
        let mut handles = [0; HANDLES_MAX];
        handles[..list.len()].copy_from_slice(list);
        Placement { handles, count: list.len() }
    }

    /// What a drive says of its handles; bytes that say of more than are there are cut short.
    pub(super) fn decode(bytes: &[u8]) -> Placement {
        let u16_at =
            |at: usize| bytes.get(at..at + 2).map(|two| u16::from_le_bytes([two[0], two[1]]));
        let told = u16_at(HEADER_SIZE - 2).map_or(0, usize::from);
        let mut placement = Placement::default();
        for index in 0..told.min(HANDLES_MAX) {
            let Some(handle) = u16_at(HEADER_SIZE + index * DESCRIPTOR_SIZE) else { break };
            placement.handles[index] = handle;
            placement.count += 1;
        }
        placement
    }

    /// The handle of a stream; none if the drive has none. Streams beyond the handles share them.
    pub(super) fn handle(&self, stream: u8) -> Option<u16> {
        (self.count > 0).then(|| self.handles[usize::from(stream) % self.count])
    }

    /// How many handles are used.
    pub(super) fn count(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_found_where_the_specification_has_them() {
        let mut bytes = vec![0; STATUS_SIZE];
        bytes[14] = 2;
        bytes[16..18].copy_from_slice(&0x0102_u16.to_le_bytes());
        bytes[48..50].copy_from_slice(&0x0304_u16.to_le_bytes());
        let placement = Placement::decode(&bytes);
        assert_eq!(placement, Placement::of(&[0x0102, 0x0304]));
        let handles: Vec<_> = (0..3).map(|stream| placement.handle(stream)).collect();
        assert_eq!(handles, [Some(0x0102), Some(0x0304), Some(0x0102)]);
        let sqe = ask(3);
        let told = (sqe.opcode(), sqe.nsid(), sqe.dword(10), sqe.dword(11));
        assert_eq!(told, (0x12, 3, 1, 67));
    }

    #[test]
    fn an_answer_that_says_too_much_or_too_little_is_cut_short() {
        assert_eq!(Placement::decode(&[]), Placement::default());
        assert_eq!(Placement::decode(&[0; STATUS_SIZE]).handle(1), None);
        let mut bytes = vec![0xff; STATUS_SIZE];
        assert_eq!(Placement::decode(&bytes).count(), HANDLES_MAX);
        bytes.truncate(HEADER_SIZE + DESCRIPTOR_SIZE + 1);
        assert_eq!(Placement::decode(&bytes).count(), 1);
    }
}
