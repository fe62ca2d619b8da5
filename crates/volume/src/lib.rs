//! Coulter as a library: a volume that turns random writes into one sequential log.

pub mod buffer;
pub mod service;
