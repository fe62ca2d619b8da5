//! Sets the one switch in which this crate differs from the engine.

fn main() {
    println!("cargo::rustc-cfg=coulter_canary");
    println!("cargo::rerun-if-changed=build.rs");
}
