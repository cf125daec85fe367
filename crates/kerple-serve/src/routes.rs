//! The routes and their handlers.

use crate::answer::{ResponseContext, join};
use crate::api_error::{ApiError, ApiResult, shortened};
use crate::choice::TextDelta;
use crate::completion::Completion;
use crate::connections::{Connection, Phase};
use crate::worker::{self, PromptJob, WorkerMessage};
use crate::{ServeContext, ServedModel, tokens};
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, mpsc as channel};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_stream::{StreamExt, once};

/// Bodies of more bytes than this are read a few at a time, so that what they take together is little.
const LONG_BODY: u64 = 64 << 10;
/// Bytes of all that are read at a time, or four of the longest.
const LONG_BODIES: usize = 16 << 20;

/// A running model and its queue.
#[derive(Debug)]
pub struct Server {
    state: Handle,
    thread: JoinHandle<()>,
}

/// What every request needs.
#[derive(Clone, Debug)]
struct Handle {
    shared: Arc<ServeContext>,
    jobs: mpsc::Sender<PromptJob>,
    /// Places in the queue.
    places: Arc<Semaphore>,
    /// Places for long bodies.
    bodies: Arc<Semaphore>,
    requests: Arc<AtomicU64>,
    /// Seconds since 1970.
    started: u64,
}

impl Server {
    /// Starts the thread that owns the model.
    ///
    /// # Errors
    /// The system's error when it has no more threads.
    pub fn start(served: ServedModel) -> std::io::Result<Server> {
        let (model, shared) = served.split();
        let shared = Arc::new(shared);
        let (jobs, waiting) = mpsc::channel();
        let of_thread = shared.clone();
        let work = move || worker::work(&model, &of_thread, &waiting);
        let thread = std::thread::Builder::new().name("model".to_owned()).spawn(work)?;
        let places = Arc::new(Semaphore::new(shared.limits.max_queue));
        let bodies = Arc::new(Semaphore::new((LONG_BODIES / shared.limits.body.max(1)).clamp(4, 64)));
        let (requests, started) = (Arc::default(), now());
        Ok(Server { state: Handle { shared, jobs, places, bodies, requests, started }, thread })
    }

    /// Whether nobody waits for the model.
    pub(crate) fn is_idle(&self) -> bool {
        QueueOccupancy::of(&self.state).waiting == 0
    }

    /// Waits until all requests are answered. Drop the routers of this server first.
    pub fn finish(self) {
        let Server { state, thread } = self;
        drop(state);
        // a thread that ended early has told those who waited
        let _ = thread.join();
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The routes of a server.
pub fn router(server: &Server) -> Router {
    let state = server.state.clone();
    Router::new()
        .route("/", get(page))
        .route("/model.json", get(model))
        .route("/health", get(health))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(one_model))
        .route("/v1/completions", post(completions))
        .route("/tokenizer_info", get(tokenizer_info))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .fallback(|request: Request| async move { ApiError::of(StatusCode::NOT_FOUND, elsewhere(&request)) })
        .method_not_allowed_fallback(|request: Request| async move {
            let (path, method) = (request.uri().path(), request.method());
            let message = format!("{path} does not accept {method}; the header `Allow` has the method");
            ApiError::of(StatusCode::METHOD_NOT_ALLOWED, message)
        })
        .layer(DefaultBodyLimit::max(state.shared.limits.body))
        .layer(from_fn_with_state(state.clone(), of_this_host))
        .with_state(state)
}

/// Lets requests through that are for this machine.
async fn of_this_host(State(state): State<Handle>, request: Request, next: Next) -> Response {
    match state.shared.hosts.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.into_response(),
    }
}

fn elsewhere(request: &Request) -> String {
    format!("unknown route {} {}; see /v1/models and /v1/completions", request.method(), request.uri().path())
}

/// The page loads nothing from elsewhere, and may not.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

async fn page() -> Response {
    ([(header::CONTENT_SECURITY_POLICY, POLICY)], Html(include_str!("page.html"))).into_response()
}

async fn model(State(state): State<Handle>) -> Json<Value> {
    Json(state.shared.facts.clone())
}

async fn health(State(state): State<Handle>) -> Response {
    let QueueOccupancy { waiting, most } = QueueOccupancy::of(&state);
    Json(json!({ "status": "ok", "waiting": waiting, "queue": most })).into_response()
}

/// How full the queue is.
struct QueueOccupancy {
    waiting: usize,
    most: usize,
}

impl QueueOccupancy {
    fn of(state: &Handle) -> QueueOccupancy {
        let most = state.shared.limits.max_queue;
        QueueOccupancy { waiting: most - state.places.available_permits().min(most), most }
    }
}

fn described(state: &Handle) -> Value {
    json!({
        "id": state.shared.name, "object": "model", "created": state.started, "owned_by": "kerple",
        "max_model_len": state.shared.limits.max_model_len,
    })
}

async fn models(State(state): State<Handle>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [described(&state)] }))
}

async fn one_model(State(state): State<Handle>, name: Result<Path<String>, PathRejection>) -> ApiResult<Json<Value>> {
    let name = match &name {
        Ok(Path(name)) => name,
        Err(_) => "a name that is not UTF-8",
    };
    match name == state.shared.name {
        true => Ok(Json(described(&state))),
        false => Err(ApiError::no_model(name, &state.shared.name)),
    }
}

async fn tokenizer_info(State(state): State<Handle>) -> Response {
    Json(tokens::info(&state.shared)).into_response()
}

async fn tokenize(State(state): State<Handle>, request: Request) -> ApiResult<Response> {
    read(state, request, |bytes, state| Ok(Json(tokens::tokenize(bytes, &state.shared)?).into_response())).await
}

async fn detokenize(State(state): State<Handle>, request: Request) -> ApiResult<Response> {
    read(state, request, |bytes, state| Ok(Json(tokens::detokenize(bytes, &state.shared)?).into_response())).await
}

/// Gives memory that a long body took back to the system, which the allocator keeps otherwise.
fn give_back() {
    // SAFETY: it may be called at any time and by any thread, and moves nothing that is in use.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Refuses what a request has in addition to its body and nothing reads.
fn refuse_unread(request: &Request) -> ApiResult<()> {
    if let Some(query) = request.uri().query().filter(|query| !query.is_empty()) {
        let message = format!("the query `{}` is not read; send its keys in the body", shortened(query));
        return Err(ApiError::of(StatusCode::BAD_REQUEST, message));
    }
    let encoding = request.headers().get(header::CONTENT_ENCODING).filter(|encoding| *encoding != "identity");
    if let Some(encoding) = encoding {
        let encoding = String::from_utf8_lossy(encoding.as_bytes());
        let message = format!(
            "`Content-Encoding` is {}, which this server does not support; send the body without it",
            shortened(&encoding)
        );
        return Err(ApiError::of(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    Ok(())
}

/// Takes a body, within its limits, and works on it where no other request has to wait for that.
async fn read<T: Send + 'static>(
    state: Handle,
    request: Request,
    work: impl FnOnce(&[u8], &Handle) -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    refuse_unread(&request)?;
    let crate::ServerLimits { body, seconds, .. } = state.shared.limits;
    let connection = request.extensions().get::<Connection>().cloned();
    let too_long =
        || ApiError::of(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is longer than {body} bytes, the limit"));
    // a length that is declared need not come first
    if request.body().size_hint().lower() > body as u64 {
        return Err(too_long());
    }
    let enter = |phase| connection.iter().for_each(|connection| connection.enter(phase));
    let most = Duration::from_secs(seconds);
    enter(Phase::Receiving);
    let place = match request.body().size_hint().upper() {
        Some(size) if size <= LONG_BODY => None,
        _ => Some(tokio::time::timeout(most, state.bodies.clone().acquire_owned()).await.map_err(|_| {
            let message = "the server is reading its limit of long bodies; try again later";
            ApiError::of(StatusCode::SERVICE_UNAVAILABLE, message)
        })?),
    };
    let bytes = tokio::time::timeout(most, Bytes::from_request(request, &())).await;
    enter(Phase::Answering);
    let bytes = bytes.map_err(|_| {
        ApiError::of(StatusCode::REQUEST_TIMEOUT, format!("the body did not arrive within {seconds} seconds"))
    })?;
    let bytes = bytes.map_err(|refusal| match refusal.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_long(),
        status => ApiError::of(status, refusal.body_text()),
    })?;
    let read = move || {
        let done = work(&bytes, &state);
        drop(bytes);
        if place.is_some() {
            give_back();
        }
        done
    };
    let done = tokio::task::spawn_blocking(read).await;
    done.unwrap_or_else(|_| Err(ApiError::of(StatusCode::INTERNAL_SERVER_ERROR, "the body could not be read")))
}

async fn completions(State(state): State<Handle>, request: Request) -> ApiResult<Response> {
    let number = state.requests.fetch_add(1, Ordering::Relaxed);
    let handle = state.clone();
    let request = read(handle, request, move |bytes, state| Completion::read(bytes, &state.shared, number)).await?;
    let id = format!("cmpl-{:x}-{number}", state.started);
    let head = ResponseContext::new(id, now(), state.shared.clone(), &request);
    let (stream, count) = (request.stream, request.prompts.len());
    let messages = submit(&state, request)?;
    if stream {
        return Ok(events(head, messages));
    }
    let pieces = collect(messages, count).await?;
    let json = (header::CONTENT_TYPE, "application/json");
    Ok(([json], head.answer(pieces)).into_response())
}

/// Puts the prompts of a request into the queue.
fn submit(state: &Handle, request: Completion) -> ApiResult<channel::UnboundedReceiver<WorkerMessage>> {
    let count = request.prompts.len();
    let places = state.places.clone().try_acquire_many_owned(count as u32).map_err(|_| {
        let QueueOccupancy { waiting, most } = QueueOccupancy::of(state);
        let message = format!(
            "{waiting} of {most} places in the queue are taken, and the request needs {count}; try again later"
        );
        ApiError::of(StatusCode::TOO_MANY_REQUESTS, message)
    })?;
    let (to, messages) = channel::unbounded_channel();
    let (request, mut places) = (Arc::new(request), places);
    for index in 0..count {
        let place = places.split(1).expect("a place for each prompt");
        let job = PromptJob { request: request.clone(), index, to: to.clone(), _place: place };
        state.jobs.send(job).map_err(|_| ended())?;
    }
    Ok(messages)
}

fn ended() -> ApiError {
    ApiError::of(StatusCode::INTERNAL_SERVER_ERROR, "the model has stopped working; restart the server")
}

/// Waits for all texts, in the order of the prompts.
async fn collect(mut messages: channel::UnboundedReceiver<WorkerMessage>, count: usize) -> ApiResult<Vec<TextDelta>> {
    let mut all = vec![TextDelta::default(); count];
    while let Some(next) = messages.recv().await {
        match next {
            WorkerMessage::Delta(index, piece) => join(&mut all[index], piece),
            WorkerMessage::Failed(failure) => return Err(failure),
        }
    }
    if all.iter().any(|piece| piece.finish.is_none()) { Err(ended()) } else { Ok(all) }
}

/// Deltas as server-sent events, as they come; then the usage if the request asks for it.
fn events(head: ResponseContext, messages: channel::UnboundedReceiver<WorkerMessage>) -> Response {
    let head = Arc::new(head);
    let (mut added, mut is_first, last) = (0, true, head.clone());
    let messages = UnboundedReceiverStream::new(messages).map(Some).chain(once(None));
    let chunks = messages.filter_map(move |message| match message {
        Some(WorkerMessage::Delta(index, piece)) => {
            added += piece.added;
            Some(head.chunk(index, piece, std::mem::take(&mut is_first)))
        }
        Some(WorkerMessage::Failed(failure)) => {
            Some(serde_json::to_string(&failure.body()).expect("a failure is text"))
        }
        None => last.usage.then(|| last.end(added)),
    });
    let chunks = chunks.chain(once("[DONE]".to_owned()));
    let events = chunks.map(|chunk| Ok::<_, Infallible>(Bytes::from(format!("data: {chunk}\n\n"))));
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(events)).into_response()
}
