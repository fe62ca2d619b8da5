//! A volume with `--ack remote` against s3backer, both on one bucket of versitygw behind the proxy.
//!
//! s3backer is a file over a bucket, one object for each block. Its `fsync` does nothing, so it is measured with
//! `--blockCacheSync`, where a write waits for the bucket: what `--ack remote` promises of a flush. Its block is the 128 KiB
//! that its manual recommends, and 4 KiB, where a write need not read first.

use super::remote::Remote;
use super::{CLIENTS, Options, Stored, flush_rate, paced_by};
use crate::error::BenchError;
use crate::figures::{Figures, rate};
use coulter_object::Ack;
use coulter_workload::{BLOCK_SIZE, Random};
use serde::Serialize;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Sizes of an s3backer block.
const BLOCKS: [&str; 2] = ["128k", "4k"];

/// Time for a program to come up.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was measured: pairs of a random 4 KiB write and a flush, per second.
#[derive(Clone, Debug, Serialize)]
pub struct Rival {
    /// The volume, one client.
    pub fsyncs_per_second: f64,
    /// The volume, 64 clients.
    pub fsyncs_per_second_64: f64,
    /// s3backer with each block size.
    pub s3backer: Vec<Other>,
}

/// s3backer with one block size.
#[derive(Clone, Debug, Serialize)]
pub struct Other {
    /// Its block.
    pub block: String,
    /// One client.
    pub fsyncs_per_second: f64,
    /// 64 clients.
    pub fsyncs_per_second_64: f64,
    /// The volume to it, one client.
    pub ratio: f64,
    /// The volume to it, 64 clients.
    pub ratio_64: f64,
}

impl Rival {
    /// The figures as text.
    pub fn table(&self) -> String {
        let mut table = Figures::default();
        table.row("write and flush, --ack remote", rate(self.fsyncs_per_second), "one client").row(
            "  64 clients",
            rate(self.fsyncs_per_second_64),
            "",
        );
        for other in &self.s3backer {
            table
                .row(
                    &format!("s3backer, blocks of {}", other.block),
                    rate(other.fsyncs_per_second),
                    format!("{:.1} times as many", other.ratio),
                )
                .row("  64 clients", rate(other.fsyncs_per_second_64), {
                    format!("{:.1} times as many", other.ratio_64)
                });
        }
        table.text()
    }
}

/// Measures. versitygw is the program that the variable `VERSITYGW` names, or one on the path.
///
/// # Errors
/// When a program is missing, or something that is measured fails.
pub fn run(options: &Options) -> Result<Rival, BenchError> {
    let folder = tempfile::tempdir().map_err(system("making a folder"))?;
    let (server, address) = versitygw(folder.path())?;
    let remote = Remote::behind(address, Box::new(server), options.distance)?;
    let stored = Stored::new(options, "rival", Some((&remote.bucket, Ack::Remote)))?;
    options.progress.report("the volume", 0.1);
    let one = flush_rate(options, &stored, 1)?;
    let many = flush_rate(options, &stored, CLIENTS)?;
    stored.volume.close()?;
    let mut others = Vec::new();
    for (index, block) in BLOCKS.iter().enumerate() {
        options.progress.report("s3backer", 0.4 + 0.3 * index as f64);
        let mounted = Mounted::start(folder.path(), &remote.endpoint(), block, options.size)?;
        let file = File::options().read(true).write(true).open(mounted.file());
        let file = file.map_err(system("opening the file of s3backer"))?;
        let other_one = rate_of(options, &file, 1)?;
        let other_many = rate_of(options, &file, CLIENTS)?;
        others.push(Other {
            block: (*block).to_owned(),
            fsyncs_per_second: other_one,
            fsyncs_per_second_64: other_many,
            ratio: one / other_one,
            ratio_64: many / other_many,
        });
    }
    Ok(Rival { fsyncs_per_second: one, fsyncs_per_second_64: many, s3backer: others })
}

/// The same load as on the volume.
fn rate_of(options: &Options, file: &File, clients: usize) -> Result<f64, BenchError> {
    let blocks = options.size / BLOCK_SIZE as u64;
    paced_by(options, clients, |number, random: &mut Random| {
        let bytes = vec![number as u8 | 1; BLOCK_SIZE];
        let written = file.write_all_at(&bytes, random.below(blocks) * BLOCK_SIZE as u64);
        written.and_then(|()| file.sync_all()).map_err(system("writing to s3backer"))
    })
}

fn system(doing: &'static str) -> impl Fn(std::io::Error) -> BenchError {
    move |source| BenchError::System { doing, source }
}

/// A process that ends with this value.
pub(super) struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn versitygw(folder: &Path) -> Result<(Server, SocketAddr), BenchError> {
    let objects = folder.join("objects");
    fs::create_dir_all(objects.join("bucket")).map_err(system("making a bucket"))?;
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(system("finding a port"))?;
    let address = socket.local_addr().map_err(system("finding a port"))?;
    drop(socket);
    let program = std::env::var_os("VERSITYGW").map_or("versitygw".into(), PathBuf::from);
    let child = Command::new(program)
        .env("ROOT_ACCESS_KEY", "key")
        .env("ROOT_SECRET_KEY", "secret")
        .args(["--quiet", "--port", &address.to_string(), "posix"])
        .arg(objects)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let server = Server(child.map_err(system("starting versitygw: scripts/object_servers.sh"))?);
    wait_for("versitygw listens", || TcpStream::connect(address).is_ok())?;
    Ok((server, address))
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) -> Result<(), BenchError> {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > PATIENCE {
            return Err(BenchError::Misbehaved { what: format!("not within a minute: {what}") });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// s3backer, mounted; it is unmounted with this value.
struct Mounted {
    point: PathBuf,
    child: Child,
}

impl Mounted {
    fn start(folder: &Path, endpoint: &str, block: &str, size: u64) -> Result<Mounted, BenchError> {
        let point = folder.join(format!("mount-{block}"));
        fs::create_dir_all(&point).map_err(system("making a mount point"))?;
        let child = Command::new("s3backer")
            .arg("-f")
            .arg(format!("--baseURL={endpoint}/"))
            .arg(format!("--blockSize={block}"))
            .arg(format!("--size={size}"))
            .arg(format!("--prefix=s3backer-{block}/"))
            .args(["--accessId=key", "--accessKey=secret", "--force"])
            .args(["--blockCacheSync", "--blockCacheWriteDelay=0", "--quiet", "bucket"])
            .arg(&point)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.map_err(system("starting s3backer: apt-get install s3backer"))?;
        let mounted = Mounted { point, child };
        wait_for("s3backer is mounted", || mounted.file().exists())?;
        Ok(mounted)
    }

    fn file(&self) -> PathBuf {
        self.point.join("file")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("fusermount").arg("-u").arg(&self.point).status();
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "needs versitygw and s3backer: make copies-rival"]
    fn many_flushes_at_once_are_ten_times_those_of_s3backer() {
        let options = Options { size: 128 << 20, seconds: 12.0, ..Options::default() };
        let rival = run(&options).expect("both programs are installed");
        println!("{}", rival.table());
        assert!(rival.s3backer.iter().all(|other| other.ratio_64 > 10.0), "{rival:?}");
    }
}
