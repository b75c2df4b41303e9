//! A program that uses every operator once, small enough to read: what the tests of the language and of the reference
//! executor run.

use bloomery_program::infer::{Context, infer};
use bloomery_program::op::{
    Attention, Clamp, Decay, Function, GatedDelta, Groups, HeadMap, Pairing, PoolWeights, Reduction, Rope,
    Route, Score, Source, Yarn,
};
use bloomery_program::{
    Graph, Input, InputKind, LANGUAGE, Meta, ModelFacts, Node, NodeOutput, Op, Output, OutputKind, Part,
    PartRole, Program, Role, Rollback, Shape, State, StateId, StateKind, TensorFacts, ValueId,
};
use std::collections::BTreeMap;

/// Token ids of the zoo's vocabulary.
pub const N_VOCAB: u64 = 32;
const WIDTH: u32 = 8;
const STREAMS: u32 = 2;

struct Zoo {
    facts: ModelFacts,
    states: Vec<State>,
    graphs: Vec<Graph>,
    shapes: Vec<Shape>,
    graph: Graph,
}

impl Zoo {
    fn begin(&mut self, role: Role) {
        self.shapes.clear();
        self.graph = Graph { role, inputs: vec![], nodes: vec![], outputs: vec![] };
    }

    fn end(&mut self) {
        let empty = Graph { role: Role::Target {}, inputs: vec![], nodes: vec![], outputs: vec![] };
        self.graphs.push(std::mem::replace(&mut self.graph, empty));
    }

    fn value(&mut self, shape: Shape) -> ValueId {
        self.shapes.push(shape);
        ValueId(self.shapes.len() as u32 - 1)
    }

    fn input(&mut self, kind: InputKind, shape: Shape) -> ValueId {
        let value = self.value(shape);
        self.graph.inputs.push(Input { kind, value, shape });
        value
    }

    fn output(&mut self, kind: OutputKind, name: &str, value: ValueId) {
        self.graph.outputs.push(Output { kind, name: name.into(), value });
    }

    fn state(&mut self, kind: StateKind) -> StateId {
        let rollback = match kind {
            StateKind::Rows { .. } => Rollback::Truncate,
            _ => Rollback::Snapshot,
        };
        let name = format!("s{}", self.states.len());
        self.states.push(State { name, kind, rollback });
        StateId(self.states.len() as u32 - 1)
    }

    fn store(&mut self, widths: &[u32], every: u32, window: Option<u32>) -> StateId {
        let roles = [PartRole::Key, PartRole::Value];
        let parts = widths.iter().zip(roles).map(|(width, role)| Part { width: *width, role }).collect();
        self.state(StateKind::Rows { parts, every, window })
    }

    /// Adds a node whose tensors get names of their own.
    fn node(&mut self, op: Op, ins: &[ValueId], tensors: &[(&str, &[u64])]) -> Vec<ValueId> {
        let place = format!("g{}n{}", self.graphs.len(), self.graph.nodes.len());
        let mut roles = BTreeMap::new();
        for (role, dims) in tensors {
            let name = format!("{place}.{role}");
            let facts = TensorFacts { dims: dims.to_vec(), dtype: "F32".into() };
            self.facts.tensors.insert(name.clone(), facts);
            roles.insert((*role).to_string(), name);
        }
        let shapes: Vec<Shape> = match op {
            Op::Custom { .. } => vec![Shape::Rows { width: WIDTH }],
            _ => {
                let ins: Vec<Shape> = ins.iter().map(|v| self.shapes[v.0 as usize]).collect();
                let tensors =
                    roles.iter().map(|(role, name)| (role.as_str(), &self.facts.tensors[name])).collect();
                infer(&op, &Context { ins: &ins, tensors: &tensors, states: &self.states })
                    .unwrap_or_else(|e| panic!("{}: {e}", op.name()))
            }
        };
        let outs: Vec<NodeOutput> = shapes
            .iter()
            .enumerate()
            .map(|(i, shape)| NodeOutput {
                value: self.value(*shape),
                name: format!("{place}.{}.{i}", op.name()),
                shape: *shape,
            })
            .collect();
        let values = outs.iter().map(|o| o.value).collect();
        self.graph.nodes.push(Node { op, ins: ins.to_vec(), tensors: roles, outs, scope: "zoo".into() });
        values
    }

    fn one(&mut self, op: Op, ins: &[ValueId], tensors: &[(&str, &[u64])]) -> ValueId {
        self.node(op, ins, tensors)[0]
    }
}

/// The program and the facts it was written for.
pub fn zoo() -> (Program, ModelFacts) {
    let meta = BTreeMap::from([("zoo.token_map".to_string(), Meta::Elided { elided: N_VOCAB })]);
    let facts = ModelFacts { arch: "zoo".into(), meta, tensors: BTreeMap::new() };
    let graph = Graph { role: Role::Target {}, inputs: vec![], nodes: vec![], outputs: vec![] };
    let mut z = Zoo { facts, states: vec![], graphs: vec![], shapes: vec![], graph };
    target(&mut z);
    draft(&mut z);
    decision(&mut z);
    let program = Program {
        language: LANGUAGE,
        seat: "zoo".into(),
        states: z.states,
        graphs: z.graphs,
        chat: Default::default(),
        notes: vec!["every operator once".into()],
    };
    (program, z.facts)
}

fn target(z: &mut Zoo) {
    z.begin(Role::Target {});
    let tokens = z.input(InputKind::Tokens {}, Shape::Tokens {});
    let x = z.one(Op::Embed { scale: 1.5 }, &[tokens], &[("weight", &[8, N_VOCAB])]);
    let ids = z.state(StateKind::Tokens { count: 2 });
    let ngram = Op::NgramEmbed {
        max_ngram: 3,
        heads: 2,
        multipliers: vec![0x9e37_79b9_7f4a_7c15, 5, u64::MAX],
        moduli: vec![5, 7, 5, 7],
        offsets: vec![0, 5, 12, 17],
        fill: 3,
        cut: vec![9],
        token_map: Some("zoo.token_map".into()),
        state: ids,
    };
    let e = z.one(ngram, &[tokens], &[("weight", &[4, 24])]);
    let e = z.one(Op::Linear {}, &[e], &[("weight", &[16, 8]), ("bias", &[8])]);
    let x = z.one(Op::Add {}, &[x, e], &[]);
    let x = plain_row(z, x);
    let x = stores(z, x);
    let x = recurrent(z, x);
    let x = streams(z, x);
    let x = experts(z, x, tokens);
    let x = plain_tier(z, x);
    let attributes = BTreeMap::from([("slope".to_string(), 0.25)]);
    let x = z.one(Op::Custom { name: "zoo.slope".into(), version: 1, attributes }, &[x], &[]);
    let logits = z.one(Op::Linear {}, &[x], &[("weight", &[8, N_VOCAB])]);
    z.output(OutputKind::Logits, "", logits);
    z.output(OutputKind::Hidden, "h", x);
    z.end();
}

fn plain_row(z: &mut Zoo, x: ValueId) -> ValueId {
    let x = z.one(Op::RmsNorm { eps: 1e-6, group: 4 }, &[x], &[("weight", &[4])]);
    let x = z.one(Op::LayerNorm { eps: 1e-5, group: 8 }, &[x], &[("weight", &[8]), ("bias", &[8])]);
    let y = z.one(Op::L2Norm { eps: 1e-6, group: 2 }, &[x], &[]);
    let silu = Function::Silu;
    let x = z.one(Op::GatedRmsNorm { eps: 1e-6, group: 8, function: silu }, &[x, y], &[("weight", &[8])]);
    let x = z.one(Op::GroupedLinear { groups: 2 }, &[x], &[("weight", &[4, 4, 2])]);
    let gate = z.one(Op::Linear {}, &[x], &[("weight", &[8])]);
    let gate = z.one(Op::Unary { function: Function::Sigmoid }, &[gate], &[]);
    let x = z.one(Op::Mul {}, &[x, gate], &[]);
    let x = z.one(Op::Scale { by: 0.5, plus: 0.125 }, &[x], &[]);
    let x = z.one(Op::Affine {}, &[x], &[("scale", &[4]), ("bias", &[8])]);
    let clamp = Some(Clamp { gate_max: 2.0, up_abs: 1.0 });
    let g = z.one(Op::Glu { act: Function::GeluTanh, clamp }, &[x, y], &[]);
    let both = z.one(Op::Concat {}, &[x, g], &[]);
    z.one(Op::Slice { group: 8, start: 2, width: 4 }, &[both], &[])
}

fn rope() -> Rope {
    Rope {
        head: 4,
        dims: 2,
        offset: 2,
        theta: 10_000.0,
        pairing: Pairing::Adjacent,
        inverse: false,
        linear_factor: 2.0,
        yarn: Some(Yarn {
            factor: 4.0,
            original_context: 64,
            beta_fast: 32.0,
            beta_slow: 1.0,
            magnitude: 1.1,
        }),
        sections: Some([1, 0, 0, 0]),
        group: 1,
    }
}

fn attention(sources: Vec<Source>, softcap: Option<f32>, block_bidirectional: bool) -> Op {
    Op::Attention(Attention {
        heads: 2,
        kv_heads: 1,
        key: 4,
        value: 4,
        scale: 0.5,
        softcap,
        block_bidirectional,
        sources,
    })
}

fn stores(z: &mut Zoo, x: ValueId) -> ValueId {
    let q = z.one(Op::Rope(rope()), &[x], &[("freq_factors", &[1])]);
    let k = z.one(Op::Linear {}, &[x], &[("weight", &[8, 4])]);
    let v = z.one(Op::Linear {}, &[x], &[("weight", &[8, 4])]);
    // A window, joined with the best pooled rows.
    let window = z.store(&[4, 4], 1, Some(3));
    z.node(Op::Append { state: window }, &[k, v], &[]);
    let recent = z.state(StateKind::Recent { rows: 1, width: 8 });
    let weights = PoolWeights::Softmax { overlap: false };
    let pooled = z.one(Op::Pool { ratio: 2, weights, state: recent }, &[k, v], &[("position_bias", &[4, 2])]);
    let compressed = z.store(&[4], 2, None);
    z.node(Op::Append { state: compressed }, &[pooled], &[]);
    let w = z.one(Op::Linear {}, &[x], &[("weight", &[8, 2])]);
    let scores = z.one(Op::IndexScore { heads: 2, key: 4, state: compressed }, &[q, w], &[]);
    let blocks = z.one(Op::CandidateBlocks { block: 2, keep: 2 }, &[scores], &[]);
    let rows = z.one(Op::TopRows { top_k: 2, expand: false, tail: false }, &[scores, blocks], &[]);
    let sources = vec![
        Source { state: window, window: Some(3), selected: false },
        Source { state: compressed, window: None, selected: true },
    ];
    // The window's store has two parts and the compressed one serves as both: heads are alike, so they join.
    let o = z.one(attention(sources, Some(20.0), false), &[q, rows], &[("sinks", &[2])]);
    // Tokens of the best pools, with the tail, in a latent store.
    let latent = z.store(&[4], 1, None);
    z.node(Op::Append { state: latent }, &[k], &[]);
    let chosen = z.one(Op::TopRows { top_k: 1, expand: true, tail: true }, &[scores], &[]);
    let sources = vec![Source { state: latent, window: None, selected: true }];
    let p = z.one(attention(sources, None, false), &[q, chosen], &[]);
    z.one(Op::Add {}, &[o, p], &[])
}

fn recurrent(z: &mut Zoo, x: ValueId) -> ValueId {
    let recent = z.state(StateKind::Recent { rows: 4, width: 8 });
    let conv = Op::CausalConv { taps: 3, dilation: 2, function: Some(Function::Silu), state: recent };
    let x = z.one(conv, &[x], &[("weight", &[3, 8]), ("bias", &[8])]);
    let key = z.one(Op::Slice { group: 8, start: 0, width: 4 }, &[x], &[]);
    let beta = z.one(Op::Slice { group: 4, start: 0, width: 1 }, &[x], &[]);
    let beta = z.one(Op::Unary { function: Function::Sigmoid }, &[beta], &[]);
    let state = z.state(StateKind::Recurrent { dims: vec![2, 4, 4] });
    let delta = GatedDelta {
        key_heads: 1,
        value_heads: 2,
        key: 4,
        value: 4,
        decay: Decay::ChannelSigmoid { lower_bound: -5.0 },
        scale: 0.5,
        l2_eps: Some(1e-6),
        head_map: HeadMap::Grouped,
        state,
    };
    z.one(Op::GatedDelta(delta), &[key, key, x, x, beta], &[("a", &[2]), ("dt", &[8])])
}

fn streams(z: &mut Zoo, x: ValueId) -> ValueId {
    let h = z.one(Op::StreamSpread { streams: STREAMS }, &[x], &[]);
    let mix = Op::HyperMix { iterations: 3, eps: 1e-6, norm_eps: 1e-6 };
    let mixed = z.node(mix, &[h], &[("fn", &[16, 8]), ("scale", &[3]), ("base", &[8])]);
    let y = z.one(Op::StreamCollapse {}, &[h, mixed[0]], &[]);
    let h = z.one(Op::StreamCombine {}, &[h, y, mixed[1], mixed[2]], &[]);
    let tensors: [(&str, &[u64]); 4] =
        [("norm", &[16]), ("down", &[16, 4]), ("up", &[4, 16]), ("inject", &[16, 2])];
    let low = z.node(Op::LowRankMix { eps: 1e-6 }, &[h], &tensors);
    let h = z.one(Op::StreamCombine {}, &[h, low[0], low[1]], &[]);
    let key = z.one(Op::Linear {}, &[x], &[("weight", &[8, 16])]);
    let norms: [(&str, &[u64]); 2] = [("query_norm", &[8, 2]), ("key_norm", &[8, 2])];
    let gate = z.one(Op::MemoryGate { eps: 1e-6 }, &[h, key], &norms);
    let memory = z.one(Op::StreamScale {}, &[x, gate], &[]);
    let h = z.one(Op::Add {}, &[h, memory], &[]);
    let head = Op::HyperHead { eps: 1e-6, norm_eps: 1e-6 };
    let pre = z.one(head, &[h], &[("fn", &[16, 2]), ("scale", &[1]), ("base", &[2])]);
    z.one(Op::StreamCollapse {}, &[h, pre], &[])
}

fn experts(z: &mut Zoo, x: ValueId, tokens: ValueId) -> ValueId {
    let logits = z.one(Op::Linear {}, &[x], &[("weight", &[8, 4])]);
    let route = |groups| {
        Op::Route(Route {
            experts: 4,
            used: 2,
            score: Score::Sigmoid,
            groups,
            normalize: true,
            sum_floor: 1e-6,
            scale: 1.5,
        })
    };
    let groups = Some(Groups { count: 2, used: 1 });
    let chosen = z.node(route(groups), &[logits], &[("bias", &[4])]);
    let experts = || Op::Experts { experts: 4, used: 2, act: Function::Silu, clamp: None };
    let tensors: [(&str, &[u64]); 6] = [
        ("gate", &[8, 6, 4]),
        ("up", &[8, 6, 4]),
        ("down", &[6, 8, 4]),
        ("gate_bias", &[6, 4]),
        ("up_bias", &[6, 4]),
        ("down_bias", &[8, 4]),
    ];
    let y = z.one(experts(), &[x, chosen[0], chosen[1]], &tensors);
    let hashed = z.node(route(None), &[logits, tokens], &[("table", &[2, N_VOCAB])]);
    let joined: [(&str, &[u64]); 2] = [("gate_up", &[8, 12, 4]), ("down", &[6, 8, 4])];
    let w = z.one(experts(), &[x, hashed[0], hashed[1]], &joined);
    z.one(Op::Add {}, &[y, w], &[])
}

fn plain_tier(z: &mut Zoo, x: ValueId) -> ValueId {
    let h = z.one(Op::Reshape { streams: 2 }, &[x], &[]);
    let t = z.one(Op::Transpose {}, &[h], &[]);
    let m = z.one(Op::MatMul { k: 2 }, &[t, t], &[]);
    let m = z.one(Op::Softmax { group: 4 }, &[m], &[]);
    // The two rows with the largest maximum.
    let peaks = z.one(Op::Reduce { by: Reduction::Max, group: 4 }, &[m], &[]);
    let best = z.node(Op::TopK { top_k: 2 }, &[peaks], &[]);
    let rows = z.one(Op::Gather { width: 4 }, &[m, best[1]], &[]);
    z.one(Op::Add {}, &[x, rows], &[])
}

fn draft(z: &mut Zoo) {
    z.begin(Role::Draft { depth: 3, chain: false, mask_token: Some(1) });
    let tokens = z.input(InputKind::Tokens {}, Shape::Tokens {});
    let hidden = z.input(
        InputKind::TargetHidden { name: "h".into(), same_position: true },
        Shape::Rows { width: WIDTH },
    );
    let x = z.one(Op::Embed { scale: 1.0 }, &[tokens], &[("weight", &[8, N_VOCAB])]);
    let x = z.one(Op::Add {}, &[x, hidden], &[]);
    let kv = z.one(Op::Slice { group: 8, start: 0, width: 4 }, &[x], &[]);
    let store = z.store(&[4], 1, Some(4));
    z.node(Op::Append { state: store }, &[kv], &[]);
    let sources = vec![Source { state: store, window: Some(4), selected: false }];
    let o = z.one(attention(sources, None, true), &[x], &[]);
    let logits = z.one(Op::Linear {}, &[o], &[("weight", &[8, N_VOCAB])]);
    let tensors: [(&str, &[u64]); 3] =
        [("w1", &[4, N_VOCAB]), ("w2", &[4, N_VOCAB]), ("confidence", &[12, 1])];
    let chained = z.node(Op::MarkovChain { rank: 4 }, &[logits, o, tokens], &tensors);
    z.output(OutputKind::Logits, "", chained[0]);
    z.output(OutputKind::Confidence, "", chained[1]);
    z.end();
}

fn decision(z: &mut Zoo) {
    z.begin(Role::Observe {});
    let tokens = z.input(InputKind::Tokens {}, Shape::Tokens {});
    let spans = z.input(InputKind::Spans {}, Shape::Spans {});
    let x = z.one(Op::Embed { scale: 1.0 }, &[tokens], &[("weight", &[8, N_VOCAB])]);
    let mut tensors: Vec<(String, Vec<u64>)> = vec![
        ("token_types.weight".into(), vec![4, 3]),
        ("scales".into(), vec![3]),
        ("output.weight".into(), vec![8, N_VOCAB]),
    ];
    let mut affine = |name: &str, dims: &[u64], bias: u64| {
        tensors.push((format!("{name}.weight"), dims.to_vec()));
        tensors.push((format!("{name}.bias"), vec![bias]));
    };
    affine("hidden_norm", &[8], 8);
    for name in ["option_summary_norm", "field_norm", "option_norm"] {
        affine(name, &[4], 4);
    }
    affine("scorer", &[16, 4], 4);
    affine("scorer_out", &[4, 1], 1);
    for (block, own) in [(0, "cross_attn_norm_kv"), (1, "attn_norm")] {
        for name in ["cross_attn_norm", "ffn_norm", own] {
            affine(&format!("dec.blk.{block}.{name}"), &[4], 4);
        }
        let attentions: &[&str] = if block == 0 { &["cross_attn"] } else { &["cross_attn", "attn"] };
        for attention in attentions {
            for part in ["q", "k", "v", "o"] {
                affine(&format!("dec.blk.{block}.{attention}_{part}"), &[4, 4], 4);
            }
        }
        affine(&format!("dec.blk.{block}.ffn_up"), &[4, 8], 8);
        affine(&format!("dec.blk.{block}.ffn_down"), &[8, 4], 4);
    }
    for name in ["memory", "question", "option_question", "global", "option_context", "option_lexical"] {
        tensors.push((format!("proj_{name}.weight"), vec![8, 4]));
    }
    let tensors: Vec<(&str, &[u64])> = tensors.iter().map(|(n, d)| (n.as_str(), d.as_slice())).collect();
    let head = Op::DecisionHead { heads: 2, routing_blocks: 1, decoder_blocks: 1, eps: 1e-5 };
    let logits = z.one(head, &[x, tokens, spans], &tensors);
    z.output(OutputKind::Decision, "", logits);
    z.end();
}

/// Every operator of the language, as the reader knows them.
#[allow(dead_code)] // not every test binary asks
pub fn operator_names() -> Vec<String> {
    let refusal = serde_json::from_str::<Op>(r#"{"kind":"?"}"#).unwrap_err().to_string();
    refusal.split('`').skip(3).step_by(2).map(str::to_string).collect()
}
