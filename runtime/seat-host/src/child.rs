//! The probing child: opens one library, asks it one question, answers with bytes and ends.

use crate::answer::{self, Head, Request};
use crate::library::memory_file;
use crate::table::{self, OpenFault};
use bloomery_seat::abi::SeatRef;
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;

/// Address space that a seat may use.
const MOST_MEMORY: u64 = 8 << 30;

/// The whole of `PROGRAM seat probe`. A program calls this before anything else when its arguments are `seat probe`;
/// see [`crate::answer`] for what is said over stdin and stdout.
pub fn probe_main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("seat probe: {e}");
            ExitCode::from(2)
        }
    }
}

fn run() -> io::Result<()> {
    let mut stdin = BufReader::new(io::stdin().lock());
    let mut line = String::new();
    stdin.by_ref().take(4096).read_line(&mut line)?;
    let request: Request =
        serde_json::from_str(&line).map_err(|e| io::Error::other(format!("request: {e}")))?;
    let mut library = memory_file("seat")?;
    let copied = io::copy(&mut stdin.by_ref().take(request.library), &mut library)?;
    let mut facts = Vec::new();
    stdin.by_ref().take(request.facts.unwrap_or(0)).read_to_end(&mut facts)?;
    if copied != request.library || facts.len() as u64 != request.facts.unwrap_or(0) {
        return Err(io::Error::other("the request is shorter than it says"));
    }
    let mut private = private_answer()?;
    limit(&request)?;
    private.write_all(answer::HELLO)?;

    let (head, body) = ask(&library, request.facts.is_some().then_some(&facts));
    private.write_all(&answer::write(&head, &body))?;
    // Nothing of the seat's runs after the answer: no destructors, no exit handlers.
    // SAFETY: `_exit` takes a number and does not return.
    unsafe { libc::_exit(0) }
}

/// Moves the answer's descriptor out of the way: what a seat prints goes to stderr, where its last line is kept.
fn private_answer() -> io::Result<File> {
    let answer = OwnedFd::from(File::from(rustix::io::fcntl_dupfd_cloexec(io::stdout(), 10)?));
    rustix::stdio::dup2_stdout(io::stderr())?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(File::from(answer))
}

fn limit(request: &Request) -> io::Result<()> {
    let at_most = |most: u64| Rlimit { current: Some(most), maximum: Some(most) };
    for (resource, most) in [
        (Resource::Core, 0),
        (Resource::Cpu, request.seconds.saturating_add(1)),
        (Resource::Fsize, answer::MOST_BYTES),
        (Resource::Nofile, 64),
        (Resource::As, MOST_MEMORY),
    ] {
        // A limit that is already lower stays.
        let held = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
        setrlimit(resource, at_most(most.min(held)))?;
    }
    // The child must not outlive a server that is killed.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(())
}

fn ask(library: &File, facts: Option<&Vec<u8>>) -> (Head, Vec<u8>) {
    let path = PathBuf::from(format!("/proc/self/fd/{}", library.as_raw_fd()));
    // SAFETY: this process exists to run this library; the user installed it as a seat, or named it in a command.
    let table = match unsafe { table::open(&path) } {
        Ok(table) => table,
        Err(OpenFault::NotOpened(message)) => return (Head::NotOpened { message }, vec![]),
        Err(OpenFault::NoTable(message)) => return (Head::NoTable { message }, vec![]),
        Err(OpenFault::OtherTable(message)) => return (Head::OtherTable { message }, vec![]),
    };
    let info = table.info().as_str().to_string();
    if !table.unwinds() {
        // Calling it could end this process with no more than a signal to tell why.
        return (Head::Aborts { info }, vec![]);
    }
    let (declared, body) = match facts {
        None => (None, vec![]),
        Some(facts) => declare(table, facts),
    };
    (Head::Seat { info, cpu_op: table.cpu_op().is_some(), declared }, body)
}

fn declare(table: SeatRef, facts: &[u8]) -> (Option<Result<(), String>>, Vec<u8>) {
    match (table.declare())(facts.into()).into_result() {
        Ok(program) => (Some(Ok(())), program.into()),
        Err(message) => (Some(Err(message.into())), vec![]),
    }
}
