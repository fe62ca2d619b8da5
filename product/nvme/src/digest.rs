//! CRC32C, the checksum of headers and data on the wire.

/// Bytes of a digest.
pub const DIGEST_SIZE: usize = 4;

#[cfg(not(feature = "std"))]
const TABLES: crc::Crc<u32, crc::Table<16>> =
    crc::Crc::<u32, crc::Table<16>>::new(&crc::CRC_32_ISCSI);

/// The digest of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    #[cfg(feature = "std")]
    return crc_fast::crc32_iscsi(bytes);
    #[cfg(not(feature = "std"))]
    TABLES.checksum(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_published_one() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let tables = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);
        assert_eq!(crc32c(&[0xa5; 300]), tables.checksum(&[0xa5; 300]));
    }
}
