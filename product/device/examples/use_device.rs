//! Writes, flushes and reads a device in memory, one command at a time.

use coulter_device::{AlignedMemory, MemoryStore, blocking};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let store = MemoryStore::new(1 << 20);
    let mut device = store.open()?;
    let mut written = AlignedMemory::zeroed(4096);
    written.fill(7);
    blocking::write(&mut device, 8192, &mut written)?;
    blocking::flush(&mut device)?;

    let mut read = AlignedMemory::zeroed(4096);
    blocking::read(&mut device, 8192, &mut read)?;
    assert_eq!(read[..], written[..]);
    println!("4096 bytes at 8192 are as they were written");
    Ok(())
}
