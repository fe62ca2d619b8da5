//! One file per verb: its arguments, its help, and what it does.

pub(crate) mod bench;
pub(crate) mod daemon;
pub(crate) mod demo;
pub(crate) mod flash;
pub(crate) mod generate;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod sim;
