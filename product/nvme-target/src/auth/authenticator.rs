//! The target's side of one conversation: it asks the host, judges the answer, and answers if it is asked.
//!
//! # Invariants
//! - A message out of turn, or one that makes no sense, fails the conversation, with its reason told; after
//!   that nothing but the end of the connection is left.
//! - A host is let in only after its answer was right, and after it was satisfied itself if it has asked.

use super::group::{Private, random};
use super::keys::{HostKey, Keys};
use super::response::{Question, Role};
use coulter_nvme::auth::{
    self, Challenge, Group, Hash, MESSAGE_SIZE_MAX, Negotiate, Reason, Reply, id,
};

/// Hashes that are taken, the best first.
const HASHES: [Hash; 3] = [Hash::Sha256, Hash::Sha384, Hash::Sha512];
/// Groups that are taken, the cheapest first.
const GROUPS: [Group; 4] = [Group::Null, Group::Ffdhe2048, Group::Ffdhe3072, Group::Ffdhe4096];

/// How far a conversation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// More is to be said.
    Open,
    /// The host is who it says it is.
    Admitted,
    /// It is not, or it has not said so properly. It has been told.
    Refused,
}

/// One conversation, on one queue.
pub(crate) struct Authenticator {
    key: HostKey,
    group: Group,
    host: String,
    subsystem: String,
    transaction: u16,
    step: Step,
}

enum Step {
    /// The host says what it can do.
    Negotiate,
    /// The host fetches the question.
    Ask(Hash, Group),
    /// The host answers.
    Reply(Asked),
    /// The host fetches the verdict, with an answer to its question if it had one.
    Satisfied(Hash, Option<Vec<u8>>),
    /// The host says whether it is satisfied too.
    Success2,
    /// The host fetches the reason.
    Failed(Reason),
    Over(Verdict),
}

struct Asked {
    hash: Hash,
    group: Group,
    sequence: u32,
    challenge: Vec<u8>,
    private: Option<Private>,
}

impl Authenticator {
    /// Begins a conversation with a host; none if there is no key for it.
    pub(crate) fn new(keys: &Keys, host: &str, subsystem: &str) -> Option<Authenticator> {
        let key = keys.of(host)?.clone();
        let (host, subsystem) = (host.to_owned(), subsystem.to_owned());
        let step = Step::Negotiate;
        Some(Authenticator { key, group: keys.group, host, subsystem, transaction: 0, step })
    }

    /// Takes a message of the host's.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Verdict {
        let step = std::mem::replace(&mut self.step, Step::Failed(Reason::IncorrectMessage));
        self.step = match self.next(step, bytes) {
            Ok(step) => step,
            Err(reason) => Step::Failed(reason),
        };
        self.verdict()
    }

    fn next(&mut self, step: Step, bytes: &[u8]) -> Result<Step, Reason> {
        let opening = auth::opening(bytes).ok_or(Reason::IncorrectPayload)?;
        let is_first = matches!(step, Step::Negotiate);
        if !is_first && opening.transaction != self.transaction {
            return Err(Reason::IncorrectPayload);
        }
        match (step, opening.id) {
            (Step::Negotiate, id::NEGOTIATE) => {
                self.transaction = opening.transaction;
                self.negotiate(bytes)
            }
            (Step::Reply(asked), id::REPLY) => self.judge(&asked, bytes),
            (Step::Success2, id::SUCCESS2) => Ok(Step::Over(Verdict::Admitted)),
            // The host is not satisfied; there is nothing to be said to that.
            (_, id::FAILURE2) => Ok(Step::Over(Verdict::Refused)),
            _ => Err(Reason::IncorrectMessage),
        }
    }

    fn negotiate(&self, bytes: &[u8]) -> Result<Step, Reason> {
        let offered = Negotiate::decode(bytes).ok_or(Reason::ProtocolUnusable)?;
        if offered.secure_channel != 0 {
            return Err(Reason::ConcatenationMismatch);
        }
        let hash = HASHES.into_iter().find(|hash| offered.hashes.contains(&(*hash as u8)));
        let is_large_enough = |group: &Group| *group as u8 >= self.group as u8;
        let mut groups = GROUPS.into_iter().filter(is_large_enough);
        let group = groups.find(|group| offered.groups.contains(&(*group as u8)));
        let hash = hash.ok_or(Reason::HashUnusable)?;
        Ok(Step::Ask(hash, group.ok_or(Reason::GroupUnusable)?))
    }

    fn judge(&self, asked: &Asked, bytes: &[u8]) -> Result<Step, Reason> {
        let reply = Reply::decode(bytes, asked.hash, asked.group);
        let reply = reply.ok_or(Reason::IncorrectPayload)?;
        let shared = match &asked.private {
            Some(private) => private.shared(reply.public).ok_or(Reason::IncorrectPayload)?,
            None => Vec::new(),
        };
        let question = Question {
            hash: asked.hash,
            shared: &shared,
            challenge: &asked.challenge,
            sequence: asked.sequence,
            transaction: self.transaction,
            host: &self.host,
            subsystem: &self.subsystem,
        };
        let key = self.key.secret.of(&self.host);
        if !question.is_answered(Role::Host, &key, reply.response) {
            return Err(Reason::Failed);
        }
        let Some((challenge, sequence)) = reply.challenge else {
            return Ok(Step::Satisfied(asked.hash, None));
        };
        // A host that wants proof gets it, or goes.
        let ours = self.key.controller.as_ref().ok_or(Reason::Failed)?.of(&self.subsystem);
        let question = Question { challenge, sequence, ..question };
        Ok(Step::Satisfied(asked.hash, Some(question.answer(Role::Controller, &ours))))
    }

    /// The message that the host fetches, and how far it has come then.
    pub(crate) fn tell(&mut self) -> (Vec<u8>, Verdict) {
        let mut out = [0; MESSAGE_SIZE_MAX];
        let step = std::mem::replace(&mut self.step, Step::Over(Verdict::Refused));
        let size = match step {
            Step::Ask(hash, group) => match Asked::new(hash, group) {
                Ok(asked) => {
                    let size = asked.message(self.transaction, &mut out);
                    self.step = Step::Reply(asked);
                    size
                }
                // Without random numbers nobody is let in.
                Err(_) => self.failure(Reason::Failed, &mut out),
            },
            Step::Satisfied(hash, answer) => {
                let answered = answer.is_some();
                self.step = if answered { Step::Success2 } else { Step::Over(Verdict::Admitted) };
                auth::success1(self.transaction, hash, answer.as_deref(), &mut out)
            }
            Step::Failed(reason) => self.failure(reason, &mut out),
            _ => self.failure(Reason::IncorrectMessage, &mut out),
        };
        (out[..size].to_vec(), self.verdict())
    }

    fn failure(&self, reason: Reason, out: &mut [u8; MESSAGE_SIZE_MAX]) -> usize {
        auth::failure(id::FAILURE1, self.transaction, reason, out)
    }

    fn verdict(&self) -> Verdict {
        match self.step {
            Step::Over(verdict) => verdict,
            _ => Verdict::Open,
        }
    }
}

impl Asked {
    fn new(hash: Hash, group: Group) -> std::io::Result<Asked> {
        let challenge = random::<{ auth::HASH_SIZE_MAX }>()?[..hash.size()].to_vec();
        // Zero is no number of a question.
        let sequence = u32::from_le_bytes(random()?).max(1);
        Ok(Asked { hash, group, sequence, challenge, private: Private::random(group)? })
    }

    fn message(&self, transaction: u16, out: &mut [u8; MESSAGE_SIZE_MAX]) -> usize {
        let public = self.private.as_ref().map(Private::public).unwrap_or_default();
        let challenge = Challenge {
            hash: self.hash,
            group: self.group,
            sequence: self.sequence,
            value: &self.challenge,
            public: &public,
        };
        challenge.encode(transaction, out)
    }
}
