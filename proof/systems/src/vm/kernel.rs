//! Kernels of Debian's, taken through apt from the mirror that this machine uses.

use crate::error::SystemsError;
use crate::tool;
use std::fs;
use std::path::{Path, PathBuf};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// What depends on the newest kernel of a suite; small, for virtual machines.
const META_PACKAGE: &str = "linux-image-cloud-amd64";

/// A kernel that scenarios run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum KernelName {
    /// Debian 12's own: no ublk.
    #[value(name = "6.1")]
    V6_1,
    /// Debian 12's backport.
    #[value(name = "6.12")]
    V6_12,
    /// The newest that Debian has for a release.
    Newest,
}

impl KernelName {
    /// What a person calls it.
    pub fn word(self) -> &'static str {
        match self {
            KernelName::V6_1 => "6.1",
            KernelName::V6_12 => "6.12",
            KernelName::Newest => "newest",
        }
    }

    /// Whether it has the ublk driver.
    pub fn has_ublk(self) -> bool {
        self != KernelName::V6_1
    }

    /// Whether files on ext4 and XFS take atomic writes of several blocks: Linux 6.16.
    pub fn has_atomic_files(self) -> bool {
        self == KernelName::Newest
    }

    fn suite(self) -> &'static str {
        match self {
            KernelName::V6_1 => "bookworm",
            KernelName::V6_12 => "bookworm-backports",
            KernelName::Newest => "trixie-backports",
        }
    }
}

/// An unpacked kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Which.
    pub name: KernelName,
    /// What `uname -r` says.
    pub release: String,
    /// The image.
    pub image: PathBuf,
    /// Where `lib/modules/RELEASE` is.
    pub root: PathBuf,
}

impl Kernel {
    /// The kernel, fetched and unpacked below `directory` unless it is there already.
    ///
    /// # Errors
    /// What apt says.
    pub fn fetch(name: KernelName, directory: &Path) -> Result<Kernel, SystemsError> {
        let directory = directory.join("kernels").join(name.word());
        let root = directory.join("root");
        let complete = directory.join("complete");
        if !complete.exists() {
            let _ = fs::remove_dir_all(&directory);
            make(&root)?;
            Apt::new(name.suite(), &directory)?.unpack_kernel(&root)?;
            unify(&root)?;
            let file = |source| SystemsError::io("write", &complete, source);
            fs::write(&complete, "").map_err(file)?;
        }
        let modules = root.join("lib/modules");
        let release = only_entry(&modules)?;
        let of_boot = root.join("boot").join(format!("vmlinuz-{release}"));
        let of_modules = modules.join(&release).join("vmlinuz");
        let image = if of_boot.exists() { of_boot } else { of_modules };
        Ok(Kernel { name, release, image, root })
    }
}

/// Apt with sources, lists and cache of its own.
/// Packages of an emulator that can place data.
const EMULATOR_PACKAGES: [&str; 4] =
    ["qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios"];
/// Debian 12's backport of it, QEMU 10: its own, 7.2, cannot.
const EMULATOR_SUITE: &str = "bookworm-backports";

/// A QEMU that emulates placement of data (FDP), fetched and unpacked below `directory` unless it is there; where
/// its files are.
///
/// # Errors
/// What apt says.
pub(super) fn fetch_emulator(directory: &Path) -> Result<PathBuf, SystemsError> {
    let directory = directory.join("emulator");
    let (root, complete) = (directory.join("root"), directory.join("complete"));
    if !complete.exists() {
        let _ = fs::remove_dir_all(&directory);
        make(&root)?;
        let apt = Apt::new(EMULATOR_SUITE, &directory)?;
        apt.run("apt-get", &[&["download", "-q"], &EMULATOR_PACKAGES[..]].concat())?;
        apt.unpack(&root)?;
        fs::write(&complete, "").map_err(|e| SystemsError::io("write", &complete, e))?;
    }
    Ok(root)
}

struct Apt {
    directory: PathBuf,
    options: Vec<String>,
}

impl Apt {
    fn new(suite: &str, directory: &Path) -> Result<Apt, SystemsError> {
        let apt = directory.join("apt");
        make(&apt.join("lists/partial"))?;
        make(&apt.join("archives/partial"))?;
        let sources = apt.join("sources.list");
        let line = format!("deb [signed-by={KEYRING}] {} {suite} main\n", mirror()?);
        fs::write(&sources, line).map_err(|e| SystemsError::io("write", &sources, e))?;
        let options = [
            format!("Dir::Etc::sourcelist={}", sources.display()),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            format!("Dir::State::lists={}", apt.join("lists").display()),
            format!("Dir::Cache={}", apt.display()),
            // It would not be let into the directory.
            "APT::Sandbox::User=root".to_owned(),
        ];
        let apt = Apt { directory: apt, options: options.into() };
        apt.run("apt-get", &["update", "-q"])?;
        Ok(apt)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String, SystemsError> {
        let mut command = tool::command(program);
        for option in &self.options {
            command.args(["-o", option]);
        }
        let output = tool::run(command.args(arguments).current_dir(&self.directory), "apt")?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn unpack_kernel(&self, root: &Path) -> Result<(), SystemsError> {
        let recursion = ["depends", "--recurse", "--no-recommends", "--no-suggests"];
        let relations =
            ["--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances", META_PACKAGE];
        let dependencies = self.run("apt-cache", &[&recursion[..], &relations[..]].concat())?;
        let parts = ["linux-image-", "linux-binary-", "linux-modules-"];
        // Names with a version in them; the others are shells around these.
        let is_part = |name: &&str| {
            let rest = parts.iter().find_map(|part| name.strip_prefix(part));
            rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        let mut wanted: Vec<&str> = dependencies.lines().filter(is_part).collect();
        wanted.dedup();
        if wanted.is_empty() {
            let what = format!("no kernel behind {META_PACKAGE}");
            return Err(SystemsError::Program {
                command: "apt-cache depends".into(),
                output: what,
            });
        }
        self.run("apt-get", &[&["download", "-q"], &wanted[..]].concat())?;
        self.unpack(root)
    }

    /// Unpacks every package that was downloaded.
    fn unpack(&self, root: &Path) -> Result<(), SystemsError> {
        for package in entries(&self.directory)? {
            if package.extension().is_some_and(|extension| extension == "deb") {
                let mut command = tool::command("dpkg-deb");
                tool::run(command.arg("-x").args([&package, root]), "dpkg")?;
            }
        }
        Ok(())
    }
}

/// Newer packages have modules below `usr`.
fn unify(root: &Path) -> Result<(), SystemsError> {
    let merged = root.join("usr/lib/modules");
    if merged.exists() && !root.join("lib/modules").exists() {
        make(&root.join("lib"))?;
        let to = root.join("lib/modules");
        fs::rename(&merged, &to).map_err(|e| SystemsError::io("make", &to, e))?;
    }
    let release = only_entry(&root.join("lib/modules"))?;
    let mut command = tool::command("depmod");
    tool::run(command.arg("-b").arg(root).arg(release), "kmod").map(drop)
}

/// The first Debian mirror in this machine's sources of packages.
fn mirror() -> Result<String, SystemsError> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    files.extend(entries(Path::new("/etc/apt/sources.list.d")).unwrap_or_default());
    let texts = files.iter().filter(|file| {
        file.extension().is_some_and(|extension| extension == "sources" || extension == "list")
    });
    let found = texts.filter_map(|file| fs::read_to_string(file).ok()).find_map(|text| {
        let words = text.split_ascii_whitespace().filter(|word| word.starts_with("http"));
        words
            .map(|word| word.trim_end_matches('/'))
            .find(|w| w.ends_with("/debian"))
            .map(Into::into)
    });
    Ok(found.unwrap_or_else(|| "http://deb.debian.org/debian".to_owned()))
}

pub(super) fn make(directory: &Path) -> Result<(), SystemsError> {
    fs::create_dir_all(directory).map_err(|source| SystemsError::io("make", directory, source))
}

/// What is in a directory, sorted.
pub(super) fn entries(directory: &Path) -> Result<Vec<PathBuf>, SystemsError> {
    let failed = |source| SystemsError::io("read", directory, source);
    let entries = fs::read_dir(directory).map_err(failed)?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn only_entry(directory: &Path) -> Result<String, SystemsError> {
    let name =
        entries(directory)?.first().and_then(|path| path.file_name()?.to_str().map(Into::into));
    let missing =
        || SystemsError::io("find a kernel in", directory, std::io::ErrorKind::NotFound.into());
    name.ok_or_else(missing)
}
