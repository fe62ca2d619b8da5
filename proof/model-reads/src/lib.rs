//! Nothing of its own: `tests/model.rs` runs `product/engine/src/read_cache.rs`, the source itself, with
//! atomics that go through every order of two or three threads, and every value that the memory model
//! lets a load see.
