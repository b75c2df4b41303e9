//! What of an earlier request a later one finds again, and that it never finds anything else.

use super::*;

fn next_turn(first: &Client, prompt: &[u32], more: &[u32]) -> Vec<u32> {
    prompt.iter().copied().chain(first.ids()).chain(more.iter().copied()).collect()
}

#[test]
fn the_next_turn_reuses_all_of_the_last() {
    for rollback in [Rollback::Truncate, Rollback::Checkpoints] {
        let mut bench = Bench::roomy(rollback, 2);
        let opening = prompt(1, 30);
        let first = bench.ask(request(&opening));
        let again = next_turn(&first, &opening, &[5, 6]);
        let second = bench.ask(request(&again));
        // The last generated token was never run; everything before it is in the state.
        assert_eq!(second.done().n_cached, first.done().n_past, "{rollback:?}");
        assert_eq!(second.done().slot, first.done().slot);
    }
}

#[test]
fn the_same_prompt_again_runs_one_token() {
    for rollback in [Rollback::Truncate, Rollback::Checkpoints] {
        let mut bench = Bench::roomy(rollback, 1);
        let first = bench.ask(request(&prompt(1, 30)));
        let second = bench.ask(request(&prompt(1, 30)));
        assert_eq!((first.done().n_cached, second.done().n_cached), (0, 29), "{rollback:?}");
        assert_eq!(first.ids(), second.ids());
        let fresh = bench.ask(Generate { cache_prompt: false, ..request(&prompt(1, 30)) });
        assert_eq!((fresh.done().n_cached, fresh.ids()), (0, first.ids()));
    }
}

#[test]
fn a_reworded_answer_resumes_at_a_checkpoint_near_the_prompts_end() {
    let mut bench = Bench::roomy(Rollback::Checkpoints, 1);
    let opening = prompt(1, 30);
    bench.ask(request(&opening));
    let mut reworded = opening.clone();
    reworded.truncate(27);
    reworded.extend([9, 9, 9, 9, 9]);
    assert_eq!(
        bench.ask(request(&reworded)).done().n_cached,
        22,
        "8 tokens before the end of the old prompt"
    );
}

#[test]
fn interleaved_talks_find_their_own_state_only() {
    for (rollback, cache_ram) in
        [(Rollback::Truncate, Some(0)), (Rollback::Truncate, None), (Rollback::Checkpoints, None)]
    {
        let settings = EngineSettings { n_slots: 2, n_ctx_slot: 256, cache_ram, ..EngineSettings::default() };
        let mut bench = Bench::new(Toy::new(rollback, 16, 8, 400), settings);
        // Three talks over two slots, turn by turn.
        let mut talks: Vec<Vec<u32>> = (0..3).map(|seed| prompt(seed * 50, 20)).collect();
        for turn in 0..4 {
            for talk in &mut talks {
                let answer = bench.ask(request(talk));
                let solo = Bench::roomy(Rollback::Truncate, 1).ask(request(talk));
                assert_eq!(answer.ids(), solo.ids(), "foreign text in turn {turn}");
                if turn > 0 && cache_ram.is_none() {
                    assert!(answer.done().n_cached >= 20, "turn {turn} lost its talk");
                }
                *talk = next_turn(&answer, talk, &[7, 8, 9]);
            }
        }
    }
}

#[test]
fn the_longest_of_slot_and_memory_wins() {
    let mut bench = Bench::roomy(Rollback::Truncate, 1);
    let long = prompt(1, 60);
    bench.ask(request(&long));
    // A short talk with the same beginning takes the slot; the long one goes to memory.
    let mut short = long[..12].to_vec();
    short.push(26);
    assert_eq!(bench.ask(request(&short)).done().n_cached, 12);
    assert!(bench.core.cache.bytes() > 0);
    let mut longer = long.clone();
    longer.extend([3, 3, 3]);
    assert_eq!(bench.ask(request(&longer)).done().n_cached, 60);
}

#[test]
fn a_shared_beginning_is_copied_from_a_busy_slot() {
    let mut bench = Bench::roomy(Rollback::Truncate, 2);
    let shared = prompt(1, 40);
    let mut clients =
        vec![bench.submit(Generate { n_predict: Some(50), ignore_eos: true, ..request(&shared) })];
    for _ in 0..10 {
        bench.step(&mut clients);
    }
    let mut other = shared.clone();
    other.extend([4, 4]);
    clients.push(bench.submit(request(&other)));
    bench.finish(&mut clients);
    assert_eq!(clients[1].done().n_cached, 40);
    assert_ne!(clients[0].done().slot, clients[1].done().slot);
}

#[test]
fn a_talk_keeps_its_slot_and_strangers_take_the_oldest() {
    let mut bench = Bench::roomy(Rollback::Truncate, 3);
    let slots: Vec<usize> =
        (0..3).map(|seed| bench.ask(request(&prompt(seed * 31, 20))).done().slot).collect();
    assert_eq!(slots, [0, 1, 2], "empty slots first");
    assert_eq!(bench.ask(request(&prompt(31, 20))).done().slot, 1);
    assert_eq!(bench.ask(request(&prompt(999, 20))).done().slot, 0, "unused for longest");
    let pinned = bench.ask(Generate { slot: Some(2), ..request(&prompt(31, 20)) });
    assert_eq!((pinned.done().slot, pinned.done().n_cached), (2, 19), "copied from slot 1");
}

#[test]
fn a_cancelled_prompt_is_a_prefix_for_the_next() {
    let mut bench = Bench::roomy(Rollback::Truncate, 1);
    let mut clients = vec![bench.submit(request(&prompt(1, 100)))];
    bench.step(&mut clients);
    bench.step(&mut clients);
    clients[0].cancel();
    bench.step(&mut clients);
    assert_eq!(bench.board.load().n_processing, 0);
    assert_eq!(bench.ask(request(&prompt(1, 100))).done().n_cached, 32, "two chunks of 16");
}

#[test]
fn a_damaged_entry_costs_only_itself() {
    let mut bench = Bench::roomy(Rollback::Truncate, 1);
    bench.ask(request(&prompt(1, 60)));
    bench.ask(request(&prompt(2, 60)));
    let mut entry = bench.core.cache.take(0).unwrap();
    entry.state.truncate(9);
    bench.core.cache.put(entry);
    let answer = bench.ask(request(&prompt(1, 60)));
    assert_eq!(answer.done().n_cached, 0);
    assert_eq!(answer.ids(), Bench::roomy(Rollback::Truncate, 1).ask(request(&prompt(1, 60))).ids());
}
