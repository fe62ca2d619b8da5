//! Traces are published compressed: what `gzip` made is read as it is, of the rest it is said what to do.

use flate2::bufread::MultiGzDecoder;
use std::io::{self, BufRead, BufReader};

/// Bytes of the text that are unpacked at once.
const BUFFER_SIZE: usize = 1 << 20;

/// How each kind of compressed file begins, and what unpacks it.
const OTHERS: [(&[u8], &str); 4] = [
    (b"\x28\xb5\x2f\xfd", "zstdcat"),
    (b"\xfd7zXZ\0", "xzcat"),
    (b"BZh", "bzcat"),
    (b"PK\x03\x04", "unzip -p"),
];

/// The text of a trace.
///
/// # Errors
/// What the source says; `InvalidData` if it is compressed in another way.
pub(super) fn text<'a>(mut trace: impl BufRead + 'a) -> io::Result<Box<dyn BufRead + 'a>> {
    let start = trace.fill_buf()?;
    if start.starts_with(b"\x1f\x8b") {
        let decoder = MultiGzDecoder::new(trace);
        return Ok(Box::new(BufReader::with_capacity(BUFFER_SIZE, decoder)));
    }
    match OTHERS.iter().find(|(magic, _)| start.starts_with(magic)) {
        None => Ok(Box::new(trace)),
        Some((_, tool)) => {
            let reason = format!(
                "it is compressed, and only gzip is read as it is: `{tool} TRACE | coulter replay -`"
            );
            Err(io::Error::new(io::ErrorKind::InvalidData, reason))
        }
    }
}
