//! Decision requests: typed questions about a state become a prompt with spans.

use std::ops::Range;

use bloomery_runtime::{
    executor::{Question, QuestionKind},
    request::Decide,
};
use bloomery_tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use super::fields::Fields;
use crate::{
    error::ApiError,
    template::{DecisionTemplate, Part, json_text},
};

/// Tokens of a prompt that decision models are trained on; a longer state loses its end.
const MOST_TOKENS: usize = 16_384;

/// A request, ready for the engine, and what its answer is written from.
#[derive(Debug, Clone)]
pub struct Asked {
    /// For the engine.
    pub decide: Decide,
    /// The questions in order.
    pub questions: Vec<Named>,
    /// Tokens that the state lost at its end.
    pub n_truncated: usize,
}

/// A question as the client knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Named {
    /// Its name.
    pub id: String,
    /// Its kind.
    pub kind: QuestionKind,
    /// What is asked.
    pub instructions: String,
    /// Keys and descriptions of its options, in the order of the request.
    pub options: Vec<(String, Value)>,
    /// For each option its place in the prompt.
    pub places: Vec<usize>,
}

/// Reads a body and makes its prompt. `n_ctx` is what a sequence can hold.
///
/// # Errors
/// A field that is missing, wrong or unknown; a schema that does not fit.
pub fn asked(
    body: &Map<String, Value>,
    template: &DecisionTemplate,
    tokenizer: &Tokenizer,
    n_ctx: usize,
) -> Result<Asked, ApiError> {
    let fields = Fields(body);
    for media in ["images", "videos"] {
        let given = fields.get(media).and_then(Value::as_array).is_none_or(|list| !list.is_empty());
        if fields.get(media).is_some() && given {
            return Err(ApiError::NotSupported(format!(
                "'{media}' are not supported: this model reads text"
            )));
        }
    }
    known("", body, &["model", "state", "questions", "images", "videos"])?;
    let state = body.get("state").ok_or_else(|| ApiError::field("state", "is missing"))?;
    let questions = fields.object("questions")?.ok_or_else(|| ApiError::field("questions", "is missing"))?;
    if questions.is_empty() {
        return Err(ApiError::field("questions", "must hold at least one question"));
    }
    let questions: Vec<Named> = questions.iter().map(|(id, q)| question(id, q)).collect::<Result<_, _>>()?;
    let list: Vec<Value> = questions.iter().map(Named::for_template).collect();
    let state = state.as_str().map_or_else(|| canonical(state), str::to_owned);
    let pieces = template.render(&state, &list)?;
    let mut prompt = Prompt::default();
    for piece in pieces {
        // Control tokens are the template's alone: nobody's text may end the turn.
        prompt.add(piece.part, &tokenizer.encode(&piece.text, false, piece.part == Part::Frame));
    }
    let n_truncated = prompt.shorten(n_ctx.min(MOST_TOKENS))?;
    prompt.ask(questions, n_truncated)
}

impl Named {
    /// What the template reads of it; its options in the order of the prompt.
    fn for_template(&self) -> Value {
        let mut options = vec![Value::Null; self.options.len()];
        for ((key, description), place) in self.options.iter().zip(&self.places) {
            options[*place] = json!({"key": key, "description": description});
        }
        let kind = match self.kind {
            QuestionKind::Noul => "noul",
            QuestionKind::Choice => "choice",
            QuestionKind::Score => "score",
        };
        json!({"id": self.id, "type": kind, "instructions": self.instructions, "options": options})
    }
}

/// JSON as the models were trained on: sorted keys and no spaces.
fn canonical(value: &Value) -> String {
    let style = json_text::Style {
        item: ",".to_owned(),
        key: ":".to_owned(),
        sorted: true,
        ..json_text::Style::default()
    };
    json_text::text(value, &style)
}

fn known(of: &str, body: &Map<String, Value>, names: &[&str]) -> Result<(), ApiError> {
    match body.keys().find(|key| !names.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => Err(ApiError::field(&format!("{of}{key}"), "is not a field of decision requests")),
    }
}

fn question(id: &str, value: &Value) -> Result<Named, ApiError> {
    let name = |field: &str| format!("questions.{id}{field}");
    let body = value.as_object().ok_or_else(|| ApiError::field(&name(""), "must be an object"))?;
    known(&name("."), body, &["type", "instructions", "criteria"])?;
    let criteria = body.get("criteria").filter(|criteria| !criteria.is_null());
    let wrong = |what: &str| ApiError::field(&name(".criteria"), what);
    let (kind, options) = match body.get("type").and_then(Value::as_str) {
        Some("noul") => {
            let own = match criteria {
                None => &Map::new(),
                Some(criteria) => criteria.as_object().ok_or_else(|| wrong("must be an object"))?,
            };
            known(&name(".criteria."), own, &["true", "false"])?;
            let option = |key: &str| (key.to_owned(), own.get(key).cloned().unwrap_or(Value::Null));
            (QuestionKind::Noul, vec![option("true"), option("false")])
        }
        Some("choice") => {
            let own =
                criteria.and_then(Value::as_object).ok_or_else(|| wrong("must be an object of options"))?;
            (QuestionKind::Choice, own.iter().map(|(key, text)| (key.clone(), text.clone())).collect())
        }
        Some("score") => {
            let own =
                criteria.and_then(Value::as_array).ok_or_else(|| wrong("must be an array of levels"))?;
            let option = |(level, text): (usize, &Value)| (level.to_string(), text.clone());
            (QuestionKind::Score, own.iter().enumerate().map(option).collect())
        }
        _ => return Err(ApiError::field(&name(".type"), "must be \"noul\", \"choice\" or \"score\"")),
    };
    if options.len() < 2 {
        return Err(wrong("must hold at least two options"));
    }
    let mut order: Vec<usize> = (0..options.len()).collect();
    if kind == QuestionKind::Choice {
        // Models are trained with named options in the order of their names.
        order.sort_by_key(|&option| &options[option].0);
    }
    let mut places = vec![0; options.len()];
    order.into_iter().enumerate().for_each(|(place, option)| places[option] = place);
    let instructions = match body.get("instructions") {
        None | Some(Value::Null) => id.to_owned(),
        Some(Value::String(text)) if text.is_empty() => id.to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => canonical(other),
    };
    Ok(Named { id: id.to_owned(), kind, instructions, options, places })
}

/// A prompt in the making.
#[derive(Debug, Default)]
struct Prompt {
    tokens: Vec<u32>,
    state: Range<usize>,
    /// For each question its own span and those of its options.
    spans: Vec<(Range<usize>, Vec<Range<usize>>)>,
}

impl Prompt {
    fn add(&mut self, part: Part, tokens: &[u32]) {
        let span = self.tokens.len()..self.tokens.len() + tokens.len();
        self.tokens.extend_from_slice(tokens);
        match (part, self.spans.last_mut()) {
            (Part::State, _) => self.state = span,
            (Part::Question, _) => self.spans.push((span, Vec::new())),
            (Part::Option, Some((_, options))) => options.push(span),
            (Part::Option | Part::Frame, _) => {}
        }
    }

    /// Cuts the state's end so that all fits; gives how many tokens it lost.
    fn shorten(&mut self, limit: usize) -> Result<usize, ApiError> {
        let over = self.tokens.len().saturating_sub(limit);
        if over > self.state.len() {
            return Err(ApiError::ContextExceeded { n_prompt: self.tokens.len(), n_ctx: limit });
        }
        let cut = self.state.end - over..self.state.end;
        let after = cut.end;
        self.tokens.drain(cut);
        let moved = |span: &mut Range<usize>| {
            if span.start >= after {
                *span = span.start - over..span.end - over;
            }
        };
        for (question, options) in &mut self.spans {
            moved(question);
            options.iter_mut().for_each(moved);
        }
        Ok(over)
    }

    fn ask(self, questions: Vec<Named>, n_truncated: usize) -> Result<Asked, ApiError> {
        let fits = |(named, (_, options)): (&Named, &(Range<usize>, Vec<Range<usize>>))| {
            named.options.len() == options.len()
        };
        if questions.len() != self.spans.len() || !questions.iter().zip(&self.spans).all(fits) {
            let what = "the file's decision template does not mark every question and option";
            return Err(ApiError::NotSupported(what.to_owned()));
        }
        let spans = self.spans.into_iter().zip(&questions);
        let list =
            spans.map(|((span, options), named)| Question { kind: named.kind, span, options }).collect();
        Ok(Asked { decide: Decide { prompt: self.tokens, questions: list }, questions, n_truncated })
    }
}
