//! Something that was done to a volume from outside, while it is attached.

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// In words that follow the name of the volume and "has failed".
    pub(crate) words: String,
    /// Bytes of the store that are lost, if it was cut short.
    pub(crate) cut_off_bytes: Option<u64>,
}

impl Trouble {
    /// One that takes nothing away from the store.
    pub(crate) fn new(words: String) -> Trouble {
        Trouble { words, cut_off_bytes: None }
    }

    /// A store that was cut short goes before any other reason: it is the cause of most that
    /// follow.
    pub(crate) fn goes_before(&self, failure: &Option<String>) -> bool {
        failure.is_none() || self.cut_off_bytes.is_some()
    }

    /// Takes note of it, in what is told of the volume's failure.
    pub(crate) fn tell(self, failure: &mut Option<String>, cut_off_bytes: &mut Option<u64>) {
        if self.goes_before(failure) {
            *failure = Some(self.words);
            *cut_off_bytes = self.cut_off_bytes;
        }
    }
}
