//! Hosts that are killed or frozen while they write, and others that take the volume over: nothing that a flush
//! acknowledged with `--ack remote` is lost.
//!
//! A host is a process of its own: this very program. It writes down what it does before and after each call, in a file
//! that outlives it. Its device is memory, so a host that was killed is lost with all that it had. A frozen host comes
//! back after another has taken over, in the middle of whatever it did. In the end the files are compared.
//!
//! `COULTER_KILLS` is the number of hosts that are lost; `make copies-kills` takes 200.

mod stamped;

use coulter_object::bucket::{MemoryBucket, S3Bucket, S3Options};
use coulter_object::service::{Conditions, Fault, Proxy, Service};
use coulter_object::ship::marks::Marks;
use coulter_object::{
    Bucket, ReplicaError, ShippedDevice,
    history::{self, takeover},
    publish,
};
use stamped::life::Stubborn;
use stamped::{BLOCK, BUSY, Random, new_store, open, opening, restored};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Hosts that are lost, if nobody says how many.
const KILLS: u64 = 6;

/// Where a host writes down what it does, and the service.
const LOG: &str = "COULTER_KILLS_LOG";
const ENDPOINT: &str = "COULTER_KILLS_ENDPOINT";

/// Time for anything that must happen.
const PATIENCE: Duration = Duration::from_secs(120);

/// Writes of one host at most.
const WRITES_MAX: u64 = 20_000;

fn client(endpoint: &str, folder: &Path) -> Arc<dyn Bucket> {
    let file = folder.join("credentials");
    let options = S3Options {
        endpoint: endpoint.to_string(),
        region: "us-east-1".to_string(),
        is_virtual_host: false,
        credentials_file: Some((file, "default".to_string())),
        timeout: Duration::from_secs(60),
    };
    Arc::new(S3Bucket::open("bucket", "volume", &options).expect("a URL"))
}

/// One host, in a process of its own: it takes the volume over, or makes it, and writes until it is ended.
///
/// Its lines: `S block stamp` for each block that it found, `O` once it goes on, `W block stamp` before a write,
/// `A stamp` after a flush was acknowledged, `E` when it cannot go on.
#[test]
#[ignore = "a part of the other test"]
fn host() {
    let Some(log) = std::env::var_os(LOG).map(PathBuf::from) else { return };
    let mut file = OpenOptions::new().append(true).open(&log).expect("the log is there");
    // One call a line: what was written before a kill is in the file.
    let mut say = |line: String| file.write_all(line.as_bytes()).expect("there is room");
    let folder = log.parent().expect("a folder");
    let bucket = client(&std::env::var(ENDPOINT).expect("it is set"), folder);
    let number: u64 = log.extension().and_then(|name| name.to_str()?.parse().ok()).expect("one");
    let opening = opening(bucket.clone(), BUSY, Marks::in_memory());
    let shipped = match number {
        0 => ShippedDevice::open(new_store().open().expect("it is free"), opening),
        _ => {
            let claim = takeover::claim(&*bucket, &number.to_string(), 0, &Stubborn);
            let claim = claim.expect("nobody else claims");
            let store = restored(&*bucket, &claim.history.pieces);
            ShippedDevice::take_over(store.open().expect("it is free"), opening, claim)
        }
    };
    let volume = open(shipped.expect("it is this host's").0);
    let blocks = volume.size() / BLOCK as u64;
    let mut bytes = vec![0; volume.size() as usize];
    for (at, part) in (0..).step_by(256 * BLOCK).zip(bytes.chunks_mut(256 * BLOCK)) {
        volume.read_at(at, part).expect("every block is intact");
    }
    let mut stamp = 0;
    let mut found = String::new();
    for (block, bytes) in bytes.chunks(BLOCK).enumerate() {
        let here = u64::from_le_bytes(*bytes.first_chunk().expect("a block"));
        if here > 0 {
            let body = here.to_le_bytes();
            assert!(bytes.chunks(8).all(|word| word == body), "block {block} is whole");
            found.push_str(&format!("S {block} {here}\n"));
            stamp = stamp.max(here);
        }
    }
    say(found + "O\n");
    // Stamps of two hosts are never the same, even if one of them goes on for too long.
    stamp = (stamp >> 24 << 24) + (number << 24);
    let mut random = Random::new(number);
    for _ in 0..WRITES_MAX {
        stamp += 1;
        let block = if random.below(4) > 0 { random.below(64) } else { random.below(blocks) };
        say(format!("W {block} {stamp}\n"));
        let written = volume.write_at(block * BLOCK as u64, &stamp.to_le_bytes().repeat(BLOCK / 8));
        if written.is_err() {
            break;
        }
        if random.below(5) == 0 {
            match volume.flush() {
                Ok(()) => say(format!("A {stamp}\n")),
                Err(_) => break,
            }
        }
    }
    say("E\n".to_string());
    let _ = volume.abandon();
}

/// What a host has written down.
#[derive(Default)]
struct Life {
    found: BTreeMap<u64, u64>,
    is_open: bool,
    writes: Vec<(u64, u64)>,
    /// The newest stamp that a flush has acknowledged, and how many flushes were.
    acknowledged: u64,
    acknowledgements: usize,
    has_ended: bool,
}

impl Life {
    fn read(log: &Path) -> Life {
        let mut life = Life::default();
        let text = fs::read_to_string(log).expect("it is there");
        // The last line may be cut short by the kill.
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let mut words = line.split_whitespace();
            let kind = words.next().expect("a line has a kind");
            let mut next = || words.next().expect("two").parse::<u64>().expect("a number");
            match kind {
                "S" => drop(life.found.insert(next(), next())),
                "O" => life.is_open = true,
                "W" => life.writes.push((next(), next())),
                "A" => {
                    life.acknowledged = next();
                    life.acknowledgements += 1;
                }
                _ => life.has_ended = true,
            }
        }
        life
    }

    /// The number of this host's writes that `next` has found: all up to one of them, and everything acknowledged.
    fn assert_goes_on_in(&self, next: &Life, name: u64) -> usize {
        let mut state = self.found.clone();
        let mut count = 0;
        let newest = next.found.values().max().copied().unwrap_or(0);
        for (block, stamp) in self.writes.iter().take_while(|(_, stamp)| *stamp <= newest) {
            state.insert(*block, *stamp);
            count += 1;
        }
        assert_eq!(next.found, state, "host {name}: the next one found {count} writes in order");
        let covered = self.writes.iter().take_while(|(_, stamp)| *stamp <= self.acknowledged);
        assert!(
            count >= covered.count(),
            "host {name}: {} was acknowledged, and the next one found {newest}",
            self.acknowledged
        );
        count
    }
}

/// A process that ends with this value.
struct Process(Child);

impl Process {
    fn start(log: &Path, endpoint: &str) -> Process {
        File::create_new(log).expect("a new log");
        let program = std::env::current_exe().expect("this program");
        let child = Command::new(program)
            .args(["--ignored", "--exact", "host"])
            .env(LOG, log)
            .env(ENDPOINT, endpoint)
            .stdout(Stdio::null())
            .spawn();
        Process(child.expect("it can be started"))
    }

    fn signal(&self, signal: &str) {
        let id = self.0.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().expect("kill is there");
        assert!(sent.success(), "it runs");
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("it is ours").is_some()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(3));
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_hosts_are_killed_or_frozen_and_others_take_over() {
    let kills = std::env::var("COULTER_KILLS").map_or(KILLS, |count| count.parse().expect("one"));
    let folder = tempfile::tempdir().expect("a folder");
    let text = "[default]\naws_access_key_id=key\naws_secret_access_key=secret\n";
    fs::write(folder.path().join("credentials"), text).expect("there is room");
    let service = Service::start("bucket", Arc::new(MemoryBucket::new())).expect("a free port");
    let proxy = Proxy::start(service.address(), 1).expect("a free port");
    let faults = [Fault::SlowDown, Fault::ErrorAfter, Fault::Conflict, Fault::Cut, Fault::Lost];
    let rates = faults.map(|fault| (fault, 4)).to_vec();
    proxy.set_conditions(Conditions { rates, ..Conditions::default() });
    let log_of = |number: u64| folder.path().join(format!("host.{number}"));
    let mut random = Random::new(kills);
    let (mut frozen, mut frozen_count, mut early_count) = (Vec::<Process>::new(), 0, 0);
    for number in 0..=kills {
        let log = log_of(number);
        let mut process = Process::start(&log, &proxy.endpoint());
        let is_last = number == kills;
        // Some are lost while they take the volume over. The first makes it, so that there is something to take.
        if number > 0 && !is_last && random.below(6) == 0 {
            std::thread::sleep(Duration::from_millis(random.below(300)));
            early_count += 1;
            continue;
        }
        let enough = if is_last { 1 } else { random.below(30) as usize };
        wait_until("it takes over, and writes", || {
            let life = Life::read(&log);
            assert!(!life.has_ended && !process.has_ended(), "host {number} goes on");
            life.is_open && life.acknowledgements >= enough
        });
        // Those that were frozen meet the fence.
        for mut thawed in frozen.drain(..) {
            thawed.signal("-CONT");
            wait_until("a thawed host ends by itself", || thawed.has_ended());
        }
        if !is_last && random.below(3) == 0 {
            process.signal("-STOP");
            frozen.push(process);
            frozen_count += 1;
        }
    }
    drop(frozen);
    let lives: Vec<(u64, Life)> =
        (0..=kills).map(|number| (number, Life::read(&log_of(number)))).collect();
    // A host that was lost before it went on may have claimed the volume. It has written nothing.
    let opened: Vec<_> = lives.iter().filter(|(_, life)| life.is_open).collect();
    let (mut found, mut acknowledged) = (0, 0);
    for pair in opened.windows(2) {
        let [(number, life), (_, next)] = pair else { unreachable!("windows of two") };
        found += life.assert_goes_on_in(next, *number);
        acknowledged += life.acknowledgements;
    }
    println!(
        "{kills} hosts lost: {frozen_count} frozen, {early_count} while they took over; {} went on; \
        {acknowledged} flushes acknowledged, {found} writes found again, 0 lost",
        opened.len(),
    );
    let bucket = client(&proxy.endpoint(), folder.path());
    let newest: Result<_, ReplicaError> = history::newest(&*bucket, &Stubborn);
    newest.expect("the history is whole");
    let pins = publish::read(&*bucket, "pins", None, &Stubborn).expect("the bucket answers");
    assert!(pins.is_some(), "the pins are there");
}
