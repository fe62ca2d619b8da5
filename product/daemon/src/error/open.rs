//! About opening and closing the stores that are served.

use coulter_terminal::{self as terminal, Report, fault, usage};
use std::path::{Path, PathBuf};

/// When a volume cannot be of a size.
const ANOTHER_SIZE: &str = "name another --size, or none: then it is as large as the store allows";

coulter_terminal::reports! {
    /// About opening and closing stores.
    pub enum OpenError {
        /// Another program has the store; the command that takes it from a daemon of ours.
        InUse { path: PathBuf, reason: String, remedy: Option<String> } =>
            fault("cannot open {}", path.display())
            .why("{reason}")
            .maybe_help(remedy.as_ref().map(|command| format!("first run `{command}`")));
        /// There is nothing at a path where only devices are.
        DeviceMissing { path: PathBuf } =>
            fault("cannot use {}", path.display())
            .why("there is no such device")
            .help("`lsblk` shows the devices that there are");
        /// A symbolic link that leads to nothing.
        LinkToNothing { path: PathBuf, target: PathBuf } =>
            fault("cannot use {}", path.display())
            .why("it is a symbolic link, and there is nothing at {} that it leads to",
                target.display())
            .help("name the file itself, or make the link lead to it");
        /// A path that is no text, where text is needed.
        PathNotText { path: PathBuf } =>
            usage("cannot serve {}", path.display())
            .why("its path is not UTF-8, and the entry of an attached volume is")
            .help("rename the file, or the directory that it lies in");
        /// There is no store at that path; `make` is the command that makes one, where that would
        /// do.
        StoreMissing { path: PathBuf, make: Option<&'static str> } =>
            by(missing(path, *make));
        /// The library refused to open a store.
        Refused { path: PathBuf, reason: String } =>
            fault("cannot open {}", path.display())
            .why("{reason}");
        /// There is no store in a file, nor anything else.
        Blank { path: PathBuf } =>
            fault("cannot open {}", path.display())
            .why("there is no store here: the file holds nothing but zeros")
            .help("`coulter create {}` makes one", terminal::word(path));
        /// There is no store in a file or on a disk, but something else.
        HoldsOther { path: PathBuf, what: &'static str } =>
            fault("cannot open {}", path.display())
            .why("there is no store here: it holds {what}")
            .help("check that the path is right; if a store was here and was overwritten, restore \
                it from a backup");
        /// There is no store in a file or on a disk, and no sign of anything else.
        NotKnown { path: PathBuf } =>
            fault("cannot open {}", path.display())
            .why("there is no store here, or its superblocks were overwritten")
            .help("check that the path is right, and do not format it with `coulter create` if it \
                may have been a store");
        /// Neither a file nor a disk.
        NoStorePath { path: PathBuf } =>
            usage("cannot open {}", path.display())
            .why("{}", match path.is_dir() {
                true => "it is a directory, and nothing of Coulter is mounted on it",
                false => "it is neither a file nor a block device",
            })
            .help("name the file or disk of a store");
        /// A file that is too small for a store.
        NoStore { path: PathBuf, size: u64 } =>
            fault("cannot open {}", path.display())
            .why("there is no store here: it has only {size} bytes")
            .help("check the path");
        /// A file without a byte.
        Empty { path: PathBuf } =>
            fault("cannot open {}", path.display())
            .why("there is no store here: it is empty")
            .help("`coulter create {} --size 10G` makes one", terminal::word(path));
        /// Its copy cannot be kept.
        NotReplicated { path: PathBuf, url: String, reason: String } =>
            fault("cannot replicate {} to {url}", path.display())
            .why("{reason}")
            .help("`coulter replica status {0}` shows what is there: if that is another store's, \
                name another URL; else `coulter restore {0} FILE` brings it here, and `--reseed` \
                gives it up for this store", terminal::quoted(url));
        /// A file that is, or would be, the cache of a copy's volume cannot be.
        NotCached { path: PathBuf, url: String, reason: String, help: &'static str } =>
            fault("cannot attach {url} with the cache {}", path.display())
            .why("{reason}")
            .help("{help}");
        /// A cache in which something is still missing.
        CacheIncomplete { path: PathBuf } =>
            fault("cannot open {}", path.display())
            .why("it is a cache in which a part of its volume is still missing")
            .help("attach the volume with it: `coulter attach URL --cache {}`",
                terminal::word(path));
        /// A volume is not handed over by a copy.
        NotMoved { what: String, url: String, reason: String, help: String } =>
            fault("will not move {what} to {url}")
            .why("{reason}")
            .help("{help}");
        /// There is no copy to hand a volume over by.
        NoCopy { path: PathBuf, url: String, reason: String } =>
            fault("cannot move {} by {url}", path.display())
            .why("{reason}")
            .help("check the URL; `coulter replicate NAME URL` makes a copy first");
        /// The bucket for its copy cannot be opened.
        NoBucket { path: PathBuf, url: String, reason: String } =>
            fault("cannot replicate {} to {url}", path.display())
            .why("{reason}")
            .help("{}", match url.starts_with("file://") {
                true => "check the URL and the permissions there; its last directory is made",
                false => "check the URL, the credentials (AWS_ACCESS_KEY_ID and \
                    AWS_SECRET_ACCESS_KEY) and the address (AWS_ENDPOINT_URL, AWS_REGION)",
            });
        /// A store was closed in order, and its copy could not be brought up to date.
        CopyBehind { path: PathBuf, url: String, reason: String } =>
            fault("the copy of {} at {url} is behind", path.display())
            .why("{reason}")
            .help("the store is detached and whole; the next attach with `--replicate` ships what \
                is missing");
        /// A store that is served does not grow.
        NotGrown { path: PathBuf, reason: String, is_usage: bool } =>
            by(match is_usage {
                true => usage(format!("cannot let {} grow", path.display())).help(ANOTHER_SIZE),
                false => fault(format!("cannot let {} grow", path.display())),
            })
            .why("{reason}");
        /// A volume did not end in order.
        NotClosed { path: PathBuf, reason: String } =>
            fault("{} was not closed in order", path.display())
            .why("{reason}");
    }
}

fn cannot_open(path: &Path) -> Report {
    fault(format!("cannot open {}", path.display()))
}

fn missing(path: &Path, make: Option<&'static str>) -> Report {
    match make {
        None => cannot_open(path)
            .why("there is no such file or disk, and no volume of that name is attached")
            .help("check the path; `coulter list` shows the names of what is attached"),
        Some(make) => cannot_open(path).why("there is no such file or disk").help(format!(
            "check the path; `{make} {} --size 10G` makes a new one",
            terminal::word(path)
        )),
    }
}
