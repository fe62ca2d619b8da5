//! The conformance suite on a shipped device, and on one whose bucket fails all the time.

use coulter_device::conformance::{Access, SIZE_MIN};
use coulter_device::{Device, MemoryStore, OpenError, conformance_suite};
use coulter_object::bucket::MemoryBucket;
use coulter_object::bucket::faulty::{FaultyBucket, Rates};
use coulter_object::ranges::RangeSet;
use coulter_object::ship::device::Opening;
use coulter_object::ship::marks::Marks;
use coulter_object::{Ack, Bucket, Settings, ShippedDevice};
use std::sync::Arc;
use std::time::Duration;

/// Memory that is shipped anew at each opening.
fn shipped(ack: Ack, rates: Rates) -> impl Fn(Access) -> Result<Box<dyn Device>, OpenError> {
    let store = MemoryStore::new(SIZE_MIN);
    move |access| {
        if access == Access::ReadOnly {
            // Nothing is shipped that cannot change.
            return Ok(Box::new(store.open_read_only()?));
        }
        let inner = store.open()?;
        let bucket: Arc<dyn Bucket> =
            Arc::new(FaultyBucket::new(Arc::new(MemoryBucket::new()), rates, 1));
        let settings = Settings { ack, every: Duration::from_millis(5), ..Settings::DEFAULT };
        let opening = Opening {
            bucket,
            settings,
            marks: Marks::in_memory(),
            store: [1; 16],
            owner: "test".to_string(),
            // Nothing to begin with, so that a device of which nothing is asked is quiet.
            content: RangeSet::new(),
            reseed: false,
            has_ended: |_| true,
        };
        let (device, _) = ShippedDevice::open(inner, opening).expect("the bucket is empty");
        Ok(Box::new(device))
    }
}

const OFTEN: Rates = Rates { refused: 50, unanswered: 50, late: 50, unread: 50 };

conformance_suite!(shipped_locally, shipped(Ack::Local, Rates::default()));
conformance_suite!(shipped_remotely, shipped(Ack::Remote, Rates::default()));
conformance_suite!(shipped_to_a_faulty_bucket, shipped(Ack::Remote, OFTEN));
