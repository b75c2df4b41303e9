//! The builder: every operator has a method, names follow the field, and what does not fit fails by name.

use bloomery_seat::prelude::*;
use bloomery_seat::program::{Meta, TensorFacts};
use std::collections::BTreeSet;

fn with_tensors(tensors: &[(&str, &[u64])]) -> ModelFacts {
    let mut facts = ModelFacts { arch: "test".into(), ..ModelFacts::default() };
    for (name, dims) in tensors {
        facts.tensors.insert((*name).into(), TensorFacts { dims: dims.to_vec(), dtype: "F32".into() });
    }
    facts
}

/// The names of every operator, as the language's own reader lists them.
fn operators() -> BTreeSet<String> {
    let error = serde_json::from_str::<Op>(r#"{"kind":"?"}"#).expect_err("no operator").to_string();
    let (_, list) = error.split_once("expected one of ").expect("a list");
    list.split('`').skip(1).step_by(2).map(String::from).collect()
}

const VOCAB: u64 = 16;

fn facts_of_everything() -> ModelFacts {
    with_tensors(&[
        ("token_embd.weight", &[8, VOCAB]),
        ("ngram.weight", &[4, 20]),
        ("norm.weight", &[8]),
        ("norm.bias", &[8]),
        ("square.weight", &[8, 8]),
        ("square.bias", &[8]),
        ("grouped.weight", &[4, 4, 2]),
        ("scales", &[8]),
        ("conv.weight", &[4, 8]),
        ("a", &[2]),
        ("dt.bias", &[2]),
        ("hc_fn.weight", &[16, 8]),
        ("hc_scale.weight", &[3]),
        ("hc_base.weight", &[8]),
        ("head_fn.weight", &[16, 2]),
        ("head_scale.weight", &[1]),
        ("head_base.weight", &[2]),
        ("streams_norm.weight", &[16]),
        ("low_down.weight", &[16, 4]),
        ("low_up.weight", &[4, 16]),
        ("low_inject.weight", &[16, 2]),
        ("key_norm.weight", &[16]),
        ("router.weight", &[8, 4]),
        ("router_bias.bias", &[4]),
        ("router_table", &[2, VOCAB]),
        ("ffn_gate_exps.weight", &[8, 6, 4]),
        ("ffn_up_exps.weight", &[8, 6, 4]),
        ("ffn_down_exps.weight", &[6, 8, 4]),
        ("ffn_down_exps.bias", &[8, 4]),
        ("output.weight", &[8, VOCAB]),
        ("w1.weight", &[4, VOCAB]),
        ("w2.weight", &[4, VOCAB]),
        ("confidence.weight", &[12, 1]),
        ("factors.weight", &[2]),
        ("sinks.weight", &[2]),
        ("ape.weight", &[4, 2]),
        ("half.weight", &[8, 4]),
    ])
}

fn route(used: u32) -> Route {
    Route {
        experts: 4,
        used,
        score: Score::Softmax,
        groups: None,
        normalize: true,
        sum_floor: 0.0,
        scale: 1.0,
    }
}

/// Calls a method for every operator but the decision head, whose tensors are a model of their own.
fn everything(facts: &ModelFacts) -> Result<Program> {
    let mut program = ProgramBuilder::new("everything", facts);
    let mut g = program.target();
    let rope = bloomery_seat::rope::rope_of(
        &ModelFacts { arch: "t".into(), ..Default::default() },
        4,
        Pairing::Halves,
    )?;
    let tokens = g.tokens();
    let x = g.embed(tokens, "token_embd", 8, 1.0)?;
    let ids = g.last_tokens("ids", 1);
    let ngrams = g.ngram_embed(
        tokens,
        "ngram",
        Op::NgramEmbed {
            max_ngram: 2,
            heads: 2,
            multipliers: vec![3, 5],
            moduli: vec![10, 10],
            offsets: vec![0, 10],
            fill: 0,
            cut: vec![],
            token_map: None,
            state: ids,
        },
    )?;
    g.scope("blk.0");
    let x = g.add(x, ngrams)?;
    let x = g.mul(x, x)?;
    let x = g.rms_norm(x, "/norm", 1e-5)?;
    let x = g.plain_rms_norm(x, 4, 1e-5)?;
    let x = g.layer_norm(x, "/norm", 8, 1e-5)?;
    let x = g.l2_norm(x, 4, 1e-5)?;
    let x = g.gated_rms_norm(x, x, "/norm", 8, 1e-5, Function::Sigmoid)?;
    let x = g.linear(x, "/square", 8)?;
    let x = g.grouped_linear(x, "/grouped", 2)?;
    let x = g.scale(x, 2.0, 0.5)?;
    let x = g.affine(x, Some("/scales"), None)?;
    let x = g.unary(x, Function::Tanh)?;
    let x = g.glu(x, x, Function::Silu)?;
    let x = g.clamped_glu(x, x, Function::Silu, Clamp { gate_max: 10.0, up_abs: 10.0 })?;
    let wide = g.concat(&[x, x])?;
    let x = g.slice(wide, 16, 4, 8)?;

    // Attention, plain and over a selection.
    let q = g.rope_with_factors(x, &rope, "/factors")?;
    let k = g.rope(x, &rope)?;
    let plain = CausalAttention {
        heads: 2,
        kv_heads: 2,
        key: 4,
        value: 4,
        scale: 0.5,
        window: Some(3),
        softcap: Some(30.0),
    };
    let attended = g.causal_attention(q, k, x, &plain)?;
    let recent = g.recent_rows("pooling", 3, 8);
    let pooled = g.linear(x, "/half", 4)?;
    let gate = g.unary(pooled, Function::Sigmoid)?;
    let pooled =
        g.pool(pooled, Some(gate), Some("/ape"), 2, PoolWeights::Softmax { overlap: false }, recent)?;
    let index = g.latent_store("index", 4, 2, None);
    g.append(index, &[pooled])?;
    let scores = g.index_score(q, None, 2, 4, index)?;
    let candidates = g.candidate_blocks(scores, 2, 4)?;
    let best = g.top_rows(scores, Some(candidates), 4, true, true)?;
    let store = g.key_value_store("selected", 8, 8, None);
    g.append(store, &[k, x])?;
    let sparse = Attention {
        heads: 2,
        kv_heads: 2,
        key: 4,
        value: 4,
        scale: 0.5,
        softcap: None,
        block_bidirectional: false,
        sources: vec![Source { state: store, window: None, selected: true }],
    };
    let selected = g.attention(q, &[best], sparse, Some("/sinks"))?;
    let x = g.add(attended, selected)?;

    // Recurrent.
    let memory = g.recent_rows("conv", 3, 8);
    let x = g.causal_conv(x, "/conv", 4, 1, Some(Function::Silu), memory)?;
    let small = g.slice(x, 8, 0, 2)?;
    let block = g.recurrent("delta", &[2, 4, 4]);
    let delta = GatedDelta {
        key_heads: 2,
        value_heads: 2,
        key: 4,
        value: 4,
        decay: Decay::ScalarSoftplus {},
        scale: 0.5,
        l2_eps: Some(1e-6),
        head_map: HeadMap::Tiled,
        state: block,
    };
    let x = g.gated_delta([x, x, x, small, small], "/a", "/dt.bias", delta)?;

    // Streams.
    let h = g.stream_spread(x, 2)?;
    let [pre, post, comb] = g.hyper_mix(h, "/hc", 3, 1e-6, 1e-6)?;
    let y = g.stream_collapse(h, Some(pre))?;
    let h = g.stream_combine(h, y, post, Some(comb))?;
    let (mixed, inject) =
        g.low_rank_mix(h, "/streams_norm", "/low_down", "/low_up", Some("/low_inject"), 1e-6)?;
    let inject = inject.ok_or_else(|| Error::refused("no injection"))?;
    let h = g.stream_combine(h, mixed, inject, None)?;
    let flat = g.reshape(h, 1)?;
    let gate = g.memory_gate(h, flat, "/streams_norm", "/key_norm", 1e-6)?;
    let h2 = g.stream_scale(x, gate)?;
    let back = g.transpose(h2)?;
    let back = g.reshape(back, 2)?;
    let h = g.add(h, back)?;
    let pre = g.hyper_head(h, "/head", 1e-6, 1e-6)?;
    let x = g.stream_collapse(h, Some(pre))?;

    // Experts.
    let logits = g.linear(x, "/router", 4)?;
    let chosen = g.route(logits, Some("/router_bias.bias"), route(2))?;
    let x = g.experts(x, chosen, "/ffn", (4, 2, 6), Function::Silu, None)?;
    let (_, _) = g.route_by_table(logits, tokens, "/router_table", route(2))?;

    // Plain tier.
    let product = g.mat_mul(x, x, 4)?;
    let soft = g.softmax(product, 2)?;
    let means = g.reduce(soft, Reduction::Mean, 2)?;
    let (_, which) = g.top_k(means, 1)?;
    let x = g.gather(x, which, 4)?;
    let x = g.concat(&[x, x])?;
    let x = g.custom("own", 1, [("by".to_string(), 2.0)].into(), &[x], 8)?;

    g.scope("");
    let logits = g.linear(x, "output", VOCAB as u32)?;
    let (logits, sure) = g.markov_chain((logits, x, tokens), "w1", "w2", "confidence", 4)?;
    g.logits(logits);
    g.hidden("last", x);
    g.output(OutputKind::Confidence, "", sure);
    g.finish();
    program.finish()
}

#[test]
fn every_operator_has_a_method() {
    let facts = facts_of_everything();
    let program = everything(&facts).expect("declared");
    let nodes = &program.target().expect("target").nodes;
    let mut used: BTreeSet<String> = nodes.iter().map(|n| n.op.name().to_string()).collect();
    used.insert("decision_head".into());
    assert_eq!(used, operators());
    assert_eq!(program.language, program.required_language());
    let json = serde_json::to_string(&program).expect("JSON");
    assert_eq!(serde_json::from_str::<Program>(&json).expect("read"), program);
}

#[test]
fn names_are_unique_and_say_where_and_what() {
    let program = everything(&facts_of_everything()).expect("declared");
    let names: Vec<&str> = program
        .target()
        .expect("target")
        .nodes
        .iter()
        .flat_map(|n| &n.outs)
        .map(|o| o.name.as_str())
        .collect();
    for expected in [
        "token_embd",
        "l0.token_embd.add",
        "l0.norm",
        "l0.norm.2",
        "l0.kqv_out",
        "l0.kqv_out.2",
        "l0.hc_pre",
        "l0.hc_comb",
        "l0.ffn_moe_topk",
        "l0.ffn_moe_weights_norm",
        "l0.ffn_moe_out",
        "l0.own",
        "output",
        "markov_logits",
    ] {
        assert!(names.contains(&expected), "{expected} is not among {names:?}");
    }
    let states: Vec<&str> = program.states.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(states, ["ids", "l0.kv", "l0.pooling", "l0.index", "l0.selected", "l0.conv", "l0.delta"]);
}

#[test]
fn what_does_not_fit_is_told_with_node_and_tensor() {
    let facts = with_tensors(&[
        ("token_embd.weight", &[8, VOCAB]),
        ("blk.1.attn_k.weight", &[7, 8]),
        ("blk.1.attn_q.weight", &[8, 9]),
        ("blk.1.attn_norm.weight", &[8, 1]),
        ("grouped.weight", &[3, 3]),
    ]);
    let mut program = ProgramBuilder::new("test", &facts);
    let mut g = program.target();
    let tokens = g.tokens();
    let x = g.embed(tokens, "token_embd", 8, 1.0).expect("fits");
    g.scope("blk.1");
    for (result, expected) in [
        (g.linear(x, "attn_k", 8), "tensor `blk.1.attn_k.weight`: expected dimensions [8, 8], found [7, 8]"),
        (g.linear(x, "attn_q", 8), "tensor `blk.1.attn_q.weight`: expected dimensions [8, 8], found [8, 9]"),
        (g.linear(x, "attn_v", 8), "the model has no tensor `blk.1.attn_v.weight`"),
        (
            g.rms_norm(x, "attn_norm", 1e-5),
            "tensor `blk.1.attn_norm.weight`: expected dimensions [8], found [8, 1]",
        ),
        (g.rms_norm(x, "/output_norm", 1e-5), "the model has no tensor `output_norm.weight`"),
        (g.slice(x, 8, 6, 4), "node `l1.token_embd.slice` (slice): slice 6..+4 of groups of 8"),
        (
            g.named("x").grouped_linear(x, "/grouped", 2),
            "node `l1.x` (grouped_linear): weight [3, 3] does not split into 2 groups [weight = grouped.weight]",
        ),
        (g.scale(ValueId(99), 1.0, 0.0), "value 99 does not belong to this graph"),
        (
            g.embed(tokens, "/token_embd", 9, 1.0),
            "tensor `token_embd.weight`: expected dimensions [9, 16], found [8, 16]",
        ),
    ] {
        assert_eq!(result.expect_err(expected).to_string(), expected);
    }
    g.named("same").scale(x, 1.0, 0.0).expect("first");
    let taken = g.named("same").scale(x, 1.0, 0.0).expect_err("second").to_string();
    assert!(taken.contains("another value has this name"), "{taken}");
}

#[test]
fn unread_tensors_are_refused_unless_they_are_set_aside_with_a_reason() {
    let facts = with_tensors(&[
        ("token_embd.weight", &[8, VOCAB]),
        ("rope_freqs.weight", &[2]),
        ("blk.9.extra.weight", &[2]),
    ]);
    let declare = |ignored: &[&str]| {
        let mut program = ProgramBuilder::new("test", &facts);
        let mut g = program.target();
        let tokens = g.tokens();
        let x = g.embed(tokens, "token_embd", 8, 1.0)?;
        let logits = g.linear(x, "token_embd", VOCAB as u32)?;
        g.logits(logits);
        g.finish();
        for tensor in ignored {
            program.ignore(tensor, "a test");
        }
        program.finish()
    };
    let text = declare(&[]).expect_err("unread").to_string();
    assert!(
        text.starts_with(
            "2 of the model's tensors are read by no node: blk.9.extra.weight, rope_freqs.weight;"
        ),
        "{text}"
    );
    assert!(declare(&["rope_freqs.weight"]).is_err());
    let program = declare(&["rope_freqs.weight", "blk.9.extra.weight", "not.there"]).expect("declared");
    assert_eq!(
        program.notes,
        ["tensor rope_freqs.weight is not used: a test", "tensor blk.9.extra.weight is not used: a test"]
    );
}

#[test]
fn drafters_read_hidden_rows_of_the_target() {
    let facts = with_tensors(&[("token_embd.weight", &[8, VOCAB])]);
    let declare = |read: &str| {
        let mut program = ProgramBuilder::new("test", &facts);
        let mut g = program.target();
        let tokens = g.tokens();
        let x = g.embed(tokens, "token_embd", 8, 1.0)?;
        let logits = g.linear(x, "token_embd", VOCAB as u32)?;
        g.hidden("last", x);
        g.logits(logits);
        g.finish();
        let mut g = program.graph(Role::Draft { depth: 1, chain: true, mask_token: None });
        let hidden = g.target_hidden(read, 8);
        let logits = g.linear(hidden, "token_embd", VOCAB as u32)?;
        g.logits(logits);
        g.finish();
        program.finish()
    };
    assert_eq!(declare("last").expect("declared").graphs.len(), 2);
    assert!(declare("first").expect_err("unknown").to_string().contains("no hidden output `first`"));
}

#[test]
fn a_graph_that_is_not_finished_is_not_in_the_program() {
    let facts = ModelFacts { arch: "test".into(), ..ModelFacts::default() };
    let mut program = ProgramBuilder::new("test", &facts);
    program.target().tokens();
    assert!(program.finish().expect_err("no graph").to_string().contains("exactly one target graph"));
}

#[test]
fn facts_of_another_kind_are_no_facts() {
    assert!(bloomery_seat::facts_from_json("{\"arch\":\"x\",\"meta\":{},\"tensors\":{}}").is_ok());
    assert!(
        bloomery_seat::facts_from_json("{\"arch\":\"x\",\"meta\":{},\"tensors\":{},\"more\":1}").is_err()
    );
    let facts = bloomery_seat::facts_from_json(
        "{\"arch\":\"x\",\"meta\":{\"x.a\":1.0,\"x.b\":1,\"x.c\":{\"elided\":5}},\"tensors\":{}}",
    )
    .expect("facts");
    assert_eq!(facts.meta["x.a"], Meta::Float(1.0));
    assert_eq!(facts.meta["x.b"], Meta::Int(1));
    assert_eq!(facts.meta["x.c"], Meta::Elided { elided: 5 });
}
