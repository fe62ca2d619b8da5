//! The clients of a server, and who makes room when there are too many.
//!
//! # Invariants
//! - A client that is not settled (it has not said what it wants, or not proved that it may) keeps
//!   other out: when there is no room, the oldest of them goes, of the peer that has most.
//! - One peer never has all places, settled or not: an eighth is left for others.

use super::peer::Peer;
use rustix::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Flags that a connection's thread and its server share.
#[derive(Default)]
pub struct Standing {
    settled: AtomicBool,
    displaced: AtomicBool,
}

impl Standing {
    /// It has said what it wants, and may have it.
    pub fn settle(&self) {
        self.settled.store(true, Ordering::SeqCst);
    }

    /// True once it was hung up on to make room for others.
    pub fn is_displaced(&self) -> bool {
        self.displaced.load(Ordering::SeqCst)
    }

    fn is_settled(&self) -> bool {
        self.settled.load(Ordering::SeqCst)
    }
}

/// A client.
struct Guest {
    number: u64,
    peer: Peer,
    standing: Arc<Standing>,
    /// Closed by its thread.
    socket: Weak<OwnedFd>,
}

impl Guest {
    /// Hangs up on it; its thread finds that out.
    fn displace(&self) {
        self.standing.displaced.store(true, Ordering::SeqCst);
        if let Some(socket) = self.socket.upgrade() {
            // One that is closed already needs no end.
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        }
    }

    fn is_displaceable(&self) -> bool {
        !self.standing.is_settled() && !self.standing.is_displaced()
    }
}

/// All clients, in the order in which they came.
#[derive(Default)]
pub(super) struct Guests(Vec<Guest>);

impl Guests {
    /// Clients whose threads have not ended.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// True if there is no room for any client: the threads of those that were hung up on end soon,
    /// and not at once.
    pub(super) fn is_full(&self, count_max: usize) -> bool {
        self.0.len() >= 2 * count_max
    }

    /// Lets a client in, as far as `count_max` allows; whether another one has had to go for it.
    pub(super) fn admit(
        &mut self,
        number: u64,
        peer: Peer,
        socket: &Arc<OwnedFd>,
        count_max: usize,
    ) -> Option<(Arc<Standing>, bool)> {
        let victim = self.victim_for(peer, count_max).ok()?;
        if let Some(victim) = victim {
            self.0[victim].displace();
        }
        let standing = Arc::new(Standing::default());
        let socket = Arc::downgrade(socket);
        self.0.push(Guest { number, peer, standing: standing.clone(), socket });
        Some((standing, victim.is_some()))
    }

    /// Its thread is at its end.
    pub(super) fn leave(&mut self, number: u64) {
        self.0.retain(|guest| guest.number != number);
    }

    /// The client that goes for one of `peer`, if one has to; an error if there is no room.
    fn victim_for(&self, peer: Peer, count_max: usize) -> Result<Option<usize>, ()> {
        if self.is_full(count_max) {
            return Err(());
        }
        let staying = || self.0.iter().filter(|guest| !guest.standing.is_displaced());
        let of_peer = staying().filter(|guest| guest.peer == peer).count();
        let is_its_share = of_peer >= share(count_max);
        if !is_its_share && staying().count() < count_max {
            return Ok(None);
        }
        let unsettled_of =
            |peer: Peer| self.0.iter().filter(|it| it.is_displaceable() && it.peer == peer).count();
        let candidates =
            self.0.iter().enumerate().filter(|(_, guest)| {
                guest.is_displaceable() && (!is_its_share || guest.peer == peer)
            });
        // The first of equals is the oldest.
        let victim = candidates.rev().max_by_key(|(_, guest)| unsettled_of(guest.peer));
        victim.map(|(index, _)| Some(index)).ok_or(())
    }
}

/// Places that one peer may have.
fn share(count_max: usize) -> usize {
    (count_max - count_max / 8).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 16;
    const A: Peer = Peer::User(1);
    const B: Peer = Peer::User(2);
    const C: Peer = Peer::User(3);

    /// Guests of these peers, and whether each is settled.
    fn guests(list: &[(Peer, bool)]) -> Guests {
        let guest = |(number, (peer, is_settled)): (u64, &(Peer, bool))| {
            let standing = Arc::new(Standing::default());
            if *is_settled {
                standing.settle();
            }
            Guest { number, peer: *peer, standing, socket: Weak::new() }
        };
        Guests((0..).zip(list).map(guest).collect())
    }

    #[test]
    fn the_oldest_silent_client_of_the_peer_with_most_makes_room() {
        let full = [&[(B, false); 2][..], &[(A, true); 2], &[(A, false); 12]].concat();
        let guests = guests(&full);
        assert_eq!(guests.victim_for(C, MAX), Ok(Some(4)));
        guests.0[4].displace();
        assert_eq!(guests.victim_for(C, MAX), Ok(None), "one is going already");
    }

    #[test]
    fn one_peer_leaves_room_for_others() {
        let settled = guests(&[(A, true); 14]);
        assert_eq!(settled.victim_for(A, MAX), Err(()));
        assert_eq!(settled.victim_for(B, MAX), Ok(None));
        let silent = guests(&[(A, false); 14]);
        assert_eq!(silent.victim_for(A, MAX), Ok(Some(0)), "its own oldest goes");
        assert_eq!(silent.victim_for(B, MAX), Ok(None));
    }

    #[test]
    fn a_settled_client_never_makes_room() {
        let full = guests(&[&[(A, true); 8][..], &[(B, true); 8]].concat());
        assert_eq!(full.victim_for(C, MAX), Err(()));
        assert_eq!(guests(&[(A, true)]).victim_for(A, 1), Err(()));
        assert_eq!(guests(&[(A, false)]).victim_for(B, 1), Ok(Some(0)));
    }

    #[test]
    fn threads_that_do_not_end_are_bounded_too() {
        let many = guests(&[(A, false); 2 * MAX]);
        many.0.iter().for_each(Guest::displace);
        assert_eq!(many.victim_for(B, MAX), Err(()));
    }
}
