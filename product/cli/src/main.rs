//! `coulter`: see the library of this package.

use std::process::ExitCode;

fn main() -> ExitCode {
    coulter_cli::main()
}
