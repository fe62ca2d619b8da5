//! Log pages, each made whole and then cut to what was asked for.

use super::super::admin::Admin;
use super::super::front::{NSID, TRANSFER_SIZE_MAX};
use super::OPTIONAL_COMMANDS;
use super::identify::FIRMWARE;
use coulter_nvme::log::{self, ErrorEntry, GetLog, Smart, page};
use coulter_nvme::{IDENTIFY_SIZE, NSID_ALL, Status};

/// Logs of a controller with namespaces, and of one of a discovery service.
const PAGES: [u8; 6] = [
    page::SUPPORTED,
    page::ERROR,
    page::SMART,
    page::FIRMWARE,
    page::CHANGED_NAMESPACES,
    page::EFFECTS,
];
const DISCOVERY_PAGES: [u8; 2] = [page::SUPPORTED, page::DISCOVERY];

/// Entries that the log of changed namespaces has room for.
const CHANGED_SIZE: usize = 4096;

/// The bytes that `asked` asks for. Many hosts read a log by the page, so what lies beyond its end
/// is zero up to a page. A host that asks for more than a page, and for more than there is, is
/// refused.
pub(crate) fn answer(admin: &mut Admin, asked: &GetLog) -> Result<Vec<u8>, Status> {
    let is_discovery = admin.seat.subsystem.front.is_none();
    let pages = if is_discovery { &DISCOVERY_PAGES[..] } else { &PAGES[..] };
    if !pages.contains(&asked.page) {
        return Err(Status::INVALID_LOG_PAGE.final_one());
    }
    if asked.length > u64::from(TRANSFER_SIZE_MAX) || !asked.offset.is_multiple_of(4) {
        return Err(Status::INVALID_FIELD.final_one());
    }
    let whole = match asked.page {
        page::SUPPORTED => log::supported(pages).to_vec(),
        page::ERROR => errors(admin),
        page::SMART => smart(admin).encode().to_vec(),
        page::FIRMWARE => log::firmware(FIRMWARE).to_vec(),
        page::CHANGED_NAMESPACES => changed(admin),
        page::EFFECTS => {
            let mut out = Box::new([0; log::EFFECTS_SIZE]);
            log::effects(OPTIONAL_COMMANDS, &mut out);
            out.to_vec()
        }
        _ => {
            // A log is read in parts; one that begins anew sees what is there now.
            if asked.offset == 0 || admin.discovery.is_empty() {
                admin.discovery = admin.terms.discovery_log.clone();
            }
            admin.discovery.clone()
        }
    };
    let start = usize::try_from(asked.offset).unwrap_or(usize::MAX).min(whole.len());
    let (length, left) = (asked.length as usize, whole.len() - start);
    if length > left.max(IDENTIFY_SIZE) {
        return Err(Status::INVALID_SGL_LENGTH.final_one());
    }
    let mut out = whole[start..start + left.min(length)].to_vec();
    out.resize(length, 0);
    Ok(out)
}

fn errors(admin: &Admin) -> Vec<u8> {
    let (entries, _) = admin.seat.subsystem.errors();
    let mut out: Vec<u8> = entries.iter().flat_map(ErrorEntry::encode).collect();
    let size = usize::from(coulter_nvme::identify::ERROR_LOG_ENTRIES) * log::ERROR_ENTRY_SIZE;
    out.resize(size, 0);
    out
}

fn smart(admin: &Admin) -> Smart {
    let subsystem = &admin.seat.subsystem;
    let counts = subsystem.tally.counts();
    Smart {
        read_only: subsystem.front.as_ref().is_some_and(|front| front.refuses_writes()),
        bytes_read: counts.bytes_read,
        bytes_written: counts.bytes_written,
        reads: counts.reads,
        writes: counts.writes,
        power_on_hours: subsystem.started.elapsed().as_secs() / 3600,
        media_errors: counts.media_errors,
        error_entries: subsystem.errors().1,
    }
}

fn changed(admin: &Admin) -> Vec<u8> {
    let mut out = vec![0; CHANGED_SIZE];
    if admin.has_changed_namespace() {
        out[..4].copy_from_slice(&NSID.to_le_bytes());
    }
    const { assert!(NSID != NSID_ALL) };
    out
}
