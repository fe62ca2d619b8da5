//! An NBD server on a socket.

use super::inherited;
use super::kind::{Gives, Ground, Kind, Point};
use super::visitors::observer;
use crate::error::Error;
use crate::life::state::Entry;
use coulter::service::BlockService;
use coulter_attach::point::AttachPoint;
use coulter_net::nbd::{Address, Export, Server, ServerOptions};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Its kind.
#[derive(Debug)]
pub struct NbdServer;

impl Kind for NbdServer {
    fn word(&self) -> &'static str {
        "nbd-server"
    }

    fn gives(&self) -> Gives {
        Gives::Address
    }

    fn plain(&self) -> Option<Box<dyn Point>> {
        Some(Box::new(NbdServerPoint::InState))
    }

    fn is_automatic(&self) -> bool {
        true
    }

    fn is_under_the_kernel(&self) -> bool {
        false
    }
}

/// Where one listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdServerPoint {
    /// On a socket in the state directory.
    InState,
    /// On a socket that the parent process has opened.
    Inherited,
    /// At an address of the user's.
    At {
        /// Where.
        address: Address,
        /// Whether other machines may reach it.
        allow_remote: bool,
    },
}

impl NbdServerPoint {
    /// At `address`, with a path that holds in any directory.
    pub fn at(address: Address, allow_remote: bool) -> NbdServerPoint {
        let address = match address {
            Address::Unix(path) => Address::Unix(std::path::absolute(&path).unwrap_or(path)),
            other => other,
        };
        NbdServerPoint::At { address, allow_remote }
    }
}

impl Point for NbdServerPoint {
    fn kind(&self) -> &'static dyn Kind {
        &NbdServer
    }

    fn start(
        &self,
        ground: &Ground<'_>,
        service: Arc<dyn BlockService>,
    ) -> Result<Box<dyn AttachPoint>, Error> {
        let (address, allow_remote) = match self {
            NbdServerPoint::InState => (socket_in_state(ground), false),
            NbdServerPoint::At { address, allow_remote } => (address.clone(), *allow_remote),
            NbdServerPoint::Inherited => {
                return self.resume(ground, service, inherited::take_socket()?);
            }
        };
        let (export, options) = shown(ground.entry, service);
        let options = ServerOptions { allow_remote, ..options };
        let server = Server::start(&address, vec![export], options);
        Ok(Box::new(server.map_err(|error| ground.not_served(error))?))
    }

    fn resume(
        &self,
        ground: &Ground<'_>,
        service: Arc<dyn BlockService>,
        descriptor: OwnedFd,
    ) -> Result<Box<dyn AttachPoint>, Error> {
        let owns_file = *self != NbdServerPoint::Inherited;
        let (export, options) = shown(ground.entry, service);
        let server = Server::resume(descriptor, owns_file, vec![export], options);
        Ok(Box::new(server.map_err(|error| ground.failed(error))?))
    }
}

/// The socket in the state directory.
pub(super) fn socket_in_state(ground: &Ground<'_>) -> Address {
    Address::Unix(ground.state.file(&ground.entry.name, "nbd"))
}

/// What an NBD server shows and how it behaves.
pub(super) fn shown(entry: &Entry, service: Arc<dyn BlockService>) -> (Export, ServerOptions) {
    let mut export = Export::new(entry.name.clone(), service);
    export.description = entry.store.display().to_string();
    export.read_only = entry.read_only;
    (export, ServerOptions { observer: observer("nbd"), ..ServerOptions::default() })
}
