//! An HTTP server for one trained model, with OpenAI's completions API.
//!
//! ```text
//! POST /v1/completions   text or tokens in, text with log-probabilities out, whole or as server-sent events
//! GET  /v1/models        the one model
//! POST /tokenize         text to tokens;  POST /detokenize back;  GET /tokenizer_info
//! GET  /health           whether the model works
//! GET  /                 a page for people;  GET /model.json  what it shows of the model
//! ```
//!
//! Requests wait in a queue. One thread owns the model: it reads prompts one by one and then
//! extends all completions together, by one token per pass. So a completion does not depend on
//! other requests.
//!
//! Do not expose it to the internet: it has neither encryption nor API keys. By default it listens
//! on this machine only.

mod answer;
mod api_error;
mod choice;
mod completion;
mod connections;
mod facts;
mod hosts;
mod list;
mod names;
mod notes;
mod penalties;
mod prompts;
mod raw;
mod routes;
mod stop;
mod tokens;
mod worker;

pub use hosts::Hosts;
pub use routes::{Server, router};

use names::TokenNames;

use kerple_data::Tokenizer;
use kerple_lm::memory_estimate::MemoryLimit;
use kerple_lm::model::Decoder;
use kerple_lm::plan::Plan;
use kerple_lm::run::SpecialTokens;
use kerple_lm::{Error, Result};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The limits of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Most tokens of a prompt and its completion.
    pub max_model_len: usize,
    /// Most completions that are extended together.
    pub max_num_seqs: usize,
    /// Most prompts that wait or are in progress; further ones are refused until some are done.
    pub max_queue: usize,
    /// Most bytes of a request's body.
    pub body: usize,
    /// Most open connections.
    pub connections: usize,
    /// Seconds in which the head of a request must arrive, and for which a connection may be idle.
    pub head: u64,
    /// Seconds in which a body must arrive, and in which a client must continue to read.
    pub seconds: u64,
}

impl ServerLimits {
    /// Limits for a model trained at `train_len`: the longest length it is defined for, up to 32
    /// training lengths or 4096 tokens.
    pub fn of(plan: &Plan, model: &Decoder) -> ServerLimits {
        let wish = plan.train_len.saturating_mul(32).max(4096);
        let longest = model.trunk.encoding.longest().map_or(wish, |(longest, _)| longest.min(wish));
        ServerLimits {
            max_model_len: longest,
            max_num_seqs: 8,
            max_queue: 256,
            body: ServerLimits::body_of(longest),
            connections: 512,
            head: 20,
            seconds: 30,
        }
    }

    /// The limit of a body in bytes: 16 prompts of `len` tokens at 16 bytes per token, from 1 to 16
    /// MiB, or more where a single prompt needs it.
    pub fn body_of(len: usize) -> usize {
        let one = len.saturating_mul(16);
        one.saturating_mul(16).clamp(1 << 20, one.max(16 << 20))
    }
}

/// A model with everything needed to serve it.
#[derive(Debug)]
pub struct ServedModel {
    /// The name that clients use.
    pub name: String,
    /// The plan of the run.
    pub plan: Plan,
    /// The step of the checkpoint.
    pub step: u64,
    /// The model.
    pub model: Decoder,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its special tokens.
    pub special: SpecialTokens,
    /// The limits.
    pub limits: ServerLimits,
    /// The host names that requests may use.
    pub hosts: Hosts,
}

impl ServedModel {
    /// Checks that the model supports the limits within the available memory, where that is known.
    ///
    /// # Errors
    /// Lengths for which the encoding is not defined, or which need too much memory.
    pub fn check(&self, memory: Option<&MemoryLimit>) -> Result<()> {
        self.model.check_len(self.limits.max_model_len)?;
        self.plan.check_serving_memory(self.limits.max_model_len, self.limits.max_num_seqs, memory)
    }

    /// The model, and what others than its thread need.
    pub(crate) fn split(self) -> (Decoder, ServeContext) {
        let facts = facts::of(&self);
        let ServedModel { name, plan, model, tokenizer, special, limits, hosts, .. } = self;
        let names = TokenNames::new(&tokenizer, plan.model.n_logits());
        (model, ServeContext { name, plan, tokenizer, names, special, limits, hosts, facts })
    }
}

/// What requests are read and answered with.
#[derive(Debug)]
pub(crate) struct ServeContext {
    name: String,
    plan: Plan,
    tokenizer: Tokenizer,
    names: TokenNames,
    special: SpecialTokens,
    limits: ServerLimits,
    hosts: Hosts,
    facts: Value,
}

/// Threads that read bodies.
const READERS: usize = 2;
/// How often it is looked whether to stop.
const A_LOOK: Duration = Duration::from_millis(50);
/// How long a stopped server with nothing to do waits for requests that have begun to come.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves until `stop` is set. Then the server accepts no more connections, answers what was asked,
/// and returns. `ready` receives the address; the system chooses its port where 0 was given.
///
/// # Errors
/// An address that cannot be listened on.
pub fn serve(
    served: ServedModel,
    address: SocketAddr,
    ready: impl FnOnce(SocketAddr),
    stop: Arc<AtomicBool>,
) -> Result<()> {
    let io = |action| Error::io(std::path::Path::new(&address.to_string()), action);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(READERS)
        .enable_io()
        .enable_time()
        .build();
    let runtime = runtime.map_err(io("begin to serve on"))?;
    let limits = served.limits.clone();
    let server = Server::start(served).map_err(io("begin to serve on"))?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(address).await.map_err(io("listen on"))?;
        ready(listener.local_addr().map_err(io("listen on"))?);
        let (to, stopped) = tokio::sync::watch::channel(false);
        let serving = tokio::spawn(connections::serve(listener, router(&server), limits, stopped));
        // who has sent half a request when the server is stopped is not waited for
        let mut quiet = Duration::ZERO;
        while !serving.is_finished() && quiet < PATIENCE {
            tokio::time::sleep(A_LOOK).await;
            let is_stopped = stop.load(Ordering::Relaxed);
            if is_stopped {
                to.send_replace(true);
            }
            quiet = if is_stopped && server.is_idle() { quiet + A_LOOK } else { Duration::ZERO };
        }
        serving.abort();
        Ok::<(), Error>(())
    })?;
    drop(runtime);
    server.finish();
    Ok(())
}
