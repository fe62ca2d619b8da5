//! The history of several tracks at once, and what a crash may leave of it.
//!
//! Each track is changed by one operation at a time, and no operation changes two tracks. A crash
//! leaves each track as it was after some of its operations. The promise is that all of them were
//! so at one moment: an operation is not there without those that were answered before it began,
//! and everything is there that a completed sync covered.

/// An operation of a track.
struct Change {
    began: u64,
    answered: Option<u64>,
    /// The track after it.
    state: u64,
    /// It may have changed nothing.
    is_unsure: bool,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Done,
    /// It changed nothing.
    Failed,
    /// It failed, and may have changed something before: nothing follows on its track.
    Unsure,
}

/// The operations that a completed sync covered.
struct Covered {
    /// Steps of the log with which a crash keeps it.
    kept: usize,
    /// The operation of each track that is there at least.
    least: Vec<usize>,
}

/// See the module's documentation.
pub struct History {
    tracks: Vec<Vec<Change>>,
    covered: Vec<Covered>,
    /// Counts what happens.
    moment: u64,
}

impl History {
    /// Tracks that are in these states.
    pub fn new(states: &[u64]) -> History {
        let begin = |state| vec![Change { began: 0, answered: Some(0), state, is_unsure: false }];
        let tracks = states.iter().copied().map(begin).collect();
        History { tracks, covered: Vec::new(), moment: 0 }
    }

    /// An operation begins that leaves the track in this state. Returns which of the track's it is.
    pub fn begin(&mut self, track: usize, state: u64) -> usize {
        self.moment += 1;
        let changes = &mut self.tracks[track];
        assert!(changes.last().is_some_and(|last| last.answered.is_some()), "one at a time");
        changes.push(Change { began: self.moment, answered: None, state, is_unsure: false });
        changes.len() - 1
    }

    /// The track's operation was answered.
    pub fn end(&mut self, track: usize, end: End) {
        self.moment += 1;
        let [.., before, last] = &mut self.tracks[track][..] else { panic!("it has begun") };
        assert!(last.answered.is_none(), "it is answered once");
        last.answered = Some(self.moment);
        if end == End::Failed {
            last.state = before.state;
        }
        last.is_unsure = end == End::Unsure;
    }

    /// The cover of a sync that begins now: of each track the last operation that was answered.
    pub fn answered(&self) -> Vec<usize> {
        let last = |changes: &Vec<Change>| {
            changes.len() - if changes.last().is_some_and(|c| c.answered.is_none()) { 2 } else { 1 }
        };
        self.tracks.iter().map(last).collect()
    }

    /// A sync is complete; a crash keeps this number of steps of the log by now.
    pub fn cover(&mut self, kept: usize, least: Vec<usize>) {
        self.covered.push(Covered { kept, least });
    }

    /// Operations of all tracks.
    pub fn count(&self) -> usize {
        self.tracks.iter().map(|changes| changes.len() - 1).sum()
    }

    /// Which operation of each track is the last one in what a crash has left; how that breaks the
    /// promise otherwise.
    pub fn explain(&self, kept: usize, found: &[u64]) -> Result<Vec<usize>, String> {
        let mut least = vec![0; self.tracks.len()];
        for covered in self.covered.iter().filter(|covered| covered.kept <= kept) {
            for (least, other) in least.iter_mut().zip(&covered.least) {
                *least = (*least).max(*other);
            }
        }
        loop {
            let before = least.clone();
            for track in 0..self.tracks.len() {
                let changes = &self.tracks[track];
                let from = least[track];
                let is_found = |index: &usize| {
                    let is_kept = changes[*index].state == found[track];
                    let before = index.checked_sub(1).map(|before| changes[before].state);
                    is_kept || changes[*index].is_unsure && before == Some(found[track])
                };
                let place = (from..changes.len()).find(is_found);
                let Some(place) = place else {
                    let earlier = changes.iter().rposition(|change| change.state == found[track]);
                    return Err(format!(
                        "track {track} is as after operation {earlier:?}, not as after {from} or later"
                    ));
                };
                least[track] = place;
                let began = changes[least[track]].began;
                for (other, least) in self.tracks.iter().zip(&mut least) {
                    let is_before = |c: &Change| c.answered.is_some_and(|moment| moment < began);
                    *least = (*least).max(other.iter().rposition(is_before).unwrap_or(0));
                }
            }
            if least == before {
                return Ok(least);
            }
        }
    }
}
