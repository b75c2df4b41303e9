//! Ends of a generation, limits, text and reports.

use super::*;
use crate::{engine::toy::POISON, request::StopKind};

#[test]
fn the_ends_have_their_names() {
    let mut bench = Bench::roomy(Rollback::Truncate, 1);
    let free = bench.ask(Generate { n_predict: None, ..request(&prompt(3, 10)) });
    assert_eq!(free.done().stop, StopKind::Eos);
    assert_eq!(free.tokens.last().map(|token| (token.id, token.text.as_str())), Some((0, "")));
    assert_eq!(free.done().n_decoded, free.tokens.len());

    let limited = bench.ask(Generate { n_predict: Some(3), ..request(&prompt(3, 10)) });
    assert_eq!((limited.done().stop, limited.done().truncated), (StopKind::Limit, false));
    assert_eq!(limited.ids(), free.ids()[..3]);

    let text = free.text();
    let word: String = text.chars().skip(2).take(2).collect();
    let stopped =
        bench.ask(Generate { n_predict: None, stop: vec![word.clone()], ..request(&prompt(3, 10)) });
    assert_eq!((stopped.done().stop, &stopped.done().stopping_word), (StopKind::Word, &word));
    assert_eq!(stopped.text(), text[..text.find(&word).unwrap()]);

    let shown = bench.ask(Generate { n_predict: None, render_special: true, ..request(&prompt(3, 10)) });
    assert!(shown.text().ends_with("<end>"));

    let ignoring = bench.ask(Generate { ignore_eos: true, n_predict: Some(60), ..request(&prompt(3, 10)) });
    assert_eq!((ignoring.ids().len(), ignoring.ids().contains(&0)), (60, false));
}

#[test]
fn nothing_to_predict_fills_the_cache() {
    let mut bench = Bench::roomy(Rollback::Truncate, 1);
    let filled = bench.ask(Generate { n_predict: Some(0), ..request(&prompt(3, 40)) });
    assert_eq!((filled.done().n_decoded, filled.done().n_past, filled.tokens.len()), (0, 40, 0));
    assert_eq!(bench.ask(request(&prompt(3, 41))).done().n_cached, 40);
}

#[test]
fn the_contexts_end_is_a_limit_and_a_longer_prompt_an_error() {
    let settings = EngineSettings { n_slots: 1, n_ctx_slot: 32, ..EngineSettings::default() };
    let mut bench = Bench::new(Toy::new(Rollback::Truncate, 16, 8, 4), settings);
    let full = bench.ask(Generate { ignore_eos: true, n_predict: None, ..request(&prompt(3, 20)) });
    assert_eq!((full.done().stop, full.done().truncated), (StopKind::Limit, true));
    assert_eq!((full.done().n_past, full.done().n_decoded), (31, 12));
    for (len, fits) in [(31, true), (32, false), (500, false)] {
        let answer = bench.ask(request(&prompt(3, len)));
        match answer.end.as_ref().unwrap() {
            Ok(done) => assert!(fits && done.truncated),
            Err(RequestError::ContextExceeded { n_prompt, n_ctx }) => {
                assert_eq!((fits, *n_prompt, *n_ctx), (false, len, 32))
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn what_cannot_be_honoured_is_said() {
    let mut bench = Bench::roomy(Rollback::Truncate, 2);
    let refused = |bench: &mut Bench, request: Generate| bench.ask(request).error().to_string();
    assert!(refused(&mut bench, request(&[])).contains("empty"));
    assert!(refused(&mut bench, request(&[1, 99])).contains("99"));
    assert!(refused(&mut bench, Generate { slot: Some(2), ..request(&[1]) }).contains("id_slot"));
    let sampling = SamplingParams { top_p: f32::NAN, ..SamplingParams::default() };
    assert!(refused(&mut bench, Generate { sampling, ..request(&[1]) }).contains("top_p"));
    assert_eq!(bench.seen.lock().unwrap().n_calls, 0);
}

#[test]
fn a_broken_row_fails_its_own_request() {
    let mut bench = Bench::roomy(Rollback::Truncate, 2);
    let mut clients = vec![bench.submit(request(&prompt(3, 10))), bench.submit(request(&[1, 2, POISON]))];
    bench.finish(&mut clients);
    assert!(clients[1].error().to_string().contains("broken logit"));
    assert_eq!(clients[0].ids(), Bench::roomy(Rollback::Truncate, 1).ask(request(&prompt(3, 10))).ids());
}

#[test]
fn one_full_store_ends_one_text_and_the_others_wait() {
    // Room for one whole context only, four slots: every request gets its full answer, one after the other if need be.
    let settings =
        EngineSettings { n_slots: 4, n_ctx_slot: 64, cache_ram: Some(0), ..EngineSettings::default() };
    let mut bench = Bench::new(Toy::new(Rollback::Truncate, 16, 8, 8), settings);
    let mut clients: Vec<Client> = (0..4)
        .map(|seed| {
            bench.submit(Generate { n_predict: Some(40), ignore_eos: true, ..request(&prompt(seed, 20)) })
        })
        .collect();
    bench.finish(&mut clients);
    for client in &clients {
        assert_eq!((client.done().n_decoded, client.done().truncated), (40, false));
    }
    // A store smaller than a slot's context: the text ends there, and is no error.
    let settings = EngineSettings { n_slots: 1, n_ctx_slot: 64, ..EngineSettings::default() };
    let mut small = Bench::new(Toy::new(Rollback::Truncate, 16, 8, 4), settings);
    let cut = small.ask(Generate { n_predict: None, ignore_eos: true, ..request(&prompt(1, 20)) });
    assert_eq!((cut.done().stop, cut.done().truncated, cut.done().n_past), (StopKind::Limit, true, 32));
    assert!(matches!(
        small.ask(request(&prompt(1, 40))).error(),
        RequestError::ContextExceeded { n_ctx: 32, .. }
    ));
}

#[test]
fn progress_counts_up_to_the_prompt() {
    let mut bench = Bench::roomy(Rollback::Truncate, 1);
    let client = bench.ask(Generate { return_progress: true, ..request(&prompt(3, 40)) });
    let processed: Vec<usize> = client.progress.iter().map(|progress| progress.processed).collect();
    assert_eq!(processed, [0, 16, 32, 40]);
    let again = bench.ask(Generate { return_progress: true, ..request(&prompt(3, 40)) });
    assert_eq!(
        again.progress.iter().map(|progress| (progress.cache, progress.processed)).collect::<Vec<_>>(),
        [(39, 39), (39, 40)]
    );
}

#[test]
fn the_time_budget_counts_once_a_line_is_full() {
    let mut bench = Bench::roomy(Rollback::Truncate, 1);
    // The bench's clock moves a second a step.
    let timed = |limit| Generate {
        n_predict: Some(200),
        ignore_eos: true,
        t_max_predict_ms: limit,
        ..request(&prompt(8, 10))
    };
    let free = bench.ask(timed(None));
    let line = free.ids().iter().position(|&id| id == 27).expect("a new line in 200 tokens");
    let cut = bench.ask(timed(Some(500)));
    assert_eq!(
        cut.tokens.len(),
        line.max(1) + 1,
        "the first token after half a second that has a line behind it"
    );
    assert_eq!((cut.done().stop, cut.done().has_new_line), (StopKind::Limit, true));
}

#[test]
fn probabilities_are_of_the_raw_row_or_of_the_chain() {
    let mut bench = Bench::roomy(Rollback::Truncate, 1);
    let raw = bench.ask(Generate { n_probs: 3, ..request(&prompt(3, 10)) });
    for token in &raw.tokens {
        let probs = token.probs.as_ref().unwrap();
        assert_eq!(
            (probs.top.len(), probs.top[0].id, probs.chosen.id),
            (3, token.id, token.id),
            "greedy takes the best"
        );
        assert!(probs.top.windows(2).all(|pair| pair[0].logprob >= pair[1].logprob));
        assert!(probs.chosen.logprob < 0.0);
    }
    let after = bench.ask(Generate { n_probs: 3, post_sampling_probs: true, ..request(&prompt(3, 10)) });
    let probs = after.tokens[0].probs.as_ref().unwrap();
    assert_eq!((probs.top.len(), probs.chosen.logprob), (1, 0.0), "greedy leaves one with probability 1");
    assert!(bench.ask(request(&prompt(3, 10))).tokens[0].probs.is_none());
}

#[test]
fn penalties_see_the_prompt_and_what_was_generated() {
    let mut bench = Bench::roomy(Rollback::Truncate, 1);
    let sampling = SamplingParams {
        temperature: 0.0,
        presence_penalty: 100.0,
        repeat_last_n: -1,
        ..SamplingParams::default()
    };
    let prompt = [1, 2, 3, 4, 5];
    let answer = bench.ask(Generate { sampling, ignore_eos: true, n_predict: Some(25), ..request(&prompt) });
    let mut seen: Vec<u32> = answer.ids();
    seen.extend(prompt);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 30, "no token came twice: {:?}", answer.ids());
}

#[test]
fn the_board_tells_what_runs_and_what_ran() {
    let mut bench = Bench::roomy(Rollback::Truncate, 1);
    let mut clients = vec![bench.submit(request(&prompt(3, 20))), bench.submit(request(&prompt(4, 20)))];
    bench.step(&mut clients);
    let board = bench.board.load_full();
    let slot = &board.slots[0];
    assert_eq!((board.n_processing, board.n_deferred, slot.is_processing, slot.task), (1, 1, true, Some(0)));
    assert_eq!((slot.n_prompt, slot.n_prompt_processed, slot.n_past, slot.n_ctx), (20, 16, 16, 256));
    bench.finish(&mut clients);
    let board = bench.board.load_full();
    assert_eq!((board.n_processing, board.slots[0].task, board.slots[0].is_processing), (0, Some(1), false));
    assert_eq!(board.slots[0].n_decoded, clients[1].done().n_decoded);
    let counters = board.counters;
    assert_eq!(counters.prompt_tokens + counters.cached_tokens, 40);
    assert_eq!(
        counters.predicted_tokens as usize,
        clients.iter().map(|client| client.tokens.len()).sum::<usize>()
    );
    assert!(counters.prompt_seconds > 0.0 && counters.predicted_seconds > 0.0);
    assert!(counters.busy_slots >= counters.decode_calls);
}
