//! Refusals in OpenAI's shape.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// What is wrong with a request, or why it cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The key that is wrong.
    pub(crate) param: Option<&'static str>,
}

pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A request that cannot be served as it is, with the key that is wrong.
    pub(crate) fn bad(param: &'static str, message: impl Into<String>) -> Failure {
        Failure { status: StatusCode::BAD_REQUEST, message: message.into(), param: Some(param) }
    }

    /// Anything else.
    pub(crate) fn of(status: StatusCode, message: impl Into<String>) -> Failure {
        Failure { status, message: message.into(), param: None }
    }

    /// What of this is told to the client.
    pub(crate) fn body(&self) -> impl Serialize + use<> {
        let kind = match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        Body { error: Told { message: self.message.clone(), kind, param: self.param, code: None } }
    }
}

#[derive(Serialize)]
struct Body {
    error: Told,
}

#[derive(Serialize)]
struct Told {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'static str>,
    code: Option<&'static str>,
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        }
        response
    }
}
