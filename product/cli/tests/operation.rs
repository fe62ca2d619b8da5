//! A volume in production: metrics, logs, and the daemon's other ways of being seen and steered.

mod sandbox;

use sandbox::Sandbox;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

/// A sandbox with a store, and what `attach` with these words printed.
fn attached(words: &[&str]) -> (Sandbox, serde_json::Value) {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    let base = ["attach", "disk.img", "--via", "nbd-server", "--json"];
    let entry = sandbox.json(&[&base[..], words].concat());
    (sandbox, entry)
}

fn http(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("somebody listens");
    stream.write_all(request.as_bytes()).expect("it is read");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer in text");
    answer
}

#[test]
fn metrics_are_offered_on_a_port_of_the_loopback() {
    let (sandbox, entry) = attached(&["--metrics", "127.0.0.1:0"]);
    let address = entry["metrics"].as_str().expect("the port is told").parse();
    let address: SocketAddr = address.expect("it is an address");
    // One that says nothing keeps neither the daemon nor, for long, others from being answered.
    let silent = TcpStream::connect(address).expect("somebody listens");
    sandbox.ok(&["status", "disk"]);
    let page = http(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    drop(silent);
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    for metric in [
        "coulter_info{name=\"disk\"",
        "coulter_running{name=\"disk\"} 1",
        "coulter_written_host_bytes_total{name=\"disk\"} ",
        "coulter_write_latency_seconds{name=\"disk\",quantile=\"0.999\"} ",
    ] {
        assert!(page.contains(metric), "{metric} is not in\n{page}");
    }
    let length = page.split("Content-Length: ").nth(1).and_then(|rest| rest.lines().next());
    let content = page.split_once("\r\n\r\n").expect("a head and a body").1;
    assert_eq!(length, Some(content.len().to_string().as_str()));
    assert!(http(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    sandbox.ok(&["detach", "disk"]);
    sandbox::wait_until("the port is closed", || TcpStream::connect(address).is_err());
}

#[test]
fn a_volume_that_is_only_read_runs_and_one_whose_daemon_is_dead_has_no_metrics() {
    let (sandbox, entry) = attached(&["--metrics", "127.0.0.1:0", "--read-only"]);
    let address = entry["metrics"].as_str().expect("the port is told").parse();
    let address: SocketAddr = address.expect("it is an address");
    let page = http(address, "GET /metrics HTTP/1.1\r\n\r\n");
    for metric in ["coulter_running{name=\"disk\"} 1", "coulter_read_only{name=\"disk\"} 1"] {
        assert!(page.contains(metric), "{metric} is not in\n{page}");
    }
    // That is what the alert on a dead daemon goes by.
    sandbox.signal("disk", "KILL");
    sandbox::wait_until("the port is closed", || TcpStream::connect(address).is_err());
}

#[test]
fn a_port_in_use_and_one_that_others_reach_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    let taken = TcpListener::bind("127.0.0.1:0").expect("some port is free");
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).expect("its port");
    for (address, code, reason) in
        [(taken.1.as_str(), 1, "the port is in use"), ("0.0.0.0:0", 2, "others could reach it")]
    {
        let output =
            sandbox.run(&["attach", "disk.img", "--via", "nbd-server", "--metrics", address]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(error.contains(reason) && error.contains("127.0.0.1"), "{error}");
        assert_eq!(sandbox.ok(&["list", "--json"]).trim(), "[]", "nothing is left");
    }
}

#[test]
fn the_log_can_be_objects() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server", "--log-format", "json"]);
    // A thread of its own writes the log, perhaps after `attach` has ended.
    let mut serving = serde_json::Value::Null;
    sandbox::wait_until("the log says that the volume is served", || {
        let log = std::fs::read_to_string(sandbox.path("state/disk.log")).expect("there is a log");
        let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let mut lines = whole.lines().map(|line| serde_json::from_str(line).expect("an object"));
        let found = lines.find(|line: &serde_json::Value| line["message"] == "serving");
        serving = found.unwrap_or_default();
        serving.is_object()
    });
    assert_eq!((&serving["name"], &serving["level"]), (&"disk".into(), &"info".into()));
    assert!(serving["pid"].is_u64(), "{serving}");
}

/// On a terminal, which `script` makes; elsewhere a line each second.
#[test]
fn status_is_drawn_on_a_terminal_and_told_line_by_line_elsewhere() {
    let (sandbox, _) = attached(&[]);
    let mut lines = sandbox.command(&["status", "disk", "--watch"]);
    let mut lines = lines.stdout(Stdio::piped()).spawn().expect("the program can be started");
    let mut first = String::new();
    let output = lines.stdout.take().expect("it is a pipe");
    BufReader::new(output).read_line(&mut first).expect("it says something");
    lines.kill().and_then(|()| lines.wait()).expect("it ends");
    assert!(first.starts_with("disk ") && first.contains("writes/s"), "{first}");
    assert!(!first.contains('\u{1b}'), "{first:?}");

    let program = sandbox.command(&[]).get_program().to_string_lossy().into_owned();
    let mut script = Command::new("script");
    let watch =
        format!("timeout --preserve-status -s INT 3 {program} status disk --watch; echo code=$?");
    script.args(["-qec", &watch, "/dev/null"]).stdin(Stdio::null()).env("TERM", "xterm");
    script.env("COULTER_STATE_DIRECTORY", sandbox.path("state"));
    let Ok(drawn) = script.output() else {
        println!("SKIPPED: the dashboard on a terminal needs `script`");
        return;
    };
    let drawn = String::from_utf8_lossy(&drawn.stdout);
    for part in ["\u{1b}[?1049h", "of 164 empty", "Ctrl-C ends", "WAF"] {
        assert!(drawn.contains(part), "{part:?} is not in {drawn:?}");
    }
    let end = drawn.rfind("\u{1b}[?1049l").expect("the terminal is given back");
    assert!(drawn[end..].contains("code=0"), "{:?}", &drawn[end..]);
}

#[test]
fn help_that_cannot_be_written_is_an_error_and_that_nobody_reads_is_none() {
    let sandbox = Sandbox::new();
    for words in [&["--help"][..], &["--version"], &["create", "--help"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("it is there");
        let output = sandbox.command(words).stdout(full).stderr(Stdio::piped()).output();
        let output = output.expect("the program can be started");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("cannot write to standard output"), "{error}");
        let (reader, writer) = std::io::pipe().expect("there can be a pipe");
        drop(reader);
        let status = sandbox.command(words).stdout(writer).status();
        assert_eq!(status.expect("the program can be started").code(), Some(0));
    }
}

#[test]
fn a_watch_ends_when_nobody_reads_it() {
    let (sandbox, _) = attached(&[]);
    for words in [&["status", "--watch"][..], &["status", "disk", "--watch", "--json"]] {
        let mut watch = sandbox.command(words);
        let mut watch = watch.stdout(Stdio::piped()).spawn().expect("the program can be started");
        let mut line = String::new();
        let output = watch.stdout.take().expect("it is a pipe");
        BufReader::new(output).read_line(&mut line).expect("it says something");
        assert!(line.contains("disk"), "{line}");
        sandbox::wait_until("it has ended", || watch.try_wait().expect("our child").is_some());
        assert_eq!(watch.wait().expect("our child").code(), Some(0));
    }
    sandbox.ok(&["detach", "disk"]);
    // With nothing to say, too.
    let mut watch = sandbox.command(&["status", "--watch"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().expect("the program can be started");
    drop(watch.stdout.take());
    sandbox::wait_until("it has ended", || watch.try_wait().expect("our child").is_some());
}

#[test]
fn a_daemon_that_does_not_answer_hides_none_of_the_others() {
    let (sandbox, _) = attached(&[]);
    sandbox.ok(&["create", "other.img", "--size", "256M", "--segment-size", "2M"]);
    sandbox.ok(&["attach", "other.img", "--via", "nbd-server"]);
    let pid = sandbox.pid_of("other");
    sandbox::send(pid, "STOP");
    let start = |words: &[&str]| {
        let mut command = sandbox.command(words);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the program can be started")
    };
    let (text, json) = (start(&["status"]), start(&["status", "--json"]));
    let mut watch = start(&["status", "--watch", "--json"]);
    let mut lines = BufReader::new(watch.stdout.take().expect("it is a pipe")).lines();
    let watched = [lines.next(), lines.next()];
    drop(lines);
    let outputs = [text, json, watch].map(|child| child.wait_with_output().expect("it ends"));
    sandbox::send(pid, "CONT");
    for line in watched {
        let line = line.expect("it goes on").expect("it is text");
        assert!(line.contains("\"name\":\"disk\""), "{line}");
    }
    let codes = outputs.each_ref().map(|output| output.status.code());
    assert_eq!(codes, [Some(1), Some(1), Some(0)]);
    for output in &outputs {
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(error.matches(&format!("kill -CONT {pid}")).count(), 1, "{error}");
    }
    assert!(String::from_utf8_lossy(&outputs[0].stdout).starts_with("disk "));
    let array: Vec<serde_json::Value> =
        serde_json::from_slice(&outputs[1].stdout).expect("an array");
    assert_eq!(array.iter().map(|status| &status["name"]).collect::<Vec<_>>(), ["disk"]);
}

#[test]
fn a_daemon_that_was_killed_is_named_by_status_and_hides_none_of_the_others() {
    let (sandbox, _) = attached(&[]);
    sandbox.ok(&["create", "other.img", "--size", "256M", "--segment-size", "2M"]);
    sandbox.ok(&["attach", "other.img", "--via", "nbd-server"]);
    let mut watch = sandbox.command(&["status", "--watch", "--json"]);
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(watch.stdout.take().expect("it is a pipe")).lines();
    assert!(lines.next().is_some_and(|line| line.is_ok()));
    sandbox.signal("other", "KILL");
    let killed = "the daemon of 'other' was killed";
    let remedy = "`coulter detach other`";
    for words in [&["status"][..], &["status", "--json"]] {
        let output = sandbox.run(words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(killed) && error.contains(remedy), "{error}");
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(told.contains("disk") && !told.contains("other"), "{told}");
    }
    for words in [&["status", "other"][..], &["status", "other.img", "--json"]] {
        let error = sandbox.fails(1, words);
        assert!(error.contains(killed) && error.contains(remedy), "{error}");
    }
    for words in [&["status", "other", "--watch"][..], &["status", "other", "--watch", "--json"]] {
        assert!(sandbox.fails(1, words).contains(killed));
    }
    let list = String::from_utf8(sandbox.run(&["list"]).stderr).expect("it is text");
    assert!(list.contains(killed) && list.contains(remedy), "{list}");
    assert!(
        list.contains("what was flushed is safe.") && list.contains("`coulter attach "),
        "{list}"
    );
    // It goes on with the others, and says so once.
    for line in
        lines.by_ref().skip_while(|line| line.as_ref().is_ok_and(|l| l.contains("other"))).take(3)
    {
        assert!(line.expect("it is text").contains("\"name\":\"disk\""));
    }
    drop(lines);
    let watched = watch.wait_with_output().expect("it ends");
    let error = String::from_utf8_lossy(&watched.stderr);
    assert_eq!(error.matches(killed).count(), 1, "{error}");
    sandbox.ok(&["detach", "other"]);
    sandbox.ok(&["status"]);
}

#[test]
fn whoever_waits_for_a_stopped_daemon_is_told() {
    let (sandbox, _) = attached(&[]);
    let pid = sandbox.pid_of("disk");
    sandbox::send(pid, "STOP");
    let mut detach = sandbox.command(&["detach", "disk"]);
    let mut detach = detach.stderr(Stdio::piped()).spawn().expect("the program can be started");
    let mut said = BufReader::new(detach.stderr.take().expect("it is a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).expect("it says something");
    let running = detach.try_wait().expect("our child").is_none();
    sandbox::send(pid, "CONT");
    assert!(line.contains(&format!("process {pid}")) && line.contains("is stopped"), "{line}");
    assert!(line.contains(&format!("kill -CONT {pid}")), "{line}");
    assert!(running, "it gave up");
    assert!(line.contains("waiting 300 s at most"), "{line}");
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("it is text");
    assert_eq!(detach.wait().expect("our child").code(), Some(0), "{rest}");
    assert_eq!(rest, "", "it is told once");
}

#[test]
fn files_of_somebody_else_in_the_state_directory_stay() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    let theirs = sandbox.make_directory("state");
    let attach = ["attach", "disk.img", "--via", "nbd-server"];
    for suffix in ["json", "sock", "nbd"] {
        std::fs::write(theirs.join(format!("disk.{suffix}")), suffix).expect("it is writable");
    }
    let said = sandbox.fails(1, &attach);
    assert!(said.contains("state/disk.json") && said.contains("--name"), "{said}");
    for suffix in ["json", "sock", "nbd"] {
        let path = theirs.join(format!("disk.{suffix}"));
        assert_eq!(std::fs::read_to_string(&path).expect("it is still there"), suffix);
        std::fs::remove_file(&path).expect("it is ours");
    }
    let (log, link) = (sandbox.path("theirs"), theirs.join("disk.log"));
    std::fs::write(&log, "theirs").expect("it is writable");
    std::os::unix::fs::symlink(&log, &link).expect("it is writable");
    let said = sandbox.fails(1, &attach);
    assert!(said.contains("state/disk.log"), "{said}");
    sandbox.ok(&[&attach[..], &["--name", "other"]].concat());
    sandbox.ok(&["detach", "other"]);
    assert_eq!(std::fs::read_to_string(&log).expect("it is still there"), "theirs");
}

#[test]
fn a_volume_begins_with_settings_and_keeps_them_over_a_restart() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    let with = |settings: &[&'static str]| -> Vec<&'static str> {
        settings.iter().flat_map(|setting| ["--tune", setting]).collect()
    };
    let tuned = with(&["reclaim=hole-fill", "policy=greedy", "cleaning-rate=50M"]);
    let first = "cleaning=paced\npolicy=greedy\nplacement=lifetime\nreclaim=hole-fill\ncleaning-rate=50M\n\
                 latency-target=none\nidle-cleaning=off\nidle-after=1s\ndefrag=off\n\
                 space-patience=1m";
    let attach = ["attach", "disk.img", "--via", "nbd-server"];
    sandbox.ok(&[&attach[..], &tuned].concat());
    assert_eq!(sandbox.ok(&["tune", "disk"]).trim(), first);
    sandbox.ok(&["tune", "disk", "policy=cost-benefit", "placement=apart"]);
    sandbox.ok(&["restart", "disk"]);
    assert_eq!(sandbox.ok(&["tune", "disk"]).trim(), first, "those of the opening come back");
    sandbox.ok(&["detach", "disk"]);
    let serve = ["serve", "disk.img", "--nbd", "unix:socket"];
    let (_server, _) = sandbox.start(&[&serve[..], &tuned].concat());
    assert_eq!(sandbox.ok(&["tune", "disk"]).trim(), first);
    sandbox.ok(&["detach", "disk"]);
    // Refused before anything is opened: nobody looks whether the store is there.
    let mount = ["mount", "none.img", "."];
    for verb in [&["attach", "none.img"][..], &["serve", "none.img", "--nbd", "unix:s"], &mount] {
        for (setting, reason) in [
            ("reclaim=magic", "reclaim is not one of copy-out, hole-fill, threaded"),
            ("speed=9", "no setting `speed`"),
            ("paused", "KEY=VALUE"),
            ("cleaning-rate=2T", "from 1M to 1T"),
            ("defrag=on", "give it to `coulter tune`"),
        ] {
            let error = sandbox.fails(2, &[verb, &["--tune", setting]].concat());
            assert!(error.contains(reason), "{error}");
        }
    }
}

#[test]
fn settings_are_shown_changed_and_refused() {
    let (sandbox, _) = attached(&[]);
    let first = "cleaning=paced\npolicy=damped-age\nplacement=lifetime\nreclaim=copy-out\ncleaning-rate=none\n\
                 latency-target=none\nidle-cleaning=off\nidle-after=1s\ndefrag=off\n\
                 space-patience=1m";
    assert_eq!(sandbox.ok(&["tune", "disk"]).trim(), first);
    assert_eq!(sandbox.ok(&["tune", "disk", "cleaning=paused", "policy=greedy"]), "");
    assert_eq!(sandbox.json(&["tune", "disk", "--json"])["policy"], "greedy");
    assert_eq!(sandbox.json(&["tune", "disk", "--json"])["cleaning"], "paused");
    sandbox.ok(&["tune", "disk", "cleaning-rate=50M", "latency-target=20ms", "idle-cleaning=on"]);
    let settings = sandbox.json(&["tune", "disk", "idle-after=500ms", "--json"]);
    assert_eq!(settings["cleaning_rate_bytes_per_second"], 50 << 20);
    assert_eq!(settings["latency_target_ns"], 20_000_000);
    assert_eq!(
        (&settings["idle_cleaning"], &settings["idle_after_ns"]),
        (&true.into(), &500_000_000.into())
    );
    for (setting, reason) in [
        ("cleaning=never", "paced, paused, drain"),
        ("rate=-1", "no setting `rate`"),
        ("cleaning-rate=-1", "no rate"),
        ("cleaning-rate=2T", "from 1M to 1T"),
        ("latency-target=1h", "from 100us to 10s"),
        ("idle-after=5 parsecs", "no time"),
        ("paused", "KEY=VALUE"),
        ("policy=best", "greedy, cost-benefit, damped-age"),
        ("placement=left", "mixed, apart, lifetime"),
        ("reclaim=magic", "copy-out, hole-fill, threaded"),
    ] {
        let error = sandbox.fails(2, &["tune", "disk", setting]);
        assert!(error.contains(reason), "{error}");
    }
    assert_eq!(
        sandbox.ok(&["tune", "disk"]).trim(),
        "cleaning=paused\npolicy=greedy\nplacement=lifetime\nreclaim=copy-out\ncleaning-rate=50M\n\
         latency-target=20ms\nidle-cleaning=on\nidle-after=500ms\ndefrag=off\n\
         space-patience=1m",
        "a refusal changes nothing"
    );
    let error = sandbox.fails(1, &["tune", "other", "cleaning=paced"]);
    assert!(error.contains("other"), "{error}");
}

#[test]
fn a_log_that_nobody_reads_keeps_nobody_waiting() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    let socket = sandbox.path("s");
    let mut serve = sandbox.command(&["serve", "disk.img", "--nbd", "unix:s"]);
    // Clients that come and go are for the debug log alone.
    let mut server = serve
        .env("COULTER_LOG", "debug")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program can be started");
    sandbox::wait_until("it listens", || UnixStream::connect(&socket).is_ok());
    // Each client is worth two lines, and a pipe takes 64 KiB.
    for number in 0..600 {
        let mut client = UnixStream::connect(&socket).expect("it listens");
        client.set_read_timeout(Some(sandbox::PATIENCE)).expect("it is no time of zero");
        let greeted = client.read_exact(&mut [0; 18]);
        if greeted.is_err() {
            server.kill().expect("it is our child");
        }
        greeted.unwrap_or_else(|error| panic!("client {number} waits for the log: {error}"));
    }
    let mut log = server.stderr.take().expect("it is a pipe");
    // As much as it takes: a user who has many pipes gets small ones.
    let mut seen = vec![0; 64 << 10];
    let count = log.read(&mut seen).expect("it is full");
    seen.truncate(count);
    sandbox::send(server.id(), "TERM");
    log.read_to_end(&mut seen).expect("a pipe can be read");
    assert!(server.wait().expect("it is our child").success());
    let text = String::from_utf8_lossy(&seen);
    assert!(text.contains("lines were lost lost="), "{text}");
    assert!(text.contains("ended cleanly"), "{text}");
}
