//! The engine over the toy executor, step by step and without threads, except where the thread is the matter.

mod alone;
mod cache;
mod drafts;
mod faults;
mod limits;
mod threads;

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use bloomery_sampler::SamplingParams;
use tokio::sync::mpsc::{self, UnboundedReceiver};

use super::{
    DraftSettings, EngineSettings,
    core::Core,
    task::{Limits, Task},
    toy::{END, N_VOCAB, POISON, Seen, Toy, ToyVocabulary},
};
use crate::{
    board::Board,
    executor::Rollback,
    request::{Done, Event, Generate, PromptProgress, RequestError, Token},
};

/// A core with what a test sees of it. Its clock moves by one second a step.
pub struct Bench {
    pub core: Core,
    pub seen: Arc<Mutex<Seen>>,
    pub board: Arc<ArcSwap<Board>>,
    seconds: Arc<Mutex<u64>>,
    limits: Limits,
    next_id: u64,
}

/// One request's side.
pub struct Client {
    pub id: u64,
    events: Option<UnboundedReceiver<Event>>,
    pub tokens: Vec<Token>,
    pub progress: Vec<PromptProgress>,
    /// Step of each token.
    pub steps: Vec<u64>,
    pub end: Option<Result<Done, RequestError>>,
}

impl Bench {
    pub fn new(toy: Toy, settings: EngineSettings) -> Self {
        let seen = toy.seen.clone();
        let board = Arc::new(ArcSwap::from_pointee(Board::default()));
        let seconds = Arc::new(Mutex::new(0));
        let (start, now) = (Instant::now(), seconds.clone());
        let clock = Box::new(move || start + Duration::from_secs(*now.lock().unwrap()));
        let limits = Limits {
            n_vocab: N_VOCAB,
            n_slots: settings.n_slots,
            n_ctx_slot: settings.n_ctx_slot,
            generates: true,
        };
        let core = Core::new(Box::new(toy), Arc::new(ToyVocabulary), settings, board.clone(), clock);
        Self { core, seen, board, seconds, limits, next_id: 0 }
    }

    /// Plenty of room.
    pub fn roomy(rollback: Rollback, n_slots: usize) -> Self {
        let settings = EngineSettings { n_slots, n_ctx_slot: 256, ..EngineSettings::default() };
        Self::new(Toy::new(rollback, 16, 8, 400), settings)
    }

    pub fn submit(&mut self, request: Generate) -> Client {
        let (sender, events) = mpsc::unbounded_channel();
        let id = self.next_id;
        self.next_id += 1;
        match Task::new(id, request, sender.clone(), &ToyVocabulary, &self.limits) {
            Ok(task) => self.core.submit(task),
            Err(error) => sender.send(Event::Failed(error)).unwrap(),
        }
        Client { id, events: Some(events), tokens: vec![], progress: vec![], steps: vec![], end: None }
    }

    pub fn step(&mut self, clients: &mut [Client]) {
        *self.seconds.lock().unwrap() += 1;
        self.core.step();
        clients.iter_mut().for_each(|client| client.drain(self.core.tick));
    }

    /// Steps until nothing is left to do.
    pub fn finish(&mut self, clients: &mut [Client]) {
        for _ in 0..5000 {
            if !self.core.has_work() {
                clients.iter_mut().for_each(|client| client.drain(self.core.tick));
                return;
            }
            self.step(clients);
        }
        panic!("stuck: {:?}", self.board.load());
    }

    /// Runs one request to its end.
    pub fn ask(&mut self, request: Generate) -> Client {
        let mut clients = [self.submit(request)];
        self.finish(&mut clients);
        let [client] = clients;
        client
    }
}

impl Client {
    pub fn drain(&mut self, step: u64) {
        let Some(events) = &mut self.events else { return };
        while let Ok(event) = events.try_recv() {
            assert!(self.end.is_none(), "an event after the end: {event:?}");
            match event {
                Event::Progress(progress) => self.progress.push(progress),
                Event::Token(token) => {
                    self.tokens.push(token);
                    self.steps.push(step);
                }
                Event::Done(done) => self.end = Some(Ok(done)),
                Event::Failed(error) => self.end = Some(Err(error)),
            }
        }
    }

    pub fn cancel(&mut self) {
        self.events = None;
    }

    pub fn is_cancelled(&self) -> bool {
        self.events.is_none()
    }

    pub fn done(&self) -> &Done {
        self.end.as_ref().expect("ended").as_ref().expect("in good order")
    }

    pub fn error(&self) -> &RequestError {
        self.end.as_ref().expect("ended").as_ref().expect_err("with an error")
    }

    pub fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }

    pub fn text(&self) -> String {
        let closing = self.end.iter().flatten().map(|done| done.text.as_str());
        self.tokens.iter().map(|token| token.text.as_str()).chain(closing).collect()
    }
}

/// A greedy request.
pub fn request(prompt: &[u32]) -> Generate {
    Generate {
        prompt: prompt.to_vec(),
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        n_predict: Some(12),
        stop: vec![],
        ignore_eos: false,
        cache_prompt: true,
        slot: None,
        n_probs: 0,
        post_sampling_probs: false,
        return_progress: false,
        render_special: false,
        t_max_predict_ms: None,
    }
}

/// A prompt with a given beginning and length.
pub fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 1 + (seed.wrapping_mul(2_654_435_761).wrapping_add(i * i * 7 + i)) % 25).collect()
}
