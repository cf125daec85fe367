//! Errors in OpenAI's format.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// What is wrong with a request, or why it cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The key that is wrong.
    pub(crate) param: Option<String>,
    /// What programs know it by.
    pub(crate) code: Option<&'static str>,
}

pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    /// A request that cannot be served as it is, with the key that is wrong.
    pub(crate) fn bad(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.into()), ..ApiError::of(StatusCode::BAD_REQUEST, message) }
    }

    /// A model of another name.
    pub(crate) fn no_model(asked: &str, name: &str) -> ApiError {
        let message = format!("unknown model `{}`; this server has `{name}`", shortened(asked));
        let code = Some("model_not_found");
        ApiError { param: Some("model".to_owned()), code, ..ApiError::of(StatusCode::NOT_FOUND, message) }
    }

    /// Anything else.
    pub(crate) fn of(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code: None }
    }

    /// The body of the response.
    pub(crate) fn body(&self) -> impl Serialize + use<> {
        let kind = match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        ErrorBody {
            error: ErrorDetail { message: self.message.clone(), kind, param: self.param.clone(), code: self.code },
        }
    }
}

/// What a client wrote, so that no answer is as long as the question.
pub(crate) fn shortened(written: &str) -> String {
    match written.char_indices().nth(60) {
        None => written.to_owned(),
        Some((end, _)) => format!("{}... of {} bytes", &written[..end], written.len()),
    }
}

#[derive(Serialize)]
struct ErrorBody {
    error: ErrorDetail,
}

#[derive(Serialize)]
struct ErrorDetail {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<String>,
    code: Option<&'static str>,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE = self.status {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
