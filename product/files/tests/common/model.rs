//! What a file system should do, as simply as it can be said.

use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    File { content: Vec<u8> },
    Directory { names: BTreeMap<String, u64> },
}

/// A tree of directories and files with hard links.
#[derive(Clone, Debug)]
pub struct Model {
    pub nodes: BTreeMap<u64, Node>,
    next: u64,
}

impl Default for Model {
    fn default() -> Model {
        let root = Node::Directory { names: BTreeMap::new() };
        Model { nodes: BTreeMap::from([(1, root)]), next: 2 }
    }
}

impl Model {
    pub fn path(&self, path: &str) -> Result<u64, i32> {
        let mut at = 1;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            match &self.nodes[&at] {
                Node::Directory { names } => at = *names.get(part).ok_or(libc::ENOENT)?,
                Node::File { .. } => return Err(libc::ENOTDIR),
            }
        }
        Ok(at)
    }

    fn parent<'a>(&self, path: &'a str) -> Result<(u64, &'a str), i32> {
        let (parent, last) = path.rsplit_once('/').unwrap_or(("", path));
        let at = self.path(parent)?;
        match self.nodes[&at] {
            Node::Directory { .. } => Ok((at, last)),
            Node::File { .. } => Err(libc::ENOTDIR),
        }
    }

    fn names(&mut self, directory: u64) -> &mut BTreeMap<String, u64> {
        match self.nodes.get_mut(&directory) {
            Some(Node::Directory { names }) => names,
            _ => panic!("a directory"),
        }
    }

    fn make(&mut self, path: &str, node: Node) -> Result<u64, i32> {
        let (parent, last) = self.parent(path)?;
        if self.names(parent).contains_key(last) {
            return Err(libc::EEXIST);
        }
        let number = self.next;
        self.next += 1;
        self.nodes.insert(number, node);
        self.names(parent).insert(last.to_owned(), number);
        Ok(number)
    }

    pub fn create(&mut self, path: &str) -> Result<u64, i32> {
        self.make(path, Node::File { content: Vec::new() })
    }

    pub fn mkdir(&mut self, path: &str) -> Result<u64, i32> {
        self.make(path, Node::Directory { names: BTreeMap::new() })
    }

    pub fn unlink(&mut self, path: &str, is_rmdir: bool) -> Result<(), i32> {
        let (parent, last) = self.parent(path)?;
        let number = *self.names(parent).get(last).ok_or(libc::ENOENT)?;
        match (&self.nodes[&number], is_rmdir) {
            (Node::File { .. }, true) => return Err(libc::ENOTDIR),
            (Node::Directory { .. }, false) => return Err(libc::EISDIR),
            (Node::Directory { names }, true) if !names.is_empty() => return Err(libc::ENOTEMPTY),
            _ => {}
        }
        self.names(parent).remove(last);
        Ok(())
    }

    pub fn link(&mut self, from: &str, to: &str) -> Result<(), i32> {
        let number = self.path(from)?;
        let (parent, last) = self.parent(to)?;
        if matches!(self.nodes[&number], Node::Directory { .. }) {
            return Err(libc::EPERM);
        }
        if self.names(parent).contains_key(last) {
            return Err(libc::EEXIST);
        }
        self.names(parent).insert(last.to_owned(), number);
        Ok(())
    }

    fn is_within(&self, number: u64, above: u64) -> bool {
        number == above
            || match &self.nodes[&above] {
                Node::Directory { names } => names.values().any(|n| self.is_within(number, *n)),
                Node::File { .. } => false,
            }
    }

    pub fn rename(&mut self, from: &str, to: &str, exchange: bool) -> Result<(), i32> {
        let (from_parent, from_last) = self.parent(from)?;
        let (to_parent, to_last) = self.parent(to)?;
        let moved = *self.names(from_parent).get(from_last).ok_or(libc::ENOENT)?;
        let target = self.names(to_parent).get(to_last).copied();
        if exchange {
            let target = target.ok_or(libc::ENOENT)?;
            let loops = self.is_within(to_parent, moved) || self.is_within(from_parent, target);
            if from_parent != to_parent && moved != target && loops {
                return Err(libc::EINVAL);
            }
            self.names(from_parent).insert(from_last.to_owned(), target);
            self.names(to_parent).insert(to_last.to_owned(), moved);
            return Ok(());
        }
        if from_parent != to_parent && self.is_within(to_parent, moved) {
            return Err(libc::EINVAL);
        }
        if target == Some(moved) {
            return Ok(());
        }
        if let Some(target) = target {
            match (&self.nodes[&moved], &self.nodes[&target]) {
                (Node::Directory { .. }, Node::File { .. }) => return Err(libc::ENOTDIR),
                (Node::File { .. }, Node::Directory { .. }) => return Err(libc::EISDIR),
                (Node::Directory { .. }, Node::Directory { names }) if !names.is_empty() => {
                    return Err(libc::ENOTEMPTY);
                }
                _ => {}
            }
        }
        self.names(from_parent).remove(from_last);
        self.names(to_parent).insert(to_last.to_owned(), moved);
        Ok(())
    }

    pub fn content(&mut self, number: u64) -> &mut Vec<u8> {
        match self.nodes.get_mut(&number) {
            Some(Node::File { content }) => content,
            _ => panic!("a file"),
        }
    }
}
