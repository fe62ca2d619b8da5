//! A planted offence of each kind is caught, and nothing else is.

use crate::house::{self, Commit, Crate, History, House};
use crate::rules::{self, Rule, Tics};
use crate::source::Source;
use crate::table::{Part, RuleBook, Rules};
use std::collections::BTreeMap;

const SOUND: &str =
    "//! Doubles.\n\npub fn double(n: u32) -> u32 {\n    assert!(n < 9);\n    2 * n\n}\n";

fn member(part: Part, name: &str, files: &[(&str, &str)]) -> Crate {
    let parse = |&(path, text): &(&str, &str)| Source::parse(path, text.to_owned()).unwrap();
    Crate {
        name: name.to_owned(),
        folder: format!("{}/{name}", part.folder()),
        imports: Vec::new(),
        inherits_lints: true,
        files: files.iter().map(parse).collect(),
    }
}

/// A product crate and a crate of the lab that break no rule, with their rule book.
fn sound() -> (House, RuleBook) {
    let house = House {
        crates: vec![
            member(Part::Product, "goods", &[("src/lib.rs", SOUND)]),
            member(Part::Lab, "lab", &[]),
        ],
        documents: BTreeMap::from([("README.md".to_owned(), "four words of text".to_owned())]),
        commits: History::Read(Vec::new()),
    };
    let rules = |part| Rules { part, limits: None };
    let crates = [("goods", rules(Part::Product)), ("lab", rules(Part::Lab))];
    let mut book = RuleBook {
        base_commit: "none".to_owned(),
        words_aim: 4,
        words_max: 4,
        document_tics_max: 0,
        tics: vec![r"\bso many\b".to_owned(), r"^\s*/// Whether ".to_owned()],
        shared_names: BTreeMap::new(),
        crates: crates.map(|(name, rules)| (name.to_owned(), rules)).into(),
    };
    let tics = Tics::new(&book.tics).unwrap();
    let measured = rules::measure(&house, &book, &tics);
    book.tighten(&measured);
    (house, book)
}

fn broken(house: &House, book: &RuleBook) -> Vec<Rule> {
    let measured = rules::measure(house, book, &Tics::new(&book.tics).unwrap());
    rules::check(house, book, &measured).into_iter().map(|offence| offence.rule).collect()
}

/// The rules that a sound house breaks after `plant`.
fn after(plant: impl FnOnce(&mut House)) -> Vec<Rule> {
    let (mut house, book) = sound();
    plant(&mut house);
    broken(&house, &book)
}

/// The rules that a file breaks when it comes to the product crate.
fn with_file(path: &str, text: &str) -> Vec<Rule> {
    after(|house| house.crates[0].files.push(Source::parse(path, text.to_owned()).unwrap()))
}

fn with_commit(message: &str) -> Vec<Rule> {
    let commit = Commit { id: "1".to_owned(), message: message.to_owned() };
    after(|house| house.commits = History::Read(vec![commit]))
}

#[test]
fn a_sound_house_breaks_no_rule() {
    assert_eq!(after(|_| {}), []);
}

#[test]
fn a_crate_without_an_entry_or_with_lints_of_its_own_is_caught() {
    assert_eq!(after(|house| house.crates.push(member(Part::Proof, "new", &[]))), [Rule::Entry]);
    assert_eq!(after(|house| drop(house.crates.pop())), [Rule::Entry]);
    assert_eq!(after(|house| house.crates[0].inherits_lints = false), [Rule::Lints]);
    assert_eq!(after(|house| house.crates[0].folder = "lab/goods".to_owned()), [Rule::Entry]);
}

#[test]
fn code_without_assertions_is_caught_unless_it_is_a_test() {
    assert_eq!(with_file("src/more.rs", "pub fn three() -> u32 {\n    3\n}\n"), [Rule::Assertions]);
    assert_eq!(with_file("tests/more.rs", "fn three() -> u32 {\n    3\n}\n"), []);
    assert_eq!(with_file("src/more.rs", "#[cfg(test)]\nmod tests {\n    fn f() {}\n}\n"), []);
    let only_debug = "pub fn f() {\n    debug_assert!(true);\n}\n";
    assert_eq!(with_file("src/more.rs", only_debug), [Rule::Assertions]);
}

#[test]
fn long_files_functions_and_lines_are_caught() {
    assert_eq!(with_file("tests/long.rs", &"\n".repeat(600)), []);
    assert_eq!(with_file("tests/long.rs", &"\n".repeat(601)), [Rule::FileLength]);
    let function = |lines: usize| format!("fn f() {{\n{}}}\n", "    f();\n".repeat(lines - 2));
    assert_eq!(with_file("tests/long.rs", &function(70)), []);
    assert_eq!(with_file("tests/long.rs", &function(71)), [Rule::FunctionLength]);
    assert_eq!(with_file("tests/wide.rs", &format!("// {}\n", "ä".repeat(97))), []);
    assert_eq!(with_file("tests/wide.rs", &format!("// {}\n", "ä".repeat(98))), [Rule::Columns]);
}

#[test]
fn a_circle_of_four_files_is_caught_and_one_of_three_is_not() {
    let circle = |names: &[&str]| {
        let next = names.iter().cycle().skip(1);
        let text = |next: &&str| format!("use crate::{next}::go as on;\npub fn go() {{ on() }}\n");
        let files: Vec<_> = names.iter().zip(next.map(text)).collect();
        after(|house| {
            let parse = |(name, text): (&&str, String)| {
                Source::parse(&format!("src/{name}.rs"), text + "const _: () = assert!(true);\n")
            };
            house.crates[0].files.extend(files.into_iter().map(|file| parse(file).unwrap()));
        })
    };
    assert_eq!(circle(&["a", "b", "c"]), []);
    assert_eq!(circle(&["a", "b", "c", "d"]), [Rule::Circles, Rule::Circles]);
}

#[test]
fn a_circle_through_a_facade_is_found_where_it_is_declared() {
    let parse = |&(path, text): &(&str, &str)| Source::parse(path, text.to_owned()).unwrap();
    let files: Vec<_> = [
        ("src/lib.rs", "mod a;\nmod b;\npub use a::A;\npub use b::B;"),
        ("src/a.rs", "pub struct A(crate::B);"),
        ("src/b.rs", "use super::*;\npub struct B(Box<A>);"),
    ]
    .iter()
    .map(parse)
    .collect();
    assert_eq!(crate::graph::circles(&files, 1).len(), 1);
    assert!(crate::graph::circles(&files, 3).is_empty());
}

#[test]
fn an_import_of_the_lab_is_caught_also_for_one_target() {
    assert_eq!(after(|house| house.crates[0].imports.push("lab".to_owned())), [Rule::Imports]);
    assert_eq!(after(|house| house.crates[1].imports.push("goods".to_owned())), []);
    let manifest = "[dev-dependencies]\nfree = '1'\n[target.'cfg(unix)'.dependencies]\n\
                    renamed = { package = 'lab' }";
    assert_eq!(house::imports(&manifest.parse().unwrap()), ["lab"]);
}

#[test]
fn unsafe_without_a_reason_is_caught() {
    let call = "fn f() {\n    let n =\n        unsafe { g() };\n}\n";
    assert_eq!(with_file("tests/more.rs", call), [Rule::Unsafe]);
    let reason = call.replace("    let", "    // SAFETY: g has no precondition.\n    let");
    assert_eq!(with_file("tests/more.rs", &reason), []);
    assert_eq!(with_file("tests/more.rs", "unsafe impl Send for A {}\n"), [Rule::Unsafe]);
}

#[test]
fn a_second_public_type_of_one_name_is_caught() {
    let twice = "pub struct A;\npub mod b {\n    pub enum A {}\n}\n\
                 const _: () = {\n    assert!(true);\n    assert!(true);\n};\n";
    assert_eq!(with_file("src/more.rs", twice), [Rule::Names]);
    assert_eq!(with_file("src/more.rs", &twice.replace("pub enum", "pub(crate) enum")), []);
}

#[test]
fn a_word_more_and_a_tic_are_caught() {
    let write = |text: &str| {
        let text = text.to_owned();
        after(|house| drop(house.documents.insert("README.md".to_owned(), text)))
    };
    assert_eq!(write("five words of new text"), [Rule::Words]);
    assert_eq!(write("| four | words | – | of text |"), []);
    assert_eq!(write("blocks, so many words"), [Rule::Tics]);
    assert_eq!(with_file("tests/more.rs", "/// Whether it runs.\nfn f() {}\n"), [Rule::Tics]);
    assert_eq!(with_file("tests/more.rs", "/// True if it runs.\nfn f() {}\n"), []);
}

#[test]
fn a_commit_without_a_body_is_caught_and_an_unknown_history_is_not() {
    assert_eq!(with_commit("Subject"), [Rule::Commits]);
    assert_eq!(with_commit("Subject\n\nSigned-off-by: A <a@b>"), [Rule::Commits]);
    assert_eq!(with_commit("Subject\n\nThe reason."), []);
    assert_eq!(after(|house| house.commits = History::Unknown("shallow".to_owned())), []);
}

#[test]
fn tightening_adopts_what_improved_and_loosens_nothing() {
    let (mut house, book) = sound();
    let wide = format!("/// Whether {}\nfn f() {{}}\n", "a".repeat(100));
    house.crates[0].files.push(Source::parse("tests/wide.rs", wide).unwrap());
    let measured = rules::measure(&house, &book, &Tics::new(&book.tics).unwrap());
    let mut tightened = book.clone();
    tightened.tighten(&measured);
    assert_eq!(tightened, book);
    let limits = tightened.crates.get_mut("goods").unwrap().limits.as_mut().unwrap();
    (limits.wide_lines_max, limits.tics_max) = (5, 5);
    tightened.tighten(&measured);
    let limits = tightened.crates["goods"].limits.as_ref().unwrap();
    assert_eq!((limits.wide_lines_max, limits.tics_max), (1, 1));
}
