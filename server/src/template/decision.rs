//! Templates of decision requests: the file's own Jinja text, which says where pieces end and which of them the head looks at.

use minijinja::Environment;
use rand::{Rng as _, distr::Alphanumeric};
use serde_json::{Value, json};

use super::{Clock, TemplateError, environment, message_of};
use crate::error::ApiError;

/// A template of decision requests, ready to render.
#[derive(Debug)]
pub struct DecisionTemplate {
    environment: Environment<'static>,
}

/// A piece of the prompt: tokenised by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Whose text it is.
    pub part: Part,
    /// The text.
    pub text: String,
}

/// What a piece is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The template's words.
    Frame,
    /// The state of the request.
    State,
    /// The instructions of a question, which begins with it.
    Question,
    /// An option of the latest question.
    Option,
}

impl DecisionTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// The text does not parse.
    pub fn new(source: &str, clock: Clock) -> Result<Self, TemplateError> {
        Ok(Self { environment: environment(source, clock)? })
    }

    /// The pieces of a request, none of them empty. `questions` are objects with `id`, `type`, `instructions` and `options`, a list of
    /// objects with `key` and `description`.
    ///
    /// # Errors
    /// The template fails.
    pub fn render(&self, state: &str, questions: &[Value]) -> Result<Vec<Piece>, ApiError> {
        // Nobody's text can hold what is drawn now.
        let nonce: String = rand::rng().sample_iter(Alphanumeric).take(16).map(char::from).collect();
        let mark = |kind: char| format!("\u{1}{nonce}{kind}");
        let (separator, of_state, of_question, of_option) = (mark('|'), mark('s'), mark('q'), mark('o'));
        let context = json!({
            "sep": separator,
            "mark_question": of_question,
            "mark_option": of_option,
            "state": format!("{of_state}{state}"),
            "questions": questions,
            "images": [],
        });
        let template = self.environment.get_template("chat");
        let text = template
            .and_then(|template| template.render(minijinja::Value::from_serialize(context)))
            .map_err(|error| {
            ApiError::Invalid(format!("the decision template fails: {}", message_of(&error)))
        })?;
        let marks = [(&of_state, Part::State), (&of_question, Part::Question), (&of_option, Part::Option)];
        let piece = |text: &str| {
            let marked =
                marks.iter().find_map(|(mark, part)| Some((text.strip_prefix(mark.as_str())?, *part)));
            let (text, part) = marked.unwrap_or((text, Part::Frame));
            Piece { part, text: text.to_owned() }
        };
        Ok(text.split(separator.as_str()).map(piece).filter(|piece| !piece.text.is_empty()).collect())
    }
}
