//! DH-HMAC-CHAP between our own initiator and the target: a host with the right key is let in, and any other
//! is told why it is not, without harm to those that are.

use coulter_attach_suite::conformance::{Host, NvmeHost};
use coulter_attach_suite::initiator::{
    Authentication, Initiator, InitiatorError, InitiatorOptions,
};
use coulter_attach_suite::initiator::{Channel, discover, is_status};
use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
use coulter_net::Address;
use coulter_nvme::auth::{self, Group, Hash, MESSAGE_SIZE_MAX, Negotiate, Reason, id};
use coulter_nvme::fabrics::{self, CNTLID_ANY, Connect, ConnectData, property};
use coulter_nvme::opcode::{admin, fabrics as kind};
use coulter_nvme::tcp::Digests;
use coulter_nvme::{IDENTIFY_SIZE, Sqe, Status};
use coulter_nvme_target::{Disk, HostKey, Keys, Secret, Target, TargetOptions, host_name};
use coulter_workload::Random;
use std::sync::Arc;
use std::time::Duration;

/// Keys of 32, of 32 and of 32 bytes; the third is bound to its owner by SHA-256.
const RIGHT: &str = "DHHC-1:00:sNRJqR6+NG0/ZXUFDeMqonMe+rt/et8u6uSLpsZSzzo1fbl3:";
const WRONG: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
const OF_TARGET: &str = "DHHC-1:01:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
/// The host that has a key; no other has.
const HOST: u8 = 1;
const SIZE: u64 = 8 << 20;

fn secret(text: &str) -> Secret {
    text.parse().expect("it is a key")
}

struct Served {
    target: Target,
}

impl Served {
    fn new(group: Group) -> Served {
        let host = HostKey {
            host: Some(host_name(&[HOST; 16])),
            secret: secret(RIGHT),
            controller: Some(secret(OF_TARGET)),
        };
        let keys = Keys::new(vec![host], group).expect("there is a key");
        let service = Arc::new(MemoryService::new(MemoryOptions::new(SIZE)));
        let disk = Disk { service, read_only: false, block_size: 4096 };
        let address = Address::Tcp { host: "127.0.0.1".into(), port: 0 };
        let options = TargetOptions {
            keys: Some(Arc::new(keys)),
            handshake_timeout: Duration::from_secs(10),
            ..TargetOptions::default()
        };
        Served { target: Target::start(&address, vec![disk], options).expect("it starts") }
    }

    fn options(&self, host: u8, authentication: Option<Authentication>) -> InitiatorOptions {
        let name = self.target.names()[0].clone();
        let timeout = Duration::from_secs(20);
        InitiatorOptions { timeout, authentication, ..InitiatorOptions::new(name, host) }
    }

    fn connect(&self, authentication: Authentication) -> Result<Initiator, InitiatorError> {
        let options = self.options(HOST, Some(authentication));
        Initiator::connect(self.target.address(), &options)
    }

    /// An admin queue that has connected and has yet to prove who it is; the answer to Connect.
    fn unproved(&self) -> (Channel, u64) {
        let options = self.options(HOST, None);
        let timeout = options.timeout;
        let channel = Channel::open(self.target.address(), Digests::default(), timeout);
        let mut channel = channel.expect("it listens");
        let connect = Connect {
            format: 0,
            queue_id: 0,
            queue_size: 32,
            flow_control_disabled: false,
            keep_alive_ms: 0,
        };
        let data = ConnectData {
            host_id: options.host_id,
            cntlid: CNTLID_ANY,
            subsystem: &options.subsystem,
            host: &options.host,
        };
        let cqe = channel.send(connect.encode(), &data.encode()).expect("it may connect");
        (channel, cqe.result)
    }
}

fn right() -> Authentication {
    Authentication::new(secret(RIGHT))
}

fn assert_works(initiator: Initiator) {
    let mut host = NvmeHost(initiator);
    let data = vec![0x5a; 8192];
    host.write(4096, &data, true).expect("it may write");
    let mut back = vec![0; 8192];
    host.read(4096, &mut back).expect("it may read");
    assert_eq!(back, data);
}

#[test]
fn a_host_with_its_key_is_let_in_by_every_hash_and_group() {
    for group in [Group::Null, Group::Ffdhe2048, Group::Ffdhe3072, Group::Ffdhe4096] {
        let served = Served::new(group);
        for hash in [Hash::Sha256, Hash::Sha384, Hash::Sha512] {
            let authentication = Authentication { hashes: vec![hash], ..right() };
            assert_works(served.connect(authentication).expect("it has its key"));
        }
    }
}

#[test]
fn a_target_proves_itself_to_a_host_that_asks() {
    let served = Served::new(Group::Ffdhe2048);
    let asks = |controller| Authentication { controller: Some(secret(controller)), ..right() };
    assert_works(served.connect(asks(OF_TARGET)).expect("both have their keys"));
    let error = served.connect(asks(WRONG)).err().expect("the target does not know that key");
    assert!(matches!(error, InitiatorError::Protocol(what) if what.contains("its key")), "{error}");
}

#[test]
fn a_wrong_key_is_refused_and_does_no_harm_to_the_host_that_has_the_name() {
    let served = Served::new(Group::Null);
    let mut good = NvmeHost(served.connect(right()).expect("it has its key"));
    for _ in 0..20 {
        let error = served.connect(Authentication::new(secret(WRONG))).err();
        let error = error.expect("it has another key");
        let failed = Reason::Failed as u8;
        assert!(matches!(error, InitiatorError::Refused(reason) if reason == failed), "{error}");
    }
    good.write(0, &[7; 4096], false).expect("its controller is still there");
    // The same host, come back, takes the place of what it had.
    assert_works(served.connect(right()).expect("it has its key"));
    assert!(good.write(0, &[7; 4096], false).is_err(), "a host has one controller");
}

#[test]
fn a_host_without_a_key_is_not_let_in() {
    let served = Served::new(Group::Null);
    let stranger = served.options(HOST + 1, Some(right()));
    let error = Initiator::connect(served.target.address(), &stranger).map(drop);
    let is_refused = |error: &InitiatorError| {
        matches!(error, InitiatorError::Status(cqe)
            if cqe.status.code_and_type() == Status::CONNECT_INVALID_HOST)
    };
    assert!(error.as_ref().is_err_and(is_refused), "{error:?}");
}

#[test]
fn a_target_with_keys_tells_of_its_volume_only_to_hosts_that_have_one() {
    let served = Served::new(Group::Null);
    let ask = |host, key| discover(served.target.address(), &served.options(host, key));
    // A stranger, one who takes another's name, and one who has a wrong key.
    assert!(ask(HOST + 1, Some(right())).is_err());
    assert!(ask(HOST, None).is_err());
    assert!(ask(HOST, Some(Authentication::new(secret(WRONG)))).is_err());
    let found = ask(HOST, Some(right())).expect("it has its key");
    assert_eq!(found.iter().filter(|(name, _)| *name == served.target.names()[0]).count(), 1);
}

#[test]
fn nothing_is_carried_out_before_the_proof() {
    let served = Served::new(Group::Null);
    let (mut channel, result) = served.unproved();
    assert_ne!(result & 1 << 17, 0, "a proof is asked for");
    let identify = Sqe::new(admin::IDENTIFY, 0).with_dword(10, 1);
    let outcome = channel.fetch(identify, IDENTIFY_SIZE).map(drop);
    assert!(outcome.is_err_and(|error| matches!(error, InitiatorError::Status(cqe)
        if cqe.status.code_and_type() == Status::AUTH_REQUIRED)));
    for sqe in [
        fabrics::property_set(property::CC, 0x0046_0001),
        Sqe::new(admin::KEEP_ALIVE, 0),
        Sqe::new(admin::SET_FEATURES, 0).with_dword(10, 7),
    ] {
        assert!(is_status(&channel.send(sqe, &[]), Status::AUTH_REQUIRED));
    }
    // A queue needs a proof of its own, and a controller that has proved itself.
    let good = served.connect(right()).expect("it has its key");
    let keyless = served.options(HOST, None);
    let address = served.target.address();
    assert!(Initiator::connect_queue(address, &keyless, good.cntlid, 1).is_err());
    let unproved = (result & 0xffff) as u16;
    let refused = Initiator::connect_queue(address, &keyless, unproved, 1).map(drop);
    assert!(refused.is_err_and(|error| matches!(error, InitiatorError::Status(cqe)
        if cqe.status.code_and_type() == Status::SEQUENCE_ERROR)));
    assert_works(good);
}

#[test]
fn what_both_sides_cannot_do_is_named() {
    let served = Served::new(Group::Ffdhe3072);
    let refused = |authentication| match served.connect(authentication).err() {
        Some(InitiatorError::Refused(reason)) => reason,
        other => panic!("it should be refused: {other:?}"),
    };
    let small = Authentication { groups: vec![Group::Null, Group::Ffdhe2048], ..right() };
    assert_eq!(refused(small), Reason::GroupUnusable as u8);
    let hashless = Authentication { hashes: Vec::new(), ..right() };
    assert_eq!(refused(hashless), Reason::HashUnusable as u8);
    let large = Authentication { groups: vec![Group::Ffdhe4096], ..right() };
    assert_works(served.connect(large).expect("a larger group will do"));
}

/// What the target says to a message, on a queue of its own.
fn reason_for(served: &Served, message: &[u8]) -> Option<u8> {
    let (mut channel, _) = served.unproved();
    let length = message.len() as u32;
    channel.send(auth::command(kind::AUTH_SEND, length), message).expect("a message is taken");
    let fetched = channel.fetch(auth::command(kind::AUTH_RECEIVE, 4096), 4096).expect("an answer");
    let is_failure = auth::opening(&fetched).is_some_and(|opening| opening.id == id::FAILURE1);
    let reason = is_failure.then(|| auth::reason_of_failure(&fetched)).flatten();
    if is_failure {
        let again = channel.fetch(auth::command(kind::AUTH_RECEIVE, 4096), 4096).map(drop);
        assert!(again.is_err(), "after a failure the connection ends");
    }
    reason
}

#[test]
fn messages_that_make_no_sense_or_come_out_of_turn_end_the_connection() {
    let served = Served::new(Group::Null);
    let mut out = [0; MESSAGE_SIZE_MAX];
    let negotiate = Negotiate { secure_channel: 0, hashes: &[1], groups: &[0] };
    let size = negotiate.encode(9, &mut out);
    let whole = out[..size].to_vec();
    assert_eq!(reason_for(&served, &whole), None, "that is how it begins");
    for cut in [1, 7, 8, 40, size - 1] {
        assert!(reason_for(&served, &whole[..cut]).is_some(), "cut at {cut}");
    }
    let secure = Negotiate { secure_channel: 1, ..negotiate };
    let size = secure.encode(9, &mut out);
    let mismatch = Some(Reason::ConcatenationMismatch as u8);
    assert_eq!(reason_for(&served, &out[..size]), mismatch);
    let size = auth::success2(9, &mut out);
    let out_of_turn = Some(Reason::IncorrectMessage as u8);
    assert_eq!(reason_for(&served, &out[..size]), out_of_turn);
    let mut random = Random::new(7);
    for _ in 0..100 {
        let size = 1 + random.bits() as usize % 300;
        let noise: Vec<u8> = (0..size).map(|_| random.bits() as u8).collect();
        assert!(reason_for(&served, &noise).is_some(), "{noise:?}");
    }
    assert_works(served.connect(right()).expect("others go on"));
}

#[test]
fn lengths_that_disagree_are_refused() {
    let served = Served::new(Group::Null);
    let (mut channel, _) = served.unproved();
    let send = auth::command(kind::AUTH_SEND, 73);
    assert!(is_status(&channel.send(send, &[0; 72]), Status::INVALID_FIELD));
    for (length, room) in [(4096, 2048), (16, 16), (2048, 4096)] {
        let outcome = channel.fetch(auth::command(kind::AUTH_RECEIVE, length), room).map(drop);
        assert!(outcome.is_err(), "{length} bytes asked for, with room for {room}");
    }
}
