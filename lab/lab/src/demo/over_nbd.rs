//! The demonstration without root: a volume over NBD against a plain file, no file system.

use super::blocks::Blocks;
use super::figures::{Figures, HeldBack};
use super::held_back;
use super::plan::{self, Plan, Which, announce, failed};
use super::scratch::Scratch;
use crate::error::LabError;
use coulter::service::{BLOCK_SIZE, BlockService, Session};
use coulter_attach_suite::nbd_client::Client;
use coulter_bench::BareSession;
use coulter_cli::output::Output;
use coulter_cli::store;
use coulter_cli::via::ViaChoice;
use coulter_daemon::detach::detach;
use coulter_daemon::points::NbdServer;
use coulter_daemon::state::Entry;
use coulter_net::nbd::{Address, ClientOptions, Export, Server, ServerOptions};
use rustix::process::Signal;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the load runs before the daemon is killed.
const LOAD: Duration = Duration::from_millis(2500);

/// How long a killed process may take to be gone.
const LET_GO: Duration = Duration::from_secs(20);

/// Runs it from start to end.
///
/// # Errors
/// Whatever one of its steps cannot do; figures that are bad are no error here.
pub(crate) fn run(
    plan: &Plan,
    mut scratch: Scratch,
    picture: &Output,
) -> Result<Figures, LabError> {
    let (scratch, interrupt) = (&mut scratch, &plan.interrupt);
    announce("two files of equal size: one through Coulter over NBD, one without it");
    let store = plan.make_store(scratch)?;
    let entry = plan::attach(scratch, &store, ViaChoice::Kind(&NbdServer))?;
    let mut volume = plan::connect(scratch.state(), &entry)?;
    let plain_path = scratch.path("plain.img");
    let mut plain = plain_file(&plain_path, entry.volume_size_bytes)?;
    let count = plan.size / BLOCK_SIZE;
    for (session, seed) in [(&mut plain as &mut dyn Session, 4), (&mut volume, 3)] {
        Blocks::new(count, seed).fill(session, interrupt)?;
    }
    drop((volume, plain));
    detach(scratch.state(), &entry, false)?;
    let held_back = held_back(plan, scratch, &store, &plain_path)?;

    announce("the disk as it is");
    let entry = plan::attach(scratch, &store, ViaChoice::Kind(&NbdServer))?;
    let mut volume = plan::connect(scratch.state(), &entry)?;
    let mut plain = bare(&plain_path)?;
    let (mut ours, mut theirs) = (Blocks::new(count, 1), Blocks::new(count, 2));
    theirs.fill(&mut plain, interrupt)?;
    ours.fill(&mut volume, interrupt)?;
    announce("4 KiB random writes on either side, in turns");
    plan::start_trace(scratch, &entry)?;
    let speed = plan.take_turns(plan.turns, |which| {
        let load = match which {
            Which::Plain => theirs.overwrite(&mut plain, interrupt, plan.turn),
            Which::Coulter => ours.overwrite(&mut volume, interrupt, plan.turn),
        };
        Ok(load?.iops())
    })?;
    drop(plain);
    let trace = plan::take_trace(scratch, &entry)?;
    let write_amplification = plan::status(scratch, &entry)?.write_amplification;

    announce("every block read back and compared");
    let before = ours.compare(&mut volume, interrupt, false)?;

    announce("writes and flushes under load, and the daemon killed");
    let flushed_before = ours.durable();
    crash_under_load(plan, &mut ours, volume, &entry)?;
    let begin = Instant::now();
    let entry = plan::attach(scratch, &store, ViaChoice::Kind(&NbdServer))?;
    let mut volume = plan::connect(scratch.state(), &entry)?;
    let seconds_to_recover = begin.elapsed().as_secs_f64();

    announce("every block read back and compared again");
    let after = ours.compare(&mut volume, interrupt, true)?;
    drop(volume);
    detach(scratch.state(), &entry, false)?;
    let sound = plan::is_sound(&store)?;

    let setting = "4 KiB random writes, queue depth 32, over NBD";
    plan.draw(&trace, &entry, setting, "plain file", (&held_back.speed, &speed), picture)?;
    let durable_before_crash = (ours.durable() - flushed_before) as u64;
    let lost = ours.durable().saturating_sub(after.prefix) as u64;
    Ok(Figures {
        mode: "nbd",
        baseline: "plain file",
        size_bytes: plan.size,
        speed,
        held_back,
        write_amplification,
        verified_bytes: before.bytes + after.bytes,
        mismatches: before.mismatches + after.mismatches,
        durable_before_crash,
        durable_after_crash: durable_before_crash.saturating_sub(lost),
        seconds_to_recover,
        file_system_clean: None,
        store_sound: sound,
        recovered: sound && lost == 0 && after.mismatches == 0 && durable_before_crash > 0,
        picture: picture.path().to_owned(),
    })
}

/// Kills the daemon in the middle of writes and flushes.
fn crash_under_load(
    plan: &Plan,
    blocks: &mut Blocks,
    mut volume: Client,
    entry: &Entry,
) -> Result<(), LabError> {
    let process = entry.process;
    blocks.overwrite_until_crash(&mut volume, &plan.interrupt, LOAD, &mut || {
        let killed = process.signal(Signal::KILL);
        killed.map_err(|error| failed("killing the daemon", error.to_string()))
    })?;
    if process.wait_for_end(LET_GO) {
        return Ok(());
    }
    Err(failed("killing the daemon", "it does not end"))
}

/// A file of `size` bytes, past the page cache.
fn plain_file(path: &Path, size: u64) -> Result<BareSession, LabError> {
    let file = File::create_new(path).map_err(|e| LabError::io("make", path, e))?;
    file.set_len(size).map_err(|e| LabError::io("make", path, e))?;
    bare(path)
}

/// The file at `path`, past the page cache.
fn bare(path: &Path) -> Result<BareSession, LabError> {
    let session = BareSession::new(store::open_device(path, false)?);
    session.map_err(|source| LabError::io("wait for", path, source))
}

/// The turns on devices that are held back.
fn held_back(
    plan: &Plan,
    scratch: &Scratch,
    store: &Path,
    plain: &Path,
) -> Result<HeldBack, LabError> {
    held_back::announce_it();
    let volume = Arc::new(held_back::volume(store)?);
    let address = Address::Unix(scratch.path("held-back.nbd"));
    let exports = vec![Export::new("", Arc::clone(&volume) as Arc<dyn BlockService>)];
    let failed = |error: &dyn std::fmt::Display| failed("serving the store", error.to_string());
    let server = Server::start(&address, exports, ServerOptions::default());
    let server = server.map_err(|error| failed(&error))?;
    let client = Client::connect(&address, &ClientOptions::default());
    let mut coulter = client.map_err(|error| failed(&error))?;
    let bare = BareSession::new(held_back::device(plain)?);
    let mut bare = bare.map_err(|source| LabError::io("wait for", plain, source))?;
    let count = plan.size / BLOCK_SIZE;
    // What they write is written over before it is looked at.
    let (mut ours, mut theirs) = (Blocks::new(count, 3), Blocks::new(count, 4));
    let speed = plan.take_turns(held_back::TURNS, |which| {
        let load = match which {
            Which::Plain => theirs.overwrite(&mut bare, &plan.interrupt, plan.turn),
            Which::Coulter => ours.overwrite(&mut coulter, &plan.interrupt, plan.turn),
        };
        Ok(load?.iops())
    })?;
    drop((coulter, server));
    volume.shut_down().map_err(|error| failed(&error))?;
    Ok(held_back::figures(speed))
}
