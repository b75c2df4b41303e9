//! Chat templates: the file's own Jinja text, rendered through minijinja with the functions that published templates use.

mod builtin;
mod capabilities;
mod clock;
mod decision;
mod functions;
pub mod json_text;
mod messages;

use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value};

pub use builtin::{BUILTIN, CHATML, named_or_text};
pub use capabilities::Capabilities;
pub use clock::Clock;
pub use decision::{DecisionTemplate, Part, Piece};
pub use messages::{Continue, content_text};

use crate::error::ApiError;

/// Steps that one rendering may take: far above any chat, far below a hang.
const FUEL: u64 = 50_000_000;

/// A template that cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// It does not parse.
    #[error("the chat template does not parse: {0}")]
    Syntax(String),
    /// No built-in template has this name.
    #[error("no built-in chat template is called {name:?}; there are {known}")]
    Name {
        /// The name.
        name: String,
        /// The names that exist.
        known: String,
    },
}

/// A template, ready to render.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
    strip_bos: bool,
    strip_eos: bool,
    /// It reads tools as a text under the name `functions`, and not as a list.
    wants_functions: bool,
    clock: Clock,
    capabilities: Capabilities,
}

/// What is rendered.
#[derive(Debug, Clone, Default)]
pub struct Chat {
    /// The messages, each an object with a role.
    pub messages: Vec<Value>,
    /// The tools, a list, if the template should see any.
    pub tools: Option<Value>,
    /// Variables for the template.
    pub variables: Map<String, Value>,
    /// The template may open a thought.
    pub enable_thinking: bool,
    /// Open the assistant's answer.
    pub add_generation_prompt: bool,
    /// Go on with the last message.
    pub continue_last: Option<Continue>,
}

/// What came out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The prompt.
    pub prompt: String,
    /// Its end that opens the answer.
    pub generation_prompt: String,
    /// The beginning of the answer that came with the request; the prompt ends with it.
    pub prefill: String,
}

/// An environment with one template, called `chat`, and all that published templates call for.
fn environment(source: &str, clock: Clock) -> Result<Environment<'static>, TemplateError> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    functions::add(&mut environment, clock);
    environment
        .add_template_owned("chat", without_tracking(source))
        .map_err(|error| TemplateError::Syntax(message_of(&error)))?;
    Ok(environment)
}

impl ChatTemplate {
    /// Compiles a template. `strip` says for the begin and the end token whether the tokenizer adds it by itself, so that the
    /// template's own must go.
    ///
    /// # Errors
    /// The text does not parse.
    pub fn new(
        source: &str,
        bos: &str,
        eos: &str,
        strip: (bool, bool),
        clock: Clock,
    ) -> Result<Self, TemplateError> {
        let environment = environment(source, clock)?;
        let names =
            environment.get_template("chat").map(|t| t.undeclared_variables(false)).unwrap_or_default();
        let mut template = Self {
            wants_functions: names.contains("functions") && !names.contains("tools"),
            environment,
            source: source.to_owned(),
            bos: bos.to_owned(),
            eos: eos.to_owned(),
            strip_bos: strip.0,
            strip_eos: strip.1,
            clock,
            // Probing needs a template that touches nothing.
            capabilities: Capabilities::ALL,
        };
        template.capabilities = Capabilities::probe(&template);
        Ok(template)
    }

    /// The template's text.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What the template can do.
    #[must_use]
    pub const fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Renders a chat.
    ///
    /// # Errors
    /// The template refuses the chat (its own words), or fails.
    pub fn render(&self, chat: &Chat) -> Result<Rendered, ApiError> {
        let mut list = messages::adapt(&chat.messages, self.capabilities, &self.source);
        let mut prefill = String::new();
        let mut open = chat.add_generation_prompt;
        if let Some(part) = chat.continue_last
            && let Some(last) = list.pop()
        {
            prefill = messages::continuation(chat.messages.last().unwrap_or(&last), part);
            open = true;
        }
        let shut = self.direct(&list, chat, false)?;
        let mut prompt = if open { self.direct(&list, chat, true)? } else { shut.clone() };
        if open && !chat.enable_thinking && prompt.trim_end().ends_with("<think>") {
            // The template opens a thought whatever it is asked; close it.
            prompt.push_str("</think>");
        }
        let common = prompt.bytes().zip(shut.bytes()).take_while(|(a, b)| a == b).count();
        let mut common = common;
        while !prompt.is_char_boundary(common) {
            common -= 1;
        }
        let generation_prompt = prompt[common..].to_owned() + &prefill;
        prompt.push_str(&prefill);
        let trimmed = if self.strip_bos && !self.bos.is_empty() {
            prompt.strip_prefix(self.bos.as_str())
        } else {
            None
        };
        let mut prompt = trimmed.map_or_else(|| prompt.clone(), str::to_owned);
        if self.strip_eos && !self.eos.is_empty() && prompt.ends_with(&self.eos) {
            prompt.truncate(prompt.len() - self.eos.len());
        }
        Ok(Rendered { prompt, generation_prompt, prefill })
    }

    fn direct(&self, list: &[Value], chat: &Chat, open: bool) -> Result<String, ApiError> {
        let mut context = Map::new();
        let mut put = |key: &str, value: Value| {
            context.insert(key.to_owned(), value);
        };
        put("messages", Value::Array(list.to_vec()));
        put("bos_token", Value::String(self.bos.clone()));
        put("eos_token", Value::String(self.eos.clone()));
        put("enable_thinking", Value::Bool(chat.enable_thinking));
        put("add_generation_prompt", Value::Bool(open));
        if let Some(tools) = &chat.tools {
            put("tools", tools.clone());
        }
        if self.wants_functions {
            let style =
                json_text::Style { indent: Some(2), item: ",".to_owned(), ..json_text::Style::default() };
            let text = chat.tools.as_ref().map(|tools| json_text::text(tools, &style)).unwrap_or_default();
            put("functions", Value::String(text));
        }
        // Some templates take the date from these in place of calling for it.
        if let Ok(date) = self.clock.format("%d %b %Y") {
            put("date_string", Value::String(date));
        }
        if let Ok(date) = self.clock.format("%b %d %Y") {
            put("datetime", Value::String(date));
        }
        context.extend(chat.variables.clone());
        let template =
            self.environment.get_template("chat").map_err(|error| ApiError::Server(message_of(&error)))?;
        template
            .render(minijinja::Value::from_serialize(&context))
            .map_err(|error| ApiError::Invalid(format!("the chat template failed: {}", message_of(&error))))
    }
}

/// What went wrong, down to the cause that says it best.
fn message_of(error: &minijinja::Error) -> String {
    if error.kind() == ErrorKind::OutOfFuel {
        return "it takes too many steps".to_owned();
    }
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Takes out the tags with which training code marks the assistant's tokens; rendering has no use for them.
fn without_tracking(source: &str) -> String {
    let mut out = source.to_owned();
    for (tag, replacement) in [("generation", "if true"), ("endgeneration", "endif")] {
        for (open, close) in [("{%", "%}"), ("{%-", "%}"), ("{%", "-%}"), ("{%-", "-%}")] {
            out = out.replace(&format!("{open} {tag} {close}"), &format!("{open} {replacement} {close}"));
        }
    }
    out
}
