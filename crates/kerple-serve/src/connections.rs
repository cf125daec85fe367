//! Limits the number of connections and how long one may keep others waiting.
//!
//! ```text
//! waiting     for the head of a request, at most `head` seconds: idle, or half sent
//! receiving   the body of a request, at most `seconds`
//! answering   as long as it takes; what the client does not read for `seconds` ends it
//! ```
//!
//! When the limit of open connections, the server's or the system's, is reached, a new connection
//! replaces the one that has waited longest, provided it has waited long enough. When all
//! connections are at work, a few more are accepted and receive only a "busy" response, or at
//! `/health` that the server works. So clients that send half a request keep nobody out.

mod lingering;
mod stalled;

use crate::ServerLimits;
use crate::api_error::ApiError;
use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use lingering::Lingering;
use stalled::Stalled;
use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// Connections beyond the limit that hear that the server is busy, at most so many at once and each for so long.
const BEYOND: usize = 32;
const BEYOND_HEAD: Duration = Duration::from_secs(2);
/// Who has waited less than this keeps the place, and who sends a body less than that.
const GRACE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];
/// Time in which a connection that was closed gives its place back to the system.
const PAUSE: Duration = Duration::from_millis(5);

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It has no whole head of a request.
    Waiting,
    /// A body comes.
    Receiving,
    /// An answer is made or sent.
    Answering,
}

/// One connection, as others see it.
#[derive(Clone, Debug)]
pub(crate) struct Connection(Arc<Mutex<(Phase, Instant)>>);

impl Connection {
    fn new() -> Connection {
        Connection(Arc::new(Mutex::new((Phase::Waiting, Instant::now()))))
    }

    /// Says what it does from now on.
    pub(crate) fn enter(&self, phase: Phase) {
        *locked(&self.0) = (phase, Instant::now());
    }

    /// For how long it has kept a place without being answered; `None` where that is not too long.
    fn waited(&self) -> Option<Duration> {
        let (phase, since) = *locked(&self.0);
        let [waiting, receiving] = GRACE;
        let grace = match phase {
            Phase::Waiting => waiting,
            Phase::Receiving => receiving,
            Phase::Answering => return None,
        };
        Some(since.elapsed()).filter(|waited| *waited >= grace)
    }
}

fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connections that are open.
#[derive(Debug, Default)]
struct Open {
    all: HashMap<u64, (Connection, AbortHandle)>,
}

impl Open {
    /// Closes the connection that has waited longest, if one has waited too long; whether there was one.
    fn close_one(&mut self) -> bool {
        let waited = |(id, (connection, _)): (&u64, &(Connection, AbortHandle))| Some((connection.waited()?, *id));
        let Some((_, id)) = self.all.iter().filter_map(waited).max() else { return false };
        if let Some((_, task)) = self.all.remove(&id) {
            task.abort();
        }
        true
    }
}

/// Takes connections until `stop` changes, and then waits for those that are open.
pub(crate) async fn serve(listener: TcpListener, app: Router, limits: ServerLimits, mut stop: watch::Receiver<bool>) {
    let (mut open, mut beyond) = (Open::default(), Open::default());
    let mut tasks: JoinSet<u64> = JoinSet::new();
    for number in 0.. {
        let stream = loop {
            tokio::select! {
                _ = stop.changed() => break None,
                Some(done) = tasks.join_next() => {
                    // those that were closed have left the list already
                    if let Ok(id) = done {
                        open.all.remove(&id);
                        beyond.all.remove(&id);
                    }
                }
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => break Some(stream),
                    Err(error) if is_of_one(&error) => {}
                    // the system has no room for more
                    Err(_) => {
                        open.close_one();
                        tokio::time::sleep(PAUSE).await;
                    }
                },
            }
        };
        let Some(stream) = stream else { break };
        let connection = Connection::new();
        let is_full = open.all.len() >= limits.connections && !open.close_one();
        if is_full && beyond.all.len() >= BEYOND && !beyond.close_one() {
            continue;
        }
        let talk = Talk { app: app.clone(), connection: connection.clone(), is_full, limits: limits.clone() };
        let stop = stop.clone();
        let task = tasks.spawn(async move {
            talk.over(stream, stop).await;
            number
        });
        let list = if is_full { &mut beyond } else { &mut open };
        list.all.insert(number, (connection, task));
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

/// Errors of one connection that came to nothing, and not of the machine.
fn is_of_one(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// What is said over one connection.
struct Talk {
    app: Router,
    connection: Connection,
    /// Whether it only hears that the server is busy.
    is_full: bool,
    limits: ServerLimits,
}

impl Talk {
    async fn over(self, stream: TcpStream, mut stop: watch::Receiver<bool>) {
        // parts of a stream are small and come one by one
        let _ = stream.set_nodelay(true);
        let stream = TokioIo::new(Stalled::new(stream, Duration::from_secs(self.limits.seconds)));
        let head = if self.is_full { BEYOND_HEAD } else { Duration::from_secs(self.limits.head) };
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(head).keep_alive(!self.is_full);
        let Talk { app, connection, is_full, .. } = self;
        let app = TowerToHyperService::new(app);
        let service = service_fn(move |request: Request<Incoming>| {
            let (app, connection) = (app.clone(), connection.clone());
            async move { Ok::<_, Infallible>(answer(&app, request, connection, is_full).await) }
        });
        let mut talk = std::pin::pin!(builder.serve_connection(stream, service));
        tokio::select! {
            _ = talk.as_mut() => return,
            _ = stop.changed() => {}
        }
        talk.as_mut().graceful_shutdown();
        let _ = talk.await;
    }
}

/// Answers a request, which a connection does until the last of the answer is sent.
async fn answer(
    app: &TowerToHyperService<Router>,
    request: Request<Incoming>,
    connection: Connection,
    is_full: bool,
) -> Response {
    let mut request = request.map(|body| Body::new(Lingering::new(body)));
    if is_full && request.uri().path() != "/health" {
        let busy = ApiError::of(
            StatusCode::SERVICE_UNAVAILABLE,
            "the server has reached its limit of open connections; try again later",
        );
        return ([(header::CONNECTION, "close")], busy).into_response();
    }
    connection.enter(Phase::Answering);
    request.extensions_mut().insert(connection.clone());
    let Ok(response) = app.call(request).await;
    let waits = Waits(connection);
    response.map(|body| {
        Body::new(body.map_err(move |error| {
            let _ = &waits;
            error
        }))
    })
}

/// Lives as long as an answer; then the connection waits again.
struct Waits(Connection);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.enter(Phase::Waiting);
    }
}
