//! About the system around the program.

use coulter_terminal::Size;
use std::path::PathBuf;

coulter_terminal::reports! {
    /// About the system around the program.
    pub enum SystemError {
        /// Nothing but root may do this.
        NeedsRoot { what: &'static str, help: &'static str } =>
            fault("{what} needs root")
            .help("{help}");
        /// The disk is too full for what is to be done.
        NoRoom { path: PathBuf, free: u64, room: u64 } =>
            fault("too little room in {}", path.display())
            .why("{} are free, {} are needed", Size(*free), Size(*room))
            .help("choose a smaller --size, or another --directory");
        /// A program that is needed is not installed.
        ToolMissing { tool: String, package: &'static str } =>
            fault("{tool} is not installed")
            .help("install it, on Debian and Ubuntu with `apt install {package}`");
        /// A program failed.
        ToolFailed { command: String, how: String, output: String } =>
            fault("`{command}` failed")
            .why("{}", match output.trim() {
                "" => how.clone(),
                output => format!("{how}: {output}"),
            });
        /// A result will not replace what is in its place.
        OutputRefused { path: PathBuf, kind: &'static str, reason: String } =>
            fault("will not write {kind} to {}", path.display())
            .why("{reason}")
            .help("name another file, or remove it first");
        /// Keys of NVMe hosts that cannot be used.
        KeysRefused { path: PathBuf, reason: String } =>
            fault("cannot use the keys in {}", path.display())
            .why("{reason}")
            .help("write lines of `HOST-NQN DHHC-1:…`, with keys of `nvme gen-dhchap-key`, and \
                `chmod 600` the file");
        /// The person pressed Ctrl-C, or the process was told to end.
        Interrupted =>
            fault("interrupted");
    }
}
