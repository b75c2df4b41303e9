//! Whatever else runs, is cached, cancelled, evicted or short of room: a request's answer is the one it gets alone.

use bloomery_sampler::SamplingParams;
use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
struct Arrival {
    at: u64,
    request: Generate,
    cancel_at: Option<u64>,
}

#[derive(Debug, Clone)]
struct World {
    rollback: Rollback,
    settings: EngineSettings,
    max_rows: usize,
    page_tokens: usize,
    pages: usize,
    habit: f32,
    arrivals: Vec<Arrival>,
}

const N_CTX: usize = 64;

prop_compose! {
    fn arrival(n_slots: usize)(
        at in 0u64..40, family in 0u32..3, shared in 1usize..40, tail in prop::collection::vec(1u32..26, 0..12),
        n_predict in prop_oneof![6 => (0usize..30).prop_map(Some), 1 => Just(None)],
        stop in prop_oneof![3 => Just(vec![]), 1 => Just(vec!["ab".to_owned()]), 1 => prop::collection::vec("[a-f]{1,3}", 1..3)],
        temperature in prop_oneof![Just(0.0f32), Just(0.8)], seed in 0u32..5, cache_prompt in prop::bool::weighted(0.8),
        cancel in prop::option::weighted(0.25, 0u64..30), slot in prop::option::weighted(0.1, 0..n_slots),
        penalty in prop_oneof![Just(1.0f32), Just(1.5)], ignore_eos in any::<bool>(), mirostat in prop_oneof![4 => Just(0u8), 1 => Just(2)],
        n_probs in prop_oneof![Just(0usize), Just(2)], post_sampling_probs in any::<bool>(),
    ) -> Arrival {
        let mut tokens = prompt(family, shared);
        tokens.extend(tail);
        let sampling = SamplingParams { temperature, seed, repeat_penalty: penalty, mirostat, ..SamplingParams::default() };
        let request = Generate { prompt: tokens, sampling, n_predict, stop, cache_prompt, slot, ignore_eos, n_probs, post_sampling_probs, ..super::request(&[]) };
        Arrival { at, request, cancel_at: cancel.map(|after| at + after) }
    }
}

fn drafts() -> impl Strategy<Value = DraftSettings> {
    (prop::option::weighted(0.6, 1usize..4), any::<bool>(), 1usize..12, 0usize..7, 0usize..3, any::<bool>())
        .prop_map(|(lookup, model, n_max, n_model, n_min, adapt)| DraftSettings {
            lookup,
            model: Some(model),
            n_max,
            n_model,
            n_min,
            adapt,
            ..DraftSettings::default()
        })
}

fn world() -> impl Strategy<Value = World> {
    (1usize..5)
        .prop_flat_map(|n_slots| {
            (
                Just(n_slots),
                prop_oneof![Just(Rollback::Truncate), Just(Rollback::Checkpoints)],
                prop_oneof![Just(Some(0)), Just(Some(600)), Just(None)],
                1usize..24,
                1usize..9,
                0usize..40,
                prop_oneof![Just(0.0f32), Just(0.1), Just(0.9)],
                (drafts(), prop_oneof![Just(0.0f32), Just(2.5), Just(9.0)]),
                prop::collection::vec(arrival(n_slots), 1..12),
            )
        })
        .prop_map(
            |(
                n_slots,
                rollback,
                cache_ram,
                max_rows,
                page_tokens,
                spare_pages,
                similarity,
                (draft, habit),
                arrivals,
            )| {
                World {
                    rollback,
                    settings: EngineSettings {
                        n_slots,
                        n_ctx_slot: N_CTX,
                        cache_ram,
                        slot_prompt_similarity: similarity,
                        checkpoint_every: 16,
                        draft,
                        ..EngineSettings::default()
                    },
                    max_rows,
                    page_tokens,
                    // At least one whole context: what one request needs alone is always there.
                    pages: N_CTX.div_ceil(page_tokens) + spare_pages,
                    habit,
                    arrivals,
                }
            },
        )
}

fn alone(request: &Generate, habit: f32) -> Client {
    let settings =
        EngineSettings { n_slots: 1, n_ctx_slot: N_CTX, cache_ram: Some(0), ..EngineSettings::default() };
    let toy = Toy::new(Rollback::Truncate, 512, 8, 8).with_habit(habit);
    let mut bench = Bench::new(toy, settings);
    bench.ask(Generate { slot: None, ..request.clone() })
}

fn logprobs(client: &Client) -> Vec<(u32, u32)> {
    let all = client.tokens.iter().filter_map(|token| token.probs.as_ref());
    all.flat_map(|probs| probs.top.iter().chain([&probs.chosen]))
        .map(|prob| (prob.id, prob.logprob.to_bits()))
        .collect()
}

fn play(world: &World) -> (Bench, Vec<Client>) {
    let habit = world.habit;
    let toy = Toy::new(world.rollback, world.max_rows, world.page_tokens, world.pages).with_habit(habit);
    let mut bench = Bench::new(toy, world.settings.clone());
    let mut order: Vec<&Arrival> = world.arrivals.iter().collect();
    order.sort_by_key(|arrival| arrival.at);
    let mut clients: Vec<Client> = Vec::new();
    for now in 0..75 {
        for arrival in order.iter().filter(|arrival| arrival.at == now) {
            clients.push(bench.submit(arrival.request.clone()));
        }
        for index in 0..clients.len() {
            if order[index].cancel_at == Some(now) && clients[index].end.is_none() {
                clients[index].cancel();
            }
        }
        bench.step(&mut clients);
        let board = bench.board.load_full();
        for client in clients.iter().filter(|client| client.is_cancelled()) {
            let holds = |slot: &crate::board::SlotView| slot.is_processing && slot.task == Some(client.id);
            assert!(!board.slots.iter().any(holds), "a slot still runs the cancelled task {}", client.id);
        }
    }
    bench.finish(&mut clients);
    (bench, clients)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, max_shrink_iters: 4000, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_is_the_one_it_gets_alone(world in world()) {
        let (bench, clients) = play(&world);
        let mut order: Vec<&Arrival> = world.arrivals.iter().collect();
        order.sort_by_key(|arrival| arrival.at);
        for (client, arrival) in clients.iter().zip(order) {
            let alone = alone(&arrival.request, world.habit);
            if client.is_cancelled() {
                prop_assert!(alone.ids().starts_with(&client.ids()));
                continue;
            }
            prop_assert_eq!(client.ids(), alone.ids());
            prop_assert_eq!(client.text(), alone.text());
            prop_assert_eq!(logprobs(client), logprobs(&alone));
            let (got, expected) = (client.done(), alone.done());
            prop_assert_eq!(
                (got.stop, &got.stopping_word, got.truncated, got.n_prompt, got.n_decoded, got.n_past),
                (expected.stop, &expected.stopping_word, expected.truncated, expected.n_prompt, expected.n_decoded, expected.n_past)
            );
            prop_assert!(arrival.request.cache_prompt || got.n_cached == 0);
            prop_assert!(got.n_cached < got.n_prompt);
        }

        let seen = bench.seen.lock().unwrap();
        for rows in &seen.steps {
            prop_assert!(rows.len() <= world.max_rows);
        }
        // Nothing leaks: a sequence a slot at most, and no slot is left running.
        prop_assert!(seen.n_sequences <= world.settings.n_slots);
        let board = bench.board.load();
        prop_assert_eq!((board.n_processing, board.n_deferred), (0, 0));
        let counters = board.counters;
        prop_assert!(counters.accepted_tokens <= counters.drafted_tokens);
        prop_assert!(counters.drafted_tokens <= counters.drafts * world.settings.draft.n_max.max(world.settings.draft.n_model) as u64);
        prop_assert!(world.settings.cache_ram.is_none_or(|budget| bench.core.cache.bytes() <= budget));
    }

    #[test]
    fn streams_get_a_token_every_step_while_prompts_are_processed(
        lengths in prop::collection::vec(1usize..200, 1..5), late in prop::collection::vec(50usize..200, 1..4), max_rows in 9usize..40,
    ) {
        let settings = EngineSettings { n_slots: 8, n_ctx_slot: 300, ..EngineSettings::default() };
        let mut bench = Bench::new(Toy::new(Rollback::Truncate, max_rows, 8, 400), settings);
        let endless = |seed: usize, len: usize| Generate { n_predict: Some(60), ignore_eos: true, ..super::request(&prompt(seed as u32, len)) };
        let mut clients: Vec<Client> = lengths.iter().enumerate().map(|(seed, &len)| bench.submit(endless(seed, len))).collect();
        for _ in 0..30 {
            bench.step(&mut clients);
        }
        for (seed, &len) in late.iter().enumerate() {
            clients.push(bench.submit(endless(seed + 100, len)));
        }
        bench.finish(&mut clients);
        for client in &clients {
            prop_assert_eq!(client.tokens.len(), 60);
            let widest = client.steps.windows(2).map(|pair| pair[1] - pair[0]).max();
            prop_assert_eq!(widest, Some(1), "a stream waited");
        }
    }
}

#[test]
fn with_fewer_rows_than_streams_the_wait_is_bounded() {
    let settings = EngineSettings { n_slots: 6, n_ctx_slot: 300, ..EngineSettings::default() };
    let mut bench = Bench::new(Toy::new(Rollback::Truncate, 4, 8, 400), settings);
    let mut clients: Vec<Client> = (0..6)
        .map(|seed| {
            bench.submit(Generate { n_predict: Some(40), ignore_eos: true, ..request(&prompt(seed, 20)) })
        })
        .collect();
    bench.finish(&mut clients);
    for client in &clients {
        // Six streams over three or four rows a step.
        let widest = client.steps.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(widest <= 2, "{:?}", client.steps);
    }
}
