//! The real engine behind the trait.

use std::{
    path::PathBuf,
    sync::Arc,
    task::{Context, Poll},
};

use bloomery_runtime::{
    board::Board,
    engine::{SlotReply, Ticket},
    request::{Decide, Decided, Event, Generate, RequestError},
};

use crate::engine::{Engine, Events, Later, SlotFile};

impl Engine for bloomery_runtime::Engine {
    fn submit(&self, generate: Generate) -> Box<dyn Events> {
        Box::new(Self::submit(self, generate))
    }

    fn decide(&self, decide: Decide) -> Later<Result<Decided, RequestError>> {
        let answer = Self::decide(self, decide);
        // An engine that has ended lets go of the question.
        Box::pin(async move { answer.await.map_err(|_| RequestError::ShuttingDown)? })
    }

    fn board(&self) -> Arc<Board> {
        Self::board(self)
    }

    fn slot_save(&self, slot: usize, path: PathBuf) -> Later<Result<SlotFile, RequestError>> {
        reply(Self::slot_save(self, slot, &path))
    }

    fn slot_restore(&self, slot: usize, path: PathBuf) -> Later<Result<SlotFile, RequestError>> {
        reply(Self::slot_restore(self, slot, &path))
    }

    fn slot_erase(&self, slot: usize) -> Later<Result<SlotFile, RequestError>> {
        reply(Self::slot_erase(self, slot))
    }

    fn shutdown(&self) {
        Self::shutdown(self);
    }
}

fn reply(answer: SlotReply) -> Later<Result<SlotFile, RequestError>> {
    Box::pin(async move {
        // An engine that has ended lets go of the question.
        let report = answer.await.map_err(|_| RequestError::ShuttingDown)??;
        Ok(SlotFile { n_tokens: report.n_tokens, n_bytes: report.n_bytes, ms: report.milliseconds })
    })
}

impl Events for Ticket {
    fn id(&self) -> u64 {
        self.id
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(context)
    }
}
