//! A data object: bytes of the device, and a checksum behind them.
//!
//! ```text
//! offset bytes
//!  0           bytes of the ranges that it holds, one behind the other
//! -4      4    CRC-32C of these, then of the volume's 16 bytes, then of the object's name
//! ```
//!
//! Volume and name stand nowhere in it, but the checksum tells them: an object that was put in place of
//! another one is as good as damaged.

use super::{Corrupt, Reason, VolumeId, checksum};

const STRUCTURE: &str = "data";
/// Bytes of the checksum.
pub const SEAL_SIZE: usize = 4;

/// Makes bytes of the device the object of a name: appends the checksum.
pub fn seal(bytes: &mut Vec<u8>, volume: VolumeId, name: &str) {
    let sum = sum_of(bytes, volume, name);
    bytes.extend_from_slice(&sum.to_le_bytes());
}

/// The bytes of the device in an object that was found under a name.
///
/// # Errors
/// [`Corrupt`].
pub fn open(mut bytes: Vec<u8>, volume: VolumeId, name: &str) -> Result<Vec<u8>, Corrupt> {
    let corrupt = |reason| Corrupt { structure: STRUCTURE, reason };
    let sum = bytes.last_chunk::<SEAL_SIZE>().ok_or(corrupt(Reason::Short))?;
    let sum = u32::from_le_bytes(*sum);
    bytes.truncate(bytes.len() - SEAL_SIZE);
    if sum_of(&mut bytes, volume, name) != sum {
        return Err(corrupt(Reason::Checksum));
    }
    Ok(bytes)
}

/// The checksum; `bytes` are what they were afterwards.
fn sum_of(bytes: &mut Vec<u8>, volume: VolumeId, name: &str) -> u32 {
    let size = bytes.len();
    bytes.extend_from_slice(&volume.0);
    bytes.extend_from_slice(name.as_bytes());
    let sum = checksum(bytes);
    bytes.truncate(size);
    sum
}
