//! Services of others, on this machine: `make object-servers` installs and runs them.
//!
//! versitygw keeps the conditions of S3 and must pass; moto looks first and writes then, and must be refused.

mod stamped;

use coulter_object::bucket::{Bucket, S3Bucket, S3Options};
use coulter_object::probe::{self, ProbeError};
use coulter_object::service::{Conditions, Fault, Proxy};
use stamped::life::live;
use stamped::wait_until;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const KEY: &str = "coulter";
const SECRET: &str = "coulter-secret";

/// A service that runs; it ends when it is dropped.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(mut command: Command, address: SocketAddr) -> Server {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.expect("it is installed: make object-servers");
        let server = Server { child, address };
        wait_until("the service listens", || TcpStream::connect(address).is_ok());
        server
    }

    fn bucket(&self, folder: &Path, prefix: &str) -> Arc<dyn Bucket> {
        client(&format!("http://{}", self.address), folder, prefix)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn client(endpoint: &str, folder: &Path, prefix: &str) -> Arc<dyn Bucket> {
    let file = folder.join("credentials");
    let text = format!("[default]\naws_access_key_id={KEY}\naws_secret_access_key={SECRET}\n");
    std::fs::write(&file, text).expect("there is room");
    let options = S3Options {
        endpoint: endpoint.to_string(),
        region: "us-east-1".to_string(),
        is_virtual_host: false,
        credentials_file: Some((file, "default".to_string())),
        timeout: Duration::from_secs(30),
    };
    Arc::new(S3Bucket::open("bucket", prefix, &options).expect("a URL"))
}

fn free_address() -> SocketAddr {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    socket.local_addr().expect("it is bound")
}

/// A program that `make object-servers` installs.
fn tool(variable: &str, name: &str) -> PathBuf {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin").join(name);
    std::env::var_os(variable).map_or(installed, PathBuf::from)
}

fn versitygw(folder: &Path) -> Server {
    std::fs::create_dir_all(folder.join("objects/bucket")).expect("there is room");
    let address = free_address();
    let mut command = Command::new(tool("VERSITYGW", "versitygw"));
    command.env("ROOT_ACCESS_KEY", KEY).env("ROOT_SECRET_KEY", SECRET);
    command.args(["--port", &address.to_string(), "posix"]).arg(folder.join("objects"));
    Server::start(command, address)
}

fn moto() -> Server {
    let address = free_address();
    // Its threads change places often, as they do on a machine with many processors.
    let program = "import sys; sys.setswitchinterval(1e-6); from moto.server import main; main()";
    let mut command = Command::new(tool("MOTO_PYTHON", "../moto/bin/python"));
    command.args(["-c", program, "-H", "127.0.0.1", "-p", &address.port().to_string()]);
    let server = Server::start(command, address);
    let mut stream = TcpStream::connect(address).expect("it listens");
    let request = format!(
        "PUT /bucket HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server
}

#[test]
#[ignore = "needs versitygw: make object-servers"]
fn versitygw_passes_the_race_and_carries_a_volume() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = versitygw(folder.path());
    let bucket = server.bucket(folder.path(), "some/volume");
    probe::race(&*bucket).expect("it is atomic");
    assert_eq!(bucket.list("").expect("no failure").len(), 0, "the probe cleans up");
    live(&bucket, 1, 300);
}

#[test]
#[ignore = "needs versitygw: make object-servers"]
fn versitygw_carries_a_volume_through_faults() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = versitygw(folder.path());
    let proxy = Proxy::start(server.address, 3).expect("a free port");
    let rates = vec![
        (Fault::SlowDown, 20),
        (Fault::ErrorAfter, 20),
        (Fault::Conflict, 20),
        (Fault::Cut, 20),
        (Fault::Lost, 20),
    ];
    proxy.set_conditions(Conditions { rates, ..Conditions::default() });
    let bucket = client(&proxy.endpoint(), folder.path(), "some/volume");
    live(&bucket, 2, 200);
    assert!(proxy.counts().1 > 20, "faults were met: {:?}", proxy.counts());
}

#[test]
#[ignore = "needs moto: make object-servers"]
fn moto_passes_in_sequence_and_is_refused_by_the_race() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = moto();
    let bucket = server.bucket(folder.path(), "some/volume");
    probe::sequence(&*bucket).expect("one after the other it keeps its word");
    // Whether a race shows depends on how its threads are run: the probe may have to try more than once.
    let refused = (0..8).find_map(|_| probe::race(&*bucket).err());
    let refused = refused.expect("two of the racing requests win");
    assert!(matches!(refused, ProbeError::Raced(..)), "{refused}");
}
