//! Answers: plain functions from what happened to JSON, field by field in llama-server's order.

pub mod answer;
pub mod chat;
pub mod completion;
pub mod decide;
pub mod metrics;
pub mod models;
pub mod native;
pub mod probs;
pub mod props;
pub mod settings;
pub mod slots;
pub mod timings;

/// What `system_fingerprint` and `build_info` say.
pub const FINGERPRINT: &str = concat!("bloomery-", env!("CARGO_PKG_VERSION"));

/// A float of 32 bits as JSON prints it: widened, so that every bit shows.
#[must_use]
pub fn float(value: f32) -> serde_json::Value {
    serde_json::Number::from_f64(f64::from(value)).map_or(serde_json::Value::Null, serde_json::Value::Number)
}

/// Seconds since 1970.
#[must_use]
pub fn unix_time() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A new id of a chat completion.
#[must_use]
pub fn completion_id() -> String {
    use rand::{Rng as _, distr::Alphanumeric};
    let tail: String = rand::rng().sample_iter(Alphanumeric).take(32).map(char::from).collect();
    format!("chatcmpl-{tail}")
}
