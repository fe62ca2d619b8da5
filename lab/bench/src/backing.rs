//! Files to measure on: made, written through, and gone when the process is, whatever ends it.

use crate::error::BenchError;
use coulter_device::{self as device, AlignedMemory, Device};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// A file without a name: it takes room as long as this value lives.
#[derive(Debug)]
pub(crate) struct ScratchFile {
    file: File,
    size: u64,
}

impl ScratchFile {
    /// Makes a file of `size` bytes at `path`, takes its name away again, and writes all of it, so
    /// that nothing measured on it pays for finding room.
    ///
    /// # Errors
    /// When there is something at the path, or the file cannot be made or written.
    pub(crate) fn new(
        path: &Path,
        size: u64,
        told: impl FnMut(f64),
    ) -> Result<ScratchFile, BenchError> {
        let failed = |source| BenchError::File { path: path.to_path_buf(), source };
        let options = fs::OpenOptions::new().read(true).write(true).create_new(true).clone();
        let file = options.open(path).map_err(failed)?;
        fs::remove_file(path).map_err(failed)?;
        file.set_len(size).map_err(failed)?;
        let scratch = ScratchFile { file, size };
        write_through(&mut *scratch.open()?, size, told)?;
        Ok(scratch)
    }

    /// The file as a device, past the page cache where the file system can.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(crate) fn open(&self) -> Result<Box<dyn Device>, BenchError> {
        // The way to open a file once more that has no name.
        let path = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        let options = device::OpenOptions { size_min: self.size, ..Default::default() };
        device::open_path(&path, &options).map_err(BenchError::OpenDevice)
    }
}

/// Writes random bytes to all of a device, a mebibyte at a time.
fn write_through(
    device: &mut dyn Device,
    size: u64,
    mut told: impl FnMut(f64),
) -> Result<(), BenchError> {
    let mut random = coulter_workload::Random::new(size);
    let mut memory = AlignedMemory::zeroed(1 << 20);
    for word in memory.chunks_exact_mut(8) {
        word.copy_from_slice(&random.bits().to_le_bytes());
    }
    let mut offset = 0;
    while offset < size {
        let length = (size - offset).min(1 << 20);
        if length < 1 << 20 {
            let mut shorter = AlignedMemory::zeroed(length as usize);
            shorter.copy_from_slice(&memory[..length as usize]);
            memory = shorter;
        }
        device::blocking::write(device, offset, &mut memory).map_err(BenchError::Device)?;
        offset += length;
        told(offset as f64 / size as f64);
    }
    device::blocking::flush(device).map_err(BenchError::Device)
}

/// Where the files of a measurement go: beside each other, in a directory or under a name.
///
/// # Errors
/// When the name is taken by something that would be overwritten.
pub(crate) fn place(backing: Option<&Path>, suffix: &str) -> Result<PathBuf, BenchError> {
    let temporary = std::env::temp_dir();
    let backing = backing.unwrap_or(&temporary);
    let unique = format!("coulter-bench-{}", std::process::id());
    if backing.is_dir() {
        return Ok(backing.join(format!("{unique}.{suffix}")));
    }
    if backing.exists() {
        let reason = format!(
            "{} is there already and would be overwritten; name a directory, or a file to be made",
            backing.display()
        );
        return Err(BenchError::option(reason));
    }
    let mut name = backing.as_os_str().to_owned();
    name.push(format!(".{suffix}"));
    Ok(name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_through_and_has_no_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = place(Some(directory.path()), "test").expect("a directory takes files");
        let file = ScratchFile::new(&path, 3 << 19, |_| {}).expect("there is room");
        assert!(!path.exists());
        let mut device = file.open().expect("it can be opened without a name");
        let mut memory = AlignedMemory::zeroed(3 << 19);
        device::blocking::read(&mut *device, 0, &mut memory).expect("it has its size");
        assert!(memory.chunks(4096).all(|block| block.iter().any(|byte| *byte != 0)));
    }

    #[test]
    fn what_is_there_is_never_overwritten() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("precious");
        fs::write(&path, "precious").expect("there is room");
        assert!(matches!(place(Some(&path), "test"), Err(BenchError::Option { .. })));
        let made = ScratchFile::new(&path, 4096, |_| {});
        assert!(matches!(made, Err(BenchError::File { .. })));
        assert_eq!(fs::read(&path).expect("it is there still"), b"precious");
    }
}
