//! The chain as a whole: order, greedy, seeds, and that no settings ever give an impossible token.

use bloomery_sampler::{RANDOM_SEED, SampleError, Sampler, SamplerKind, SamplingParams, row_probs};
use proptest::prelude::*;

fn sampler(params: &SamplingParams, n_vocab: usize) -> Sampler {
    Sampler::new(params.clone(), n_vocab, &mut |text| vec![vec![text.len() as u32]]).unwrap()
}

/// Rows with known probabilities, so that what survives can be counted by drawing often.
fn drawn(params: &SamplingParams, probabilities: &[f32]) -> Vec<u32> {
    let row: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
    let mut sampler = sampler(params, row.len());
    let mut seen: Vec<u32> = (0..500).map(|_| sampler.sample(&row).unwrap()).collect();
    seen.sort_unstable();
    seen.dedup();
    seen
}

fn bare(samplers: &[SamplerKind]) -> SamplingParams {
    SamplingParams { seed: 11, samplers: samplers.to_vec(), temperature: 1.0, ..Default::default() }
}

#[test]
fn order_matters_and_is_honoured() {
    use SamplerKind::{MinP, Penalties, TopK};
    let five = [0.3, 0.25, 0.2, 0.15, 0.1];
    let params = SamplingParams { top_k: 2, presence_penalty: 3.0, ..bare(&[Penalties, TopK]) };
    let mut edited = sampler(&params, 5);
    edited.accept(0);
    let row: Vec<f32> = five.iter().map(|p: &f32| p.ln()).collect();
    let mut seen: Vec<u32> = (0..200).map(|_| edited.sample(&row).unwrap()).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, [1, 2], "penalties first push token 0 out of the best two");

    let mut after = sampler(&SamplingParams { samplers: vec![TopK, Penalties], ..params }, 5);
    after.accept(0);
    let seen: Vec<u32> = (0..200).map(|_| after.sample(&row).unwrap()).collect();
    assert!(!seen.contains(&2) && seen.contains(&1), "penalties last only choose within the best two");

    assert_eq!(
        drawn(&SamplingParams { top_k: 1, ..bare(&[MinP]) }, &five),
        [0, 1, 2, 3, 4],
        "not listed, not run"
    );
}

#[test]
fn the_default_chain_cuts_with_its_defaults() {
    // min_p 0.05 of 0.6 is 0.03; top_p 0.95 crosses with the third token (0.6 + 0.3 + 0.06).
    let params = SamplingParams { seed: 5, ..Default::default() };
    assert_eq!(drawn(&params, &[0.6, 0.3, 0.06, 0.035, 0.005]), [0, 1, 2]);
}

#[test]
fn bias_comes_first_and_can_forbid() {
    let forbidden =
        SamplingParams { temperature: 0.0, logit_bias: vec![(1, f32::NEG_INFINITY)], ..Default::default() };
    assert_eq!(sampler(&forbidden, 3).sample(&[0.0, 9.0, 1.0]), Ok(2));
    let raised = SamplingParams { temperature: 0.0, logit_bias: vec![(0, 10.0)], ..Default::default() };
    assert_eq!(sampler(&raised, 3).sample(&[0.0, 9.0, 1.0]), Ok(0));
    let all = SamplingParams {
        logit_bias: (0..3).map(|id| (id, f32::NEG_INFINITY)).collect(),
        ..Default::default()
    };
    assert_eq!(sampler(&all, 3).sample(&[0.0, 9.0, 1.0]), Err(SampleError::NothingPossible));
    let all_greedy = SamplingParams { temperature: 0.0, ..all };
    assert_eq!(sampler(&all_greedy, 3).sample(&[0.0, 9.0, 1.0]), Err(SampleError::NothingPossible));
}

#[test]
fn broken_rows_are_errors_and_the_next_row_works() {
    for temperature in [0.0, 0.8] {
        let mut sampler = sampler(&SamplingParams { temperature, ..Default::default() }, 2);
        assert!(matches!(sampler.sample(&[f32::NAN, 0.0]), Err(SampleError::BrokenRow { index: 0, .. })));
        assert!(matches!(
            sampler.sample(&[0.0, f32::INFINITY]),
            Err(SampleError::BrokenRow { index: 1, .. })
        ));
        assert_eq!(sampler.sample(&[f32::NEG_INFINITY; 2]), Err(SampleError::NothingPossible));
        assert_eq!(sampler.sample(&[0.0; 3]), Err(SampleError::Width { expected: 2, got: 3 }));
        assert_eq!(sampler.sample(&[f32::NEG_INFINITY, 0.0]), Ok(1));
    }
}

#[test]
fn a_random_seed_is_drawn_and_reported() {
    let mut seeds: Vec<u32> = (0..4).map(|_| sampler(&SamplingParams::default(), 2).seed()).collect();
    assert!(!seeds.contains(&RANDOM_SEED));
    seeds.dedup();
    assert!(seeds.len() > 1, "four equal random seeds");
    assert_eq!(sampler(&SamplingParams { seed: 0, ..Default::default() }, 2).seed(), 0);
    // The reported seed repeats the run.
    let row: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).sin()).collect();
    let mut first = sampler(&SamplingParams { min_p: 0.0, ..Default::default() }, 50);
    let mut second = sampler(&SamplingParams { min_p: 0.0, seed: first.seed(), ..Default::default() }, 50);
    for _ in 0..20 {
        assert_eq!(first.sample(&row), second.sample(&row));
    }
}

#[test]
fn post_sampling_candidates_carry_what_was_drawn_from() {
    let params = SamplingParams { top_k: 2, ..bare(&[SamplerKind::TopK]) };
    let mut sampler = sampler(&params, 3);
    sampler.sample(&[2.0f32.ln(), 0.0, 6.0f32.ln()]).unwrap();
    let p: Vec<(u32, f32)> =
        sampler.last_candidates().iter().map(|candidate| (candidate.id, candidate.p)).collect();
    assert_eq!((p[0].0, p[1].0, p.len()), (2, 0, 2));
    assert!((p[0].1 - 0.75).abs() < 1e-6 && (p[1].1 - 0.25).abs() < 1e-6);
}

#[test]
fn a_seed_gives_this_text() {
    // Changing these tokens breaks every user who relies on a seed: do it knowingly.
    let row: Vec<f32> = (0..100).map(|i| (i as f32 * 1.3).cos() * 3.0).collect();
    let mut sampler = sampler(&SamplingParams { seed: 42, ..Default::default() }, 100);
    let text: Vec<u32> = (0..8).map(|_| sampler.sample(&row).unwrap()).collect();
    assert_eq!(text, SEED_42);
}

const SEED_42: [u32; 8] = [39, 20, 63, 10, 24, 87, 24, 14];

fn logit() -> impl Strategy<Value = f32> {
    prop_oneof![8 => -20.0f32..20.0, 1 => Just(f32::NEG_INFINITY), 1 => (-4i32..4).prop_map(|i| i as f32), 1 => -1e30f32..1e30]
}

prop_compose! {
    fn settings()(
        chain in (any::<u32>(), -0.5f32..3.0, prop_oneof![Just(0.0f32), 0.0f32..2.0], -1.0f32..3.0, -2i32..50, 0.0f32..1.2),
        cuts in (0.0f32..1.2, -1.0f32..4.0, 0.0f32..1.1, 0.0f32..0.6, 0.0f32..1.1, 0usize..8),
        edits in (-1i32..20, 0.01f32..4.0, -3.0f32..3.0, -3.0f32..3.0, prop_oneof![Just(0.0f32), -2.0f32..5.0], 0.5f32..9.0, -1i32..5),
        feedback in (0u8..3, -1.0f32..9.0, -1.0f32..2.0, -1.0f32..1.0, 0.0f32..0.99),
        order in Just(SamplerKind::DEFAULT_ORDER.iter().copied().chain([SamplerKind::AdaptiveP]).collect::<Vec<_>>()).prop_shuffle(),
        kept in 0usize..11,
        bias in prop::collection::vec((0u32..8, prop_oneof![-5.0f32..5.0, Just(f32::NEG_INFINITY), -1e38f32..1e38]), 0..4),
    ) -> SamplingParams {
        SamplingParams {
            seed: chain.0, temperature: chain.1, dynatemp_range: chain.2, dynatemp_exponent: chain.3, top_k: chain.4, top_p: chain.5,
            min_p: cuts.0, top_n_sigma: cuts.1, xtc_probability: cuts.2, xtc_threshold: cuts.3, typical_p: cuts.4, min_keep: cuts.5,
            repeat_last_n: edits.0, repeat_penalty: edits.1, presence_penalty: edits.2, frequency_penalty: edits.3,
            dry_multiplier: edits.4, dry_base: edits.5, dry_allowed_length: edits.6, dry_penalty_last_n: -1,
            mirostat: feedback.0, mirostat_tau: feedback.1, mirostat_eta: feedback.2, adaptive_target: feedback.3, adaptive_decay: feedback.4,
            samplers: order.into_iter().take(kept).collect(), logit_bias: bias,
            ..Default::default()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_the_settings_a_possible_token_comes_out(
        params in settings(),
        rows in prop::collection::vec(prop::collection::vec(logit(), 8), 1..12),
        prompt in prop::collection::vec(0u32..8, 0..12),
    ) {
        let mut sampler = sampler(&params, 8);
        prompt.iter().for_each(|&token| sampler.accept(token));
        for row in &rows {
            let forbidden = |id: u32| {
                row[id as usize] == f32::NEG_INFINITY || params.logit_bias.contains(&(id, f32::NEG_INFINITY))
            };
            match sampler.sample(row) {
                Ok(token) => {
                    prop_assert!(!forbidden(token), "token {token} of {row:?}");
                    prop_assert!(sampler.last_candidates().iter().any(|candidate| candidate.id == token && candidate.p > 0.0));
                    sampler.accept(token);
                }
                Err(error) => {
                    prop_assert_eq!(error, SampleError::NothingPossible);
                    prop_assert!((0..8).all(forbidden));
                }
            }
        }
    }

    #[test]
    fn greedy_is_the_argmax_with_the_lowest_id(
        mut params in settings(), row in prop::collection::vec((-4i32..4).prop_map(|i| i as f32), 1..300), temperature in -1.0f32..=0.0,
    ) {
        params = SamplingParams {
            temperature, dynatemp_range: 0.0, samplers: SamplerKind::DEFAULT_ORDER.to_vec(), logit_bias: vec![], mirostat: params.mirostat,
            repeat_penalty: 1.0, presence_penalty: 0.0, frequency_penalty: 0.0, dry_multiplier: 0.0, xtc_probability: 0.0, typical_p: 1.0,
            ..params
        };
        let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let expected = row.iter().position(|&logit| logit == best).unwrap() as u32;
        prop_assert_eq!(sampler(&params, row.len()).sample(&row), Ok(expected));
    }

    #[test]
    fn the_greedy_shortcut_equals_the_chain(
        mut params in settings(), row in prop::collection::vec(-8.0f32..8.0, 8), prompt in prop::collection::vec(0u32..8, 0..12),
    ) {
        params = SamplingParams {
            temperature: 0.0, dynatemp_range: 0.0, mirostat: 0, adaptive_target: -1.0, samplers: SamplerKind::DEFAULT_ORDER.to_vec(),
            xtc_probability: 0.0, typical_p: 1.0, ..params
        };
        // The same chain, kept off the shortcut by a sampler that only leaves what is there.
        let slow = SamplingParams { typical_p: 0.999_999, samplers: {
            let mut order = SamplerKind::DEFAULT_ORDER.to_vec();
            order.retain(|kind| *kind != SamplerKind::TypicalP);
            order.insert(order.len() - 1, SamplerKind::TypicalP);
            order
        }, min_keep: 8, top_p: 1.0, ..params.clone() };
        let run = |params: &SamplingParams| {
            let mut sampler = sampler(params, 8);
            prompt.iter().for_each(|&token| sampler.accept(token));
            sampler.sample(&row)
        };
        prop_assert_eq!(run(&params), run(&slow));
    }

    #[test]
    fn a_fixed_seed_is_a_fixed_text(params in settings(), rows in prop::collection::vec(prop::collection::vec(-8.0f32..8.0, 8), 1..10)) {
        let params = SamplingParams { seed: params.seed.min(RANDOM_SEED - 1), ..params };
        let run = || {
            let mut sampler = sampler(&params, 8);
            rows.iter().map(|row| { let token = sampler.sample(row); token.iter().for_each(|&token| sampler.accept(token)); token }).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn reported_probabilities_sum_to_one(row in prop::collection::vec(-8.0f32..8.0, 1..40)) {
        let probs = row_probs(&row, 0, row.len()).unwrap();
        let sum: f32 = probs.top.iter().map(|(_, logprob)| logprob.exp()).sum();
        prop_assert!((sum - 1.0).abs() < 1e-4);
        prop_assert!(probs.top.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        prop_assert!(probs.top.iter().any(|(id, logprob)| *id == 0 && *logprob == probs.chosen));
    }
}
