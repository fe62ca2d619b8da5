//! Settings that may change while a copy is kept.

use super::{Ack, Action, Pace, Shipper};

impl Shipper {
    /// Sets the condition of flushes. With [`Ack::Local`] the driver answers those that wait.
    pub fn acknowledge(&mut self, ack: Ack) {
        self.settings.ack = ack;
        if ack == Ack::Local {
            self.flushes.clear();
            self.actions.retain(|action| !matches!(action, Action::Flushed(_)));
        }
    }

    /// How often it commits from now on, and how much may wait.
    pub fn adjust(&mut self, pace: Pace) {
        self.settings = self.settings.at(pace);
        self.settings.assert_consistent();
    }
}
