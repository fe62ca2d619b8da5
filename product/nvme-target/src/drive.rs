//! A conversation without a socket, for fuzzers: bytes go in by pieces, and what is answered is thrown away.

use super::auth::{HostKey, Keys};
use super::conversation::Conversation;
use super::front::Front;
use super::identity::{host_name, subsystem_name};
use super::subsystem::Subsystem;
use super::target::{Nvme, TargetOptions};
use coulter::service::BlockService;
use coulter_net::{Address, Exchange, SLICES_MAX, Standing};
use coulter_nvme::auth::Group;
use coulter_nvme::fabrics::{self, CNTLID_ANY, Connect, ConnectData, DISCOVERY_NQN, property};
use coulter_nvme::opcode::admin;
use coulter_nvme::tcp::{self, Digests, IcReq};
use coulter_nvme::{DataPointer, Sqe};
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

/// The number of the first controller, so that an I/O queue can name it.
const FIRST_CNTLID: u16 = 7;
/// The bytes of the identity of the host.
const HOST: u8 = 1;
const KEY: &str = "DHHC-1:00:sNRJqR6+NG0/ZXUFDeMqonMe+rt/et8u6uSLpsZSzzo1fbl3:";

/// How far a conversation has come when bytes of a fuzzer begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// Nothing has been said.
    Greeting,
    /// The host is to prove who it is.
    Proof,
    /// An admin queue is connected and enabled.
    Admin,
    /// The same of the discovery service.
    Discovery,
    /// An I/O queue is connected.
    Io,
}

/// What a host sends, in pieces of `piece` bytes, once a conversation
/// about `service` has come to `stage`.
pub fn converse(service: Arc<dyn BlockService>, stage: Reached, bytes: &[u8], piece: usize) {
    let nvme = target(service, stage == Reached::Proof);
    let local = Address::Tcp { host: "127.0.0.1".to_owned(), port: 4420 };
    let standing = Standing::default();
    let new = || Conversation::new(&nvme, &standing, local.clone());
    let mut first = new();
    let volume = nvme.subsystems[0].nqn.clone();
    match stage {
        Reached::Greeting => feed(&mut first, bytes, piece),
        Reached::Proof => {
            begin(&mut first, &volume, 0);
            feed(&mut first, bytes, piece);
        }
        Reached::Admin | Reached::Discovery => {
            let name = if stage == Reached::Admin { volume.as_str() } else { DISCOVERY_NQN };
            begin(&mut first, name, 0);
            enable(&mut first);
            feed(&mut first, bytes, piece);
        }
        Reached::Io => {
            begin(&mut first, &volume, 0);
            enable(&mut first);
            let mut queue = new();
            begin(&mut queue, &volume, 1);
            feed(&mut queue, bytes, piece);
            end(queue);
        }
    }
    end(first);
}

fn target(service: Arc<dyn BlockService>, has_keys: bool) -> Nvme {
    let nqn = subsystem_name(&service.describe().identity);
    let front = Front::new(service, false, 4096);
    let subsystem = Arc::new(Subsystem::new(nqn, Some(front), FIRST_CNTLID));
    let discovery = Some(Arc::new(Subsystem::new(DISCOVERY_NQN.to_owned(), None, FIRST_CNTLID)));
    let keys = has_keys.then(|| {
        let secret = KEY.parse().expect("it is a key");
        let host = HostKey { host: None, secret, controller: None };
        Arc::new(Keys::new(vec![host], Group::Null).expect("there is a key"))
    });
    let handshake_timeout = Duration::from_secs(3600);
    let options = TargetOptions { keys, handshake_timeout, ..TargetOptions::default() };
    Nvme::new(vec![subsystem], discovery, options)
}

/// Greets and connects a queue.
fn begin(conversation: &mut Conversation<'_>, subsystem: &str, queue_id: u16) {
    let greeting = IcReq { format: 0, alignment: 0, digests: Digests::default(), r2t_max: 1 };
    feed(conversation, &greeting.encode(), usize::MAX);
    let connect = Connect {
        format: 0,
        queue_id,
        queue_size: 32,
        flow_control_disabled: false,
        keep_alive_ms: 0,
    };
    let cntlid = if queue_id == 0 { CNTLID_ANY } else { FIRST_CNTLID };
    let host = host_name(&[HOST; 16]);
    let data = ConnectData { host_id: [HOST; 16], cntlid, subsystem, host: &host }.encode();
    say(conversation, connect.encode(), &data);
}

fn enable(conversation: &mut Conversation<'_>) {
    say(conversation, fabrics::property_set(property::CC, 0x0046_0001), &[]);
    let queues = Sqe::new(admin::SET_FEATURES, 0).with_dword(10, 7).with_dword(11, 0);
    say(conversation, queues, &[]);
}

fn say(conversation: &mut Conversation<'_>, sqe: Sqe, data: &[u8]) {
    let length = data.len() as u32;
    let pointer = match length {
        0 => DataPointer::None,
        _ => DataPointer::InCapsule { length, offset: 0 },
    };
    let sqe = sqe.with_data_pointer(pointer);
    let header = tcp::command(&sqe, length, Digests::default());
    feed(conversation, &[&header[..], data].concat(), usize::MAX);
}

/// Lets bytes in, as far as they are taken.
fn feed(conversation: &mut Conversation<'_>, bytes: &[u8], piece: usize) {
    for mut part in bytes.chunks(piece) {
        while !part.is_empty() {
            settle(conversation);
            if !conversation.wants_input() {
                return;
            }
            let taken = place(conversation, part);
            part = &part[taken..];
            if conversation.handle_input().is_err() {
                conversation.end_input();
                return;
            }
        }
    }
    settle(conversation);
}

/// Copies bytes to where the conversation wants them; how many.
fn place(conversation: &mut Conversation<'_>, bytes: &[u8]) -> usize {
    let receiver = conversation.receiver();
    let mut rest = bytes;
    for mut slice in receiver.slices() {
        let count = slice.len().min(rest.len());
        slice[..count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
    }
    let taken = bytes.len() - rest.len();
    assert!(taken > 0, "what wants input has room for it");
    receiver.received(taken);
    taken
}

/// Lets everything complete that can, and takes the answers away.
fn settle(conversation: &mut Conversation<'_>) {
    loop {
        let any = conversation.handle_completions();
        let sent = {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = conversation.replies().slices(&mut slices);
            slices[..count].iter().map(|slice| slice.len()).sum()
        };
        conversation.handle_sent(sent);
        if !any && sent == 0 {
            return;
        }
    }
}

fn end(mut conversation: Conversation<'_>) {
    conversation.end_input();
    settle(&mut conversation);
    conversation.abandon();
    assert!(conversation.is_finished(), "a conversation that was given up is finished");
}
