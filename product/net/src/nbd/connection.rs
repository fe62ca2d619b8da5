//! One client's connection: a negotiation, then the transmission phase.

use super::export::Export;
use super::handshake::{Agreement, Handshake, Step};
use super::server::ServerOptions;
use super::transmission::{Memory, Transmission};
use crate::{Budget, CloseReason, Connection, Protocol, Standing, Stop, socket};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// Bytes read at a time while negotiating.
const HANDSHAKE_READ_SIZE: usize = 4 << 10;

/// NBD, and what a connection needs to know of its server.
pub(super) struct Nbd {
    pub(super) exports: Arc<[Export]>,
    pub(super) options: ServerOptions,
    pub(super) budget: Arc<Budget>,
}

impl Protocol for Nbd {
    const NAME: &'static str = "nbd";

    fn serve(&self, socket: &OwnedFd, stop: &Stop, standing: &Standing) -> CloseReason {
        let deadline = Instant::now() + self.options.handshake_timeout;
        match negotiate(socket, self, stop, deadline) {
            Ok((agreement, leftover)) => {
                standing.settle();
                let memory = match self.options.own_kernel {
                    true => Memory::Stock,
                    false => Memory::OnDemand {
                        bytes_max: self.options.connection_memory_max,
                        budget: self.budget.clone(),
                    },
                };
                let export = &self.exports[agreement.export];
                let transmission = Transmission::new(export, agreement, &leftover, &memory);
                Connection::new(socket, stop, transmission).run()
            }
            Err(reason) => reason,
        }
    }
}

fn negotiate(
    socket: &OwnedFd,
    nbd: &Nbd,
    stop: &Stop,
    deadline: Instant,
) -> Result<(Agreement, Vec<u8>), CloseReason> {
    let mut output = Vec::new();
    let mut input: Vec<u8> = Vec::new();
    // Nothing is read while an answer is unsent, so that one answer is the most there is.
    let send = |output: &[u8]| socket::send_all(socket, output, deadline, Some(&stop.readable));
    let mut handshake = Handshake::new(nbd.exports.clone(), &mut output);
    loop {
        send(&output).map_err(handshake_failure)?;
        output.clear();
        let (used, step) = handshake.advance(&input, &mut output);
        input.drain(..used);
        match step {
            Step::Again => {}
            Step::Wait => receive_some(socket, &mut input, stop, deadline)?,
            Step::Enter(agreement) => {
                send(&output).map_err(handshake_failure)?;
                return Ok((agreement, input));
            }
            Step::Abort => {
                // A client may be gone by the time of the answer; that is no error.
                let _ = send(&output);
                return Err(CloseReason::Disconnected);
            }
            Step::Refuse(malformed) => {
                let _ = send(&output);
                return Err(CloseReason::Protocol(malformed));
            }
        }
    }
}

/// Appends what the client sends next to `input`.
fn receive_some(
    socket: &OwnedFd,
    input: &mut Vec<u8>,
    stop: &Stop,
    deadline: Instant,
) -> Result<(), CloseReason> {
    let mut bytes = [0; HANDSHAKE_READ_SIZE];
    match socket::receive(socket, &mut bytes, deadline, Some(&stop.readable)) {
        Ok(0) => Err(CloseReason::Lost),
        Ok(count) => {
            input.extend_from_slice(&bytes[..count]);
            Ok(())
        }
        Err(error) => Err(handshake_failure(error)),
    }
}

fn handshake_failure(error: io::Error) -> CloseReason {
    match error.kind() {
        io::ErrorKind::TimedOut => CloseReason::HandshakeTimeout,
        io::ErrorKind::Interrupted => CloseReason::Shutdown,
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => CloseReason::Lost,
        _ => CloseReason::Io(error),
    }
}
