//! Races conditional requests against a bucket in memory, as Coulter does before it trusts one.

use coulter_object::bucket::MemoryBucket;
use coulter_object::bucket::{Bucket, Created};
use coulter_object::probe;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let bucket = MemoryBucket::new();
    probe::race(&bucket)?;
    assert!(matches!(bucket.create("name", b"first")?, Created::New(_)));
    assert_eq!(bucket.create("name", b"second")?, Created::Exists);
    println!("{}: of requests that race, one wins", bucket.url());
    Ok(())
}
