//! libFuzzer in front of the targets of `proof/fuzz`; the variable `COULTER_FUZZ_TARGET` names
//! one. `scripts/fuzz.sh` builds and runs it.

#![no_main]

use coulter_fuzz::Target;
use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

fn target() -> &'static Target {
    static TARGET: OnceLock<&Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = std::env::var("COULTER_FUZZ_TARGET").unwrap_or_default();
        coulter_fuzz::target(&name).unwrap_or_else(|| {
            let names: Vec<&str> = coulter_fuzz::TARGETS.iter().map(|target| target.name).collect();
            eprintln!("COULTER_FUZZ_TARGET must be one of: {}", names.join(", "));
            std::process::exit(2);
        })
    })
}

fuzz_target!(|bytes: &[u8]| (target().run)(bytes));
