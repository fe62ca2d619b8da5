//! One file per verb: its arguments, its help, and what it does.

pub(crate) mod attach;
pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod create;
pub(crate) mod daemon;
pub(crate) mod demo;
pub(crate) mod detach;
pub(crate) mod dump;
pub(crate) mod flash;
pub(crate) mod generate;
pub(crate) mod grow;
pub(crate) mod list;
pub(crate) mod mount;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod restart;
pub(crate) mod salvage;
pub(crate) mod serve;
pub(crate) mod sim;
pub(crate) mod status;
pub(crate) mod tune;
pub(crate) mod umount;
