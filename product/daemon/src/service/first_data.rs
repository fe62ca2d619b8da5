//! Where a volume's data begins, so that nobody takes a volume that holds something for an empty
//! one.
//!
//! Mapped is mapped, whatever the bytes are: a volume counts as empty when nothing was ever written
//! to it, or all of it was discarded since.

use coulter::buffer::Buffer;
use coulter::service::{
    BLOCK_SIZE, BlockService, Completion, Operation, Request, RequestError, Session,
};

/// The first byte of the first block of `service` that is mapped; `None` if none is.
///
/// # Errors
/// When the volume ends in the meantime, or cannot be asked.
pub(crate) fn first_data(service: &dyn BlockService) -> Result<Option<u64>, RequestError> {
    let mut session = service.connect();
    let size = service.size();
    assert!(size.is_multiple_of(BLOCK_SIZE), "a volume is whole blocks");
    let mut at = 0;
    while at < size {
        assert!(at.is_multiple_of(BLOCK_SIZE), "the search has left the blocks");
        at += unmapped_bytes(&mut *session, at, size - at)?;
        if at >= size {
            break;
        }
        // What is not in memory counts as mapped. Reading it brings what is known of it there.
        let read = ask(&mut *session, Operation::Read, at, BLOCK_SIZE);
        match read {
            Err(RequestError::Closed) => return Err(RequestError::Closed),
            // Damaged data is data.
            Err(_) => return Ok(Some(at)),
            Ok(_) => {}
        }
        match unmapped_bytes(&mut *session, at, BLOCK_SIZE)? {
            0 => return Ok(Some(at)),
            unmapped => at += unmapped,
        }
    }
    Ok(None)
}

/// Bytes from `at` on of which it is known that they are not mapped; less than there are, perhaps,
/// but zero only if the first is or may be mapped.
fn unmapped_bytes(session: &mut dyn Session, at: u64, length: u64) -> Result<u64, RequestError> {
    let extents = ask(session, Operation::Extents, at, length)?.extents;
    let unmapped = extents.iter().take_while(|extent| !extent.mapped);
    let unmapped = unmapped.map(|extent| extent.length).sum();
    assert!(unmapped <= length, "an answer about more than was asked");
    Ok(unmapped)
}

fn ask(
    session: &mut dyn Session,
    operation: Operation,
    offset: u64,
    length: u64,
) -> Result<Completion, RequestError> {
    let room = if operation == Operation::Read { length } else { 0 };
    let buffer = Buffer::zeroed(room as usize);
    session.submit(Request { tag: 0, operation, offset, length, buffer });
    let mut completions = Vec::new();
    session.complete(&mut completions, None);
    assert!(completions.len() <= 1, "one request has one completion");
    let completion = completions.pop().ok_or(RequestError::Closed)?;
    completion.result?;
    Ok(completion)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter::{CreateOptions, OpenOptions, Volume, create};
    use coulter_device::MemoryStore;

    const MIB: u64 = 1 << 20;

    fn open(store: &MemoryStore) -> Volume {
        let device = Box::new(store.open().expect("nothing has it open"));
        Volume::open(device, OpenOptions::default()).expect("it is a store")
    }

    fn first_data_of(volume: &Volume) -> Option<u64> {
        first_data(volume).expect("it can be asked")
    }

    #[test]
    fn one_block_anywhere_is_data_until_it_is_discarded_and_after_a_new_start_too() {
        let store = MemoryStore::new(256 * MIB);
        let options = CreateOptions { segment_size: Some(2 * MIB), ..CreateOptions::default() };
        let device = Box::new(store.open().expect("nothing has it open"));
        create(device, &options).expect("it fits");
        let mut volume = open(&store);
        assert_eq!(first_data_of(&volume), None);
        let size = volume.size();
        for at in [0, 4096, 77 * MIB, size - 4096] {
            volume.write_at(at, &[1; 4096]).expect("it is writable");
            assert_eq!(first_data_of(&volume), Some(at));
            volume.shut_down().expect("it ends in order");
            volume = open(&store);
            assert_eq!(first_data_of(&volume), Some(at));
            volume.discard(0, size).expect("it is writable");
            assert_eq!(first_data_of(&volume), None, "discarded, at {at}");
            volume.shut_down().expect("it ends in order");
            volume = open(&store);
            assert_eq!(first_data_of(&volume), None, "discarded and opened, at {at}");
        }
        volume.shut_down().expect("it ends in order");
    }
}
