//! The decide seat on the cpu backend: the vendor's logits of every option, and the kit's answers of quantised files.

mod golden;

use bloomery_gguf::GgufFile;
use bloomery_program::{ModelFacts, Program};
use bloomery_runtime::cpu::CpuExecutor;
use bloomery_runtime::executor::{Executor, Question, QuestionKind, StepError};
use bloomery_tests::{data, golden_kit, read_json};
use bloomery_tokenizer::Tokenizer;
use golden::Model;
use serde_json::Value;
use std::ops::Range;

fn declare(facts: &ModelFacts) -> Program {
    seat_decide::declare(facts).unwrap()
}

fn kind_of(number: u64) -> QuestionKind {
    [QuestionKind::Noul, QuestionKind::Choice, QuestionKind::Score][number as usize]
}

/// The oracle's request: token ids, questions, logits.
fn oracle() -> (Vec<u32>, Vec<Question>, Vec<f32>) {
    let oracle = read_json(&data("oracle/clef.json")).unwrap();
    let span = |v: &Value| v[0].as_u64().unwrap() as usize..v[1].as_u64().unwrap() as usize;
    let question = |q: &Value| Question {
        kind: kind_of(q["type"].as_u64().unwrap()),
        span: span(&q["question_span"]),
        options: q["option_spans"].as_array().unwrap().iter().map(span).collect(),
    };
    let questions = oracle["questions"].as_array().unwrap().iter().map(question).collect();
    let logits = oracle["logits"].as_array().unwrap().iter().flat_map(|q| q.as_array().unwrap());
    let logits = logits.map(|v| v.as_f64().unwrap() as f32).collect();
    (golden::numbers(&oracle["input_ids"]), questions, logits)
}

#[test]
fn logits_of_every_option() {
    let (tokens, questions, expected) = oracle();
    let model = Model::open(&data("oracle/clef.gguf"), declare, false);
    let mut first: Option<Vec<f32>> = None;
    for (threads, max_rows, fuse) in [(1, 1024, true), (2, 1024, true), (2, 64, false), (1, 7, true)] {
        let mut executor = model.executor(|o| {
            (o.threads, o.max_rows, o.fuse) = (Some(threads), max_rows, fuse);
        });
        let found = executor.decide(&tokens, &questions).unwrap();
        let difference = golden::largest_difference(&found, &expected);
        println!("clef oracle: largest difference of a logit {difference:e}");
        assert!(difference < 1e-4, "{difference}");
        assert_eq!(first.get_or_insert(found.clone()), &found, "{threads} threads, steps of {max_rows}");
        let capacity = executor.capacity();
        assert_eq!(capacity.pages_free, capacity.pages_total, "the prompt's sequence is gone");
    }
}

#[test]
fn what_cannot_be_decided_is_refused() {
    let (tokens, questions, _) = oracle();
    let model = Model::open(&data("oracle/clef.gguf"), declare, false);
    let mut executor = model.executor(|_| {});
    let malformed =
        |executor: &mut CpuExecutor, questions: &[Question]| match executor.decide(&tokens, questions) {
            Err(StepError::Malformed(what)) => what,
            other => panic!("{other:?}"),
        };
    assert!(malformed(&mut executor, &[]).contains("without questions"));
    let mut changed = questions.clone();
    changed[1].options[0] = 900..tokens.len() + 1;
    assert!(malformed(&mut executor, &changed).contains("span 900.."));
    changed[1].options.clear();
    assert!(malformed(&mut executor, &changed).contains("without options"));
    let far = vec![u32::MAX; 4];
    let question = Question { kind: QuestionKind::Noul, span: 0..1, options: vec![1..2, 2..4] };
    assert!(matches!(executor.decide(&far, &[question]), Err(StepError::Sequence { .. })));
    assert!(executor.decide(&tokens, &questions).is_ok());
}

/// A prompt in the making: pieces are tokenised one by one.
struct Prompt<'a> {
    tokenizer: &'a Tokenizer,
    tokens: Vec<u32>,
}

impl Prompt<'_> {
    fn piece(&mut self, text: &str) -> Range<usize> {
        let start = self.tokens.len();
        self.tokens.extend(self.tokenizer.encode(text, false, true));
        start..self.tokens.len()
    }
}

/// Keys of an object in the order in which the text names them.
fn in_order<'v>(object: &'v Value, text: &str) -> Vec<&'v String> {
    let mut keys: Vec<&String> = object.as_object().unwrap().keys().collect();
    keys.sort_by_key(|key| text.find(&format!("\"{key}\": ")));
    keys
}

/// The prompt of a request and its questions, as the files' template says.
fn prompt(tokenizer: &Tokenizer, request: &Value, text: &str) -> (Vec<u32>, Vec<Question>) {
    let mut prompt = Prompt { tokenizer, tokens: Vec::new() };
    prompt.piece(
        "<|im_start|>system\nRead the complete state and schema. Decide every field jointly. Each answer must be exactly one of \
         that field's allowed options.<|im_end|>\n<|im_start|>user\nSTATE:\n",
    );
    let state = &request["state"];
    prompt.piece(state.as_str().map_or_else(|| state.to_string(), str::to_string).as_str());
    prompt.piece("\n\nSCHEMA FIELDS:\n");
    let mut questions = Vec::new();
    for (i, id) in in_order(&request["questions"], text).into_iter().enumerate() {
        let question = &request["questions"][id];
        let (kind, criteria) = (question["type"].as_str().unwrap(), &question["criteria"]);
        prompt.piece(&format!("\nFIELD {}\nID: {id}\nTYPE: {kind}\nINSTRUCTION: ", i + 1));
        let span = prompt.piece(question["instructions"].as_str().unwrap());
        prompt.piece("\nALLOWED OPTIONS:\n");
        let options: Vec<(String, Option<String>)> = match kind {
            "noul" => [
                ("true", "The proposition is true or the answer is yes."),
                ("false", "The proposition is false or the answer is no."),
            ]
            .map(|(key, text)| (key.to_string(), Some(criteria[key].as_str().unwrap_or(text).to_string())))
            .into(),
            "choice" => in_order(criteria, text)
                .into_iter()
                .map(|key| (key.clone(), criteria[key].as_str().map(str::to_string)))
                .collect(),
            _ => criteria
                .as_array()
                .unwrap()
                .iter()
                .enumerate()
                .map(|(i, level)| (i.to_string(), level.as_str().map(str::to_string)))
                .collect(),
        };
        let mut spans = Vec::new();
        for (i, (key, description)) in options.into_iter().enumerate() {
            prompt.piece(&format!("OPTION {}: ", i + 1));
            spans.push(prompt.piece(&match description {
                None => format!("{{\"option_id\":\"{key}\"}}"),
                Some(text) => format!("{{\"description\":\"{text}\",\"option_id\":\"{key}\"}}"),
            }));
            prompt.piece("\n");
        }
        prompt.piece("END FIELD\n");
        let kind = kind_of(["noul", "choice", "score"].iter().position(|k| *k == kind).unwrap() as u64);
        questions.push(Question { kind, span, options: spans });
    }
    prompt.piece("\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nJOINT SCHEMA DECISIONS:");
    (prompt.tokens, questions)
}

/// Probabilities of all options of an answer.
fn expected(answer: &Value, keys: &[String]) -> Vec<f64> {
    match answer["noul"].as_f64() {
        Some(yes) => vec![yes, 1.0 - yes],
        None => keys.iter().map(|key| answer["probabilities"][key].as_f64().unwrap()).collect(),
    }
}

#[test]
fn answers_of_quantised_files() {
    let Some(kit) = golden_kit() else { return };
    let folder = kit.join("clef");
    for ty in ["Q8_0", "Q4_K_M"] {
        let path = folder.join(format!("tiny-clef-{ty}.gguf"));
        let file = GgufFile::open(&path).unwrap();
        let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
        let model = Model::open(&path, declare, false);
        let mut executor = model.executor(|_| {});
        let text = std::fs::read_to_string(folder.join(format!("{ty}.answers.json"))).unwrap();
        let answers: Value = serde_json::from_str(&text).unwrap();
        for answer in answers.as_array().unwrap() {
            let (request, response) = (&answer["request"], &answer["response"]);
            let (tokens, questions) = prompt(&tokenizer, request, &text);
            assert_eq!(Some(tokens.len() as u64), response["usage"]["input_tokens"].as_u64(), "{ty}");
            let logits = executor.decide(&tokens, &questions).unwrap();
            let mut rest = &logits[..];
            for (id, question) in in_order(&request["questions"], &text).into_iter().zip(&questions) {
                let criteria = &request["questions"][id]["criteria"];
                let keys: Vec<String> = match question.kind {
                    QuestionKind::Noul => vec![],
                    QuestionKind::Choice => in_order(criteria, &text).into_iter().cloned().collect(),
                    QuestionKind::Score => (0..question.options.len()).map(|i| i.to_string()).collect(),
                };
                let own;
                (own, rest) = rest.split_at(question.options.len());
                let most = own.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let powers: Vec<f64> = own.iter().map(|v| f64::from(v - most).exp()).collect();
                let sum: f64 = powers.iter().sum();
                for (power, expected) in powers.iter().zip(expected(&response["answers"][id], &keys)) {
                    let difference = (power / sum - expected).abs();
                    println!("{ty} {id}: {:.6}, expected {expected:.6}", power / sum);
                    assert!(difference < 5e-3, "{ty} {id}: {difference}");
                }
            }
        }
    }
}
