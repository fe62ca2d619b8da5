//! Entry points for fuzzers and random-input tests: each takes any bytes and must return.
//!
//! They panic only where an attach point has a bug.

use crate::memory::{MemoryOptions, MemoryService};
use crate::nbd_client::Client;
use coulter::buffer::Buffer;
use coulter::service::{Operation, Request, Session};
use coulter_fuse::wire::{InHeader, Message};
use coulter_net::nbd::handshake::{Handshake, Step};
use coulter_net::nbd::wire::{
    BASE_ALLOCATION, GREETING_MAGIC, OPTION_MAGIC, OptionReplyHeader, info, option,
    option_reply as reply, transmission_flag as flag,
};
use coulter_net::nbd::{ClientOptions, Export, drive_transmission};
use coulter_nvme_target::{Reached, converse};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 1 << 20;

fn export(name: &str) -> Export {
    Export::new(name, Arc::new(MemoryService::new(MemoryOptions::new(SIZE))))
}

/// What a client sends to an NBD server before the transmission phase.
pub fn nbd_handshake(mut bytes: &[u8]) {
    let mut output = Vec::new();
    let mut handshake = Handshake::new([export("one"), export("two")].into(), &mut output);
    loop {
        let (used, step) = handshake.advance(bytes, &mut output);
        bytes = &bytes[used..];
        match step {
            Step::Again => {}
            Step::Wait if used > 0 => {}
            _ => return,
        }
    }
}

/// What a client sends to an NBD server in the transmission phase, in pieces of `piece` bytes.
pub fn nbd_transmission(bytes: &[u8], piece: usize) {
    let mut export = export("");
    export.read_only = bytes.first().is_some_and(|first| first.is_multiple_of(8));
    drive_transmission(&export, bytes, piece.max(1), bytes.len().is_multiple_of(2));
}

/// What a server answers to our own NBD client, after a negotiation that went well.
pub fn nbd_client(bytes: &[u8]) {
    let Ok((ours, mut theirs)) = UnixStream::pair() else { return };
    let ready = ours.set_nonblocking(true).is_ok()
        && theirs.set_nonblocking(true).is_ok()
        && theirs.write_all(&negotiation()).is_ok();
    let Ok(mut client) = Client::over(ours.into(), &ClientOptions::default()) else { return };
    assert!(ready, "the socket pair works");
    let operations = [
        Operation::Read,
        Operation::Write { fua: true },
        Operation::Flush,
        Operation::Discard,
        Operation::Extents,
        Operation::Read,
    ];
    for (tag, operation) in (0..).zip(operations) {
        let carries = matches!(operation, Operation::Read | Operation::Write { .. });
        let buffer = Buffer::zeroed(if carries { 4096 } else { 0 });
        client.submit(Request { tag, operation, offset: 4096, length: 4096, buffer });
    }
    client.kick();
    // A socket takes only so much at a time; what it does not take is not tried.
    let _ = theirs.write(bytes);
    let _ = theirs.shutdown(Shutdown::Write);
    let mut sink = Vec::new();
    let _ = theirs.read_to_end(&mut sink);
    let mut completions = Vec::new();
    while client.outstanding() > 0 {
        let before = completions.len();
        client.complete(&mut completions, Some(Duration::from_secs(10)));
        assert!(completions.len() > before, "the end of the stream ends every request");
    }
    assert_eq!(completions.len(), operations.len(), "every request completes once");
    let with_buffer = completions.iter().filter(|completion| completion.buffer.len() == 4096);
    assert_eq!(with_buffer.count(), 3, "buffers come back");
}

/// Every decoder of NVMe.
pub fn nvme_decoders(bytes: &[u8]) {
    coulter_nvme::fuzz::decoders(bytes);
}

/// What a host sends to an NVMe target. The first byte says how far the conversation has come, and how the
/// rest is cut up.
pub fn nvme_target(bytes: &[u8]) {
    let Some((first, stream)) = bytes.split_first() else { return };
    let stages =
        [Reached::Greeting, Reached::Proof, Reached::Admin, Reached::Discovery, Reached::Io];
    let pieces = [usize::MAX, 4096, 13, 1];
    let number = usize::from(*first);
    let (stage, piece) =
        (stages[number % stages.len()], pieces[number / stages.len() % pieces.len()]);
    let service = Arc::new(MemoryService::new(MemoryOptions::new(SIZE)));
    converse(service, stage, stream, piece);
}

/// What a kernel sends to a FUSE mount.
pub fn fuse_message(bytes: &[u8]) {
    if let Some((header, body)) = InHeader::decode(bytes) {
        // Without a use the compiler leaves out whatever cannot panic, and nothing guides the fuzzer.
        std::hint::black_box(Message::decode(header.opcode, body));
    }
}

/// The answers of a server that agrees to everything.
fn negotiation() -> Vec<u8> {
    let mut bytes = GREETING_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    bytes.extend_from_slice(&3u16.to_be_bytes());
    let mut push = |option: u32, kind: u32, data: &[u8]| {
        OptionReplyHeader { option, kind, length: data.len() as u32 }.encode(&mut bytes);
        bytes.extend_from_slice(data);
    };
    push(option::STRUCTURED_REPLY, reply::ACK, &[]);
    let context = [&1u32.to_be_bytes()[..], BASE_ALLOCATION.as_bytes()].concat();
    push(option::SET_META_CONTEXT, reply::META_CONTEXT, &context);
    push(option::SET_META_CONTEXT, reply::ACK, &[]);
    let flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::SEND_TRIM;
    let export = [&info::EXPORT.to_be_bytes()[..], &SIZE.to_be_bytes(), &flags.to_be_bytes()];
    push(option::GO, reply::INFO, &export.concat());
    push(option::GO, reply::ACK, &[]);
    bytes
}
