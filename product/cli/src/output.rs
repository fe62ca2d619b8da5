//! Files that the program writes as results: pictures, pages, figures.
//!
//! A run may take minutes, and it may fail. What its user has at the path stays as it is until the
//! result is whole, and is never replaced by it unless it is an older result of the same kind.
//!
//! It does not keep two runs from writing to one path; the later one wins.
//!
//! Invariants:
//! - [`Output::check`] changes nothing;
//! - a file has all of its old content or all of the new, whatever ends the program;
//! - what is no file, such as a pipe, is written straight to, and a block device is not written to.

use crate::error::{CliError, SystemError};
use rustix::fs::{Access, access};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

/// Bytes of a file that are looked at to learn its kind.
const HEAD_SIZE: u64 = 4096;

/// Other names of this process's open files, which its user has redirected already.
const DESCRIPTORS: [&str; 5] =
    ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc/self/fd", "/proc/thread-self/fd"];

/// What a file of results holds, and how such a file is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// With its article.
    name: &'static str,
    /// One of these begins it.
    beginnings: &'static [&'static str],
    /// And this is near its beginning.
    mark: &'static str,
}

impl Kind {
    /// A picture; other people's pictures have not this remark.
    pub const SVG: Kind = Kind {
        name: "an SVG picture by coulter",
        beginnings: &["<svg"],
        mark: "<!-- made by coulter -->",
    };
    /// A page.
    pub const HTML: Kind = Kind {
        name: "an HTML page by coulter",
        beginnings: &["<!doctype html"],
        mark: "<meta name=\"generator\" content=\"coulter\">",
    };
    /// What `status --json` shows; other JSON may be somebody's settings.
    pub const STATISTICS: Kind =
        Kind { name: "a file of statistics", beginnings: &["{"], mark: "\"process_start_ticks\"" };
    /// A page of the manual.
    pub const MAN: Kind =
        Kind { name: "a manual page", beginnings: &[".ie ", ".TH ", ".\\\""], mark: "coulter" };
    /// What a shell reads to complete command lines.
    pub const COMPLETIONS: Kind = Kind {
        name: "a file of completions",
        beginnings: &["#compdef coulter", "_coulter()", "_coulter-lab()", "# print an optspec"],
        mark: "coulter",
    };

    /// Whether a file that begins with `head` is of this kind, or empty.
    fn is_of(self, head: &[u8]) -> bool {
        let head = String::from_utf8_lossy(head).to_lowercase();
        let text = head.trim_start_matches('\u{feff}').trim_start();
        let begins = |beginning: &&str| text.starts_with(beginning.to_lowercase().as_str());
        head.is_empty() || self.beginnings.iter().any(begins) && text.contains(self.mark)
    }
}

/// A place where a result of a kind may be written.
#[derive(Clone, Debug)]
pub struct Output {
    path: PathBuf,
    kind: Kind,
    target: OutputTarget,
}

/// What is there.
#[derive(Clone, Debug)]
enum OutputTarget {
    /// A file, or the place of one, symbolic links followed.
    File(PathBuf),
    /// Something that takes what is written to it.
    Stream,
}

impl Output {
    /// Makes sure that a result of `kind` can be written to `path`, as far as that can be known
    /// before.
    ///
    /// # Errors
    /// [`SystemError::OutputRefused`] when something of another kind is there; when the directory
    /// cannot be written to.
    pub fn check(path: &Path, kind: Kind) -> Result<Output, CliError> {
        let target = target(path, kind)?;
        Ok(Output { path: path.to_owned(), kind, target })
    }

    /// The path as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the result will be a file, beside which others can lie.
    pub fn is_file(&self) -> bool {
        matches!(self.target, OutputTarget::File(_))
    }

    /// Writes the result.
    ///
    /// # Errors
    /// As [`Output::check`], for much may have happened since; when it cannot be written. Then what
    /// was there before still is.
    pub fn write(&self, content: &[u8]) -> Result<(), CliError> {
        let written = match target(&self.path, self.kind)? {
            OutputTarget::File(path) => replace(&path, content),
            // What is redirected into a file goes behind what is in it.
            OutputTarget::Stream => OpenOptions::new()
                .append(true)
                .open(&self.path)
                .and_then(|mut stream| stream.write_all(content)),
        };
        written.map_err(|source| CliError::io("write", &self.path, source))
    }
}

fn target(path: &Path, kind: Kind) -> Result<OutputTarget, CliError> {
    let failed = |source| CliError::io("write", path, source);
    let refused = |reason: &str| {
        let (path, reason) = (path.to_owned(), reason.to_owned());
        CliError::from(SystemError::OutputRefused { path, kind: kind.name, reason })
    };
    if DESCRIPTORS.iter().any(|descriptor| path.starts_with(descriptor)) {
        return Ok(OutputTarget::Stream);
    }
    let there = match fs::metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        Err(_) if fs::symlink_metadata(path).is_ok() => {
            return Err(refused("a symbolic link to nothing is there"));
        }
        Err(_) => {
            check_directory_of(path).map_err(failed)?;
            return Ok(OutputTarget::File(path.to_owned()));
        }
    };
    let is = there.file_type();
    if is.is_fifo() || is.is_char_device() {
        return Ok(OutputTarget::Stream);
    }
    if !is.is_file() {
        return Err(refused(&format!("{} is there", kind_of(&there))));
    }
    access(path, Access::WRITE_OK).map_err(|errno| failed(errno.into()))?;
    if !kind.is_of(&head_of(path).map_err(failed)?) {
        return Err(refused(&format!("a file is there that is not {}", kind.name)));
    }
    let path = path.canonicalize().map_err(failed)?;
    check_directory_of(&path).map_err(failed)?;
    Ok(OutputTarget::File(path))
}

fn kind_of(there: &Metadata) -> &'static str {
    let is = there.file_type();
    match () {
        () if is.is_dir() => "a directory",
        () if is.is_block_device() => "a block device",
        () => "something that is no file",
    }
}

fn head_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path)?.take(HEAD_SIZE).read_to_end(&mut head)?;
    Ok(head)
}

/// Fails unless a file can be made beside `path`.
fn check_directory_of(path: &Path) -> io::Result<()> {
    if path.file_name().is_none() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(access(directory_of(path), Access::WRITE_OK | Access::EXEC_OK)?)
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Puts a file with this content at `path`, with the owner and the permissions of the one before.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = directory_of(path).join(format!(".{name}.{}.part", std::process::id()));
    let replaced =
        write_new(&part, fs::metadata(path).ok(), content).and_then(|()| fs::rename(&part, path));
    if replaced.is_err() {
        let _ = fs::remove_file(&part);
    }
    replaced
}

fn write_new(path: &Path, before: Option<Metadata>, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o666).open(path)?;
    if let Some(before) = before {
        // Only root may give a file away; anybody else's is then theirs.
        let _ = fchown(&file, Some(before.uid()), Some(before.gid()));
        file.set_permissions(before.permissions())?;
    }
    file.write_all(content)?;
    // So that no crash leaves the new name with nothing behind it.
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use tempfile::TempDir;

    fn directory() -> TempDir {
        tempfile::tempdir().expect("a temporary directory can be made")
    }

    fn file(directory: &TempDir, name: &str, content: &[u8]) -> PathBuf {
        let path = directory.path().join(name);
        fs::write(&path, content).expect("the directory is writable");
        path
    }

    fn names(directory: &TempDir) -> Vec<String> {
        let files = fs::read_dir(directory.path()).expect("it is readable").flatten();
        files.map(|file| file.file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn what_is_of_another_kind_is_refused_and_stays() {
        let directory = directory();
        let contents = [
            &b"8,0 1 1 0.0 4242 Q WS 1 + 8 [a]\n"[..],
            b"COULTER\0\0\0\0",
            &[0; 8192],
            b"<!DOCTYPE html><p>a page</p>",
            b"<svg xmlns=\"x\"><text>a drawing</text></svg>",
            b"<?xml version=\"1.0\"?><settings/>",
            b"{\"name\": \"package\"}",
            b" ",
        ];
        for content in contents {
            let path = file(&directory, "theirs", content);
            let error = Output::check(&path, Kind::SVG).expect_err("it is no picture");
            let text = error.to_string();
            assert!(
                text.contains("not an SVG picture by coulter") && text.contains("another file"),
                "{text}"
            );
            assert_eq!(fs::read(&path).expect("it is there"), content);
        }
        assert_eq!(names(&directory), ["theirs"]);
    }

    #[test]
    fn an_older_result_is_replaced_when_the_new_one_is_whole() {
        let directory = directory();
        for (kind, old) in [
            (Kind::SVG, "<svg xmlns=\"x\">\n<!-- made by coulter --></svg>"),
            (
                Kind::HTML,
                "<!DOCTYPE html>\n<meta name=\"generator\" content=\"coulter\"><html></html>",
            ),
            (Kind::STATISTICS, "{\"name\": \"a\", \"process_start_ticks\": 7}"),
            (Kind::SVG, ""),
        ] {
            let path = file(&directory, "result", old.as_bytes());
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("it is ours");
            let output = Output::check(&path, kind).expect("it is of this kind");
            assert_eq!(fs::read(&path).expect("it is there"), old.as_bytes(), "touched too early");
            output.write(b"new").expect("it is writable");
            assert_eq!(fs::read(&path).expect("it is there"), b"new");
            let mode = fs::metadata(&path).expect("it is there").permissions().mode();
            assert_eq!(mode & 0o777, 0o640);
        }
        assert_eq!(names(&directory), ["result"]);
    }

    #[test]
    fn nothing_is_made_before_the_end() {
        let directory = directory();
        let path = directory.path().join("new.svg");
        let output = Output::check(&path, Kind::SVG).expect("the directory is writable");
        assert_eq!(names(&directory), [""; 0]);
        // It came in the meantime.
        file(&directory, "new.svg", b"a store");
        assert!(output.write(b"<svg><!-- made by coulter -->").is_err());
        assert_eq!(fs::read(&path).expect("it is there"), b"a store");
        fs::remove_file(&path).expect("it is ours");
        output.write(b"<svg><!-- made by coulter -->").expect("the directory is writable");
        assert_eq!(fs::read(&path).expect("it is there"), b"<svg><!-- made by coulter -->");
    }

    #[test]
    fn links_are_judged_by_what_they_lead_to() {
        let directory = directory();
        let (old, link) = (
            file(&directory, "old", b"<svg><!-- made by coulter -->"),
            directory.path().join("link"),
        );
        symlink(&old, &link).expect("the directory is writable");
        Output::check(&link, Kind::SVG)
            .expect("a picture")
            .write(b"<svg><!-- made by coulter -->2")
            .expect("writable");
        assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
        assert_eq!(fs::read(&old).expect("it is there"), b"<svg><!-- made by coulter -->2");
        fs::write(&old, b"a store").expect("it is ours");
        assert!(Output::check(&link, Kind::SVG).is_err());
        fs::remove_file(&old).expect("it is ours");
        assert!(Output::check(&link, Kind::SVG).is_err(), "it leads to nothing");
    }

    #[test]
    fn directories_that_are_missing_and_directories_in_the_way_are_told() {
        let directory = directory();
        for path in ["no/picture.svg", ".", "..", "/", "/no/such/picture.svg"] {
            let path = directory.path().join(path);
            assert!(Output::check(&path, Kind::SVG).is_err(), "{}", path.display());
        }
    }

    #[test]
    fn pipes_are_written_straight_to() {
        let directory = directory();
        let path = directory.path().join("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).expect("it is writable");
        let output = Output::check(&path, Kind::HTML).expect("a pipe takes all");
        assert!(!output.is_file());
        let reader = std::thread::spawn(move || fs::read(path).expect("it is readable"));
        output.write(b"page").expect("it is read");
        assert_eq!(reader.join().expect("no panic"), b"page");
        Output::check(Path::new("/dev/null"), Kind::SVG).expect("it takes all");
        Output::check(Path::new("/dev/stdout"), Kind::SVG).expect("it takes all");
    }
}
