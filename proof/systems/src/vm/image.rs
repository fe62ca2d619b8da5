//! The root file system of a guest, as an archive that the kernel unpacks into memory: busybox,
//! programs of the host with their libraries, modules, and the scripts of the scenarios.

use super::kernel::{Kernel, entries, make};
use crate::error::SystemsError;
use crate::tool;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

const DIRECTORIES: [&str; 9] = ["bin", "dev", "etc", "lib", "lib64", "mnt", "proc", "run", "sys"];
/// Programs of the host, and the Debian packages that have them.
const PROGRAMS: [(&str, &str); 12] = [
    ("busybox", "busybox-static"),
    ("fio", "fio"),
    ("mkfs.ext4", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("xfs_repair", "xfsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("btrfs", "btrfs-progs"),
    ("losetup", "mount"),
    ("dd", "coreutils"),
    ("dmsetup", "dmsetup"),
    ("nvme", "nvme-cli"),
];
const MODULES: [&str; 14] = [
    "ublk_drv",
    "nbd",
    "loop",
    "fuse",
    "null_blk",
    "ext4",
    "xfs",
    "btrfs",
    "nvme",
    "dm_mod",
    "nvme-tcp",
    "nvmet-tcp",
    "crc32c_generic",
    "crc32c-intel",
];
/// What `ldd` does not see.
const LIBRARIES_LOADED_LATER: [&str; 1] = ["/lib/x86_64-linux-gnu/libgcc_s.so.1"];

/// What goes into an image besides what all have.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    /// `coulter`, and test programs.
    pub(super) programs: Vec<(String, PathBuf)>,
    /// The directory of the scripts; `init` is one of them.
    pub(super) scripts: PathBuf,
}

/// Packs the image of `kernel` as `archive`, by way of `directory`.
///
/// # Errors
/// When something is missing, or cannot be copied.
pub(super) fn pack(
    kernel: &Kernel,
    contents: &Contents,
    directory: &Path,
    archive: &Path,
) -> Result<(), SystemsError> {
    let _ = fs::remove_dir_all(directory);
    for name in DIRECTORIES {
        make(&directory.join(name))?;
    }
    let mut libraries: BTreeSet<PathBuf> =
        LIBRARIES_LOADED_LATER.iter().map(PathBuf::from).filter(|path| path.exists()).collect();
    for (name, package) in PROGRAMS {
        let path = found(name, package)?;
        libraries.extend(libraries_of(&path)?);
        copy(&path, &directory.join("bin").join(name))?;
    }
    for (name, path) in &contents.programs {
        libraries.extend(libraries_of(path)?);
        strip(path, &directory.join("bin").join(name))?;
    }
    for library in libraries {
        copy(&library, &directory.join(library.strip_prefix("/").unwrap_or(&library)))?;
    }
    for script in entries(&contents.scripts)? {
        let name = script.file_name().unwrap_or_default();
        copy(&script, &directory.join("etc").join(name))?;
    }
    copy(&contents.scripts.join("init"), &directory.join("init"))?;
    copy_modules(kernel, directory)?;
    archive_directory(directory, archive)
}

/// Packs a directory the way the kernel takes it.
///
/// # Errors
/// What `cpio` says.
pub(super) fn archive_directory(directory: &Path, archive: &Path) -> Result<(), SystemsError> {
    let list = {
        let mut find = tool::command("find");
        tool::run(find.arg(".").current_dir(directory), "findutils")?.stdout
    };
    let failed = |source| SystemsError::io("write", archive, source);
    let out = fs::File::create(archive).map_err(failed)?;
    let mut command = tool::command("cpio");
    command.args(["-o", "-H", "newc", "--quiet"]).current_dir(directory);
    command.stdin(Stdio::piped()).stdout(out);
    let mut child = command.spawn().map_err(|e| tool::not_started(&command, "cpio", e))?;
    let mut input = child.stdin.take().expect("it is a pipe");
    input.write_all(&list).map_err(failed)?;
    drop(input);
    let status = child.wait().map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    let (command, output) = (tool::described(&command), status.to_string());
    Err(SystemsError::Program { command, output })
}

fn copy_modules(kernel: &Kernel, directory: &Path) -> Result<(), SystemsError> {
    let relative = Path::new("lib/modules").join(&kernel.release);
    let (from, to) = (kernel.root.join(&relative), directory.join(&relative));
    make(&to)?;
    for name in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
        if from.join(name).exists() {
            copy(&from.join(name), &to.join(name))?;
        }
    }
    let mut command = tool::command("modprobe");
    command.arg("-d").arg(&kernel.root).args(["-S", &kernel.release, "--show-depends", "-a"]);
    // A kernel may lack some; scenarios that need them do not run on it.
    let output = tool::finish(command.args(MODULES), "kmod")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for line in text.lines().filter_map(|line| line.strip_prefix("insmod ")) {
        let path = Path::new(line.split(' ').next().unwrap_or_default());
        let Some(below) = path.to_str().and_then(|path| path.split_once("/kernel/")) else {
            continue;
        };
        unpack_module(path, &to.join("kernel").join(below.1))?;
    }
    let mut command = tool::command("depmod");
    tool::run(command.arg("-b").arg(directory).arg(&kernel.release), "kmod").map(drop)
}

/// Copies a module; busybox loads only plain ones.
fn unpack_module(from: &Path, to: &Path) -> Result<(), SystemsError> {
    if from.extension().is_none_or(|extension| extension != "xz") {
        return copy(from, to);
    }
    let mut command = tool::command("xz");
    let plain = tool::run(command.arg("-dc").arg(from), "xz-utils")?.stdout;
    let to = to.with_extension("");
    make(to.parent().unwrap_or(Path::new("/")))?;
    fs::write(&to, plain).map_err(|source| SystemsError::io("write", &to, source))
}

fn found(program: &str, package: &'static str) -> Result<PathBuf, SystemsError> {
    let directories = ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin"];
    let mut candidates = directories.iter().map(|directory| Path::new(directory).join(program));
    let missing = || SystemsError::Missing { program: program.to_owned(), package };
    candidates.find(|path| path.exists()).ok_or_else(missing)
}

fn libraries_of(program: &Path) -> Result<Vec<PathBuf>, SystemsError> {
    // It fails for programs that have none.
    let output = tool::finish(tool::command("ldd").arg(program), "libc-bin")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = text.split_ascii_whitespace().filter(|word| word.starts_with('/'));
    Ok(words.map(PathBuf::from).collect())
}

/// Copies a program without its symbols, which would have to be loaded.
fn strip(from: &Path, to: &Path) -> Result<(), SystemsError> {
    let mut command = tool::command("strip");
    tool::run(command.arg("-o").args([to, from]), "binutils").map(drop)
}

fn copy(from: &Path, to: &Path) -> Result<(), SystemsError> {
    make(to.parent().unwrap_or(Path::new("/")))?;
    let failed = |source| SystemsError::io("copy", from, source);
    fs::copy(from, to).map_err(failed)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).map_err(failed)
}
