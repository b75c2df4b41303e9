//! From llama-server's spellings to ours, before clap sees the words: `-ngl`-like names that clap cannot express, `--no-`
//! names, and the refusals.

use super::llama_server::{LLAMA_SERVER, Row, Side, Standing};

/// A flag or variable that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// A flag of llama-server.
    #[error("{flag}: this flag of llama-server is not there yet")]
    NotThere {
        /// As it was given.
        flag: String,
    },
    /// A flag of llama-server with a value that cannot be honoured.
    #[error("{flag} {value}: only {accepted} can be honoured yet")]
    Value {
        /// As it was given.
        flag: String,
        /// As it was given.
        value: String,
        /// What would do.
        accepted: String,
    },
    /// A variable of llama-server.
    #[error("{variable} is set: this setting of llama-server is not there yet; unset it")]
    Variable {
        /// Its name.
        variable: String,
    },
    /// A flag at the end that needs a value.
    #[error("{flag} needs a value")]
    NoValue {
        /// As it was given.
        flag: String,
    },
}

/// Rewrites words to the schema's long names, and refuses what is not there.
///
/// # Errors
/// The first flag or variable that cannot be honoured.
pub fn normalise(
    words: impl IntoIterator<Item = String>,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<String>, FlagError> {
    let mut out = from_environment(variable)?;
    let mut words = words.into_iter().peekable();
    // A subcommand has its own words.
    if words.peek().is_some_and(|word| !word.starts_with('-')) {
        return Ok(words.collect());
    }
    while let Some(word) = words.next() {
        let (name, attached) = match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name.to_owned(), Some(value.to_owned())),
            _ => (word.clone(), None),
        };
        let Some((row, side)) = find(&name) else {
            out.push(word);
            continue;
        };
        match (row.standing, side) {
            (Standing::Here(long), Side::On) => {
                out.push(match attached {
                    Some(value) => format!("--{long}={value}"),
                    None => format!("--{long}"),
                });
                if row.arity > 0 && !out.last().is_some_and(|last| last.contains('=')) {
                    // The value may itself begin with a dash (a template, a negative number).
                    let value = words.next().ok_or(FlagError::NoValue { flag: name })?;
                    if let Some(last) = out.last_mut() {
                        last.push('=');
                        last.push_str(&value);
                    }
                }
            }
            (Standing::Here(long), Side::Off) => out.push(format!("--{long}=false")),
            (Standing::Holds(holds), side) if holds == side => {}
            (Standing::HoldsAt(accepted), _) => {
                let value = match attached {
                    Some(value) => value,
                    None => words.next().ok_or_else(|| FlagError::NoValue { flag: name.clone() })?,
                };
                if !accepted.contains(&value.as_str()) {
                    return Err(FlagError::Value { flag: name, value, accepted: accepted.join(" or ") });
                }
            }
            _ => return Err(FlagError::NotThere { flag: name }),
        }
    }
    Ok(out)
}

/// The row that a name belongs to, and the side of the switch that it means.
fn find(name: &str) -> Option<(&'static Row, Side)> {
    LLAMA_SERVER.iter().find_map(|row| {
        if row.names.contains(&name) {
            Some((row, Side::On))
        } else if row.negative.contains(&name) {
            Some((row, Side::Off))
        } else {
            None
        }
    })
}

/// Variables that clap does not read: refusals, and `LLAMA_ARG_NO_X` for `--no-x`. Flags come later and win.
fn from_environment(variable: &dyn Fn(&str) -> Option<String>) -> Result<Vec<String>, FlagError> {
    let mut out = Vec::new();
    for row in LLAMA_SERVER {
        let Some(name) = row.env else { continue };
        let value = variable(name);
        let negated = name
            .strip_prefix("LLAMA_ARG_")
            .filter(|_| !row.negative.is_empty())
            .map(|rest| format!("LLAMA_ARG_NO_{rest}"))
            .filter(|name| variable(name).is_some());
        let refused = |name: &str| Err(FlagError::Variable { variable: name.to_owned() });
        match row.standing {
            Standing::Here(long) => {
                if negated.is_some() {
                    out.push(format!("--{long}=false"));
                }
                // The schema reads the variable of a flag's first row; an older name has one of its own.
                let first = LLAMA_SERVER.iter().find(|row| row.standing == Standing::Here(long));
                if let Some(value) = value.filter(|_| first.is_some_and(|first| first.env != row.env)) {
                    out.push(format!("--{long}={value}"));
                }
            }
            Standing::Holds(side) => {
                let on = value.as_deref().map(|value| matches!(value, "1" | "true" | "on" | "enabled"));
                match (on, side) {
                    (Some(true), Side::Off) | (Some(false), Side::On) => return refused(name),
                    _ => {}
                }
                if let (Some(negated), Side::On) = (negated, side) {
                    return refused(&negated);
                }
            }
            Standing::HoldsAt(accepted) => {
                if value.is_some_and(|value| !accepted.contains(&value.as_str())) {
                    return refused(name);
                }
            }
            Standing::Later => {
                if value.is_some() {
                    return refused(name);
                }
                if let Some(negated) = negated {
                    return refused(&negated);
                }
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(words: &[&str], variables: &[(&str, &str)]) -> Result<Vec<String>, FlagError> {
        normalise(words.iter().map(|word| (*word).to_owned()), &|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn short_names_become_long_ones() {
        assert_eq!(
            run(&["-np", "2", "-c", "4096", "--temperature", "0", "-s", "-1", "--backend", "cpu"], &[])
                .unwrap(),
            ["--parallel=2", "--ctx-size=4096", "--temp=0", "--seed=-1", "--backend", "cpu"]
        );
        assert_eq!(run(&["--no-slots"], &[]).unwrap(), ["--slots=false"]);
        assert_eq!(run(&["--chat-template", "{{ a=b }}"], &[]).unwrap(), ["--chat-template={{ a=b }}"]);
    }

    #[test]
    fn what_is_not_there_is_named() {
        assert_eq!(run(&["--lora", "x"], &[]).unwrap_err(), FlagError::NotThere { flag: "--lora".into() });
        assert_eq!(
            run(&["--context-shift"], &[]).unwrap_err(),
            FlagError::NotThere { flag: "--context-shift".into() }
        );
        assert!(matches!(run(&["-fa", "off"], &[]), Err(FlagError::Value { .. })));
        assert_eq!(run(&["-m"], &[]).unwrap_err(), FlagError::NoValue { flag: "-m".into() });
    }

    #[test]
    fn what_holds_anyway_is_accepted() {
        assert!(run(&["--no-context-shift", "-cb", "--no-webui", "-fa", "auto"], &[]).unwrap().is_empty());
    }

    #[test]
    fn variables_are_refused_and_negated() {
        let error = run(&[], &[("LLAMA_ARG_RPC", "host:1")]).unwrap_err();
        assert_eq!(error, FlagError::Variable { variable: "LLAMA_ARG_RPC".into() });
        assert_eq!(run(&[], &[("LLAMA_ARG_NO_JINJA", "1")]).unwrap(), ["--jinja=false"]);
        assert_eq!(run(&[], &[("LLAMA_ARG_DRAFT_MAX", "5")]).unwrap(), ["--spec-draft-n-max=5"]);
        assert!(run(&[], &[("LLAMA_ARG_SPEC_DRAFT_N_MAX", "5")]).unwrap().is_empty(), "the schema's own");
        assert!(run(&[], &[("LLAMA_ARG_CONT_BATCHING", "0")]).is_err());
        assert!(run(&[], &[("LLAMA_ARG_CONT_BATCHING", "1")]).unwrap().is_empty());
    }
}
