//! No bytes from a wire make a decoder or a state machine panic, or lose a buffer.
//!
//! Method: valid streams with a few bytes changed reach further than noise does, so both are
//! tried; every seed is fixed. The same entry points serve fuzzers.

use coulter_attach_suite::fuzz;
use coulter_net::nbd::wire::{
    ChunkHeader, OptionHeader, RequestHeader, SimpleReply, chunk, command, option,
};
use coulter_workload::Random;

fn noise(random: &mut Random, length_max: u64) -> Vec<u8> {
    let mut bytes = vec![0; random.below(length_max) as usize];
    random.fill(&mut bytes);
    bytes
}

/// Changes up to three bytes, and sometimes cuts the end off.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..random.below(4) {
        if !bytes.is_empty() {
            let index = random.below(bytes.len() as u64) as usize;
            bytes[index] = match random.below(3) {
                0 => random.bits() as u8,
                1 => bytes[index].wrapping_add(1),
                _ => 0xff,
            };
        }
    }
    if random.below(4) == 0 {
        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
    }
}

fn an_option(random: &mut Random) -> Vec<u8> {
    let mut data = Vec::new();
    for name in ["one", "", "base:allocation"] {
        if random.below(2) == 0 {
            data.extend_from_slice(&(name.len() as u32).to_be_bytes());
            data.extend_from_slice(name.as_bytes());
        }
    }
    data.extend_from_slice(&[0, 0, 0, 1][..random.below(5) as usize]);
    let option = [
        option::EXPORT_NAME,
        option::LIST,
        option::INFO,
        option::GO,
        option::STRUCTURED_REPLY,
        option::LIST_META_CONTEXT,
        option::SET_META_CONTEXT,
    ][random.below(7) as usize];
    let mut bytes = Vec::new();
    OptionHeader { option, length: data.len() as u32 }.encode(&mut bytes);
    bytes.extend_from_slice(&data);
    bytes
}

fn a_request(random: &mut Random) -> Vec<u8> {
    let command = random.below(9) as u16;
    let length = match random.below(8) {
        0 => random.bits() as u32,
        1 => 33 << 20,
        _ => random.below(32) as u32 * 512,
    };
    let header = RequestHeader {
        flags: if random.below(4) == 0 { random.below(64) as u16 } else { 0 },
        command,
        cookie: random.bits(),
        offset: random.below(2100) * 512,
        length,
    };
    let mut bytes = header.encode().to_vec();
    if command == command::WRITE && length < 1 << 20 {
        bytes.resize(bytes.len() + length as usize, 0x5a);
    }
    bytes
}

fn a_reply(random: &mut Random) -> Vec<u8> {
    let cookie = random.below(7);
    if random.below(3) == 0 {
        return SimpleReply { error: random.below(3) as u32 * 5, cookie }.encode().to_vec();
    }
    let kind = [
        chunk::NONE,
        chunk::OFFSET_DATA,
        chunk::OFFSET_HOLE,
        chunk::BLOCK_STATUS,
        chunk::ERROR,
        chunk::ERROR_OFFSET,
    ][random.below(6) as usize];
    let body = match kind {
        chunk::OFFSET_DATA => {
            let mut body = (4096 + random.below(3) * 2048).to_be_bytes().to_vec();
            body.resize(8 + random.below(3) as usize * 2048, 7);
            body
        }
        chunk::OFFSET_HOLE => [&4096u64.to_be_bytes()[..], &4096u32.to_be_bytes()].concat(),
        chunk::BLOCK_STATUS => [1u32, 2048, 3, 4096, 0].map(u32::to_be_bytes).concat(),
        chunk::ERROR => vec![0, 0, 0, 5, 0, 2, b'n', b'o'],
        _ => noise(random, 40),
    };
    let flags = random.below(3).min(1) as u16;
    let header = ChunkHeader { flags, kind, cookie, length: body.len() as u32 };
    [&header.encode()[..], &body].concat()
}

/// Runs `target` on noise, and on what `make` makes, mutated.
fn throw(seeds: u64, make: fn(&mut Random) -> Vec<u8>, start: &[u8], target: fn(&[u8], u64)) {
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let mut bytes = start.to_vec();
        if seed.is_multiple_of(8) {
            bytes.extend(noise(&mut random, 300));
        } else {
            for _ in 0..random.below(12) {
                bytes.extend(make(&mut random));
            }
            mutate(&mut random, &mut bytes);
        }
        target(&bytes, seed);
    }
}

#[test]
fn any_negotiation_is_survived() {
    throw(100_000, an_option, &[0, 0, 0, 3], |bytes, _| fuzz::nbd_handshake(bytes));
}

#[test]
fn any_transmission_is_survived() {
    throw(5_000, a_request, &[], |bytes, seed| {
        // Long streams only in long pieces, to save time.
        let piece_min = if bytes.len() > 10_000 { 4096 } else { 1 };
        let piece = [1, 13, 4096, usize::MAX][seed as usize % 4].max(piece_min);
        fuzz::nbd_transmission(bytes, piece);
    });
}

#[test]
fn any_server_is_survived_by_the_client() {
    throw(20_000, a_reply, &[], |bytes, _| fuzz::nbd_client(bytes));
}

#[test]
fn any_fuse_message_is_survived() {
    throw(100_000, |random| noise(random, 120), &[], |bytes, _| fuzz::fuse_message(bytes));
}
