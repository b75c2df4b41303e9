//! A lowered program: a flat list of steps over numbered slots.

use super::operators::decision::DecisionOf;
use super::operators::lookup::LookupWork;
use super::operators::plain::PlainWork;
use super::operators::recurrent::RecurrentWork;
use super::operators::sparse::SparseWork;
use super::operators::streams::StreamWork;
use super::weights::TensorRef;
use bloomery_formats::ActivationKind;
use bloomery_kernels_cpu::experts::ExpertSpec;
use bloomery_kernels_cpu::kv::PartIndex;
use bloomery_kernels_cpu::pointwise::{Function, GateLimits};
use bloomery_kernels_cpu::rope::RopeSpec;
use bloomery_kernels_cpu::route::Score;

/// A buffer: virtual while lowering, then a number within its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Slot(pub usize);

/// What a slot holds for every row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// f32 values.
    Rows { width: usize },
    /// Expert numbers.
    Index { width: usize },
    /// Values in the form that weights multiply.
    Quantized { kind: ActivationKind, width: usize },
}

/// A short vector of weights, as f32.
pub(crate) type Vector = usize;

/// RMS norm.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NormOf {
    pub weight: Option<Vector>,
    pub group: usize,
    pub eps: f32,
}

/// One projection of a job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item {
    pub weight: TensorRef,
    pub bias: Option<Vector>,
    pub residual: Option<Slot>,
    pub out: Slot,
}

/// Heads changed in place before attention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Changed {
    pub slot: Slot,
    pub width: usize,
    pub head: usize,
    pub norm: Option<NormOf>,
    pub rope: Option<usize>,
}

/// Rows for a part of the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Appended {
    pub part: PartIndex,
    pub from: AppendedFrom,
}

/// Where appended rows come from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AppendedFrom {
    Changed(usize),
    Slot(Slot),
}

/// Attention over one store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttendOf {
    pub heads: usize,
    pub kv_heads: usize,
    pub key: usize,
    pub value: usize,
    pub scale: f32,
    pub softcap: Option<f32>,
    pub window: Option<usize>,
    pub sinks: Option<Vector>,
    pub keys: PartIndex,
    pub values: PartIndex,
}

/// The router.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RouteOf {
    pub experts: usize,
    pub used: usize,
    pub score: Score,
    pub groups: Option<(usize, usize)>,
    pub bias: Option<Vector>,
    pub normalize: bool,
    pub sum_floor: f32,
    pub scale: f32,
}

/// Routed experts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpertsOf {
    pub spec: ExpertSpec,
    pub used: usize,
    pub gate: TensorRef,
    pub up: Option<TensorRef>,
    pub down: TensorRef,
    pub gate_bias: Option<Vector>,
    pub up_bias: Option<Vector>,
    pub down_bias: Option<Vector>,
    /// Number of the buffers that it works in.
    pub buffers: usize,
}

/// What a step computes.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    Embed {
        weight: TensorRef,
        scale: f32,
        out: Slot,
    },
    Norm {
        x: Slot,
        width: usize,
        norm: NormOf,
        out: Slot,
        quantized: Vec<Slot>,
    },
    Quantize {
        x: Slot,
        out: Slot,
    },
    Project {
        x: Slot,
        items: Vec<Item>,
    },
    GateUp {
        x: Slot,
        x_up: Slot,
        gate: TensorRef,
        up: TensorRef,
        function: Function,
        limits: Option<GateLimits>,
        out: Slot,
    },
    Prepare {
        changed: Vec<Changed>,
        appended: Vec<Appended>,
    },
    Rotate {
        x: Slot,
        width: usize,
        head: usize,
        rope: usize,
    },
    Attend {
        q: Slot,
        out: Slot,
        of: AttendOf,
    },
    Route {
        logits: Slot,
        of: RouteOf,
        ids: Slot,
        weights: Slot,
    },
    Experts {
        x: Slot,
        x_up: Slot,
        ids: Slot,
        weights: Slot,
        residual: Option<Slot>,
        out: Slot,
        of: ExpertsOf,
    },
    Unary {
        x: Slot,
        width: usize,
        function: Function,
        out: Slot,
    },
    Glu {
        gate: Slot,
        up: Slot,
        width: usize,
        function: Function,
        limits: Option<GateLimits>,
        out: Slot,
    },
    Add {
        a: Slot,
        b: Slot,
        width: usize,
        one: bool,
        out: Slot,
    },
    Mul {
        a: Slot,
        b: Slot,
        width: usize,
        one: bool,
        out: Slot,
    },
    Scale {
        x: Slot,
        width: usize,
        by: f32,
        plus: f32,
        out: Slot,
    },
    Affine {
        x: Slot,
        width: usize,
        scale: Option<Vector>,
        bias: Option<Vector>,
        out: Slot,
    },
    Concat {
        parts: Vec<(Slot, usize)>,
        out: Slot,
    },
    Slice {
        x: Slot,
        width: usize,
        group: usize,
        start: usize,
        take: usize,
        out: Slot,
    },
    Copy {
        x: Slot,
        width: usize,
        out: Slot,
    },
    Streams(StreamWork),
    Sparse(SparseWork),
    Lookup(LookupWork),
    Recurrent(RecurrentWork),
    Plain(PlainWork),
    /// Rows that want results, out of all rows.
    Gather {
        from: Slot,
        width: usize,
        to: Slot,
    },
}

/// A named result: name, place, width, whether it holds integers.
pub(crate) type Shown = (String, Slot, usize, bool);

/// A step, and the node results that stand complete after it (kept only where steps are traced).
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub work: Work,
    /// The node that it ends in, as people name it.
    pub place: String,
    pub shows: Vec<Shown>,
}

/// How a step uses a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
    /// Read and changed in place.
    Change,
}

impl Step {
    /// The node that it ends in.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Every matrix that the step reads.
    pub fn matrices(&self) -> Vec<TensorRef> {
        match &self.work {
            Work::Embed { weight, .. } => vec![*weight],
            Work::Project { items, .. } => items.iter().map(|item| item.weight).collect(),
            Work::GateUp { gate, up, .. } => vec![*gate, *up],
            Work::Experts { of, .. } => [Some(of.gate), of.up, Some(of.down)].into_iter().flatten().collect(),
            Work::Lookup(work) => work.matrix().into_iter().collect(),
            _ => vec![],
        }
    }

    /// Calls `f` with every slot of the step.
    pub fn visit(&mut self, f: &mut impl FnMut(&mut Slot, Use)) {
        use Use::{Change, Read, Write};
        match &mut self.work {
            Work::Embed { out, .. } => f(out, Write),
            Work::Norm { x, out, quantized, .. } => {
                f(x, Read);
                f(out, Write);
                quantized.iter_mut().for_each(|q| f(q, Write));
            }
            Work::Quantize { x, out } | Work::Unary { x, out, .. } | Work::Scale { x, out, .. } => {
                f(x, Read);
                f(out, Write);
            }
            Work::Affine { x, out, .. } | Work::Slice { x, out, .. } | Work::Copy { x, out, .. } => {
                f(x, Read);
                f(out, Write);
            }
            Work::Project { x, items } => {
                f(x, Read);
                for item in items {
                    if let Some(residual) = &mut item.residual {
                        f(residual, Read);
                    }
                    f(&mut item.out, Write);
                }
            }
            Work::GateUp { x, x_up, out, .. } => {
                f(x, Read);
                f(x_up, Read);
                f(out, Write);
            }
            Work::Prepare { changed, appended } => {
                changed.iter_mut().for_each(|c| f(&mut c.slot, Change));
                for append in appended {
                    if let AppendedFrom::Slot(slot) = &mut append.from {
                        f(slot, Read);
                    }
                }
            }
            Work::Rotate { x, .. } => f(x, Change),
            Work::Attend { q, out, .. } => {
                f(q, Read);
                f(out, Write);
            }
            Work::Route { logits, ids, weights, .. } => {
                f(logits, Read);
                f(ids, Write);
                f(weights, Write);
            }
            Work::Experts { x, x_up, ids, weights, residual, out, .. } => {
                for slot in [x, x_up, ids, weights] {
                    f(slot, Read);
                }
                if let Some(residual) = residual {
                    f(residual, Read);
                }
                f(out, Write);
            }
            Work::Glu { gate: a, up: b, out, .. }
            | Work::Add { a, b, out, .. }
            | Work::Mul { a, b, out, .. } => {
                f(a, Read);
                f(b, Read);
                f(out, Write);
            }
            Work::Concat { parts, out } => {
                parts.iter_mut().for_each(|(p, _)| f(p, Read));
                f(out, Write);
            }
            Work::Streams(work) => work.visit(f),
            Work::Sparse(work) => work.visit(f),
            Work::Lookup(work) => work.visit(f),
            Work::Recurrent(work) => work.visit(f),
            Work::Plain(work) => work.visit(f),
            Work::Gather { from, to, .. } => {
                f(from, Read);
                f(to, Write);
            }
        }
        self.shows.iter_mut().for_each(|(_, slot, _, _)| f(slot, Read));
    }
}

/// A rotation, and which rows it is for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RopeOf {
    pub spec: RopeSpec,
    /// The rows that want results rather than all rows.
    pub tail: bool,
}

/// A lowered graph.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lowered {
    /// Steps over all rows, then (from `tail`) over the rows that want results.
    pub steps: Vec<Step>,
    /// First step of the tail; gathers stand right before it.
    pub tail: usize,
    pub slots: Vec<Class>,
    pub vectors: Vec<Vec<f32>>,
    pub ropes: Vec<RopeOf>,
    /// Hidden width and kind of the down matrix of each set of expert buffers, with a matrix that shows it.
    pub expert_buffers: Vec<(ExpertSpec, TensorRef)>,
    pub logits: Option<(Slot, usize)>,
    pub hidden: Option<(Slot, usize)>,
    /// Hidden rows that are filled in before the steps run.
    pub given: Option<(Slot, usize)>,
    /// Hidden rows of all rows, for a drafter.
    pub every_row: Option<(Slot, usize)>,
    /// The head of a decision model, in place of logits.
    pub decision: Option<DecisionOf>,
}
