//! Reads over NBD that the connection's own thread carries out: one at a time, and many.

use coulter::buffer::Buffer;
use coulter::service::{Operation, Request, Session};
use coulter::{CreateOptions, OpenOptions, Volume, create, device};
use coulter_attach_suite::nbd_client::Client;
use coulter_net::nbd::{Address, ClientOptions, Export, Server, ServerOptions};
use std::sync::Arc;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;

fn byte_of(block: u64) -> u8 {
    1 + block as u8
}

/// Reads `count` blocks, `depth` at a time, and compares them.
fn read(client: &mut dyn Session, count: u64, depth: u64) {
    let (mut next, mut ended, mut completions) = (0, 0, Vec::new());
    while ended < count {
        while next < count && next - ended < depth {
            let (tag, offset) = (next, next * 7 % BLOCKS * BLOCK);
            let buffer = Buffer::zeroed(BLOCK as usize);
            let operation = Operation::Read;
            client.submit(Request { tag, operation, offset, length: BLOCK, buffer });
            next += 1;
        }
        client.complete(&mut completions, None);
        for completion in completions.drain(..) {
            completion.result.expect("it is read");
            let expected = byte_of(completion.tag * 7 % BLOCKS);
            assert!(completion.buffer.iter().all(|byte| *byte == expected));
            ended += 1;
        }
    }
}

#[test]
fn reads_of_known_blocks_do_not_reach_the_loop_one_at_a_time_or_many() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    let file = std::fs::File::create(&path).and_then(|file| file.set_len(48 << 20));
    file.expect("there is room");
    let open = || device::open_path(&path, &device::OpenOptions::default()).expect("it is free");
    let options = CreateOptions { segment_size: Some(2 << 20), ..CreateOptions::default() };
    create(open(), &options).expect("it is large enough");
    let device = open();
    if device.read_source().is_none() {
        println!("SKIPPED: this system refuses io_uring");
        return;
    }
    let volume = Arc::new(Volume::open(device, OpenOptions::default()).expect("it opens"));
    for block in 0..BLOCKS {
        let bytes = [byte_of(block); BLOCK as usize];
        volume.write_at(block * BLOCK, &bytes).expect("it is written");
    }
    let address = Address::Unix(directory.path().join("nbd.sock"));
    let exports = vec![Export::new("", volume.clone())];
    let mut server = Server::start(&address, exports, ServerOptions::default()).expect("it starts");
    let mut client = Client::connect(&address, &ClientOptions::default()).expect("it serves");
    let looked_up = volume.statistics().map.hits;
    read(&mut client, 40, 1);
    assert_eq!(volume.statistics().read_cache.hits, 40);
    read(&mut client, 400, 32);
    read(&mut client, 40, 1);
    let statistics = volume.statistics();
    assert_eq!(statistics.read_cache.hits, 480);
    assert_eq!((statistics.read_cache.misses, statistics.map.hits), (0, looked_up));
    client.disconnect();
    server.shutdown();
}
