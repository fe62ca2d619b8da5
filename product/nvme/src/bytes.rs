//! Little-endian numbers and padded texts at places in bytes.

/// The bytes of a field.
pub(crate) fn at<const SIZE: usize>(bytes: &[u8], offset: usize) -> [u8; SIZE] {
    let mut field = [0; SIZE];
    let end = bytes.len().min(offset + SIZE);
    if let Some(found) = bytes.get(offset..end) {
        field[..found.len()].copy_from_slice(found);
    }
    field
}

/// Two bytes; those beyond the end are zero.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(at(bytes, offset))
}

/// Four bytes; those beyond the end are zero.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(at(bytes, offset))
}

/// Eight bytes; those beyond the end are zero.
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(at(bytes, offset))
}

/// Puts a field in its place.
pub(crate) fn put(bytes: &mut [u8], offset: usize, field: &[u8]) {
    bytes[offset..offset + field.len()].copy_from_slice(field);
}

/// Puts a text of at most `size` bytes, with `padding` behind it. What is longer is cut.
pub(crate) fn put_text(bytes: &mut [u8], offset: usize, size: usize, text: &str, padding: u8) {
    let place = &mut bytes[offset..offset + size];
    place.fill(padding);
    let length = text.len().min(size);
    place[..length].copy_from_slice(&text.as_bytes()[..length]);
}

/// A text that ends at a zero byte or at the end, without the spaces behind it; `None` if it is no UTF-8.
pub(crate) fn text_at(bytes: &[u8], offset: usize, size: usize) -> Option<&str> {
    let field = bytes.get(offset..offset + size)?;
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(size);
    core::str::from_utf8(&field[..end]).ok().map(|text| text.trim_end_matches(' '))
}
