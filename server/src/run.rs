//! The program: what a command line does, from its words to the exit code.

use std::{future::Future, process::ExitCode, sync::Arc, time::Duration};

use bloomery_program::text;
use bloomery_seat_host::Seats;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

use crate::{
    flags::{self, Command, Flags, ParseError},
    http::{App, bind, router, serve},
    load, logging,
    progress::Progress,
    seats,
    settings::ServerSettings,
};

/// Runs the program with these words (without its name).
#[must_use]
pub fn run(words: Vec<String>) -> ExitCode {
    // The child's side of a seat's check comes before everything: no logs, no flags, no threads.
    if words.first().is_some_and(|word| word == "seat") && words.get(1).is_some_and(|word| word == "probe") {
        return bloomery_seat_host::probe_main();
    }
    let flags = match flags::parse(words, &|name| std::env::var(name).ok()) {
        Ok(flags) => flags,
        Err(ParseError::Clap(error)) => {
            _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
        Err(error) => return fail(&error),
    };
    match &flags.command {
        Some(Command::DocsFlags) => {
            print!("{}", flags::flags_section());
            return ExitCode::SUCCESS;
        }
        Some(Command::Seat { words }) => return seats::run(words, &seats::options(&flags.seats)),
        None => {}
    }
    if flags.seats.list_seats {
        print!("{}", Seats::discover(&seats::options(&flags.seats)));
        return ExitCode::SUCCESS;
    }
    if flags.engine.list_devices {
        return list_devices();
    }
    if flags.model.dump_program {
        return dump(&flags);
    }
    if flags.engine.plan {
        return plan(&flags);
    }
    if let Err(error) = logging::start(&flags.log) {
        return fail(&format_args!("--log-file: {error}"));
    }
    let settings = match ServerSettings::of(&flags) {
        Ok(settings) => settings,
        Err(error) => return fail(&error),
    };
    if flags.model.model.is_none() && flags.model.hf_repo.is_none() {
        return fail(&load::LoadError::NoModel);
    }
    let threads = usize::try_from(flags.http.threads_http).ok().filter(|n| *n > 0).unwrap_or(4);
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("http")
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    let code = runtime.block_on(serve_model(flags, settings));
    // A load that still runs must not hold up the end.
    runtime.shutdown_timeout(Duration::from_secs(1));
    code
}

fn fail(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::FAILURE
}

/// `--list-devices`.
fn list_devices() -> ExitCode {
    match bloomery_runtime::cuda::cards() {
        Ok(cards) => {
            println!("Available devices:");
            cards.iter().for_each(|card| println!("  CUDA{}: {card}", card.index));
        }
        Err(error) => println!("Available devices:\n  none: {error}"),
    }
    ExitCode::SUCCESS
}

/// `--plan`.
fn plan(flags: &Flags) -> ExitCode {
    let plan = || -> Result<bloomery_runtime::model::Plan, load::LoadError> {
        let path = load::model_file(flags, &Progress::new(true))?;
        Ok(bloomery_runtime::Model::plan_of(&load::open_options(flags, path)?)?)
    };
    match plan() {
        Ok(plan) => {
            println!("{plan}");
            if plan.fits() { ExitCode::SUCCESS } else { fail(&"it does not fit") }
        }
        Err(error) => fail(&error),
    }
}

/// `--dump-program`.
fn dump(flags: &Flags) -> ExitCode {
    let program = || -> Result<String, load::LoadError> {
        let path = load::model_file(flags, &Progress::new(true))?;
        let options = load::open_options(flags, path)?;
        let file =
            bloomery_gguf::GgufFile::open(&options.model).map_err(bloomery_runtime::OpenError::from)?;
        let facts = bloomery_runtime::model::model_facts(&file).map_err(bloomery_runtime::OpenError::from)?;
        let seats = options.seats();
        let declared = seats
            .choose(&facts.arch, options.seat.as_deref())
            .and_then(|seat| seat.declare(&facts))
            .map_err(bloomery_runtime::OpenError::from)?;
        Ok(text::text(&declared.program))
    };
    match program() {
        Ok(text) => {
            use std::io::Write as _;
            // Whoever reads may have had enough.
            _ = std::io::stdout().lock().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => fail(&error),
    }
}

async fn serve_model(flags: Flags, settings: ServerSettings) -> ExitCode {
    let listeners = match bind(&flags.http.host, flags.http.port, flags.http.reuse_port).await {
        Ok(listeners) => listeners,
        Err(error) => return fail(&error),
    };
    for (address, _) in &listeners {
        tracing::info!("listening on {address}");
    }
    let addresses: Vec<String> = listeners.iter().map(|(address, _)| address.to_string()).collect();
    let header_timeout = settings.timeout;
    let grace = Duration::from_secs(flags.http.shutdown_grace);
    let app = Arc::new(App::new(settings));
    let (failed, failure) = oneshot::channel();
    let loader = Arc::clone(&app);
    // A thread of its own: loading blocks, and its end must not wait for a pool.
    std::thread::spawn(move || {
        let progress = Progress::new(logging::level(&flags.log) == tracing::level_filters::LevelFilter::OFF);
        match load::load(&flags, &loader.settings, &progress) {
            Ok(ready) => {
                let facts = &ready.served.facts;
                tracing::info!(n_slots = facts.n_slots, n_ctx_slot = facts.n_ctx_slot, "the model is loaded");
                loader.set_ready(ready);
                tracing::info!("server is listening on {}", addresses.join(", "));
            }
            Err(error) => {
                progress.done();
                _ = failed.send(error);
            }
        }
    });
    let mut error = None;
    let stop = async {
        tokio::select! {
            () = interrupted() => tracing::info!("ending: no new requests, {} s for running ones", grace.as_secs()),
            Ok(failure) = failure => error = Some(failure),
        }
        tokio::spawn(async {
            interrupted().await;
            // Asked twice: now.
            std::process::exit(130);
        });
    };
    let cancel = || {
        if let Some(ready) = app.ready() {
            ready.served.engine.shutdown();
        }
    };
    let sockets = listeners.into_iter().map(|(_, listener)| listener).collect();
    serve(sockets, router(Arc::clone(&app)), header_timeout, stop, grace, cancel).await;
    match error {
        Some(error) => {
            tracing::error!("{error}");
            fail(&error)
        }
        None => ExitCode::SUCCESS,
    }
}

/// SIGINT or SIGTERM.
fn interrupted() -> impl Future<Output = ()> + Send {
    let signals = [signal(SignalKind::interrupt()), signal(SignalKind::terminate())];
    async move {
        let [Ok(mut interrupt), Ok(mut terminate)] = signals else {
            // Without handlers the system's own way of ending is in force.
            return std::future::pending().await;
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}
