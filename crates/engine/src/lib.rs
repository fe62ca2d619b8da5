#![no_std]
//! engine
