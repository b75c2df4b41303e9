//! How far a fetch or a load has come: a bar on a terminal, a line for each tenth elsewhere.

use std::{
    io::IsTerminal as _,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bloomery_hub::Event;
use bloomery_runtime::LoadProgress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shows progress.
#[derive(Debug)]
pub struct Progress {
    state: Mutex<State>,
    on_terminal: bool,
}

#[derive(Debug, Default)]
struct State {
    bar: Option<ProgressBar>,
    what: String,
    total: u64,
    tenths: u64,
}

impl Progress {
    /// Bars only where a person looks on and logs are wanted at all.
    pub fn new(quiet: bool) -> Self {
        Self { state: Mutex::default(), on_terminal: !quiet && std::io::stderr().is_terminal() }
    }

    /// For a fetch.
    pub fn fetching(&self) -> impl FnMut(Event) + '_ {
        move |event| match event {
            Event::Planned { files, bytes, missing } => {
                tracing::info!("model {}: {bytes} bytes, {missing} of them to fetch", files.join(", "));
            }
            Event::Checking { file, have } => {
                tracing::info!("{file}: checking {have} bytes of an earlier attempt")
            }
            Event::Started { file, size, have } => {
                self.begin(&format!("fetching {file}"), size);
                self.advance(have);
            }
            Event::Advanced { have } => self.advance(have),
            Event::Retrying { problem, attempt } => tracing::warn!("{problem}; attempt {attempt}"),
            Event::Finished { file } => {
                self.done();
                tracing::info!("{file}: fetched, checksum right");
            }
            Event::UsingCache { reason } => tracing::warn!("using the cached model: {reason}"),
            _ => {}
        }
    }

    /// For a load.
    pub fn reading(&self) -> impl FnMut(LoadProgress) + '_ {
        let mut begun = false;
        move |progress| {
            if !begun {
                begun = true;
                self.begin("loading the model", progress.total);
            }
            self.advance(progress.done);
        }
    }

    fn begin(&self, what: &str, total: u64) {
        let mut state = self.lock();
        *state = State { what: what.to_owned(), total, ..State::default() };
        if self.on_terminal {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(what.to_owned());
            state.bar = Some(bar);
        }
    }

    fn advance(&self, done: u64) {
        let mut state = self.lock();
        if let Some(bar) = &state.bar {
            bar.set_position(done);
            return;
        }
        let tenths = done.saturating_mul(10).checked_div(state.total).unwrap_or(10);
        if tenths > state.tenths {
            state.tenths = tenths;
            tracing::info!("{}: {} %", state.what, tenths * 10);
        }
    }

    /// The bar goes.
    pub fn done(&self) {
        if let Some(bar) = self.lock().bar.take() {
            bar.finish_and_clear();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
