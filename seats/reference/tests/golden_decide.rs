//! The decide seat against the logits of the vendor's head.

mod support;

use bloomery_reference::{CacheType, Question, QuestionKind, Row, Step};
use seat_decide::bloomery_seat_table as seat;

#[test]
fn clef_oracle() {
    let oracle: serde_json::Value =
        serde_json::from_slice(&std::fs::read(support::data("oracle/clef.json")).unwrap()).unwrap();
    let numbers = |v: &serde_json::Value| -> Vec<usize> {
        v.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
    };
    let span = |v: &serde_json::Value| numbers(v)[0]..numbers(v)[1];
    let question = |q: &serde_json::Value| Question {
        kind: [QuestionKind::Noul, QuestionKind::Choice, QuestionKind::Score]
            [q["type"].as_u64().unwrap() as usize],
        span: span(&q["question_span"]),
        options: q["option_spans"].as_array().unwrap().iter().map(span).collect(),
    };
    let questions: Vec<Question> = oracle["questions"].as_array().unwrap().iter().map(question).collect();
    let ids = numbers(&oracle["input_ids"]);
    let row = |(position, id): (usize, &usize)| Row { sequence: 1, token: *id as u32, position };
    let rows: Vec<Row> = ids.iter().enumerate().map(row).collect();
    let model = support::open(&support::data("oracle/clef.gguf"), seat());
    let mut states = model.reference.states(CacheType::F32);
    states.create(1).unwrap();
    let step = Step { rows: &rows, questions: &questions, ..Step::default() };
    let outputs = model.reference.forward(&step, &mut states, None).unwrap();
    let expected: Vec<f32> = oracle["logits"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|l| l.as_array().unwrap())
        .map(|v| v.as_f64().unwrap() as f32)
        .collect();
    let most = support::difference(&[outputs[0].table.data.clone()], &[expected]);
    println!("clef: largest difference {most:e}");
    assert!(most < 1e-3);
}
