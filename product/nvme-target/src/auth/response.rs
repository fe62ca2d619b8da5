//! What a side answers to a challenge: a keyed hash of it, of the conversation, and of both names.

use coulter_nvme::auth::Hash;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};

/// Whose answer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The host that connects.
    Host,
    /// The controller that it connects to.
    Controller,
}

/// What an answer is made of, besides the key.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The hash that both sides agreed on.
    pub hash: Hash,
    /// What both sides have from the exchange of a group; empty without one.
    pub shared: &'a [u8],
    /// The random bytes of the asking side.
    pub challenge: &'a [u8],
    /// The number of the challenge.
    pub sequence: u32,
    /// The number of the conversation.
    pub transaction: u16,
    /// The qualified name of the host.
    pub host: &'a str,
    /// The qualified name of the subsystem.
    pub subsystem: &'a str,
}

impl Question<'_> {
    /// The answer of the side that has `key`, already bound to its name.
    pub fn answer(&self, role: Role, key: &[u8]) -> Vec<u8> {
        let challenge = match self.shared {
            [] => self.challenge.to_vec(),
            shared => hmac(self.hash, &digest(self.hash, shared), &[self.challenge]),
        };
        let (label, first, second) = match role {
            Role::Host => ("HostHost", self.host, self.subsystem),
            Role::Controller => ("Controller", self.subsystem, self.host),
        };
        hmac(
            self.hash,
            key,
            &[
                &challenge,
                &self.sequence.to_le_bytes(),
                &self.transaction.to_le_bytes(),
                // No secure channel is made out of it.
                &[0],
                label.as_bytes(),
                first.as_bytes(),
                &[0],
                second.as_bytes(),
            ],
        )
    }

    /// Whether `answer` is that of the side that has `key`. It takes as long for any wrong answer.
    pub fn is_answered(&self, role: Role, key: &[u8], answer: &[u8]) -> bool {
        let expected = self.answer(role, key);
        assert_eq!(expected.len(), self.hash.size(), "an answer is as long as a hash");
        let differing = expected.iter().zip(answer).fold(0, |sum, (a, b)| sum | (a ^ b));
        std::hint::black_box(differing) == 0 && expected.len() == answer.len()
    }
}

/// The keyed hash of `parts`, one after the other.
pub(super) fn hmac(hash: Hash, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    fn keyed<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        let mut mac = <M as KeyInit>::new_from_slice(key).expect("a key of any length will do");
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().to_vec()
    }
    match hash {
        Hash::Sha256 => keyed::<Hmac<Sha256>>(key, parts),
        Hash::Sha384 => keyed::<Hmac<Sha384>>(key, parts),
        Hash::Sha512 => keyed::<Hmac<Sha512>>(key, parts),
    }
}

fn digest(hash: Hash, bytes: &[u8]) -> Vec<u8> {
    match hash {
        Hash::Sha256 => Sha256::digest(bytes).to_vec(),
        Hash::Sha384 => Sha384::digest(bytes).to_vec(),
        Hash::Sha512 => Sha512::digest(bytes).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn a_keyed_hash_is_that_of_the_standard() {
        // RFC 4231, test case 2.
        let sum = hmac(Hash::Sha256, b"Jefe", &[b"what do ya want ", b"for nothing?"]);
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(hex(&sum), expected);
    }

    #[test]
    fn an_answer_depends_on_everything() {
        let question = Question {
            hash: Hash::Sha256,
            shared: &[],
            challenge: &[1; 32],
            sequence: 2,
            transaction: 3,
            host: "nqn.h",
            subsystem: "nqn.s",
        };
        let answer = question.answer(Role::Host, b"key");
        assert!(question.is_answered(Role::Host, b"key", &answer));
        assert!(!question.is_answered(Role::Host, b"key", &answer[..31]));
        assert!(!question.is_answered(Role::Host, b"kez", &answer));
        assert!(!question.is_answered(Role::Controller, b"key", &answer));
        for other in [
            Question { shared: &[1], ..question },
            Question { challenge: &[2; 32], ..question },
            Question { sequence: 3, ..question },
            Question { transaction: 4, ..question },
            Question { host: "nqn.i", ..question },
            Question { subsystem: "nqn.t", ..question },
        ] {
            assert!(!other.is_answered(Role::Host, b"key", &answer), "{other:?}");
        }
    }
}
