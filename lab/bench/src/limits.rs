//! What a device under measurement may do at most: a stand-in for a cloud volume, which has caps,
//! on a disk that has more to give. Both sides of a comparison get the same.

use crate::error::BenchError;
use coulter_device::Device;
use coulter_device::wrap::{SlowDevice, SlowModel};
use std::fmt;
use std::time::Duration;

/// How a device is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits(pub SlowModel);

impl Limits {
    /// A general-purpose cloud volume; see [`SlowModel::CLOUD_VOLUME`].
    pub const CLOUD: Limits = Limits(SlowModel::CLOUD_VOLUME);

    /// The device, held back.
    pub(crate) fn hold_back(limits: Option<Limits>, device: Box<dyn Device>) -> Box<dyn Device> {
        match limits {
            Some(Limits(model)) => Box::new(SlowDevice::new(device, model)),
            None => device,
        }
    }

    /// That a device can be held back so: nothing may take for ever.
    ///
    /// # Errors
    /// When a cap is zero or the latency is above a minute.
    pub(crate) fn check(limits: Option<Limits>) -> Result<(), BenchError> {
        let Some(Limits(model)) = limits else { return Ok(()) };
        let caps = [model.operations_per_second, model.bytes_per_second];
        if caps.contains(&Some(0)) || model.operation_size == 0 {
            return Err(BenchError::option("a device that may do nothing is never measured"));
        }
        if model.latency > Duration::from_secs(60) {
            return Err(BenchError::option("a latency of a minute is the most"));
        }
        Ok(())
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limits(model) = self;
        write!(f, "latency {} ms", model.latency.as_secs_f64() * 1e3)?;
        if let Some(rate) = model.operations_per_second {
            let size = crate::figures::bytes(model.operation_size);
            write!(f, ", {rate} operations of up to {size} a second")?;
        }
        match model.bytes_per_second {
            Some(rate) => write!(f, ", {} a second", crate::figures::bytes(rate)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told_in_words() {
        assert_eq!(
            Limits::CLOUD.to_string(),
            "latency 1 ms, 3000 operations of up to 256.0 KiB a second, 125.0 MiB a second"
        );
    }

    #[test]
    fn a_device_that_may_do_nothing_is_refused() {
        let Limits(cloud) = Limits::CLOUD;
        for model in [
            SlowModel { operations_per_second: Some(0), ..cloud },
            SlowModel { bytes_per_second: Some(0), ..cloud },
            SlowModel { latency: Duration::from_secs(61), ..cloud },
        ] {
            assert!(matches!(Limits::check(Some(Limits(model))), Err(BenchError::Option { .. })));
        }
        assert!(Limits::check(Some(Limits::CLOUD)).is_ok());
        assert!(Limits::check(None).is_ok());
    }
}
