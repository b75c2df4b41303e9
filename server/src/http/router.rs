//! Which path is which route, and what every request goes through before it.

use std::{panic::AssertUnwindSafe, sync::Arc};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_util::FutureExt as _;

use super::{App, routes, slots};
use crate::error::ApiError;

/// The name that clients of llama-server look for.
const SERVER: HeaderValue = HeaderValue::from_static("llama.cpp");

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    let mut routes = Router::new()
        .route("/health", get(routes::health))
        .route("/v1/health", get(routes::health))
        .route("/models", get(routes::models))
        .route("/v1/models", get(routes::models))
        .route("/props", get(routes::props).post(routes::set_props))
        .route("/slots", get(routes::list_slots))
        .route("/slots/{id}", post(slots::act))
        .route("/metrics", get(routes::metrics))
        .route("/tokenize", post(routes::tokenize))
        .route("/detokenize", post(routes::detokenize))
        .route("/apply-template", post(routes::apply_template))
        .route("/completion", post(routes::completion))
        .route("/completions", post(routes::completion))
        .route("/v1/completions", post(routes::openai_completion))
        .route("/chat/completions", post(routes::chat_completion))
        .route("/v1/chat/completions", post(routes::chat_completion))
        .route("/chat/completions/input_tokens", post(routes::count_chat_tokens))
        .route("/v1/chat/completions/input_tokens", post(routes::count_chat_tokens))
        .route("/v1/systemone", post(routes::decide))
        .route("/lora-adapters", get(routes::lora_adapters).post(routes::later));
    for path in LATER {
        routes = routes.route(path, post(routes::later));
    }
    // llama-server answers a wrong method as it answers a wrong path.
    routes = routes.method_not_allowed_fallback(routes::not_found);
    let routes = if app.settings.prefix.is_empty() {
        routes
    } else {
        Router::new().nest(&app.settings.prefix.clone(), routes)
    };
    routes.fallback(routes::not_found).layer(from_fn_with_state(Arc::clone(&app), gate)).with_state(app)
}

/// Routes of llama-server that come later.
const LATER: [&str; 17] = [
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/responses",
    "/v1/responses/input_tokens",
    "/responses/input_tokens",
    "/v1/chat/completions/control",
    "/v1/audio/transcriptions",
    "/audio/transcriptions",
    "/infill",
    "/embedding",
    "/embeddings",
    "/v1/embeddings",
    "/rerank",
    "/reranking",
    "/v1/rerank",
    "/v1/reranking",
];

/// Cross-origin headers, the browser's question beforehand, the model's state, the key; then the route, whose panics end here.
async fn gate(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let origin = app.settings.cors.origin(request.headers());
    let mut response = if request.method() == Method::OPTIONS {
        let mut response = Response::new(Body::empty());
        response.headers_mut().extend(app.settings.cors.preflight());
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html"));
        response
    } else if app.ready().is_none() {
        ApiError::loading().into_response()
    } else if !is_public(&app, request.uri().path()) && !app.settings.keys.allow(request.headers()) {
        tracing::warn!(target: "bloomery_serve::http", "a request without a valid key");
        ApiError::Unauthorized.into_response()
    } else {
        run(request, next).await
    };
    response.headers_mut().insert(header::SERVER, SERVER);
    if let Some(origin) = origin {
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    }
    response
}

async fn run(request: Request, next: Next) -> Response {
    let line = format!("{} {}", request.method(), request.uri().path());
    let response = AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(|_| {
        tracing::error!(target: "bloomery_serve::http", "{line}: the handler panicked");
        ApiError::Server("internal error".to_owned()).into_response()
    });
    if response.status() == StatusCode::OK {
        tracing::debug!(target: "bloomery_serve::http", "{line}: 200");
    } else {
        tracing::info!(target: "bloomery_serve::http", "{line}: {}", response.status().as_u16());
    }
    response
}

fn is_public(app: &App, path: &str) -> bool {
    path == "/"
        || path
            .strip_prefix(app.settings.prefix.as_str())
            .is_some_and(|path| matches!(path, "/health" | "/v1/health"))
}
