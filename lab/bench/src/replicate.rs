//! A store that is shipped to a service of objects, against the same store alone.
//!
//! The service runs on this machine and keeps objects in memory; a proxy before it delays requests and limits
//! each connection, as a network does ([`Distance`]). Client, service and proxy take processor time of the same
//! machine as the volume, so what shipping costs here is more than beside a service elsewhere.
//!
//! | figure | load |
//! |---|---|
//! | `local_*` | 4 KiB random writes at queue depth 32, `--ack local`, in turns with the store alone |
//! | `fsync_*` | one write and a flush, over and over, `--ack remote`; by one client, and by 64 at once |
//! | `shipped_per_written_*` | bytes of objects sent, to bytes written to the device |
//! | `rpo_p99_seconds` | how long the oldest write that is in no commit has waited, at 50 MiB/s |
//! | `snapshot_seconds` | a snapshot, while that load goes on |
//! | `restore_*` | the volume brought back into a file, in turns with GETs of the same objects |

mod discarding;
mod remote;
pub mod rival;

use crate::backing::{ScratchFile, place};
use crate::error::BenchError;
use crate::figures::{Figures, bytes, rate};
use crate::limits::Limits;
use crate::progress::Progress;
use crate::side::{self, Access, Data, Limit, Load, Versions, VolumeSide};
use crate::timing::median;
use coulter::{CreateOptions, OpenOptions, Volume, create};
use coulter_object::bucket::{Cause, Usage};
use coulter_object::history::{self, restore, snapshot};
use coulter_object::publish::Briefly;
use coulter_object::ship::device::Opening;
use coulter_object::ship::marks::Marks;
use coulter_object::{Ack, Bucket, Replica, ReplicaError, Settings, ShippedDevice, publish};
use coulter_workload::{Addresses, BLOCK_SIZE, Content, Pattern, Random};
use discarding::DiscardingBucket;
use remote::Remote;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Rounds of which the median counts.
const ROUNDS: usize = 5;

/// Requests at once.
const DEPTH: usize = 32;

/// Clients that flush at once.
const CLIENTS: usize = 64;

/// Bytes a second while the recovery point is measured.
const PACE: u64 = 50 << 20;

/// Bytes of a write of that load.
const PACED_SIZE: usize = 64 << 10;

/// GETs at once while a volume is brought back.
const GETS: usize = 8;

/// How far away the service is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distance {
    /// Time before the answer to a GET.
    pub get_latency: Duration,
    /// Time before the answer to anything else.
    pub put_latency: Duration,
    /// Bytes per second of each connection; no limit without it.
    pub bandwidth: Option<u64>,
}

impl Distance {
    /// S3 from a machine in its region: 60 ms for a GET, 100 ms for a PUT, 200 MB/s for a connection.
    pub const REGION: Distance = Distance {
        get_latency: Duration::from_millis(60),
        put_latency: Duration::from_millis(100),
        bandwidth: Some(200_000_000),
    };
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// A directory for the files, or the first part of their names; `None` for the directory for
    /// temporary files. They are gone afterwards.
    pub backing: Option<PathBuf>,
    /// Bytes of the volume.
    pub size: u64,
    /// Seconds of each load, over all rounds.
    pub seconds: f64,
    /// How far away the service is.
    pub distance: Distance,
    /// What the device may do at most, on both sides.
    pub limits: Option<Limits>,
    /// Told how far it is.
    pub progress: Progress,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            backing: None,
            size: 512 << 20,
            seconds: 10.0,
            distance: Distance::REGION,
            limits: None,
            progress: Progress::default(),
        }
    }
}

/// What was measured. Ratios are medians of the rounds' ratios.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Random writes per second of the store alone.
    pub alone_random_write_iops: f64,
    /// The same while it is shipped with `--ack local`.
    pub local_random_write_iops: f64,
    /// Shipped to alone.
    pub local_ratio: f64,
    /// 99 % of the store's writes alone took no longer, in milliseconds.
    pub alone_p99_ms: f64,
    /// The same while it is shipped.
    pub local_p99_ms: f64,
    /// Shipped to alone.
    pub local_p99_ratio: f64,
    /// The same two ratios where what is shipped is thrown away in this process, after as long as a service takes: what
    /// shipping costs without the work of a client and a service on the same processors.
    pub discarded_ratio: f64,
    /// See `discarded_ratio`.
    pub discarded_p99_ratio: f64,
    /// A PUT of a commit's size, in milliseconds.
    pub commit_put_ms: f64,
    /// A write and a flush by one client with `--ack remote`, the mean, in milliseconds.
    pub fsync_ms: f64,
    /// What that takes beyond the PUT, in milliseconds.
    pub fsync_beyond_put_ms: f64,
    /// Flushes per second of one client.
    pub fsyncs_per_second: f64,
    /// Flushes per second of 64 clients at once.
    pub fsyncs_per_second_64: f64,
    /// 64 clients to one.
    pub fsync_64_ratio: f64,
    /// Bytes sent to bytes written to the device, sequential writes.
    pub shipped_per_written_streaming: f64,
    /// Bytes sent to bytes written to the device, a flush after each 4 KiB.
    pub shipped_per_written_fsync: f64,
    /// PUTs per GiB written to the device, commits not counted, sequential writes.
    pub puts_per_gib: f64,
    /// Commits meanwhile.
    pub streaming_commits: u64,
    /// Lists of names, over the whole benchmark.
    pub lists: u64,
    /// 99 % of the time nothing had waited for longer to be in a commit, in seconds, at 50 MiB/s.
    pub rpo_p99_seconds: f64,
    /// Bytes per second that were really written meanwhile.
    pub rpo_bytes_per_second: f64,
    /// A snapshot meanwhile, in seconds.
    pub snapshot_seconds: f64,
    /// Bytes that were brought back.
    pub restored_bytes: u64,
    /// Bytes per second into a file.
    pub restore_bytes_per_second: f64,
    /// Restoring to GETs of the same objects, as many at once.
    pub restore_ratio: f64,
}

impl Report {
    /// The figures as text.
    pub fn table(&self) -> String {
        let ms = |value: f64| format!("{value:.2} ms");
        let mut table = Figures::default();
        table
            .row("random writes, shipped", rate(self.local_random_write_iops), {
                format!("{:.2} of {} alone", self.local_ratio, rate(self.alone_random_write_iops))
            })
            .row("  99 % at most", ms(self.local_p99_ms), {
                format!("{:.2} of {} alone", self.local_p99_ratio, ms(self.alone_p99_ms))
            })
            .row("  thrown away instead", format!("{:.2} of alone", self.discarded_ratio), {
                format!("99 %: {:.2} of alone", self.discarded_p99_ratio)
            })
            .row("write and flush, --ack remote", ms(self.fsync_ms), {
                format!("{} beyond a PUT", ms(self.fsync_beyond_put_ms))
            })
            .row("  64 clients", rate(self.fsyncs_per_second_64), {
                format!("{:.1} of {} of one", self.fsync_64_ratio, rate(self.fsyncs_per_second))
            })
            .row(
                "sent to written, streaming",
                format!("{:.3}", self.shipped_per_written_streaming),
                {
                    format!(
                        "{:.0} PUTs a GiB beside {} commits",
                        self.puts_per_gib, self.streaming_commits
                    )
                },
            )
            .row("  a flush after each 4 KiB", format!("{:.2}", self.shipped_per_written_fsync), {
                format!("{} lists in all", self.lists)
            })
            .row("recovery point, 99 %", format!("{:.2} s", self.rpo_p99_seconds), {
                format!("at {} a second", bytes(self.rpo_bytes_per_second as u64))
            })
            .row("snapshot meanwhile", format!("{:.3} s", self.snapshot_seconds), "")
            .row("restored", format!("{}/s", bytes(self.restore_bytes_per_second as u64)), {
                format!("{:.2} of GETs of the same objects", self.restore_ratio)
            });
        table.text()
    }
}

/// Measures.
///
/// # Errors
/// When a file cannot be made, or something that is measured fails.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    Limits::check(options.limits)?;
    if options.size < 64 << 20 || !options.size.is_multiple_of(1 << 20) {
        return Err(BenchError::option(
            "a volume of 64 MiB and more, in whole mebibytes, is shipped",
        ));
    }
    let remote = Remote::start(options.distance)?;
    let commit_put = remote.put_seconds()?;
    let local = writes(options, &remote)?;
    let fsync = fsyncs(options)?;
    options.progress.report("streaming, then paced", 0.7);
    let streaming = stream(options)?;
    let progress = &options.progress;
    progress.report("restoring", 0.9);
    let restored = bring_back(&remote)?;
    let per = |usage: &Sent| usage.sent as f64 / usage.written.max(1) as f64;
    let lists = remote.meter.total().lists + fsync.lists + streaming.sent.lists;
    let fsync_seconds = 1.0 / fsync.one;
    Ok(Report {
        alone_random_write_iops: local.alone,
        local_random_write_iops: local.shipped,
        local_ratio: local.ratio,
        alone_p99_ms: local.alone_p99 * 1e3,
        local_p99_ms: local.shipped_p99 * 1e3,
        local_p99_ratio: local.p99_ratio,
        discarded_ratio: local.discarded_ratio,
        discarded_p99_ratio: local.discarded_p99_ratio,
        commit_put_ms: commit_put * 1e3,
        fsync_ms: fsync_seconds * 1e3,
        fsync_beyond_put_ms: (fsync_seconds - commit_put) * 1e3,
        fsyncs_per_second: fsync.one,
        fsyncs_per_second_64: fsync.many,
        fsync_64_ratio: fsync.many / fsync.one,
        shipped_per_written_streaming: per(&streaming.sent),
        shipped_per_written_fsync: per(&fsync.sent),
        puts_per_gib: streaming.sent.puts as f64 * f64::from(1 << 30)
            / streaming.sent.written.max(1) as f64,
        streaming_commits: streaming.sent.commits,
        lists,
        rpo_p99_seconds: streaming.lag_p99,
        rpo_bytes_per_second: streaming.pace,
        snapshot_seconds: streaming.snapshot,
        restored_bytes: restored.bytes,
        restore_bytes_per_second: restored.per_second,
        restore_ratio: restored.ratio,
    })
}

/// A volume in a file of its own, shipped or not.
struct Stored {
    volume: VolumeSide,
    replica: Option<Replica>,
    /// Last, so that it goes when nothing uses it any more.
    _file: ScratchFile,
}

impl Stored {
    fn new(
        options: &Options,
        name: &str,
        shipped: Option<(&Arc<dyn Bucket>, Ack)>,
    ) -> Result<Stored, BenchError> {
        let create_options = CreateOptions {
            volume_size: Some(options.size),
            spare_percent: 100,
            ..CreateOptions::default()
        };
        let store_size = options.size * 5 / 2 + (64 << 20);
        let path = place(options.backing.as_deref(), name)?;
        let told = |share| options.progress.report("writing the store's file", share);
        let file = ScratchFile::new(&path, store_size, told)?;
        create(file.open()?, &create_options).map_err(BenchError::Create)?;
        let mut device = Limits::hold_back(options.limits, file.open()?);
        let mut replica = None;
        if let Some((bucket, ack)) = shipped {
            let opening = Opening {
                bucket: bucket.clone(),
                settings: Settings { ack, ..Settings::DEFAULT },
                marks: Marks::in_memory(),
                store: *b"bench replicate ",
                owner: "bench".to_owned(),
                content: std::iter::once(0..store_size).collect(),
                reseed: false,
                has_ended: |_| true,
            };
            let (shipped, handle) =
                ShippedDevice::open(device, opening).map_err(BenchError::Replica)?;
            (device, replica) = (Box::new(shipped), Some(handle));
        }
        let open_options = OpenOptions { trim: true, ..OpenOptions::default() };
        let volume = Volume::open(device, open_options).map_err(BenchError::Open)?;
        let stored = Stored { volume: VolumeSide::new(volume, DEPTH), replica, _file: file };
        stored.wait_until_shipped();
        Ok(stored)
    }

    fn replica(&self) -> &Replica {
        self.replica.as_ref().expect("it is shipped")
    }

    /// Nothing that was measured before goes on beside what is measured next.
    fn wait_until_shipped(&self) {
        let Some(replica) = &self.replica else { return };
        replica.commit();
        while !replica.status().is_idle {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

struct Writes {
    alone: f64,
    shipped: f64,
    ratio: f64,
    alone_p99: f64,
    shipped_p99: f64,
    p99_ratio: f64,
    discarded_ratio: f64,
    discarded_p99_ratio: f64,
}

/// Random writes of a store that is shipped, and of one that is not, in turns.
fn writes(options: &Options, remote: &Remote) -> Result<Writes, BenchError> {
    let mut alone = Stored::new(options, "alone", None)?;
    let mut shipped = Stored::new(options, "shipped", Some((&remote.bucket, Ack::Local)))?;
    let nowhere: Arc<dyn Bucket> = Arc::new(DiscardingBucket::new(options.distance));
    let mut discarded = Stored::new(options, "discarded", Some((&nowhere, Ack::Local)))?;
    let content = Content::new(1);
    let blocks = options.size / BLOCK_SIZE as u64;
    let time = Duration::from_secs_f64(options.seconds / ROUNDS as f64);
    let load = Load {
        access: Access::Write,
        count: 1,
        depth: DEPTH,
        limit: Limit::Time(time),
        data: Data::Stamped,
    };
    let measure = |stored: &mut Stored, round: usize| {
        let mut addresses = Pattern::Uniform.over(blocks, round as u64 + 1);
        let (mut versions, mut times) = (Versions::new(blocks), Vec::new());
        let took = |time: Duration| times.push(time);
        let outcome = side::run_watched(
            &mut stored.volume,
            &load,
            &mut addresses,
            &mut versions,
            &content,
            took,
        )?;
        stored.wait_until_shipped();
        Ok::<_, BenchError>((outcome.per_second(), quantile(&mut times, 0.99).as_secs_f64()))
    };
    let (mut rates, mut p99s) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        options.progress.report("random writes, in turns", 0.4 * round as f64 / ROUNDS as f64);
        let (alone_rate, alone_p99) = measure(&mut alone, round)?;
        let (shipped_rate, shipped_p99) = measure(&mut shipped, round)?;
        let (discarded_rate, discarded_p99) = measure(&mut discarded, round)?;
        rates.push((alone_rate, shipped_rate, discarded_rate));
        p99s.push((alone_p99, shipped_p99, discarded_p99));
    }
    alone.volume.close()?;
    shipped.volume.close()?;
    discarded.volume.close()?;
    type Turn = (f64, f64, f64);
    let middle =
        |turns: &[Turn], of: fn(&Turn) -> f64| median(&turns.iter().map(of).collect::<Vec<_>>());
    Ok(Writes {
        alone: middle(&rates, |turn| turn.0),
        shipped: middle(&rates, |turn| turn.1),
        ratio: middle(&rates, |turn| turn.1 / turn.0),
        alone_p99: middle(&p99s, |turn| turn.0),
        shipped_p99: middle(&p99s, |turn| turn.1),
        p99_ratio: middle(&p99s, |turn| turn.1 / turn.0),
        discarded_ratio: middle(&rates, |turn| turn.2 / turn.0),
        discarded_p99_ratio: middle(&p99s, |turn| turn.2 / turn.0),
    })
}

/// What was sent for what was written.
struct Sent {
    sent: u64,
    written: u64,
    /// Commits not counted.
    puts: u64,
    commits: u64,
    lists: u64,
}

/// Counters of a bucket and of its volume at one moment.
struct Reading {
    total: Usage,
    commit_puts: u64,
    written: u64,
}

impl Reading {
    fn of(remote: &Remote, stored: &Stored) -> Reading {
        Reading {
            total: remote.meter.total(),
            commit_puts: remote.meter.of(Cause::Commits).puts,
            written: stored.replica().status().counts.written_bytes,
        }
    }

    fn since(&self, earlier: &Reading) -> Sent {
        let used = self.total - earlier.total;
        let commits = self.commit_puts - earlier.commit_puts;
        Sent {
            sent: used.sent_bytes,
            written: self.written - earlier.written,
            puts: used.puts - commits,
            commits,
            lists: self.total.lists,
        }
    }
}

struct Fsyncs {
    one: f64,
    many: f64,
    sent: Sent,
    lists: u64,
}

/// A write and a flush, over and over, by one client and by many.
fn fsyncs(options: &Options) -> Result<Fsyncs, BenchError> {
    let remote = Remote::start(options.distance)?;
    let stored = Stored::new(options, "fsync", Some((&remote.bucket, Ack::Remote)))?;
    // The first write after an opening waits for the commit of what the opening wrote.
    let volume = stored.volume.volume();
    volume.write_at(0, &[1; BLOCK_SIZE]).map_err(BenchError::Request)?;
    volume.flush().map_err(BenchError::Request)?;
    stored.wait_until_shipped();
    let before = Reading::of(&remote, &stored);
    options.progress.report("flushes by one client", 0.5);
    let one = flush_rate(options, &stored, 1)?;
    stored.wait_until_shipped();
    let sent = Reading::of(&remote, &stored).since(&before);
    options.progress.report("flushes by 64 clients", 0.6);
    let many = flush_rate(options, &stored, CLIENTS)?;
    let lists = remote.meter.total().lists;
    stored.volume.close()?;
    Ok(Fsyncs { one, many, sent, lists })
}

/// Pairs of a write and a flush per second, by `clients` clients. Each waits for its own request.
fn flush_rate(options: &Options, stored: &Stored, clients: usize) -> Result<f64, BenchError> {
    let blocks = options.size / BLOCK_SIZE as u64;
    let volume = stored.volume.volume();
    paced_by(options, clients, |number, random| {
        let offset = random.below(blocks) * BLOCK_SIZE as u64;
        volume.write_at(offset, &[number as u8; BLOCK_SIZE]).map_err(BenchError::Request)?;
        volume.flush().map_err(BenchError::Request)
    })
}

/// Acts per second of `clients` clients that do one after the other, for half of the time.
fn paced_by(
    options: &Options,
    clients: usize,
    act: impl Fn(usize, &mut Random) -> Result<(), BenchError> + Sync,
) -> Result<f64, BenchError> {
    let count = AtomicUsize::new(0);
    let start = Instant::now();
    let until = start + Duration::from_secs_f64(options.seconds / 2.0);
    let client = |number: usize| -> Result<(), BenchError> {
        let mut random = Random::new(number as u64 + 1);
        while Instant::now() < until {
            act(number, &mut random)?;
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let ended: Vec<_> = std::thread::scope(|scope| {
        let client = &client;
        let threads: Vec<_> =
            (0..clients).map(|number| scope.spawn(move || client(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a client panics never")).collect()
    });
    ended.into_iter().collect::<Result<(), BenchError>>()?;
    Ok(count.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64())
}

struct Streamed {
    sent: Sent,
    lag_p99: f64,
    pace: f64,
    snapshot: f64,
}

/// Sequential writes as fast as they are taken; then paced ones, with a snapshot amid.
fn stream(options: &Options) -> Result<Streamed, BenchError> {
    let remote = Remote::start(options.distance)?;
    let mut stored = Stored::new(options, "stream", Some((&remote.bucket, Ack::Local)))?;
    let before = Reading::of(&remote, &stored);
    let mut versions = Versions::new(options.size / BLOCK_SIZE as u64);
    side::write_all(&mut stored.volume, &mut versions, &Content::new(2), |_| ())?;
    stored.wait_until_shipped();
    let sent = Reading::of(&remote, &stored).since(&before);

    let (replica, is_over) = (stored.replica(), AtomicBool::new(false));
    let volume = stored.volume.volume();
    let (lags, snapshot, pace) = std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut lags = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                lags.push(replica.status().lag.time);
                std::thread::sleep(Duration::from_millis(5));
            }
            lags
        });
        let keeping = scope.spawn(|| {
            std::thread::sleep(Duration::from_secs_f64(options.seconds / 2.0));
            let start = Instant::now();
            let kept = snapshot::create(&*remote.bucket, "amid", 0, &Briefly);
            kept.map(|_| start.elapsed().as_secs_f64()).map_err(BenchError::Replica)
        });
        let pace = write_paced(options, volume);
        is_over.store(true, Ordering::Relaxed);
        let lags = looking.join().expect("it only looks");
        (lags, keeping.join().expect("it only keeps"), pace)
    });
    let mut lags = lags;
    let lag_p99 = quantile(&mut lags, 0.99).as_secs_f64();
    let (snapshot, pace) = (snapshot?, pace?);
    stored.volume.close()?;
    Ok(Streamed { sent, lag_p99, pace, snapshot })
}

/// Writes at [`PACE`] for a while. Returns the bytes per second that it came to.
fn write_paced(options: &Options, volume: &Volume) -> Result<f64, BenchError> {
    let places = options.size / PACED_SIZE as u64;
    let mut addresses: Addresses = Pattern::Uniform.over(places, 3);
    let mut bytes = vec![0; PACED_SIZE];
    Random::new(3).fill(&mut bytes);
    let start = Instant::now();
    let mut written = 0;
    while start.elapsed().as_secs_f64() < options.seconds {
        let due = Duration::from_secs_f64(written as f64 / PACE as f64);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
        let offset = addresses.address() * PACED_SIZE as u64;
        volume.write_at(offset, &bytes).map_err(BenchError::Request)?;
        written += PACED_SIZE as u64;
    }
    Ok(written as f64 / start.elapsed().as_secs_f64())
}

struct Restored {
    bytes: u64,
    per_second: f64,
    ratio: f64,
}

/// Restores the volume of the random writes into a file, in turns with GETs of the same objects.
fn bring_back(remote: &Remote) -> Result<Restored, BenchError> {
    let failed = |source| BenchError::System { doing: "making a file to restore to", source };
    let (record, history) =
        history::newest(&*remote.bucket, &Briefly).map_err(BenchError::Replica)?;
    let sources: BTreeSet<_> = history.pieces.sources().collect();
    let sources: Vec<_> = sources.into_iter().collect();
    let size = history.pieces.iter().map(|(_, piece)| u64::from(piece.length)).sum::<u64>();
    let mut ratios = Vec::new();
    let mut rates = Vec::new();
    for _ in 0..3 {
        let file = tempfile::tempfile().map_err(failed)?;
        file.set_len(record.device_size).map_err(failed)?;
        let start = Instant::now();
        restore::restore(
            &*remote.bucket,
            record.volume,
            &history.pieces,
            &file,
            GETS,
            &Briefly,
            &|_| (),
        )
        .map_err(BenchError::Replica)?;
        let restoring = start.elapsed().as_secs_f64();
        let (next, start) = (AtomicUsize::new(0), Instant::now());
        let got: Result<(), ReplicaError> = std::thread::scope(|scope| {
            let get = || {
                while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
                    publish::read(&*remote.bucket, &source.name(), None, &Briefly)?;
                }
                Ok(())
            };
            let threads: Vec<_> = (0..GETS).map(|_| scope.spawn(get)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("it only reads"))
        });
        got.map_err(BenchError::Replica)?;
        ratios.push(start.elapsed().as_secs_f64() / restoring);
        rates.push(size as f64 / restoring);
    }
    Ok(Restored { bytes: size, per_second: median(&rates), ratio: median(&ratios) })
}

/// The value that this share of all does not exceed.
fn quantile(times: &mut [Duration], share: f64) -> Duration {
    times.sort_unstable();
    let index = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
    times.get(index).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_next_door_gives_every_figure() {
        let report = run(&Options {
            size: 64 << 20,
            seconds: 0.5,
            distance: Distance::default(),
            ..Options::default()
        });
        let report = report.expect("nothing fails");
        assert!(report.alone_random_write_iops > 0.0 && report.local_ratio > 0.0, "{report:?}");
        assert!(report.fsyncs_per_second > 0.0 && report.commit_put_ms > 0.0, "{report:?}");
        let streaming = report.shipped_per_written_streaming;
        assert!((0.9..1.5).contains(&streaming), "each byte is sent about once: {report:?}");
        assert!(report.puts_per_gib > 0.0 && report.streaming_commits > 0, "{report:?}");
        assert!(report.lists <= 1, "only what killed hosts have left: {report:?}");
        assert!(report.restored_bytes >= 64 << 20 && report.restore_ratio > 0.0, "{report:?}");
        assert!(report.table().contains("--ack remote"));
    }

    #[test]
    fn volumes_that_are_too_small_are_refused() {
        for size in [0, 1 << 20, (64 << 20) + 1] {
            let refused = run(&Options { size, ..Options::default() });
            assert!(matches!(refused, Err(BenchError::Option { .. })), "{size}");
        }
    }
}
