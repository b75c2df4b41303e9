//! What all routes share.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, OnceLock},
};

use bloomery_runtime::board::Counters;
use serde_json::Value;

use crate::{
    engine::Served,
    request::build::Builder,
    settings::ServerSettings,
    template::{ChatTemplate, DecisionTemplate},
    wire::{settings::Settings, slots::Requests, unix_time},
};

/// How many requests are remembered for `/slots`.
const REMEMBERED: usize = 512;

/// State of the HTTP side.
#[derive(Debug)]
pub struct App {
    /// Settings from the flags.
    pub settings: ServerSettings,
    /// Start of the process, seconds since 1970.
    pub started: u64,
    ready: OnceLock<Arc<Ready>>,
    /// Settings of recent tasks, newest last.
    tasks: Mutex<VecDeque<(u64, Arc<Settings>)>>,
    /// The counters when metrics were last asked for.
    scraped: Mutex<Counters>,
}

/// What is there once the model is.
#[derive(Debug)]
pub struct Ready {
    /// The model and its engine.
    pub served: Served,
    /// The chat template.
    pub template: ChatTemplate,
    /// The template of decision requests, where the model takes any and the file has one.
    pub decision: Option<DecisionTemplate>,
}

impl App {
    /// An app that still waits for its model.
    #[must_use]
    pub fn new(settings: ServerSettings) -> Self {
        Self {
            settings,
            started: unix_time(),
            ready: OnceLock::new(),
            tasks: Mutex::default(),
            scraped: Mutex::default(),
        }
    }

    /// The model is there. Only the first call counts.
    pub fn set_ready(&self, ready: Ready) {
        _ = self.ready.set(Arc::new(ready));
    }

    /// The model, once it is there.
    #[must_use]
    pub fn ready(&self) -> Option<&Arc<Ready>> {
        self.ready.get()
    }

    /// What turns bodies into jobs.
    #[must_use]
    pub fn builder<'a>(&'a self, ready: &'a Ready) -> Builder<'a> {
        Builder {
            settings: &self.settings,
            facts: &ready.served.facts,
            tokenizer: &ready.served.tokenizer,
            template: &ready.template,
        }
    }

    /// Remembers the settings of a task.
    pub fn remember(&self, task: u64, settings: Arc<Settings>) {
        // A poisoned lock still holds a usable list.
        let mut tasks = self.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if tasks.len() == REMEMBERED {
            tasks.pop_front();
        }
        tasks.push_back((task, settings));
    }

    /// The counters at the last call; these take their place.
    pub fn scrape(&self, now: Counters) -> Counters {
        let mut scraped = self.scraped.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::replace(&mut scraped, now)
    }
}

impl Requests for App {
    fn settings_of(&self, task: u64) -> Option<Value> {
        let tasks = self.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        tasks.iter().rev().find(|(id, _)| *id == task).map(|(_, settings)| settings.to_json(true))
    }
}
