//! Flags: each one of llama-server's is here or refused by name, and the manual's tables come from the schema.

use crate::support;
use bloomery_serve::flags::{self, BEGIN, END, LLAMA_SERVER, ParseError, Side, Standing};

fn parse(words: &[&str], variables: &[(&str, &str)]) -> Result<flags::Flags, ParseError> {
    flags::parse(words.iter().copied(), &|name| {
        variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    })
}

/// The recorded names of every flag, with the variable.
fn recorded() -> Vec<(Vec<String>, Option<String>)> {
    let text = std::fs::read_to_string(support::data("llama-server/flags.txt")).unwrap();
    text.lines()
        .map(|line| {
            let (names, variable) =
                line.split_once(" | ").map_or((line, None), |(names, env)| (names, Some(env.to_owned())));
            (names.split(' ').map(str::to_owned).collect(), variable)
        })
        .collect()
}

#[test]
fn the_table_has_every_flag_of_llama_server() {
    for (names, variable) in recorded() {
        let row = LLAMA_SERVER
            .iter()
            .find(|row| row.names.contains(&names[0].as_str()))
            .unwrap_or_else(|| panic!("{names:?} is not in the table"));
        let ours: Vec<&str> = row.names.iter().chain(row.negative).copied().collect();
        assert_eq!(ours, names);
        assert_eq!(row.env, variable.as_deref(), "{names:?}");
    }
    assert_eq!(LLAMA_SERVER.len(), recorded().len());
}

#[test]
fn every_flag_is_here_or_refused_in_one_line() {
    let command = flags::command();
    for row in LLAMA_SERVER {
        for name in row.names.iter().chain(row.negative) {
            let mut words = vec![*name];
            words.extend(std::iter::repeat_n("no-such-value", row.arity));
            match row.standing {
                Standing::Here(long) => {
                    let known = matches!(long, "help" | "version")
                        || command.get_arguments().any(|arg| arg.get_long() == Some(long));
                    assert!(known, "{name} leads to --{long}, which the schema lacks");
                    continue;
                }
                Standing::Holds(Side::On) if row.names.contains(name) => continue,
                Standing::Holds(Side::Off) if row.negative.contains(name) => continue,
                _ => {}
            }
            let error = parse(&words, &[]).expect_err(name).to_string();
            assert!(error.contains(name) && error.lines().count() == 1, "{name}: {error}");
        }
    }
}

#[test]
fn every_variable_is_read_or_refused() {
    let command = flags::command();
    for row in LLAMA_SERVER {
        let Some(variable) = row.env else { continue };
        match row.standing {
            Standing::Here(long) => {
                let arg = command.get_arguments().find(|arg| arg.get_long() == Some(long)).unwrap();
                if row.names.contains(&"--draft-max") || row.names.contains(&"--draft-min") {
                    // Older names, whose variables are passed on.
                    let flags = parse(&[], &[(variable, "7")]).unwrap();
                    assert!(
                        [flags.draft.spec_draft_n_max, Some(flags.draft.spec_draft_n_min)].contains(&Some(7))
                    );
                    continue;
                }
                assert_eq!(arg.get_env().and_then(|env| env.to_str()), Some(variable), "--{long}");
            }
            Standing::Holds(side) => {
                let against = if side == Side::On { "false" } else { "true" };
                let error = parse(&[], &[(variable, against)]).unwrap_err().to_string();
                assert!(error.contains(variable), "{error}");
            }
            Standing::HoldsAt(_) | Standing::Later => {
                let error = parse(&[], &[(variable, "no-such-value")]).unwrap_err().to_string();
                assert!(error.contains(variable), "{error}");
            }
        }
    }
}

#[test]
fn values_arrive() {
    let flags = parse(
        &[
            "-m",
            "x.gguf",
            "-c",
            "8192",
            "-np",
            "2",
            "-t",
            "2",
            "-b",
            "512",
            "-ub",
            "64",
            "--port",
            "0",
            "-ctk",
            "q8_0",
            "--temp",
            "0.25",
            "-n",
            "-1",
            "-s",
            "7",
            "--api-key",
            "a,b",
            "--api-key",
            "c",
            "--no-slots",
            "--metrics",
            "--samplers",
            "top_k;temperature",
            "-l",
            "5-2.5",
            "-l",
            "6+1",
            "-r",
            "STOP",
            "--host",
            "127.0.0.1,::1",
            "-c",
            "4096",
        ],
        &[],
    )
    .unwrap();
    assert_eq!(flags.engine.ctx_size, 4096, "the last one wins");
    assert_eq!((flags.engine.parallel, flags.engine.threads, flags.engine.ubatch_size), (2, 2, 64));
    assert_eq!(flags.http.api_key, ["a", "b", "c"]);
    assert_eq!(flags.http.host, ["127.0.0.1", "::1"]);
    assert!(!flags.http.slots && flags.http.metrics);
    let settings = bloomery_serve::settings::ServerSettings::of(&flags).unwrap();
    assert_eq!(settings.sampling.logit_bias, [(5, -2.5), (6, 1.0)]);
    assert_eq!(settings.sampling.samplers.len(), 2);
    assert_eq!(settings.sampling.temperature, 0.25);
    assert_eq!(settings.n_predict, None);
    assert_eq!(settings.stop, ["STOP"]);
    assert_eq!(settings.name, "x.gguf");
}

#[test]
fn values_that_mean_nothing_are_refused() {
    for words in [
        &["--port", "99999"][..],
        &["-c", "many"],
        &["-ctk", "q4_0"],
        &["--backend", "gpu"],
        &["-np", "-2"],
        &["--no-such-flag"],
        &["--timeout", "0"],
    ] {
        assert!(parse(words, &[]).is_err(), "{words:?}");
    }
    for words in [
        &["--samplers", "top_k;magic"][..],
        &["--logit-bias", "word"],
        &["--repeat-penalty", "0"],
        &["--chat-template", "no-such-template"],
        &["--no-jinja", "--chat-template", "{{ messages }}"],
        &["--chat-template-kwargs", "[1]"],
        &["--api-key-file", "/no/such/file"],
        &["--api-prefix", "no-slash"],
    ] {
        let flags = parse(words, &[]).unwrap();
        let error = bloomery_serve::settings::ServerSettings::of(&flags).unwrap_err().to_string();
        assert!(error.contains("--") || error.contains("sampling"), "{words:?}: {error}");
    }
}

#[test]
fn a_file_of_keys_is_read_and_an_empty_one_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let settings = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let flags = parse(&["--api-key-file", path.to_str().unwrap()], &[]).unwrap();
        bloomery_serve::settings::ServerSettings::of(&flags)
    };
    let keys = settings("# comment\n\n one \ntwo\n").unwrap().keys;
    let mut headers = axum::http::HeaderMap::new();
    assert!(!keys.allow(&headers));
    headers.insert("x-api-key", "two".parse().unwrap());
    assert!(keys.allow(&headers));
    headers.insert("x-api-key", "# comment".parse().unwrap());
    assert!(!keys.allow(&headers));
    assert!(settings("# none\n").is_err());
}

#[test]
fn the_manual_shows_the_schema() {
    let path = support::data("../../docs/serving.md");
    let manual = std::fs::read_to_string(&path).unwrap();
    let begin = manual.find(BEGIN).expect("the manual has a generated part");
    let end = manual.find(END).expect("the generated part ends") + END.len();
    assert!(
        manual[begin..end].trim() == flags::flags_section().trim(),
        "docs/serving.md is out of date: put the output of `bloomery-serve docs-flags` in its place"
    );
}

#[test]
fn the_manual_names_every_request_field() {
    use bloomery_serve::request::known::KNOWN;
    let manual = std::fs::read_to_string(support::data("../../docs/serving.md")).unwrap();
    for known in KNOWN {
        assert!(
            manual.contains(&format!("`{}`", known.name)),
            "docs/serving.md does not name the field {}",
            known.name
        );
    }
}
