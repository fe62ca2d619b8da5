//! `coulter-lab report` is the same page whether it is interrupted or not.

mod sandbox;

use sandbox::{Sandbox, wait_until};
use std::process::Stdio;

fn parts(sandbox: &Sandbox) -> usize {
    std::fs::read_dir(sandbox.path("b.html.parts")).map_or(0, Iterator::count)
}

#[test]
fn an_interrupted_report_goes_on_and_comes_to_the_same_page() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["report", "--short", "--output", "a.html"]);
    let mut command = sandbox.command(&["report", "--short", "--output", "b.html"]);
    let mut child = command.stdout(Stdio::null()).spawn().expect("the program can be started");
    wait_until("some experiments are done", || parts(&sandbox) >= 3);
    child.kill().expect("it is our child");
    child.wait().expect("it is our child");
    assert!(!sandbox.path("b.html").exists(), "it was finished too early to be interrupted");
    let done = parts(&sandbox);
    // As a machine that lost its power would have left it.
    std::fs::write(sandbox.path("b.html.parts").join("D1.json"), b"{\"made_by\":").expect("ours");
    assert!(done >= 3);
    sandbox.ok(&["report", "--short", "--output", "b.html"]);
    let read = |name: &str| std::fs::read(sandbox.path(name)).expect("it was written");
    assert!(read("a.html") == read("b.html"), "another page");
    assert_eq!(parts(&sandbox), 0);
}

#[test]
fn what_was_measured_is_added_and_other_files_are_refused() {
    let sandbox = Sandbox::new();
    let outcome = r#"[{"id": "SV-mounts", "title": "A <measured> one", "paper": "p", "setup": "s",
        "tables": [{"heading": ["a", "b"], "rows": [["ext4", "1.27"]]}], "plots": [],
        "verdict": "partly", "reason": "r"}]"#;
    std::fs::write(sandbox.path("measured.json"), outcome).expect("it is writable");
    let words = ["report", "--short", "--only", "D1", "--output", "a.html"];
    let said = sandbox.ok(&[&words[..], &["--measured", "measured.json"]].concat());
    assert!(said.contains("SV-mounts"), "{said}");
    let page = std::fs::read_to_string(sandbox.path("a.html")).expect("it was written");
    assert!(page.contains("A &lt;measured&gt; one") && page.contains("<td>1.27</td>"), "{page}");
    std::fs::write(sandbox.path("measured.json"), "[{}]").expect("it is writable");
    let words = ["report", "--short", "--only", "D1", "--measured", "measured.json", "--json"];
    let said = sandbox.fails(1, &words);
    assert!(said.contains("measured.json") && said.contains("missing field"), "{said}");
}

#[test]
fn a_report_that_cannot_be_written_says_so_at_once() {
    let sandbox = Sandbox::new();
    let said = sandbox.fails(1, &["report", "--short", "--output", "missing/r.html"]);
    assert!(said.contains("cannot write missing/r.html\n"), "{said}");
    assert!(said.contains("no such file or directory"), "{said}");
    assert!(!sandbox.path("missing").exists());
    let said = sandbox.fails(2, &["report", "--only", "D99"]);
    assert!(said.contains("D99"), "{said}");
}
