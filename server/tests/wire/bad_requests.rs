//! Requests that cannot be right: each gets a 4xx (or a 501 by name) with a message, and the next request works.

use crate::support;
use crate::support::{post, recorded, routes, send};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};
use serde_json::{Value, json};

async fn still_works(routes: &axum::Router) {
    let reply = post(routes, "/completion", &json!({"prompt": "Once upon", "n_predict": 2})).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
}

fn is_refusal(reply: &support::Reply, what: &str) {
    assert!(
        (400..500).contains(&reply.status) || reply.status == 501,
        "{what}: {} {}",
        reply.status,
        reply.text()
    );
    let error = &reply.json()["error"];
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{what}: {error}");
    assert_eq!(error["code"], reply.status, "{what}");
    assert!(error["type"].is_string(), "{what}");
}

#[tokio::test]
async fn recorded_ones() {
    let routes = routes(&[]);
    for name in ["bad_json", "chat_missing_messages", "ctx_overflow", "ctx_overflow_chat"] {
        // The overflowing ones were cut in the recording and are broken JSON now.
        let body = recorded(&format!("{name}.req.json")).unwrap();
        let reply = send(&routes, "POST", "/v1/chat/completions", &[], body).await;
        assert_eq!(reply.status, 400, "{name}");
        is_refusal(&reply, name);
        still_works(&routes).await;
    }
}

/// (path, body, a word that the message must hold).
fn wrong() -> Vec<(&'static str, Value, &'static str)> {
    let chat = "/v1/chat/completions";
    let user = json!([{"role": "user", "content": "hi"}]);
    let with = |field: &str, value: Value| {
        let mut body = json!({"messages": user, "max_tokens": 1});
        body[field] = value;
        body
    };
    let mut all = vec![
        (chat, json!({"messages": null}), "messages"),
        (chat, json!({"messages": "hi"}), "messages"),
        (chat, json!({"messages": [123]}), "message"),
        (chat, json!({"messages": [{}]}), "role"),
        (chat, json!({"messages": [{"role": 123}]}), "role"),
        (chat, json!({"messages": [{"role": "system", "content": 123}]}), "content"),
        (chat, json!({"messages": [{"role": "user"}]}), "content"),
        (chat, json!({"messages": [{"role": "assistant"}]}), "content"),
        (chat, json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}), "text"),
        (chat, json!({"messages": [{"role": "user", "content": [{"text": "a"}]}]}), "type"),
        (
            chat,
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
            "image_url",
        ),
        (
            chat,
            json!({"messages": [
                {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"},
            ]}),
            "assistant",
        ),
        (
            chat,
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                "continue_final_message": true, "add_generation_prompt": true}),
            "add_generation_prompt",
        ),
        ("/completion", json!({}), "prompt"),
        ("/completion", json!({"prompt": null}), "prompt"),
        ("/completion", json!({"prompt": {}}), "prompt"),
        ("/completion", json!({"prompt": []}), "prompt"),
        ("/completion", json!({"prompt": [[]]}), "prompt"),
        ("/completion", json!({"prompt": [true]}), "prompt"),
        ("/completion", json!({"prompt": [1, [2]]}), "prompt"),
        ("/completion", json!({"prompt": [99_999_999]}), "vocabulary"),
        ("/completion", json!({"prompt": [-1]}), "vocabulary"),
        ("/completion", json!({"prompt": [1.5]}), "whole number"),
        ("/completion", json!({"prompt": {"prompt_string": "x", "multimodal_data": ["aa"]}}), "multimodal"),
        ("/v1/completions", json!({"prompt": "a", "echo": true}), "echo"),
        ("/v1/completions", json!({"prompt": "a", "suffix": "b"}), "suffix"),
        ("/tokenize", json!({"content": 5}), "string"),
        ("/tokenize", json!({"content": "a", "with_pieces": "yes"}), "with_pieces"),
        ("/detokenize", json!({"tokens": "abc"}), "tokens"),
        ("/detokenize", json!({"tokens": [1, "a"]}), "whole number"),
        ("/detokenize", json!({"tokens": [1e12]}), "vocabulary"),
        ("/apply-template", json!({}), "messages"),
        ("/v1/chat/completions/input_tokens", json!({"messages": 1}), "messages"),
    ];
    for (field, value) in [
        ("temperature", json!("hot")),
        ("temperature", json!(1e300)),
        ("top_k", json!("many")),
        ("top_k", json!(1.5)),
        ("top_p", json!([0.5])),
        ("max_tokens", json!(-2)),
        ("max_tokens", json!(1e30)),
        ("max_tokens", json!("8")),
        ("n_predict", json!(99_999_999_999_i64)),
        ("n", json!(0)),
        ("n", json!(1_000_000_000)),
        ("seed", json!("x")),
        ("stop", json!(5)),
        ("stop", json!([1, 2])),
        ("stream", json!("yes")),
        ("stream_options", json!(true)),
        ("logit_bias", json!("x")),
        ("logit_bias", json!({"99999999": 1})),
        ("logit_bias", json!([[1, "x"]])),
        ("logit_bias", json!([[1]])),
        ("samplers", json!(["no_such_sampler"])),
        ("samplers", json!("kzq")),
        ("samplers", json!(7)),
        ("dry_sequence_breakers", json!([])),
        ("dry_sequence_breakers", json!("x")),
        ("repeat_penalty", json!(0)),
        ("repeat_last_n", json!(-5)),
        ("min_keep", json!(-1)),
        ("n_probs", json!(-1)),
        ("top_logprobs", json!(3)),
        ("logprobs", json!("yes")),
        ("id_slot", json!(77)),
        ("ignore_eos", json!(1)),
        ("cache_prompt", json!("x")),
        ("adaptive_decay", json!(2)),
        ("t_max_predict_ms", json!(-7)),
        ("response_fields", json!("content")),
        ("sse_ping_interval", json!(-9)),
        ("chat_template_kwargs", json!("x")),
        ("chat_template_kwargs", json!({"enable_thinking": "yes"})),
        ("reasoning_effort", json!(3)),
        ("continue_final_message", json!("sideways")),
        ("response_format", json!("text")),
        ("response_format", json!({"type": "sound"})),
        ("response_format", json!({"type": "json_object", "schema": 123})),
        ("response_format", json!({"type": "json_object", "schema": {"type": "hiccup"}})),
        ("tools", json!("x")),
        ("tools", json!([{"type": "function", "function": {"name": "f"}}])),
        ("tool_choice", json!("required")),
        ("grammar", json!("root ::= x")),
        ("json_schema", json!({"type": "object"})),
        ("lora", json!([{"id": 0, "scale": 1.0}])),
        ("modalities", json!(["audio"])),
    ] {
        all.push((chat, with(field, value), field));
    }
    all
}

#[tokio::test]
async fn each_wrong_field_is_named() {
    let routes = routes(&[]);
    for (path, body, word) in wrong() {
        let reply = post(&routes, path, &body).await;
        is_refusal(&reply, &format!("{path} {body}"));
        let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(word), "{path} {body}: {message} does not name {word}");
    }
    still_works(&routes).await;
}

#[tokio::test]
async fn a_body_that_is_too_large_or_too_deep() {
    let routes = routes(&["--max-request-size", "10000"]);
    let reply = post(&routes, "/completion", &json!({"prompt": "a".repeat(20_000)})).await;
    assert_eq!(reply.status, 413);
    is_refusal(&reply, "large");
    let deep = format!("{{\"prompt\": {}1{}}}", "[".repeat(4000), "]".repeat(4000));
    let reply = send(&routes, "POST", "/completion", &[], deep).await;
    assert_eq!(reply.status, 400);
    is_refusal(&reply, "deep");
    still_works(&routes).await;
}

/// A seeded source of broken requests.
struct Broken(ChaCha8Rng);

impl Broken {
    fn below(&mut self, n: usize) -> usize {
        self.0.next_u32() as usize % n
    }

    fn value(&mut self, depth: usize) -> Value {
        match self.below(if depth > 3 { 7 } else { 9 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(self.0.next_u64()),
            3 => json!(-(self.0.next_u32() as i64) * 1_000_000_007),
            4 => json!(f64::from(self.0.next_u32()) * 1e290),
            5 => json!("\u{0}\u{feff}é<|im_end|>".repeat(self.below(4))),
            6 => json!(""),
            7 => (0..self.below(4)).map(|_| self.value(depth + 1)).collect(),
            _ => {
                Value::Object((0..self.below(4)).map(|i| (format!("k{i}"), self.value(depth + 1))).collect())
            }
        }
    }
}

#[tokio::test]
async fn two_hundred_generated_ones_never_fail_the_server() {
    let routes = routes(&[]);
    let mut broken = Broken(ChaCha8Rng::seed_from_u64(11));
    let fields: Vec<&str> = bloomery_serve::request::known::KNOWN.iter().map(|known| known.name).collect();
    let paths = [
        "/completion",
        "/v1/completions",
        "/v1/chat/completions",
        "/tokenize",
        "/detokenize",
        "/apply-template",
        "/v1/chat/completions/input_tokens",
    ];
    let (mut refused, mut passed) = (0, 0);
    for round in 0..400 {
        let path = paths[broken.below(paths.len())];
        let (method, body) = match round % 4 {
            // A wrong type in one field of a good body.
            0 | 1 => {
                let mut body = json!({"prompt": "hi", "content": "hi", "messages": [{"role": "user", "content": "hi"}], "n_predict": 1});
                let field = fields[broken.below(fields.len())];
                body[field] = broken.value(0);
                ("POST", body.to_string())
            }
            // JSON that breaks off, or bytes that are none.
            2 => {
                let text =
                    json!({"prompt": "hi", "messages": [{"role": "user", "content": "hi"}]}).to_string();
                let cut = 1 + broken.below(text.len() - 1);
                ("POST", text[..cut].to_owned())
            }
            // A wrong method, or a body that is no object.
            _ if broken.below(2) == 0 => (["GET", "PUT", "DELETE", "PATCH"][broken.below(4)], String::new()),
            _ => ("POST", json!([broken.value(0)]).to_string()),
        };
        let reply = send(&routes, method, path, &[], body.clone()).await;
        if reply.status == 200 {
            // What the generator made was harmless after all.
            assert!(round % 4 < 2, "{method} {path} {body}");
            passed += 1;
        } else {
            is_refusal(&reply, &format!("{method} {path} {body}"));
            refused += 1;
        }
        if round % 8 == 0 {
            still_works(&routes).await;
        }
    }
    assert!(refused >= 200, "{refused} refused, {passed} passed");
    still_works(&routes).await;
}

#[tokio::test]
async fn a_fault_of_the_executor_is_that_requests_error() {
    let speed = support::toy::Speed::default();
    let routes = bloomery_serve::http::router(support::app_with(&[], speed.clone()));
    speed.panic.store(true, std::sync::atomic::Ordering::Relaxed);
    let reply = post(&routes, "/completion", &json!({"prompt": "Once upon", "n_predict": 2})).await;
    assert_eq!(reply.status, 500, "{}", reply.text());
    assert_eq!(reply.json()["error"]["type"], "server_error");
    still_works(&routes).await;
}
