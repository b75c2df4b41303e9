//! The language's versions, forged answers, and the commands.

mod common;

use bloomery_program::Version;
use bloomery_seat_host::command::SeatCommand;
use bloomery_seat_host::seat::read_program;
use bloomery_seat_host::{Checked, SeatError, Seats};
use common::*;
use std::fs;
use std::path::Path;

const V1_0: Version = Version { major: 1, minor: 0 };

/// What a host of this language makes of the bytes that a real seat answers.
fn answered(bytes: &str, language: Version) -> Result<Checked, SeatError> {
    let folder = folder();
    fs::write(folder.path().join("libseat_bad.so"), bad_seat()).expect("written");
    let mut options = options(folder.path());
    options.language = language;
    let seats = Seats::discover(&options);
    seats.choose("bad", None).expect("found").declare(&with_table(answer(bytes)))
}

fn saying(major: u16, minor: u16) -> String {
    identity_program("")
        .replace(r#"{"major":1,"minor":0}"#, &format!(r#"{{"major":{major},"minor":{minor}}}"#))
}

#[test]
fn a_seat_of_the_previous_minor_still_loads() {
    assert!(answered(&saying(1, 0), V1_0).is_ok());
    let later = Version { major: 1, minor: 1 };
    assert!(answered(&saying(1, 0), later).is_ok(), "a host one minor ahead");
    let later = Version { major: 1, minor: 7 };
    assert!(answered(&saying(1, 0), later).is_ok(), "a host many minors ahead");
}

#[test]
fn a_seat_that_needs_a_newer_language_is_refused_by_name() {
    // It uses a field and an operator that this host has never heard of: the version is what must be told.
    let newer = saying(1, 99)
        .replace(r#""kind":"embed""#, r#""kind":"embed_sideways","angle":3"#)
        .replace(r#""states":[]"#, r#""states":[],"later":true"#);
    let why = answered(&newer, V1_0).expect_err("newer");
    assert_eq!(why, SeatError::Language { seat: Version { major: 1, minor: 99 }, host: V1_0 });
    assert!(why.to_string().contains("1.99") && why.to_string().contains("1.0"), "{why}");
    assert!(why.hint().is_some_and(|hint| hint.contains("update the host")));
    assert!(matches!(answered(&saying(1, 1), V1_0), Err(SeatError::Language { .. })));
    assert!(matches!(answered(&saying(2, 0), V1_0), Err(SeatError::Language { .. })));
    let why = answered(&saying(0, 9), V1_0).expect_err("older major");
    assert!(why.hint().is_some_and(|hint| hint.contains("rebuild the seat")), "{why}");
}

#[test]
fn a_newer_minor_in_the_info_is_no_refusal_and_another_major_is() {
    let folder = folder();
    let path = folder.path().join("libseat_bad.so");
    let language = "\"language\":{\"major\":1,\"minor\":0}}";
    fs::write(&path, patched(bad_seat(), language, "\"language\":{\"major\":1,\"minor\":9}}"))
        .expect("written");
    let seats = Seats::discover(&options(folder.path()));
    let seat = seats.choose("bad", None).expect("the program says what it needs");
    assert!(seat.declare(&with_table(mode("answer"))).is_ok());
    fs::write(&path, patched(bad_seat(), language, "\"language\":{\"major\":2,\"minor\":0}}"))
        .expect("written");
    let seats = Seats::discover(&options(folder.path()));
    assert!(matches!(seats.unused().next(), Some((_, SeatError::Language { .. }))));
}

#[test]
fn forged_declarations_are_told_by_name() {
    let good = identity_program("");
    for (from, to, part) in [
        (r#""ins":[0]"#, r#""ins":[7]"#, "operand 7 is not defined before use"),
        (r#""width":8"#, r#""width":1099511627776"#, "invalid value"),
        (r#""width":8"#, r#""width":9"#, "declares [rows, 9], its operands give [rows, 8]"),
        ("token_embd.weight", "nowhere.weight", "tensor nowhere.weight is not in the model"),
        (r#""states":[]"#, r#""states":[],"window":4"#, "unknown field `window`"),
        (r#"{"kind":"embed"}"#, r#"{"kind":"embed","sideways":1}"#, "unknown field `sideways`"),
        (r#"{"kind":"embed"}"#, r#"{"kind":"gated_delta_9"}"#, "unknown variant `gated_delta_9`"),
        (r#"{"kind":"embed"}"#, r#"{"kind":"embed","scale":1e999}"#, "out of range"),
        (r#""outputs":[{"kind":"logits","value":1}]"#, r#""outputs":[]"#, "no output"),
        (r#"{"kind":"target"}"#, r#"{"kind":"draft","depth":1}"#, "exactly one target graph"),
        ("bad-seat-a", "somebody-else", "signed \"somebody-else\""),
        (r#""graphs""#, r#""graphs":[],"graphs""#, "duplicate field"),
        ("}", "", "its answer is no program"),
    ] {
        let forged = good.replacen(from, to, 1);
        assert_ne!(forged, good, "{from}");
        let why = read_program(forged.as_bytes(), "bad-seat-a", &with_table(mode("")), V1_0).expect_err(to);
        assert!(why.to_string().contains(part), "{to}: {why}");
    }
    for bytes in ["", "null", "[]", "{}", "\u{0}", "{\"language\":1}"] {
        let why = read_program(bytes.as_bytes(), "bad-seat-a", &mode(""), V1_0).expect_err(bytes);
        assert!(matches!(why, SeatError::Answer { .. }), "{why:?}");
    }
    // And once through a real seat and its probe.
    let why = answered(&good.replacen(r#""ins":[0]"#, r#""ins":[7]"#, 1), V1_0).expect_err("forged");
    assert!(matches!(&why, SeatError::Faults { faults } if faults.len() == 1), "{why:?}");
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(matches!(answered(&deep, V1_0), Err(SeatError::Answer { .. })));
}

#[test]
fn many_faults_are_told_in_short() {
    let node = r#",{"op":{"kind":"add"},"ins":[90,91],"outs":[]}"#;
    let program = identity_program("").replacen("]}],\n", &format!("]}}{}],\n", node.repeat(50)), 1);
    let why =
        read_program(program.as_bytes(), "bad-seat-a", &with_table(mode("")), V1_0).expect_err("faults");
    let SeatError::Faults { faults } = &why else { panic!("{why:?}") };
    assert_eq!(faults.len(), 21);
    assert!(why.to_string().contains("and 30 more faults"), "{why}");
}

/// A declaration of language 1.0 as it was written when the language was made: every later host must take it.
#[test]
fn the_first_declaration_is_still_read() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let facts = fs::read_to_string(data.join("qwen3moe.facts.json")).expect("facts");
    let facts = serde_json::from_str(&facts).expect("facts");
    let program = fs::read(data.join("qwen3moe.language-1.0.json")).expect("declaration");
    let checked = read_program(&program, "qwen3", &facts, bloomery_program::LANGUAGE).expect("still read");
    assert_eq!((checked.summary.nodes, checked.summary.tensors_read), (37, 27));
}

fn run(words: &[&str], folder: &Path) -> (bool, String) {
    let words: Vec<String> = words.iter().map(|w| w.to_string()).collect();
    let command = SeatCommand::parse(&words).expect("parsed");
    let mut out = Vec::new();
    let read_facts = |path: &Path| match path.to_str() {
        Some("model.gguf") => Ok(with_table(mode("answer"))),
        _ => Err("no such file".to_string()),
    };
    let well = command.run(&options(folder), &read_facts, &mut out).expect("written");
    (well, String::from_utf8(out).expect("text"))
}

#[test]
fn commands_say_what_they_find() {
    let folder = folder();
    let file = folder.path().join("libseat_bad.so");
    fs::write(&file, bad_seat()).expect("written");
    let file = file.to_str().expect("path");
    let (well, text) = run(&["check", file, "model.gguf"], folder.path());
    assert!(well && text.contains("bad-seat-a 0.3.0") && text.contains("embed x1"), "{text}");
    let (well, text) = run(&["show", "bad-seat-a"], folder.path());
    assert!(well && text.contains("architectures  bad, bad2"), "{text}");
    let (well, text) = run(&["show", "bad-seat-a", "model.gguf"], folder.path());
    assert!(well && text.starts_with("program bad-seat-a language 1.0\n"), "{text}");
    let (well, text) = run(&["show", "bad-seat-a", "model.gguf", "--dot"], folder.path());
    assert!(well && text.starts_with("digraph"), "{text}");
    let (well, text) = run(&["check", file, "gone.gguf"], folder.path());
    assert!(!well && text.contains("gone.gguf: no such file"), "{text}");
    let (well, text) = run(&["check", "/nowhere.so"], folder.path());
    assert!(!well && text.contains("cannot read it"), "{text}");
    let (well, text) = run(&["show", "nobody"], folder.path());
    assert!(!well && text.contains("no seat is named nobody; there are: bad-seat-a"), "{text}");
    let (well, text) = run(&["facts", "model.gguf"], folder.path());
    let facts: bloomery_program::ModelFacts = serde_json::from_str(&text).expect("facts");
    assert!(well && facts == with_table(mode("answer")));
    let (well, text) = run(&["list"], folder.path());
    assert!(well && text.contains("bad-seat-a"), "{text}");
    for words in
        [&["probe"][..], &["show"], &["list", "x"], &["check", "a", "b", "c"], &["check", "a", "--dot"]]
    {
        let words: Vec<String> = words.iter().map(|w| w.to_string()).collect();
        let why = SeatCommand::parse(&words).expect_err("not understood");
        assert!(why.contains("usage: seat list"), "{why}");
    }
}

#[test]
fn the_tool_answers_like_the_library() {
    let folder = folder();
    fs::write(folder.path().join("libseat_bad.so"), bad_seat()).expect("written");
    let tool = |words: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_bloomery-seat"))
            .args(words)
            .output()
            .expect("run");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let dir = folder.path().to_str().expect("path");
    let (code, text) = tool(&["--seats-dir", dir, "seat", "list"]);
    assert!(code == Some(0) && text.contains("bad-seat-a"), "{text}");
    let (code, text) = tool(&["--seats-dir", dir, "list"]);
    assert!(code == Some(0) && text.contains("bad-seat-a"), "{text}");
    assert_eq!(tool(&["walk"]).0, Some(2));
    assert_eq!(tool(&["--seats-dir"]).0, Some(2));
    assert_eq!(tool(&["seat", "probe"]).0, Some(2), "a probe without a request says so");
}
