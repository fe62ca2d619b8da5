//! What an overlay tells of itself to `status` and to Prometheus.

use crate::overlaid::{content, put_over, scatter, status};
use crate::sandbox::{Sandbox, can_mount, names, write_and_sync};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;

/// The page at the address of the metrics.
fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("it takes the request");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("it answers");
    page
}

#[test]
fn status_and_metrics_show_the_figures_of_an_overlay() {
    let Some(_right) = can_mount("the figures of an overlay") else { return };
    let sandbox = Sandbox::new();
    let path = sandbox.make_directory("data").join("file");
    let mut expected = content(1);
    write_and_sync(&path, &expected);
    put_over(&sandbox, "data", &["--metrics", "127.0.0.1:0"]);
    scatter(&crate::open(&path), &mut expected, 2);
    let told = status(&sandbox, "data");
    let facts = sandbox.json(&["status", "data", "--json"]);
    let facts = facts.as_array().map_or(&facts, |all| &all[0]);
    for name in ["files", "stored_bytes", "remapped_writes", "adoptions", "capacity_bytes"] {
        assert_eq!(facts["overlay"][name], told[name], "{name}");
    }
    assert_eq!(facts["overlay"]["files"], 1, "{facts}");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md");
    let documentation = std::fs::read_to_string(path).expect("the documentation is there");
    let mut printed = BTreeSet::new();
    names(&facts["overlay"], &mut printed);
    names(&told, &mut printed);
    let missing: Vec<&String> =
        printed.iter().filter(|name| !documentation.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not in docs/json.md: {missing:?}");
    let address = facts["metrics"].as_str().expect("it has an address");
    let page = scrape(address);
    let value = |name: &str| {
        let line = page.lines().find(|line| line.starts_with(&format!("coulter_overlay_{name}{{")));
        let line = line.unwrap_or_else(|| panic!("{name} is not in\n{page}"));
        line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok()).expect("a number")
    };
    assert_eq!(Some(value("stored_bytes")), told["stored_bytes"].as_u64());
    assert_eq!(value("remapped_writes_total"), 5);
    assert_eq!((value("files"), value("orphans"), value("faults_total")), (1, 0, 0));
    assert!(page.contains("# TYPE coulter_overlay_stored_bytes gauge"), "{page}");
    assert!(page.contains("# TYPE coulter_overlay_remapped_writes_total counter"), "{page}");
    sandbox.ok(&["overlay", "settle", "data"]);
    let page = scrape(address);
    assert!(page.contains("coulter_overlay_files_brought_home_total{name=\"data\"} 1"), "{page}");
}
