//! Files of results replace nothing but older ones of their kind.

mod sandbox;

use sandbox::Sandbox;

/// The shortest demonstration.
const DEMO: [&str; 8] = ["demo", "--no-root", "--size", "1M", "--seconds", "2", "--directory", "."];

#[test]
fn a_result_does_not_replace_what_is_no_result() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    let trace = "8,0 1 1 0.000000000 4242 Q WS 8 + 8 [postgres]\n".repeat(100);
    std::fs::write(sandbox.path("t.txt"), &trace).expect("the directory is writable");
    let flash = ["flash", "attach", "--profile", "tiny", "--via", "nbd-server", "--statistics"];
    let read = |name: &str| std::fs::read(sandbox.path(name)).expect("it is there");
    let before = read("disk.img");
    for (words, name) in [
        (&["replay", "t.txt", "--plot"][..], "t.txt"),
        (&["replay", "t.txt", "--plot"], "disk.img"),
        (&["report", "--short", "--output"], "disk.img"),
        (&[&DEMO[..], &["--picture"]].concat(), "disk.img"),
        (&flash, "disk.img"),
    ] {
        let said = sandbox.fails(1, &[words, &[name]].concat());
        assert!(said.contains("will not write") && said.contains(name), "{said}");
        assert!(said.contains("another file"), "{said}");
    }
    assert!(read("t.txt") == trace.as_bytes() && read("disk.img") == before, "written to");
    assert!(!sandbox.path("disk.img.parts").exists());
    assert_eq!(sandbox.ok(&["list", "--json"]).trim(), "[]", "the drive is attached");
}

#[test]
fn a_report_removes_its_own_parts_only() {
    let sandbox = Sandbox::new();
    let parts = sandbox.make_directory("r.html.parts");
    std::fs::write(parts.join("notes"), b"theirs").expect("the directory is writable");
    sandbox.ok(&["report", "--short", "--only", "D1", "--output", "r.html"]);
    let left = std::fs::read_dir(&parts).expect("it is still there").flatten();
    assert_eq!(left.map(|file| file.file_name()).collect::<Vec<_>>(), ["notes"]);
}
