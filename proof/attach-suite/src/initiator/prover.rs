//! The host's side of a conversation: it answers the target, and asks it if it is to prove itself.

use super::{Authentication, Channel, InitiatorError};
use coulter_nvme::auth::{
    self, Challenge, Group, Hash, MESSAGE_SIZE_MAX, Negotiate, Reply, command, id,
};
use coulter_nvme::opcode::fabrics;
use coulter_nvme_target::{Private, Question, Role, Secret, random};

/// Bytes of what is fetched, as Linux asks for them.
const FETCH_SIZE: usize = 4096;
/// The number of the only transaction of a queue.
const TRANSACTION: u16 = 1;

/// Proves to a target who this host is.
///
/// # Errors
/// [`InitiatorError::Refused`] with the target's reason, or when the target does not prove itself.
pub(super) fn prove(
    channel: &mut Channel,
    options: &Authentication,
    host: &str,
    subsystem: &str,
) -> Result<(), InitiatorError> {
    let mut out = [0; MESSAGE_SIZE_MAX];
    let hashes: Vec<u8> = options.hashes.iter().map(|hash| *hash as u8).collect();
    let groups: Vec<u8> = options.groups.iter().map(|group| *group as u8).collect();
    let negotiate = Negotiate { secure_channel: 0, hashes: &hashes, groups: &groups };
    let size = negotiate.encode(TRANSACTION, &mut out);
    send(channel, &out[..size])?;

    let bytes = fetch(channel, id::CHALLENGE)?;
    let challenge = Challenge::decode(&bytes);
    let asked = challenge.ok_or(InitiatorError::Protocol("a challenge makes no sense"))?;
    let (private, shared) = exchange(asked.group, asked.public)?;
    let question = Question {
        hash: asked.hash,
        shared: &shared,
        challenge: asked.value,
        sequence: asked.sequence,
        transaction: TRANSACTION,
        host,
        subsystem,
    };
    let response = question.answer(Role::Host, &options.secret.of(host));
    let own = random::<{ auth::HASH_SIZE_MAX }>()?;
    let own = (&own[..asked.hash.size()], 1);
    let reply = Reply {
        response: &response,
        challenge: options.controller.is_some().then_some(own),
        public: &private.as_ref().map(Private::public).unwrap_or_default(),
    };
    let size = reply.encode(TRANSACTION, &mut out);
    send(channel, &out[..size])?;

    let bytes = fetch(channel, id::SUCCESS1)?;
    let Some(controller) = &options.controller else { return Ok(()) };
    let question = Question { challenge: own.0, sequence: own.1, ..question };
    let is_right = is_proved(&question, controller, subsystem, &bytes);
    let size = match is_right {
        true => auth::success2(TRANSACTION, &mut out),
        false => auth::failure(id::FAILURE2, TRANSACTION, auth::Reason::Failed, &mut out),
    };
    send(channel, &out[..size])?;
    match is_right {
        true => Ok(()),
        false => Err(InitiatorError::Protocol("the target does not know its key")),
    }
}

fn is_proved(question: &Question<'_>, secret: &Secret, subsystem: &str, bytes: &[u8]) -> bool {
    let answer = auth::response_of_success1(bytes);
    answer
        .is_some_and(|answer| question.is_answered(Role::Controller, &secret.of(subsystem), answer))
}

fn exchange(group: Group, public: &[u8]) -> Result<(Option<Private>, Vec<u8>), InitiatorError> {
    let Some(private) = Private::random(group)? else { return Ok((None, Vec::new())) };
    let weak = InitiatorError::Protocol("the target's public value is of no use");
    let shared = private.shared(public).ok_or(weak)?;
    Ok((Some(private), shared))
}

/// Sends a message.
fn send(channel: &mut Channel, message: &[u8]) -> Result<(), InitiatorError> {
    channel.send(command(fabrics::AUTH_SEND, message.len() as u32), message).map(drop)
}

/// Fetches the message that is due.
fn fetch(channel: &mut Channel, expected: u8) -> Result<Vec<u8>, InitiatorError> {
    let bytes = channel.fetch(command(fabrics::AUTH_RECEIVE, FETCH_SIZE as u32), FETCH_SIZE)?;
    match auth::opening(&bytes) {
        Some(opening) if opening.transaction != TRANSACTION => {
            Err(InitiatorError::Protocol("a message of another transaction"))
        }
        Some(opening) if opening.id == expected => Ok(bytes),
        Some(opening) if opening.id == id::FAILURE1 => {
            Err(InitiatorError::Refused(auth::reason_of_failure(&bytes).unwrap_or_default()))
        }
        _ => Err(InitiatorError::Protocol("a message out of turn")),
    }
}

impl Authentication {
    /// With this key; it takes whatever hash and group there is, and asks for no proof.
    pub fn new(secret: Secret) -> Authentication {
        Authentication {
            secret,
            controller: None,
            hashes: vec![Hash::Sha256, Hash::Sha384, Hash::Sha512],
            groups: vec![Group::Null, Group::Ffdhe2048, Group::Ffdhe3072, Group::Ffdhe4096],
        }
    }
}
