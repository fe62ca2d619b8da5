//! The workspace as the rules see it: crates, documents, commits.

use crate::source::Source;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use toml::Table;
use walkdir::WalkDir;

/// Folders of the repository that hold no documents of its own.
const FOREIGN: [&str; 3] = ["target", "node_modules", "corpus"];

pub(crate) struct House {
    pub(crate) crates: Vec<Crate>,
    /// Path and text of each Markdown file.
    pub(crate) documents: BTreeMap<String, String>,
    pub(crate) commits: History,
}

pub(crate) struct Crate {
    pub(crate) name: String,
    /// Folder relative to the repository.
    pub(crate) folder: String,
    /// Normal dependencies. Those of builds and tests are free.
    pub(crate) imports: Vec<String>,
    pub(crate) inherits_lints: bool,
    pub(crate) files: Vec<Source>,
}

/// The commits after the base that the table names.
pub(crate) enum History {
    Read(Vec<Commit>),
    /// The reason why there is nothing to read: a shallow clone, no repository.
    Unknown(String),
}

pub(crate) struct Commit {
    pub(crate) id: String,
    /// The whole message.
    pub(crate) message: String,
}

impl House {
    pub(crate) fn read(root: &Path, base: &str) -> Result<House> {
        let crates = members(root)?.into_iter().map(|folder| Crate::read(root, &folder));
        Ok(House {
            crates: crates.collect::<Result<_>>()?,
            documents: documents(root)?,
            commits: history(root, base),
        })
    }
}

impl Crate {
    fn read(root: &Path, folder: &Path) -> Result<Crate> {
        let manifest = manifest(folder)?;
        let name = manifest.get("package").and_then(|package| package.get("name"));
        let name = name.and_then(toml::Value::as_str).context("a package without a name")?;
        let lints = manifest.get("lints").and_then(|lints| lints.get("workspace"));
        let mut files = Vec::new();
        for part in ["src", "tests", "examples", "benches"] {
            for path in walk(&folder.join(part)) {
                let short = relative(folder, &path);
                if !short.ends_with(".rs") {
                    continue;
                }
                let text = fs::read_to_string(&path)
                    .with_context(|| format!("read {}", path.display()))?;
                let whole = || format!("in {}", folder.display());
                files.push(Source::parse(&short, text).with_context(whole)?);
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Crate {
            name: name.to_owned(),
            folder: relative(root, folder),
            imports: imports(&manifest),
            inherits_lints: lints.and_then(toml::Value::as_bool) == Some(true),
            files,
        })
    }
}

/// Folders of the workspace's members.
fn members(root: &Path) -> Result<Vec<PathBuf>> {
    let workspace = manifest(root)?;
    let listed = workspace.get("workspace").and_then(|workspace| workspace.get("members"));
    let listed = listed.and_then(toml::Value::as_array).context("a workspace without members")?;
    let mut folders = Vec::new();
    for pattern in listed.iter().filter_map(toml::Value::as_str) {
        match pattern.strip_suffix("/*") {
            None => folders.push(root.join(pattern)),
            Some(parent) => {
                let parent = root.join(parent);
                let entries =
                    fs::read_dir(&parent).with_context(|| format!("list {}", parent.display()))?;
                for entry in entries {
                    folders.push(entry?.path());
                }
            }
        }
    }
    folders.retain(|folder| folder.join("Cargo.toml").is_file());
    folders.sort();
    Ok(folders)
}

fn manifest(folder: &Path) -> Result<Table> {
    let path = folder.join("Cargo.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    text.parse().with_context(|| format!("parse {}", path.display()))
}

/// Names of the normal dependencies, for every target.
pub(crate) fn imports(manifest: &Table) -> Vec<String> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let tables = targets.into_iter().flat_map(Table::values).filter_map(toml::Value::as_table);
    let tables = std::iter::once(manifest).chain(tables);
    let dependencies = tables.filter_map(|table| table.get("dependencies")?.as_table()).flatten();
    let names = dependencies.map(|(name, value)| {
        let renamed = value.get("package").and_then(toml::Value::as_str);
        renamed.unwrap_or(name).to_owned()
    });
    names.collect()
}

fn documents(root: &Path) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for path in walk(root).into_iter().filter(|path| path.extension().is_some_and(|e| e == "md")) {
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        found.insert(relative(root, &path), text);
    }
    Ok(found)
}

/// Files below a folder, hidden and foreign folders excluded. None if there is no such folder.
fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = WalkDir::new(folder).into_iter().filter_entry(|entry| {
        let name = entry.file_name().to_string_lossy();
        entry.depth() == 0 || !name.starts_with('.') && !FOREIGN.contains(&name.as_ref())
    });
    let files = entries.flatten().filter(|entry| entry.file_type().is_file());
    files.map(walkdir::DirEntry::into_path).collect()
}

fn relative(base: &Path, path: &Path) -> String {
    path.strip_prefix(base).unwrap_or(path).display().to_string()
}

/// The commits after `base`; merges excluded, for Git writes their messages.
fn history(root: &Path, base: &str) -> History {
    match commits(root, base) {
        Ok(commits) => History::Read(commits),
        Err(error) => History::Unknown(format!("{error:#}")),
    }
}

fn commits(root: &Path, base: &str) -> Result<Vec<Commit>> {
    let range = format!("{base}..HEAD");
    git(root, &["merge-base", "--is-ancestor", base, "HEAD"])
        .with_context(|| format!("{base} is no ancestor here"))?;
    let log = git(root, &["log", "--no-merges", "--format=%h%n%B%x00", &range])?;
    let entries = log.split('\0').map(str::trim).filter(|entry| !entry.is_empty());
    let commit = |entry: &str| {
        let (id, message) = entry.split_once('\n').unwrap_or((entry, ""));
        Commit { id: id.to_owned(), message: message.trim().to_owned() }
    };
    Ok(entries.map(commit).collect())
}

fn git(root: &Path, words: &[&str]) -> Result<String> {
    let output = Command::new("git").arg("-C").arg(root).args(words).output().context("run git")?;
    if !output.status.success() {
        bail!("git {}: {}", words[0], String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
