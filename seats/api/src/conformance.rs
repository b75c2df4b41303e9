//! What every seat must do, as a test that any seat's author can run: claims and declares through the exported table,
//! and refuses bad models by name, never by panic.
//!
//! ```ignore
//! #[test]
//! fn conforms() {
//!     let facts = bloomery_seat::facts_from_json(include_str!("facts.json")).unwrap();
//!     let mut case = Conformance::new(my_seat::bloomery_seat_table(), facts);
//!     case.optional_keys = &["context_length"];
//!     case.state_values_per_token = Some(64.0);
//!     case.assert();
//! }
//! ```
//!
//! Give facts of a small file (two layers): each key and each tensor is spoilt one at a time. Let them hold
//! `tokenizer.ggml.tokens` (its length is enough: `{"elided": 64}`), so that a wrong vocabulary shows.

use crate::abi::SeatRef;
use crate::info::SeatInfo;
use bloomery_program::{Meta, ModelFacts, Program, check};

/// A seat and the facts of a model that it must accept.
pub struct Conformance<'a> {
    /// The exported table: `my_seat::bloomery_seat_table()`.
    pub table: SeatRef,
    /// Facts of a model that the seat accepts.
    pub facts: ModelFacts,
    /// Keys, without the architecture, that the seat can do without.
    pub optional_keys: &'a [&'a str],
    /// Ends of the names of tensors that the seat can do without: `.bias`, `output.weight`.
    pub optional_tensors: &'a [&'a str],
    /// Values that a token adds to the state, if the author knows.
    pub state_values_per_token: Option<f64>,
    /// Bytes of fixed-size state, if the author knows.
    pub state_fixed_bytes: Option<u64>,
}

impl<'a> Conformance<'a> {
    /// A case in which everything is required.
    pub fn new(table: SeatRef, facts: ModelFacts) -> Self {
        Conformance {
            table,
            facts,
            optional_keys: &[],
            optional_tensors: &[],
            state_values_per_token: None,
            state_fixed_bytes: None,
        }
    }

    /// Runs every check.
    ///
    /// # Panics
    /// Some check failed; all failures are listed.
    pub fn assert(&self) {
        let failures = self.failures();
        assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    }

    /// Runs every check; an empty list means that the seat conforms.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = vec![];
        self.check_table(&mut failures);
        self.check_program(&mut failures);
        if !failures.is_empty() {
            return failures;
        }
        self.check_requests(&mut failures);
        self.check_keys(&mut failures);
        self.check_tensors(&mut failures);
        failures
    }

    fn check_table(&self, failures: &mut Vec<String>) {
        match SeatInfo::parse(self.table.info().as_str()) {
            Err(e) => failures.push(e),
            Ok(info) if !info.architectures.contains(&self.facts.arch) => {
                failures.push(format!("the seat claims {:?}, not {:?}", info.architectures, self.facts.arch));
            }
            Ok(_) => {}
        }
        if !self.table.unwinds() {
            failures.push("built with panic = \"abort\": a panic could not be caught".into());
        }
    }

    fn check_program(&self, failures: &mut Vec<String>) {
        let program = match self.declare(&self.facts) {
            Ok(program) => program,
            Err(e) => return failures.push(format!("the model that it should accept: {e}")),
        };
        if let Ok(info) = SeatInfo::parse(self.table.info().as_str())
            && info.name != program.seat
        {
            failures.push(format!("seat {:?} signs its program {:?}", info.name, program.seat));
        }
        if program.language != program.required_language() {
            failures.push(format!(
                "the program says language {}, {} would do",
                program.language,
                program.required_language()
            ));
        }
        let summary = match check(&program, &self.facts) {
            Ok(summary) => summary,
            Err(faults) => return failures.extend(faults.iter().map(|f| f.to_string())),
        };
        for tensor in &summary.unread {
            if !program.notes.iter().any(|note| note.contains(tensor.as_str())) {
                failures.push(format!("tensor {tensor} is read by no node and no note says why"));
            }
        }
        if let Some(expected) = self.state_values_per_token
            && summary.state_values_per_token != expected
        {
            failures.push(format!(
                "a token adds {} values to the state, expected {expected}",
                summary.state_values_per_token
            ));
        }
        if let Some(expected) = self.state_fixed_bytes
            && summary.state_fixed_bytes != expected
        {
            failures.push(format!("{} bytes of fixed state, expected {expected}", summary.state_fixed_bytes));
        }
    }

    fn check_requests(&self, failures: &mut Vec<String>) {
        for request in [&b""[..], b"{", b"[]", b"{\"arch\":3}", b"\xff\xfe", b"{\"arch\":\"x\",\"later\":1}"]
        {
            match self.call(request) {
                Ok(_) => failures.push(format!("took {:?} for facts", String::from_utf8_lossy(request))),
                Err(e) if panicked(&e) => failures.push(e),
                Err(_) => {}
            }
        }
        let empty = ModelFacts { arch: self.facts.arch.clone(), ..ModelFacts::default() };
        match self.declare(&empty) {
            Ok(_) => failures.push("took a file without keys and tensors".into()),
            Err(e) if panicked(&e) => failures.push(e),
            Err(_) => {}
        }
    }

    fn check_keys(&self, failures: &mut Vec<String>) {
        let prefix = format!("{}.", self.facts.arch);
        for (key, value) in &self.facts.meta {
            let Some(short) = key.strip_prefix(&prefix) else { continue };
            let optional = self.optional_keys.contains(&short);
            let mut facts = self.facts.clone();
            facts.meta.remove(key);
            self.expect(&facts, &format!("without key {key}"), (!optional).then_some(short), failures);
            for bad in [
                Meta::Int(0),
                Meta::Int(-1),
                Meta::Int(i64::from(u32::MAX)),
                Meta::Uint(u64::MAX),
                Meta::Float(1e308),
                Meta::Float(-0.5),
                Meta::Bool(true),
                Meta::List(vec![]),
                Meta::List(vec![value.clone(), Meta::Str("?".into())]),
                Meta::Elided { elided: u64::MAX },
            ] {
                let what = format!("with key {key} = {bad:?}");
                facts.meta.insert(key.clone(), bad);
                self.expect(&facts, &what, None, failures);
            }
            let text = Meta::Str("?".into());
            facts.meta.insert(key.clone(), text);
            self.expect(&facts, &format!("with key {key} = \"?\""), (!optional).then_some(short), failures);
        }
    }

    fn check_tensors(&self, failures: &mut Vec<String>) {
        for (name, tensor) in &self.facts.tensors {
            let optional = self.optional_tensors.iter().any(|end| name.ends_with(end));
            let mut facts = self.facts.clone();
            facts.tensors.remove(name);
            self.expect(&facts, &format!("without tensor {name}"), (!optional).then_some(name), failures);

            let mut shapes = vec![vec![], [tensor.dims.clone(), vec![2]].concat()];
            for i in 0..tensor.dims.len() {
                for new in [tensor.dims[i].wrapping_add(1), 0, u64::MAX] {
                    let mut dims = tensor.dims.clone();
                    dims[i] = new;
                    shapes.push(dims);
                }
            }
            for dims in shapes {
                let what = format!("with tensor {name} of dimensions {dims:?}");
                let mut spoilt = tensor.clone();
                spoilt.dims = dims;
                facts.tensors.insert(name.clone(), spoilt);
                self.expect(&facts, &what, Some(name), failures);
            }
        }
        let mut facts = self.facts.clone();
        let unknown = "blk.0.not_of_this_architecture.weight";
        if let Some(any) = self.facts.tensors.values().next() {
            facts.tensors.insert(unknown.into(), any.clone());
            self.expect(&facts, &format!("with an extra tensor {unknown}"), Some(unknown), failures);
        }
    }

    /// With `named`: must be refused, and the message must hold the name. Without: must be refused or declared soundly.
    fn expect(&self, facts: &ModelFacts, what: &str, named: Option<&str>, failures: &mut Vec<String>) {
        match (self.declare(facts), named) {
            (Err(e), _) if panicked(&e) => failures.push(format!("{what}: {e}")),
            (Err(e), Some(name)) if !e.contains(name) => {
                failures.push(format!("{what}: refused without naming {name}: {e}"));
            }
            (Ok(_), Some(_)) => failures.push(format!("{what}: accepted")),
            (Ok(program), None) => {
                if let Err(faults) = check(&program, facts) {
                    failures.extend(faults.iter().map(|f| format!("{what}: {f}")));
                }
            }
            (Err(_), _) => {}
        }
    }

    fn declare(&self, facts: &ModelFacts) -> Result<Program, String> {
        let request = serde_json::to_vec(facts).map_err(|e| e.to_string())?;
        let answer = self.call(&request)?;
        serde_json::from_slice(&answer).map_err(|e| format!("the answer is no program: {e}"))
    }

    fn call(&self, request: &[u8]) -> Result<Vec<u8>, String> {
        let answer = (self.table.declare())(request.into());
        answer.into_result().map(Into::into).map_err(Into::into)
    }
}

fn panicked(message: &str) -> bool {
    message.starts_with("the seat panicked")
}
