//! What users of other stacked file systems complain of, a test each, on files of which blocks are in the store.

mod content;
mod durability;
mod names;
mod users;
