//! Small random models: a graph written by hand, weights of any type.

use crate::cpu::{MemoryTensors, WeightSource};
use bloomery_formats::WeightType;
use bloomery_program::graph::{NodeOutput, Output};
use bloomery_program::infer::{Context, infer};
use bloomery_program::op::{Attention, Clamp, Function, Pairing, Rope, Route, Score, Source, Yarn};
use bloomery_program::{
    ChatHints, Graph, Input, InputKind, LANGUAGE, ModelFacts, Node, Op, OutputKind, Part, PartRole, Program,
    Role, Rollback, Shape, State, StateId, StateKind, TensorFacts, ValueId,
};
use bloomery_reference::MemoryWeights;
use std::collections::BTreeMap;

pub const VOCABULARY: u32 = 50;

/// A program with its tensors.
pub struct Model {
    pub program: Program,
    pub facts: ModelFacts,
    pub tensors: MemoryTensors,
}

pub struct Builder {
    graph: Graph,
    states: Vec<State>,
    shapes: BTreeMap<ValueId, Shape>,
    facts: ModelFacts,
    tensors: MemoryTensors,
    seed: u64,
}

pub fn random(seed: &mut u64) -> f32 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 40) as f32 / (1u64 << 24) as f32 - 0.5
}

impl Builder {
    pub fn new(seed: u64) -> Builder {
        let tokens = Input { kind: InputKind::Tokens {}, value: ValueId(0), shape: Shape::Tokens {} };
        Builder {
            shapes: [(ValueId(0), Shape::Tokens {})].into(),
            graph: Graph { role: Role::Target {}, inputs: vec![tokens], nodes: vec![], outputs: vec![] },
            states: vec![],
            facts: ModelFacts { arch: "small".into(), ..ModelFacts::default() },
            tensors: MemoryTensors::default(),
            seed,
        }
    }

    /// An f32 tensor with random values around `center`.
    pub fn tensor(&mut self, name: &str, dims: &[u64], center: f32) -> String {
        let n: u64 = dims.iter().product();
        let scale = 2.0 / (dims[0] as f32).sqrt();
        let values: Vec<f32> = (0..n).map(|_| center + scale * random(&mut self.seed)).collect();
        self.tensors.insert_f32(name, dims, &values);
        self.facts.tensors.insert(name.into(), TensorFacts { dims: dims.to_vec(), dtype: "F32".into() });
        name.into()
    }

    pub fn state(&mut self, key: u32, value: u32) -> StateId {
        let parts =
            vec![Part { width: key, role: PartRole::Key }, Part { width: value, role: PartRole::Value }];
        let kind = StateKind::Rows { parts, every: 1, window: None };
        self.states.push(State {
            name: format!("s{}", self.states.len()),
            kind,
            rollback: Rollback::Truncate,
        });
        StateId(self.states.len() as u32 - 1)
    }

    pub fn node(&mut self, op: Op, ins: &[ValueId], tensors: &[(&str, String)]) -> Vec<ValueId> {
        let shapes: Vec<Shape> = ins.iter().map(|v| self.shapes[v]).collect();
        let facts = tensors.iter().map(|(role, name)| (*role, &self.facts.tensors[name])).collect();
        let outs = infer(&op, &Context { ins: &shapes, tensors: &facts, states: &self.states }).unwrap();
        let mut results = Vec::new();
        for shape in outs {
            let value = ValueId(self.shapes.len() as u32);
            self.shapes.insert(value, shape);
            results.push(NodeOutput { value, name: format!("v{}", value.0), shape });
        }
        let ids = results.iter().map(|o| o.value).collect();
        let tensors = tensors.iter().map(|(role, name)| (role.to_string(), name.clone())).collect();
        self.graph.nodes.push(Node { op, ins: ins.to_vec(), tensors, outs: results, scope: "here".into() });
        ids
    }

    pub fn one(&mut self, op: Op, ins: &[ValueId], tensors: &[(&str, String)]) -> ValueId {
        self.node(op, ins, tensors)[0]
    }

    pub fn linear(&mut self, x: ValueId, out: u64, name: &str, bias: bool) -> ValueId {
        let width = self.shapes[&x].row_len().unwrap();
        let mut tensors = vec![("weight", self.tensor(&format!("{name}.w"), &[width, out], 0.0))];
        if bias {
            tensors.push(("bias", self.tensor(&format!("{name}.b"), &[out], 0.1)));
        }
        self.one(Op::Linear {}, &[x], &tensors)
    }

    pub fn norm(&mut self, x: ValueId, group: u32, weight: Option<u64>, name: &str) -> ValueId {
        let tensors = match weight {
            Some(n) => vec![("weight", self.tensor(&format!("{name}.w"), &[n], 1.0))],
            None => vec![],
        };
        self.one(Op::RmsNorm { eps: 1e-5, group }, &[x], &tensors)
    }

    /// Causal attention over a store of its own, heads of 16 values.
    pub fn attention(&mut self, q: ValueId, k: ValueId, v: ValueId, heads: u32, kv_heads: u32) -> ValueId {
        let state = self.state(16 * kv_heads, 16 * kv_heads);
        self.node(Op::Append { state }, &[k, v], &[]);
        let attention = Attention {
            heads,
            kv_heads,
            key: 16,
            value: 16,
            scale: 0.25,
            softcap: None,
            block_bidirectional: false,
            sources: vec![Source { state, window: None, selected: false }],
        };
        self.one(Op::Attention(attention), &[q], &[])
    }

    pub fn finish(mut self, logits: ValueId, hidden: Option<ValueId>) -> Model {
        let output = |kind, name: &str, value| Output { kind, name: name.into(), value };
        self.graph.outputs.push(output(OutputKind::Logits, "", logits));
        self.graph.outputs.extend(hidden.map(|h| output(OutputKind::Hidden, "hidden", h)));
        let program = Program {
            language: LANGUAGE,
            seat: "small".into(),
            states: self.states,
            graphs: vec![self.graph],
            chat: ChatHints::default(),
            notes: vec![],
        };
        bloomery_program::check(&program, &self.facts).unwrap();
        Model { program, facts: self.facts, tensors: self.tensors }
    }
}

impl Model {
    /// The weights as the naive executor wants them.
    pub fn reference_weights(&self) -> MemoryWeights {
        let mut weights = MemoryWeights::default();
        for (name, facts) in &self.facts.tensors {
            let tensor = self.tensors.find(name).unwrap();
            let values = super::super::weights::floats(&self.tensors, tensor).unwrap();
            weights.insert(name, &facts.dims, values).unwrap();
        }
        weights
    }

    /// The tensors with every matrix of whole 32-blocks turned into Q8_0.
    pub fn quantized(&self) -> MemoryTensors {
        let mut all = MemoryTensors::default();
        for (name, facts) in &self.facts.tensors {
            let tensor = self.tensors.find(name).unwrap();
            let values = super::super::weights::floats(&self.tensors, tensor).unwrap();
            if facts.dims.len() < 2 || !facts.dims[0].is_multiple_of(32) {
                all.insert_f32(name, &facts.dims, &values);
                continue;
            }
            let mut bytes = Vec::new();
            for block in values.chunks_exact(32) {
                let largest = block.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                let scale = bloomery_formats::f32_to_f16(largest / 127.0);
                bytes.extend_from_slice(&scale.to_le_bytes());
                let scale = bloomery_formats::f16_to_f32(scale);
                bytes.extend(block.iter().map(|v| (v / scale).round() as i8 as u8));
            }
            all.insert(name, WeightType::Q8_0, &facts.dims, bytes);
        }
        all
    }
}

/// Number of different kinds of [`model`].
pub const KINDS: u64 = 6;

/// A model of two layers. Every kind uses other operators.
pub fn model(kind: u64) -> Model {
    let mut b = Builder::new(kind + 1);
    let width = 64u64;
    let weight = b.tensor("embedding", &[width, u64::from(VOCABULARY)], 0.0);
    let mut x =
        b.one(Op::Embed { scale: if kind == 1 { 8.0 } else { 1.0 } }, &[ValueId(0)], &[("weight", weight)]);
    for layer in 0..2 {
        let name = |what: &str| format!("l{layer}.{what}");
        let (heads, kv_heads, key, value) =
            [(4, 2, 32, 32), (4, 1, 16, 48), (3, 3, 8, 8), (6, 2, 20, 12), (4, 4, 32, 16), (8, 2, 16, 16)]
                [kind as usize];
        let h = b.norm(x, width as u32, Some(width), &name("attn_norm"));
        let mut q = b.linear(h, heads * key, &name("q"), kind == 2);
        let mut k = b.linear(h, kv_heads * key, &name("k"), kind == 2);
        let v = b.linear(h, kv_heads * value, &name("v"), kind == 2);
        if kind % 2 == 1 {
            q = b.norm(q, key as u32, Some(key), &name("q_norm"));
            k = b.norm(k, key as u32, if kind == 3 { None } else { Some(key) }, &name("k_norm"));
        }
        let rope = Rope {
            head: key as u32,
            dims: if kind == 3 { 8 } else { key as u32 / 2 * 2 },
            offset: if kind == 3 { 4 } else { 0 },
            theta: 10_000.0,
            pairing: if kind == 0 { Pairing::Adjacent } else { Pairing::Halves },
            inverse: false,
            linear_factor: if kind == 1 { 8.0 } else { 1.0 },
            yarn: (kind == 4).then_some(Yarn {
                factor: 4.0,
                original_context: 32,
                beta_fast: 32.0,
                beta_slow: 1.0,
                magnitude: 1.1,
            }),
            sections: None,
            group: 1,
        };
        let factors = if kind == 2 {
            vec![("freq_factors", b.tensor(&name("factors"), &[key / 2], 2.0))]
        } else {
            vec![]
        };
        q = b.one(Op::Rope(rope.clone()), &[q], &factors);
        k = b.one(Op::Rope(rope), &[k], &factors);
        let state = b.state((kv_heads * key) as u32, (kv_heads * value) as u32);
        b.node(Op::Append { state }, &[k, v], &[]);
        let sinks = if kind == 4 { vec![("sinks", b.tensor(&name("sinks"), &[heads], 0.5))] } else { vec![] };
        let attention = Attention {
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            key: key as u32,
            value: value as u32,
            scale: 0.4,
            softcap: (kind == 3).then_some(3.0),
            block_bidirectional: false,
            sources: vec![Source { state, window: (kind == 1 && layer == 0).then_some(9), selected: false }],
        };
        let mut a = b.one(Op::Attention(attention), &[q], &sinks);
        if kind == 5 {
            // An output gate, beside the store.
            let gate = b.linear(h, heads * value, &name("gate"), false);
            let gate = b.one(Op::Unary { function: Function::Sigmoid }, &[gate], &[]);
            a = b.one(Op::Mul {}, &[a, gate], &[]);
        }
        let mut o = b.linear(a, width, &name("o"), kind == 2);
        if kind == 1 {
            o = b.norm(o, width as u32, Some(width), &name("post_norm"));
        }
        x = if layer == 0 { b.one(Op::Add {}, &[x, o], &[]) } else { b.one(Op::Add {}, &[o, x], &[]) };
        let h = b.norm(x, width as u32, Some(width), &name("ffn_norm"));
        let f = feed_forward(&mut b, kind, h, &name);
        x = b.one(Op::Add {}, &[x, f], &[]);
    }
    let hidden = b.norm(x, width as u32, Some(width), "output_norm");
    let mut logits = b.linear(hidden, u64::from(VOCABULARY), "output", false);
    if kind == 3 {
        logits = b.one(Op::Scale { by: 0.5, plus: 0.25 }, &[logits], &[]);
    }
    b.finish(logits, Some(hidden))
}

fn feed_forward(b: &mut Builder, kind: u64, h: ValueId, name: &dyn Fn(&str) -> String) -> ValueId {
    let (width, ff) = (64u64, 96u64);
    let act = if kind == 1 { Function::GeluTanh } else { Function::Silu };
    if kind < 3 {
        let gate = b.linear(h, ff, &name("gate"), kind == 2);
        let up = b.linear(h, ff, &name("up"), false);
        let f = b.one(Op::Glu { act, clamp: None }, &[gate, up], &[]);
        return b.linear(f, width, &name("down"), false);
    }
    let logits = b.linear(h, 8, &name("router"), false);
    let route = Route {
        experts: 8,
        used: 3,
        score: [Score::Softmax, Score::Sigmoid, Score::SoftmaxChosen][kind as usize - 3],
        groups: (kind == 4).then_some(bloomery_program::op::Groups { count: 4, used: 2 }),
        normalize: kind != 5,
        sum_floor: 0.0,
        scale: 1.5,
    };
    let bias = if kind == 4 { vec![("bias", b.tensor(&name("router_bias"), &[8], 0.0))] } else { vec![] };
    let chosen = b.node(Op::Route(route), &[logits], &bias);
    let mut tensors = vec![("down", b.tensor(&name("down"), &[ff, width, 8], 0.0))];
    if kind == 4 {
        tensors.push(("gate_up", b.tensor(&name("gate_up"), &[width, 2 * ff, 8], 0.0)));
    } else {
        tensors.push(("gate", b.tensor(&name("gate"), &[width, ff, 8], 0.0)));
        tensors.push(("up", b.tensor(&name("up"), &[width, ff, 8], 0.0)));
    }
    if kind == 5 {
        tensors.push(("gate_bias", b.tensor(&name("gate_bias"), &[ff, 8], 0.1)));
        tensors.push(("up_bias", b.tensor(&name("up_bias"), &[ff, 8], 0.1)));
        tensors.push(("down_bias", b.tensor(&name("down_bias"), &[width, 8], 0.1)));
    }
    let clamp = (kind == 5).then_some(Clamp { gate_max: 0.7, up_abs: 0.5 });
    let f = b.one(Op::Experts { experts: 8, used: 3, act, clamp }, &[h, chosen[0], chosen[1]], &tensors);
    if kind != 3 {
        return f;
    }
    // A shared expert behind a gate of one value, through the plain operators.
    let both = b.one(Op::Concat {}, &[h, h], &[]);
    let half =
        b.one(Op::Slice { group: 2 * width as u32, start: width as u32, width: width as u32 }, &[both], &[]);
    let scale = b.tensor(&name("affine.scale"), &[16], 1.0);
    let shift = b.tensor(&name("affine.bias"), &[width], 0.0);
    let half = b.one(Op::Affine {}, &[half], &[("scale", scale), ("bias", shift)]);
    let gate = b.linear(half, 1, &name("shared_gate"), false);
    let gate = b.one(Op::Unary { function: Function::Sigmoid }, &[gate], &[]);
    let shared = b.linear(half, width, &name("shared"), false);
    let shared = b.one(Op::Mul {}, &[shared, gate], &[]);
    b.one(Op::Add {}, &[f, shared], &[])
}
