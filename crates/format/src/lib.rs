#![no_std]
//! format
