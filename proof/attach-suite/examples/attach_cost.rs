//! A volume behind an attach point, waiting to be loaded and measured; `scripts/instructions.sh`
//! does both.
//!
//! ```text
//! attach_cost POINT STORE COUNT
//! ```
//! makes a store at STORE unless there is one, so large that it is never cleaned, fills the volume,
//! offers it at POINT, and says `ready`, with an address where there is one. Points with an address
//! (`file`, `loop`, `nbd`) are loaded by another program until a line comes in. The others then
//! write COUNT random blocks at queue depth 32 themselves and say `done`: `library` on the volume's
//! thread, `session` from another thread, `ublk` and `ublk-driver-copies` by the queue's loop without
//! a driver. The end of the input ends it.

use coulter::buffer::Buffer;
use coulter::service::{BlockService, Operation, Request, Session};
use coulter::{CreateOptions, OpenOptions, Volume, create};
use coulter_attach::point::{AttachPoint, Detach};
use coulter_block::loop_device::{LoopDevice, LoopOptions};
use coulter_block::ublk::{Copy, Rehearsal};
use coulter_fuse::{FuseFile, FuseOptions};
use coulter_net::nbd::{Address, Export, Server, ServerOptions};
use coulter_workload::Random;
use std::error::Error;
use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

const STORE_SIZE: u64 = 6 << 30;
const VOLUME_SIZE: u64 = 256 << 20;
const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const DEPTH: u16 = 32;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [point, store, count] = &arguments[..] else {
        return Err("usage: attach_cost POINT STORE COUNT".into());
    };
    let (store, count) = (Path::new(store), count.parse()?);
    let volume = Arc::new(open(store)?);
    fill(&volume)?;
    match point.as_str() {
        "file" | "loop" | "nbd" => offer(point, store, volume.clone())?,
        _ => {
            let count = load(point, &volume, count)?;
            println!("done {count}");
            wait_for_line()?;
        }
    }
    Arc::into_inner(volume).ok_or("somebody still has the volume")?.close()?;
    Ok(())
}

fn open(store: &Path) -> Outcome<Volume> {
    let options = coulter_device::OpenOptions::default();
    if !store.exists() {
        std::fs::File::create(store)?.set_len(STORE_SIZE)?;
        let sizes = CreateOptions { volume_size: Some(VOLUME_SIZE), ..CreateOptions::default() };
        create(coulter_device::open_path(store, &options)?, &sizes)?;
    }
    Ok(Volume::open(coulter_device::open_path(store, &options)?, OpenOptions::default())?)
}

/// Every block mapped, so that each measured write replaces one.
fn fill(volume: &Volume) -> Outcome<()> {
    let content = vec![0x5a; MIB as usize];
    for offset in (0..volume.size() / MIB * MIB).step_by(MIB as usize) {
        volume.write_at(offset, &content)?;
    }
    volume.flush()?;
    Ok(())
}

/// Offers the volume until a line comes in, or the input ends.
fn offer(point: &str, store: &Path, volume: Arc<Volume>) -> Outcome<()> {
    let place = store.with_extension("point");
    let mut point: Box<dyn AttachPoint> = match point {
        "file" => Box::new(FuseFile::mount(&*volume, &place, &FuseOptions::default())?),
        "loop" => Box::new(LoopDevice::attach(&*volume, &place, &LoopOptions::default())?),
        _ => {
            let exports = vec![Export::new("", volume)];
            Box::new(Server::start(&Address::Unix(place), exports, ServerOptions::default())?)
        }
    };
    println!("ready {}", point.address());
    wait_for_line()?;
    point.detach(Detach::Always)?;
    Ok(())
}

/// Prepares, says so, and writes random blocks when it is told to; how many.
fn load(point: &str, volume: &Volume, count: u64) -> Outcome<u64> {
    let rehearse = |copy| Rehearsal { count, depth: DEPTH, copy }.run(volume, await_order);
    match point {
        "library" => {
            let size = volume.size();
            let (sender, written) = sync_channel(1);
            let guest = Box::new(move |session: Box<dyn Session>| {
                // The other end waits for it.
                let _ = sender.send(write(session, size, count));
            });
            volume.host(guest).map_err(|_| "the volume takes no guest")?;
            Ok(written.recv()?)
        }
        "session" => Ok(write(volume.connect(), volume.size(), count)),
        "ublk" => Ok(rehearse(Copy::ByDaemon)?),
        "ublk-driver-copies" => Ok(rehearse(Copy::ByDriver)?),
        _ => Err(format!("no such attach point: {point}").into()),
    }
}

fn write(mut session: Box<dyn Session>, size: u64, count: u64) -> u64 {
    let mut idle: Vec<Buffer> = (0..DEPTH).map(|_| Buffer::zeroed(BLOCK as usize)).collect();
    let mut completions = Vec::with_capacity(usize::from(DEPTH));
    let (mut random, mut submitted) = (Random::new(1), 0);
    await_order();
    loop {
        while submitted < count
            && let Some(buffer) = idle.pop()
        {
            let offset = random.below(size / BLOCK) * BLOCK;
            let operation = Operation::Write { fua: false };
            session.submit(Request { tag: 0, operation, offset, length: BLOCK, buffer });
            submitted += 1;
        }
        session.kick();
        if session.outstanding() == 0 {
            return submitted;
        }
        session.complete(&mut completions, None);
        for completion in completions.drain(..) {
            assert_eq!(completion.result, Ok(()), "writes of a measurement succeed");
            idle.push(completion.buffer);
        }
    }
}

/// Says that the preparations are over, and waits until the load is wanted.
fn await_order() {
    println!("ready");
    // The end of the input is an order too: whoever gave none is gone.
    let _ = wait_for_line();
}

fn wait_for_line() -> Outcome<()> {
    std::io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}
