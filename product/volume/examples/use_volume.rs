//! Makes a volume in memory, writes to it, and reads its statistics.

use coulter::device::MemoryStore;
use coulter::{CreateOptions, OpenOptions, Volume, create};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let store = MemoryStore::new(64 << 20);
    let options = CreateOptions { segment_size: Some(2 << 20), ..CreateOptions::default() };
    create(Box::new(store.open()?), &options)?;

    let volume = Volume::open(Box::new(store.open()?), OpenOptions::default())?;
    volume.write_at(8192, &[7; 4096])?;
    volume.flush()?;
    let mut bytes = [0; 512];
    volume.read_at(8192 + 512, &mut bytes)?;
    assert_eq!(bytes, [7; 512]);
    println!("{} bytes written by the host", volume.statistics().written.host_bytes);
    volume.close()?;
    Ok(())
}
