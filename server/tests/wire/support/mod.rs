//! A server in process: the real routes and the real engine, over the demo model's vocabulary and a toy executor whose next
//! token follows from the last one.

#![allow(dead_code, reason = "each test file uses its part")]

#[path = "../../../../runtime/tokenizer/tests/support/gguf.rs"]
mod gguf;
pub mod shape;
pub mod toy;

use std::{path::PathBuf, sync::Arc};

use axum::{Router, body::Body, http::Request};
use bloomery_runtime::engine::{Engine, EngineSettings, TokenizerVocabulary};
use bloomery_serve::{
    engine::{Facts, Served},
    flags,
    http::{App, Ready, router},
    settings::ServerSettings,
    template::{ChatTemplate, Clock},
};
use bloomery_tokenizer::Tokenizer;
use http_body_util::BodyExt as _;
use serde_json::Value;
use tower::ServiceExt as _;

/// Tokens that a request may have in these tests.
pub const N_CTX: usize = 1024;

pub fn data(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(path)
}

pub fn recorded(name: &str) -> Option<Vec<u8>> {
    std::fs::read(data("llama-server").join(name)).ok()
}

pub fn demo_model() -> PathBuf {
    data("demo/ember-qwen3moe-25m-Q4_K_M.gguf")
}

pub fn tokenizer() -> Arc<Tokenizer> {
    let file = bloomery_gguf::GgufFile::open(&demo_model()).unwrap();
    let vocabulary = bloomery_tokenizer::Vocabulary::from_metadata(&gguf::Keys(file.metadata())).unwrap();
    Arc::new(Tokenizer::new(vocabulary).unwrap())
}

pub fn demo_template() -> String {
    let file = bloomery_gguf::GgufFile::open(&demo_model()).unwrap();
    file.metadata().str("tokenizer.chat_template").unwrap().to_owned()
}

/// The app with these flags; loading, without a model.
pub fn loading(words: &[&str]) -> Arc<App> {
    let flags = flags::parse(["-m", "demo.gguf"].iter().chain(words).copied(), &|_| None).unwrap();
    Arc::new(App::new(ServerSettings::of(&flags).unwrap()))
}

/// The app with these flags, ready.
pub fn app(words: &[&str]) -> Arc<App> {
    app_with(words, toy::Speed::default())
}

pub fn app_with(words: &[&str], speed: toy::Speed) -> Arc<App> {
    let app = loading(words);
    let tokenizer = tokenizer();
    let n_slots = 2;
    let engine = Engine::start_with(
        Box::new(toy::Toy::new(&tokenizer, speed)),
        Arc::new(TokenizerVocabulary::new(tokenizer.clone(), &[])),
        EngineSettings { n_slots, n_ctx_slot: N_CTX, n_batch: 64, ..EngineSettings::default() },
    )
    .unwrap();
    let text = |id: Option<u32>| {
        id.and_then(|id| tokenizer.text_of(id))
            .map(|text| String::from_utf8_lossy(text).into_owned())
            .unwrap_or_default()
    };
    let facts = Facts {
        drafts: false,
        path: "demo.gguf".to_owned(),
        file_type: "Q4_K - Medium".to_owned(),
        vocab_type: 2,
        n_vocab: tokenizer.len(),
        n_ctx_slot: N_CTX,
        n_ctx_train: 2048,
        n_embd: 256,
        n_params: 25_000_000,
        size_bytes: 17_000_000,
        n_slots,
        chat_template: Some(demo_template()),
        decision_template: None,
        decides: false,
        bos_text: text(tokenizer.special().bos),
        eos_text: text(tokenizer.special().eos),
    };
    let source = app.settings.template.clone().or_else(|| facts.chat_template.clone()).unwrap();
    let template = ChatTemplate::new(
        &source,
        &facts.bos_text,
        &facts.eos_text,
        (tokenizer.add_bos(), tokenizer.add_eos()),
        Clock::SYSTEM,
    )
    .unwrap();
    app.set_ready(Ready {
        served: Served { engine: Arc::new(engine), tokenizer, facts: Arc::new(facts) },
        template,
        decision: None,
    });
    app
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: axum::http::HeaderMap,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The `data:` lines of a stream; `[DONE]` becomes a string.
    pub fn events(&self) -> Vec<Value> {
        events(&self.text())
    }
}

pub fn events(text: &str) -> Vec<Value> {
    text.lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap_or_else(|_| Value::String(data.to_owned())))
        .collect()
}

pub async fn send(
    router: &Router,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Body>,
) -> Reply {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = router.clone().oneshot(request.body(body.into()).unwrap()).await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Reply { status, headers, body: response.into_body().collect().await.unwrap().to_bytes().to_vec() }
}

pub async fn post(router: &Router, path: &str, body: &Value) -> Reply {
    send(router, "POST", path, &[("content-type", "application/json")], body.to_string()).await
}

pub async fn get(router: &Router, path: &str) -> Reply {
    send(router, "GET", path, &[], Body::empty()).await
}

pub fn routes(words: &[&str]) -> Router {
    router(app(words))
}
