//! What the engine asks of an executor: run rows of several sequences, and keep their state.
//!
//! The engine knows tokens, positions and sequences. How a state is stored, shared, cut back and saved follows from the
//! program's declaration and is the executor's business. Every call comes from one thread.

use std::fmt;
use std::ops::Range;

/// Names one sequence: one text with its state. Never reused within an executor's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {}", self.0)
    }
}

/// One token to run. A step may hold rows of many sequences, and several rows of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Token id, below `ExecutorShape::n_vocab`.
    pub token: u32,
    /// Index in its sequence, from 0.
    pub position: usize,
    /// The sequence whose state it reads and extends.
    pub sequence: SequenceId,
    /// Return the logits after this row.
    pub wants_logits: bool,
    /// Return the last hidden row (the head's input), which drafters and embeddings read.
    pub wants_hidden: bool,
}

/// A wish for a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftAsk<'a> {
    /// Whose.
    pub sequence: SequenceId,
    /// Its tokens and the one that will be run next.
    pub text: &'a [u32],
    /// Most tokens to propose.
    pub n_max: usize,
}

/// Sizes that never change in an executor's life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutorShape {
    /// Width of a row of logits.
    pub n_vocab: usize,
    /// Width of a hidden row; 0 when the executor cannot return them.
    pub n_hidden: usize,
    /// Most rows in one call of [`Executor::run`] (`n_ubatch`).
    pub max_rows: usize,
    /// Most tokens that one sequence may hold.
    pub max_tokens: usize,
    /// How a sequence can go back to an earlier position.
    pub rollback: Rollback,
    /// Identifies program, state layout and storage types: executors with equal fingerprints restore each other's bytes.
    pub state_fingerprint: u64,
}

/// The weakest rollback rule among a program's states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rollback {
    /// Every state is rows per token: any earlier position can be resumed at.
    Truncate,
    /// Some state only knows positions at which [`Executor::checkpoint`] was called, besides 0 and its present length.
    Checkpoints,
}

/// Room for states. A page holds the rows of `page_tokens` tokens and belongs to one or several sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Tokens of a page.
    pub page_tokens: usize,
    /// All pages.
    pub pages_total: usize,
    /// Pages that no sequence holds.
    pub pages_free: usize,
}

/// What a step returns, in buffers that the next step overwrites.
#[derive(Debug, Clone, Copy)]
pub struct StepOutput<'a> {
    /// `[rows that want logits, n_vocab]`, in the order of the rows.
    pub logits: &'a [f32],
    /// `[rows that want hidden rows, n_hidden]`, in the order of the rows.
    pub hidden: &'a [f32],
}

/// A question of a decision request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Its kind.
    pub kind: QuestionKind,
    /// Positions of its instructions in the prompt.
    pub span: Range<usize>,
    /// Positions of each option.
    pub options: Vec<Range<usize>>,
}

/// The answer of [`Executor::decide`].
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// One logit for every option, questions in order.
    pub logits: Vec<f32>,
    /// What the head took, after the prompt.
    pub head: std::time::Duration,
}

/// Kind of a question, numbered as in the model's table of kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuestionKind {
    /// True or false.
    Noul = 0,
    /// Named options.
    Choice = 1,
    /// Ordered levels.
    Score = 2,
}

/// Something is wrong with one sequence or with what was asked of it; the others are untouched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// No such sequence.
    #[error("{0} does not exist")]
    Unknown(SequenceId),
    /// No free page is left.
    #[error(
        "the key-value store is full: {needed} more pages are needed, {free} are free; a larger --ctx-size makes room"
    )]
    NoRoom {
        /// Pages missing for this call.
        needed: usize,
        /// Pages free now.
        free: usize,
    },
    /// More tokens than a sequence may hold.
    #[error("a sequence holds at most {max_tokens} tokens, {asked} were asked for")]
    TooLong {
        /// Tokens asked for.
        asked: usize,
        /// Limit of the executor.
        max_tokens: usize,
    },
    /// A row does not continue its sequence.
    #[error("a row stands at position {position} of a sequence that continues at {expected}")]
    Position {
        /// Position of the row.
        position: usize,
        /// Next position of the sequence.
        expected: usize,
    },
    /// A token id outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {n_vocab}")]
    Token {
        /// The token id.
        token: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// The state cannot be cut at this position.
    #[error("the state cannot resume at position {asked}; the nearest earlier one is {nearest}")]
    NotResumable {
        /// Position asked for.
        asked: usize,
        /// What `resumable` answers.
        nearest: usize,
    },
    /// Saved bytes that this executor cannot take.
    #[error("the saved state is not usable: {0}")]
    BadState(String),
    /// The computation failed for this sequence only.
    #[error("{0}")]
    Failed(String),
}

/// Why a step gave no output.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// Refused before anything was computed: no state has changed. Without this sequence's rows the step may succeed.
    #[error("{error}")]
    Sequence {
        /// The sequence at fault.
        sequence: SequenceId,
        /// What is wrong with it.
        error: SequenceError,
    },
    /// The rows as a whole are too many or otherwise impossible; no state has changed.
    #[error("the step is malformed: {0}")]
    Malformed(String),
    /// The executor failed in the middle: the state of every sequence is lost until [`Executor::reset`].
    #[error("the executor failed: {0}")]
    Executor(String),
}

/// Runs a program over rows of many sequences.
///
/// A new executor holds no sequence. All methods check their arguments and return typed errors; none of them panics on
/// any sequence of calls.
pub trait Executor: Send {
    /// The fixed sizes.
    fn shape(&self) -> &ExecutorShape;

    /// Room for states now.
    fn capacity(&self) -> Capacity;

    /// Free pages that `sequence` would take to grow by `n_tokens` rows, copies of shared pages included.
    ///
    /// # Errors
    /// Unknown sequence.
    fn pages_to_grow(&self, sequence: SequenceId, n_tokens: usize) -> Result<usize, SequenceError>;

    /// Starts an empty sequence. Takes no page.
    ///
    /// # Errors
    /// [`SequenceError::NoRoom`] when fixed per-sequence blocks (recurrent states) have run out.
    fn create(&mut self) -> Result<SequenceId, SequenceError>;

    /// Forgets a sequence and frees what only it held. An unknown one is ignored: dropping twice does no harm.
    fn drop_sequence(&mut self, sequence: SequenceId);

    /// Tokens in the state of a sequence.
    ///
    /// # Errors
    /// Unknown sequence.
    fn len(&self, sequence: SequenceId) -> Result<usize, SequenceError>;

    /// The largest position at most `n` (and at most `len`) at which the sequence can go on. 0 always can.
    ///
    /// # Errors
    /// Unknown sequence.
    fn resumable(&self, sequence: SequenceId, n: usize) -> Result<usize, SequenceError>;

    /// Cuts a sequence back to its first `n` tokens; the next row then stands at position `n`.
    ///
    /// # Errors
    /// [`SequenceError::NotResumable`] unless `resumable(sequence, n) == n`; the state is unchanged then.
    fn truncate(&mut self, sequence: SequenceId, n: usize) -> Result<(), SequenceError>;

    /// Makes `target` equal to the first `n` tokens of `source`, sharing pages where it can. `target` must be empty.
    ///
    /// # Errors
    /// As for `truncate`; [`SequenceError::NoRoom`].
    fn copy_prefix(&mut self, source: SequenceId, target: SequenceId, n: usize) -> Result<(), SequenceError>;

    /// Remembers the present position of a sequence as one at which it can resume. Does nothing under
    /// [`Rollback::Truncate`]. The executor bounds how many it keeps and drops the least useful.
    ///
    /// # Errors
    /// Unknown sequence. Lack of memory is no error: the checkpoint is then not kept.
    fn checkpoint(&mut self, sequence: SequenceId) -> Result<(), SequenceError>;

    /// Remembers the present position of a sequence, beside its checkpoints and until its next mark, for
    /// [`take_back`](Executor::take_back). Needed under [`Rollback::Checkpoints`] only.
    ///
    /// # Errors
    /// Unknown sequence.
    fn mark(&mut self, sequence: SequenceId) -> Result<(), SequenceError> {
        self.len(sequence).map(|_| ())
    }

    /// Takes back the rows at position `n` and behind it, all of which were run since the last mark. Returns where the
    /// sequence stands then: at `n` where its state can be cut there, else at the mark; the tokens between have to be
    /// run again.
    ///
    /// # Errors
    /// Unknown sequence; [`SequenceError::NotResumable`] where neither can be had, the state is unchanged then.
    fn take_back(&mut self, sequence: SequenceId, n: usize) -> Result<usize, SequenceError> {
        self.truncate(sequence, n).map(|()| n)
    }

    /// The state of a sequence, with its checkpoints, as bytes that `restore` of an executor with the same
    /// `state_fingerprint` takes.
    ///
    /// # Errors
    /// Unknown sequence.
    fn save(&self, sequence: SequenceId) -> Result<Vec<u8>, SequenceError>;

    /// Makes a new sequence from saved bytes, which may come from a damaged or hostile file.
    ///
    /// # Errors
    /// [`SequenceError::BadState`], [`SequenceError::NoRoom`]; nothing is kept then.
    fn restore(&mut self, bytes: &[u8]) -> Result<SequenceId, SequenceError>;

    /// Runs rows. Rows of one sequence come in order of position, starting at its length; between them may stand rows
    /// of other sequences. A row's result does not depend on which other rows share the step.
    ///
    /// # Errors
    /// See [`StepError`]: a refusal changes nothing, a failure loses all state.
    fn run(&mut self, rows: &[Row]) -> Result<StepOutput<'_>, StepError>;

    /// The executor runs the program's drafter: [`draft`](Executor::draft) has answers.
    fn drafts(&self) -> bool {
        false
    }

    /// Likely tokens behind each text, at most as many as were asked for and each at least as likely as `p_min`, by the
    /// program's own drafter. The target's states do not change. An answer may be empty; what it depends on is the
    /// executor's business, for it is only ever a guess.
    ///
    /// # Errors
    /// The drafter failed; the target is as it was.
    fn draft(&mut self, asks: &[DraftAsk<'_>], p_min: f32) -> Result<Vec<Vec<u32>>, SequenceError> {
        let _ = p_min;
        Ok(vec![Vec::new(); asks.len()])
    }

    /// The program ends in a decision head: [`decide`](Executor::decide) has answers, and [`run`](Executor::run) has no logits.
    fn decides(&self) -> bool {
        false
    }

    /// Answers a decision request. The prompt runs in a sequence of its own, which is gone afterwards.
    ///
    /// # Errors
    /// As for `run`; [`StepError::Malformed`] too when the model takes no decisions or a span is empty or outside the prompt.
    fn decide(&mut self, _tokens: &[u32], _questions: &[Question]) -> Result<Decision, StepError> {
        Err(StepError::Malformed("this model takes no decision requests".into()))
    }

    /// Drops every sequence and returns to the state of a new executor, also after a failure or a caught panic.
    ///
    /// # Errors
    /// The executor cannot be used any more.
    fn reset(&mut self) -> Result<(), StepError>;
}

/// Checks the spans of a decision request over a prompt of `tokens` tokens.
pub(crate) fn check_questions(questions: &[Question], tokens: usize) -> Result<(), StepError> {
    let malformed = |what: String| Err(StepError::Malformed(what));
    if questions.is_empty() {
        return malformed("a decision request without questions".into());
    }
    for question in questions {
        if question.options.is_empty() {
            return malformed("a question without options".into());
        }
        for span in question.options.iter().chain([&question.span]) {
            if span.is_empty() || span.end > tokens {
                return malformed(format!("span {span:?} of a prompt of {tokens} tokens"));
            }
        }
    }
    Ok(())
}
