//! Messages of HTTP/1.1, as far as clients and services of S3 send them.

use std::io::{self, BufRead, Read, Write};

/// Bytes of a line at most.
const LINE_MAX: u64 = 16 << 10;
/// Headers at most.
const HEADER_COUNT_MAX: usize = 100;
/// Bytes of a body at most.
const BODY_MAX: u64 = 64 << 20;

/// A request or an answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Message {
    /// `PUT /a HTTP/1.1` or `HTTP/1.1 200 OK`.
    pub(super) first: String,
    /// Names in lower case, and values.
    pub(super) headers: Vec<(String, String)>,
    /// All of it.
    pub(super) body: Vec<u8>,
    /// An answer to HEAD has no body, though it tells the length of one.
    pub(super) is_head: bool,
}

impl Message {
    /// An answer without headers.
    pub(super) fn answer(status: u16, body: impl Into<Vec<u8>>) -> Message {
        Message {
            first: format!("HTTP/1.1 {status} {status}"),
            body: body.into(),
            ..Message::default()
        }
    }

    /// The answer that S3 gives to a request that fails.
    pub(super) fn error(status: u16, code: &str) -> Message {
        Message::answer(status, format!("<Error><Code>{code}</Code></Error>"))
    }

    /// The same with one more header.
    pub(super) fn with(mut self, name: &str, value: impl Into<String>) -> Message {
        self.headers.push((name.to_string(), value.into()));
        self
    }

    /// The value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The method of a request.
    pub(super) fn method(&self) -> &str {
        self.first.split(' ').next().unwrap_or_default()
    }

    /// Path and query of a request.
    pub(super) fn target(&self) -> (&str, &str) {
        let target = self.first.split(' ').nth(1).unwrap_or_default();
        target.split_once('?').unwrap_or((target, ""))
    }

    /// Reads a message; `None` if the connection was closed before one.
    pub(super) fn read(from: &mut impl BufRead) -> io::Result<Option<Message>> {
        Message::read_answer(from, false)
    }

    /// Reads the answer to a request, which was HEAD or not.
    pub(super) fn read_answer(
        from: &mut impl BufRead,
        is_head: bool,
    ) -> io::Result<Option<Message>> {
        let Some(first) = read_line(from)? else { return Ok(None) };
        let mut message = Message { first, is_head, ..Message::default() };
        loop {
            let line = read_line(from)?.ok_or(io::ErrorKind::UnexpectedEof)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or(io::ErrorKind::InvalidData)?;
            message.headers.push((name.to_ascii_lowercase(), value.trim().to_string()));
            if message.headers.len() > HEADER_COUNT_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        if !is_head {
            message.body = message.read_body(from)?;
        }
        Ok(Some(message))
    }

    fn read_body(&self, from: &mut impl BufRead) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        if self
            .header("transfer-encoding")
            .is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
        {
            loop {
                let line = read_line(from)?.ok_or(io::ErrorKind::UnexpectedEof)?;
                let size = line.split(';').next().unwrap_or_default().trim();
                let size = u64::from_str_radix(size, 16).map_err(|_| io::ErrorKind::InvalidData)?;
                read_exactly(from, size, &mut body)?;
                read_line(from)?;
                if size == 0 {
                    return Ok(body);
                }
            }
        }
        if let Some(size) = self.header("content-length") {
            read_exactly(from, size.parse().map_err(|_| io::ErrorKind::InvalidData)?, &mut body)?;
        } else if self.first.starts_with("HTTP/") && !self.first.contains(" 204 ") {
            from.take(BODY_MAX).read_to_end(&mut body)?;
        }
        Ok(body)
    }

    /// The bytes on the wire.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut head = format!("{}\r\n", self.first);
        for (name, value) in &self.headers {
            let is_length = matches!(name.as_str(), "content-length" | "transfer-encoding");
            if !is_length || self.is_head {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        if !self.is_head {
            head.push_str(&format!("content-length: {}\r\n", self.body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// Writes it.
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&self.encode())?;
        to.flush()
    }
}

fn read_exactly(from: &mut impl BufRead, size: u64, body: &mut Vec<u8>) -> io::Result<()> {
    if size > BODY_MAX || body.len() as u64 + size > BODY_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let read = from.take(size).read_to_end(body)?;
    if read as u64 == size { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// A line without its end; `None` at the end of the stream.
fn read_line(from: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    from.take(LINE_MAX).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    let line = String::from_utf8(line).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(Some(line.trim_end().to_string()))
}
