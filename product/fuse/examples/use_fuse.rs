//! Mounts blocks in memory as one file, where this process may mount, and reads from the file.

use coulter_attach::point::{AttachPoint, Detach};
use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
use coulter_fuse::{FuseFile, FuseOptions};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let service = MemoryService::new(MemoryOptions::new(1 << 20));
    let directory = tempfile::tempdir()?;
    match FuseFile::mount(&service, directory.path(), &FuseOptions::default()) {
        Ok(mut mount) => {
            assert_eq!(std::fs::metadata(mount.path())?.len(), 1 << 20);
            mount.detach(Detach::IfIdle)?;
        }
        Err(error) => println!("not mounted: {error}"),
    }
    Ok(())
}
