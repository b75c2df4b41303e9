//! Every way in which a seat is known to go wrong: the host lives and says what happened.

mod common;

use bloomery_seat_host::elf::ElfFault;
use bloomery_seat_host::{SeatError, Seats, Status};
use common::*;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Discovers one file and says why it is not used.
fn refusal(file: &str, bytes: &[u8]) -> SeatError {
    let folder = folder();
    fs::write(folder.path().join(file), bytes).expect("written");
    refusal_in(folder.path())
}

fn refusal_in(folder: &Path) -> SeatError {
    let seats = Seats::discover(&options(folder));
    match &seats.candidates[..] {
        [candidate] => match &candidate.status {
            Status::Unused(why) => why.clone(),
            Status::Usable(seat) => panic!("{} was taken", seat.path.display()),
        },
        others => panic!("{others:?}"),
    }
}

/// What the bad seat's `declare` comes to.
fn declared(mode_name: &str, limit: Duration) -> Result<(), SeatError> {
    let folder = folder();
    fs::write(folder.path().join("libseat_bad.so"), bad_seat()).expect("written");
    let seats = Seats::discover(&options(folder.path()));
    // The limit holds for the misdeed, not for finding the seat.
    let seat = seats.choose("bad", None).expect("found").with_limit(limit);
    seat.declare(&with_table(mode(mode_name))).map(|_| ())
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn files_that_are_no_library() {
    assert_eq!(refusal("text.so", b"Hello, I am a seat."), SeatError::Elf(ElfFault::NotElf));
    assert_eq!(refusal("empty.so", b""), SeatError::Elf(ElfFault::NotElf));
    assert_eq!(refusal("archive.so", b"!<arch>\n"), SeatError::Elf(ElfFault::NotElf));

    let folder = folder();
    fs::create_dir(folder.path().join("folder.so")).expect("made");
    assert!(matches!(refusal_in(folder.path()), SeatError::Read { .. }));
}

#[test]
fn a_pipe_is_not_waited_for() {
    let folder = folder();
    let pipe = folder.path().join("pipe.so");
    let made = std::process::Command::new("mkfifo").arg("-m600").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    assert!(matches!(refusal_in(folder.path()), SeatError::Read { .. }));
}

#[test]
fn executables_and_unrelated_libraries() {
    let here = folder();
    c_file("program.c", &["-no-pie"], &here.path().join("program.so"));
    assert_eq!(refusal_in(here.path()), SeatError::Elf(ElfFault::Kind { found: 2 }));

    let here = folder();
    c_file("program.c", &["-pie", "-fPIE"], &here.path().join("program.so"));
    let why = refusal_in(here.path());
    assert!(matches!(why, SeatError::Open { .. } | SeatError::NoTable { .. }), "{why:?}");

    let here = folder();
    c_file("library.c", &["-shared", "-fPIC"], &here.path().join("library.so"));
    let why = refusal_in(here.path());
    assert!(matches!(why, SeatError::NoTable { .. }), "{why:?}");
    assert!(why.to_string().contains("root_bmodule_bloader"), "names the symbol: {why}");

    let here = folder();
    c_file("library.c", &["-shared", "-fPIC", "-DNEEDS"], &here.path().join("library.so"));
    let why = refusal_in(here.path());
    assert!(
        matches!(&why, SeatError::Open { message } if message.contains("not_defined_anywhere")),
        "{why:?}"
    );
}

#[test]
fn a_missing_symbol_is_named() {
    let bytes = patched(
        bad_seat(),
        "_1as_0lib_1header_0root_bmodule_bloader",
        "_1as_0lib_1header_0root_bmodule_bloadeX",
    );
    let why = refusal("libseat_bad.so", &bytes);
    assert!(matches!(why, SeatError::NoTable { .. } | SeatError::Open { .. }), "{why:?}");
    assert!(why.to_string().contains("root_bmodule_bloader"), "{why}");
}

#[test]
fn constructors_that_misbehave_before_any_check() {
    for flag in ["-DEXITS", "-DCRASHES"] {
        let here = folder();
        c_file("library.c", &["-shared", "-fPIC", flag], &here.path().join("library.so"));
        match refusal_in(here.path()) {
            SeatError::Exited { status: 0, .. } if flag == "-DEXITS" => {}
            SeatError::Died { signal: 11, last, .. } if flag == "-DCRASHES" => assert_eq!(last, "starting"),
            other => panic!("{flag}: {other:?}"),
        }
    }
    let here = folder();
    c_file("library.c", &["-shared", "-fPIC", "-DLOOPS"], &here.path().join("library.so"));
    let mut options = options(here.path());
    options.limit = Duration::from_millis(300);
    let seats = Seats::discover(&options);
    let (_, why) = seats.unused().next().expect("refused");
    assert_eq!(why, &SeatError::Silent { limit: Duration::from_millis(300) });
}

#[test]
fn truncated_at_many_lengths() {
    let bytes = bad_seat();
    let folder = folder();
    let path = folder.path().join("libseat_bad.so");
    for i in 0..240 {
        let len = bytes.len() * i / 240 + i % 7;
        if len >= bytes.len() {
            continue;
        }
        fs::write(&path, &bytes[..len]).expect("written");
        let why = bloomery_seat_host::library::Library::read(&path).map(|_| ()).expect_err("truncated");
        assert!(matches!(why, SeatError::Elf(_)), "{len} of {}: {why}", bytes.len());
    }
    fs::write(&path, &bytes[..bytes.len() - 1]).expect("written");
    let why = refusal_in(folder.path());
    assert!(why.with_hint().contains("copy the file again"), "{}", why.with_hint());
}

#[test]
fn damaged_files_never_harm_the_host() {
    let bytes = bad_seat();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    let (mut usable, mut refused) = (0, 0);
    for file in 0..100 {
        let mut damaged = bytes.to_vec();
        if file % 5 == 4 {
            let start = random(damaged.len() - 4096);
            damaged[start..start + 4096].fill(0);
        } else {
            for _ in 0..8 {
                let at = random(damaged.len());
                damaged[at] ^= 1 << random(8);
            }
        }
        let folder = folder();
        fs::write(folder.path().join("libseat_bad.so"), &damaged).expect("written");
        let mut options = options(folder.path());
        options.limit = Duration::from_secs(10);
        let seats = Seats::discover(&options);
        match &seats.candidates[0].status {
            Status::Usable(seat) => match seat.declare(&with_table(mode("answer"))) {
                Ok(_) => usable += 1,
                Err(_) => refused += 1,
            },
            Status::Unused(_) => refused += 1,
        }
    }
    println!("{usable} of 100 damaged files were hit where it does not matter, {refused} were refused");
    assert_eq!(usable + refused, 100);
}

#[test]
fn another_table() {
    let why = refusal("libseat_other.so", &other_table_seat("next"));
    assert!(matches!(&why, SeatError::Table { .. }), "{why:?}");
    assert!(why.to_string().contains("2.0.0") || why.to_string().contains("version"), "{why}");
    let why = refusal("libseat_other.so", &other_table_seat("moved"));
    assert!(matches!(&why, SeatError::Table { .. }), "{why:?}");
    assert!(why.to_string().contains("unwinds"), "names the field: {why}");
}

#[test]
fn a_seat_that_would_abort_on_panic() {
    let why = refusal("libseat_bad.so", &aborting_seat());
    assert_eq!(why, SeatError::Aborts);
    assert!(why.with_hint().contains("unwind"), "{}", why.with_hint());
}

#[test]
fn panics() {
    let why = declared("guarded-panic", LONG).expect_err("panicked");
    let SeatError::Refused { message } = &why else { panic!("{why:?}") };
    assert!(message.contains("index 3 of 1 layers in bad") && message.contains("lib.rs:"), "{message}");

    let why = declared("bare-panic", LONG).expect_err("aborted");
    assert!(matches!(why, SeatError::Died { signal: 6, .. }), "{why:?}");
}

#[test]
fn early_ends() {
    assert_eq!(declared("exit", LONG), Err(SeatError::Exited { status: 0, last: String::new() }));
    let why = declared("exit-with-words", LONG).expect_err("exited");
    assert_eq!(why, SeatError::Exited { status: 7, last: "something went wrong here".into() });
    assert!(matches!(declared("abort", LONG), Err(SeatError::Died { signal: 6, .. })));
}

#[test]
fn bad_memory_accesses() {
    assert!(matches!(declared("null", LONG), Err(SeatError::Died { signal: 11, .. })));
    let why = declared("overflow", LONG).expect_err("overflow");
    let SeatError::Died { signal: 6 | 11, last, .. } = &why else { panic!("{why:?}") };
    assert!(last.contains("overflow") || last.is_empty(), "{last}");
    assert!(matches!(declared("hoard", LONG), Err(SeatError::Died { .. } | SeatError::Exited { .. })));
}

#[test]
fn endless_loops() {
    let limit = Duration::from_millis(700);
    for mode in ["loop", "sleep"] {
        assert_eq!(declared(mode, limit), Err(SeatError::Silent { limit }), "{mode}");
    }
}

#[test]
fn printing_is_harmless() {
    assert_eq!(declared("print", LONG), Ok(()));
}

#[test]
fn a_flood_of_words_ends_at_a_limit() {
    let why = declared("flood", LONG).expect_err("flooded");
    assert!(matches!(why, SeatError::Died { .. } | SeatError::Exited { .. }), "{why:?}");
}

#[test]
fn descriptors_processes_and_exit_handlers() {
    // The answer's descriptor is gone: no answer, but a message.
    let why = declared("close", LONG);
    assert!(matches!(why, Err(SeatError::Exited { .. } | SeatError::Died { .. })), "{why:?}");
    assert_eq!(declared("child", LONG), Ok(()), "a process left behind is not waited for");
    assert_eq!(declared("exit-handler", LONG), Ok(()), "nothing runs after the answer");
}

#[test]
fn a_program_that_does_not_answer_probes_is_not_the_seats_fault() {
    let folder = folder();
    fs::write(folder.path().join("libseat_bad.so"), bad_seat()).expect("written");
    for (program, words) in [("/bin/true", "does not answer"), ("/nowhere/at/all", "/nowhere/at/all")] {
        let mut options = options(folder.path());
        options.probe_program = program.into();
        let seats = Seats::discover(&options);
        let (_, why) = seats.unused().next().expect("refused");
        assert!(matches!(why, SeatError::Probe { message } if message.contains(words)), "{why:?}");
    }
}

#[test]
fn the_child_sees_no_environment() {
    let why = declared("environment", LONG).expect_err("told");
    assert_eq!(why, SeatError::Refused { message: "variables [\"BLOOMERY_SEAT_PROBE\"] in /".into() });
}

#[test]
fn refusals_come_in_the_seats_own_words() {
    let why = declared("refuse", LONG).expect_err("refused");
    assert_eq!(why.to_string(), "the model has no key `bad.block_count`");
}

#[test]
fn info_that_is_none() {
    let name = patched(bad_seat(), "\"name\":\"bad-seat-a\"", "\"name\":\"bad seat a\"");
    assert!(matches!(refusal("a.so", &name), SeatError::Info { message } if message.contains("bad seat a")));
    let json = patched(bad_seat(), "{\"name\":\"bad-seat-a\"", "[\"name\":\"bad-seat-a\"");
    assert!(matches!(refusal("a.so", &json), SeatError::Info { .. }));
    let none = patched(bad_seat(), "[\"bad\",\"bad2\"]", "[            ]");
    assert!(matches!(refusal("a.so", &none), SeatError::Info { .. }));
}
