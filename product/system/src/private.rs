//! Files, directories and sockets for the user alone, whatever the umask: what holds the user's data, or leads to it.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;

/// Permissions of a file: its owner reads and writes it.
const FILE_MODE: u32 = 0o600;
/// Permissions of a directory.
const DIRECTORY_MODE: u32 = 0o700;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Makes a file where nothing is, to be read and written. A link is in the way like anything else.
///
/// # Errors
/// `AlreadyExists`, and what the system says.
pub fn create_new(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(FILE_MODE).open(path)?;
    restrict(&file)?;
    Ok(file)
}

/// Opens the user's own file to read and write it, or makes it. No link is followed, and permissions of others are
/// taken away.
///
/// # Errors
/// When something else is there, or another user's file; and what the system says.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
    let file = options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32).open(path);
    let file = file.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => io::Error::new(io::ErrorKind::AlreadyExists, "it is a symbolic link"),
        _ => error,
    })?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is not a regular file"));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    restrict(&file)?;
    Ok(file)
}

/// Takes the permissions of others away, and gives the owner those that the umask has taken.
fn restrict(file: &File) -> io::Result<()> {
    if file.metadata()?.mode() & 0o7777 != FILE_MODE {
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    }
    Ok(())
}

/// Makes a directory where nothing is.
///
/// # Errors
/// `AlreadyExists`, and what the system says.
pub fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIRECTORY_MODE).create(path)
}

/// Makes a directory, and those above it that are missing. What is there already stays as it is.
///
/// # Errors
/// What the system says.
pub fn create_directories(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// Listens at a path where nothing is.
///
/// # Errors
/// `AddrInUse`, and what the system says.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path)?;
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    // The file takes its permissions from the socket, so it is at no time open to others.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(FILE_MODE))?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn mode(path: &Path) -> u32 {
        path.symlink_metadata().expect("it is there").mode() & 0o777
    }

    #[test]
    fn what_is_made_is_the_users_alone_whatever_the_umask() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        for umask in [0o000, 0o022, 0o277] {
            // No other test of this program makes anything whose permissions matter to it.
            let before = rustix::process::umask(Mode::from_raw_mode(umask));
            let made = [create_new(&path("new")).is_ok(), open(&path("kept")).is_ok()];
            let (listener, directory) = (listen(&path("sock")), create_directory(&path("folder")));
            rustix::process::umask(before);
            assert_eq!(made, [true; 2], "{umask:o}");
            directory.expect("it can be made");
            drop(listener.expect("it listens"));
            assert_eq!([mode(&path("new")), mode(&path("kept"))], [0o600; 2], "{umask:o}");
            assert_eq!(mode(&path("sock")) & 0o077, 0, "{umask:o}");
            assert_eq!(mode(&path("folder")) & 0o077, 0, "{umask:o}");
            for name in ["new", "kept", "sock"] {
                std::fs::remove_file(path(name)).expect("it is there");
            }
            std::fs::remove_dir(path("folder")).expect("it is there");
        }
    }

    #[test]
    fn no_link_is_followed_and_what_others_could_read_is_closed_to_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        symlink(path("elsewhere"), path("link")).expect("the folder is writable");
        assert!(create_new(&path("link")).is_err() && open(&path("link")).is_err());
        assert!(listen(&path("link")).is_err());
        assert!(!path("elsewhere").exists(), "nothing was made behind the link");
        std::fs::write(path("old"), "theirs").expect("the folder is writable");
        std::fs::set_permissions(path("old"), Permissions::from_mode(0o666)).expect("it is ours");
        open(&path("old")).expect("it is ours");
        assert_eq!(mode(&path("old")), 0o600);
        assert!(open(&path(".")).is_err(), "a directory is no file");
    }
}
