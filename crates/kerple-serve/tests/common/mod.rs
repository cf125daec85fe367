//! A tiny model behind a server.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use kerple_data::{PrepareOptions, Sources, Tokenizer, prepare};
use kerple_lm::config::{DataConfig, RunConfig};
use kerple_lm::corpus::DataSource;
use kerple_lm::model::Decoder;
use kerple_lm::plan::Plan;
use kerple_lm::run::SpecialTokens;
use kerple_serve::{Hosts, ServedModel, Server, ServerLimits, router};
use serde_json::Value;
use std::sync::LazyLock;
use tower::ServiceExt;

/// Words that tokens of bytes are read from.
pub const TEXT: &str = "the quick brown fox jumps over the lazy dog\n";

/// Prepared text, for all tests of a file.
static DATA: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("text.txt"), TEXT.repeat(2000)).unwrap();
    let options = PrepareOptions::new(Sources::paths(&[place.path().join("text.txt")]), &place.path().join("data"));
    prepare(&options, &mut |_| {}).unwrap();
    place
});

/// A model that was not trained, whose initial values are large enough for opinions, under an encoding.
pub fn served(encoding: &str) -> ServedModel {
    served_by(&format!("{{ kind = {encoding:?} }}"))
}

/// The same under an encoding with keys, as a run file has it.
pub fn served_by(encoding: &str) -> ServedModel {
    let path = DATA.path().join("data");
    let text = format!(
        "seed = 3\ndata.path = {path:?}\nencoding = {encoding}\nmodel.n_layers = 2\nmodel.n_heads = 2\n\
         model.head_dim = 8\nmodel.block.init = \"xavier\"\ntrain.train_len = 16\n"
    );
    let config = RunConfig::parse(&text, "test", &[]).unwrap();
    let source = DataSource::open(&DataConfig::text(&path)).unwrap();
    let plan = Plan::new(&config, source.facts()).unwrap();
    let model = Decoder::new(&plan, &kerple_lm::device());
    let limits = ServerLimits {
        max_model_len: 200,
        max_num_seqs: 3,
        max_queue: 8,
        body: 1 << 16,
        ..ServerLimits::of(&plan, &model)
    };
    let tokenizer = Tokenizer::byte();
    let special = SpecialTokens::of(&tokenizer);
    let hosts = Hosts::of(std::net::Ipv4Addr::LOCALHOST.into());
    ServedModel { name: "tiny".to_owned(), plan, step: 0, model, tokenizer, special, limits, hosts }
}

/// The same model by itself.
pub fn model(encoding: &str) -> (Plan, Decoder) {
    let ServedModel { plan, model, .. } = served(encoding);
    (plan, model)
}

/// Something to ask.
pub struct Client {
    runtime: tokio::runtime::Runtime,
    pub server: Server,
}

impl Client {
    pub fn new(served: ServedModel) -> Client {
        served.check(None).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        Client { runtime, server: Server::start(served).unwrap() }
    }

    /// Status and body.
    pub fn send(&self, method: &str, path: &str, body: impl Into<Body>) -> (StatusCode, String) {
        self.send_with(method, path, &[("host", "localhost"), ("authorization", "Bearer ")], body)
    }

    /// The same with other headers.
    pub fn send_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> (StatusCode, String) {
        let request = Request::builder().method(method).uri(path);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let request = request.body(body.into()).unwrap();
        let app = router(&self.server);
        self.runtime.block_on(async move {
            let response = app.oneshot(request).await.unwrap();
            let status = response.status();
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            (status, String::from_utf8(bytes.to_vec()).unwrap())
        })
    }

    pub fn get(&self, path: &str) -> Value {
        let (status, body) = self.send("GET", path, Body::empty());
        assert_eq!(status, StatusCode::OK, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    pub fn post(&self, path: &str, body: &Value) -> Value {
        let (status, body) = self.send("POST", path, body.to_string());
        assert_eq!(status, StatusCode::OK, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The choices of a completion.
    pub fn complete(&self, body: Value) -> Vec<Value> {
        let answer = self.post("/v1/completions", &body);
        assert_eq!((&answer["object"], &answer["model"]), (&"text_completion".into(), &"tiny".into()));
        answer["choices"].as_array().unwrap().clone()
    }

    /// Begins a request whose answer is not waited for.
    pub fn begin(&self, body: Value) -> axum::response::Response {
        let request = Request::builder().method("POST").uri("/v1/completions").header("host", "localhost");
        let request = request.body(Body::from(body.to_string())).unwrap();
        let app = router(&self.server);
        self.runtime.block_on(async move { app.oneshot(request).await.unwrap() })
    }
}
