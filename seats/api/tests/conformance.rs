//! The conformance checks find what is wrong: each of these seats has one mistake.

use bloomery_seat::conformance::Conformance;
use bloomery_seat::export::Declare;
use bloomery_seat::prelude::*;
use bloomery_seat::program::{Meta, TensorFacts};

fn facts() -> ModelFacts {
    let mut facts = ModelFacts { arch: "small".into(), ..ModelFacts::default() };
    for (key, value) in [("embedding_length", 8), ("block_count", 2)] {
        facts.meta.insert(format!("small.{key}"), Meta::Int(value));
    }
    facts.meta.insert("small.eps".into(), Meta::Float(1e-5));
    facts.meta.insert("tokenizer.ggml.tokens".into(), Meta::Elided { elided: 16 });
    for (name, dims) in [("token_embd", &[8, 16][..]), ("output", &[8, 16]), ("output_norm", &[8])] {
        facts
            .tensors
            .insert(format!("{name}.weight"), TensorFacts { dims: dims.to_vec(), dtype: "F32".into() });
    }
    facts
}

fn good(facts: &ModelFacts) -> Result<Program> {
    let width = facts.count("embedding_length")?;
    facts.count("block_count")?;
    let mut program = ProgramBuilder::new("small", facts);
    let mut g = program.target();
    let tokens = g.tokens();
    let x = g.embed(tokens, "token_embd", width, 1.0)?;
    let x = g.rms_norm(x, "output_norm", facts.float("eps")?)?;
    let logits = g.linear(x, "output", facts.n_vocab()?)?;
    g.logits(logits);
    g.finish();
    program.finish()
}

mod right {
    bloomery_seat::export_seat! { name: "small", architectures: ["small", "other"], declare: super::good }
}

/// Exported once a program, so the faulty ones are tables of their own made from the good one's type.
fn table(declare: Declare) -> bloomery_seat::abi::SeatRef {
    use bloomery_seat::abi::abi_stable::{prefix_type::PrefixTypeTrait, std_types::*};
    use std::cell::Cell;
    thread_local! {
        static DECLARE: Cell<Option<Declare>> = const { Cell::new(None) };
    }
    DECLARE.set(Some(declare));
    extern "C" fn call(request: RSlice<'_, u8>) -> RResult<RVec<u8>, RString> {
        let declare = DECLARE.get().expect("set by the test of this thread");
        let answer = bloomery_seat::export::declare_bytes(request.as_slice(), declare);
        answer.map(RVec::from).map_err(RString::from).into()
    }
    let good = right::bloomery_seat_table();
    bloomery_seat::abi::Seat { info: good.info(), unwinds: true, declare: call, cpu_op: ROption::RNone }
        .leak_into_prefix()
}

fn failures(declare: Declare) -> String {
    Conformance::new(table(declare), facts()).failures().join("\n")
}

#[test]
fn the_good_seat_conforms() {
    let mut case = Conformance::new(right::bloomery_seat_table(), facts());
    case.state_values_per_token = Some(0.0);
    case.state_fixed_bytes = Some(0);
    assert_eq!(case.failures(), Vec::<String>::new());
    assert_eq!(failures(good), "");
}

#[test]
fn wrong_sizes_of_state_are_found() {
    let mut case = Conformance::new(right::bloomery_seat_table(), facts());
    case.state_values_per_token = Some(1.0);
    assert!(case.failures().join("\n").contains("0 values to the state, expected 1"));
}

#[test]
fn another_architecture_is_found() {
    let mut facts = facts();
    facts.arch = "third".into();
    assert!(Conformance::new(right::bloomery_seat_table(), facts).failures()[0].contains("not \"third\""));
}

#[test]
fn a_default_in_place_of_a_refusal_is_found() {
    let found = failures(|facts| {
        let mut facts = facts.clone();
        facts.meta.entry("small.eps".into()).or_insert(Meta::Float(1e-5));
        good(&facts)
    });
    assert_eq!(found, "without key small.eps: accepted");
}

#[test]
fn a_message_that_names_nothing_is_found() {
    let found = failures(|facts| good(facts).map_err(|_| Error::refused("something is missing")));
    assert!(found.contains("without key small.block_count: refused without naming block_count"), "{found}");
    assert!(found.contains("without tensor output.weight: refused without naming output.weight"), "{found}");
}

#[test]
fn a_panic_is_found() {
    let found = failures(|facts| {
        let _ = 100 / facts.int("block_count").unwrap_or(1);
        good(facts)
    });
    assert!(
        found.contains("with key small.block_count = Int(0): the seat panicked: attempt to divide by zero"),
        "{found}"
    );
}

#[test]
fn a_shape_that_is_not_looked_at_is_found() {
    let found = failures(|facts| {
        let mut facts = facts.clone();
        if let Some(table) = facts.tensors.get_mut("output.weight") {
            table.dims = vec![8, 16];
        }
        good(&facts)
    });
    assert!(found.contains("with tensor output.weight of dimensions [9, 16]"), "{found}");
}

#[test]
fn an_ignored_tensor_is_found() {
    let found = failures(|facts| {
        let mut facts = facts.clone();
        facts.tensors.retain(|name, _| !name.contains("not_of_this_architecture"));
        good(&facts)
    });
    assert!(found.contains("with an extra tensor"), "{found}");
}

#[test]
fn a_program_under_another_name_is_found() {
    let found = failures(|facts| good(facts).map(|program| Program { seat: "big".into(), ..program }));
    assert!(found.contains("seat \"small\" signs its program \"big\""), "{found}");
}
