//! `--backend reference`: the naive executor behind the engine's trait. Slow and plain; what it answers is what the
//! program means.

mod draft;
mod weights;

pub use bloomery_reference::CacheType;
pub use weights::GgufWeights;

use crate::executor::{
    Capacity, Decision, DraftAsk, Executor, ExecutorShape, Question, QuestionKind, Rollback, Row,
    SequenceError, SequenceId, StepError, StepOutput, check_questions,
};
use crate::next_token::{BlockOf, Drafter};
use bloomery_gguf::GgufFile;
use bloomery_program::{ModelFacts, Op, OutputKind, Program, StateKind, ValueId};
use bloomery_reference::ops::decision;
use bloomery_reference::{Reference, ReferenceError, States, Step};
use draft::ReferenceBlock;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Tokens of a page. Nothing is paged here: pages only count what the engine's admission goes by.
const PAGE_TOKENS: usize = 32;

/// Limits of the executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReferenceSettings {
    /// Most rows of one step.
    pub max_rows: usize,
    /// Most tokens of one sequence.
    pub max_tokens: usize,
    /// Tokens of all sequences together.
    pub total_tokens: usize,
    /// Precision of stored keys and values.
    pub cache: CacheType,
    /// Run the program's drafter, where it has one.
    pub draft: bool,
}

/// Runs a program by its definition.
pub struct ReferenceExecutor {
    reference: Reference<GgufWeights>,
    states: States,
    shape: ExecutorShape,
    settings: ReferenceSettings,
    drafter: Option<(BlockOf, Drafter)>,
    next_sequence: u64,
    logits: Vec<f32>,
    hidden: Vec<f32>,
}

impl ReferenceExecutor {
    /// Checks the program against the file's facts and takes the file.
    ///
    /// # Errors
    /// The program does not check, or its target has no logits.
    pub fn new(
        file: Arc<GgufFile>,
        facts: &ModelFacts,
        program: Program,
        settings: ReferenceSettings,
    ) -> Result<Self, ReferenceError> {
        let reference = Reference::new(program, facts, GgufWeights::new(file))?;
        let states = reference.states(settings.cache);
        let program = reference.program();
        let n_vocab = output_width(program, OutputKind::Logits)
            .or_else(|| decision_vocabulary(program, facts))
            .ok_or_else(|| {
                ReferenceError::Step("the target graph has neither logits nor decisions".into())
            })?;
        let rows_only = program.states.iter().all(|s| matches!(s.kind, StateKind::Rows { .. }));
        let text = serde_json::to_vec(program)
            .map_err(|e| ReferenceError::Step(format!("the program cannot be printed: {e}")))?;
        let shape = ExecutorShape {
            n_vocab,
            n_hidden: output_width(program, OutputKind::Hidden).unwrap_or(0),
            max_rows: settings.max_rows,
            max_tokens: settings.max_tokens,
            rollback: if rows_only { Rollback::Truncate } else { Rollback::Checkpoints },
            state_fingerprint: states.fingerprint() ^ xxhash_rust::xxh3::xxh3_64(&text),
        };
        let block = BlockOf::find(program).filter(|_| settings.draft);
        let drafter = block.map(|of| (of.clone(), Drafter::new(of.width)));
        Ok(ReferenceExecutor {
            drafter,
            reference,
            states,
            shape,
            settings,
            next_sequence: 0,
            logits: Vec::new(),
            hidden: Vec::new(),
        })
    }

    fn pages_used(&self) -> usize {
        self.states.sequences().map(|(_, length)| length.div_ceil(PAGE_TOKENS)).sum()
    }

    fn new_id(&mut self) -> SequenceId {
        let id = self.next_sequence;
        self.next_sequence += 1;
        SequenceId(id)
    }

    /// Refuses rows that cannot run, before anything is computed.
    fn admit(&self, rows: &[Row]) -> Result<(), StepError> {
        if rows.len() > self.shape.max_rows {
            return Err(StepError::Malformed(format!("{} rows of {}", rows.len(), self.shape.max_rows)));
        }
        let mut ends: HashMap<SequenceId, usize> = HashMap::new();
        let mut pages = 0;
        let free = self.capacity().pages_free;
        for row in rows {
            let sequence = row.sequence;
            let refuse = |error| Err(StepError::Sequence { sequence, error });
            let expected = match ends.get(&sequence) {
                Some(end) => *end,
                None => self.len(sequence).map_err(|error| StepError::Sequence { sequence, error })?,
            };
            if row.position != expected {
                return refuse(SequenceError::Position { position: row.position, expected });
            }
            if row.token as usize >= self.shape.n_vocab {
                return refuse(SequenceError::Token { token: row.token, n_vocab: self.shape.n_vocab });
            }
            if expected >= self.shape.max_tokens {
                let max_tokens = self.shape.max_tokens;
                return refuse(SequenceError::TooLong { asked: expected + 1, max_tokens });
            }
            if row.wants_hidden && self.shape.n_hidden == 0 {
                return refuse(SequenceError::Failed("the program gives no hidden rows".into()));
            }
            pages += usize::from(expected.is_multiple_of(PAGE_TOKENS));
            if pages > free {
                return refuse(SequenceError::NoRoom { needed: pages - free, free });
            }
            ends.insert(sequence, expected + 1);
        }
        Ok(())
    }
}

/// Width of the target's first output of a kind.
fn output_width(program: &Program, kind: OutputKind) -> Option<usize> {
    let target = program.target()?;
    let value: ValueId = target.outputs.iter().find(|o| o.kind == kind)?.value;
    let made = target.nodes.iter().flat_map(|n| &n.outs).find(|o| o.value == value)?;
    made.shape.row_len().and_then(|n| usize::try_from(n).ok())
}

/// Rows of the token table of a program that gives decisions.
fn decision_vocabulary(program: &Program, facts: &ModelFacts) -> Option<usize> {
    output_width(program, OutputKind::Decision)?;
    let nodes = &program.target()?.nodes;
    let table = nodes.iter().find(|n| matches!(n.op, Op::Embed { .. }))?.tensors.get("weight")?;
    usize::try_from(*facts.tensors.get(table)?.dims.get(1)?).ok()
}

/// What a refusal of the reference executor means to one sequence.
fn of_sequence(error: ReferenceError) -> SequenceError {
    match error {
        ReferenceError::UnknownSequence(id) => SequenceError::Unknown(SequenceId(id)),
        ReferenceError::NotResumable { asked, nearest } => SequenceError::NotResumable { asked, nearest },
        ReferenceError::Position { position, expected, .. } => SequenceError::Position { position, expected },
        ReferenceError::BadState(what) => SequenceError::BadState(what),
        other => SequenceError::Failed(other.to_string()),
    }
}

impl Executor for ReferenceExecutor {
    fn shape(&self) -> &ExecutorShape {
        &self.shape
    }

    fn capacity(&self) -> Capacity {
        let pages_total = self.settings.total_tokens.div_ceil(PAGE_TOKENS);
        let pages_free = pages_total.saturating_sub(self.pages_used());
        Capacity { page_tokens: PAGE_TOKENS, pages_total, pages_free }
    }

    fn pages_to_grow(&self, sequence: SequenceId, n_tokens: usize) -> Result<usize, SequenceError> {
        let length = self.len(sequence)?;
        let grown = length.saturating_add(n_tokens).div_ceil(PAGE_TOKENS);
        Ok(grown - length.div_ceil(PAGE_TOKENS))
    }

    fn create(&mut self) -> Result<SequenceId, SequenceError> {
        let id = self.new_id();
        self.states.create(id.0).map_err(of_sequence)?;
        Ok(id)
    }

    fn drop_sequence(&mut self, sequence: SequenceId) {
        self.states.remove(sequence.0);
        self.drafter.iter_mut().for_each(|(_, drafter)| drafter.forget(sequence));
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, SequenceError> {
        self.states.length(sequence.0).map_err(of_sequence)
    }

    fn resumable(&self, sequence: SequenceId, n: usize) -> Result<usize, SequenceError> {
        self.states.resumable(sequence.0, n).map_err(of_sequence)
    }

    fn truncate(&mut self, sequence: SequenceId, n: usize) -> Result<(), SequenceError> {
        self.states.truncate(sequence.0, n).map_err(of_sequence)?;
        self.drafter.iter_mut().for_each(|(_, drafter)| drafter.cut(sequence, n));
        Ok(())
    }

    fn copy_prefix(&mut self, source: SequenceId, target: SequenceId, n: usize) -> Result<(), SequenceError> {
        if self.len(target)? != 0 {
            return Err(SequenceError::Failed(format!("{target} is not empty")));
        }
        let nearest = self.resumable(source, n)?;
        if nearest != n {
            return Err(SequenceError::NotResumable { asked: n, nearest });
        }
        if source == target {
            return Ok(());
        }
        let (needed, free) = (n.div_ceil(PAGE_TOKENS), self.capacity().pages_free);
        if needed > free {
            return Err(SequenceError::NoRoom { needed: needed - free, free });
        }
        self.states.remove(target.0);
        self.states.copy(source.0, target.0, n).map_err(of_sequence)?;
        self.drafter.iter_mut().for_each(|(_, drafter)| drafter.copy(source, target, n));
        Ok(())
    }

    fn checkpoint(&mut self, sequence: SequenceId) -> Result<(), SequenceError> {
        self.states.snapshot(sequence.0).map_err(of_sequence)
    }

    fn mark(&mut self, sequence: SequenceId) -> Result<(), SequenceError> {
        self.states.mark(sequence.0).map_err(of_sequence)
    }

    fn take_back(&mut self, sequence: SequenceId, n: usize) -> Result<usize, SequenceError> {
        let n = self.states.take_back(sequence.0, n).map_err(of_sequence)?;
        self.drafter.iter_mut().for_each(|(_, drafter)| drafter.cut(sequence, n));
        Ok(n)
    }

    fn save(&self, sequence: SequenceId) -> Result<Vec<u8>, SequenceError> {
        self.states.save(sequence.0).map_err(of_sequence)
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<SequenceId, SequenceError> {
        let id = self.new_id();
        let free = self.capacity().pages_free;
        self.states.restore(id.0, bytes).map_err(of_sequence)?;
        let length = self.len(id)?;
        let max_tokens = self.shape.max_tokens;
        let refusal = if length > max_tokens {
            Some(SequenceError::TooLong { asked: length, max_tokens })
        } else if length.div_ceil(PAGE_TOKENS) > free {
            Some(SequenceError::NoRoom { needed: length.div_ceil(PAGE_TOKENS) - free, free })
        } else {
            None
        };
        match refusal {
            None => Ok(id),
            Some(refusal) => {
                self.states.remove(id.0);
                Err(refusal)
            }
        }
    }

    fn run(&mut self, rows: &[Row]) -> Result<StepOutput<'_>, StepError> {
        self.logits.clear();
        self.hidden.clear();
        if rows.is_empty() {
            return Ok(StepOutput { logits: &self.logits, hidden: &self.hidden });
        }
        self.admit(rows)?;
        let step_rows: Vec<bloomery_reference::Row> = rows
            .iter()
            .map(|r| bloomery_reference::Row { sequence: r.sequence.0, token: r.token, position: r.position })
            .collect();
        let wants_logits: Vec<bool> = rows.iter().map(|r| r.wants_logits).collect();
        let wants_hidden: Vec<bool> = rows.iter().map(|r| r.wants_hidden).collect();
        // A drafter reads every row.
        let needs_hidden = vec![true; rows.len()];
        let step = Step {
            rows: &step_rows,
            logits: Some(&wants_logits),
            hidden: Some(if self.drafter.is_some() { &needs_hidden } else { &wants_hidden }),
            ..Step::default()
        };
        let outputs = match self.reference.forward(&step, &mut self.states, None) {
            Ok(outputs) => outputs,
            // Refused before anything was computed: a restored state may have been made by hand.
            Err(error @ ReferenceError::Position { sequence, .. }) => {
                let sequence = SequenceId(sequence);
                return Err(StepError::Sequence { sequence, error: of_sequence(error) });
            }
            Err(ReferenceError::Step(what)) => return Err(StepError::Malformed(what)),
            Err(other) => return Err(StepError::Executor(other.to_string())),
        };
        if let Some((of, drafter)) = &mut self.drafter
            && let Some(output) = outputs.iter().find(|o| o.kind == OutputKind::Hidden && o.name == of.name)
        {
            for (index, row) in rows.iter().enumerate() {
                drafter.follow(row.sequence, row.position, output.table.row(index));
            }
        }
        for (kind, wanted, buffer) in [
            (OutputKind::Logits, &wants_logits, &mut self.logits),
            (OutputKind::Hidden, &wants_hidden, &mut self.hidden),
        ] {
            let Some(output) = outputs.iter().find(|o| o.kind == kind) else { continue };
            let wanted_rows = wanted.iter().enumerate().filter(|(_, w)| **w).map(|(r, _)| r);
            wanted_rows.for_each(|r| buffer.extend_from_slice(output.table.row(r)));
        }
        Ok(StepOutput { logits: &self.logits, hidden: &self.hidden })
    }

    fn drafts(&self) -> bool {
        self.drafter.is_some()
    }

    fn draft(&mut self, asks: &[DraftAsk<'_>], p_min: f32) -> Result<Vec<Vec<u32>>, SequenceError> {
        let Some((of, drafter)) = &mut self.drafter else { return Ok(vec![Vec::new(); asks.len()]) };
        let mut block = ReferenceBlock { reference: &self.reference, states: &mut self.states, of };
        let drafts = drafter.draft(&mut block, asks, p_min, self.shape.max_rows);
        drafts.map_err(of_sequence)
    }

    fn decides(&self) -> bool {
        output_width(self.reference.program(), OutputKind::Decision).is_some()
    }

    fn decide(&mut self, tokens: &[u32], questions: &[Question]) -> Result<Decision, StepError> {
        if !self.decides() {
            return Err(StepError::Malformed("this model takes no decision requests".into()));
        }
        check_questions(questions, tokens.len())?;
        let sequence = self.new_id();
        let row = |(i, token): (usize, &u32)| bloomery_reference::Row {
            sequence: sequence.0,
            token: *token,
            position: i,
        };
        let rows: Vec<bloomery_reference::Row> = tokens.iter().enumerate().map(row).collect();
        let questions: Vec<decision::Question> = questions.iter().map(question_of).collect();
        let failed = |e: ReferenceError| StepError::Malformed(e.to_string());
        self.states.create(sequence.0).map_err(failed)?;
        let step = Step { rows: &rows, questions: &questions, ..Step::default() };
        let outputs = self.reference.forward(&step, &mut self.states, None);
        self.states.remove(sequence.0);
        let outputs = outputs.map_err(failed)?;
        let decision = outputs.into_iter().find(|o| o.kind == OutputKind::Decision);
        // Head and prompt are one pass here: nobody measures this backend.
        Ok(Decision { logits: decision.map(|o| o.table.data).unwrap_or_default(), head: Duration::ZERO })
    }

    fn reset(&mut self) -> Result<(), StepError> {
        self.states = self.reference.states(self.settings.cache);
        self.drafter.iter_mut().for_each(|(_, drafter)| drafter.clear());
        Ok(())
    }
}

fn question_of(question: &Question) -> decision::Question {
    decision::Question {
        kind: match question.kind {
            QuestionKind::Noul => decision::QuestionKind::Noul,
            QuestionKind::Choice => decision::QuestionKind::Choice,
            QuestionKind::Score => decision::QuestionKind::Score,
        },
        span: question.span.clone(),
        options: question.options.clone(),
    }
}
