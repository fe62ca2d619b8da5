//! What a request costs over NVMe/TCP, beside NBD over TCP, on one volume whose store is in memory: CPU time of the
//! serving process for each request at queue depth 32, and latency at queue depth 1. Both sides in turns, by
//! initiators of our own; `make nvme-cost` calls it. Prints JSON.
//!
//! ```text
//! target_cost [--turns N] [--seconds S] [--size MIB]
//! ```
//! `serve MIB` is the serving process: it prints the two addresses, and ends with its input. It turns off nothing
//! that a daemon has on.

use coulter::buffer::Buffer;
use coulter::service::{BlockService, Operation, Request, Session};
use coulter::{CreateOptions, OpenOptions, Volume, create};
use coulter_attach_suite::initiator::{Initiator, InitiatorOptions};
use coulter_attach_suite::nbd_client::Client;
use coulter_device::MemoryStore;
use coulter_net::nbd::{Address, ClientOptions, Export, Server, ServerOptions};
use coulter_nvme_target::{Disk, Target, TargetOptions};
use coulter_workload::Random;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;
const DEPTH: usize = 32;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("serve") => serve(arguments.get(1).ok_or("how many MiB?")?.parse()?),
        _ => measure(&arguments),
    }
}

fn loopback() -> Address {
    Address::Tcp { host: "127.0.0.1".into(), port: 0 }
}

/// Serves a volume by both protocols until the input ends.
fn serve(size_mib: u64) -> Outcome<()> {
    let size = size_mib << 20;
    // So large that little is cleaned: the cleaner's work is not the protocols'.
    let store = MemoryStore::sparse(4 * size + (64 << 20));
    let sizes = CreateOptions { volume_size: Some(size), ..CreateOptions::default() };
    create(Box::new(store.open()?), &sizes)?;
    let volume = Arc::new(Volume::open(Box::new(store.open()?), OpenOptions::default())?);
    let content = vec![0x5a; 1 << 20];
    for offset in (0..size).step_by(1 << 20) {
        volume.write_at(offset, &content)?;
    }
    volume.flush()?;
    let service: Arc<dyn BlockService> = volume;
    let exports = vec![Export::new("", service.clone())];
    let server = Server::start(&loopback(), exports, ServerOptions::default())?;
    let disk = Disk { service, read_only: false, block_size: 4096 };
    let target = Target::start(&loopback(), vec![disk], TargetOptions::default())?;
    println!("{} {} {}", server.address(), target.address(), target.names()[0]);
    std::io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}

/// A serving process, which ends with its input.
struct Serving {
    child: Child,
    nbd: Address,
    nvme: Address,
    name: String,
}

impl Serving {
    fn start(size_mib: u64) -> Outcome<Serving> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", &size_mib.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [nbd, nvme, name] = words[..] else { return Err("it does not serve".into()) };
        let name = name.to_owned();
        Ok(Serving { nbd: nbd.parse()?, nvme: nvme.parse()?, name, child })
    }

    /// CPU time of all its threads so far.
    fn cpu(&self) -> Outcome<Duration> {
        let mut total = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            let first = text.split(' ').next().ok_or("no time")?;
            total += first.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(total))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// What one turn has measured.
struct Turn {
    cpu_us: f64,
    latency_us: f64,
    requests_per_second: f64,
}

/// Requests at `depth` for so long, at random blocks.
fn run(
    session: &mut dyn Session,
    operation: Operation,
    depth: usize,
    blocks: u64,
    time: Duration,
) -> (u64, f64) {
    let mut random = Random::new(blocks ^ depth as u64);
    let mut buffers: Vec<Buffer> = (0..depth).map(|_| Buffer::zeroed(BLOCK as usize)).collect();
    let (mut completions, mut latencies) = (Vec::with_capacity(depth), Vec::new());
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < time {
        let begun = Instant::now();
        while let Some(buffer) = buffers.pop() {
            let offset = random.below(blocks) * BLOCK;
            session.submit(Request { tag: 0, operation, offset, length: BLOCK, buffer });
        }
        session.kick();
        session.complete(&mut completions, None);
        for completion in completions.drain(..) {
            assert_eq!(completion.result, Ok(()), "a request succeeds");
            buffers.push(completion.buffer);
            count += 1;
        }
        if depth == 1 {
            latencies.push(begun.elapsed());
        }
    }
    while session.outstanding() > 0 {
        session.complete(&mut completions, None);
    }
    latencies.sort_unstable();
    let median = latencies.get(latencies.len() / 2).map_or(0.0, Duration::as_secs_f64);
    (count, median * 1e6)
}

fn turn(
    serving: &Serving,
    session: &mut dyn Session,
    operation: Operation,
    blocks: u64,
    time: Duration,
) -> Outcome<Turn> {
    // The first requests find buffers that are not there yet.
    run(session, operation, DEPTH, blocks, time / 10);
    let before = serving.cpu()?;
    let begun = Instant::now();
    let (count, _) = run(session, operation, DEPTH, blocks, time);
    let (spent, elapsed) = (serving.cpu()? - before, begun.elapsed());
    let (_, latency_us) = run(session, operation, 1, blocks, time / 2);
    Ok(Turn {
        cpu_us: spent.as_secs_f64() * 1e6 / count as f64,
        latency_us,
        requests_per_second: count as f64 / elapsed.as_secs_f64(),
    })
}

/// The value of an option, or what it is by default.
fn option(arguments: &[String], name: &str, usual: u64) -> Outcome<u64> {
    match arguments.iter().position(|argument| argument == name) {
        None => Ok(usual),
        Some(at) => Ok(arguments.get(at + 1).ok_or("an option without its value")?.parse()?),
    }
}

fn median(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

fn measure(arguments: &[String]) -> Outcome<()> {
    let turns = option(arguments, "--turns", 7)?.max(1);
    let time = Duration::from_secs(option(arguments, "--seconds", 2)?.max(1));
    let size_mib = option(arguments, "--size", 256)?.max(1);
    let blocks = (size_mib << 20) / BLOCK;
    let serving = Serving::start(size_mib)?;
    let mut nbd = Client::connect(&serving.nbd, &ClientOptions::default())?;
    let plain = InitiatorOptions {
        flow_control_disabled: true,
        ..InitiatorOptions::new(serving.name.clone(), 1)
    };
    let mut nvme = Initiator::connect(&serving.nvme, &plain)?;
    let kinds = [("read", Operation::Read), ("write", Operation::Write { fua: false })];
    let mut lines = Vec::new();
    for (kind, operation) in kinds {
        let mut sides: [Vec<Turn>; 2] = [Vec::new(), Vec::new()];
        for number in 0..turns {
            // Each side goes first as often as the other.
            let order = if number % 2 == 0 { [0, 1] } else { [1, 0] };
            for side in order {
                let session: &mut dyn Session = if side == 0 { &mut nbd } else { &mut nvme };
                sides[side].push(turn(&serving, session, operation, blocks, time)?);
            }
        }
        for (name, side) in ["nbd", "nvme"].iter().zip(&sides) {
            let mut field = |what: &str, value: fn(&Turn) -> f64| {
                let (middle, low, high) = median(side.iter().map(value).collect());
                lines.push(format!(
                    "  \"{name}_{kind}_{what}\": [{middle:.2}, {low:.2}, {high:.2}]"
                ));
            };
            field("cpu_us", |turn| turn.cpu_us);
            field("latency_us", |turn| turn.latency_us);
            field("requests_per_second", |turn| turn.requests_per_second);
        }
    }
    println!("{{\n{}\n}}", lines.join(",\n"));
    Ok(())
}
