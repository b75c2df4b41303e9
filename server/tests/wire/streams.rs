//! Streams: whatever way a text is cut into events, the joined deltas equal the whole answer.

use crate::support::{post, routes};
use bloomery_runtime::request::{Done, Event, Prob, StopKind, Token, TokenProbs};
use bloomery_serve::wire::{
    answer::{Answering, Follower, Shape, Step, chunks, last_chunks, whole},
    settings::Settings,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn answering(shape: Shape, stream: bool, timings: bool) -> Answering {
    let settings = Settings {
        stream,
        timings_per_token: timings,
        n_probs: 1,
        ..Settings::of_defaults(Default::default())
    };
    Answering {
        shape,
        id: "chatcmpl-x".to_owned(),
        model: "m".to_owned(),
        settings,
        verbose: false,
        return_tokens: true,
        return_progress: false,
        include_usage: false,
        response_fields: Vec::new(),
    }
}

fn events(pieces: &[String], tail: &str, with_probs: bool) -> Vec<Event> {
    let mut events: Vec<Event> = pieces
        .iter()
        .enumerate()
        .map(|(i, text)| {
            let chosen = Prob { id: i as u32, bytes: text.as_bytes().to_vec(), logprob: -0.5 };
            let probs = with_probs.then(|| TokenProbs { chosen: chosen.clone(), top: vec![chosen] });
            Event::Token(Token { id: i as u32, text: text.clone(), probs })
        })
        .collect();
    events.push(Event::Done(Done {
        stop: StopKind::Limit,
        stopping_word: String::new(),
        text: tail.to_owned(),
        truncated: false,
        n_prompt: 3,
        n_cached: 1,
        n_decoded: pieces.len(),
        slot: 0,
        prompt_ms: 1.0,
        predicted_ms: 2.0,
        n_past: 2 + pieces.len(),
        n_drafted: 0,
        n_accepted: 0,
        has_new_line: false,
        seed: 1,
    }));
    events
}

/// The chunks of a stream, and the whole answer.
fn both(shape: Shape, events: &[Event], prefill: &str, timings: bool) -> (Vec<Value>, Value) {
    let streamed = answering(shape, true, timings);
    let mut follower = Follower::new(0, "prompt".to_owned(), 3, prefill.to_owned());
    let (mut out, mut started) = (Vec::new(), false);
    for event in events {
        match follower.step(event.clone(), &streamed) {
            Step::Nothing => {}
            Step::Piece(piece) => {
                started |= piece.first;
                out.extend(chunks(&piece, &streamed));
            }
            Step::End(last, finished) => {
                if let Some(piece) = last {
                    started |= piece.first;
                    out.extend(chunks(&piece, &streamed));
                }
                out.extend(last_chunks(&finished, &streamed, started));
            }
            Step::Failed(error) => panic!("{error}"),
        }
    }
    let plain = answering(shape, false, false);
    let mut follower = Follower::new(0, "prompt".to_owned(), 3, prefill.to_owned());
    let answer = events
        .iter()
        .find_map(|event| match follower.step(event.clone(), &plain) {
            Step::End(_, finished) => Some(whole(std::slice::from_ref(&*finished), &plain)),
            _ => None,
        })
        .unwrap();
    (out, answer)
}

fn joined(chunks: &[Value], path: &str) -> String {
    chunks.iter().filter_map(|chunk| chunk.pointer(path)?.as_str()).collect()
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(
        prop_oneof![Just(String::new()), "[a-z ]{1,4}", "[\\PC]{0,3}", Just("\n".to_owned())],
        0..20,
    )
}

proptest! {
    #[test]
    fn joined_deltas_equal_the_whole(pieces in texts(), tail in "[\\PC]{0,4}", probs: bool, prefill in "[a-z]{0,3}", timings: bool) {
        let events = events(&pieces, &tail, probs);
        let (chat, answer) = both(Shape::Chat, &events, &prefill, timings);
        let content = answer.pointer("/choices/0/message/content").unwrap();
        prop_assert_eq!(&json!(joined(&chat, "/choices/0/delta/content")), content);
        prop_assert_eq!(content, &json!(format!("{prefill}{}{tail}", pieces.concat())));
        // The role comes once and first, the reason once and last.
        prop_assert_eq!(chat[0].pointer("/choices/0/delta/role"), Some(&json!("assistant")));
        prop_assert_eq!(chat.iter().filter(|c| c.pointer("/choices/0/delta/role").is_some()).count(), 1);
        let reasons = chat.iter().filter(|c| c.pointer("/choices/0/finish_reason").is_some_and(|r| !r.is_null()));
        prop_assert_eq!(reasons.count(), 1);

        let (completion, answer) = both(Shape::Completion, &events, "", timings);
        prop_assert_eq!(&json!(joined(&completion, "/choices/0/text")), answer.pointer("/choices/0/text").unwrap());

        let (native, answer) = both(Shape::Native, &events, "", timings);
        prop_assert_eq!(&json!(joined(&native, "/content")), &answer["content"]);
        // Every token and probability arrives once, with some text or at the end.
        let tokens: Vec<&Value> = native.iter().flat_map(|chunk| chunk["tokens"].as_array().unwrap()).collect();
        let all = answer["tokens"].as_array().unwrap();
        let sent_all = pieces.last().is_none_or(|last| !last.is_empty()) || !tail.is_empty();
        if sent_all {
            prop_assert_eq!(tokens, all.iter().collect::<Vec<_>>());
        }
    }
}

#[tokio::test]
async fn a_stream_says_what_the_whole_answer_says() {
    let routes = routes(&[]);
    let body = |stream: bool| json!({"prompt": "Once upon a time", "n_predict": 24, "seed": 5, "temperature": 0.9, "stream": stream, "stop": ["zq"]});
    let whole = post(&routes, "/completion", &body(false)).await.json();
    let events = post(&routes, "/completion", &body(true)).await.events();
    assert_eq!(joined(&events, "/content"), whole["content"].as_str().unwrap());
    assert!(!whole["content"].as_str().unwrap().is_empty());
    assert_eq!(events.iter().filter(|event| event["stop"] == true).count(), 1);
    // The native route has no mark at the end.
    assert!(!events.contains(&json!("[DONE]")));
}

#[tokio::test]
async fn several_answers_come_with_their_index() {
    let routes = routes(&[]);
    let body = |stream: bool| {
        json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "seed": 3, "temperature": 1.5, "n": 3,
            "stream": stream, "stream_options": {"include_usage": true}})
    };
    // Once before, so that both find the prompt in the cache.
    post(&routes, "/v1/chat/completions", &body(false)).await;
    let whole = post(&routes, "/v1/chat/completions", &body(false)).await.json();
    let events = post(&routes, "/v1/chat/completions", &body(true)).await.events();
    assert_eq!(whole["usage"]["completion_tokens"], 15);
    for index in 0..3 {
        let own: Vec<Value> =
            events.iter().filter(|event| event["choices"][0]["index"] == index).cloned().collect();
        let choice = &whole["choices"][index];
        assert_eq!(choice["index"], index);
        assert_eq!(joined(&own, "/choices/0/delta/content"), choice["message"]["content"].as_str().unwrap());
    }
    assert_ne!(whole["choices"][0]["message"], whole["choices"][1]["message"], "each has a seed of its own");
    let last = &events[events.len() - 2];
    assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &whole["usage"]));
    assert_eq!(events[events.len() - 1], "[DONE]");
}

#[tokio::test]
async fn fields_that_choose_what_is_shown() {
    let routes = routes(&[]);
    let mut body = json!({"prompt": "Once upon", "n_predict": 3, "response_fields": ["content", "generation_settings/n_predict", "none"]});
    let reply = post(&routes, "/completion", &body).await.json();
    let keys: Vec<&String> = reply.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["content", "generation_settings/n_predict"]);
    body = json!({"prompt": "Once upon", "n_predict": 0});
    let reply = post(&routes, "/completion", &body).await.json();
    assert_eq!((&reply["content"], &reply["tokens_predicted"]), (&json!(""), &json!(0)));
    body = json!({"prompt": "Once upon", "n_predict": 1, "ignore_eos": true});
    let reply = post(&routes, "/completion", &body).await.json();
    let bias = reply["generation_settings"]["logit_bias"].as_array().unwrap();
    assert!(!bias.is_empty() && bias.iter().all(|entry| entry["bias"].is_null()));
    // A forbidden token does not come.
    let first = post(
        &routes,
        "/completion",
        &json!({"prompt": "Once upon", "n_predict": 1, "temperature": 0, "return_tokens": true}),
    )
    .await
    .json();
    let token = first["tokens"][0].as_u64().unwrap();
    body = json!({"prompt": "Once upon", "n_predict": 1, "temperature": 0, "return_tokens": true, "logit_bias": [[token, false]]});
    assert_ne!(post(&routes, "/completion", &body).await.json()["tokens"][0], token);
    body["logit_bias"] = json!({token.to_string(): -100});
    assert_ne!(post(&routes, "/completion", &body).await.json()["tokens"][0], token);
}

#[tokio::test]
async fn a_stop_string_ends_the_text_before_it() {
    let routes = routes(&[]);
    let body = json!({"prompt": "Once upon a time", "n_predict": 40, "temperature": 0});
    let text = post(&routes, "/completion", &body).await.json()["content"].as_str().unwrap().to_owned();
    let stop = &text[12..18];
    for stream in [false, true] {
        let mut body = body.clone();
        (body["stop"], body["stream"]) = (json!([stop]), json!(stream));
        let reply = post(&routes, "/completion", &body).await;
        let (content, last) = if stream {
            (joined(&reply.events(), "/content"), reply.events().pop().unwrap())
        } else {
            (reply.json()["content"].as_str().unwrap().to_owned(), reply.json())
        };
        assert_eq!(content, text[..text.find(stop).unwrap()]);
        assert_eq!((&last["stop_type"], &last["stopping_word"]), (&json!("word"), &json!(stop)));
    }
}
