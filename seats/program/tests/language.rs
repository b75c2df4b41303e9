//! The wire form, the checker's messages and the dumps.

mod zoo;

use bloomery_program::op::{Function, Op};
use bloomery_program::{
    Fault, LANGUAGE, ModelFacts, OutputKind, Program, Role, Rollback, Shape, StateKind, ValueId, Version,
    check, dot, text,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use zoo::{operator_names, zoo};

fn faults(program: &Program, facts: &ModelFacts) -> Vec<String> {
    check(program, facts).err().unwrap_or_default().iter().map(ToString::to_string).collect()
}

/// The target's node of this operator.
fn find(program: &Program, op: &str) -> usize {
    program.graphs[0].nodes.iter().position(|n| n.op.name() == op).unwrap()
}

#[test]
fn the_zoo_checks_and_uses_every_operator() {
    let (program, facts) = zoo();
    let summary = check(&program, &facts).unwrap();
    assert!(summary.unread.is_empty());
    assert_eq!(summary.tensors_read, facts.tensors.len());
    assert_eq!(summary.nodes, program.graphs.iter().map(|g| g.nodes.len()).sum::<usize>());
    // Window [4, 4], pool [4] every 2, latent [4], draft [4].
    assert_eq!(summary.state_values_per_token, 8.0 + 2.0 + 4.0 + 4.0);
    // Two ids, one and four recent rows of 8, a block of 2*4*4.
    assert_eq!(summary.state_fixed_bytes, 4 * (2 + 8 + 32 + 32));
    let used: BTreeSet<String> =
        program.graphs.iter().flat_map(|g| &g.nodes).map(|n| n.op.name().to_string()).collect();
    assert_eq!(used, operator_names().into_iter().collect());
}

#[test]
fn every_operator_is_named_as_on_the_wire() {
    for node in zoo().0.graphs.iter().flat_map(|g| &g.nodes) {
        assert_eq!(serde_json::to_value(&node.op).unwrap()["kind"], node.op.name());
    }
}

#[test]
fn operators_page_has_one_section_for_each_operator() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operators.md");
    let page = std::fs::read_to_string(page).unwrap();
    let sections: Vec<&str> = page.lines().filter_map(|l| l.strip_prefix("## ")).collect();
    let names = operator_names();
    for name in &names {
        let count = sections.iter().filter(|s| *s == name).count();
        assert_eq!(count, 1, "docs/operators.md has {count} sections `## {name}`");
    }
    let other: Vec<&&str> = sections.iter().filter(|s| !names.iter().any(|n| n == **s)).collect();
    assert_eq!(other, [&"How to read this page"], "sections without an operator");
}

#[test]
fn a_program_survives_json() {
    let (program, facts) = zoo();
    let text = serde_json::to_string(&program).unwrap();
    assert_eq!(serde_json::from_str::<Program>(&text).unwrap(), program);
    let text = serde_json::to_string(&facts).unwrap();
    assert_eq!(serde_json::from_str::<ModelFacts>(&text).unwrap(), facts);
}

proptest! {
    #[test]
    fn f32_constants_keep_their_bits(bits: u32, dims in proptest::collection::vec(any::<u64>(), 1..4)) {
        let by = f32::from_bits(bits);
        prop_assume!(by.is_finite());
        let text = serde_json::to_string(&Op::Scale { by, plus: by }).unwrap();
        let Op::Scale { by: read, plus } = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
        prop_assert_eq!(read.to_bits(), bits);
        // A zero of either sign is the default and left out.
        prop_assert_eq!(plus.to_bits(), if by == 0.0 { 0 } else { bits });
        // 64-bit integers (hash multipliers) cross unharmed too.
        let text = serde_json::to_string(&dims).unwrap();
        prop_assert_eq!(serde_json::from_str::<Vec<u64>>(&text).unwrap(), dims);
    }
}

#[test]
fn fields_at_their_default_are_left_out() {
    let scale = serde_json::to_value(Op::Scale { by: 2.0, plus: 0.0 }).unwrap();
    assert_eq!(scale, json!({"kind": "scale", "by": 2.0}));
    let rope: Op = serde_json::from_value(
        json!({"kind": "rope", "head": 8, "dims": 8, "theta": 1e4, "pairing": "halves"}),
    )
    .unwrap();
    let Op::Rope(rope) = rope else { panic!("not a rope") };
    assert_eq!((rope.offset, rope.linear_factor, rope.group, rope.inverse), (0, 1.0, 1, false));
}

/// Unknown fields and names are refused wherever they stand, by name.
#[test]
fn unknown_words_are_refused_by_name() {
    let refuse = |change: &dyn Fn(&mut Value), word: &str| {
        let mut json = serde_json::to_value(zoo().0).unwrap();
        change(&mut json);
        let error = serde_json::from_value::<Program>(json).unwrap_err().to_string();
        assert!(error.contains(word), "{word}: {error}");
    };
    refuse(&|p| p["graphs"][0]["nodes"][0]["op"]["kind"] = json!("teleport"), "teleport");
    refuse(&|p| p["graphs"][0]["nodes"][0]["op"]["speed"] = json!(3), "speed");
    refuse(&|p| p["graphs"][0]["nodes"][0]["device"] = json!("gpu"), "device");
    refuse(&|p| p["graphs"][0]["nodes"][0]["outs"][0]["dtype"] = json!("f16"), "dtype");
    refuse(&|p| p["graphs"][0]["role"]["depth"] = json!(1), "depth");
    refuse(&|p| p["graphs"][0]["inputs"][0]["shape"]["rows"] = json!(1), "rows");
    refuse(&|p| p["graphs"][0]["inputs"][0]["kind"]["kind"] = json!("images"), "images");
    refuse(&|p| p["states"][0]["kind"]["count2"] = json!(1), "count2");
    refuse(&|p| p["states"][0]["rollback"] = json!("forget"), "forget");
    refuse(&|p| p["language"]["patch"] = json!(1), "patch");
    refuse(&|p| p["chat"] = json!({"tool_formt": "x"}), "tool_formt");
    refuse(&|p| p["weights"] = json!([]), "weights");
    // Constants in structures of their own, and the tags inside them.
    for (op, field) in [("rope", "thta"), ("attention", "head"), ("gated_delta", "gate"), ("route", "topk")] {
        let index = find(&zoo().0, op);
        refuse(&|p| p["graphs"][0]["nodes"][index]["op"][field] = json!(1), field);
    }
    let pool = find(&zoo().0, "pool");
    refuse(&|p| p["graphs"][0]["nodes"][pool]["op"]["weights"] = json!({"kind": "median"}), "median");
}

#[test]
fn another_language_is_refused_with_what_to_do() {
    let (mut program, facts) = zoo();
    program.seat = "qwen9".into();
    program.language = Version { major: LANGUAGE.major, minor: LANGUAGE.minor + 1 };
    assert_eq!(
        faults(&program, &facts),
        ["seat qwen9 speaks program language 1.1, this host speaks 1.0: update the host"]
    );
    program.language = Version { major: 0, minor: 9 };
    assert!(faults(&program, &facts)[0].ends_with("rebuild the seat"));
    assert_eq!(program.required_language(), Version { major: 1, minor: 0 });
}

/// One mistake each; the message must name the place and the reason, and tell nothing else.
#[test]
fn faults_name_the_node_and_the_reason() {
    let one = |change: &dyn Fn(&mut Program, &mut ModelFacts), parts: &[&str]| {
        let (mut program, mut facts) = zoo();
        change(&mut program, &mut facts);
        let found = faults(&program, &facts);
        assert_eq!(found.len(), 1, "{found:#?}");
        for part in parts {
            assert!(found[0].contains(part), "{part} is not in: {}", found[0]);
        }
    };
    let node = |op: &'static str| move |p: &mut Program| find(p, op);
    // Tensors.
    one(
        &|_, f| f.tensors.get_mut("g0n2.weight").unwrap().dims = vec![15, 8],
        &["target node 2 (g0n2.linear.0) linear", "[15, 8]", "16", "[weight = g0n2.weight]"],
    );
    one(
        &|_, f| drop(f.tensors.remove("g0n2.bias")),
        &["target node 2 (g0n2.linear.0)", "tensor g0n2.bias is not in the model"],
    );
    one(
        &|p, _| drop(p.graphs[0].nodes[2].tensors.remove("weight")),
        &["target node 2", "needs a tensor `weight`"],
    );
    one(&|_, f| drop(f.meta.remove("zoo.token_map")), &["ngram_embed", "no array `zoo.token_map`"]);
    // Constants.
    one(&|p, _| p.graphs[0].nodes[0].op = Op::Embed { scale: f32::NAN }, &["g0n0.embed.0", "scale is NaN"]);
    one(
        &|p, _| {
            let n = node("rms_norm")(p);
            p.graphs[0].nodes[n].op = Op::RmsNorm { eps: 0.0, group: 4 };
        },
        &["rms_norm", "eps is 0", "positive"],
    );
    one(
        &|p, _| {
            let n = node("route")(p);
            let Op::Route(r) = &mut p.graphs[0].nodes[n].op else { panic!("no route") };
            r.used = 9;
        },
        &["route", "9 of 4 experts"],
    );
    // Shapes.
    one(
        &|p, _| {
            let logits = p.graphs[0].nodes.last_mut().unwrap();
            logits.outs[0].shape = Shape::Rows { width: 7 };
        },
        &["target node", "declares [rows, 7], its operands give [rows, 32]"],
    );
    // Values.
    one(
        &|p, _| p.graphs[0].nodes[2].ins[0] = ValueId(4000),
        &["target node 2", "operand 4000 is not defined before use"],
    );
    one(
        &|p, _| {
            let name = p.graphs[0].nodes[0].outs[0].name.clone();
            p.graphs[0].nodes[1].outs[0].name = name;
        },
        &["target node 1", "the name `g0n0.embed.0` is taken"],
    );
    // States.
    one(
        &|p, _| {
            let n = node("causal_conv")(p);
            let Op::CausalConv { state, .. } = &p.graphs[0].nodes[n].op else { panic!("no conv") };
            p.states[state.0 as usize].kind = StateKind::Recent { rows: 3, width: 8 };
        },
        &["causal_conv", "needs a recent state of 4 rows of 8"],
    );
    one(&|p, _| p.states[1].name = "s0".into(), &["state 1 (s0)", "the name is taken"]);
    one(
        &|p, _| {
            let n = node("append")(p);
            let twice = p.graphs[0].nodes[n].clone();
            p.graphs[0].nodes.push(twice);
        },
        &["append", "state 1 is written by two nodes"],
    );
    // Outputs and graphs.
    one(
        &|p, _| {
            let (tokens, output) = (p.graphs[0].inputs[0].value, &mut p.graphs[0].outputs[0]);
            output.value = tokens;
        },
        &["target", "Logits", "[tokens]"],
    );
    one(&|p, _| drop(p.graphs[0].outputs.pop()), &["draft 1", "no hidden output `h`"]);
    one(&|p, _| p.graphs[1].outputs.clear(), &["draft 1", "no output"]);
    one(
        &|p, _| {
            let twice = p.graphs[0].outputs[1].clone();
            p.graphs[0].outputs.push(twice);
        },
        &["target", "two hidden outputs are named `h`"],
    );
    one(
        &|p, _| p.graphs[1].role = Role::Draft { depth: 0, chain: false, mask_token: None },
        &["draft 1", "depth 0"],
    );
    one(&|p, _| p.states[0].rollback = Rollback::Truncate, &["state 0 (s0)", "only rows can be truncated"]);
    one(&|p, _| p.graphs.push(p.graphs[0].clone()), &["exactly one target graph is needed, found 2"]);
}

#[test]
fn a_store_is_appended_to_before_it_is_read() {
    let (mut program, facts) = zoo();
    let nodes = &mut program.graphs[0].nodes;
    let append = nodes.iter().position(|n| n.op.name() == "append").unwrap();
    let node = nodes.remove(append);
    nodes.push(node);
    let found = faults(&program, &facts);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("reads state 1 before the node that appends to it"), "{found:?}");
}

#[test]
fn every_fault_is_told_at_once() {
    let (mut program, mut facts) = zoo();
    facts.tensors.clear();
    program.states[0].kind = StateKind::Tokens { count: 0 };
    let found = check(&program, &facts).unwrap_err();
    let nodes: BTreeSet<usize> = found
        .iter()
        .filter_map(|f| match f {
            Fault::Node { graph, index, .. } if graph == "target" => Some(*index),
            _ => None,
        })
        .collect();
    let with_tensors = program.graphs[0].nodes.iter().filter(|n| !n.tensors.is_empty()).count();
    assert_eq!(nodes.len(), with_tensors, "each node whose tensor is missing, and no other");
    assert!(found.iter().any(|f| matches!(f, Fault::State { index: 0, .. })));
}

/// Compares with a committed file; `UPDATE_SNAPSHOTS=1` writes it anew.
fn snapshot(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "{name} changed; UPDATE_SNAPSHOTS=1 accepts it:\n{found}");
}

#[test]
fn dumps_are_as_before() {
    let (program, _) = zoo();
    snapshot("zoo.txt", &text::text(&program));
    snapshot("zoo.dot", &dot::dot(&program));
    snapshot("zoo.json", &(serde_json::to_string_pretty(&program).unwrap() + "\n"));
}

#[test]
fn hostile_names_stay_inside_their_quotes() {
    let (mut program, _) = zoo();
    program.states[0].name = "a\"]; b [label=\"c\\".into();
    let dump = dot::dot(&program);
    assert!(dump.contains(r#"label="a\"]; b [label=\"c\\""#), "{}", dump.lines().nth(2).unwrap_or_default());
}

#[test]
fn row_local_operators_touch_no_state() {
    for node in zoo().0.graphs.iter().flat_map(|g| &g.nodes).filter(|n| n.op.is_row_local()) {
        assert!(node.op.states().is_empty() && node.op.writes().is_none(), "{}", node.op.name());
    }
    let relu = serde_json::to_value(Function::Relu).unwrap();
    assert_eq!(relu, "relu");
    assert_eq!(serde_json::to_value(OutputKind::Confidence).unwrap(), "confidence");
}
