//! Cutting text into words, step by step.
//!
//! A step's pattern cuts out what it matches; what lies between matches is a piece too, so nothing is lost. Patterns come
//! from files made for engines with backtracking. The only look-ahead that they use is `\s+(?!\S)`, "white space, but leave
//! the last one to the word behind it". Everything else is regular, so a finite automaton does it in time linear in the text, and the
//! look-ahead becomes a rule: of a run of white space that is followed by something, the last character is given back.

use regex_automata::meta::Regex;
use std::ops::Range;

/// One step of a pre-tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A regular expression; may end with `|\s+(?!\S)` or `|\s+(?!\S)|\s+`.
    Pattern(&'static str),
    /// Runs of newlines apart from the text between them.
    NewlineRuns,
    /// Cuts runs of digits into groups of three, counted from the right, and behind the run.
    DigitGroups {
        /// Only 0 to 9, and a run whose length is a multiple of three starts a piece of its own.
        ascii: bool,
    },
}

/// Compiled steps.
#[derive(Debug, Clone)]
pub struct Splitter {
    steps: Vec<Compiled>,
}

#[derive(Debug, Clone)]
enum Compiled {
    /// Pattern 0 is the published one without its white-space tail, pattern 1 is that tail.
    Pattern(Box<Regex>),
    NewlineRuns,
    DigitGroups(Box<Regex>, bool),
}

impl Splitter {
    /// Compile steps.
    ///
    /// # Panics
    /// Where a pattern is no regular expression; patterns are constants of this crate, and a test compiles all of them.
    #[must_use]
    pub fn new(steps: &[Step]) -> Self {
        let compile = |patterns: &[&str]| {
            #[expect(
                clippy::expect_used,
                reason = "patterns are constants of this crate, all compiled by a test"
            )]
            Box::new(Regex::new_many(patterns).expect("a pattern of the table compiles"))
        };
        let steps = steps.iter().map(|&step| match step {
            Step::Pattern(pattern) => {
                let bare = pattern.strip_suffix(r"|\s+").unwrap_or(pattern);
                match bare.strip_suffix(r"|\s+(?!\S)") {
                    Some(main) => Compiled::Pattern(compile(&[main, r"\s+"])),
                    None => Compiled::Pattern(compile(&[pattern])),
                }
            }
            Step::NewlineRuns => Compiled::NewlineRuns,
            Step::DigitGroups { ascii } => {
                Compiled::DigitGroups(compile(&[if ascii { "[0-9]+" } else { r"\p{N}+" }]), ascii)
            }
        });
        Self { steps: steps.collect() }
    }

    /// The words of a text in order, as byte ranges that cover it without gaps.
    #[must_use]
    pub fn split(&self, text: &str) -> Vec<Range<usize>> {
        let mut pieces = Vec::new();
        if !text.is_empty() {
            pieces.push(0..text.len());
        }
        for step in &self.steps {
            let mut cut = Vec::with_capacity(pieces.len() + text.len() / 4);
            for piece in pieces {
                let Some(part) = text.get(piece.clone()) else { continue };
                let mut previous = piece.start;
                step.cut(part, |end| {
                    let end = piece.start + end;
                    if end > previous {
                        cut.push(previous..end);
                        previous = end;
                    }
                });
                if previous < piece.end {
                    cut.push(previous..piece.end);
                }
            }
            pieces = cut;
        }
        pieces
    }
}

impl Compiled {
    /// Call `at` with every place to cut, in ascending order.
    fn cut(&self, text: &str, mut at: impl FnMut(usize)) {
        match self {
            Self::Pattern(regex) => {
                let mut input = regex_automata::Input::new(text);
                while input.start() < text.len()
                    && let Some(found) = regex.search(&input)
                {
                    let mut end = found.end();
                    if found.pattern().as_usize() == 1 && end < text.len() {
                        // `\s+(?!\S)`: the run is followed by something that is no white space.
                        let last = text.get(found.range()).and_then(|run| run.char_indices().next_back());
                        if let Some((offset, _)) = last
                            && offset > 0
                        {
                            end = found.start() + offset;
                        }
                    }
                    at(found.start());
                    at(end);
                    if end <= input.start() {
                        // No pattern of the table matches nothing; stay safe if one ever does.
                        break;
                    }
                    input.set_start(end);
                }
            }
            Self::NewlineRuns => {
                let mut previous = None;
                for (offset, &byte) in text.as_bytes().iter().enumerate() {
                    let newline = byte == b'\n';
                    if previous.is_some_and(|before| before != newline) {
                        at(offset);
                    }
                    previous = Some(newline);
                }
            }
            Self::DigitGroups(digits, ascii) => {
                for run in digits.find_iter(text) {
                    let starts: Vec<usize> =
                        text.get(run.range()).unwrap_or_default().char_indices().map(|(at, _)| at).collect();
                    for (index, offset) in starts.iter().enumerate() {
                        if (starts.len() - index).is_multiple_of(3) && (*ascii || index > 0) {
                            at(run.start() + offset);
                        }
                    }
                    if !ascii {
                        at(run.end());
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pre_tokenizer::pre_tokenizer;

    fn words<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        let splitter = Splitter::new(pre_tokenizer(name).unwrap().steps);
        splitter.split(text).into_iter().map(|range| &text[range]).collect()
    }

    #[test]
    fn last_space_goes_to_the_word() {
        assert_eq!(words("gpt-2", "a   b  "), ["a", "  ", " b", "  "]);
        assert_eq!(
            words("gpt-2", "a \n1\u{3000}\u{3000}é"),
            ["a", " ", "\n", "1", "\u{3000}", "\u{3000}", "é"]
        );
        assert_eq!(words("llama-bpe", "a  \n\n  b"), ["a", "  \n\n", " ", " b"]);
        assert_eq!(words("qwen2", "I'M 123"), ["I", "'M", " ", "1", "2", "3"]);
    }

    #[test]
    fn digits_count_from_the_right() {
        assert_eq!(words("superbpe", "x1234567"), ["x", "1", "234", "567"]);
        assert_eq!(words("superbpe", "x123456"), ["x", "123", "456"]);
        assert_eq!(words("afmoe", "12345 678"), ["12", "345", " ", "678"]);
    }

    #[test]
    fn marks_belong_to_letters_only_where_the_row_says_so() {
        assert_eq!(words("qwen2", "नमस्ते"), ["नमस", "\u{94d}त", "\u{947}"]);
        assert_eq!(words("qwen35", "नमस्ते"), ["नमस्ते"]);
    }

    #[test]
    fn case_of_ascii_letters() {
        assert_eq!(words("tekken", "HelloWorld ABCdef"), ["Hello", "World", " ABCdef"]);
    }
}
