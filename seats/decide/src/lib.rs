//! Seat for decision models, `clef`: one pass of a hybrid trunk over a state and typed questions, then a joint head that
//! scores every option of every question. It generates nothing and keeps no state between requests.

#![forbid(unsafe_code)]

use bloomery_seat::layers::HybridTrunk;
use bloomery_seat::prelude::*;
use bloomery_seat::program::InputKind;

/// The program of a file.
///
/// # Errors
/// A key that is missing or out of range, another kind of head, a tensor that is missing, has another shape or is read by
/// nothing: by name.
pub fn declare(facts: &ModelFacts) -> Result<Program> {
    let kind = facts.string("decision.type")?;
    if kind != "clef" {
        return Err(Error::refused(format!(
            "decision.type is {kind:?}; this seat runs the joint head, \"clef\""
        )));
    }
    let op = Op::DecisionHead {
        heads: facts.count("decision.head_count")?,
        routing_blocks: facts.count("decision.routing_block_count")?,
        decoder_blocks: facts.count("decision.block_count")?,
        eps: facts.float("attention.layer_norm_epsilon")?,
    };
    let trunk = HybridTrunk::read(facts)?;
    let mut program = ProgramBuilder::new("decide", facts);
    let mut g = program.target();
    let tokens = g.tokens();
    let x = trunk.declare(&mut g, tokens)?;
    let spans = g.input(InputKind::Spans {}, Shape::Spans {}, "spans");
    let of_head = ["decision.", "dec.blk.", "token_types.", "output.weight"];
    let tensors: Vec<(&str, String)> = facts
        .tensors
        .keys()
        .filter(|name| of_head.iter().any(|prefix| name.starts_with(prefix)))
        .map(|name| (name.strip_prefix("decision.").unwrap_or(name), name.clone()))
        .collect();
    let logits = g.decision_head(x, tokens, spans, &tensors, op)?;
    g.output(OutputKind::Decision, "", logits);
    g.finish();
    program.finish()
}

bloomery_seat::export_seat! { name: "decide", architectures: ["clef"], declare: declare }
