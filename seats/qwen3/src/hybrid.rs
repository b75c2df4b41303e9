//! Qwen3.5 and 3.6: gated delta net and gated attention in turn, with a next-token block where the file has one.

use bloomery_seat::layers::{HybridTrunk, NEXTN_HIDDEN, NEXTN_ROLE, layers_of};
use bloomery_seat::prelude::*;

pub(crate) fn declare(facts: &ModelFacts) -> Result<Program> {
    let trunk = HybridTrunk::read(facts)?;
    let (layers, draft) = layers_of(facts)?;
    // A file whose next-token block was left out may still count it.
    let drafts = draft > 0 && facts.has_tensor(&format!("blk.{layers}.nextn.eh_proj.weight"));
    let mut program = ProgramBuilder::new("qwen3", facts);
    let mut g = program.target();
    let tokens = g.tokens();
    let x = trunk.declare(&mut g, tokens)?;
    let logits = trunk.head(&mut g, x)?;
    g.logits(logits);
    if drafts {
        g.hidden(NEXTN_HIDDEN, x);
    }
    g.finish();
    if drafts {
        let mut g = program.graph(NEXTN_ROLE);
        trunk.draft(&mut g)?;
        g.finish();
    }
    program.chat(ChatHints {
        tool_format: Some("qwen_xml".into()),
        thinking: Some(("<think>".into(), "</think>".into())),
        ..ChatHints::default()
    });
    program.finish()
}
