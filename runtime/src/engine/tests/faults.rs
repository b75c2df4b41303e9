//! Faults of the executor: who pays, and that the engine goes on.

use super::*;
use crate::engine::toy::Fault;

fn with_faults(faults: &[(usize, Fault)], n_slots: usize) -> Bench {
    let bench = Bench::roomy(Rollback::Truncate, n_slots);
    bench.seen.lock().unwrap().faults = faults.iter().copied().collect();
    bench
}

#[test]
fn a_panic_or_a_failure_ends_the_requests_of_its_step() {
    for fault in [Fault::Panic, Fault::Failure] {
        let mut bench = with_faults(&[(4, fault)], 2);
        let mut clients: Vec<Client> = (0..3).map(|seed| bench.submit(request(&prompt(seed, 10)))).collect();
        bench.finish(&mut clients);
        for client in &clients[..2] {
            assert!(
                matches!(client.error(), RequestError::Executor(reason) if reason.contains("the toy")),
                "{fault:?}"
            );
        }
        let solo = Bench::roomy(Rollback::Truncate, 1).ask(request(&prompt(2, 10)));
        assert_eq!(clients[2].ids(), solo.ids(), "the third was waiting and never noticed");
        assert_eq!(bench.ask(request(&prompt(0, 10))).done().n_cached, 0, "lost state is not reused");
        assert!(bench.seen.lock().unwrap().n_sequences <= 2);
    }
}

#[test]
fn a_request_that_was_not_in_the_failed_step_starts_again() {
    // One row a step: the two requests take turns, and only one is in the failing step.
    let settings = EngineSettings { n_slots: 2, n_ctx_slot: 256, ..EngineSettings::default() };
    let mut bench = Bench::new(Toy::new(Rollback::Truncate, 1, 8, 400), settings);
    bench.seen.lock().unwrap().faults.insert(13, Fault::Failure);
    let mut clients: Vec<Client> = (0..2).map(|seed| bench.submit(request(&prompt(seed, 5)))).collect();
    bench.finish(&mut clients);
    let failed: Vec<bool> = clients.iter().map(|client| client.end.as_ref().unwrap().is_err()).collect();
    assert_eq!(failed.iter().filter(|failed| **failed).count(), 1);
    let survivor = usize::from(failed[0]);
    let solo = Bench::roomy(Rollback::Truncate, 1).ask(request(&prompt(survivor as u32, 5)));
    assert_eq!(clients[survivor].ids(), solo.ids());
}

#[test]
fn a_refused_sequence_fails_alone_in_the_same_step() {
    let mut bench = with_faults(&[(3, Fault::Sequence)], 3);
    let mut clients: Vec<Client> = (0..3).map(|seed| bench.submit(request(&prompt(seed, 4)))).collect();
    bench.finish(&mut clients);
    let failed: Vec<usize> = (0..3).filter(|&index| clients[index].end.as_ref().unwrap().is_err()).collect();
    assert_eq!(failed.len(), 1);
    for index in (0..3).filter(|index| !failed.contains(index)) {
        let solo = Bench::roomy(Rollback::Truncate, 1).ask(request(&prompt(index as u32, 4)));
        assert_eq!(clients[index].ids(), solo.ids());
        assert!(clients[index].steps.windows(2).all(|pair| pair[1] == pair[0] + 1), "no step was lost");
    }
}

#[test]
fn an_executor_beyond_repair_refuses_instead_of_hanging() {
    let mut bench = with_faults(&[(2, Fault::Broken)], 1);
    let mut clients: Vec<Client> = (0..3).map(|seed| bench.submit(request(&prompt(seed, 10)))).collect();
    bench.finish(&mut clients);
    assert!(clients.iter().all(|client| client.end.as_ref().unwrap().is_err()));
    assert!(bench.ask(request(&prompt(5, 5))).error().to_string().contains("stays broken"));
}

#[test]
fn a_cancelled_waiter_leaves_the_queue() {
    let mut bench = Bench::roomy(Rollback::Truncate, 1);
    let mut clients: Vec<Client> = (0..3).map(|seed| bench.submit(request(&prompt(seed, 10)))).collect();
    bench.step(&mut clients);
    clients[1].cancel();
    bench.step(&mut clients);
    assert_eq!(bench.board.load().n_deferred, 1);
    clients[0].cancel();
    bench.step(&mut clients);
    assert_eq!(bench.board.load().slots[0].task, Some(2));
    bench.finish(&mut clients);
    assert!(clients[2].end.as_ref().unwrap().is_ok());
}
