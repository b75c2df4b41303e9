//! The serving process' side of a probe: starts the child, waits a bounded time, judges how it ended.

use crate::answer::{self, Head, Request};
use crate::error::SeatError;
use crate::library::{Library, memory_file};
use crate::options::SeatOptions;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Set in the child, which is otherwise without environment.
const MARK: &str = "BLOOMERY_SEAT_PROBE";

/// What a seat answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probed {
    /// What it says about itself, as JSON.
    pub info: String,
    /// It brings operators of its own.
    pub cpu_op: bool,
    /// The program's bytes, where facts were given.
    pub program: Option<Vec<u8>>,
}

/// Asks a seat who it is and, with `facts` (JSON), for its program.
///
/// # Errors
/// How the library was refused, how the child ended without an answer, or the seat's own refusal.
pub fn probe(library: &Library, facts: Option<&[u8]>, options: &SeatOptions) -> Result<Probed, SeatError> {
    let fault = |e: io::Error| SeatError::Probe { message: e.to_string() };
    if std::env::var_os(MARK).is_some() {
        // A program that does not answer `seat probe` but starts as usual would start itself again and again.
        return Err(SeatError::Probe { message: "this process is a probe itself".into() });
    }
    let request = write_request(library, facts, options.limit).map_err(fault)?;
    // Files in memory in place of pipes: nothing to drain, nothing to wait for, even when the seat leaves a process
    // behind that holds them open.
    let (answer, words) = (memory_file("answer").map_err(fault)?, memory_file("words").map_err(fault)?);
    let stdio = |file: &File| file.try_clone().map(Stdio::from).map_err(fault);
    let child = Command::new(&options.probe_program)
        .args(["seat", "probe"])
        .env_clear()
        .env(MARK, "1")
        .current_dir("/")
        .stdin(request)
        .stdout(stdio(&answer)?)
        .stderr(stdio(&words)?)
        .process_group(0)
        .spawn()
        .map_err(|e| SeatError::Probe { message: format!("{}: {e}", options.probe_program.display()) })?;
    let status = wait(child, options.limit).map_err(fault)?;
    let last = last_line(&words);
    let Some(status) = status else { return Err(SeatError::Silent { limit: options.limit }) };
    let bytes = read_all(&answer, answer::MOST_BYTES).map_err(fault)?;
    let Some(bytes) = bytes.strip_prefix(answer::HELLO) else {
        let program = options.probe_program.display();
        return Err(SeatError::Probe { message: format!("{program} does not answer `seat probe`: {last}") });
    };
    match answer::read(bytes) {
        Some(read) => {
            let (head, body) = read?;
            judge(head, body)
        }
        None => Err(ended(status, last)),
    }
}

fn write_request(library: &Library, facts: Option<&[u8]>, limit: Duration) -> io::Result<File> {
    let request = Request {
        library: library.len(),
        facts: facts.map(|f| f.len() as u64),
        seconds: limit.as_secs().saturating_add(1),
    };
    let mut file = memory_file("request")?;
    serde_json::to_writer(&mut file, &request)?;
    file.write_all(b"\n")?;
    file.write_all(&read_all(library.copy(), library.len())?)?;
    file.write_all(facts.unwrap_or_default())?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

/// `None` after the time limit; the child and what it started are gone in either case.
fn wait(mut child: Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let id = id.ok_or_else(|| io::Error::other("the child has no process id"))?;
    let started = Instant::now();
    let mut pause = Duration::from_micros(200);
    // Looked at without reaping: until it is reaped nobody else can get its number, and with it its group's.
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let ended = loop {
        if waitid(WaitId::Pid(id), look)?.is_some() {
            break true;
        }
        if started.elapsed() >= limit {
            break false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    };
    // The child leads a group of its own. Whatever the seat left running in it ends here.
    let _ = kill_process_group(id, Signal::KILL);
    let status = child.wait()?;
    Ok(ended.then_some(status))
}

fn judge(head: Head, body: &[u8]) -> Result<Probed, SeatError> {
    match head {
        Head::NotOpened { message } => Err(SeatError::Open { message }),
        Head::NoTable { message } => Err(SeatError::NoTable { message }),
        Head::OtherTable { message } => Err(SeatError::Table { message }),
        Head::Aborts { .. } => Err(SeatError::Aborts),
        Head::Seat { declared: Some(Err(message)), .. } => Err(SeatError::Refused { message }),
        Head::Seat { info, cpu_op, declared } => {
            Ok(Probed { info, cpu_op, program: declared.map(|_| body.to_vec()) })
        }
    }
}

fn ended(status: ExitStatus, last: String) -> SeatError {
    match status.signal() {
        Some(signal) => SeatError::Died { signal, name: signal_name(signal), last },
        None => SeatError::Exited { status: status.code().unwrap_or(-1), last },
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGILL => "illegal instruction",
        libc::SIGABRT => "abort",
        libc::SIGBUS => "bus error",
        libc::SIGFPE => "arithmetic error",
        libc::SIGKILL => "killed",
        libc::SIGSEGV => "bad memory access",
        libc::SIGXCPU => "too much processor time",
        libc::SIGXFSZ => "too much output",
        libc::SIGTERM => "terminated",
        _ => "signal",
    }
}

fn read_all(file: &File, most: u64) -> io::Result<Vec<u8>> {
    let len = file.metadata()?.len();
    if len > most {
        return Err(io::Error::other(format!("{len} bytes, at most {most} are read")));
    }
    let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// The last line that says something, of at most the last 64 KiB.
fn last_line(words: &File) -> String {
    let len = words.metadata().map_or(0, |m| m.len());
    let tail = len.min(1 << 16);
    let mut bytes = vec![0; tail as usize];
    if words.read_exact_at(&mut bytes, len - tail).is_err() {
        return String::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("note:"));
    line.unwrap_or("").chars().take(300).collect()
}
