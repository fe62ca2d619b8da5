//! Published traces whose columns have no header.

use super::{BadLine, Kind, Parsed, ParsedLine, kind, number, sectors};

/// `time,host,disk,Read|Write,offset,size,response`: the disk's number belongs to its host.
pub(super) fn parse_msr(line: &str) -> ParsedLine<'_> {
    let mut fields = line.split(',');
    number(fields.next())?;
    let (host, device) = fields.next().zip(fields.next()).ok_or(BadLine::TooFewFields)?;
    let kind = kind(fields.next())?;
    let (offset, length) = (number(fields.next())?, number(fields.next())?);
    Ok(Some(Parsed { host, device, kind, offset, length }))
}

/// `device,opcode,offset,length,time`.
pub(super) fn parse_alibaba(line: &str) -> ParsedLine<'_> {
    let mut fields = line.split(',');
    let device = fields.next().ok_or(BadLine::TooFewFields)?;
    let kind = kind(fields.next())?;
    let (offset, length) = (number(fields.next())?, number(fields.next())?);
    Ok(Some(Parsed { host: "", device, kind, offset, length }))
}

/// `time,offset,size,type,volume`.
pub(super) fn parse_tencent(line: &str) -> ParsedLine<'_> {
    let mut fields = line.split(',');
    number(fields.next())?;
    let (offset, length) = (sectors(fields.next())?, sectors(fields.next())?);
    let kind = match number(fields.next())? {
        0 => Kind::Read,
        1 => Kind::Write,
        _ => return Err(BadLine::Kind),
    };
    let device = fields.next().ok_or(BadLine::TooFewFields)?.trim();
    Ok(Some(Parsed { host: "", device, kind, offset, length }))
}

/// `time device sector sectors type`.
pub(super) fn parse_mqsim(line: &str) -> ParsedLine<'_> {
    let mut words = line.split_ascii_whitespace();
    number(words.next())?;
    let device = words.next().ok_or(BadLine::TooFewFields)?;
    let (offset, length) = (sectors(words.next())?, sectors(words.next())?);
    let kind = match number(words.next())? {
        0 => Kind::Write,
        1 => Kind::Read,
        _ => return Err(BadLine::Kind),
    };
    Ok(Some(Parsed { host: "", device, kind, offset, length }))
}
