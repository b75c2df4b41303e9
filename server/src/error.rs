//! Every error that a client can see: a closed list with its status, type and envelope.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bloomery_runtime::request::RequestError;
use serde_json::{Value, json};

/// Content type of all JSON answers.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");

/// An error as the client sees it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ApiError {
    /// The request cannot be understood or honoured.
    #[error("{0}")]
    Invalid(String),
    /// The prompt does not fit.
    #[error(
        "request ({n_prompt} tokens) exceeds the available context size ({n_ctx} tokens), try increasing it"
    )]
    ContextExceeded {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// Tokens that a request may have.
        n_ctx: usize,
    },
    /// No key, or a wrong one.
    #[error("Invalid API Key")]
    Unauthorized,
    /// No such route.
    #[error("File Not Found")]
    NotFound,
    /// The body is larger than the limit.
    #[error("request body is larger than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// The client was too slow.
    #[error("the request body did not arrive within {seconds} seconds")]
    TooSlow {
        /// The limit.
        seconds: u64,
    },
    /// llama-server has it, this server or this model does not.
    #[error("{0}")]
    NotSupported(String),
    /// The model is not there yet, or nothing is free.
    #[error("{0}")]
    Unavailable(String),
    /// Ours to mend.
    #[error("{0}")]
    Server(String),
}

impl ApiError {
    /// The model is still being loaded.
    #[must_use]
    pub fn loading() -> Self {
        Self::Unavailable("Loading model".to_owned())
    }

    /// A field of a request that is known by name and comes later.
    #[must_use]
    pub fn later(field: &str) -> Self {
        Self::NotSupported(format!("'{field}' is not supported by this server yet"))
    }

    /// A field of a request with a value that does not do.
    #[must_use]
    pub fn field(field: &str, problem: impl std::fmt::Display) -> Self {
        Self::Invalid(format!("Field '{field}': {problem}"))
    }

    /// HTTP status.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::Invalid(_) | Self::ContextExceeded { .. } => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::NotSupported(_) => StatusCode::NOT_IMPLEMENTED,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Server(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The `type` of the envelope.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Invalid(_) | Self::TooLarge { .. } | Self::TooSlow { .. } => "invalid_request_error",
            Self::ContextExceeded { .. } => "exceed_context_size_error",
            Self::Unauthorized => "authentication_error",
            Self::NotFound => "not_found_error",
            Self::NotSupported(_) => "not_supported_error",
            Self::Unavailable(_) => "unavailable_error",
            Self::Server(_) => "server_error",
        }
    }

    /// What stands under `error`. Errors from before a handler put the message first, as llama-server does.
    #[must_use]
    pub fn body(&self) -> Value {
        let (code, message, kind) = (self.status().as_u16(), self.to_string(), self.kind());
        match self {
            Self::Unauthorized | Self::NotFound => json!({"message": message, "type": kind, "code": code}),
            Self::Unavailable(_) if *self == Self::loading() => {
                json!({"message": message, "type": kind, "code": code})
            }
            Self::ContextExceeded { n_prompt, n_ctx } => json!({
                "code": code, "message": message, "type": kind, "n_prompt_tokens": n_prompt, "n_ctx": n_ctx,
            }),
            _ => json!({"code": code, "message": message, "type": kind}),
        }
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::ContextExceeded { n_prompt, n_ctx } => Self::ContextExceeded { n_prompt, n_ctx },
            RequestError::Invalid(message) => Self::Invalid(message),
            RequestError::SlotFile(_) => Self::Invalid(error.to_string()),
            RequestError::ShuttingDown => Self::Unavailable(error.to_string()),
            RequestError::Cancelled | RequestError::Executor(_) => Self::Server(error.to_string()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.status();
        tracing::debug!(target: "bloomery_serve::http", status = status.as_u16(), "{self}");
        (status, [(header::CONTENT_TYPE, JSON)], json!({"error": self.body()}).to_string()).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes_are_as_recorded() {
        let exceeded = ApiError::ContextExceeded { n_prompt: 6001, n_ctx: 4096 };
        assert_eq!(
            exceeded.body().to_string(),
            r#"{"code":400,"message":"request (6001 tokens) exceeds the available context size (4096 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":6001,"n_ctx":4096}"#
        );
        assert_eq!(
            ApiError::NotFound.body().to_string(),
            r#"{"message":"File Not Found","type":"not_found_error","code":404}"#
        );
        assert_eq!(
            ApiError::loading().body().to_string(),
            r#"{"message":"Loading model","type":"unavailable_error","code":503}"#
        );
    }
}
