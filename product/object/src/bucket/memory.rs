//! Objects in memory, for tests.

use super::{Bucket, BucketError, Created, Object, Swapped, Tag};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Objects in memory. Clones are handles on the same objects.
#[derive(Clone, Debug, Default)]
pub struct MemoryBucket {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    objects: BTreeMap<String, (u64, Arc<[u8]>)>,
    version: u64,
}

impl MemoryBucket {
    /// A bucket that holds nothing.
    pub fn new() -> MemoryBucket {
        MemoryBucket::default()
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn store(&mut self, name: &str, bytes: &[u8]) -> Tag {
        self.version += 1;
        self.objects.insert(name.to_string(), (self.version, bytes.into()));
        Tag(self.version.to_string())
    }
}

impl Bucket for MemoryBucket {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
        let mut shared = self.lock();
        if shared.objects.contains_key(name) {
            return Ok(Created::Exists);
        }
        Ok(Created::New(shared.store(name, bytes)))
    }

    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
        let mut shared = self.lock();
        let current = shared.objects.get(name).map(|(version, _)| version.to_string());
        if current.as_ref() != Some(&tag.0) {
            return Ok(Swapped::Changed);
        }
        Ok(Swapped::Done(shared.store(name, bytes)))
    }

    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError> {
        let shared = self.lock();
        let Some((version, bytes)) = shared.objects.get(name) else { return Ok(None) };
        let size = bytes.len() as u64;
        let range = range.unwrap_or(0..size);
        let part = range.start.min(size) as usize..range.end.min(size) as usize;
        let bytes = bytes.get(part).unwrap_or_default().to_vec();
        Ok(Some(Object { bytes, tag: Tag(version.to_string()) }))
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        self.lock().objects.remove(name);
        Ok(())
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, BucketError> {
        let shared = self.lock();
        let found = shared.objects.iter().filter(|(name, _)| name.starts_with(prefix));
        Ok(found.map(|(name, (_, bytes))| (name.clone(), bytes.len() as u64)).collect())
    }

    fn url(&self) -> String {
        "memory:".to_string()
    }
}
