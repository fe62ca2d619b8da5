//! Through the tree, node by node, in the order of the keys.

use super::facts::Facts;
use super::{Finding, Report};
use coulter_format::Block;
use coulter_format::files::node::{self, LEVELS_MAX};
use coulter_format::files::{Key, Node, Superblock, space};

/// A node to be looked at: where, on which level, and between which keys.
struct Expected {
    block: u64,
    level: u8,
    from: Key,
    below: Option<Key>,
}

/// Looks at every node; whether all of them could be.
pub(super) fn walk<E>(
    read: &mut dyn FnMut(u64) -> Result<Block, E>,
    superblock: &Superblock,
    facts: &mut Facts,
    report: &mut Report,
) -> bool {
    let root = Expected {
        block: superblock.root,
        level: superblock.root_level.min(LEVELS_MAX),
        from: Key::MIN,
        below: None,
    };
    let (mut todo, mut is_whole) = (vec![root], true);
    while let Some(expected) = todo.pop() {
        let Expected { block, .. } = expected;
        if !claim(superblock, facts, report, block) {
            is_whole = false;
            continue;
        }
        let data = match read(block) {
            Ok(data) => data,
            Err(_) => {
                report.add(Finding::Unreadable { block });
                is_whole = false;
                continue;
            }
        };
        if let Err(corrupt) = node::check(&data, block) {
            report.add(Finding::Node { block, corrupt });
            is_whole = false;
            continue;
        }
        report.counters.nodes += 1;
        is_whole &= look(Node(&data), &expected, superblock, facts, report, &mut todo);
    }
    is_whole
}

/// A block that is a node: it must lie where nodes can, and be nothing else.
fn claim(superblock: &Superblock, facts: &mut Facts, report: &mut Report, block: u64) -> bool {
    let group = space::group_of(block);
    let is_reserved = block - group * space::GROUP_BLOCKS < space::reserved_blocks(group);
    if block >= superblock.block_count || is_reserved {
        report.add(Finding::OutOfRange { block, by: superblock.root });
        return false;
    }
    if !facts.used.insert(block) {
        report.add(Finding::UsedTwice { block, by: block });
        return false;
    }
    true
}

fn look(
    node: Node<'_>,
    expected: &Expected,
    superblock: &Superblock,
    facts: &mut Facts,
    report: &mut Report,
    todo: &mut Vec<Expected>,
) -> bool {
    let Expected { block, level, from, below } = *expected;
    if node.level() != level {
        report.add(Finding::Level { block, found: node.level(), expected: level });
        return false;
    }
    if node.count() == 0 && block != superblock.root {
        report.add(Finding::EmptyNode { block });
    }
    let is_within = |key: Key| key >= from && below.is_none_or(|below| key < below);
    for index in 0..node.count() {
        let key = node.key(index);
        if !is_within(key) {
            report.add(Finding::OutOfOrder { block, key });
            return false;
        }
        if level == 0 {
            facts.add(superblock, key, node.item(index), report);
        }
    }
    if level == 0 {
        return true;
    }
    if node.key(0) != from {
        report.add(Finding::FirstKey { block, key: node.key(0), expected: from });
    }
    // The last child first, for the list is worked off from its end.
    for index in (0..node.count()).rev() {
        let next = (index + 1 < node.count()).then(|| node.key(index + 1));
        todo.push(Expected {
            block: node.child(index),
            level: level - 1,
            from: node.key(index),
            below: next.or(below),
        });
    }
    true
}
