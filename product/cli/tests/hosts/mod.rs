//! Hosts of one volume, each with blocks of its own, that know what they must read; and the place where
//! they are told of the device.

use coulter_attach_suite::conformance::{Host, NbdHost, PathHost};
use coulter_attach_suite::nbd_client::Client;
use coulter_net::nbd::{Address, ClientOptions};
use coulter_workload::{BLOCK_SIZE, Content, Origin, Random};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

pub(crate) const HOSTS: u64 = 3;
const BLOCKS_OF_HOST: u64 = 6144;
const BLOCK: u64 = BLOCK_SIZE as u64;
/// Bytes that all hosts need.
pub(crate) const SIZE: u64 = HOSTS * BLOCKS_OF_HOST * BLOCK;
/// Blocks of the longest write.
const WRITE_BLOCKS_MAX: u64 = 64;

/// How hosts reach a volume.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// A file or block device.
    Path(PathBuf),
    /// The socket of an NBD server.
    Nbd(PathBuf),
}

impl Way {
    pub(crate) fn connect(&self) -> io::Result<Box<dyn Host>> {
        match self {
            Way::Path(path) => Ok(Box::new(PathHost::open(path)?)),
            Way::Nbd(path) => {
                let address = Address::Unix(path.clone());
                let client = Client::connect(&address, &ClientOptions::default());
                Ok(Box::new(NbdHost(client.map_err(io::Error::other)?)))
            }
        }
    }

    /// Whether writes arrive in one piece.
    fn keeps_writes_whole(&self) -> bool {
        matches!(self, Way::Nbd(_))
    }
}

/// What may be gone of what was answered and not flushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Loss {
    #[default]
    Nothing,
    /// Discards, back to the last write or zeroing.
    Discards,
    /// The last requests, writes among them.
    Requests,
}

/// What the operator and the hosts share.
#[derive(Default)]
pub(crate) struct Site {
    device: Mutex<Device>,
    changed: Condvar,
    is_over: AtomicBool,
    /// Requests of each host that were answered.
    pub(crate) answered: [AtomicU64; HOSTS as usize],
    /// Requests that were answered and lost again, as they might be.
    pub(crate) lost: AtomicU64,
}

/// The device, as the operator tells of it.
#[derive(Default)]
pub(crate) struct Device {
    /// Counts how often it came.
    number: u64,
    way: Option<Way>,
    /// What of the time before it came may be gone.
    loss: Loss,
}

impl Site {
    fn lock(&self) -> MutexGuard<'_, Device> {
        self.device.lock().expect("nobody panics with it")
    }

    /// How many devices there were.
    pub(crate) fn devices(&self) -> u64 {
        self.lock().number
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// From here on errors are the operator's.
    pub(crate) fn take_away(&self) {
        self.lock().way = None;
    }

    pub(crate) fn give(&self, way: Way, loss: Loss) {
        let mut device = self.lock();
        *device = Device { number: device.number + 1, way: Some(way), loss };
        self.changed.notify_all();
    }

    /// Whether device `number` should be working.
    fn has(&self, number: u64) -> bool {
        let device = self.lock();
        device.number == number && device.way.is_some()
    }

    /// The next device after `number`; none if there will be none.
    fn device_after(&self, number: u64) -> Option<(u64, Way, Loss)> {
        let mut device = self.lock();
        while !self.is_over() {
            if let Some(way) = device.way.as_ref().filter(|_| device.number > number) {
                return Some((device.number, way.clone(), device.loss));
            }
            device = self.changed.wait(device).expect("nobody panics with it");
        }
        None
    }

    pub(crate) fn end(&self) {
        let _device = self.lock();
        self.is_over.store(true, Ordering::SeqCst);
        self.changed.notify_all();
    }
}

/// A request that was not answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    first: u64,
    count: u64,
    /// 0 clears.
    version: u64,
}

impl Pending {
    fn covers(&self, block: u64) -> bool {
        (self.first..self.first + self.count).contains(&block)
    }
}

/// One who writes to blocks of its own.
pub(crate) struct HostThread {
    index: u64,
    random: Random,
    content: Content,
    /// The newest version of each block, 0 for zeros.
    model: Vec<u64>,
    version: u64,
    pending: Option<Pending>,
    /// What the blocks held when all of it was durable, and what was asked for and answered since then.
    durable: Vec<u64>,
    since: Vec<Pending>,
    /// How much of that is durable as well.
    sure: usize,
    /// How much of that the device has been given.
    written: usize,
}

/// Why a host could not go on with a device.
pub(crate) enum Trouble {
    /// The device said so.
    Io(io::Error),
    /// A promise is broken.
    Broken(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Io(error)
    }
}

impl HostThread {
    pub(crate) fn new(index: u64, seed: u64) -> HostThread {
        let random = Random::new(seed ^ (index + 1) << 32);
        let model = vec![0; BLOCKS_OF_HOST as usize];
        let (durable, since, sure) = (model.clone(), Vec::new(), 0);
        let (content, version, pending, written) = (Content::new(7), 0, None, 0);
        HostThread {
            index,
            random,
            content,
            model,
            version,
            pending,
            durable,
            since,
            sure,
            written,
        }
    }

    fn byte(&self, block: u64) -> u64 {
        (self.index * BLOCKS_OF_HOST + block) * BLOCK
    }

    /// Uses one device after the other.
    pub(crate) fn run(mut self, site: &Site) -> Result<HostThread, String> {
        let mut last = 0;
        let mut loss = Loss::Nothing;
        while let Some((number, way, more)) = site.device_after(last) {
            last = number;
            loss = loss.max(more);
            let used = way.connect().map_err(Trouble::Io).and_then(|mut disk| {
                match loss {
                    Loss::Nothing => self.look(disk.as_mut(), way.keeps_writes_whole())?,
                    _ => {
                        let lost = self.look_back(disk.as_mut(), way.keeps_writes_whole(), loss)?;
                        site.lost.fetch_add(lost as u64, Ordering::SeqCst);
                    }
                }
                loss = Loss::Nothing;
                while !site.is_over() {
                    self.ask(disk.as_mut())?;
                    site.answered[self.index as usize].fetch_add(1, Ordering::SeqCst);
                }
                Ok(())
            });
            match used {
                Err(Trouble::Broken(what)) => return Err(what),
                Err(Trouble::Io(error)) if site.has(number) => {
                    return Err(format!("host {}, {way:?}: {error}", self.index));
                }
                _ => {}
            }
        }
        Ok(self)
    }

    /// Reads all of its blocks and compares them.
    pub(crate) fn look(&mut self, disk: &mut dyn Host, is_whole: bool) -> Result<(), Trouble> {
        const PART: u64 = 256;
        let mut is_there = Vec::new();
        let mut bytes = vec![0; (PART * BLOCK) as usize];
        for first in (0..BLOCKS_OF_HOST).step_by(PART as usize) {
            disk.read(self.byte(first), &mut bytes)?;
            for (block, bytes) in (first..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
                let version = self.version_of(block, bytes).map_err(Trouble::Broken)?;
                let known = &mut self.model[block as usize];
                let pending = self.pending.filter(|it| it.covers(block));
                match pending {
                    Some(pending) if version == pending.version => is_there.push(true),
                    Some(_) if version == *known => is_there.push(false),
                    None if version == *known => continue,
                    _ => {
                        let (host, byte) =
                            (self.index, (self.index * BLOCKS_OF_HOST + block) * BLOCK);
                        return Err(Trouble::Broken(format!(
                            "host {host}, byte {byte}: version {version}, not {known}; {pending:?}"
                        )));
                    }
                }
                *known = version;
            }
        }
        let is_torn = is_there.iter().any(|it| *it) && !is_there.iter().all(|it| *it);
        if is_torn && is_whole && self.pending.is_some_and(|pending| pending.version > 0) {
            return Err(Trouble::Broken(format!("{:?} is torn: {is_there:?}", self.pending)));
        }
        self.pending = None;
        self.note_durable();
        Ok(())
    }

    /// All that is there now stays.
    fn note_durable(&mut self) {
        self.durable.copy_from_slice(&self.model);
        self.since.clear();
        (self.sure, self.written) = (0, 0);
    }

    /// Reads all of its blocks: they must be as they were at some moment that `loss` allows. A write that
    /// does not arrive in one piece may be there in part at that moment. How many requests that were
    /// answered are gone, at the least.
    pub(crate) fn look_back(
        &mut self,
        disk: &mut dyn Host,
        is_whole: bool,
        loss: Loss,
    ) -> Result<usize, Trouble> {
        let mut bytes = vec![0; (BLOCKS_OF_HOST * BLOCK) as usize];
        for (part, bytes) in bytes.chunks_mut(256 * BLOCK_SIZE).enumerate() {
            disk.read(self.byte(part as u64 * 256), bytes)?;
        }
        let versions =
            (0..).zip(bytes.chunks_exact(BLOCK_SIZE)).map(|(at, bytes)| self.version_of(at, bytes));
        let found: Vec<u64> = versions.collect::<Result<_, _>>().map_err(Trouble::Broken)?;
        let mut asked = std::mem::take(&mut self.since);
        let answered = asked.len();
        let sure = match loss {
            Loss::Nothing => answered,
            Loss::Discards => self.written,
            Loss::Requests => self.sure,
        };
        asked.extend(self.pending.take());
        let mut state = self.durable.clone();
        let mut fits = None;
        for made in 0..=asked.len() {
            // The one that is next may be there in part.
            let next = asked.get(made).filter(|_| !is_whole || asked[made].version == 0);
            let may_be = |(block, version): (u64, u64)| {
                next.is_some_and(|next| next.covers(block) && next.version == version)
            };
            let differ = (0..).zip(&found).zip(&state).filter(|((_, found), was)| found != was);
            if made >= sure && differ.map(|((block, found), _)| (block, *found)).all(may_be) {
                fits = Some(made);
            }
            if let Some(Pending { first, count, version }) = asked.get(made) {
                state[*first as usize..(first + count) as usize].fill(*version);
            }
        }
        let Some(made) = fits else {
            let differ = found.iter().zip(&state).filter(|(found, last)| found != last).count();
            return Err(Trouble::Broken(format!(
                "host {}: {differ} blocks are older than they were, and never were so together; the first {sure} \
                 of {} requests are sure: {asked:?}",
                self.index,
                asked.len()
            )));
        };
        self.model = found;
        self.note_durable();
        Ok(answered.saturating_sub(made))
    }

    fn version_of(&self, block: u64, bytes: &[u8]) -> Result<u64, String> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(0);
        }
        let block = self.index * BLOCKS_OF_HOST + block;
        let origin = self.content.origin(bytes).filter(|origin| origin.block == block);
        let begin = &bytes[..16];
        origin.map(|origin| origin.version).ok_or_else(|| format!("block {block}: {begin:x?}"))
    }

    /// Asks for one thing and notes the answer.
    fn ask(&mut self, disk: &mut dyn Host) -> Result<(), Trouble> {
        let first = self.random.below(BLOCKS_OF_HOST);
        let most = match self.random.below(8) {
            0 => WRITE_BLOCKS_MAX,
            _ => 4,
        };
        let count = (1 + self.random.below(most)).min(BLOCKS_OF_HOST - first);
        let (at, length) = (self.byte(first), count * BLOCK);
        let kind = self.random.below(40);
        match kind {
            0 => {
                disk.flush()?;
                self.note_durable();
                return Ok(());
            }
            1..4 => return self.compare(disk, first, count),
            _ => {}
        }
        self.version += 1;
        let version = if kind < 7 { 0 } else { self.version };
        let pending = Pending { first, count, version };
        self.pending = Some(pending);
        match kind {
            4..6 => disk.discard(at, length)?,
            6 => disk.write_zeroes(at, length)?,
            _ => {
                let mut bytes = vec![0; length as usize];
                for (block, bytes) in (first..).zip(bytes.chunks_exact_mut(BLOCK_SIZE)) {
                    let block = self.index * BLOCKS_OF_HOST + block;
                    self.content.fill(bytes, Origin { block, version });
                }
                disk.write(at, &bytes, kind == 7)?;
            }
        }
        self.model[first as usize..(first + count) as usize].fill(version);
        self.since.extend(self.pending.take());
        if !(4..6).contains(&kind) {
            self.written = self.since.len();
        }
        if kind == 7 {
            self.sure = self.since.len();
        }
        Ok(())
    }

    fn compare(&self, disk: &mut dyn Host, first: u64, count: u64) -> Result<(), Trouble> {
        let mut bytes = vec![0; (count * BLOCK) as usize];
        disk.read(self.byte(first), &mut bytes)?;
        for (block, bytes) in (first..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
            let version = self.version_of(block, bytes).map_err(Trouble::Broken)?;
            let known = self.model[block as usize];
            if version != known {
                let host = self.index;
                return Err(Trouble::Broken(format!(
                    "host {host}, its block {block}: version {version} was read, {known} written"
                )));
            }
        }
        Ok(())
    }
}

/// A disk in memory that changes what it holds behind the host's back.
struct Liar(Vec<u8>);

impl Host for Liar {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let at = offset as usize;
        out.copy_from_slice(&self.0[at..at + out.len()]);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8], _: bool) -> io::Result<()> {
        let at = offset as usize;
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&mut self, offset: u64, length: u64) -> io::Result<()> {
        self.write(offset, &vec![0; length as usize], false)
    }

    fn write_zeroes(&mut self, offset: u64, length: u64) -> io::Result<()> {
        self.discard(offset, length)
    }
}

type Lie<'a> = &'a dyn Fn(&mut [u8]);

#[test]
fn hosts_notice_every_lie() {
    let mut host = HostThread::new(1, 5);
    let mut disk = Liar(vec![0; (HOSTS * BLOCKS_OF_HOST * BLOCK) as usize]);
    for _ in 0..2000 {
        assert!(host.ask(&mut disk).is_ok());
    }
    let is_noticed = |host: &mut HostThread, disk: &mut Liar| {
        let noticed = host.look(disk, true).is_err();
        host.pending = None;
        noticed
    };
    assert!(!is_noticed(&mut host, &mut disk), "there is nothing yet");
    let written =
        host.model.windows(2).position(|two| two[0] > 0 && two[1] > 0 && two[0] != two[1]);
    let block = written.expect("much was written") as u64;
    let (at, whole) = (host.byte(block) as usize, disk.0.clone());
    let next = at + BLOCK_SIZE;
    // Lost, rotten, another block's, an older one.
    let lies: [Lie<'_>; 4] = [
        &|bytes| bytes[at..next].fill(0),
        &|bytes| bytes[at + 2000] ^= 1,
        &|bytes| bytes.copy_within(next..next + BLOCK_SIZE, at),
        &|bytes| {
            let origin = Origin { block: at as u64 / BLOCK, version: 1_000_000 };
            Content::new(7).fill(&mut bytes[at..next], origin);
        },
    ];
    for (number, lie) in lies.iter().enumerate() {
        disk.0.clone_from(&whole);
        lie(&mut disk.0);
        assert!(is_noticed(&mut host, &mut disk), "lie {number}");
    }
    // What was under way may be there or not, but not by halves.
    disk.0.clone_from(&whole);
    let pending = Some(Pending { first: block, count: 2, version: host.version + 1 });
    let origin = Origin { block: at as u64 / BLOCK, version: host.version + 1 };
    host.pending = pending;
    assert!(!is_noticed(&mut host, &mut disk));
    Content::new(7).fill(&mut disk.0[at..next], origin);
    host.pending = pending;
    assert!(is_noticed(&mut host, &mut disk), "a torn write");
}

#[test]
fn hosts_know_every_moment_since_all_was_durable_and_no_other() {
    let mut host = HostThread::new(0, 6);
    let mut disk = Liar(vec![0; (HOSTS * BLOCKS_OF_HOST * BLOCK) as usize]);
    let mut moments = Vec::new();
    while moments.len() < 12 {
        let before = host.since.len();
        assert!(host.ask(&mut disk).is_ok());
        match host.since.len() {
            0 => moments.clear(),
            now if now > before => moments.push(disk.0.clone()),
            _ => {}
        }
    }
    // As though the last two had been discards.
    let (since, sure, written) = (host.since.clone(), host.sure, 10);
    assert!(sure < 6, "the series has a moment to lose");
    let (durable, last) = (host.durable.clone(), host.model.clone());
    let mut fits_loss = |bytes: &[u8], is_whole, loss| {
        (host.since, host.sure, host.written) = (since.clone(), sure, written);
        (host.durable, host.model) = (durable.clone(), last.clone());
        disk.0.copy_from_slice(bytes);
        host.look_back(&mut disk, is_whole, loss).is_ok()
    };
    for (loss, least) in [(Loss::Nothing, 12), (Loss::Discards, written), (Loss::Requests, sure)] {
        for (moment, bytes) in moments.iter().enumerate() {
            let fits = fits_loss(bytes, true, loss);
            assert_eq!(fits, moment + 1 >= least, "moment {moment}, {loss:?}, {least}");
        }
    }
    let mut fits = |bytes: &[u8], is_whole| fits_loss(bytes, is_whole, Loss::Requests);
    // The last write but one is not there, and the last one is.
    let undo = |of: &Pending, from: &[u8], bytes: &mut [u8]| {
        let range = (of.first * BLOCK) as usize..((of.first + of.count) * BLOCK) as usize;
        bytes[range.clone()].copy_from_slice(&from[range]);
    };
    let mut gap = moments[11].clone();
    undo(&since[10], &moments[9], &mut gap);
    assert!(gap != moments[11] && !fits(&gap, false));
    // Half of a write.
    let long = (sure.max(1)..12).find(|at| since[*at].count > 1 && since[*at].version > 0);
    let long = long.expect("one is longer than a block");
    let mut half = moments[long].clone();
    undo(&Pending { count: 1, ..since[long] }, &moments[long - 1], &mut half);
    assert!(fits(&half, false));
    assert!(!fits(&half, true));
}
