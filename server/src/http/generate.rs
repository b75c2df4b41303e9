//! Runs jobs: waits for a whole answer, or begins a stream. Whoever drops the answer's future or body cancels the job.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures_util::future::try_join_all;

use super::{App, Ready, stream::Stream};
use crate::{
    engine::{Events, next_event},
    error::{ApiError, JSON},
    request::build::Job,
    wire::answer::{Answering, Finished, Follower, Step, whole},
};

/// A stream's headers leave after this time even if nothing has happened: an error until then is a plain answer with its status.
const FIRST_EVENT: Duration = Duration::from_millis(500);

/// One running generation.
pub struct Running {
    /// Its events.
    pub events: Box<dyn Events>,
    /// What follows them.
    pub follower: Follower,
}

/// Runs a job to its answer.
///
/// # Errors
/// The first generation that failed; the others are cancelled.
pub async fn run(app: &App, ready: &Ready, job: Job) -> Result<Response, ApiError> {
    let Job { parts, answering, ping } = job;
    let settings = Arc::new(answering.settings.clone());
    let mut running: Vec<Running> = parts
        .into_iter()
        .map(|(generate, follower)| {
            let events = ready.served.engine.submit(generate);
            app.remember(events.id(), Arc::clone(&settings));
            Running { events, follower }
        })
        .collect();
    if !answering.settings.stream {
        let all = try_join_all(running.into_iter().map(|running| finish(running, &answering))).await?;
        return Ok(([(header::CONTENT_TYPE, JSON)], whole(&all, &answering).to_string()).into_response());
    }
    let first = match running.as_mut_slice() {
        [only] => tokio::time::timeout(FIRST_EVENT, next_event(only.events.as_mut())).await.ok(),
        _ => None,
    };
    let mut stream = Stream::new(running, answering, ping);
    match first {
        None => {}
        Some(None) => return Err(ended_early()),
        Some(Some(bloomery_runtime::request::Event::Failed(error))) => return Err(error.into()),
        Some(Some(event)) => stream.take(0, event),
    }
    Ok((
        [
            (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
            (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        ],
        Body::from_stream(stream),
    )
        .into_response())
}

async fn finish(mut running: Running, answering: &Answering) -> Result<Finished, ApiError> {
    while let Some(event) = next_event(running.events.as_mut()).await {
        match running.follower.step(event, answering) {
            Step::Nothing | Step::Piece(_) => {}
            Step::End(_, finished) => return Ok(*finished),
            Step::Failed(error) => return Err(error.into()),
        }
    }
    Err(ended_early())
}

/// The engine let go of a request without a word: it is ending, or it broke.
pub fn ended_early() -> ApiError {
    ApiError::Server("the generation ended without a result".to_owned())
}
