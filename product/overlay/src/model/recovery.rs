//! Recovery after a crash of a life by chance, and the check of all that is found.

use super::lives::{BLOCKS, Flight, Life, NAMES, Names, lookup};
use super::lower::{Loss, ModelLower};
use super::shadow::FILE_BLOCKS;
use super::trace;
use super::volume::ModelVolume;
use crate::overlay::{Options, Overlay};
use coulter::buffer::Buffer;
use coulter_files::{FileService, Reply, Request, Time, read_span};
use coulter_format::BLOCK_SIZE;
use std::collections::BTreeMap;

const FILE_SIZE: usize = FILE_BLOCKS * BLOCK_SIZE;

impl Life {
    /// A crash that leaves `lower` below, and some steps of the store.
    pub(super) fn crash(&mut self, lower: ModelLower) -> Result<(), String> {
        let kept = self.volume.durable as u64;
        let kept = kept + self.chance.below(self.volume.steps() as u64 - kept + 1);
        self.crashes += 1;
        let volume = self.volume.cut(kept as usize);
        trace(|| format!("crash: {kept} of {}, durable {}", volume.steps(), self.volume.durable));
        let told = |why: String| format!("{why} after a crash with {kept} steps");
        self.recover(lower, volume).map_err(told)
    }

    pub(super) fn recover(&mut self, lower: ModelLower, volume: ModelVolume) -> Result<(), String> {
        trace(|| format!("  is left: {}", lower.told()));
        let (mut overlay, mut volume) = open(lower, volume, self.options)?;
        let before = self.check_all(&mut overlay, &mut volume)?;
        if !overlay.orphans.is_empty() || !overlay.store.lists().faults().is_empty() {
            return Err(format!("what is not served: {}", overlay.report()));
        }
        let settled = ask(&mut overlay, &mut volume, Request::Settle);
        settled.map_err(|errno| format!("settling fails with {errno}"))?;
        if overlay.store.mapped != 0 {
            return Err("not settled".into());
        }
        let lower = overlay.lower.cut(Loss::Everything);
        let (mut overlay, mut volume) = open(lower, volume.cut(volume.durable), self.options)?;
        let home = self.check_all(&mut overlay, &mut volume)?;
        let is_same = before.iter().all(|(name, content)| home.get(name) == Some(content));
        // Names were not asked to be durable: the crash before has made them so.
        if is_same { Ok(()) } else { Err("not as it was when it was brought home".into()) }
    }

    /// All files by their names, each of which may be like this.
    fn check_all(
        &self,
        overlay: &mut Overlay<ModelLower>,
        volume: &mut ModelVolume,
    ) -> Result<BTreeMap<&'static [u8], Vec<u8>>, String> {
        let mut contents = BTreeMap::new();
        let coming = self.flights.values().filter_map(|flight| match flight {
            Flight::Names(names) => Some(names),
            _ => None,
        });
        let states: Vec<&Names> = self.names.iter().chain(coming).collect();
        for name in NAMES {
            let shown = name.escape_ascii();
            let candidates: Vec<Option<&usize>> =
                states.iter().map(|names| names.get(name)).collect();
            let inode = match ask(overlay, volume, lookup(name)) {
                Err(libc::ENOENT) if candidates.contains(&None) => continue,
                Err(errno) => return Err(format!("{shown} gives {errno}")),
                Ok(Reply::Entry(entry)) => entry.number,
                Ok(reply) => return Err(format!("{reply:?}")),
            };
            let content = content_of(overlay, volume, inode);
            let content =
                content.map_err(|errno| format!("{shown} gives {errno}: {}", overlay.report()))?;
            let files = candidates.into_iter().flatten();
            let tried: Vec<_> =
                files.map(|file| self.files[*file].check_content(&content)).collect();
            if !tried.iter().any(Result::is_ok) {
                return Err(format!("{shown}: {:?}", tried.last()));
            }
            contents.insert(name, content);
        }
        Ok(contents)
    }
}

pub(super) fn open(
    lower: ModelLower,
    mut volume: ModelVolume,
    options: Options,
) -> Result<(Overlay<ModelLower>, ModelVolume), String> {
    let overlay = Overlay::open(lower, &mut volume, BLOCKS, options);
    let mut overlay = overlay.map_err(|error| format!("it cannot be opened: {error}"))?;
    settle_down(&mut overlay, &mut volume);
    Ok((overlay, volume))
}

/// Carries out all that there is.
fn settle_down(overlay: &mut Overlay<ModelLower>, volume: &mut ModelVolume) {
    loop {
        if let Some(io) = overlay.poll_io() {
            let (id, buffer) = volume.carry_out(io);
            overlay.handle_completion(id, Ok(()), buffer);
        } else if overlay.lower.end_sync() {
            overlay.handle_wake();
        } else {
            return overlay.assert_invariants();
        }
    }
}

/// Asks for something, and has nothing else go on meanwhile.
pub(super) fn ask(
    overlay: &mut Overlay<ModelLower>,
    volume: &mut ModelVolume,
    request: Request,
) -> Result<Reply, i32> {
    overlay.handle_request(0, request, Time { seconds: 1, nanoseconds: 0 });
    settle_down(overlay, volume);
    let response = overlay.poll_response().expect("it is answered");
    response.result
}

pub(super) fn content_of(
    overlay: &mut Overlay<ModelLower>,
    volume: &mut ModelVolume,
    inode: u64,
) -> Result<Vec<u8>, i32> {
    let Reply::Attributes(found) = ask(overlay, volume, Request::Attributes { inode })? else {
        return Err(libc::EPROTO);
    };
    let (offset, length) = (0, FILE_SIZE as u32);
    let buffer = Buffer::zeroed(read_span(offset, length));
    match ask(overlay, volume, Request::Read { inode, offset, length, buffer })? {
        Reply::Data(buffer, range) if range.len() as u64 == found.inode.size => {
            Ok(buffer[range].to_vec())
        }
        _ => Err(libc::EPROTO),
    }
}
