//! Opening what can be read at any place: a regular file or a block device.
//!
//! The open of a pipe waits for a writer, and some character devices act when they are opened.
//! So both are refused before they are opened.

use rustix::fs::OFlags;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens it to read it.
///
/// # Errors
/// `InvalidInput` for anything else, and what the system says.
pub fn open(path: &Path) -> io::Result<File> {
    check(&fs::metadata(path)?)?;
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    // Something else may have come to the path since.
    check(&file.metadata()?)?;
    Ok(file)
}

/// All of its bytes.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn check(metadata: &Metadata) -> io::Result<()> {
    if metadata.is_file() || metadata.file_type().is_block_device() {
        return Ok(());
    }
    let why = "it is neither a regular file nor a block device";
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode};

    #[test]
    fn a_pipe_is_refused_at_once_and_a_file_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "text").expect("room");
        rustix::fs::mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RWXU, 0).expect("room");
        assert_eq!(read(&path("file")).expect("it is a file"), b"text");
        for name in [path("pipe"), folder.path().to_owned(), "/dev/tty".into()] {
            let error = open(&name).expect_err("it is no file");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{}", name.display());
        }
    }
}
