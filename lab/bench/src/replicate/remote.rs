//! A service of objects on this machine, as far away as an option says.

use super::Distance;
use crate::error::BenchError;
use coulter_object::bucket::{MemoryBucket, Meter, MeteredBucket, S3Bucket, S3Options};
use coulter_object::service::{Conditions, Proxy, Service};
use coulter_object::{Bucket, BucketError, ReplicaError};
use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Objects of a service that keeps them in memory, behind a proxy, by the client that volumes use.
pub(super) struct Remote {
    pub(super) bucket: Arc<dyn Bucket>,
    pub(super) meter: Meter,
    /// They end with it; the proxy first.
    proxy: Proxy,
    _service: Box<dyn Any + Send + Sync>,
    _credentials: tempfile::TempDir,
}

impl Remote {
    pub(super) fn start(distance: Distance) -> Result<Remote, BenchError> {
        let service = Service::start("bucket", Arc::new(MemoryBucket::new()));
        let service = service.map_err(system("starting a service of objects"))?;
        Remote::behind(service.address(), Box::new(service), distance)
    }

    /// A service at `upstream`, which ends when `service` is dropped.
    pub(super) fn behind(
        upstream: SocketAddr,
        service: Box<dyn Any + Send + Sync>,
        distance: Distance,
    ) -> Result<Remote, BenchError> {
        let proxy = Proxy::start(upstream, 1).map_err(system("starting a proxy"))?;
        proxy.set_conditions(Conditions {
            get_latency: distance.get_latency,
            put_latency: distance.put_latency,
            bandwidth: distance.bandwidth,
            ..Conditions::default()
        });
        let writing = system("writing the credentials of a service of objects");
        let folder = tempfile::tempdir().map_err(writing)?;
        let file = folder.path().join("credentials");
        let text = "[default]\naws_access_key_id=key\naws_secret_access_key=secret\n";
        std::fs::write(&file, text).map_err(writing)?;
        let options = S3Options {
            endpoint: proxy.endpoint(),
            region: "us-east-1".to_owned(),
            is_virtual_host: false,
            credentials_file: Some((file, "default".to_owned())),
            timeout: Duration::from_secs(60),
        };
        let bucket = S3Bucket::open("bucket", "volume", &options).map_err(failed)?;
        let bucket = MeteredBucket::new(bucket);
        Ok(Remote {
            meter: bucket.meter(),
            bucket: Arc::new(bucket),
            proxy,
            _service: service,
            _credentials: folder,
        })
    }

    /// The URL of the proxy.
    pub(super) fn endpoint(&self) -> String {
        self.proxy.endpoint()
    }

    /// Seconds that the creation of an object of a commit's size takes: the mean of a few.
    pub(super) fn put_seconds(&self) -> Result<f64, BenchError> {
        const TRIES: u32 = 20;
        let bytes = vec![7; 8 << 10];
        let start = Instant::now();
        for number in 0..TRIES {
            self.bucket.create(&format!("probe/{number}"), &bytes).map_err(failed)?;
        }
        let mean = start.elapsed().as_secs_f64() / f64::from(TRIES);
        for number in 0..TRIES {
            self.bucket.delete(&format!("probe/{number}")).map_err(failed)?;
        }
        Ok(mean)
    }
}

fn system(doing: &'static str) -> impl Fn(std::io::Error) -> BenchError + Copy {
    move |source| BenchError::System { doing, source }
}

/// What a bucket met is what the replica did.
fn failed(error: BucketError) -> BenchError {
    BenchError::Replica(ReplicaError::Bucket(error))
}
