//! Other people's suites and programs on files: pjdfstest, fsx, stress-ng, SQLite, PostgreSQL, git, rsync
//! and dpkg, on a file system of Coulter's own and through an overlay over ext4, XFS and Btrfs. What each
//! says there is what it says on the bare file system.
//!
//! Minutes, so only by `make file-suites`. Needs root, FUSE, loop devices, and the programs; `FSX` and
//! `PJDFSTEST` say where these two are.

mod others;
mod places;
mod sandbox;

use coulter_systems::{FileSystem, PostgresServer};
use others::{Fsx, ON_FILE_SYSTEM, stress};
use places::{Place, Put, digest, run, said};
use sandbox::{Sandbox, can_mount};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

fn program_of(variable: &str, name: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| name.into(), PathBuf::from)
}

/// pjdfstest's users and what it may expect of Linux.
const PJDFSTEST_SETTINGS: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
stat_st_birthtime = {}
[settings]
naptime = 0.02
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["games", "games"]]
"#;

/// Cases that FUSE does not let anybody pass: the kernel tells no limit of links for a FUSE file system,
/// so the case is skipped.
const FUSE_FORBIDS: [&str; 1] = ["link::link_count_max"];

/// What pjdfstest says of each case below `directory`: `ok`, `FAILED` or `skipped`.
fn cases(sandbox: &Sandbox, directory: &Path) -> BTreeMap<String, String> {
    let settings = sandbox.path("pjdfstest.toml");
    fs::write(&settings, PJDFSTEST_SETTINGS).expect("it is writable");
    let below = directory.join("c");
    fs::create_dir(&below).expect("it is new");
    fs::set_permissions(&below, fs::Permissions::from_mode(0o777)).expect("it is ours");
    let mut suite = Command::new(program_of("PJDFSTEST", "pjdfstest"));
    let output = suite.arg("-c").arg(&settings).arg("-p").arg(&below).output();
    let output = output.expect("pjdfstest can be run");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let results = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (name, result) = (words.next()?, words.next()?);
        let is_case = name.contains("::") || ["ok", "FAILED", "skipped"].contains(&result);
        (is_case && words.next().is_none()).then(|| (name.to_owned(), result.to_owned()))
    });
    let results: BTreeMap<String, String> = results.collect();
    assert!(results.len() > 390, "it has that many cases: {text}");
    fs::remove_dir_all(&below).expect("nobody uses it");
    results
}

#[test]
#[ignore = "minutes: make file-suites"]
fn pjdfstest_says_what_it_says_on_the_bare_file_system() {
    let Some(_right) = can_mount("pjdfstest_says_what_it_says_on_the_bare_file_system") else {
        return;
    };
    let bare = FileSystem::ALL.map(|kind| {
        let sandbox = Sandbox::new();
        sandbox.let_others_in();
        let put = Put::new(&sandbox, Place::Bare(kind));
        let found = cases(&sandbox, &put.directory);
        put.take_away();
        (kind, found)
    });
    for place in Place::OURS {
        let sandbox = Sandbox::new();
        sandbox.let_others_in();
        let put = Put::new(&sandbox, place);
        let found = cases(&sandbox, &put.directory);
        put.take_away();
        let likened = place.below().unwrap_or(FileSystem::Ext4);
        let (_, expected) = bare.iter().find(|(kind, _)| *kind == likened).expect("all are there");
        let differing: Vec<_> = expected
            .iter()
            .filter(|(case, result)| found.get(*case) != Some(result))
            .map(|(case, result)| (case, result, found.get(case)))
            .filter(|(case, ..)| !FUSE_FORBIDS.contains(&case.as_str()))
            .collect();
        assert!(differing.is_empty(), "{place}, case, there, here: {differing:?}");
        let passed = found.values().filter(|result| *result == "ok").count();
        let failed = found.values().filter(|result| *result == "FAILED").count();
        println!("{place}: {} cases, {passed} passed, {failed} failed", found.len());
    }
}

/// A million operations on each kind of place.
const FSX_OPERATIONS: u32 = 100_000;

#[test]
#[ignore = "minutes: make file-suites"]
fn fsx_finds_nothing_in_a_million_operations() {
    let Some(_right) = can_mount("fsx_finds_nothing_in_a_million_operations") else { return };
    for place in Place::OURS {
        let sandbox = Sandbox::new();
        let fsx = Fsx { sandbox: &sandbox, program: program_of("FSX", "fsx") };
        let put = Put::new(&sandbox, place);
        // The overlay has its million over three file systems.
        let seeds = if place == Place::Own { 0..10 } else { 0..4 };
        let runs = seeds.len();
        fsx.run(&put.directory.join("fsx"), ON_FILE_SYSTEM, seeds, FSX_OPERATIONS);
        println!("{place}: fsx, {runs} times {FSX_OPERATIONS} operations");
        put.take_away();
    }
}

#[test]
#[ignore = "minutes: make file-suites"]
fn the_stressors_of_file_systems_find_nothing() {
    let Some(_right) = can_mount("the_stressors_of_file_systems_find_nothing") else { return };
    for place in [Place::Own, Place::Over(FileSystem::Ext4)] {
        let sandbox = Sandbox::new();
        let put = Put::new(&sandbox, place);
        let stressors = stress(&put.directory);
        assert!(stressors > 20, "stress-ng ran {stressors}");
        println!("{place}: {stressors} stressors");
        put.take_away();
    }
}

/// Four writers and a reader of mapped pages, in write-ahead mode.
fn sqlite(directory: &Path) {
    let database = directory.join("database.sqlite");
    let setup = "PRAGMA journal_mode=WAL; CREATE TABLE entry (writer INTEGER, number INTEGER, filling BLOB);
        CREATE INDEX by_number ON entry (number);";
    run(Command::new("sqlite3").arg(&database).arg(setup));
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let database = &database;
            scope.spawn(move || {
                for number in 0..100 {
                    let insert = format!(
                        "PRAGMA mmap_size=67108864; PRAGMA synchronous=FULL; BEGIN IMMEDIATE;
                         INSERT INTO entry VALUES ({writer}, {number}, randomblob(3000)),
                         ({writer}, {number}, randomblob(9000)); COMMIT;"
                    );
                    let mut sqlite = Command::new("sqlite3");
                    run(sqlite.args(["-cmd", ".timeout 60000"]).arg(database).arg(insert));
                }
            });
        }
    });
    let ask = "PRAGMA mmap_size=67108864; PRAGMA integrity_check; SELECT count(*) FROM entry;";
    let answer = said(Command::new("sqlite3").arg(&database).arg(ask));
    assert_eq!(answer.split_whitespace().collect::<Vec<_>>(), ["67108864", "ok", "800"]);
}

/// A cluster with checksums under pgbench, looked through by `pg_amcheck`, stopped and started again.
fn postgres(sandbox: &Sandbox, directory: &Path) {
    let outside = sandbox.make_directory("postgres");
    let server = PostgresServer::new(outside.clone()).expect("it can be given its directory");
    let mut server = server.expect("PostgreSQL is installed");
    let data = directory.join("cluster");
    server.create(&data).expect("a cluster");
    server.start(&data, &[]).expect("it starts");
    let at = ["--host".as_ref(), outside.as_os_str()];
    run(server.command("pgbench").args(at).args(["-q", "-i", "-s", "5", "postgres"]));
    let load = ["-T", "10", "-c", "4", "-j", "2", "postgres"];
    run(server.command("pgbench").args(at).args(load));
    let sum = "SELECT sum(abalance), count(*) FROM pgbench_accounts";
    let before = server.ask(sum).expect("it answers");
    server.shut_down(&data).expect("it stops");
    server.start(&data, &[]).expect("it starts again");
    assert_eq!(server.ask(sum).expect("it answers"), before);
    let thorough = ["--install-missing", "--all", "--heapallindexed", "--parent-check"];
    run(server.command("pg_amcheck").args(at).args(thorough));
    server.shut_down(&data).expect("it stops");
    run(server.command("pg_checksums").arg("--check").arg("-D").arg(&data));
}

/// A repository of a tree, cloned without links, looked through, and checked out.
fn git(directory: &Path, tree: &Path) {
    let (repository, clone) = (directory.join("repository"), directory.join("clone"));
    run(Command::new("cp").arg("-a").arg(tree).arg(&repository));
    let git = |at: &Path, words: &[&str]| {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=a", "-c", "user.email=a@b", "-C"]).arg(at).args(words);
        said(&mut git)
    };
    git(&repository, &["init", "--quiet"]);
    git(&repository, &["add", "--all"]);
    git(&repository, &["commit", "--quiet", "--message=tree"]);
    git(&repository, &["gc", "--quiet"]);
    run(Command::new("git").args(["clone", "--quiet", "--no-local"]).arg(&repository).arg(&clone));
    git(&clone, &["fsck", "--full", "--strict"]);
    assert_eq!(git(&clone, &["status", "--porcelain"]), "");
    fs::remove_dir_all(repository.join(".git")).expect("it is ours");
    fs::remove_dir_all(clone.join(".git")).expect("it is ours");
    run(Command::new("diff").arg("--recursive").arg(&repository).arg(&clone));
}

/// Files of all kinds: links, holes, attributes, special files, odd names.
fn make_odd_tree(at: &Path) {
    fs::create_dir_all(at.join("deep/er")).expect("it is new");
    fs::write(at.join("one"), vec![7; 100_000]).expect("it is writable");
    fs::hard_link(at.join("one"), at.join("deep/same")).expect("links can be made");
    symlink("../one", at.join("deep/link")).expect("links can be made");
    run(Command::new("mkfifo").arg(at.join("pipe")));
    run(Command::new("mknod").arg(at.join("device")).args(["c", "1", "3"]));
    run(Command::new("truncate").args(["--size=10M"]).arg(at.join("holes")));
    let hole = format!("of={}", at.join("holes").display());
    run(Command::new("dd").args(["if=/dev/urandom", "bs=4k", "count=3", "seek=700"]).args([
        "conv=notrunc",
        "status=none",
        &hole,
    ]));
    run(Command::new("setfattr").args(["-n", "user.colour", "-v", "blue"]).arg(at.join("one")));
    run(Command::new("setfacl").args(["-m", "u:games:rx"]).arg(at.join("deep")));
    fs::write(at.join("deep/er/ümlaut \n name"), "odd").expect("any name");
    run(Command::new("chown").args(["games:games"]).arg(at.join("deep/er")));
    run(Command::new("touch")
        .args(["-d", "2001-02-03 04:05:06.123456789"])
        .arg(at.join("deep/er")));
}

/// `rsync` with all that it can keep; the second time it finds nothing to do, save what `restless` says.
fn rsync(from: &Path, to: &Path, restless: &str) {
    let again = |itemised: &str| {
        let mut rsync = Command::new("rsync");
        rsync.args(["-aHAXS", "--checksum", "--delete", itemised]);
        let mut from = from.as_os_str().to_owned();
        from.push("/");
        said(rsync.arg(from).arg(to))
    };
    assert!(again("--itemize-changes").contains("holes"), "the first time it copies");
    assert_eq!(again("--itemize-changes"), restless, "the second time nothing moves");
    let allocated = said(Command::new("du").args(["--block-size=1"]).arg(to.join("holes")));
    let bytes: u64 =
        allocated.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number");
    assert!(bytes < 1 << 20, "holes stay holes: {bytes} bytes");
}

/// A package put in, replaced by a later one, looked through, and purged.
fn dpkg(sandbox: &Sandbox, directory: &Path, tree: &Path) {
    let root = directory.join("root");
    let packages = ["1.0", "2.0"].map(|version| {
        let source = sandbox.make_directory(&format!("package-{version}"));
        fs::create_dir(source.join("DEBIAN")).expect("it is new");
        let control = format!(
            "Package: coulter-tree\nVersion: {version}\nArchitecture: all\nMaintainer: a <a@b>\nDescription: a tree\n"
        );
        fs::write(source.join("DEBIAN/control"), control).expect("it is writable");
        run(Command::new("cp").arg("-a").arg(tree).arg(source.join("tree")));
        fs::write(source.join("tree/version"), version).expect("it is writable");
        let package = sandbox.path(&format!("{version}.deb"));
        run(Command::new("dpkg-deb").args(["--root-owner-group", "-Znone", "--build"]).arg(&source).arg(&package));
        package
    });
    fs::create_dir_all(root.join("var/lib/dpkg/info")).expect("it is new");
    fs::create_dir_all(root.join("var/lib/dpkg/updates")).expect("it is new");
    for file in ["status", "available"] {
        fs::write(root.join("var/lib/dpkg").join(file), "").expect("it is writable");
    }
    let dpkg = |words: &[&str], package: Option<&PathBuf>| {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg("--root").arg(&root).args(["--force-not-root", "--log=/dev/null"]).args(words);
        said(dpkg.args(package))
    };
    for package in &packages {
        dpkg(&["--install"], Some(package));
        assert_eq!(dpkg(&["--verify", "coulter-tree"], None), "", "its files are whole");
    }
    assert_eq!(fs::read_to_string(root.join("tree/version")).expect("it is there"), "2.0");
    dpkg(&["--purge", "coulter-tree"], None);
    assert!(!root.join("tree").exists(), "the tree is gone");
}

/// A tree of files of this machine.
fn make_tree(at: &Path, files: usize) {
    fs::create_dir(at).expect("it is new");
    let copy = format!(
        "find /usr/share /usr/include -xdev -type f -size -64k 2>/dev/null | LC_ALL=C sort | head -n {files} | \
         tar -c --no-recursion -T - 2>/dev/null | tar -x -C {}",
        at.display()
    );
    run(Command::new("sh").args(["-c", &copy]));
}

#[test]
#[ignore = "minutes: make file-suites"]
fn programs_work_and_what_they_leave_is_kept() {
    let Some(_right) = can_mount("programs_work_and_what_they_leave_is_kept") else { return };
    for place in Place::OURS {
        let sandbox = Sandbox::new();
        sandbox.let_others_in();
        let mut put = Put::new(&sandbox, place);
        let (tree, odd) = (sandbox.path("tree"), sandbox.path("odd"));
        make_tree(&tree, 3000);
        make_odd_tree(&odd);
        let directory = put.directory.clone();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("it is ours");
        sqlite(&directory);
        postgres(&sandbox, &directory);
        git(&directory, &tree);
        // To root XFS lists an access list as an attribute of its own besides, which the source has not: it says so bare too.
        let is_on_xfs = place == Place::Over(FileSystem::Xfs);
        let restless = if is_on_xfs { ".d........x deep/\n" } else { "" };
        rsync(&odd, &directory.join("copy"), restless);
        dpkg(&sandbox, &directory, &tree);
        let unpack = format!(
            "tar -c -C {} . | tar -x -C {}",
            tree.display(),
            directory.join("root").display()
        );
        run(Command::new("sh").args(["-c", &unpack]));
        let before = digest(&directory);
        put.put_again();
        assert!(digest(&put.directory) == before, "{place}: mounted again it is another tree");
        println!("{place}: SQLite, PostgreSQL, git, rsync, dpkg, tar");
        put.take_away();
    }
}

/// The same on both trees: overwrites at random, appends, renames and removals.
fn work_on(tree: &Path) {
    let script = r#"
import os, random, sys
random.seed(9)
root = sys.argv[1]
files = sorted(os.path.join(d, f) for d, _, fs in os.walk(root) for f in fs
               if '/.coulter' not in d and not os.path.islink(os.path.join(d, f)))
for turn in range(6000):
    path = random.choice(files)
    choice = random.random()
    if not os.path.exists(path):
        continue
    size = os.path.getsize(path)
    if choice < 0.7 and size:
        with open(path, 'r+b') as f:
            for _ in range(4):
                f.seek(random.randrange(size))
                f.write(random.randbytes(random.randrange(1, 6000)))
            if random.random() < 0.1:
                f.flush(); os.fsync(f.fileno())
    elif choice < 0.8:
        with open(path, 'ab') as f:
            f.write(random.randbytes(random.randrange(1, 9000)))
    elif choice < 0.87:
        os.truncate(path, random.randrange(size + 5000))
    elif choice < 0.94:
        os.rename(path, path + '.renamed')
    else:
        os.unlink(path)
"#;
    run(Command::new("python3").args(["-c", script]).arg(tree));
}

#[test]
#[ignore = "minutes: make file-suites"]
fn a_tree_that_was_there_before_is_that_of_its_twin_after_settle_and_detach() {
    let name = "a_tree_that_was_there_before_is_that_of_its_twin_after_settle_and_detach";
    let Some(_right) = can_mount(name) else { return };
    for kind in FileSystem::ALL {
        let sandbox = Sandbox::new();
        sandbox.let_others_in();
        let put = Put::new(&sandbox, Place::Bare(kind));
        let (data, twin) = (put.directory.join("data"), put.directory.join("twin"));
        fs::create_dir(&data).expect("it is new");
        make_tree(&data.join("tree"), 100_000);
        make_odd_tree(&data.join("odd"));
        let big = format!("of={}", data.join("tree/big").display());
        run(Command::new("dd").args(["if=/dev/urandom", "bs=1M", "count=64", "status=none", &big]));
        let outside = sandbox.make_directory("postgres");
        let server = PostgresServer::new(outside).expect("it can be given its directory");
        let mut server = server.expect("PostgreSQL is installed");
        fs::set_permissions(&put.directory, fs::Permissions::from_mode(0o755)).expect("it is ours");
        server.create(&data.join("cluster")).expect("a cluster");
        run(Command::new("cp").arg("-a").arg(&data).arg(&twin));
        sandbox.ok(&["overlay", "bare/data", "--store-size", "512M"]);
        let statements = "CREATE TABLE row AS SELECT g AS number, md5(g::text) AS filling FROM generate_series(1, 60000) g;
            CREATE INDEX ON row (number);
            UPDATE row SET filling = md5(filling) WHERE number % 7 = 0; CHECKPOINT;
            DELETE FROM row WHERE number % 11 = 0; VACUUM row; CHECKPOINT;";
        let ask =
            "SELECT count(*), sum(number), md5(string_agg(filling, '' ORDER BY number)) FROM row";
        let mut answers = Vec::new();
        for at in [&data, &twin] {
            work_on(&at.join("tree"));
            let cluster = at.join("cluster");
            server.start(&cluster, &[]).expect("it starts");
            for statement in statements.split(';').filter(|text| !text.trim().is_empty()) {
                server.ask(statement).expect("it does it");
            }
            answers.push(server.ask(ask).expect("it answers"));
            server.shut_down(&cluster).expect("it stops");
        }
        assert_eq!(answers[0], answers[1]);
        let status = sandbox.json(&["overlay", "status", "bare/data", "--json"]);
        let stored = status["stored_bytes"].as_u64().expect("a number");
        assert!(stored > 0, "blocks were in the store: {status}");
        sandbox.ok(&["overlay", "settle", "bare/data"]);
        sandbox.ok(&["overlay", "detach", "bare/data"]);
        assert!(!data.join(".coulter").exists(), "nothing is left");
        for part in ["tree", "odd"] {
            let differing = said(
                Command::new("rsync")
                    .args(["-aHAXn", "--checksum", "--omit-dir-times"])
                    .args(["--no-times", "--delete", "--itemize-changes"])
                    .arg(format!("{}/", data.join(part).display()))
                    .arg(twin.join(part)),
            );
            assert_eq!(differing, "", "{kind}: {part} differs from its twin");
        }
        run(server.command("pg_checksums").arg("--check").arg("-D").arg(data.join("cluster")));
        server.start(&data.join("cluster"), &[]).expect("it starts without the overlay");
        assert_eq!(server.ask(ask).expect("it answers"), answers[1]);
        server.shut_down(&data.join("cluster")).expect("it stops");
        println!(
            "{kind}: {} MiB were in the store, and the tree is that of its twin",
            stored >> 20
        );
        put.take_away();
    }
}
