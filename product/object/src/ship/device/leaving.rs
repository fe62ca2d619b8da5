//! A copy that flushes, or the end of the volume, wait for no longer.

use super::{Leaving, ShippedDevice};
use crate::ship::shipper::Ack;
use coulter_device::Device;
use std::time::Instant;

impl<D: Device> ShippedDevice<D> {
    /// Sets the condition of a flush. Those that wait for the copy alone are answered if they
    /// need not any more.
    pub(super) fn acknowledge(&mut self, ack: Ack) {
        if ack == self.settings.ack {
            return;
        }
        self.settings.ack = ack;
        self.shipper.acknowledge(ack);
        if ack == Ack::Local && !self.has_stopped {
            self.answer_flushes(Ok(()));
            // The device within answers the others.
            self.flushes.clear();
        }
    }

    /// Closing the volume waits for what is left to be shipped, but not without end. The marks
    /// stay.
    pub(super) fn leave(&mut self, leaving: Leaving) {
        match leaving {
            Leaving::Until(until) if self.ships() && Instant::now() >= until => {
                if !self.shipper.is_idle() {
                    self.has_left = true;
                    self.answer_flushes(Ok(()));
                }
            }
            // What was not shipped cannot be made up for without opening it anew.
            Leaving::Stays if self.has_left && !self.has_stopped => self.stop(),
            Leaving::No | Leaving::Until(_) | Leaving::Stays => {}
        }
    }
}
