//! Drafts: what they save, what they never change, and when they stop. That answers stay the same beside caches, cancels,
//! lack of room and other streams is the property of `alone`, whose worlds draft.

use bloomery_sampler::SamplerKind;

use super::*;
use crate::{
    engine::toy::habit,
    executor::{Executor, Row},
};

const EVERY_TIME: DraftSettings = DraftSettings {
    lookup: Some(2),
    model: Some(false),
    n_max: 5,
    n_model: 5,
    p_min: 0.0,
    n_min: 0,
    adapt: false,
};

fn bench(rollback: Rollback, habit: f32, draft: DraftSettings) -> Bench {
    let settings = EngineSettings { n_slots: 2, n_ctx_slot: 256, draft, ..EngineSettings::default() };
    Bench::new(Toy::new(rollback, 64, 8, 400).with_habit(habit), settings)
}

fn long(prompt: &[u32]) -> Generate {
    Generate { n_predict: Some(100), ignore_eos: true, ..request(prompt) }
}

#[test]
fn a_text_that_goes_in_circles_takes_few_steps() {
    // The habits go round in 20 tokens: from the second round on every draft is right.
    for rollback in [Rollback::Truncate, Rollback::Checkpoints] {
        let mut bench = bench(rollback, 99.0, EVERY_TIME);
        let client = bench.ask(long(&prompt(3, 10)));
        let done = client.done();
        assert_eq!((done.n_decoded, done.n_past), (100, 109));
        let mut token = *prompt(3, 10).last().unwrap();
        for id in client.ids() {
            token = habit(token);
            assert_eq!(id, token);
        }
        assert!(done.n_accepted >= 60 && done.n_accepted == done.n_drafted, "{done:?}");
        let steps = bench.seen.lock().unwrap().steps.len();
        assert!(steps < 40, "{steps}");
        let counters = bench.board.load().counters;
        assert_eq!(counters.drafted_tokens, done.n_drafted as u64);
        assert_eq!(counters.accepted_tokens, done.n_accepted as u64);
        assert_eq!(counters.predicted_tokens, 100);
    }
}

#[test]
fn wrong_drafts_are_taken_back_and_the_next_talk_finds_the_state() {
    for rollback in [Rollback::Truncate, Rollback::Checkpoints] {
        let mut with = bench(rollback, 2.5, EVERY_TIME);
        let mut without = bench(rollback, 2.5, DraftSettings::default());
        let first = with.ask(long(&prompt(3, 30)));
        assert_eq!(first.ids(), without.ask(long(&prompt(3, 30))).ids());
        let done = first.done();
        assert!(0 < done.n_accepted && done.n_accepted < done.n_drafted, "{done:?}");
        // A second turn over the first one's answer.
        let turn: Vec<u32> = prompt(3, 30).into_iter().chain(first.ids()).chain([4, 9]).collect();
        let second = with.ask(long(&turn));
        assert_eq!(second.ids(), without.ask(long(&turn)).ids());
        assert!(rollback == Rollback::Checkpoints || second.done().n_cached == 129);
    }
}

#[test]
fn streams_share_a_step_and_the_room_bounds_the_drafts() {
    let mut bench = bench(Rollback::Truncate, 99.0, EVERY_TIME);
    let mut clients: Vec<Client> = (0..2).map(|seed| bench.submit(long(&prompt(seed, 12)))).collect();
    bench.finish(&mut clients);
    let seen = bench.seen.lock().unwrap();
    assert!(seen.steps.iter().any(|rows| rows.len() == 12), "both draft in one step");
    drop(seen);
    // One page is left: a draft must not take what another stream needs.
    let settings =
        EngineSettings { n_slots: 2, n_ctx_slot: 64, draft: EVERY_TIME, ..EngineSettings::default() };
    let mut narrow = Bench::new(Toy::new(Rollback::Truncate, 3, 4, 16).with_habit(99.0), settings);
    let request = Generate { n_predict: Some(40), ..long(&prompt(1, 20)) };
    assert_eq!(narrow.ask(request).ids().len(), 40);
    assert!(narrow.seen.lock().unwrap().steps.iter().all(|rows| rows.len() <= 3));
}

/// Every row takes a second: nothing is gained by running several at once.
fn rows_cost(habit: f32, draft: DraftSettings) -> (usize, usize, usize) {
    let toy = Toy::new(Rollback::Truncate, 64, 8, 400).with_habit(habit);
    let (seen, start) = (toy.seen.clone(), Instant::now());
    let settings = EngineSettings { n_slots: 1, n_ctx_slot: 2000, draft, ..EngineSettings::default() };
    let mut bench = Bench::new(toy, settings);
    let looking_on = seen.clone();
    bench.core.clock = Box::new(move || {
        let rows: usize = looking_on.lock().unwrap().steps.iter().map(Vec::len).sum();
        start + Duration::from_secs(rows as u64)
    });
    let client = bench.ask(Generate { n_predict: Some(1500), ..long(&prompt(3, 60)) });
    let rows = seen.lock().unwrap().steps.iter().map(Vec::len).sum::<usize>() - 60;
    (rows, client.ids().len(), client.done().n_drafted)
}

#[test]
fn drafting_stops_where_it_loses_and_is_tried_again() {
    let (rows, tokens, drafted) =
        rows_cost(0.0, DraftSettings { lookup: Some(1), ..DraftSettings::default() });
    assert_eq!(tokens, 1500);
    assert!(drafted > 2, "it was tried");
    assert!(rows as f64 <= 1500.0 * 1.02, "{rows} rows for {tokens} tokens, {drafted} drafted");
    let (forced, ..) =
        rows_cost(0.0, DraftSettings { lookup: Some(1), adapt: false, ..DraftSettings::default() });
    assert!(forced > 3000, "without the choice it would cost: {forced}");
}

/// Pearson's statistic of the second token, which is drafted, over many seeds, against the exact distribution.
#[test]
fn sampled_tokens_keep_their_distribution() {
    // Walks along the habits, so that lookups propose what is likely.
    let start: Vec<u32> = std::iter::successors(Some(3), |&token| Some(habit(token))).take(45).collect();
    let mut toy = Toy::new(Rollback::Truncate, 64, 8, 400).with_habit(3.0);
    let mut chances = |text: &[u32]| -> Vec<f64> {
        let sequence = toy.create().unwrap();
        let last = text.len() - 1;
        let rows = text.iter().enumerate().map(|(position, &token)| Row {
            token,
            position,
            sequence,
            wants_logits: position == last,
            wants_hidden: false,
        });
        let weights: Vec<f64> = toy
            .run(&rows.collect::<Vec<_>>())
            .unwrap()
            .logits
            .iter()
            .map(|&logit| f64::from(logit).exp())
            .collect();
        toy.drop_sequence(sequence);
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect()
    };
    let mut expected = vec![0.0; N_VOCAB];
    for (first, chance) in chances(&start).into_iter().enumerate() {
        if first == END as usize || first == POISON as usize {
            continue;
        }
        let text: Vec<u32> = start.iter().copied().chain([first as u32]).collect();
        chances(&text).iter().zip(&mut expected).for_each(|(then, sum)| *sum += chance * then);
    }

    let draft = DraftSettings { lookup: Some(1), ..EVERY_TIME };
    let mut bench = bench(Rollback::Truncate, 3.0, draft);
    let (mut counts, mut n, mut accepted) = (vec![0.0; N_VOCAB], 0.0, 0);
    for seed in 0..6000 {
        let sampling = SamplingParams {
            temperature: 1.0,
            samplers: vec![SamplerKind::Temperature],
            seed,
            ..SamplingParams::default()
        };
        let client = bench.ask(Generate { sampling, n_predict: Some(3), ..request(&start) });
        accepted += client.done().n_accepted;
        if let Some(&second) = client.ids().get(1) {
            counts[second as usize] += 1.0;
            n += 1.0;
        }
    }
    assert!(accepted > 500, "{accepted}");
    let total: f64 = expected.iter().sum();
    let terms = expected.iter().zip(&counts).filter(|(chance, _)| **chance > 1e-6).map(|(chance, count)| {
        let wanted = n * chance / total;
        (count - wanted) * (count - wanted) / wanted
    });
    let statistic: f64 = terms.sum();
    // 30 degrees of freedom: one in a thousand lies above 59.7.
    assert!(statistic < 59.7, "{statistic}");
}
