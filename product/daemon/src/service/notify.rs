//! Tells a service manager how a daemon is doing, over the socket that `NOTIFY_SOCKET` names.
//! Without that variable, nobody is told.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `state`, lines of `KEY=value` such as `READY=1`.
pub(crate) fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(path.as_encoded_bytes(), state) {
        log::warn!(error:%; "the service manager could not be told");
    }
}

fn send(name: &[u8], state: &str) -> io::Result<()> {
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::str::from_utf8(name).map_err(io::Error::other)?)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_sockets_are_reached() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("notify");
        let name = format!("coulter-test-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).expect("the path is free");
        let abstract_address = SocketAddr::from_abstract_name(&name).expect("a short name");
        let by_name = UnixDatagram::bind_addr(&abstract_address).expect("the name is free");
        let names = [path.to_string_lossy().into_owned(), format!("@{name}")];
        for (socket, name) in [by_path, by_name].iter().zip(names) {
            send(name.as_bytes(), "READY=1").expect("somebody listens");
            let mut heard = [0; 16];
            let length = socket.recv(&mut heard).expect("it was sent");
            assert_eq!(&heard[..length], b"READY=1");
        }
        assert!(send(b"/nowhere/at/all", "READY=1").is_err());
    }
}
