//! What is installed beside the program: units, generator, mount helper, alerts.

mod sandbox;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use sandbox::{Sandbox, skipped};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("it is there")
}

fn dist(name: &str) -> PathBuf {
    repository().join("dist").join(name)
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// The metrics that an expression names.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("coulter_")).map(str::to_owned).collect()
}

#[test]
fn every_metric_of_alerts_and_dashboard_is_offered() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    let url = format!("file://{}", sandbox.path("copy").display());
    let attach = ["attach", "disk.img", "--via", "nbd-server", "--metrics", "127.0.0.1:0"];
    sandbox.ok(&[&attach[..], &["--replicate", &url]].concat());
    let list = sandbox.listed();
    let address = list[0]["metrics"].as_str().expect("it has an address").to_owned();
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("it listens");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("it is text");
    sandbox.ok(&["detach", "disk"]);
    let offered: BTreeSet<&str> = page
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    let mut named = BTreeSet::new();
    let dashboard = fs::read_to_string(dist("monitoring/grafana-dashboard.json"));
    let dashboard = dashboard.expect("it is there");
    let panels: serde_json::Value = serde_json::from_str(&dashboard).expect("it is JSON");
    for panel in panels["panels"].as_array().expect("it has panels") {
        for target in panel["targets"].as_array().expect("each shows something") {
            named.extend(metrics_in(target["expr"].as_str().expect("by an expression")));
        }
    }
    let alerts = fs::read_to_string(dist("monitoring/alerts.yml")).expect("it is there");
    for line in alerts.lines().filter_map(|line| line.trim().strip_prefix("expr:")) {
        named.extend(metrics_in(line));
    }
    assert!(named.len() > 15, "{named:?}");
    let missing: Vec<_> = named.iter().filter(|name| !offered.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?} are not among {offered:?}");
}

/// A `coulter` that says what it was asked for.
fn echo(sandbox: &Sandbox) -> PathBuf {
    let path = sandbox.path("echo");
    let script = "#!/bin/sh\nfor word; do printf '<%s>' \"$word\"; done\n";
    fs::write(&path, script).expect("the directory is writable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    path
}

#[test]
fn the_mount_helper_tells_its_own_options_from_those_of_the_file_system() {
    let sandbox = Sandbox::new();
    let helper = |words: &[&str]| {
        let mut command = Command::new(dist("mount/mount.coulter"));
        said(&command.args(words).env("COULTER", echo(&sandbox)).output().expect("it can be run"))
    };
    let line =
        "rw,noatime,coulter.map-memory=64M,nofail,coulter.read-only,x-systemd.automount,data=*";
    assert_eq!(
        helper(&["/srv/a b.img", "/mnt", "-n", "-o", line]),
        "<mount><--map-memory=64M><--read-only><--options><helper=coulter,noatime,data=*><-->\
         </srv/a b.img></mnt>"
    );
    let plain = "<mount><--options><helper=coulter><--></a></mnt>";
    assert_eq!(helper(&["/a", "/mnt", "-o", "defaults"]), plain);
    assert_eq!(helper(&["/a", "/mnt", "-f"]), "", "that only asks whether it would");
    assert!(helper(&["-o", "ro", "/a", "/mnt"]).contains("usage"), "mount(8) never asks so");
    let own = sandbox.path("mount.fuse.coulter");
    std::fs::copy(dist("mount/mount.coulter"), &own).expect("the directory is writable");
    std::fs::copy(echo(&sandbox), sandbox.path("mount")).expect("the directory is writable");
    let path = format!("{}:/usr/bin:/bin", sandbox.path(".").display());
    let own = |options: &str| {
        let mut command = Command::new(&own);
        command.args(["/a", "/mnt", "-o", options]).env("COULTER", echo(&sandbox));
        said(&command.env("PATH", &path).output().expect("it can be run"))
    };
    assert_eq!(
        own("noatime,coulter.cache=back,nosuid,nofail"),
        "<fs><mount><--cache=back><--options><rw,nosuid><--></a></mnt>"
    );
    assert_eq!(
        own("remount,ro,relatime"),
        "<-i><--options-mode><ignore><-o><remount,rw,ro><--></mnt>",
        "the kernel does it, whatever fstab and the mount table say"
    );
    assert!(own("strictatime").contains("access times are not kept"));
    let helper = Command::new(dist("mount/umount.coulter"))
        .args(["/mnt", "-v"])
        .env("COULTER", echo(&sandbox))
        .output();
    assert_eq!(said(&helper.expect("it can be run")), "<umount></mnt>");
}

#[test]
fn the_generator_orders_volumes_and_mounts_without_a_cycle() {
    if Command::new("systemd-escape").arg("--version").output().is_err() {
        return skipped("the generator needs systemd-escape");
    }
    let sandbox = Sandbox::new();
    let etc = sandbox.make_directory("etc");
    let units = sandbox.make_directory("units");
    fs::create_dir(etc.join("coulter")).expect("the directory is writable");
    fs::write(etc.join("coulter/fast.conf"), "# odd\nSTORE=\"/srv/50% off/a.img\"\nOPTIONS=\n")
        .and_then(|()| fs::write(etc.join("coulter/disk.conf"), "STORE=/dev/sdb\n"))
        .and_then(|()| fs::write(etc.join("coulter/none.conf"), "OPTIONS=--read-only\n"))
        .expect("the directory is writable");
    let fstab = "# a comment\n/dev/sda1 / ext4 defaults 0 1\n\
                 /dev/coulter/fast /mnt/my\\040data ext4 nofail 0 0\n\
                 /srv/one.img /one coulter nofail 0 0\nnonsense\n\
                 /srv/f.img /files fuse.coulter nofail 0 0\nhost: /x fuse.sshfs defaults 0 0\n";
    fs::write(etc.join("fstab"), fstab).expect("the directory is writable");
    let output = Command::new(dist("systemd/coulter-generator"))
        .args([&units, &units, &units])
        .env("COULTER_ETC", &etc)
        .output()
        .expect("it can be run");
    assert!(output.status.success() && said(&output).is_empty(), "{}", said(&output));
    let drop_in = |unit: &str| {
        fs::read_to_string(units.join(format!("{unit}.d/50-coulter.conf"))).expect(unit)
    };
    let fast = drop_in("coulter@fast.service");
    assert!(fast.contains("RequiresMountsFor=\"/srv/50%% off/a.img\"\n"), "{fast}");
    assert!(drop_in("coulter-nbd@fast.service").contains("RequiresMountsFor="));
    let disk = drop_in("coulter@disk.service");
    assert!(disk.contains("Requires=dev-sdb.device\nAfter=dev-sdb.device\n"), "{disk}");
    let mount = drop_in("mnt-my\\x20data.mount");
    assert!(mount.contains("Requires=coulter@fast.service\nAfter=coulter@fast.service"), "{mount}");
    assert!(drop_in("one.mount").contains("TimeoutSec=300"));
    let made = fs::read_dir(&units).expect("it is readable").count();
    let files = drop_in("files.mount");
    assert!(files.contains("TimeoutSec=300") && files.contains("Wants=modprobe@fuse"), "{files}");
    assert_eq!(made, 7, "what makes no sense is left alone");

    // What systemd itself says of all of them together, and of the line that used to be documented.
    let mount = "[Unit]\nDefaultDependencies=no\nBefore=local-fs.target\nConflicts=umount.target\n\
                 Before=umount.target\n[Mount]\nWhat=/dev/coulter/fast\nWhere=/mnt/my data\nType=ext4\n";
    fs::write(units.join("mnt-my\\x20data.mount"), mount).expect("the directory is writable");
    let unit = fs::read_to_string(dist("systemd/coulter@.service")).expect("it is there");
    let unit = unit.replace("/usr/bin/coulter", "/bin/true");
    fs::write(units.join("coulter@.service"), &unit).expect("the directory is writable");
    let verify = || {
        let target =
            "[Unit]\nRequires=local-fs.target mnt-my\\x20data.mount\nAfter=local-fs.target\n";
        fs::write(units.join("all.target"), target).expect("the directory is writable");
        let local = "[Unit]\nRequires=mnt-my\\x20data.mount\nAfter=mnt-my\\x20data.mount\n";
        fs::create_dir_all(units.join("local-fs.target.d"))
            .and_then(|()| fs::write(units.join("local-fs.target.d/a.conf"), local))
            .expect("the directory is writable");
        let output = Command::new("systemd-analyze")
            .args(["verify", "--man=no", "all.target", "coulter@fast.service"])
            .current_dir(&units)
            .env("SYSTEMD_UNIT_PATH", format!("{}:", units.display()))
            .output();
        output.map(|output| said(&output))
    };
    let Ok(words) = verify() else {
        return skipped("the order of units needs systemd-analyze");
    };
    assert!(!words.contains("cycle"), "{words}");
    let before = unit.replace("DefaultDependencies=no\n", "After=local-fs.target\n");
    fs::write(units.join("coulter@.service"), before).expect("the directory is writable");
    let words = verify().expect("it was there");
    assert!(words.contains("cycle"), "the check does not see a cycle: {words}");
}

/// Every timer with its service, and what the service asks for.
#[test]
fn systemd_understands_the_timers_and_their_services() {
    let sandbox = Sandbox::new();
    let units = sandbox.make_directory("units");
    let program = echo(&sandbox);
    for file in fs::read_dir(dist("systemd")).expect("it is there").flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        if file.path().is_file() && name.starts_with("coulter-s") {
            let unit = fs::read_to_string(file.path()).expect("it is text");
            let unit = unit.replace("/usr/bin/coulter", &program.display().to_string());
            fs::write(units.join(name), unit).expect("the directory is writable");
        }
    }
    let timers = ["coulter-scrub@a.timer", "coulter-snapshot@a.timer"];
    let services = ["coulter-scrub@a.service", "coulter-snapshot@a.service"];
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .args(timers)
        .args(services)
        .current_dir(&units)
        .env("SYSTEMD_UNIT_PATH", format!("{}:", units.display()))
        .output();
    let Ok(output) = output else { return skipped("units are verified by systemd-analyze") };
    let words = said(&output);
    let ours: Vec<&str> = words.lines().filter(|line| line.contains("coulter-s")).collect();
    assert!(ours.is_empty(), "{words}");
    // What the unit runs, with the words that it would have by default.
    let unit = fs::read_to_string(dist("systemd/coulter-snapshot@.service")).expect("it is there");
    let value = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_else(|| panic!("there is no {key}")).trim_matches('"').to_owned()
    };
    let options = value("Environment=\"SNAPSHOT_OPTIONS=");
    let line = value("ExecStart=/usr/bin/coulter ").replace("$SNAPSHOT_OPTIONS", &options);
    let line = line.replace("${COPY}", "file:///nowhere/at/all");
    let words: Vec<&str> = line.split_whitespace().collect();
    let error = sandbox.fails(1, &words);
    assert!(error.contains("No such file or directory"), "{error}");
}

#[test]
fn what_is_installed_is_taken_away_again() {
    let sandbox = Sandbox::new();
    let root = sandbox.make_directory("root");
    let script = |action: &str| {
        let output = Command::new(repository().join("scripts/install.sh"))
            .arg(action)
            .env("PROGRAM", env!("CARGO_BIN_EXE_coulter"))
            .env("STRIP", "no")
            .env("PREFIX", "/opt/coulter")
            .env("DESTDIR", &root)
            .env("SBINDIR", "/usr/sbin")
            .output()
            .expect("bash can be run");
        assert!(output.status.success(), "{action}: {}", said(&output));
    };
    script("install");
    let read = |path: &str| fs::read_to_string(root.join(path)).expect(path);
    for path in ["usr/sbin/mount.coulter", "opt/coulter/lib/systemd/system/coulter@.service"] {
        let text = read(path);
        assert!(text.contains("/opt/coulter/bin/coulter"), "{path}: {text}");
        assert!(!text.contains("/usr/bin/coulter"), "{path}: {text}");
    }
    for path in ["share/man/man8/coulter-mount.8", "share/bash-completion/completions/coulter"] {
        assert!(root.join("opt/coulter").join(path).exists(), "{path}");
    }
    fs::write(root.join("usr/sbin/other"), "theirs").expect("the directory is writable");
    script("uninstall");
    let left =
        Command::new("find").arg(&root).args(["-type", "f"]).output().expect("it can be run");
    let left = String::from_utf8_lossy(&left.stdout).into_owned();
    assert_eq!(left.trim(), root.join("usr/sbin/other").display().to_string());
    assert!(!root.join("opt").exists(), "empty directories stay behind");
}

/// Without root's rights it goes into the user's own directories. A failure leaves no file.
#[test]
fn a_user_installs_below_the_home_directory_and_a_failure_leaves_nothing() {
    if !geteuid().is_root() {
        return skipped("installing as another user needs root");
    }
    let sandbox = Sandbox::new();
    sandbox.let_others_in();
    let (home, program) = (sandbox.make_directory("home"), sandbox.path("coulter"));
    fs::copy(env!("CARGO_BIN_EXE_coulter"), &program).expect("the directory is writable");
    let user = Some(65_534);
    chown(&home, user, user).expect("root may");
    let install = |prefix: &Path, action: &str| {
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(repository().join("scripts/install.sh"))
            .arg(action)
            .env("PROGRAM", &program)
            .env("STRIP", "no")
            .env("PREFIX", prefix)
            .output()
            .expect("setpriv can be run")
    };
    let files = || {
        let found = Command::new("find").arg(&home).args(["-type", "f"]).output();
        String::from_utf8_lossy(&found.expect("it can be run").stdout).into_owned()
    };
    let local = home.join(".local");
    let output = install(&local, "install");
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("no units, udev rules and mount helpers"), "{}", said(&output));
    for path in
        ["bin/coulter", "share/man/man8/coulter-mount.8", "share/doc/coulter/docs/operation.md"]
    {
        assert!(local.join(path).exists(), "{path}: {}", files());
    }
    assert!(install(&local, "uninstall").status.success());
    assert_eq!(files(), "");

    let refused = install(Path::new("/usr/local"), "install");
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("cannot be written to"), "{}", said(&refused));
    // A directory that comes late is not the user's.
    fs::create_dir_all(local.join("share/coulter")).expect("root may");
    for path in [&local, &local.join("share")] {
        chown(path, user, user).expect("root may");
    }
    let failed = install(&local, "install");
    assert!(!failed.status.success(), "{}", said(&failed));
    assert!(said(&failed).contains("is taken away"), "{}", said(&failed));
    assert_eq!(files(), "");
}

/// The container's script twice: it makes a store, finds it again, and ends in order when it is told to.
#[test]
fn the_container_makes_its_store_once_and_closes_it() {
    let sandbox = Sandbox::new();
    let program = sandbox.command(&[]).get_program().to_owned();
    let programs = sandbox.make_directory("programs");
    symlink(program, programs.join("coulter")).expect("the directory is ours");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").expect("it is set"));
    let store = sandbox.path("volume.img");
    let script = || {
        let mut script = Command::new(dist("container/serve"));
        script.env("PATH", &path).env("STORE", &store).env("STORE_SIZE", "256M");
        script
    };
    // The disk with the store is not mounted.
    let refused = script().output().expect("it is executable");
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("is the disk with it mounted"), "{}", said(&refused));
    assert!(!store.exists(), "an empty store was made");
    let serve = || {
        let mut script = script();
        script.env("CREATE", "yes");
        script
            .env("LISTEN", "tcp:127.0.0.1:0")
            .env("COULTER_STATE_DIRECTORY", sandbox.path("state"));
        script.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it is executable")
    };
    let mut uuids = Vec::new();
    for _ in 0..2 {
        let mut container = serve();
        let output = container.stdout.take().expect("it is a pipe");
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let uri = lines.find(|line| line.starts_with("nbd://127.0.0.1:"));
        assert!(uri.is_some(), "it says where it listens");
        uuids.push(sandbox.listed()[0]["uuid"].to_string());
        kill_process(Pid::from_child(&container), Signal::TERM).expect("it is our child");
        assert!(container.wait().expect("it is our child").success());
        sandbox.ok(&["check", "volume.img", "--data"]);
    }
    assert_eq!(uuids[0], uuids[1], "the same store");
}
