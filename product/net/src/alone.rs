//! Whether a client sends one request at a time.
//!
//! Such a client loses nothing when its connection's thread waits for the device: it would wait for the
//! answer anyway. Any other would lose the requests that come meanwhile.

/// Requests in a row that were alone until the next is expected to be.
const USUAL: u8 = 8;

/// Counts requests that came while no other one was under way.
#[derive(Debug, Default)]
pub struct Alone {
    count: u8,
}

impl Alone {
    /// Takes note of a batch of requests, and whether it was one, with no other under way. Whether that has
    /// been so for a while.
    pub fn is_usual(&mut self, is_alone: bool) -> bool {
        self.count = if is_alone { self.count.saturating_add(1) } else { 0 };
        self.count > USUAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_alone_until_it_sends_two_at_once() {
        let mut alone = Alone::default();
        let first = (0..20).position(|_| alone.is_usual(true));
        assert_eq!(first, Some(usize::from(USUAL)));
        assert!(alone.is_usual(true));
        assert!(!alone.is_usual(false));
        assert!(!alone.is_usual(true), "it begins anew");
    }
}
