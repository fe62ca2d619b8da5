//! Features: what can be set.

/// Which feature, in bits 7 to 0 of command dword 10.
pub mod id {
    /// Arbitration.
    pub const ARBITRATION: u8 = 0x01;
    /// Power management.
    pub const POWER: u8 = 0x02;
    /// Temperature threshold.
    pub const TEMPERATURE: u8 = 0x04;
    /// Error recovery.
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Volatile write cache.
    pub const WRITE_CACHE: u8 = 0x06;
    /// Number of queues.
    pub const QUEUES: u8 = 0x07;
    /// Interrupt coalescing.
    pub const INTERRUPTS: u8 = 0x08;
    /// Interrupt vectors.
    pub const INTERRUPT_VECTOR: u8 = 0x09;
    /// Write atomicity.
    pub const ATOMICITY: u8 = 0x0a;
    /// Events.
    pub const EVENTS: u8 = 0x0b;
    /// Keep-alive timer.
    pub const KEEP_ALIVE: u8 = 0x0f;
    /// Flexible data placement.
    pub const PLACEMENT: u8 = 0x1d;
    /// Host identifier.
    pub const HOST_ID: u8 = 0x81;
}

/// The bit of command dword 10 of Set Features that saves.
pub const SAVE: u32 = 1 << 31;

/// What Get Features wants to know, in bits 10 to 8 of command dword 10.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// What is in force.
    Current,
    /// What is in force without anything set.
    Default,
    /// What was saved.
    Saved,
    /// What can be done with it.
    Capabilities,
}

impl Select {
    /// What a command dword 10 says.
    pub fn of(dword: u32) -> Option<Select> {
        match dword >> 8 & 7 {
            0 => Some(Select::Current),
            1 => Some(Select::Default),
            2 => Some(Select::Saved),
            3 => Some(Select::Capabilities),
            _ => None,
        }
    }
}

/// The capability that a feature can be changed.
pub const CHANGEABLE: u32 = 1 << 2;
