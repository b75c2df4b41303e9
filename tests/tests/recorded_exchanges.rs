//! Exchanges recorded with llama-server, sent to the real server with the demo model: the same status, the same keys in the
//! same order with the same types, and the same values wherever neither the model nor the clock decides them.

use bloomery_tests::{data, demo_model, read_json, server::Server};
use serde_json::{Value, json};

#[path = "../../server/tests/wire/support/shape.rs"]
mod shape;

/// As the recording server ran, with the recorded name.
const FLAGS: &[&str] =
    &["-c", "8192", "-np", "2", "--metrics", "--slots", "--props", "--alias", "smollm2-135m"];

const EXCHANGES: &[&str] = &[
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

const STREAMS: &[&str] = &[
    "chat_stream",
    "chat_stream_usage",
    "chat_stream_timings",
    "chat_logprobs_stream",
    "completion_stream",
    "v1_completions_stream",
];

/// Keys whose values follow from the model, its vocabulary, its file, the clock, the program's name or chance.
const FREE: &[&str] = &[
    "created",
    "id",
    "id_slot",
    "system_fingerprint",
    "build_info",
    "meta",
    "bos_token",
    "eos_token",
    "chat_template",
    "chat_template_caps",
    "media_marker",
    "model_ftype",
    "model_path",
    "content",
    "text",
    "prompt",
    "tokens",
    "logprobs",
    "completion_probabilities",
    "finish_reason",
    "has_new_line",
    "stop_type",
    "timings",
    "usage",
    "prompt_progress",
    "input_tokens",
    "tokens_cached",
    "tokens_evaluated",
    "tokens_predicted",
];

/// What is another's on purpose: there is no web page, no reasoning parser, and what is refused is refused in our words.
const OURS: &[&str] = &[
    "props.ui",
    ".reasoning_format",
    "embeddings_disabled.error.message",
    "rerank_disabled.error.message",
    "infill.error.message",
];

/// Method, path and status.
fn head(name: &str) -> (String, String, u16) {
    let text = std::fs::read_to_string(data("llama-server").join(format!("{name}.headers"))).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    (words[0].into(), words[1].into(), words[3].parse().unwrap())
}

fn recorded(file: &str) -> Option<Value> {
    let path = data("llama-server").join(file);
    path.exists().then(|| read_json(&path).unwrap())
}

/// Token ids of the recorded model are brought into the demo model's vocabulary.
fn with_our_tokens(mut body: Value) -> Value {
    for field in ["prompt", "tokens"] {
        for token in body.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(id) = token.as_u64() {
                *token = json!(id % 4000);
            }
        }
    }
    body
}

/// Where two values differ, free keys left out. Lists are compared as far as both go: their lengths are the model's.
fn differences(at: &str, ours: &Value, theirs: &Value, out: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            for (key, theirs) in theirs.iter().filter(|(key, _)| !FREE.contains(&key.as_str())) {
                differences(&format!("{at}.{key}"), &ours[key], theirs, out);
            }
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            for (i, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
                differences(&format!("{at}[{i}]"), ours, theirs, out);
            }
        }
        _ if ours == theirs || OURS.iter().any(|ours| at.ends_with(ours)) => {}
        _ => out.push(format!("{at}: {ours}, recorded {theirs}")),
    }
}

#[test]
fn answers_are_the_recorded_ones() {
    let Some(server) = Server::start(&demo_model(), FLAGS) else { return };
    let mut wrong = Vec::new();
    for name in EXCHANGES {
        let (method, path, status) = head(name);
        let (found, ours) = match recorded(&format!("{name}.req.json")) {
            Some(body) if method == "POST" => server.post(&path, &with_our_tokens(body)),
            _ => server.get(&path),
        };
        assert_eq!(found, status, "{name}: {ours}");
        let theirs = recorded(&format!("{name}.json")).unwrap();
        let (a, b) = (shape::shape(&ours), shape::shape(&theirs));
        if a != b {
            wrong.push(format!("{name}: shape {a}\n    recorded {b}"));
            continue;
        }
        differences(name, &ours, &theirs, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn streams_are_the_recorded_ones() {
    let Some(server) = Server::start(&demo_model(), FLAGS) else { return };
    let mut wrong = Vec::new();
    for name in STREAMS {
        let (_, path, _) = head(name);
        let event = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| json!(text));
        let mut ours: Vec<Value> = Vec::new();
        server.stream(&path, &recorded(&format!("{name}.req.json")).unwrap(), |text| {
            ours.push(event(text));
            true
        });
        let theirs = std::fs::read_to_string(data("llama-server").join(format!("{name}.sse"))).unwrap();
        let theirs: Vec<Value> = theirs.lines().filter_map(|l| l.strip_prefix("data: ")).map(event).collect();
        let (a, b) = (shape::stream_shape(&ours), shape::stream_shape(&theirs));
        if a != b {
            wrong.push(format!("{name}: shapes {a:#?}\n    recorded {b:#?}"));
            continue;
        }
        // The first event, and the last ones, whatever lies between.
        differences(&format!("{name} first"), &ours[0], &theirs[0], &mut wrong);
        for (ours, theirs) in ours.iter().rev().zip(theirs.iter().rev()).take(3) {
            differences(&format!("{name} end"), ours, theirs, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
