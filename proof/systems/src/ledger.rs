//! What a thing that is written again and again may be found to be.
//!
//! What was acknowledged last must be there, or something that was asked for since.

/// The states of one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Possible<S> {
    /// What was acknowledged as durable.
    durable: S,
    /// What was asked for since, in order, and may be there instead.
    since: Vec<S>,
}

impl<S: Clone + PartialEq> Possible<S> {
    /// A thing that is durably so.
    pub(crate) fn new(durable: S) -> Possible<S> {
        Possible { durable, since: Vec::new() }
    }

    /// It is about to become `state`.
    pub(crate) fn ask(&mut self, state: S) {
        self.since.push(state);
    }

    /// What was asked for last is durable.
    pub(crate) fn acknowledge(&mut self) {
        if let Some(last) = self.since.pop() {
            *self = Possible::new(last);
        }
    }

    /// It was found so, and that is durable.
    pub(crate) fn settle(&mut self, found: S) {
        *self = Possible::new(found);
    }

    /// Whether it may be found so.
    pub(crate) fn allows(&self, found: &S) -> bool {
        self.durable == *found || self.since.contains(found)
    }

    /// What was acknowledged last.
    pub(crate) fn durable(&self) -> &S {
        &self.durable
    }

    /// Whether nothing was asked for since.
    pub(crate) fn is_certain(&self) -> bool {
        self.since.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_state_than_the_acknowledged_one_is_not_allowed() {
        let mut thing = Possible::new(1);
        thing.ask(2);
        thing.ask(3);
        assert!([1, 2, 3].iter().all(|state| thing.allows(state)));
        assert!(!thing.allows(&4));
        thing.acknowledge();
        assert!(thing.is_certain());
        assert!(thing.allows(&3));
        assert!(![1, 2].iter().any(|state| thing.allows(state)));
        thing.ask(4);
        thing.settle(4);
        assert_eq!(thing, Possible::new(4));
    }
}
