//! Requests that were answered early and then failed.

use super::footprint::Footprint;
use crate::service::RequestError;

/// The blocks of such requests, each with its error.
#[derive(Debug, Default)]
pub(super) struct Lost(Vec<(Footprint, RequestError)>);

impl Lost {
    /// Adds a request.
    pub(super) fn add(&mut self, footprint: Footprint, error: RequestError) {
        self.0.push((footprint, error));
    }

    /// True if there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The error of the first request that overlaps `footprint`.
    pub(super) fn error_in(&self, footprint: &Footprint) -> Option<RequestError> {
        self.0.iter().find(|(lost, _)| lost.overlaps(footprint)).map(|(_, error)| *error)
    }
}
