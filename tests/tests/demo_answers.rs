//! The demo model through the real server: the answers that llama-server gives.

use bloomery_tests::{demo_model, server::Server};
use serde_json::json;

fn chat(server: &Server, text: &str, max_tokens: u32) -> (String, String) {
    let (status, answer) = server.post(
        "/v1/chat/completions",
        &json!({"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": max_tokens}),
    );
    assert_eq!(status, 200, "{answer}");
    let choice = &answer["choices"][0];
    let part = |v: &serde_json::Value| v.as_str().unwrap_or_default().to_string();
    (part(&choice["message"]["content"]), part(&choice["finish_reason"]))
}

#[test]
fn greedy_answers_are_llama_servers() {
    let Some(server) = Server::start(&demo_model(), &["-c", "2048"]) else { return };
    for (question, max_tokens, answer, finish) in [
        (
            "Hello! Who are you?",
            60,
            "I am Ember, a small language model. I was trained on novels, plays and a book about Rust.",
            "stop",
        ),
        ("Count from 5 to 13.", 60, "5, 6, 7, 8, 9, 10, 11, 12, 13.", "stop"),
    ] {
        let (text, reason) = chat(&server, question, max_tokens);
        assert_eq!((text.as_str(), reason.as_str()), (answer, finish), "{question}");
    }
}

#[test]
fn streamed_deltas_join_to_the_whole_answer() {
    let Some(server) = Server::start(&demo_model(), &["-c", "2048"]) else { return };
    let mut body =
        json!({"messages": [{"role": "user", "content": "Count from 5 to 13."}], "temperature": 0});
    let (_, whole) = server.post("/v1/chat/completions", &body);
    body["stream"] = json!(true);
    let (mut joined, mut ended) = (String::new(), false);
    server.stream("/v1/chat/completions", &body, |data| {
        ended = data == "[DONE]";
        if let Ok(chunk) = serde_json::from_str::<serde_json::Value>(data) {
            joined += chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        }
        true
    });
    assert!(ended, "no [DONE]");
    assert_eq!(whole["choices"][0]["message"]["content"], json!(joined));
}
