//! Where an NBD server listens and what it leaves there, several exports, and many requests at a
//! time over one connection.

use coulter::buffer::Buffer;
use coulter::service::{BlockService, Operation, Request, Session};
use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
use coulter_attach_suite::nbd_client::Client;
use coulter_net::nbd::{
    Address, ClientError, ClientOptions, Event, Export, ServeError, Server, ServerOptions,
};
use coulter_workload::Random;
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SIZE: u64 = 16 << 20;

fn memory(options: MemoryOptions) -> Arc<dyn BlockService> {
    Arc::new(MemoryService::new(options))
}

fn start(address: &Address) -> Result<Server, ServeError> {
    let export = Export::new("", memory(MemoryOptions::new(SIZE)));
    Server::start(address, vec![export], ServerOptions::default())
}

#[test]
fn a_socket_left_by_a_dead_server_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    let address = Address::Unix(path.clone());
    // Dropping the listener of the standard library leaves its file.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let mut server = start(&address).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let text = start(&address).err().expect("the place is taken").to_string();
    assert!(text.contains("another server"), "{text}");
    Client::connect(&address, &ClientOptions::default()).expect("the first still serves");
    server.shutdown();
    assert!(!path.exists());
    std::fs::write(&path, "precious").unwrap();
    let text = start(&address).err().expect("a file is in the way").to_string();
    assert!(text.contains("not a socket"), "{text}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn a_socket_that_was_replaced_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    let server = start(&Address::Unix(path.clone())).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    drop(server);
    assert!(path.exists(), "the other's socket is still there");
}

#[test]
fn other_machines_are_let_in_only_on_demand() {
    let open: Address = "tcp:0.0.0.0:0".parse().unwrap();
    let text = start(&open).err().expect("it is refused").to_string();
    assert!(text.contains("neither TLS"), "{text}");
    let export = || vec![Export::new("", memory(MemoryOptions::new(SIZE)))];
    let options = ServerOptions { allow_remote: true, ..ServerOptions::default() };
    Server::start(&open, export(), options).expect("it is allowed");
    let missing: Address = "unix:/nonexistent/nbd.sock".parse().unwrap();
    let text = start(&missing).err().expect("there is no such directory").to_string();
    assert!(text.contains("/nonexistent/nbd.sock"), "{text}");
    let few = ServerOptions { connection_memory_max: 1 << 20, ..ServerOptions::default() };
    assert!(matches!(Server::start(&open, export(), few), Err(ServeError::Options(_))));
}

#[test]
fn exports_are_chosen_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let address = Address::Unix(directory.path().join("nbd.sock"));
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = events.clone();
    let observer = Arc::new(move |event: Event| sink.lock().unwrap().push(format!("{event:?}")));
    let options = ServerOptions { observer: Some(observer), ..ServerOptions::default() };
    let read_only = Export {
        read_only: true,
        description: "the second".into(),
        ..Export::new("two", memory(MemoryOptions::new(2 * SIZE)))
    };
    let exports = vec![Export::new("one", memory(MemoryOptions::new(SIZE))), read_only];
    let mut server = Server::start(&address, exports, options).unwrap();
    let connect = |export: &str| {
        let options = ClientOptions { export: export.into(), ..ClientOptions::default() };
        Client::connect(&address, &options)
    };
    for (name, size, read_only) in
        [("", SIZE, false), ("one", SIZE, false), ("two", 2 * SIZE, true)]
    {
        let client = connect(name).unwrap();
        assert_eq!((client.size(), client.read_only()), (size, read_only));
        assert_eq!(client.block_sizes(), Some([512, 4096, 32 << 20]));
        assert!(client.has_block_status());
        client.disconnect();
    }
    assert!(matches!(connect("three"), Err(ClientError::Refused { .. })));
    coulter_attach_suite::raw_nbd::wait_until_alone(&server);
    server.shutdown();
    let events = events.lock().unwrap();
    assert_eq!(events.iter().filter(|event| event.contains("Opened")).count(), 4);
    assert_eq!(events.iter().filter(|event| event.contains("Disconnected")).count(), 3);
    assert_eq!(events.iter().filter(|event| event.contains("Lost")).count(), 1);
}

/// Thirty-two requests at a time, answered out of order, on blocks that no two of them share.
fn pipelined(latency: Duration, sleeps_outside: bool) {
    const DEPTH: usize = 32;
    let directory = tempfile::tempdir().unwrap();
    let address = Address::Unix(directory.path().join("nbd.sock"));
    let options = MemoryOptions { latency, shuffle_seed: Some(5), ..MemoryOptions::new(SIZE) };
    let export = Export::new("", memory(options));
    let _server = Server::start(&address, vec![export], ServerOptions::default()).unwrap();
    let mut client = Client::connect(&address, &ClientOptions::default()).unwrap();
    let mut random = Random::new(11);
    let mut content: HashMap<u64, u64> = HashMap::new();
    let mut under_way: HashMap<u64, (u64, Option<u64>)> = HashMap::new();
    let mut completions = Vec::new();
    let mut done = 0;
    while done < 4000 {
        while under_way.len() < DEPTH {
            let block = random.below(SIZE / 65536);
            if under_way.values().any(|(other, _)| *other == block) {
                continue;
            }
            let seed = (random.below(2) == 0).then(|| random.bits());
            let length = [4096, 512, 65536][random.below(3) as usize];
            let mut buffer = Buffer::zeroed(if seed.is_some() { 65536 } else { length });
            if let Some(seed) = seed {
                Random::new(seed).fill(&mut buffer);
            }
            let tag = random.bits();
            let operation =
                if seed.is_some() { Operation::Write { fua: false } } else { Operation::Read };
            let (offset, length) = (block * 65536, buffer.len() as u64);
            client.submit(Request { tag, operation, offset, length, buffer });
            under_way.insert(tag, (block, seed));
        }
        client.kick();
        if sleeps_outside {
            client.complete(&mut completions, Some(Duration::ZERO));
            if completions.is_empty() {
                let fd = client.completion_fd();
                let mut fds = [PollFd::new(&fd, PollFlags::IN)];
                poll(&mut fds, None).unwrap();
                client.complete(&mut completions, Some(Duration::ZERO));
            }
        } else {
            client.complete(&mut completions, None);
        }
        for completion in completions.drain(..) {
            assert_eq!(completion.result, Ok(()));
            let (block, written) = under_way.remove(&completion.tag).expect("a request of ours");
            match (written, content.get(&block)) {
                (Some(seed), _) => drop(content.insert(block, seed)),
                (None, Some(seed)) => {
                    let mut expected = vec![0; completion.buffer.len()];
                    Random::new(*seed).fill(&mut expected);
                    assert!(completion.buffer[..] == expected[..]);
                }
                (None, None) => assert!(completion.buffer.iter().all(|byte| *byte == 0)),
            }
            done += 1;
        }
    }
}

#[test]
fn many_requests_at_a_time_keep_their_data_apart() {
    pipelined(Duration::ZERO, false);
    pipelined(Duration::from_micros(200), false);
}

#[test]
fn a_caller_may_sleep_on_the_descriptor() {
    pipelined(Duration::ZERO, true);
    pipelined(Duration::from_micros(200), true);
}
