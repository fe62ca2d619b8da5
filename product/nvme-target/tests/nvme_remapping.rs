//! Remapping, seen from both ends: the commands that a host's driver sends, and the commands that the device
//! below gets. Written as NVMe commands for the drive, the latter have `slba`s of the log.
//!
//! The addresses are those of the worked examples of "NVMe address remapping" (IEEE Access 2022, figures 4
//! to 6), in units of 512 bytes there: three writes far apart, reads of them, and overwrites. Where the paper
//! gives consecutive addresses to data, a record here has a header before them, and what is overwritten is
//! not moved into holes from the end: its segment is cleaned when it is worth it.

use coulter::{CreateOptions, OpenOptions, Volume, create};
use coulter_attach_suite::loopback::{connect, serve};
use coulter_device::wrap::{TraceLog, TracedDevice};
use coulter_device::{CommandKind, MemoryStore};
use coulter_nvme::Sqe;
use coulter_nvme::opcode::io;
use coulter_nvme_target::TargetOptions;
use std::sync::Arc;

/// First block, and blocks, of the requests of figures 4 and 6: 6544, 7136 and 5728, of 4, 8 and 4 KiB.
const REQUESTS: [(u64, u32); 3] = [(6544 / 8, 1), (7136 / 8, 2), (5728 / 8, 1)];

/// The command that writes or reads blocks of a drive at a byte of it, as it would be passed through.
fn command_of_drive(kind: CommandKind, offset: u64, length: u64) -> Sqe {
    let opcode = if kind == CommandKind::Write { io::WRITE } else { io::READ };
    Sqe::new(opcode, 1).with_blocks(offset / 4096, (length / 4096) as u32)
}

fn commands(log: &TraceLog, kind: CommandKind) -> Vec<Sqe> {
    let records = log.take().into_iter().filter(|record| record.kind == kind);
    records.map(|record| command_of_drive(kind, record.offset, record.length)).collect()
}

#[test]
fn writes_far_apart_become_neighbours_and_reads_find_them() {
    let store = MemoryStore::new(96 << 20);
    let options = CreateOptions { segment_size: Some(2 << 20), ..CreateOptions::default() };
    create(Box::new(store.open().unwrap()), &options).unwrap();
    let log = TraceLog::new(100_000);
    let device = TracedDevice::new(store.open().unwrap(), log.clone());
    let volume = Volume::open(Box::new(device), OpenOptions::default()).unwrap();
    let target = serve(Arc::new(volume), TargetOptions::default());
    let mut initiator = connect(&target, 1);
    // Behind the first checkpoint.
    initiator.io.send(Sqe::new(io::WRITE, 1).with_blocks(0, 1), &[9; 4096]).unwrap();
    log.take();
    let mut places = Vec::new();
    let mut next = None;
    for round in 0..2_u8 {
        for (slba, count) in REQUESTS {
            let sqe = Sqe::new(io::WRITE, 1).with_blocks(slba, count);
            let data =
                vec![round.wrapping_mul(100).wrapping_add(slba as u8); 4096 * count as usize];
            initiator.io.send(sqe, &data).expect("a write succeeds");
            let written = commands(&log, CommandKind::Write);
            assert_eq!(written.len(), 1, "one command of the host is one command for the drive");
            let drive = written[0];
            assert_ne!(drive.slba(), slba, "its address is another");
            assert_eq!(drive.block_count(), count + 1, "a header goes before the data");
            assert!(next.is_none_or(|next| next == drive.slba()), "it goes where the last ended");
            next = Some(drive.slba() + u64::from(drive.block_count()));
            places.push((slba, count, drive.slba() + 1, data));
        }
    }
    for (slba, count, place, data) in places.drain(..).skip(REQUESTS.len()) {
        let sqe = Sqe::new(io::READ, 1).with_blocks(slba, count);
        let length = 4096 * count as usize;
        let back = initiator.io.fetch(sqe, length).expect("a read succeeds");
        assert!(back == data, "what was overwritten is not what is read");
        let read = commands(&log, CommandKind::Read);
        let expected = Sqe::new(io::READ, 1).with_blocks(place, count);
        assert_eq!(read, [expected], "the drive is asked for where it went");
    }
    let never = Sqe::new(io::READ, 1).with_blocks(2000, 1);
    let zeros = initiator.io.fetch(never, 4096).expect("a read succeeds");
    assert!(zeros.iter().all(|byte| *byte == 0));
    assert!(commands(&log, CommandKind::Read).is_empty(), "what has no entry asks no drive");
}
