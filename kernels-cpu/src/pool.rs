//! The thread pool: a job is a number of chunks, claimed one by one, done when the last chunk is finished.
//!
//! Completion counts chunks, not threads: a worker that the system has put aside before it claimed a chunk delays nobody,
//! and the caller works too. Waiting spins for a bounded time and then sleeps, so that a machine shared with other busy
//! processes loses little; when waiting costs more than the others did, the caller works alone for a while. Chunks write disjoint results, so no bit depends on who ran which.

use crate::balance::Balance;
use crate::topology::{Topology, stay_on};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a waiting thread spins before it sleeps: longer than the gap between two steps of a token, far shorter than a
/// scheduler's time slice.
const SPIN: Duration = Duration::from_micros(60);

/// The ticket's count while no job may be claimed.
const CLOSED: u32 = u32::MAX;

/// What a job is to the threads: chunk number and worker number (0 is the caller).
type Job<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Threads that run chunks.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One job at a time, whoever calls.
    turn: Mutex<Balance>,
}

struct Shared {
    /// Job number in the high half, next chunk in the low half: claiming a chunk of an old job cannot succeed.
    ticket: AtomicU64,
    /// Address of the caller's `Job` reference.
    job: AtomicPtr<()>,
    chunks: AtomicUsize,
    done: AtomicUsize,
    stop: AtomicBool,
    panicked: AtomicBool,
    sleeping: Vec<AtomicBool>,
    caller_sleeps: AtomicBool,
    caller: Mutex<Option<Thread>>,
}

impl Pool {
    /// `threads` in all, the calling thread included; `None` asks the machine. Workers stay on the physical cores that this
    /// process may use, so that none meets another on one core's hyper-threads; within them the system may move a worker
    /// away from a busy neighbour.
    pub fn new(threads: Option<usize>) -> Pool {
        let topology = Topology::detect();
        let threads = threads.unwrap_or_else(|| topology.threads()).clamp(1, 1024);
        let shared = Arc::new(Shared {
            ticket: AtomicU64::new(u64::from(CLOSED)),
            job: AtomicPtr::new(std::ptr::null_mut()),
            chunks: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            sleeping: (1..threads).map(|_| AtomicBool::new(false)).collect(),
            caller_sleeps: AtomicBool::new(false),
            caller: Mutex::new(None),
        });
        // More threads than cores: the user wants the hyper-threads, so nothing is pinned.
        let cores = (threads <= topology.cores.len()).then_some(topology.cores);
        let mut workers = Vec::with_capacity(threads - 1);
        for worker in 1..threads {
            let (shared, cores) = (shared.clone(), cores.clone());
            let spawned = std::thread::Builder::new().name(format!("cpu-{worker}")).spawn(move || {
                if let Some(cores) = cores {
                    stay_on(&cores);
                }
                shared.work(worker);
            });
            match spawned {
                Ok(handle) => workers.push(handle),
                Err(error) => {
                    tracing::warn!(%error, started = worker, asked = threads, "fewer threads than asked for");
                    break;
                }
            }
        }
        Pool { shared, workers, turn: Mutex::new(Balance::new()) }
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job(chunk, worker)` for every chunk below `chunks` and returns when all are finished. `worker` is below
    /// [`Pool::threads`]; 0 is the caller. A job must not call the pool again.
    ///
    /// # Panics
    /// When the job panicked in some chunk; the other chunks have run.
    pub fn run(&self, chunks: usize, job: impl Fn(usize, usize) + Sync) {
        if chunks <= 1 || self.workers.is_empty() || chunks >= CLOSED as usize {
            return run_alone(chunks, &job);
        }
        let mut balance = self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let start = Instant::now();
        if balance.alone(start) {
            drop(balance);
            return run_alone(chunks, &job);
        }
        let job: Job<'_> = &job;
        self.shared.publish(&job, chunks, &self.workers);
        let mine = catch_unwind(AssertUnwindSafe(|| self.shared.claim_all(0)));
        let worked = Instant::now();
        self.shared.wait();
        let panicked = self.shared.panicked.swap(false, Ordering::AcqRel);
        match mine {
            Err(panic) => {
                drop(balance);
                resume_unwind(panic);
            }
            Ok(mine) => {
                let now = Instant::now();
                balance.book(worked - start, mine, chunks - mine, now - worked, now);
            }
        }
        drop(balance);
        assert!(!panicked, "a chunk of the job panicked");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn publish(&self, job: &Job<'_>, chunks: usize, workers: &[JoinHandle<()>]) {
        let number = (self.ticket.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        // Close first: whoever read the new fields below cannot claim with an old ticket any more.
        self.ticket.store((number << 32) | u64::from(CLOSED), Ordering::Release);
        self.job.store(std::ptr::from_ref(job).cast_mut().cast(), Ordering::Release);
        self.chunks.store(chunks, Ordering::Release);
        self.done.store(0, Ordering::Release);
        self.ticket.store(number << 32, Ordering::SeqCst);
        // Wake no more than can find a chunk.
        for (sleeping, worker) in self.sleeping.iter().zip(workers).take(chunks - 1) {
            if sleeping.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
    }

    /// Claims and runs chunks of the present job until none is left; how many it ran.
    fn claim_all(&self, worker: usize) -> usize {
        let mut ran = 0;
        let mut ticket = self.ticket.load(Ordering::Acquire);
        let number = ticket >> 32;
        loop {
            let job = self.job.load(Ordering::Acquire);
            let chunks = self.chunks.load(Ordering::Acquire);
            let chunk = (ticket & u64::from(u32::MAX)) as usize;
            if ticket >> 32 != number || chunk >= chunks {
                return ran;
            }
            match self.ticket.compare_exchange_weak(ticket, ticket + 1, Ordering::AcqRel, Ordering::Acquire) {
                Err(now) => ticket = now,
                Ok(_) => {
                    let finish = Finish { shared: self, whole: false };
                    // SAFETY: the exchange succeeded, so the job of this number was still open when `job` and `chunks`
                    // were read (publishing closes the ticket before it changes them), and it stays open until the
                    // chunk that was just claimed is counted as done: the caller's reference outlives this call.
                    let run = unsafe { *job.cast::<Job<'_>>() };
                    run(chunk, worker);
                    finish.whole();
                    ran += 1;
                    ticket = self.ticket.load(Ordering::Acquire);
                }
            }
        }
    }

    fn all_done(&self) -> bool {
        self.done.load(Ordering::Acquire) == self.chunks.load(Ordering::Relaxed)
    }

    /// The caller waits for the chunks that others claimed, and for the chunks that its own panic left.
    fn wait(&self) {
        while {
            let ticket = self.ticket.load(Ordering::Acquire);
            ((ticket & u64::from(u32::MAX)) as usize) < self.chunks.load(Ordering::Relaxed)
        } {
            let _ = catch_unwind(AssertUnwindSafe(|| self.claim_all(0)));
        }
        if spin_until(|| self.all_done()) {
            return;
        }
        *self.caller.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(std::thread::current());
        self.caller_sleeps.store(true, Ordering::SeqCst);
        while !self.all_done() {
            std::thread::park_timeout(Duration::from_millis(10));
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }

    fn work(&self, worker: usize) {
        let mut seen = self.ticket.load(Ordering::Acquire) >> 32;
        let fresh = |seen: u64| {
            let ticket = self.ticket.load(Ordering::SeqCst);
            ticket >> 32 != seen && (ticket & u64::from(u32::MAX)) as u32 != CLOSED
        };
        let ready = |seen: u64| self.stop.load(Ordering::Relaxed) || fresh(seen);
        loop {
            if !spin_until(|| ready(seen)) {
                self.sleeping[worker - 1].store(true, Ordering::SeqCst);
                while !ready(seen) && !self.stop.load(Ordering::SeqCst) {
                    std::thread::park();
                }
                self.sleeping[worker - 1].store(false, Ordering::SeqCst);
            }
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            seen = self.ticket.load(Ordering::Acquire) >> 32;
            while catch_unwind(AssertUnwindSafe(|| self.claim_all(worker))).is_err() {}
        }
    }
}

/// All chunks on the calling thread; a panic goes on when the others have run.
fn run_alone(chunks: usize, job: Job<'_>) {
    let mut panicked = None;
    for chunk in 0..chunks {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(chunk, 0))) {
            panicked.get_or_insert(panic);
        }
    }
    if let Some(panic) = panicked {
        resume_unwind(panic);
    }
}

/// Counts a chunk as done, also when it panics.
struct Finish<'a> {
    shared: &'a Shared,
    whole: bool,
}

impl Finish<'_> {
    fn whole(mut self) {
        self.whole = true;
    }
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let shared = self.shared;
        if !self.whole {
            shared.panicked.store(true, Ordering::Release);
        }
        let chunks = shared.chunks.load(Ordering::Relaxed);
        if shared.done.fetch_add(1, Ordering::SeqCst) + 1 == chunks
            && shared.caller_sleeps.load(Ordering::SeqCst)
        {
            let caller = shared.caller.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if let Some(thread) = caller.as_ref() {
                thread.unpark();
            }
        }
    }
}

/// Spins for at most [`SPIN`]; whether the condition came true.
fn spin_until(condition: impl Fn() -> bool) -> bool {
    for _ in 0..200 {
        if condition() {
            return true;
        }
        std::hint::spin_loop();
    }
    let start = Instant::now();
    while start.elapsed() < SPIN {
        for _ in 0..20 {
            if condition() {
                return true;
            }
            std::hint::spin_loop();
        }
    }
    condition()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_runs_once() {
        for threads in [1, 2, 3, 7] {
            let pool = Pool::new(Some(threads));
            for chunks in [0, 1, 2, 3, 64, 1000] {
                for _ in 0..20 {
                    let counts: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
                    pool.run(chunks, |chunk, worker| {
                        assert!(worker < pool.threads());
                        counts[chunk].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(
                        counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
                        "{threads} threads, {chunks} chunks"
                    );
                }
            }
        }
    }

    #[test]
    fn sleeping_workers_wake() {
        let pool = Pool::new(Some(3));
        for round in 0..30 {
            std::thread::sleep(SPIN * (round % 4));
            let sum = AtomicUsize::new(0);
            pool.run(50, |chunk, _| {
                if chunk == 7 {
                    // Long enough for the caller to fall asleep too.
                    std::thread::sleep(SPIN * 3);
                }
                sum.fetch_add(chunk, Ordering::Relaxed);
            });
            assert_eq!(sum.load(Ordering::Relaxed), 49 * 50 / 2);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(Some(2));
        for bad in [0, 5, 19] {
            let ran = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(20, |chunk, _| {
                    ran.fetch_add(1, Ordering::Relaxed);
                    assert!(chunk != bad, "chunk {bad} fails on purpose");
                });
            }));
            assert!(result.is_err());
            assert_eq!(ran.load(Ordering::Relaxed), 20);
            let again = AtomicUsize::new(0);
            pool.run(20, |_, _| {
                again.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(again.load(Ordering::Relaxed), 20);
        }
    }
}
