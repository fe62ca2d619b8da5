//! What users of other stacked file systems complain of, a test each, on files of which blocks are in the store.

mod content;
mod databases;
mod durability;
mod lower;
mod memory;
mod names;
mod servers;
mod users;
