//! Server-sent events: the chunks of one or more generations in the order in which they come, and comments in silence.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::Future as _,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bloomery_runtime::request::Event;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep, sleep};

use super::generate::{Running, ended_early};
use crate::{
    error::ApiError,
    wire::{
        answer::{Answering, Finished, Shape, Step, chunks, last_chunks},
        chat, unix_time,
    },
};

/// The body of a streamed answer. Dropping it cancels what still runs.
pub struct Stream {
    /// By index; `None` once a generation has ended.
    running: Vec<Option<Running>>,
    started: Vec<bool>,
    finished: Vec<Finished>,
    answering: Answering,
    ready: VecDeque<Bytes>,
    ping: Option<(Duration, Pin<Box<Sleep>>)>,
    closed: bool,
}

impl Stream {
    pub fn new(running: Vec<Running>, answering: Answering, ping: Option<Duration>) -> Self {
        Self {
            started: vec![false; running.len()],
            running: running.into_iter().map(Some).collect(),
            finished: Vec::new(),
            answering,
            ready: VecDeque::new(),
            ping: ping.map(|interval| (interval, Box::pin(sleep(interval)))),
            closed: false,
        }
    }

    /// Takes in an event of generation `index`.
    pub fn take(&mut self, index: usize, event: Event) {
        let Some(Some(running)) = self.running.get_mut(index) else { return };
        let step = running.follower.step(event, &self.answering);
        let mut out = Vec::new();
        match step {
            Step::Nothing => {}
            Step::Piece(piece) => {
                self.started[index] |= piece.first;
                out = chunks(&piece, &self.answering);
            }
            Step::End(last, finished) => {
                if let Some(piece) = last {
                    self.started[index] |= piece.first;
                    out = chunks(&piece, &self.answering);
                }
                out.extend(last_chunks(&finished, &self.answering, self.started[index]));
                self.finished.push(*finished);
                self.running[index] = None;
            }
            Step::Failed(error) => return self.fail(&error.into()),
        }
        for chunk in out {
            self.send(&chunk);
        }
        if self.running.iter().all(Option::is_none) {
            self.close();
        }
    }

    fn send(&mut self, chunk: &Value) {
        self.ready.push_back(Bytes::from(format!("data: {chunk}\n\n")));
    }

    /// All generations have ended.
    fn close(&mut self) {
        if self.closed {
            return;
        }
        self.closed = true;
        if self.answering.include_usage && self.answering.shape == Shape::Chat {
            self.finished.sort_by_key(|finished| finished.index);
            let chunk = chat::usage_chunk(&self.finished, &self.answering, unix_time());
            self.send(&chunk);
        }
        if self.answering.shape != Shape::Native {
            self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        }
    }

    /// An error ends the whole stream, without the mark of a good end.
    fn fail(&mut self, error: &ApiError) {
        self.running.clear();
        self.closed = true;
        self.send(&json!({"error": error.body()}));
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                if let Some((interval, timer)) = &mut self.ping {
                    timer.as_mut().reset(Instant::now() + *interval);
                }
                return Poll::Ready(Some(bytes));
            }
            if self.closed {
                return Poll::Ready(None);
            }
            let mut progress = false;
            for index in 0..self.running.len() {
                let polled = match self.running.get_mut(index) {
                    Some(Some(running)) => running.events.poll_next(context),
                    _ => continue,
                };
                match polled {
                    Poll::Pending => {}
                    Poll::Ready(Some(event)) => {
                        self.take(index, event);
                        progress = true;
                    }
                    Poll::Ready(None) => {
                        self.fail(&ended_early());
                        progress = true;
                    }
                }
            }
            if progress {
                continue;
            }
            if let Some((interval, timer)) = &mut self.ping
                && timer.as_mut().poll(context).is_ready()
            {
                timer.as_mut().reset(Instant::now() + *interval);
                return Poll::Ready(Some(Bytes::from_static(b":\n\n")));
            }
            return Poll::Pending;
        }
    }
}

impl futures_util::Stream for Stream {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // The status has left; a panic of ours can still become an error line in place of a torn connection.
        match catch_unwind(AssertUnwindSafe(|| self.poll(context))) {
            Ok(polled) => polled.map(|item| item.map(Ok)),
            Err(_) => {
                tracing::error!(target: "bloomery_serve::http", "a stream panicked");
                self.ready.clear();
                self.fail(&ApiError::Server("internal error".to_owned()));
                Poll::Ready(self.ready.pop_front().map(Ok))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::Events,
        wire::{answer::Follower, settings::Settings},
    };
    use bloomery_runtime::request::{RequestError, Token};
    use futures_util::StreamExt as _;
    use tokio::sync::mpsc;

    struct Fake(mpsc::UnboundedReceiver<Event>);

    impl Events for Fake {
        fn id(&self) -> u64 {
            0
        }

        fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
            self.0.poll_recv(context)
        }
    }

    fn stream(ping: Option<Duration>) -> (mpsc::UnboundedSender<Event>, Stream) {
        let (sender, events) = mpsc::unbounded_channel();
        let answering = Answering {
            shape: Shape::Chat,
            id: "x".to_owned(),
            model: "m".to_owned(),
            settings: Settings::of_defaults(Default::default()),
            verbose: false,
            return_tokens: false,
            return_progress: false,
            include_usage: false,
            response_fields: Vec::new(),
        };
        let follower = Follower::new(0, String::new(), 1, String::new());
        (sender, Stream::new(vec![Running { events: Box::new(Fake(events)), follower }], answering, ping))
    }

    async fn next(stream: &mut Stream) -> Option<String> {
        stream.next().await.map(|bytes| String::from_utf8(bytes.unwrap().to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_filled_with_comments() {
        let (sender, mut stream) = stream(Some(Duration::from_secs(30)));
        let begun = Instant::now();
        assert_eq!(next(&mut stream).await.unwrap(), ":\n\n");
        assert_eq!(next(&mut stream).await.unwrap(), ":\n\n");
        assert_eq!(begun.elapsed().as_secs(), 60);
        sender.send(Event::Token(Token { id: 1, text: "a".to_owned(), probs: None })).unwrap();
        assert!(next(&mut stream).await.unwrap().contains("assistant"));
        assert!(next(&mut stream).await.unwrap().contains("\"content\":\"a\""));
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_ends_a_stream_without_its_mark() {
        for event in [Some(Event::Failed(RequestError::Executor("oh no".to_owned()))), None] {
            let (sender, mut stream) = stream(None);
            if let Some(event) = event {
                sender.send(event).unwrap();
            }
            drop(sender);
            let line = next(&mut stream).await.unwrap();
            assert!(line.starts_with("data: {\"error\":{\"code\":500,"), "{line}");
            assert_eq!(next(&mut stream).await, None);
        }
    }
}
