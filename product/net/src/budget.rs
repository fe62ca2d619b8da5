//! Memory that all connections of a server share, so that clients who do not read their replies
//! cannot make it hold more the more of them there are.
//!
//! # Invariants
//! - All pools together have at most the bytes of the budget, idle buffers included.
//! - Each connection has an allowance that no other can use. A request that fits into it never
//!   waits for another client.
//! - Beyond its allowance a connection gets no more than it leaves to others, so that a few clients
//!   cannot have everything.
//! - A connection that holds nothing and waits goes first: until it has its memory, others get none
//!   beyond their allowances. So a large request does not starve among small ones.

use coulter_attach::pool::BufferPool;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The largest allowance: two requests of the size that kernels and QEMU send.
const ALLOWANCE_MAX: usize = 2 << 20;

/// Bytes of buffers for all connections of a server.
#[derive(Debug)]
pub struct Budget {
    allowance: usize,
    shared_max: usize,
    /// Bytes beyond allowances that connections have.
    shared: AtomicUsize,
    /// Connections that hold nothing and wait for memory.
    waiting: AtomicUsize,
}

impl Budget {
    /// `bytes_max` for `connections_max` connections: up to half of it in allowances, and the rest
    /// for any of them.
    pub fn new(bytes_max: usize, connections_max: usize) -> Budget {
        let allowance = ALLOWANCE_MAX.min(bytes_max / 2 / connections_max.max(1));
        let shared_max = bytes_max - allowance * connections_max;
        let (shared, waiting) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Budget { allowance, shared_max, shared, waiting }
    }

    /// Takes `more` bytes for a connection that has `charged`.
    fn try_take(&self, more: usize, charged: usize, goes_first: bool) -> bool {
        let is_hindered = !goes_first && self.waiting.load(Ordering::Relaxed) > 0;
        let taken = self.shared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |shared| {
            let free = self.shared_max - shared;
            let leaves_enough = charged + more <= free.saturating_sub(more);
            let is_fair = goes_first || (!is_hindered && leaves_enough);
            (more <= free && is_fair).then_some(shared + more)
        });
        taken.is_ok()
    }

    fn give_back(&self, bytes: usize) {
        let before = self.shared.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "what is given back was taken");
    }

    /// True if idle buffers are better freed.
    fn is_scarce(&self) -> bool {
        let shared = self.shared.load(Ordering::Relaxed);
        shared > self.shared_max / 2 || self.waiting.load(Ordering::Relaxed) > 0
    }
}

/// The part of a [`Budget`] that the pool of one connection has.
#[derive(Debug)]
pub struct Account {
    budget: Arc<Budget>,
    /// Bytes beyond the allowance.
    charged: usize,
    waits: bool,
}

impl Account {
    /// An account of which nothing is used.
    pub fn new(budget: Arc<Budget>) -> Account {
        Account { budget, charged: 0, waits: false }
    }

    /// Returns whether `pool` may hand out `count` buffers of `length` bytes. To be called each
    /// time before it does.
    pub fn may_take(&mut self, pool: &mut BufferPool, length: usize, count: usize) -> bool {
        let is_granted = self.try_charge(pool, length, count) || {
            pool.drop_idle();
            self.try_charge(pool, length, count)
        };
        self.set_waits(!is_granted && pool.held_bytes() == 0);
        is_granted
    }

    /// Takes note of buffers that have come back to `pool`.
    pub fn settle(&mut self, pool: &mut BufferPool) {
        if self.charged == 0 {
            return;
        }
        if self.budget.is_scarce() {
            pool.drop_idle();
        }
        let needed = pool.bytes().saturating_sub(self.budget.allowance);
        if let Some(surplus) = self.charged.checked_sub(needed) {
            self.budget.give_back(surplus);
            self.charged = needed;
        }
    }

    /// True if the connection holds nothing and waits for memory of others: no event of its own
    /// will wake it.
    pub fn waits(&self) -> bool {
        self.waits
    }

    fn try_charge(&mut self, pool: &BufferPool, length: usize, count: usize) -> bool {
        let bytes = pool.bytes() + pool.growth(length, count);
        let needed = bytes.saturating_sub(self.budget.allowance);
        let more = needed.saturating_sub(self.charged);
        let goes_first = pool.held_bytes() == 0;
        let is_granted = more == 0 || self.budget.try_take(more, self.charged, goes_first);
        self.charged += if is_granted { more } else { 0 };
        is_granted
    }

    fn set_waits(&mut self, waits: bool) {
        match (self.waits, waits) {
            (false, true) => self.budget.waiting.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.budget.waiting.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
        self.waits = waits;
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.set_waits(false);
        self.budget.give_back(self.charged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter::buffer::Buffer;

    const MIB: usize = 1 << 20;

    struct Client {
        pool: BufferPool,
        account: Account,
        buffers: Vec<Buffer>,
    }

    impl Client {
        fn new(budget: &Arc<Budget>) -> Client {
            let pool = BufferPool::on_demand(64 * MIB, 8 * MIB);
            Client { pool, account: Account::new(budget.clone()), buffers: Vec::new() }
        }

        fn try_take(&mut self, length: usize) -> bool {
            let may =
                self.pool.can_take(length) && self.account.may_take(&mut self.pool, length, 1);
            if may {
                self.buffers.push(self.pool.take(length));
            }
            may
        }

        fn give_all(&mut self) {
            for buffer in self.buffers.drain(..) {
                self.pool.give(buffer);
                self.account.settle(&mut self.pool);
            }
        }
    }

    #[test]
    fn clients_that_never_read_have_no_more_than_the_budget_and_each_has_its_allowance() {
        let budget = Arc::new(Budget::new(256 * MIB, 64));
        let mut clients: Vec<Client> = (0..64).map(|_| Client::new(&budget)).collect();
        for client in &mut clients {
            while client.try_take(MIB / 4) {}
            assert!(client.pool.bytes() >= 2 * MIB, "{}", client.pool.bytes());
        }
        let all: usize = clients.iter().map(|client| client.pool.bytes()).sum();
        assert!(all <= 256 * MIB, "{all}");
        assert!(clients[0].pool.bytes() >= 48 * MIB, "one alone has much");
        clients.iter_mut().for_each(Client::give_all);
        drop(clients);
        assert_eq!(budget.shared.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_client_alone_has_all_that_one_connection_may() {
        let mut client = Client::new(&Arc::new(Budget::new(256 * MIB, 64)));
        while client.try_take(MIB) {}
        assert_eq!(client.pool.bytes(), 64 * MIB);
        client.give_all();
        assert_eq!(client.pool.bytes(), 8 * MIB, "idle buffers stay where memory is not scarce");
    }

    #[test]
    fn a_large_request_does_not_starve_among_small_ones() {
        let budget = Arc::new(Budget::new(64 * MIB, 16));
        let mut busy: Vec<Client> = (0..8).map(|_| Client::new(&budget)).collect();
        for client in &mut busy {
            while client.try_take(MIB / 4) {}
        }
        let mut late = Client::new(&budget);
        assert!(!late.try_take(32 * MIB));
        assert!(late.account.waits());
        // Each gives back and takes again, and gets less and less.
        let turns = (0..100).position(|_| {
            for client in &mut busy {
                client.give_all();
                while client.try_take(MIB / 4) {}
                assert!(client.pool.bytes() >= 2 * MIB, "small requests go on");
            }
            late.try_take(32 * MIB)
        });
        assert!(turns.is_some_and(|turns| turns < 2), "{turns:?}");
        assert!(!late.account.waits());
    }

    #[test]
    fn one_that_waits_and_leaves_hinders_nobody() {
        let budget = Arc::new(Budget::new(64 * MIB, 16));
        let mut first = Client::new(&budget);
        while first.try_take(MIB) {}
        let mut late = Client::new(&budget);
        assert!(!late.try_take(32 * MIB));
        drop(late);
        assert_eq!(budget.waiting.load(Ordering::Relaxed), 0);
        first.give_all();
        assert!(first.try_take(32 * MIB));
    }
}
