//! The routes, one function each.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::{Map, Value, json};

use super::{App, Ready, generate};
use crate::{
    error::{ApiError, JSON},
    request::{self, build::Job, chat, decide, fields::Fields, prompt},
    wire::{
        answer::Shape, decide as decide_json, metrics as metrics_text, models as models_json,
        props as props_json, slots, unix_time,
    },
};

/// A route's answer.
pub type Answer = Result<Response, ApiError>;
/// The state that routes get.
pub type Shared = State<Arc<App>>;

/// A JSON answer.
pub fn ok(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, JSON)], value.to_string()).into_response()
}

/// The model; the middleware lets nobody through before it is there.
pub fn ready(app: &App) -> Result<Arc<Ready>, ApiError> {
    app.ready().cloned().ok_or_else(ApiError::loading)
}

/// Reads a whole body within the limits of size and time.
pub async fn read(app: &App, body: Body) -> Result<Map<String, Value>, ApiError> {
    let limit = app.settings.max_request_size;
    let timeout: Duration = app.settings.timeout;
    let collected = tokio::time::timeout(timeout, Limited::new(body, limit).collect())
        .await
        .map_err(|_| ApiError::TooSlow { seconds: timeout.as_secs() })?;
    let bytes = match collected {
        Ok(collected) => collected.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => return Err(ApiError::TooLarge { limit }),
        Err(error) => return Err(ApiError::Invalid(format!("the request body broke off: {error}"))),
    };
    request::object(&bytes)
}

/// Does what may take long (templates, tokens) away from the threads that serve connections.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    // A panic in there is this request's error.
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::Server("internal error".to_owned()))?
}

pub async fn health() -> Response {
    ok(&json!({"status": "ok"}))
}

pub async fn models(State(app): Shared) -> Answer {
    let ready = ready(&app)?;
    let s = &app.settings;
    Ok(ok(&models_json::list(&ready.served.facts, &s.name, &s.aliases, &s.tags, unix_time())))
}

pub async fn props(State(app): Shared) -> Answer {
    let ready = ready(&app)?;
    let s = &app.settings;
    Ok(ok(&props_json::props(
        &ready.served.facts,
        &props_json::Props {
            name: &s.name,
            defaults: &s.sampling,
            spec_types: &s.spec_types(ready.served.facts.drafts),
            slots: s.slots,
            props: s.props,
            metrics: s.metrics,
            template: ready.template.source(),
            capabilities: ready.template.capabilities(),
        },
    )))
}

pub async fn set_props(State(app): Shared, request: Request) -> Answer {
    if !app.settings.props {
        return Err(ApiError::NotSupported(
            "This server does not support changing global properties. Start it with `--props`".to_owned(),
        ));
    }
    let body = read(&app, request.into_body()).await?;
    // llama-server says yes to anything and changes nothing; a name that asks for a change must not look like one.
    match body.keys().next() {
        None => Ok(ok(&json!({"success": true}))),
        Some(name) => Err(ApiError::Invalid(format!("'{name}' is not a property that can be changed"))),
    }
}

pub async fn list_slots(State(app): Shared, request: Request) -> Answer {
    if !app.settings.slots {
        return Err(ApiError::NotSupported(
            "This server does not support slots endpoint. Start it with `--slots`".to_owned(),
        ));
    }
    let board = ready(&app)?.served.engine.board();
    let fail =
        super::slots::parameter(request.uri(), "fail_on_no_slot").is_some_and(|value| !value.is_empty());
    if fail && board.slots.iter().all(|slot| slot.is_processing) {
        return Err(ApiError::Unavailable("no slot available".to_owned()));
    }
    Ok(ok(&slots::list(&board, app.as_ref())))
}

pub async fn metrics(State(app): Shared) -> Answer {
    if !app.settings.metrics {
        return Err(ApiError::NotSupported(
            "This server does not support metrics endpoint. Start it with `--metrics`".to_owned(),
        ));
    }
    let board = ready(&app)?.served.engine.board();
    let before = app.scrape(board.counters);
    let started = HeaderValue::from_str(&app.started.to_string()).unwrap_or(HeaderValue::from_static("0"));
    Ok((
        [
            (header::HeaderName::from_static("process-start-time-unix"), started),
            (header::CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4")),
        ],
        metrics_text::text(&board, &before),
    )
        .into_response())
}

pub async fn tokenize(State(app): Shared, request: Request) -> Answer {
    let body = read(&app, request.into_body()).await?;
    let ready = ready(&app)?;
    aside(move || {
        let fields = Fields(&body);
        let tokenizer = &ready.served.tokenizer;
        let Some(content) = fields.get("content") else { return Ok(ok(&json!({"tokens": []}))) };
        let add_special = fields.flag("add_special")?.unwrap_or(false);
        let parse_special = fields.flag("parse_special")?.unwrap_or(true);
        let tokens = prompt::mixed(content, tokenizer, add_special, parse_special)?;
        if !fields.flag("with_pieces")?.unwrap_or(false) {
            return Ok(ok(&json!({"tokens": tokens})));
        }
        let pieces = tokens.iter().map(|&id| {
            // A piece that is no whole text is shown as its bytes.
            let piece = tokenizer.piece(id, true);
            let piece = std::str::from_utf8(piece).map_or_else(|_| json!(piece), |text| json!(text));
            json!({"id": id, "piece": piece})
        });
        Ok(ok(&json!({"tokens": pieces.collect::<Value>()})))
    })
    .await
}

pub async fn detokenize(State(app): Shared, request: Request) -> Answer {
    let body = read(&app, request.into_body()).await?;
    let ready = ready(&app)?;
    aside(move || {
        let tokenizer = &ready.served.tokenizer;
        let tokens = match Fields(&body).get("tokens") {
            None => Vec::new(),
            Some(Value::Array(list)) => {
                list.iter().map(|value| prompt::token(value, tokenizer)).collect::<Result<Vec<_>, _>>()?
            }
            Some(_) => return Err(ApiError::field("tokens", "must be an array of tokens")),
        };
        let content = tokenizer.decode(&tokens, true);
        Ok(ok(&json!({"content": String::from_utf8_lossy(&content)})))
    })
    .await
}

pub async fn apply_template(State(app): Shared, request: Request) -> Answer {
    let body = read(&app, request.into_body()).await?;
    let ready = ready(&app)?;
    aside(move || {
        let rendered = chat::render(&body, &app.settings, &ready.template)?;
        Ok(ok(&json!({"prompt": rendered.prompt})))
    })
    .await
}

pub async fn count_chat_tokens(State(app): Shared, request: Request) -> Answer {
    let body = read(&app, request.into_body()).await?;
    let ready = ready(&app)?;
    aside(move || {
        let rendered = chat::render(&body, &app.settings, &ready.template)?;
        let tokens = ready.served.tokenizer.encode(&rendered.prompt, true, true);
        Ok(ok(&json!({"input_tokens": tokens.len(), "object": "response.input_tokens"})))
    })
    .await
}

pub async fn completion(app: Shared, request: Request) -> Answer {
    generated(app, request, |app, ready, body| app.builder(ready).completion(body, Shape::Native)).await
}

pub async fn openai_completion(app: Shared, request: Request) -> Answer {
    generated(app, request, |app, ready, body| app.builder(ready).completion(body, Shape::Completion)).await
}

pub async fn chat_completion(app: Shared, request: Request) -> Answer {
    generated(app, request, |app, ready, body| app.builder(ready).chat(body)).await
}

/// Turns a body into a job.
type Build = fn(&App, &Ready, &Map<String, Value>) -> Result<Job, ApiError>;

async fn generated(State(app): Shared, request: Request, build: Build) -> Answer {
    let body = read(&app, request.into_body()).await?;
    let ready = ready(&app)?;
    if ready.served.facts.decides {
        let what = "This model answers decision requests and generates no text; POST /v1/systemone";
        return Err(ApiError::NotSupported(what.to_owned()));
    }
    let job = {
        let (app, ready) = (Arc::clone(&app), Arc::clone(&ready));
        aside(move || build(&app, &ready, &body)).await?
    };
    generate::run(&app, &ready, job).await
}

pub async fn decide(State(app): Shared, request: Request) -> Answer {
    let body = read(&app, request.into_body()).await?;
    let ready = ready(&app)?;
    if !ready.served.facts.decides {
        return Err(ApiError::NotSupported("This model is not a decision model".to_owned()));
    }
    let asked = {
        let ready = Arc::clone(&ready);
        aside(move || {
            let Some(template) = &ready.decision else {
                let what =
                    "the file has no template of decision requests (tokenizer.chat_template.systemone)";
                return Err(ApiError::NotSupported(what.to_owned()));
            };
            let served = &ready.served;
            decide::asked(&body, template, &served.tokenizer, served.facts.n_ctx_slot)
        })
        .await?
    };
    let decided = ready.served.engine.decide(asked.decide.clone()).await?;
    Ok(ok(&decide_json::answer(&app.settings.name, &asked, &decided, app.settings.confidence)))
}

pub async fn lora_adapters() -> Response {
    ok(&json!([]))
}

/// A route of llama-server that comes later, or that this model cannot serve.
pub async fn later(request: Request) -> ApiError {
    let path = request.uri().path();
    let end = |suffix: &str| path.ends_with(suffix);
    ApiError::NotSupported(if end("/embeddings") || end("/embedding") {
        "This server does not support embeddings yet".to_owned()
    } else if end("/rerank") || end("/reranking") {
        "This server does not support reranking yet".to_owned()
    } else {
        format!("{path} is not supported by this server yet")
    })
}

pub async fn not_found() -> ApiError {
    ApiError::NotFound
}
