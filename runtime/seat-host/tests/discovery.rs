//! Where seats are found, which one serves a model, and what plugins.toml can say.

mod common;

use bloomery_seat_host::{Origin, SeatError, SeatOptions, Seats};
use common::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The seat under another name of the same length.
fn seat_named(name: &str) -> Vec<u8> {
    patched(bad_seat(), "\"name\":\"bad-seat-a\"", &format!("\"name\":\"{name}\""))
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("written");
}

fn chosen(options: &SeatOptions) -> Result<String, SeatError> {
    Seats::discover(options).choose("bad", None).map(|seat| seat.info.name.clone())
}

#[test]
fn every_place_is_searched_in_order() {
    let root = folder();
    let at = |name: &str| root.path().join(name);
    for name in ["a", "b", "c", "d", "e"] {
        fs::create_dir(at(name)).expect("made");
        write(&at(name).join("libseat.so"), &seat_named(&format!("bad-seat-{name}")));
        write(&at(name).join("README.md"), b"not looked at");
    }
    write(&at("plugins.toml"), b"dirs = [\"d\"]\n");
    let seats = Seats::discover(&SeatOptions {
        files: vec![at("a").join("libseat.so")],
        folders: vec![at("b")],
        environment: Some(format!("{}::{}", at("c").display(), at("c").join("libseat.so").display()).into()),
        config: Some(at("plugins.toml")),
        beside: Some(at("e")),
        ..options(&at("b"))
    });
    let found: Vec<(String, Origin)> = seats.usable().map(|s| (s.info.name.clone(), s.origin)).collect();
    let expected = [
        ("bad-seat-a", Origin::NamedFile),
        ("bad-seat-b", Origin::NamedFolder),
        ("bad-seat-c", Origin::Environment),
        ("bad-seat-d", Origin::Config),
        ("bad-seat-e", Origin::Beside),
    ];
    assert_eq!(found, expected.map(|(name, origin)| (name.to_string(), origin)));
    assert_eq!(seats.candidates.len(), 5, "nothing else was looked at");
    assert_eq!(seats.choose("bad", None).expect("the named file").info.name, "bad-seat-a");
}

#[test]
fn folders_that_are_missing_are_told_where_they_were_asked_for() {
    let root = folder();
    let seats = Seats::discover(&SeatOptions {
        folders: vec![root.path().join("gone")],
        beside: Some(root.path().join("seats")),
        default_config: Some(root.path().join("plugins.toml")),
        ..SeatOptions::default()
    });
    let unused: Vec<_> = seats.unused().collect();
    assert!(matches!(unused[..], [(candidate, SeatError::Read { .. })] if candidate.path.ends_with("gone")));
    let why = seats.choose("llama", None).expect_err("none");
    assert!(why.to_string().contains("no seat was found") && why.to_string().contains("gone"), "{why}");
    assert!(why.hint().is_some_and(|hint| hint.contains("--seats-dir")));
}

#[test]
fn a_clash_names_both_files_and_one_line_settles_it() {
    let root = folder();
    write(&root.path().join("one.so"), &seat_named("bad-seat-a"));
    write(&root.path().join("two.so"), &seat_named("bad-seat-b"));
    let config = root.path().join("plugins.toml");
    let mut options = options(root.path());
    let why = chosen(&options).expect_err("clash");
    assert!(matches!(why, SeatError::Clash { .. }), "{why:?}");
    let text = why.with_hint();
    for part in ["one.so", "two.so", "bad-seat-a", "bad-seat-b", "[architectures]", "bad = \"bad-seat-a\""] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    let listing = Seats::discover(&options).to_string();
    assert!(listing.contains("nobody: architecture `bad` is claimed by"), "{listing}");

    options.config = Some(config.clone());
    for (line, name) in
        [("bad-seat-b", "bad-seat-b"), (root.path().join("one.so").to_str().expect("path"), "bad-seat-a")]
    {
        write(&config, format!("[architectures]\nbad = \"{line}\"\n").as_bytes());
        assert_eq!(chosen(&options).expect("settled"), name);
    }
    write(&config, b"[architectures]\nbad = \"bad-seat-c\"\n");
    let why = chosen(&options).expect_err("not there");
    assert!(matches!(&why, SeatError::Settlement { chosen, .. } if chosen == "bad-seat-c"), "{why:?}");

    write(&config, b"[[seat]]\nname = \"bad-seat-a\"\ndisabled = true\n");
    assert_eq!(chosen(&options).expect("one is left"), "bad-seat-b");
    write(&config, b"[[seat]]\nfile = \"two.so\"\ndisabled = true\n");
    assert_eq!(chosen(&options).expect("one is left"), "bad-seat-a");
}

#[test]
fn a_seat_is_chosen_by_name_or_file() {
    let root = folder();
    write(&root.path().join("one.so"), &seat_named("bad-seat-a"));
    write(&root.path().join("two.so"), &seat_named("bad-seat-b"));
    write(&root.path().join("libseat_broken.so"), b"broken");
    let seats = Seats::discover(&options(root.path()));
    assert_eq!(seats.choose("bad", Some("bad-seat-b")).expect("by name").info.name, "bad-seat-b");
    let path = root.path().join("two.so");
    assert_eq!(seats.choose("bad2", path.to_str()).expect("by file").info.name, "bad-seat-b");
    let elsewhere = folder();
    let file = elsewhere.path().join("three.so");
    write(&file, &seat_named("bad-seat-c"));
    let wanted = options(root.path()).wanting(file.to_str());
    let with_file = Seats::discover(&wanted);
    assert_eq!(with_file.choose("bad", file.to_str()).expect("by a new file").info.name, "bad-seat-c");
    let why = seats.choose("llama", Some("bad-seat-b")).expect_err("another architecture");
    assert!(matches!(&why, SeatError::OtherArchitecture { .. }));
    assert!(why.to_string().contains("bad, bad2") && why.to_string().contains("llama"), "{why}");
    let why = seats.choose("bad", Some("broken")).expect_err("unknown");
    assert!(why.to_string().contains("not an ELF file"), "says why the file of that name is not used: {why}");
    assert!(why.to_string().contains("bad-seat-a, bad-seat-b"), "{why}");
    let why = seats.choose("falcon", None).expect_err("nobody");
    assert!(why.to_string().contains("`falcon`") && why.to_string().contains("bad, bad2"), "{why}");
}

#[test]
fn one_name_twice_is_ambiguous_and_one_file_twice_is_not() {
    let root = folder();
    write(&root.path().join("one.so"), bad_seat());
    write(&root.path().join("two.so"), bad_seat());
    let seats = Seats::discover(&options(root.path()));
    assert!(seats.choose("bad", None).is_ok(), "the same content is the same seat");
    let (candidate, why) = seats.unused().next().expect("the copy");
    assert!(candidate.path.ends_with("two.so"));
    assert!(matches!(why, SeatError::Duplicate { first } if first.ends_with("one.so")), "{why:?}");

    let mut other = bad_seat().to_vec();
    other.push(0);
    write(&root.path().join("two.so"), &other);
    let seats = Seats::discover(&options(root.path()));
    assert!(matches!(seats.choose("bad", Some("bad-seat-a")), Err(SeatError::SameName { .. })));
    assert!(matches!(seats.choose("bad", None), Err(SeatError::Clash { .. })));
}

#[test]
fn a_hash_pins_the_content() {
    let root = folder();
    let file = root.path().join("one.so");
    write(&file, bad_seat());
    let hash = bloomery_seat_host::library::Library::read(&file).expect("read").sha256().to_string();
    let config = root.path().join("plugins.toml");
    let options = SeatOptions { config: Some(config.clone()), ..options(root.path()) };
    write(&config, format!("[[seat]]\nfile = \"one.so\"\nsha256 = \"{}\"\n", hash.to_uppercase()).as_bytes());
    assert!(chosen(&options).is_ok());
    let mut other = bad_seat().to_vec();
    other.push(0);
    write(&file, &other);
    let why = chosen(&options).expect_err("other content");
    assert!(why.to_string().contains(&hash), "{why}");
    let seats = Seats::discover(&options);
    assert!(matches!(seats.unused().next(), Some((_, SeatError::Hash { .. }))));
}

#[test]
fn a_config_that_cannot_be_read_leaves_no_seat() {
    let root = folder();
    write(&root.path().join("one.so"), bad_seat());
    let config = root.path().join("plugins.toml");
    let options = SeatOptions { config: Some(config.clone()), ..options(root.path()) };
    assert!(matches!(chosen(&options), Err(SeatError::Config { .. })), "missing, though named");
    write(&config, b"disable = [\"bad-seat-a\"]\n");
    let why = chosen(&options).expect_err("unknown key");
    assert!(why.to_string().contains("disable") && why.to_string().contains("plugins.toml"), "{why}");
    let listing = Seats::discover(&options).to_string();
    assert!(listing.starts_with("no seat is used: "), "{listing}");
    write(&config, b"");
    fs::set_permissions(&config, fs::Permissions::from_mode(0o666)).expect("mode");
    assert!(matches!(chosen(&options), Err(SeatError::Untrusted { .. })));
}

#[test]
fn what_others_can_write_is_not_used_unless_allowed() {
    let root = folder();
    let file = root.path().join("one.so");
    write(&file, bad_seat());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("mode");
    let mut options = options(root.path());
    let seats = Seats::discover(&options);
    let (_, why) = seats.unused().next().expect("refused");
    assert!(
        matches!(why, SeatError::Untrusted { .. }) && why.with_hint().contains("--allow-untrusted-seats")
    );
    options.allow_untrusted = true;
    assert!(chosen(&options).is_ok());
}

#[test]
fn a_file_that_is_overwritten_while_in_use_harms_nobody() {
    let root = folder();
    let file = root.path().join("one.so");
    write(&file, bad_seat());
    let config = root.path().join("plugins.toml");
    write(&config, b"[[seat]]\nfile = \"one.so\"\nallow_native = true\n");
    let seats = Seats::discover(&SeatOptions { config: Some(config), ..options(root.path()) });
    let seat = seats.choose("bad", None).expect("found");
    let operators = seat.native().expect("mapped");
    // The same inode, as `cp` writes it.
    write(&file, &vec![0xff; bad_seat().len()]);
    assert!(seat.declare(&with_table(mode("answer"))).is_ok(), "the probe runs the private copy");
    let call = bloomery_seat::CpuCall {
        name: "scale".into(),
        version: 1,
        attributes: [("by".to_string(), 3.0)].into(),
        rows: 1,
    };
    let mut output = [0.0; 2];
    operators.call(&call, &[&[1.0, 2.0]], &mut output).expect("so does the mapped one");
    assert_eq!(output, [3.0, 6.0]);
    assert!(seat.native().is_ok(), "and again");
}

#[test]
fn own_operators_need_permission_and_fail_for_the_request_only() {
    let root = folder();
    let file = root.path().join("one.so");
    write(&file, bad_seat());
    let config = root.path().join("plugins.toml");
    let mut options = options(root.path());
    let program = identity_program("").replace(
        r#"]}],
        "outputs""#,
        r#"]},{"op":{"kind":"custom","name":"scale","version":1},"ins":[1],"outs":[{"value":2,"name":"scaled","shape":{"kind":"rows","width":8}}]}],
        "outputs""#,
    );
    assert!(program.contains("scaled"));
    let facts = with_table(answer(&program));
    let seats = Seats::discover(&options);
    let why = seats.choose("bad", None).expect("found").declare(&facts).expect_err("not allowed");
    assert_eq!(why, SeatError::NativeNotAllowed { operators: vec!["scale 1".into()] });
    assert!(why.with_hint().contains("allow_native"));
    assert!(seats.choose("bad", None).expect("found").native().is_err());

    write(&config, b"[[seat]]\nname = \"bad-seat-a\"\nallow_native = true\n");
    options.config = Some(config);
    let seats = Seats::discover(&options);
    let seat = seats.choose("bad", None).expect("found");
    seat.declare(&facts).expect("allowed");
    let operators = seat.native().expect("mapped");
    let mut call =
        bloomery_seat::CpuCall { name: "panic".into(), version: 1, attributes: [].into(), rows: 5 };
    let mut output = [0.0; 4];
    let why = operators.call(&call, &[&[1.0]], &mut output).expect_err("panicked");
    assert!(
        why.to_string().contains("in an operator of 5 rows") && why.to_string().contains("lib.rs"),
        "{why}"
    );
    call.name = "short".into();
    assert!(
        operators.call(&call, &[&[1.0]], &mut output).expect_err("index").to_string().contains("panicked")
    );
    call.name = "nothing".into();
    let why = operators.call(&call, &[&[1.0]], &mut output).expect_err("unknown");
    assert_eq!(why.to_string(), "no operator nothing");
    call.name = "scale".into();
    operators.call(&call, &[&[1.5, 2.5]], &mut output[..2]).expect("works after all that");
    assert_eq!(output[..2], [1.5, 2.5]);
}

#[test]
fn the_listing_says_everything() {
    let root = folder();
    write(&root.path().join("libseat_bad.so"), bad_seat());
    write(&root.path().join("libseat_text.so"), b"text");
    let listing = Seats::discover(&options(root.path())).to_string();
    let expected = format!(
        "seats:\n  bad-seat-a 0.3.0 (MIT): bad, bad2; language 1.0; own operators, not allowed\n      {}/libseat_bad.so (--seats-dir)\n\
         architectures:\n  bad: bad-seat-a\n  bad2: bad-seat-a\n\
         not used:\n  {}/libseat_text.so (--seats-dir): not an ELF file (hint: a seat is a library: crate-type = [\"cdylib\"], target/release/lib*.so)\n",
        root.path().display(),
        root.path().display()
    );
    assert_eq!(listing, expected);
}
