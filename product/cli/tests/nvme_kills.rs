//! The NVMe target under load, killed and left by its host, again and again, without a driver: our own initiator
//! writes pages, each with a version, and afterwards every page has to be one whole version, not older than
//! what was promised.
//!
//! - After a kill of the target: not older than what was acknowledged with FUA or before a flush that succeeded.
//! - After the host has hung up in mid-write and come back: no older than what was acknowledged; and once the
//!   host has overwritten a page, nothing that it sent on its former queues may reach that page.

/// It is what docs/nvme.md has a user try.
#[allow(dead_code, reason = "its `main` is for those who run it")]
#[path = "../../../proof/attach-suite/examples/nvme_host.rs"]
mod nvme_host;
mod sandbox;

use coulter::buffer::Buffer;
use coulter::service::{Completion, Operation, Request, Session};
use coulter_attach_suite::initiator::{Initiator, InitiatorOptions};
use coulter_net::Address;
use coulter_workload::Random;
use sandbox::Sandbox;
use std::process::Child;
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;
/// Blocks of a page: pages of 4, 16 and 64 KiB, in turns. The longer ones are asked for, and come in several parts.
const PAGE_BLOCKS: [u64; 3] = [1, 4, 16];
const PAGE_BLOCKS_MAX: u64 = 16;
const PAGES: u64 = 192;
const DEPTH: usize = 24;
/// The tag of flushes; writes have that of their page.
const FLUSH: u64 = u64::MAX;

/// What has been promised of a page.
#[derive(Clone, Copy, Default)]
struct Page {
    /// The number of the last write that was sent.
    sent: u64,
    /// The number of the last write that was acknowledged.
    acknowledged: u64,
    /// The number of the last write that a crash must keep.
    durable: u64,
    is_busy: bool,
}

struct Campaign {
    sandbox: Sandbox,
    target: Child,
    address: Address,
    options: InitiatorOptions,
    random: Random,
    pages: Vec<Page>,
    version: u64,
    writes: u64,
}

fn page_size(page: u64) -> u64 {
    PAGE_BLOCKS[page as usize % PAGE_BLOCKS.len()] * BLOCK
}

fn content(page: u64, version: u64) -> Vec<u8> {
    let words = (0..page_size(page) / 8).map(|at| version ^ (page << 40) ^ (at << 52));
    words.flat_map(u64::to_le_bytes).collect()
}

impl Campaign {
    fn new(seed: u64) -> Campaign {
        let sandbox = Sandbox::new();
        sandbox.ok(&["create", "disk.img", "--size", "128M", "--segment-size", "2M"]);
        let (target, address, name) = serve(&sandbox);
        let options = InitiatorOptions { queue_size: 32, ..InitiatorOptions::new(name, 1) };
        let (random, pages) = (Random::new(seed), vec![Page::default(); PAGES as usize]);
        Campaign { sandbox, target, address, options, random, pages, version: 0, writes: 0 }
    }

    fn connect(&self) -> Initiator {
        Initiator::connect(&self.address, &self.options).expect("the host is let in")
    }

    /// Sends a write of a page that none is under way for; whether there was one.
    fn write_some(&mut self, initiator: &mut Initiator) -> bool {
        let page = self.random.below(PAGES);
        let state = &mut self.pages[page as usize];
        if state.is_busy {
            return false;
        }
        self.version += 1;
        (state.is_busy, state.sent) = (true, self.version);
        let buffer = Buffer::copied_from(&content(page, self.version));
        // One in eight is durable by itself; the version says which.
        let operation = Operation::Write { fua: self.version.is_multiple_of(8) };
        let (offset, length) = (page * PAGE_BLOCKS_MAX * BLOCK, page_size(page));
        initiator.submit(Request { tag: page, operation, offset, length, buffer });
        true
    }

    /// Load for a while, that ends with commands under way.
    fn load(&mut self, initiator: &mut Initiator, time: Duration) {
        let end = Instant::now() + time;
        let mut completions = Vec::new();
        // What a flush that is under way will make durable.
        let mut covered: Option<Vec<u64>> = None;
        while Instant::now() < end {
            while initiator.outstanding() < DEPTH {
                if covered.is_none() && self.random.below(48) == 0 {
                    covered = Some(self.pages.iter().map(|page| page.acknowledged).collect());
                    let buffer = Buffer::empty();
                    let operation = Operation::Flush;
                    initiator.submit(Request {
                        tag: FLUSH,
                        operation,
                        offset: 0,
                        length: 0,
                        buffer,
                    });
                } else {
                    self.write_some(initiator);
                }
            }
            initiator.kick();
            initiator.complete(&mut completions, Some(Duration::from_millis(5)));
            for Completion { tag, result, .. } in completions.drain(..) {
                assert_eq!(result, Ok(()), "nothing fails while the target lives");
                if tag == FLUSH {
                    for (page, version) in self.pages.iter_mut().zip(covered.take().expect("one")) {
                        page.durable = page.durable.max(version);
                    }
                    continue;
                }
                let page = &mut self.pages[tag as usize];
                (page.is_busy, page.acknowledged) = (false, page.sent);
                if page.sent.is_multiple_of(8) {
                    page.durable = page.sent;
                }
                self.writes += 1;
            }
        }
    }

    /// Every page is one whole version, from what `least` says up to what was sent; it is what counts from now on.
    fn verify(&mut self, initiator: &mut Initiator, least: impl Fn(&Page) -> u64) {
        for page in 0..PAGES {
            let (offset, length) = (page * PAGE_BLOCKS_MAX * BLOCK, page_size(page));
            let buffer = Buffer::zeroed(length as usize);
            let operation = Operation::Read;
            initiator.submit(Request { tag: page, operation, offset, length, buffer });
            let mut completions = Vec::new();
            initiator.kick();
            initiator.complete(&mut completions, None);
            let completion = completions.pop().expect("it is answered");
            assert_eq!(completion.result, Ok(()));
            let found = completion.buffer;
            let state = &mut self.pages[page as usize];
            let first = u64::from_le_bytes(*found.first_chunk().expect("it is a page"));
            let version = if first == 0 { 0 } else { first ^ (page << 40) };
            let whole = if first == 0 { vec![0; length as usize] } else { content(page, version) };
            assert!(found[..] == whole[..], "page {page}: torn, or of nobody");
            let range = least(state)..=state.sent;
            assert!(range.contains(&version), "page {page}: version {version}, not of {range:?}");
            *state = Page { sent: version, acknowledged: version, durable: 0, is_busy: false };
        }
        initiator.submit(Request {
            tag: FLUSH,
            operation: Operation::Flush,
            offset: 0,
            length: 0,
            buffer: Buffer::empty(),
        });
        let mut completions = Vec::new();
        initiator.complete(&mut completions, None);
        assert_eq!(completions[0].result, Ok(()));
        self.pages.iter_mut().for_each(|page| page.durable = page.acknowledged);
    }

    /// The target is killed under load, and the host comes back.
    fn kill(&mut self) {
        let mut initiator = self.connect();
        let time = Duration::from_millis(20 + self.random.below(120));
        self.load(&mut initiator, time);
        self.target.kill().expect("it runs");
        self.target.wait().expect("it ends");
        drop(initiator);
        let (target, address, _) = serve(&self.sandbox);
        (self.target, self.address) = (target, address);
        let mut initiator = self.connect();
        self.verify(&mut initiator, |page| page.durable);
    }

    /// The host hangs up in mid-write and comes back at once, and what it writes then stays.
    fn hang_up(&mut self) {
        let mut initiator = self.connect();
        let time = Duration::from_millis(10 + self.random.below(40));
        self.load(&mut initiator, time);
        drop(initiator);
        let mut initiator = self.connect();
        for page in &mut self.pages {
            page.is_busy = false;
        }
        self.rewrite(&mut initiator);
        self.verify(&mut initiator, |page| page.acknowledged);
    }

    /// Overwrites every page, one after the other, each acknowledged.
    fn rewrite(&mut self, initiator: &mut Initiator) {
        let mut completions = Vec::new();
        for page in 0..PAGES {
            self.version += 1;
            let buffer = Buffer::copied_from(&content(page, self.version));
            let operation = Operation::Write { fua: false };
            let (offset, length) = (page * PAGE_BLOCKS_MAX * BLOCK, page_size(page));
            initiator.submit(Request { tag: page, operation, offset, length, buffer });
            initiator.kick();
            initiator.complete(&mut completions, None);
            assert_eq!(completions.pop().expect("it is answered").result, Ok(()));
            let state = &mut self.pages[page as usize];
            (state.sent, state.acknowledged) = (self.version, self.version);
        }
    }
}

impl Drop for Campaign {
    fn drop(&mut self) {
        let _ = self.target.kill();
        let _ = self.target.wait();
    }
}

/// A target, its address, and the name of its subsystem.
fn serve(sandbox: &Sandbox) -> (Child, Address, String) {
    let (target, line) = sandbox.start(&["serve", "disk.img", "--nvme", "tcp:127.0.0.1:0"]);
    let (address, name) = line.trim().split_once('/').expect("an address and a name");
    let address = address.strip_prefix("nvme+").expect("it is of NVMe");
    (target, address.parse().expect("an address"), name.to_owned())
}

fn run(kills: u64, seed: u64) {
    let mut campaign = Campaign::new(seed);
    for round in 0..kills {
        campaign.kill();
        if round.is_multiple_of(2) {
            campaign.hang_up();
        }
    }
    assert!(campaign.writes > kills, "{} writes under {kills} kills", campaign.writes);
    println!("{kills} kills, {} times hung up, {} writes", kills.div_ceil(2), campaign.writes);
    campaign.target.kill().expect("it runs");
    campaign.target.wait().expect("it ends");
    campaign.sandbox.ok(&["check", "disk.img", "--data"]);
}

#[test]
fn the_example_of_a_host_connects_to_what_serve_prints() {
    let key = "DHHC-1:00:sNRJqR6+NG0/ZXUFDeMqonMe+rt/et8u6uSLpsZSzzo1fbl3:";
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("keys"), format!("* {key}\n")).expect("there is room");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(sandbox.path("keys"), mode).expect("it is ours");
    sandbox.ok(&["create", "disk.img", "--store-size", "64M"]);
    for (more, key) in [(&[][..], None), (&["--nvme-keys", "keys"][..], Some(key))] {
        let words = ["serve", "disk.img", "--nvme", "127.0.0.1:0"];
        let (mut target, line) = sandbox.start(&[&words[..], more].concat());
        let read = nvme_host::read_first(&line, key).map_err(|error| error.to_string());
        let stranger = nvme_host::read_first(&line, None).is_ok();
        sandbox::send(target.id(), "TERM");
        assert!(target.wait().expect("it was started").success());
        assert_eq!(read, Ok(()), "{line}");
        assert_eq!(stranger, key.is_none(), "{line}");
    }
}

#[test]
fn nothing_durable_is_lost_and_nothing_stale_is_written() {
    run(4, 1);
}

#[test]
#[ignore = "minutes: `make nvme-kills`"]
fn nothing_durable_is_lost_and_nothing_stale_is_written_in_200_kills() {
    let kills = std::env::var("COULTER_NVME_KILLS").ok().and_then(|text| text.parse().ok());
    run(kills.unwrap_or(200), 2);
}
