//! The graph of imports between the files of one crate, and its circles.
//!
//! A path counts as an import of the file that declares its last module or item. A re-export is
//! followed to the declaration and is no import itself, so a facade is no part of a circle. Macro
//! arguments are not read.

use crate::source::Source;
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use std::collections::{BTreeMap, BTreeSet};

/// Re-exports followed for one path, at most.
const REEXPORTS_MAX: usize = 16;

/// A path as written, split at `::`.
pub(crate) type Reference = Vec<String>;

/// A module as written in a file: the file's own, or an inline one.
#[derive(Clone, Default)]
pub(crate) struct Inner {
    /// Path below the file's module; empty for the file's own.
    pub(crate) path: Vec<String>,
    /// Imported name to the path it stands for.
    pub(crate) uses: BTreeMap<String, Reference>,
    pub(crate) globs: Vec<Reference>,
    /// Paths that the code needs: private imports, and what is named in it.
    pub(crate) references: BTreeSet<Reference>,
    /// Names of the items that the module declares.
    pub(crate) items: BTreeSet<String>,
}

struct Node<'a> {
    file: usize,
    inner: &'a Inner,
}

struct Modules<'a>(BTreeMap<Vec<String>, Node<'a>>);

/// Circles of imports with more than `files_max` files: the paths of each.
pub(crate) fn circles(files: &[Source], files_max: usize) -> Vec<Vec<&str>> {
    let modules = Modules::of(files);
    let mut graph = DiGraphMap::<usize, ()>::new();
    for (path, node) in &modules.0 {
        for owner in modules.imports(path, node) {
            graph.add_edge(node.file, owner, ());
        }
    }
    let circles = tarjan_scc(&graph).into_iter().filter(|circle| circle.len() > files_max);
    let name = |file: usize| files[file].path.as_str();
    let mut circles: Vec<Vec<&str>> =
        circles.map(|circle| circle.into_iter().map(name).collect()).collect();
    circles.iter_mut().for_each(|circle| circle.sort_unstable());
    circles
}

/// Module path of a file below `src`; none for a program beside a library.
pub(crate) fn module_path(path: &str, has_library: bool) -> Option<Vec<String>> {
    let path = path.strip_prefix("src/")?.strip_suffix(".rs")?;
    if has_library && (path == "main" || path.starts_with("bin/")) {
        return None;
    }
    let mut names: Vec<String> = path.split('/').map(str::to_owned).collect();
    if matches!(names.last()?.as_str(), "mod" | "lib" | "main") {
        names.pop();
    }
    Some(names)
}

impl<'a> Modules<'a> {
    fn of(files: &'a [Source]) -> Modules<'a> {
        let has_library = files.iter().any(|file| file.path == "src/lib.rs");
        let mut nodes = BTreeMap::new();
        for (index, file) in files.iter().enumerate() {
            let Some(path) = module_path(&file.path, has_library) else { continue };
            for inner in &file.modules {
                let path = path.iter().chain(&inner.path).cloned().collect();
                nodes.insert(path, Node { file: index, inner });
            }
        }
        Modules(nodes)
    }

    /// Other files that a module's paths lead to.
    fn imports(&self, path: &[String], node: &Node<'_>) -> BTreeSet<usize> {
        let owners = node.inner.references.iter().filter_map(|written| {
            let target = self.absolute(path, written, REEXPORTS_MAX)?;
            self.owner(&target, REEXPORTS_MAX)
        });
        owners.filter(|&owner| owner != node.file).collect()
    }

    /// The path from the crate's root; none if it leads to another crate.
    fn absolute(&self, module: &[String], written: &[String], left: usize) -> Option<Reference> {
        let (first, rest) = written.split_first()?;
        let below = |base: &[String]| [base, rest].concat();
        let child = [module, std::slice::from_ref(first)].concat();
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some(below(module)),
            "super" => {
                let supers = written.iter().take_while(|name| *name == "super").count();
                let base = &module[..module.len().checked_sub(supers)?];
                Some([base, &written[supers..]].concat())
            }
            _ if self.0.contains_key(&child) => Some(below(&child)),
            _ => Some(below(&self.imported(module, first, left)?)),
        }
    }

    /// What an imported name stands for in a module, as a path from the root.
    fn imported(&self, module: &[String], name: &String, left: usize) -> Option<Reference> {
        let left = left.checked_sub(1)?;
        let inner = self.0.get(module)?.inner;
        if inner.items.contains(name) {
            return None;
        }
        match inner.uses.get(name) {
            Some(alias) if alias.first() == Some(name) => None,
            Some(alias) => self.absolute(module, alias, left),
            None => {
                let globs = inner.globs.iter();
                let mut bases = globs.filter_map(|glob| self.absolute(module, glob, left));
                let provides = |base: &Reference| {
                    let inner = self.0.get(base).map(|node| node.inner);
                    inner.is_some_and(|inner| {
                        inner.items.contains(name) || inner.uses.contains_key(name)
                    })
                };
                let base = bases.find(provides)?;
                Some([base, vec![name.clone()]].concat())
            }
        }
    }

    /// The file that declares the target of a path.
    fn owner(&self, target: &[String], left: usize) -> Option<usize> {
        let known = |length: &usize| self.0.contains_key(&target[..*length]);
        let length = (0..=target.len()).take_while(known).last()?;
        let module = &target[..length];
        let imported = target.get(length).and_then(|name| self.imported(module, name, left));
        match imported {
            Some(base) => self.owner(&[&base, &target[length + 1..]].concat(), left - 1),
            None => Some(self.0[module].file),
        }
    }
}
