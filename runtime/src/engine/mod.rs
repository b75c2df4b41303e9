//! The engine: one thread owns the executor, any number of threads talk to it.
//!
//! [`Engine::submit`] gives a [`Ticket`] whose events are the answer; dropping it cancels the request within a step.
//! [`Engine::board`] is what the engine last published of itself and never waits for it. A fault of one request is that
//! request's; a fault of the executor fails the requests of that step, and the engine goes on with fresh state.

mod admission;
mod core;
mod decide;
mod draft;
mod postprocess;
mod prompt_cache;
mod run;
mod schedule;
mod settings;
mod share;
mod slot;
mod task;
mod text;
mod vocabulary;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod toy;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
    time::Instant,
};

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, oneshot};

use self::{
    core::{Core, SavedSlot, SlotJob},
    decide::DecideJob,
    task::{Limits, Task},
};
use crate::{
    board::Board,
    executor::Executor,
    request::{Event, Generate, RequestError},
    slot_file::{SlotFileError, SlotState},
};

pub use decide::DecideReply;
pub use draft::DraftSettings;
pub use settings::EngineSettings;
pub use vocabulary::{TokenizerVocabulary, Vocabulary};

/// A running engine; clones talk to the same one. It ends with [`shutdown`](Engine::shutdown), or when the last clone
/// is gone and its requests are done.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    commands: Sender<Command>,
    board: Arc<ArcSwap<Board>>,
    vocabulary: Arc<dyn Vocabulary>,
    limits: Limits,
    model_fingerprint: u64,
    state_fingerprint: u64,
    next_id: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A submitted request. Dropping it cancels the request.
#[derive(Debug)]
pub struct Ticket {
    /// Number of the task, unique in the engine's life.
    pub id: u64,
    /// What the engine says of it; see [`Event`] for the order.
    pub events: mpsc::UnboundedReceiver<Event>,
}

/// What was done with a slot and a file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlotFileReport {
    /// The slot.
    pub slot: usize,
    /// Tokens saved, restored or erased.
    pub n_tokens: usize,
    /// Size of the file; 0 for an erasure.
    pub n_bytes: u64,
    /// How long it took.
    pub milliseconds: f64,
}

/// The answer to a slot operation, to be awaited.
pub type SlotReply = oneshot::Receiver<Result<SlotFileReport, RequestError>>;

enum Command {
    Submit(Box<Task>),
    Job(SlotJob),
    Decide(DecideJob),
    Shutdown,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("limits", &self.inner.limits).finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts an engine over any executor.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start_with(
        executor: Box<dyn Executor>,
        vocabulary: Arc<dyn Vocabulary>,
        settings: EngineSettings,
    ) -> std::io::Result<Self> {
        let shape = executor.shape().clone();
        let settings = EngineSettings {
            n_slots: settings.n_slots.max(1),
            n_ctx_slot: settings.n_ctx_slot.min(shape.max_tokens),
            ..settings
        };
        let limits = Limits {
            n_vocab: shape.n_vocab,
            n_slots: settings.n_slots,
            n_ctx_slot: settings.n_ctx_slot,
            generates: !executor.decides(),
        };
        let model_fingerprint = settings.model_fingerprint;
        let board = Arc::new(ArcSwap::from_pointee(Board::default()));
        let mut core =
            Core::new(executor, vocabulary.clone(), settings, board.clone(), Box::new(Instant::now));
        let (commands, inbox) = channel();
        let thread =
            std::thread::Builder::new().name("engine".into()).spawn(move || serve(&mut core, &inbox))?;
        Ok(Self {
            inner: Arc::new(Inner {
                commands,
                board,
                vocabulary,
                limits,
                model_fingerprint,
                state_fingerprint: shape.state_fingerprint,
                next_id: AtomicU64::new(0),
                thread: Mutex::new(Some(thread)),
            }),
        })
    }

    /// Hands in a request. Never blocks: a request that cannot be run gets a ticket with the failure in it.
    #[must_use]
    pub fn submit(&self, request: Generate) -> Ticket {
        let inner = &self.inner;
        let id = inner.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, events) = mpsc::unbounded_channel();
        match Task::new(id, request, sender.clone(), inner.vocabulary.as_ref(), &inner.limits) {
            Ok(task) => {
                if inner.commands.send(Command::Submit(Box::new(task))).is_err() {
                    // The receiver is in this function's hands: it cannot be closed.
                    let _ = sender.send(Event::Failed(RequestError::ShuttingDown));
                }
            }
            Err(error) => drop(sender.send(Event::Failed(error))),
        }
        Ticket { id, events }
    }

    /// What the engine last said of itself.
    #[must_use]
    pub fn board(&self) -> Arc<Board> {
        self.inner.board.load_full()
    }

    /// Saves a slot's state to a file, as soon as the slot is idle.
    #[must_use]
    pub fn slot_save(&self, slot: usize, path: &Path) -> SlotReply {
        let (engine, path) = (self.clone(), path.to_owned());
        in_background(move || {
            let started = Instant::now();
            let saved = engine.ask(|reply| SlotJob::Save { slot, reply })?;
            let n_tokens = saved.tokens.len();
            let state = SlotState {
                model_fingerprint: engine.inner.model_fingerprint,
                state_fingerprint: engine.inner.state_fingerprint,
                tokens: saved.tokens,
                state: saved.state,
            };
            let n_bytes = state.write(&path)?;
            Ok(report(slot, n_tokens, n_bytes, started))
        })
    }

    /// Puts a saved state into a slot, as soon as it is idle. What the slot held goes to the prompt cache.
    #[must_use]
    pub fn slot_restore(&self, slot: usize, path: &Path) -> SlotReply {
        let (engine, path) = (self.clone(), path.to_owned());
        in_background(move || {
            let started = Instant::now();
            let (state, n_bytes) = SlotState::read(&path)?;
            if state.model_fingerprint != engine.inner.model_fingerprint {
                return Err(SlotFileError::OtherModel.into());
            }
            if state.state_fingerprint != engine.inner.state_fingerprint {
                return Err(SlotFileError::OtherLayout.into());
            }
            let saved = SavedSlot { tokens: state.tokens, state: state.state };
            let n_tokens = engine.ask(|reply| SlotJob::Restore { slot, saved, reply })?;
            Ok(report(slot, n_tokens, n_bytes, started))
        })
    }

    /// Drops a slot's state, as soon as it is idle.
    #[must_use]
    pub fn slot_erase(&self, slot: usize) -> SlotReply {
        let engine = self.clone();
        in_background(move || {
            let started = Instant::now();
            let n_tokens = engine.ask(|reply| SlotJob::Erase { slot, reply })?;
            Ok(report(slot, n_tokens, 0, started))
        })
    }

    /// Ends the engine: running and waiting requests fail with [`RequestError::ShuttingDown`]. Waits for the running
    /// step; later calls return at once.
    pub fn shutdown(&self) {
        // An engine that has ended needs no telling.
        let _ = self.inner.commands.send(Command::Shutdown);
        let thread = self.inner.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the engine thread panicked");
        }
    }

    fn ask<T>(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<T, RequestError>>) -> SlotJob,
    ) -> Result<T, RequestError> {
        let (reply, answer) = oneshot::channel();
        self.inner.commands.send(Command::Job(job(reply))).map_err(|_| RequestError::ShuttingDown)?;
        answer.blocking_recv().map_err(|_| RequestError::ShuttingDown)?
    }
}

fn report(slot: usize, n_tokens: usize, n_bytes: u64, started: Instant) -> SlotFileReport {
    SlotFileReport { slot, n_tokens, n_bytes, milliseconds: started.elapsed().as_secs_f64() * 1e3 }
}

/// Files are slow: neither the engine's thread nor the caller's waits for them.
fn in_background(work: impl FnOnce() -> Result<SlotFileReport, RequestError> + Send + 'static) -> SlotReply {
    let (reply, answer) = oneshot::channel();
    std::thread::spawn(move || {
        // Whoever asked may have gone away.
        let _ = reply.send(work());
    });
    answer
}

/// The engine's thread: commands between steps, and sleep when there is nothing to do.
fn serve(core: &mut Core, inbox: &Receiver<Command>) {
    loop {
        if !core.has_work() {
            match inbox.recv() {
                Ok(command) => {
                    if !take(core, command) {
                        break;
                    }
                }
                Err(_) => return,
            }
        }
        // Without callers the engine still finishes what it began.
        while let Ok(command) = inbox.try_recv() {
            if !take(core, command) {
                return close(core, inbox);
            }
        }
        // A panic here is a bug of ours; the requests pay for it, the process does not.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| core.step())) {
            let reason = format!("internal error: {}", run::panic_text(panic.as_ref()));
            tracing::error!(reason, "the engine starts over");
            core.start_over(&RequestError::Executor(reason));
        }
    }
    close(core, inbox);
}

fn take(core: &mut Core, command: Command) -> bool {
    match command {
        Command::Submit(task) => core.submit(*task),
        Command::Job(job) => core.add_job(job),
        Command::Decide(job) => core.add_decision(job),
        Command::Shutdown => return false,
    }
    true
}

fn close(core: &mut Core, inbox: &Receiver<Command>) {
    core.shut_down();
    for command in inbox.try_iter() {
        if let Command::Submit(task) = command {
            task.fail(RequestError::ShuttingDown);
        }
    }
}
