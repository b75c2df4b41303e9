//! Every recorded exchange of our routes: the same status, content type and shape (keys in order, types) as llama-server's.

use crate::support;
use crate::support::{
    get, post, recorded, routes, send,
    shape::{shape, stream_shape},
};
use serde_json::{Value, json};

fn request(name: &str) -> Value {
    serde_json::from_slice(&recorded(&format!("{name}.req.json")).unwrap()).unwrap()
}

fn answer(name: &str) -> Value {
    serde_json::from_slice(&recorded(&format!("{name}.json")).unwrap()).unwrap()
}

/// Method, path, status and headers.
fn head(name: &str) -> (String, String, u16, Vec<(String, String)>) {
    let text = String::from_utf8(recorded(&format!("{name}.headers")).unwrap()).unwrap();
    let mut lines = text.lines();
    let mut first = lines.next().unwrap().split(' ');
    let (method, path) = (first.next().unwrap().to_owned(), first.next().unwrap().to_owned());
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
        .collect();
    (method, path, status, headers)
}

const FLAGS: &[&str] = &["--metrics", "--props", "--alias", "smollm2-135m"];

/// Exchanges that must have the recorded status, headers and shape.
const SAME: &[&str] = &[
    "health",
    "models",
    "v1_models",
    "props",
    "slots_idle",
    "lora_adapters",
    "notfound",
    "chat",
    "chat_logprobs",
    "chat_n2",
    "chat_stop",
    "chat_verbose",
    "chat_input_tokens",
    "completion",
    "completion_probs",
    "completion_probs_post",
    "completion_tokens",
    "completion_multi",
    "v1_completions",
    "v1_completions_logprobs",
    "tokenize",
    "detokenize",
    "apply_template",
    "chat_missing_messages",
    "embeddings_disabled",
    "rerank_disabled",
    "systemone",
    "infill",
];

/// Token ids of the recorded model are brought into the demo model's vocabulary.
fn with_our_tokens(body: &[u8]) -> Vec<u8> {
    let Ok(mut body) = serde_json::from_slice::<Value>(body) else { return body.to_vec() };
    for field in ["prompt", "tokens"] {
        for token in body.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(id) = token.as_u64() {
                *token = json!(id % 4000);
            }
        }
    }
    body.to_string().into_bytes()
}

#[tokio::test]
async fn answers_have_the_recorded_shape() {
    let routes = routes(FLAGS);
    for &name in SAME {
        let (method, path, status, headers) = head(name);
        let reply = match recorded(&format!("{name}.req.json")) {
            Some(body) => send(&routes, &method, &path, &[], with_our_tokens(&body)).await,
            None => get(&routes, &path).await,
        };
        assert_eq!(reply.status, status, "{name}: {}", reply.text());
        for (header, value) in headers {
            if ["content-type", "server", "access-control-allow-origin"].contains(&header.as_str()) {
                assert_eq!(reply.header(&header), value, "{name}: {header}");
            }
        }
        assert_eq!(shape(&reply.json()), shape(&answer(name)), "{name}");
    }
}

#[tokio::test]
async fn streams_have_the_recorded_shape() {
    let routes = routes(FLAGS);
    for name in [
        "chat_stream",
        "chat_stream_usage",
        "chat_stream_timings",
        "chat_logprobs_stream",
        "completion_stream",
        "v1_completions_stream",
    ] {
        let (_, path, _, headers) = head(name);
        let reply = post(&routes, &path, &request(name)).await;
        assert_eq!(reply.status, 200, "{name}");
        for (header, value) in headers {
            if ["content-type", "x-accel-buffering"].contains(&header.as_str()) {
                assert_eq!(reply.header(&header), value, "{name}: {header}");
            }
        }
        let theirs = String::from_utf8(recorded(&format!("{name}.sse")).unwrap()).unwrap();
        assert_eq!(stream_shape(&reply.events()), stream_shape(&support::events(&theirs)), "{name}");
        assert!(reply.text().ends_with("\n\n"), "{name}");
    }
}

#[tokio::test]
async fn a_used_slot_has_the_recorded_shape() {
    let routes = routes(FLAGS);
    for _ in 0..2 {
        let body = json!({"prompt": "Once upon a time", "n_predict": 3, "id_slot": 0});
        assert_eq!(post(&routes, "/completion", &body).await.status, 200);
        let body = json!({"prompt": "Another text", "n_predict": 3, "id_slot": 1});
        assert_eq!(post(&routes, "/completion", &body).await.status, 200);
    }
    let reply = get(&routes, "/slots").await;
    assert_eq!(shape(&reply.json()), shape(&answer("slots_used")));
    // The budget of a finished task does not show in an idle slot.
    assert_eq!(reply.json()[0]["next_token"][0]["n_remain"], -1);
    assert_eq!(get(&routes, "/slots?fail_on_no_slot=1").await.status, 200);
}

#[tokio::test]
async fn metrics_have_the_recorded_names() {
    let routes = routes(FLAGS);
    post(&routes, "/completion", &json!({"prompt": "Once upon a time", "n_predict": 5})).await;
    let reply = get(&routes, "/metrics").await;
    let lines = |text: &str, start: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with(start)).map(str::to_owned).collect()
    };
    let theirs = String::from_utf8(recorded("metrics.txt").unwrap()).unwrap();
    assert_eq!(lines(&reply.text(), "# TYPE"), lines(&theirs, "# TYPE"));
    let names = |text: &str| -> Vec<String> {
        lines(text, "llamacpp:").iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&reply.text()), names(&theirs));
    assert!(reply.text().contains("llamacpp:tokens_predicted_total 5\n"), "{}", reply.text());
    assert_eq!(reply.header("content-type"), "text/plain; version=0.0.4");
    assert!(!reply.header("process-start-time-unix").is_empty());
}

#[tokio::test]
async fn templates_give_the_recorded_prompts() {
    for (props, exchanges) in [
        ("props", &["apply_template"][..]),
        (
            "q3_props",
            &["q3_apply_template_tools", "q3_apply_template_nothink", "q3_apply_template_toolresult"],
        ),
        ("q35_props", &["q35_apply_template"]),
    ] {
        let props = answer(props);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), props["chat_template"].as_str().unwrap()).unwrap();
        let routes = routes(&["--chat-template-file", file.path().to_str().unwrap()]);
        for name in exchanges {
            let reply = post(&routes, "/apply-template", &request(name)).await;
            assert_eq!(reply.json(), answer(name), "{name}");
        }
        let ours = get(&routes, "/props").await.json();
        assert_eq!(ours["chat_template_caps"], props["chat_template_caps"]);
    }
}

#[tokio::test]
async fn an_answer_that_was_begun_goes_on() {
    let props = answer("q3_props");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), props["chat_template"].as_str().unwrap()).unwrap();
    let routes = routes(&["--chat-template-file", file.path().to_str().unwrap(), "-v"]);
    let body = request("q3_prefill");
    let reply = post(&routes, "/v1/chat/completions", &body).await.json();
    let content = reply["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(content.starts_with("Hello, my") && content.len() > 12, "{content}");
    let prompt = reply["__verbose"]["prompt"].as_str().unwrap();
    assert!(prompt.ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\nHello, my"), "{prompt}");
}

#[tokio::test]
async fn what_comes_later_is_refused_by_name() {
    let routes = routes(FLAGS);
    for name in
        ["chat_grammar", "chat_json_schema", "chat_json_object", "chat_tools_auto", "chat_tools_required"]
    {
        let (_, path, ..) = head(name);
        let reply = post(&routes, &path, &request(name)).await;
        assert_eq!(reply.status, 501, "{name}: {}", reply.text());
        assert_eq!(shape(&reply.json()), shape(&answer("embeddings_disabled")), "{name}");
    }
    for name in ["messages", "messages_count_tokens", "responses", "responses_input_tokens"] {
        let (_, path, ..) = head(name);
        let reply = post(&routes, &path, &request(name)).await;
        assert_eq!(reply.status, 501, "{name}");
        assert!(reply.text().contains(&path), "{name}: {}", reply.text());
    }
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_named_so() {
    let routes = routes(FLAGS);
    let long = "word ".repeat(6000);
    for (name, body) in [
        ("ctx_overflow", json!({"prompt": long, "n_predict": 1})),
        ("ctx_overflow_chat", json!({"messages": [{"role": "user", "content": long}], "max_tokens": 1})),
    ] {
        for stream in [false, true] {
            let (_, path, status, _) = head(name);
            let mut body = body.clone();
            body["stream"] = json!(stream);
            let reply = post(&routes, &path, &body).await;
            assert_eq!(reply.status, status, "{name}");
            assert_eq!(shape(&reply.json()), shape(&answer(name)), "{name}");
            assert_eq!(reply.json()["error"]["n_ctx"], support::N_CTX);
        }
    }
}

#[tokio::test]
async fn keys_are_asked_for_as_recorded() {
    let routes = routes(&["--api-key", "secret,other"]);
    for path in ["/props", "/v1/models", "/nope", "/slots"] {
        let reply = get(&routes, path).await;
        assert_eq!(reply.status, 401, "{path}");
        assert_eq!(reply.json(), answer("q3_unauthorized"));
    }
    for path in ["/health", "/v1/health"] {
        assert_eq!(get(&routes, path).await.status, 200, "{path}");
    }
    for header in [("x-api-key", "secret"), ("authorization", "Bearer other")] {
        assert_eq!(send(&routes, "GET", "/v1/models", &[header], "").await.status, 200);
    }
}

#[tokio::test]
async fn a_browser_is_answered_as_recorded() {
    let routes = routes(&["--api-key", "secret"]);
    let headers = [("origin", "http://example.org"), ("access-control-request-method", "POST")];
    let reply = send(&routes, "OPTIONS", "/v1/chat/completions", &headers, "").await;
    assert_eq!(reply.status, 200);
    let text = String::from_utf8(recorded("cors_preflight.headers").unwrap()).unwrap();
    for (name, value) in text.lines().skip(1).filter_map(|line| line.split_once(": ")) {
        if !name.eq_ignore_ascii_case("keep-alive") && !name.eq_ignore_ascii_case("content-length") {
            assert_eq!(reply.header(name), value.trim(), "{name}");
        }
    }
}

#[tokio::test]
async fn before_the_model_is_there_everything_says_so() {
    let routes = bloomery_serve::http::router(support::loading(&["--api-key", "secret"]));
    for path in ["/health", "/v1/models", "/nope", "/metrics"] {
        let reply = get(&routes, path).await;
        assert_eq!(reply.status, 503);
        assert_eq!(
            reply.text(),
            r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#
        );
    }
}

#[tokio::test]
async fn slots_are_saved_restored_and_erased_as_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let routes = routes(&["--slot-save-path", folder.path().to_str().unwrap()]);
    let prompt = json!({"prompt": "Once upon a time there was a slot", "n_predict": 4, "id_slot": 0});
    let n = post(&routes, "/completion", &prompt).await.json()["tokens_cached"].as_u64().unwrap();
    for (name, field) in
        [("q3_slot_save", "n_saved"), ("q3_slot_restore", "n_restored"), ("q3_slot_erase", "n_erased")]
    {
        let (_, path, status, _) = head(name);
        let reply = post(&routes, &path, &request(name)).await;
        assert_eq!(reply.status, status, "{name}: {}", reply.text());
        assert_eq!(shape(&reply.json()), shape(&answer(name)), "{name}");
        assert_eq!(reply.json()[field], n, "{name}");
    }
    for (path, body, status) in [
        ("/slots/7?action=save", json!({"filename": "a"}), 400),
        ("/slots/x?action=save", json!({"filename": "a"}), 400),
        ("/slots/0?action=dance", json!({"filename": "a"}), 400),
        ("/slots/0?action=save", json!({"filename": "../a"}), 400),
        ("/slots/0?action=save", json!({}), 400),
        ("/slots/0?action=restore", json!({"filename": "never"}), 400),
    ] {
        assert_eq!(post(&routes, path, &body).await.status, status, "{path} {body}");
    }
    std::fs::write(folder.path().join("bad"), b"not a slot").unwrap();
    assert_eq!(post(&routes, "/slots/0?action=restore", &json!({"filename": "bad"})).await.status, 400);
    // Without the flag there is no such thing.
    assert_eq!(post(&support::routes(&[]), "/slots/0?action=erase", &json!({})).await.status, 501);
}

#[tokio::test]
async fn switches_of_routes() {
    let plain = support::routes(&["--no-slots"]);
    assert_eq!(get(&plain, "/metrics").await.status, 501);
    assert_eq!(get(&plain, "/slots").await.status, 501);
    assert_eq!(post(&plain, "/props", &json!({})).await.status, 501);
    let all = routes(FLAGS);
    assert_eq!(post(&all, "/props", &json!({})).await.text(), r#"{"success":true}"#);
    assert_eq!(post(&all, "/props", &json!({"temperature": 1})).await.status, 400);
    let nested = support::routes(&["--api-prefix", "/llm"]);
    assert_eq!(get(&nested, "/llm/health").await.status, 200);
    assert_eq!(get(&nested, "/health").await.status, 404);
    assert_eq!(get(&nested, "/").await.status, 404);
}
