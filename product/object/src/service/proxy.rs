//! Stands between a client and a service, and fails as services and networks do: by a seed.

use super::http::Message;
use super::listener::{Handler, Listener, Reply};
use fastrand::Rng;
use std::io::{self, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `503 SlowDown`; not carried out.
    SlowDown,
    /// Carried out; `500 InternalError`.
    ErrorAfter,
    /// `409 ConditionalRequestConflict`, of requests with a condition; not carried out.
    Conflict,
    /// Carried out; the answer ends in the middle.
    Cut,
    /// Carried out; there is no answer.
    Lost,
    /// `403 AccessDenied`; not carried out.
    Denied,
    /// `403 RequestTimeTooSkewed`; not carried out.
    Skewed,
    /// `400 ExpiredToken`; not carried out.
    Expired,
    /// `404 NoSuchBucket`; not carried out.
    NoBucket,
}

/// How the way to the service is.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    /// How often what happens, in thousandths of all requests.
    pub rates: Vec<(Fault, u32)>,
    /// Time before the answer to a GET.
    pub get_latency: Duration,
    /// Time before the answer to anything else.
    pub put_latency: Duration,
    /// Bytes per second of each connection; no limit without it.
    pub bandwidth: Option<u64>,
}

/// A proxy; it ends with this value.
#[derive(Debug)]
pub struct Proxy {
    listener: Listener,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    conditions: Mutex<(Conditions, Rng)>,
    request_count: AtomicU64,
    fault_count: AtomicU64,
}

impl Proxy {
    /// Passes requests on to `upstream`.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start(upstream: SocketAddr, seed: u64) -> io::Result<Proxy> {
        let shared = Arc::new(Shared {
            upstream,
            conditions: Mutex::new((Conditions::default(), Rng::with_seed(seed))),
            request_count: AtomicU64::new(0),
            fault_count: AtomicU64::new(0),
        });
        Ok(Proxy { listener: Listener::start(Way(shared.clone()))?, shared })
    }

    /// The URL to give to clients.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.listener.address())
    }

    /// Changes the conditions from the next request on.
    pub fn set_conditions(&self, conditions: Conditions) {
        self.shared.conditions.lock().unwrap_or_else(PoisonError::into_inner).0 = conditions;
    }

    /// Requests so far, and how many of them met a fault.
    pub fn counts(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.shared.request_count), count(&self.shared.fault_count))
    }
}

struct Way(Arc<Shared>);

impl Handler for Way {
    fn handle(&self, request: Message) -> Reply {
        self.0.request_count.fetch_add(1, Ordering::Relaxed);
        let has_condition =
            request.header("if-match").or_else(|| request.header("if-none-match")).is_some();
        let (fault, pause) = self.draw(&request);
        std::thread::sleep(pause + self.time_of(request.body.len()));
        let fault = fault.filter(|fault| *fault != Fault::Conflict || has_condition);
        if fault.is_some() {
            self.0.fault_count.fetch_add(1, Ordering::Relaxed);
        }
        let refused = |status, code| Reply::Whole(Message::error(status, code));
        match fault {
            Some(Fault::SlowDown) => return refused(503, "SlowDown"),
            Some(Fault::Conflict) => return refused(409, "ConditionalRequestConflict"),
            Some(Fault::Denied) => return refused(403, "AccessDenied"),
            Some(Fault::Skewed) => return refused(403, "RequestTimeTooSkewed"),
            Some(Fault::Expired) => return refused(400, "ExpiredToken"),
            Some(Fault::NoBucket) => return refused(404, "NoSuchBucket"),
            Some(Fault::ErrorAfter | Fault::Cut | Fault::Lost) | None => {}
        }
        let Ok(answer) = self.pass(request) else { return Reply::Part(Vec::new()) };
        std::thread::sleep(self.time_of(answer.body.len()));
        match fault {
            None => Reply::Whole(answer),
            Some(Fault::ErrorAfter) => refused(500, "InternalError"),
            Some(Fault::Cut) => {
                let mut bytes = answer.encode();
                bytes.truncate(bytes.len() / 2);
                Reply::Part(bytes)
            }
            Some(_) => Reply::Part(Vec::new()),
        }
    }
}

impl Way {
    /// What happens to this request, and how long it takes.
    fn draw(&self, request: &Message) -> (Option<Fault>, Duration) {
        let mut guard = self.0.conditions.lock().unwrap_or_else(PoisonError::into_inner);
        let (conditions, random) = &mut *guard;
        let mut draw = random.u32(..1000);
        let mut found = None;
        for (fault, rate) in &conditions.rates {
            if draw < *rate {
                found = Some(*fault);
                break;
            }
            draw -= rate;
        }
        let is_get = request.method() == "GET";
        (found, if is_get { conditions.get_latency } else { conditions.put_latency })
    }

    /// How long the bytes of a body are on their way.
    fn time_of(&self, size: usize) -> Duration {
        let guard = self.0.conditions.lock().unwrap_or_else(PoisonError::into_inner);
        let bandwidth = guard.0.bandwidth;
        bandwidth.map_or(Duration::ZERO, |bandwidth| {
            Duration::from_secs_f64(size as f64 / bandwidth as f64)
        })
    }

    fn pass(&self, mut request: Message) -> io::Result<Message> {
        let mut stream = TcpStream::connect(self.0.upstream)?;
        stream.set_nodelay(true)?;
        request.headers.retain(|(name, _)| name != "connection");
        let is_head = request.method() == "HEAD";
        // Host stays as it was: it is signed.
        request.with("connection", "close").write(&mut stream)?;
        let answer = Message::read_answer(&mut BufReader::new(stream), is_head)?;
        let mut answer = answer.ok_or(io::ErrorKind::UnexpectedEof)?;
        answer.headers.retain(|(name, _)| name != "connection");
        Ok(answer)
    }
}
