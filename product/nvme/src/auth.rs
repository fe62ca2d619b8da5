//! Messages of DH-HMAC-CHAP: how a host proves that it knows a key, and a controller too if it is asked.
//!
//! Only the bytes: what is hashed, and with what, is for whoever has the key.

use crate::bytes::{put, u16_at, u32_at};
use crate::{Sqe, fabrics};

/// Bytes of the longest hash.
pub const HASH_SIZE_MAX: usize = 64;
/// Bytes of the longest public value that is taken: ffdhe8192.
pub const PUBLIC_SIZE_MAX: usize = 1024;
/// Bytes of the longest message.
pub const MESSAGE_SIZE_MAX: usize = 16 + 2 * HASH_SIZE_MAX + PUBLIC_SIZE_MAX;

/// Which message, in its second byte.
pub mod id {
    /// What the host can do.
    pub const NEGOTIATE: u8 = 0x00;
    /// The controller's question.
    pub const CHALLENGE: u8 = 0x01;
    /// The host's answer, and maybe its question.
    pub const REPLY: u8 = 0x02;
    /// The controller is satisfied, and maybe answers.
    pub const SUCCESS1: u8 = 0x03;
    /// The host is satisfied too.
    pub const SUCCESS2: u8 = 0x04;
    /// The host is not.
    pub const FAILURE2: u8 = 0xf0;
    /// The controller is not.
    pub const FAILURE1: u8 = 0xf1;
}

/// The first byte of Negotiate and of failures.
const COMMON: u8 = 0;
/// The first byte of the rest.
const DHCHAP: u8 = 1;
/// The protocol in Negotiate.
const PROTOCOL_DHCHAP: u8 = 1;

/// Why an authentication failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The answer was wrong.
    Failed = 1,
    /// No protocol that both know.
    ProtocolUnusable = 2,
    /// Secure channels are not there.
    ConcatenationMismatch = 3,
    /// No hash that both know.
    HashUnusable = 4,
    /// No group that both know.
    GroupUnusable = 5,
    /// A message makes no sense.
    IncorrectPayload = 6,
    /// A message came out of turn.
    IncorrectMessage = 7,
}

/// A hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256.
    Sha256 = 1,
    /// SHA-384.
    Sha384 = 2,
    /// SHA-512.
    Sha512 = 3,
}

impl Hash {
    /// The hash of this number.
    pub fn of(number: u8) -> Option<Hash> {
        match number {
            1 => Some(Hash::Sha256),
            2 => Some(Hash::Sha384),
            3 => Some(Hash::Sha512),
            _ => None,
        }
    }

    /// Bytes.
    pub fn size(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }
}

/// A group of the exchange after Diffie and Hellman.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// None: the key alone.
    Null = 0,
    /// ffdhe2048.
    Ffdhe2048 = 1,
    /// ffdhe3072.
    Ffdhe3072 = 2,
    /// ffdhe4096.
    Ffdhe4096 = 3,
}

impl Group {
    /// The group of this number, if it is one of those here.
    pub fn of(number: u8) -> Option<Group> {
        match number {
            0 => Some(Group::Null),
            1 => Some(Group::Ffdhe2048),
            2 => Some(Group::Ffdhe3072),
            3 => Some(Group::Ffdhe4096),
            _ => None,
        }
    }

    /// Bytes of a public value.
    pub fn size(self) -> usize {
        match self {
            Group::Null => 0,
            Group::Ffdhe2048 => 256,
            Group::Ffdhe3072 => 384,
            Group::Ffdhe4096 => 512,
        }
    }
}

/// What every message begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Of [`id`].
    pub id: u8,
    /// The transaction, which the host numbers.
    pub transaction: u16,
}

/// Which message it is, if it is one.
pub fn opening(bytes: &[u8]) -> Option<Opening> {
    if bytes.len() < 8 {
        return None;
    }
    let kind = bytes[0];
    let is_common = matches!(bytes[1], id::NEGOTIATE | id::FAILURE1 | id::FAILURE2);
    let fits = kind == if is_common { COMMON } else { DHCHAP };
    fits.then(|| Opening { id: bytes[1], transaction: u16_at(bytes, 4) })
}

/// What a host can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiate<'a> {
    /// It wants a secure channel made out of it.
    pub secure_channel: u8,
    /// Numbers of hashes, best first.
    pub hashes: &'a [u8],
    /// Numbers of [`Group`]s, best first.
    pub groups: &'a [u8],
}

/// Where the list of groups begins in a descriptor.
const GROUPS_OFFSET: usize = 34;

impl<'a> Negotiate<'a> {
    /// What is in `bytes`, if DH-HMAC-CHAP is among it.
    pub fn decode(bytes: &'a [u8]) -> Option<Negotiate<'a>> {
        let mut descriptors = bytes.get(8..)?.chunks_exact(64).take(usize::from(bytes[7]));
        let descriptor = descriptors.find(|found| found[0] == PROTOCOL_DHCHAP)?;
        let (hashes, groups) = (usize::from(descriptor[2]), usize::from(descriptor[3]));
        let hashes = descriptor[4..GROUPS_OFFSET].get(..hashes)?;
        let groups = descriptor[GROUPS_OFFSET..].get(..groups)?;
        Some(Negotiate { secure_channel: bytes[6], hashes, groups })
    }

    /// Writes it; how many bytes of `out` it takes.
    ///
    /// # Panics
    /// When there are more than 30 of a kind.
    pub fn encode(&self, transaction: u16, out: &mut [u8; MESSAGE_SIZE_MAX]) -> usize {
        begin(COMMON, id::NEGOTIATE, transaction, out);
        (out[6], out[7]) = (self.secure_channel, 1);
        out[8] = PROTOCOL_DHCHAP;
        (out[10], out[11]) = (self.hashes.len() as u8, self.groups.len() as u8);
        assert!(self.hashes.len().max(self.groups.len()) <= 30, "the lists have 30 places");
        put(out, 12, self.hashes);
        put(out, 8 + GROUPS_OFFSET, self.groups);
        8 + 64
    }
}

/// The controller's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge<'a> {
    /// The hash to use.
    pub hash: Hash,
    /// The group to use.
    pub group: Group,
    /// Which question.
    pub sequence: u32,
    /// Random; of the hash's size.
    pub value: &'a [u8],
    /// The controller's public value; of the group's size.
    pub public: &'a [u8],
}

impl<'a> Challenge<'a> {
    /// What is in `bytes`, if it makes sense.
    pub fn decode(bytes: &'a [u8]) -> Option<Challenge<'a>> {
        let fixed: &[u8; 16] = bytes.first_chunk()?;
        let (hash, group) = (Hash::of(fixed[8])?, Group::of(fixed[9])?);
        let public_size = usize::from(u16_at(fixed, 10));
        if usize::from(fixed[6]) != hash.size() || public_size != group.size() {
            return None;
        }
        let value = bytes.get(16..16 + hash.size())?;
        let public = bytes.get(16 + hash.size()..16 + hash.size() + public_size)?;
        Some(Challenge { hash, group, sequence: u32_at(fixed, 12), value, public })
    }

    /// Writes it; how many bytes of `out` it takes.
    ///
    /// # Panics
    /// When a value is not of its size.
    pub fn encode(&self, transaction: u16, out: &mut [u8; MESSAGE_SIZE_MAX]) -> usize {
        assert_eq!(self.value.len(), self.hash.size(), "a challenge is as long as a hash");
        assert_eq!(self.public.len(), self.group.size(), "a public value is as long as its group");
        begin(DHCHAP, id::CHALLENGE, transaction, out);
        out[6] = self.hash.size() as u8;
        (out[8], out[9]) = (self.hash as u8, self.group as u8);
        put(out, 10, &(self.public.len() as u16).to_le_bytes());
        put(out, 12, &self.sequence.to_le_bytes());
        put(out, 16, self.value);
        put(out, 16 + self.value.len(), self.public);
        16 + self.value.len() + self.public.len()
    }
}

/// The host's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The answer; of the hash's size.
    pub response: &'a [u8],
    /// The host's own question, with its number.
    pub challenge: Option<(&'a [u8], u32)>,
    /// The host's public value.
    pub public: &'a [u8],
}

impl<'a> Reply<'a> {
    /// What is in `bytes`, if it fits `hash` and `group`.
    pub fn decode(bytes: &'a [u8], hash: Hash, group: Group) -> Option<Reply<'a>> {
        let (fixed, size): (&[u8; 16], usize) = (bytes.first_chunk()?, hash.size());
        let public_size = usize::from(u16_at(fixed, 10));
        if usize::from(fixed[6]) != size || public_size != group.size() {
            return None;
        }
        let part = |index: usize, length| bytes.get(16 + index * size..16 + index * size + length);
        let challenge = match fixed[8] {
            0 => None,
            _ => Some((part(1, size)?, u32_at(fixed, 12))),
        };
        Some(Reply { response: part(0, size)?, challenge, public: part(2, public_size)? })
    }

    /// Writes it; how many bytes of `out` it takes.
    pub fn encode(&self, transaction: u16, out: &mut [u8; MESSAGE_SIZE_MAX]) -> usize {
        let size = self.response.len();
        begin(DHCHAP, id::REPLY, transaction, out);
        out[6] = size as u8;
        put(out, 10, &(self.public.len() as u16).to_le_bytes());
        put(out, 16, self.response);
        if let Some((challenge, sequence)) = self.challenge {
            out[8] = 1;
            put(out, 12, &sequence.to_le_bytes());
            put(out, 16 + size, challenge);
        }
        put(out, 16 + 2 * size, self.public);
        16 + 2 * size + self.public.len()
    }
}

/// Writes that the controller is satisfied, with its answer if the host has asked; how many bytes of
/// `out` it takes.
pub fn success1(
    transaction: u16,
    hash: Hash,
    response: Option<&[u8]>,
    out: &mut [u8; MESSAGE_SIZE_MAX],
) -> usize {
    begin(DHCHAP, id::SUCCESS1, transaction, out);
    out[6] = hash.size() as u8;
    if let Some(response) = response {
        out[8] = 1;
        put(out, 16, response);
    }
    16 + hash.size()
}

/// The controller's answer in a success, if there is one.
pub fn response_of_success1(bytes: &[u8]) -> Option<&[u8]> {
    let fixed: &[u8; 16] = bytes.first_chunk()?;
    (fixed[8] != 0).then(|| bytes.get(16..16 + usize::from(fixed[6])))?
}

/// Writes that the host is satisfied; how many bytes of `out` it takes.
pub fn success2(transaction: u16, out: &mut [u8; MESSAGE_SIZE_MAX]) -> usize {
    begin(DHCHAP, id::SUCCESS2, transaction, out);
    16
}

/// Writes that a side, named by `id`, is not satisfied; how many bytes of `out` it takes.
pub fn failure(
    id: u8,
    transaction: u16,
    reason: Reason,
    out: &mut [u8; MESSAGE_SIZE_MAX],
) -> usize {
    begin(COMMON, id, transaction, out);
    (out[6], out[7]) = (1, reason as u8);
    8
}

/// The reason in a failure.
pub fn reason_of_failure(bytes: &[u8]) -> Option<u8> {
    bytes.get(7).copied()
}

fn begin(kind: u8, id: u8, transaction: u16, out: &mut [u8; MESSAGE_SIZE_MAX]) {
    out.fill(0);
    (out[0], out[1]) = (kind, id);
    put(out, 4, &transaction.to_le_bytes());
}

/// An Authentication Send or Receive of so many bytes.
pub fn command(kind: u8, length: u32) -> Sqe {
    let mut sqe = fabrics::fabrics_command(kind);
    // The protocol of NVMe's own, with its two bytes.
    (sqe.0[41], sqe.0[42], sqe.0[43]) = (1, 1, 0xe9);
    put(&mut sqe.0, 44, &length.to_le_bytes());
    sqe
}

/// Bytes of an Authentication Send or Receive; `None` if it is for another protocol.
pub fn length_of(sqe: &Sqe) -> Option<u32> {
    (sqe.0[41..44] == [1, 1, 0xe9]).then(|| u32_at(&sqe.0, 44))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_their_bytes() {
        let mut out = [0; MESSAGE_SIZE_MAX];
        let negotiate = Negotiate { secure_channel: 0, hashes: &[1, 2, 3], groups: &[0, 1, 2] };
        let size = negotiate.encode(7, &mut out);
        assert_eq!(out[..16], [0, 0, 0, 0, 7, 0, 0, 1, 1, 0, 3, 3, 1, 2, 3, 0]);
        assert_eq!(opening(&out[..size]), Some(Opening { id: id::NEGOTIATE, transaction: 7 }));
        assert_eq!(Negotiate::decode(&out[..size]), Some(negotiate));
        assert_eq!(Negotiate::decode(&out[..size - 1]), None);
        let (hash, group) = (Hash::Sha256, Group::Ffdhe2048);
        let challenge = Challenge { hash, group, sequence: 5, value: &[3; 32], public: &[4; 256] };
        let size = challenge.encode(7, &mut out);
        assert_eq!(out[..16], [1, 1, 0, 0, 7, 0, 32, 0, 1, 1, 0, 1, 5, 0, 0, 0]);
        assert_eq!(Challenge::decode(&out[..size]), Some(challenge));
        assert_eq!(Challenge::decode(&out[..size - 1]), None);
        for challenge in [None, Some((&[6; 32][..], 9))] {
            let reply = Reply { response: &[5; 32], challenge, public: &[7; 256] };
            let size = reply.encode(7, &mut out);
            assert_eq!(Reply::decode(&out[..size], hash, group), Some(reply));
            assert_eq!(Reply::decode(&out[..size], Hash::Sha512, group), None);
        }
        let size = success1(7, hash, Some(&[8; 32]), &mut out);
        assert_eq!(response_of_success1(&out[..size]), Some(&[8; 32][..]));
        let size = failure(id::FAILURE1, 7, Reason::Failed, &mut out);
        assert_eq!(out[..size], [0, 0xf1, 0, 0, 7, 0, 1, 1]);
        assert_eq!(length_of(&command(5, 80)), Some(80));
    }
}
