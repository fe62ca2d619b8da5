//! One source file, read by syn: what the rules count in it.

use crate::graph::{Inner, Reference};
use anyhow::{Context, Result};
use proc_macro2::Span;
use std::collections::BTreeMap;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

/// A file of a crate, with the figures of its syntax tree.
pub(crate) struct Source {
    /// Path relative to the crate's folder, such as `src/log/place.rs`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Lines of code outside tests; blank lines and comments excluded.
    pub(crate) code_lines: usize,
    /// Assertions outside tests that a release build keeps.
    pub(crate) assertions: usize,
    /// Functions with their length in lines. Of two with one name, the longer.
    pub(crate) functions: BTreeMap<String, usize>,
    /// Lines with an `unsafe` block or impl that no `SAFETY:` comment explains.
    pub(crate) unexplained: Vec<usize>,
    /// Public types that the file declares.
    pub(crate) types: Vec<String>,
    /// The file's module and its inline modules.
    pub(crate) modules: Vec<Inner>,
    /// Child modules that only tests compile.
    pub(crate) test_modules: Vec<String>,
}

impl Source {
    pub(crate) fn parse(path: &str, text: String) -> Result<Source> {
        let file = syn::parse_file(&text).with_context(|| format!("parse {path}"))?;
        let mut reader = Reader { lines: text.lines().collect(), ..Reader::default() };
        reader.modules.push(Inner::default());
        reader.visit_file(&file);
        let code_lines = reader.code_lines();
        let Reader { assertions, functions, unexplained, types, modules, test_modules, .. } =
            reader;
        Ok(Source {
            path: path.to_owned(),
            text,
            code_lines,
            assertions,
            functions,
            unexplained,
            types,
            modules,
            test_modules,
        })
    }

    /// False for tests, examples and benchmarks that stand outside `src`.
    pub(crate) fn is_code(&self) -> bool {
        self.path.starts_with("src/")
    }
}

#[derive(Default)]
struct Reader<'a> {
    lines: Vec<&'a str>,
    assertions: usize,
    functions: BTreeMap<String, usize>,
    unexplained: Vec<usize>,
    types: Vec<String>,
    modules: Vec<Inner>,
    test_modules: Vec<String>,
    /// First and last line of each test module.
    tests: Vec<(usize, usize)>,
    /// Index of the module being read.
    current: usize,
    /// Nesting depth of test-only items.
    test_depth: usize,
    /// Nesting depth of function bodies.
    body_depth: usize,
}

impl Reader<'_> {
    fn code_lines(&self) -> usize {
        let is_code = |&(index, line): &(usize, &str)| {
            let line = line.trim();
            let number = index + 1;
            let is_test = self.tests.iter().any(|&(from, to)| (from..=to).contains(&number));
            !line.is_empty() && !line.starts_with("//") && !is_test
        };
        self.lines.iter().copied().enumerate().filter(is_code).count()
    }

    fn record_function(&mut self, name: &syn::Ident, span: Span) {
        let lines = span.end().line + 1 - name.span().start().line;
        let longest = self.functions.entry(name.to_string()).or_default();
        *longest = lines.max(*longest);
    }

    fn record_unsafe(&mut self, span: Span) {
        let line = span.start().line;
        if !has_reason(&self.lines, line) {
            self.unexplained.push(line);
        }
    }

    fn record_type(&mut self, visibility: &Visibility, name: &syn::Ident) {
        self.modules[self.current].items.insert(name.to_string());
        let is_public = matches!(visibility, Visibility::Public(_));
        if is_public && self.test_depth == 0 && self.body_depth == 0 {
            self.types.push(name.to_string());
        }
    }

    fn record_name(&mut self, name: &syn::Ident) {
        self.modules[self.current].items.insert(name.to_string());
    }

    fn record_use(&mut self, prefix: &mut Vec<String>, tree: &UseTree, is_private: bool) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.record_use(prefix, &path.tree, is_private);
                prefix.pop();
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.record_use(prefix, tree, is_private));
            }
            UseTree::Glob(_) => self.modules[self.current].globs.push(prefix.clone()),
            UseTree::Name(leaf) => self.record_leaf(prefix, &leaf.ident, &leaf.ident, is_private),
            UseTree::Rename(leaf) => {
                self.record_leaf(prefix, &leaf.ident, &leaf.rename, is_private);
            }
        }
    }

    fn record_leaf(
        &mut self,
        prefix: &[String],
        name: &syn::Ident,
        alias: &syn::Ident,
        is_private: bool,
    ) {
        let mut target = prefix.to_vec();
        if name != "self" {
            target.push(name.to_string());
        }
        let alias = if alias == "self" { prefix.last().cloned() } else { Some(alias.to_string()) };
        let module = &mut self.modules[self.current];
        module.references.extend(is_private.then(|| target.clone()));
        module.uses.extend(alias.map(|alias| (alias, target)));
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let is_module = matches!(item, Item::Mod(_));
        let excluded = |of: &Attribute| is_test_only(of) || is_module && is_verification(of);
        let is_test = attributes(item).iter().any(excluded);
        if is_test {
            if self.test_depth == 0 {
                self.tests.push((item.span().start().line, item.span().end().line));
            }
            if let Item::Mod(module) = item {
                self.test_modules.push(module.ident.to_string());
            }
        }
        self.test_depth += usize::from(is_test);
        match item {
            Item::Struct(item) => self.record_type(&item.vis, &item.ident),
            Item::Enum(item) => self.record_type(&item.vis, &item.ident),
            Item::Union(item) => self.record_type(&item.vis, &item.ident),
            Item::Trait(item) => self.record_type(&item.vis, &item.ident),
            Item::Type(item) => self.record_type(&item.vis, &item.ident),
            Item::Const(item) => self.record_name(&item.ident),
            Item::Static(item) => self.record_name(&item.ident),
            Item::Fn(item) => self.record_name(&item.sig.ident),
            _ => {}
        }
        visit::visit_item(self, item);
        self.test_depth -= usize::from(is_test);
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let outer = self.current;
        if module.content.is_some() {
            let mut path = self.modules[outer].path.clone();
            path.push(module.ident.to_string());
            self.modules.push(Inner { path, ..Inner::default() });
            self.current = self.modules.len() - 1;
        }
        visit::visit_item_mod(self, module);
        self.current = outer;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if self.test_depth == 0 {
            let is_private = matches!(item.vis, Visibility::Inherited);
            self.record_use(&mut Vec::new(), &item.tree, is_private);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if self.test_depth == 0 {
            let names = path.segments.iter().map(|segment| segment.ident.to_string());
            let reference: Reference = names.collect();
            self.modules[self.current].references.insert(reference);
        }
        visit::visit_path(self, path);
    }

    /// The path of a visibility, such as `crate`, is no import.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        let name = called.path.segments.last().map(|segment| segment.ident.to_string());
        let asserts = matches!(name.as_deref(), Some("assert" | "assert_eq" | "assert_ne"));
        self.assertions += usize::from(asserts && self.test_depth == 0);
        visit::visit_macro(self, called);
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.record_function(&function.sig.ident, function.block.span());
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        let is_test = function.attrs.iter().any(is_test_only);
        self.test_depth += usize::from(is_test);
        self.record_function(&function.sig.ident, function.block.span());
        visit::visit_impl_item_fn(self, function);
        self.test_depth -= usize::from(is_test);
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.body_depth += 1;
        visit::visit_block(self, block);
        self.body_depth -= 1;
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.record_unsafe(block.unsafe_token.span);
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let Some(token) = item.unsafety {
            self.record_unsafe(token.span);
        }
        visit::visit_item_impl(self, item);
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// True for `cfg(test)`, also within `all`.
fn is_test_only(attribute: &Attribute) -> bool {
    let condition = condition(attribute);
    condition == "test" || condition.starts_with("all (test")
}

/// True for modules that check an engine under test. They are no code of the product.
fn is_verification(attribute: &Attribute) -> bool {
    condition(attribute) == "feature = \"verify\""
}

/// What a `cfg` attribute asks for; empty for other attributes.
fn condition(attribute: &Attribute) -> String {
    match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => list.tokens.to_string(),
        _ => String::new(),
    }
}

/// True if a `SAFETY:` comment stands on the line or above its statement. `line` counts from 1.
fn has_reason(lines: &[&str], line: usize) -> bool {
    let mut above = lines[..line].iter().rev().map(|line| line.trim());
    let own = above.next().unwrap_or_default();
    let ends = |line: &str| line.is_empty() || line.ends_with([';', '}', '{']);
    own.contains("SAFETY:")
        || above
            .take_while(|line| line.starts_with("//") || !ends(line))
            .any(|line| line.contains("SAFETY:"))
}
