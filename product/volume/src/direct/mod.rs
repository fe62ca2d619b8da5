//! What the clients of one volume share to read by themselves: the cache, the device, the counters.

pub(crate) mod reads;

use crate::buffer::BUFFER_ALIGNMENT;
use crate::histogram::Histogram;
use crate::statistics::ReadCacheUse;
use coulter_device::ReadSource;
use coulter_engine::read_cache::ReadCache;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What the clients of one volume share.
pub(crate) struct Direct {
    cache: Arc<ReadCache>,
    source: ReadSource,
    hits: AtomicU64,
    hit_bytes: AtomicU64,
    misses: AtomicU64,
    mismatches: AtomicU64,
    latency: Mutex<Histogram>,
}

impl Direct {
    pub(crate) fn new(cache: Arc<ReadCache>, source: ReadSource) -> Direct {
        assert!(
            source.alignment() <= BUFFER_ALIGNMENT as u64,
            "buffers are aligned for any device"
        );
        Direct {
            cache,
            source,
            hits: AtomicU64::new(0),
            hit_bytes: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            mismatches: AtomicU64::new(0),
            latency: Mutex::default(),
        }
    }

    /// Nothing is looked up any more.
    pub(crate) fn close(&self) {
        self.cache.close();
    }

    /// Reads that clients have carried out.
    pub(crate) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Returns hits and misses so far, and adds the time that each hit took to `latency`.
    pub(crate) fn gather(&self, latency: &mut Histogram) -> ReadCacheUse {
        if let Ok(own) = self.latency.lock() {
            latency.add(&own);
        }
        ReadCacheUse {
            memory_bytes: self.cache.size(),
            hits: self.hits(),
            hit_bytes: self.hit_bytes.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            mismatches: self.mismatches.load(Ordering::Relaxed),
        }
    }
}
