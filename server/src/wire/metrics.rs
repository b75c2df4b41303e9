//! `/metrics` in Prometheus' text format, under llama-server's names.

use std::fmt::Write as _;

use bloomery_runtime::board::{Board, Counters};

/// The text. Rates are over the time between `before` (the counters at the last scrape) and now.
#[must_use]
pub fn text(board: &Board, before: &Counters) -> String {
    let now = &board.counters;
    let rate = |tokens: u64, seconds: f64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
    let steps = now.decode_calls.saturating_sub(before.decode_calls);
    let rows: [(&str, &str, &str, f64); 15] = [
        (
            "counter",
            "prompt_tokens_total",
            "Prompt tokens processed, cached ones excluded",
            now.prompt_tokens as f64,
        ),
        (
            "counter",
            "prompt_tokens_cached_total",
            "Prompt tokens taken from a cache",
            now.cached_tokens as f64,
        ),
        ("counter", "prompt_seconds_total", "Seconds spent on prompts", now.prompt_seconds),
        ("counter", "tokens_predicted_total", "Tokens generated", now.predicted_tokens as f64),
        ("counter", "tokens_predicted_seconds_total", "Seconds spent on generation", now.predicted_seconds),
        ("counter", "n_decode_total", "Steps of the executor", now.decode_calls as f64),
        ("counter", "n_tokens_max", "Most tokens that a sequence held", now.n_tokens_max as f64),
        ("counter", "spec_decode_num_draft_tokens_total", "Tokens drafted", now.drafted_tokens as f64),
        (
            "counter",
            "spec_decode_num_accepted_tokens_total",
            "Drafted tokens that were kept",
            now.accepted_tokens as f64,
        ),
        ("counter", "spec_decode_num_drafts_total", "Drafts verified", now.drafts as f64),
        (
            "gauge",
            "prompt_tokens_seconds",
            "Prompt tokens a second since the last scrape",
            rate(
                now.prompt_tokens.saturating_sub(before.prompt_tokens),
                now.prompt_seconds - before.prompt_seconds,
            ),
        ),
        (
            "gauge",
            "predicted_tokens_seconds",
            "Generated tokens a second since the last scrape",
            rate(
                now.predicted_tokens.saturating_sub(before.predicted_tokens),
                now.predicted_seconds - before.predicted_seconds,
            ),
        ),
        ("gauge", "requests_processing", "Requests that run", board.n_processing as f64),
        ("gauge", "requests_deferred", "Requests that wait for a slot", board.n_deferred as f64),
        (
            "gauge",
            "n_busy_slots_per_decode",
            "Slots that took part in a step, on average since the last scrape",
            if steps > 0 {
                now.busy_slots.saturating_sub(before.busy_slots) as f64 / steps as f64
            } else {
                0.0
            },
        ),
    ];
    let mut out = String::new();
    for (kind, name, help, value) in rows {
        _ = write!(
            out,
            "# HELP llamacpp:{name} {help}\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}\n"
        );
    }
    out
}
