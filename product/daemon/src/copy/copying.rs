//! How a running volume begins, changes or ends its replication, while hosts wait.
//!
//! ```text
//! point.hand_over()   what hosts had asked for is done; from here on their requests wait
//! store closed        durable, unlocked; what is left is shipped to the copy that it has so far
//! opened, resumed     with the new replication, or with none; the command is answered
//! ```
//! If the store cannot be opened so, it is opened as it was before, and the command is told why.
//!
//! What a command has changed outlives the program: an upgraded daemon is started with the words of
//! the first one, and is handed a [`CopyOrder`] that makes of them what is true now.

use crate::copy::replication::Replication;
use coulter_object::url::UrlError;
use coulter_object::{Ack, Settings};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How a volume is to be replicated from now on. What is `None` stays as it is; of a volume that is
/// not replicated yet it is the default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "copying", rename_all = "snake_case")]
pub enum CopyOrder {
    /// Not at all.
    Stop,
    /// At a URL.
    Keep {
        /// Where.
        url: Option<String>,
        /// Whether a flush waits for the copy.
        waits: Option<bool>,
        /// Milliseconds between two commits.
        every_ms: Option<u64>,
        /// Bytes that may wait to be shipped.
        lag_max: Option<u64>,
        /// Bytes of memory for what is not sent yet.
        keep_max: Option<u64>,
        /// Ship all of it anew.
        reseed: bool,
    },
}

/// What a volume's replication has become.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copying {
    /// Where its copy is; `None` if it has none any more.
    pub url: Option<String>,
    /// The copy that it had before.
    pub url_before: Option<String>,
    /// Why that copy does not have all of it.
    pub behind: Option<String>,
}

/// Why an order makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OrderError {
    /// There is no copy, and none is named.
    NotReplicated,
    /// What is named is no URL.
    Url(UrlError),
}

impl std::fmt::Display for OrderError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OrderError::NotReplicated => f.write_str("it is not replicated"),
            OrderError::Url(error) => error.fmt(f),
        }
    }
}

impl CopyOrder {
    /// What becomes of a replication.
    ///
    /// # Errors
    /// [`OrderError`].
    pub(crate) fn applied(
        &self,
        before: Option<&Replication>,
    ) -> Result<Option<Replication>, OrderError> {
        let CopyOrder::Keep { url, waits, every_ms, lag_max, keep_max, reseed } = self else {
            return before.map(|_| None).ok_or(OrderError::NotReplicated);
        };
        let url = match (url, before) {
            (Some(url), _) => url.parse().map_err(OrderError::Url)?,
            (None, Some(before)) => before.url.clone(),
            (None, None) => return Err(OrderError::NotReplicated),
        };
        let kept = |of: fn(&Replication) -> u64| before.map(of);
        let every_before = kept(|before| u64::try_from(before.every.as_millis()).unwrap_or(1000));
        let every = every_ms.or(every_before).map(Duration::from_millis);
        let waits = waits.or(before.map(|before| before.ack == Ack::Remote)).unwrap_or(false);
        Ok(Some(Replication {
            url,
            ack: if waits { Ack::Remote } else { Ack::Local },
            every: every.unwrap_or(Settings::DEFAULT.every),
            lag_max: lag_max.or(kept(|before| before.lag_max)).unwrap_or(Settings::DEFAULT.lag_max),
            keep_max: keep_max
                .or(kept(|before| before.keep_max))
                .unwrap_or(Settings::DEFAULT.keep_max),
            reseed: *reseed,
            // A cache in which something is missing is not changed: see `Serving::check_copying`.
            cache: None,
        }))
    }

    /// True if it changes settings alone, which needs no new opening of the store.
    pub(crate) fn only_adjusts(&self) -> bool {
        matches!(self, CopyOrder::Keep { url: None, reseed: false, .. })
    }

    /// The order that leads to this replication from any other.
    pub(crate) fn to(replication: Option<&Replication>) -> CopyOrder {
        let order = replication.map_or(CopyOrder::Stop, |now| CopyOrder::Keep {
            url: Some(now.url.to_string()),
            waits: Some(now.ack == Ack::Remote),
            every_ms: Some(u64::try_from(now.every.as_millis()).unwrap_or(1000)),
            lag_max: Some(now.lag_max),
            keep_max: Some(now.keep_max),
            reseed: false,
        });
        assert!(!order.only_adjusts(), "it would lead elsewhere from another replication");
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(url: Option<&str>) -> CopyOrder {
        let url = url.map(str::to_owned);
        let (waits, every_ms, lag_max, keep_max) = (None, None, None, None);
        CopyOrder::Keep { url, waits, every_ms, lag_max, keep_max, reseed: false }
    }

    #[test]
    fn what_is_not_said_stays_as_it_is() {
        let first = keep(Some("s3://bucket/vol")).applied(None).expect("a URL").expect("a copy");
        assert_eq!((first.ack, first.every), (Ack::Local, Duration::from_secs(1)));
        let order = CopyOrder::Keep {
            url: None,
            waits: Some(true),
            every_ms: Some(50),
            lag_max: None,
            keep_max: Some(0),
            reseed: true,
        };
        let second = order.applied(Some(&first)).expect("a change").expect("a copy");
        assert_eq!((second.ack, second.every), (Ack::Remote, Duration::from_millis(50)));
        assert_eq!((&second.url, second.lag_max), (&first.url, first.lag_max));
        assert!(second.reseed, "once");
        let third = keep(Some("s3://bucket/other")).applied(Some(&second));
        let third = third.expect("a URL").expect("a copy");
        assert_eq!((third.ack, third.reseed, third.keep_max), (Ack::Remote, false, 0));
        assert_eq!(CopyOrder::Stop.applied(Some(&third)), Ok(None));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert_eq!(CopyOrder::Stop.applied(None), Err(OrderError::NotReplicated));
        assert_eq!(keep(None).applied(None), Err(OrderError::NotReplicated));
        let error = keep(Some("ftp://x/y")).applied(None).expect_err("no URL of ours");
        assert_eq!(error, OrderError::Url(UrlError::Scheme));
    }

    #[test]
    fn an_order_leads_to_the_same_from_anything() {
        let now = keep(Some("file:///a/b")).applied(None).expect("a URL");
        let other = keep(Some("file:///c/d")).applied(None).expect("a URL");
        let order = CopyOrder::to(now.as_ref());
        let text = serde_json::to_string(&order).expect("it is plain");
        let order: CopyOrder = serde_json::from_str(&text).expect("it was written so");
        assert_eq!(order.applied(None), Ok(now.clone()));
        assert_eq!(order.applied(other.as_ref()), Ok(now));
    }
}
