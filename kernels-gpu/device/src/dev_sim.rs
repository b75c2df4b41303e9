//! The same on this processor: every thread of a block is a coroutine; warp operations and barriers suspend it, and the scheduler checks
//! that all lanes came to the same one.

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::{Cell, RefCell};

#[derive(Clone, Copy, Debug)]
enum Op {
    Sync,
    Xor(u32, u32),
    Index(u32, u32),
}

impl Op {
    fn kind(self) -> u32 {
        match self {
            Op::Sync => 0,
            Op::Xor(_, mask) => 0x100 | mask,
            Op::Index(..) => 1,
        }
    }
}

struct Lane {
    tid: u32,
    yielder: Cell<*const Yielder<u32, Op>>,
    /// Copies that have not come, in groups; the last one is open.
    copies: RefCell<Vec<Vec<(u32, usize, u32)>>>,
}
struct Block {
    threads: u32,
    block: [u32; 3],
    grid: [u32; 3],
    shared: *mut u8,
    shared_bytes: u32,
}
thread_local! {
    static LANE: Cell<*mut Lane> = const { Cell::new(std::ptr::null_mut()) };
    static BLOCK: Cell<*const Block> = const { Cell::new(std::ptr::null()) };
    /// What the lanes of a warp show each other.
    static BOARD: RefCell<Vec<[u32; 6]>> = const { RefCell::new(Vec::new()) };
    static STACKS: Cell<Vec<DefaultStack>> = const { Cell::new(Vec::new()) };
}
fn lane() -> &'static Lane {
    // SAFETY: set by the scheduler before a lane runs.
    unsafe { &*LANE.get() }
}
fn block() -> &'static Block {
    // SAFETY: as above.
    unsafe { &*BLOCK.get() }
}
fn ask(op: Op) -> u32 {
    let me = LANE.get();
    // SAFETY: the yielder lives as long as its coroutine, which is running.
    let answer = unsafe { (*lane().yielder.get()).suspend(op) };
    LANE.set(me);
    answer
}

/// Runs a kernel over a grid.
pub fn launch(grid: [u32; 3], threads: u32, shared: u32, kernel: impl Fn() + Copy + 'static) {
    assert!(threads.is_multiple_of(32) && threads > 0, "{threads} threads");
    let mut stacks = STACKS.take();
    while stacks.len() < threads as usize {
        stacks.push(DefaultStack::new(64 << 10).expect("a stack"));
    }
    let mut memory = vec![0u128; shared as usize / 16 + 1];
    for z in 0..grid[2] {
        for y in 0..grid[1] {
            for x in 0..grid[0] {
                memory.fill(0xcdcd_cdcd_cdcd_cdcd_cdcd_cdcd_cdcd_cdcd);
                let here = Block {
                    threads,
                    block: [x, y, z],
                    grid,
                    shared: memory.as_mut_ptr().cast(),
                    shared_bytes: shared,
                };
                BLOCK.set(&here);
                run_block(threads, &mut stacks, kernel);
            }
        }
    }
    STACKS.set(stacks);
}

fn run_block(threads: u32, stacks: &mut Vec<DefaultStack>, kernel: impl Fn() + Copy + 'static) {
    let n = threads as usize;
    let mut lanes: Vec<Box<Lane>> = (0..threads)
        .map(|tid| {
            Box::new(Lane {
                tid,
                yielder: Cell::new(std::ptr::null()),
                copies: RefCell::new(vec![Vec::new()]),
            })
        })
        .collect();
    let mut coroutines: Vec<_> = (0..n)
        .map(|_| {
            Coroutine::with_stack(
                stacks.pop().expect("a stack"),
                move |yielder: &Yielder<u32, Op>, _: u32| {
                    lane().yielder.set(yielder);
                    kernel();
                },
            )
        })
        .collect();
    let mut waits: Vec<Option<Op>> = vec![None; n];
    let mut input = vec![0u32; n];
    let mut done = vec![false; n];
    loop {
        let mut progress = false;
        for warp in 0..n / 32 {
            let range = warp * 32..warp * 32 + 32;
            for i in range.clone() {
                if done[i] || waits[i].is_some() {
                    continue;
                }
                progress = true;
                LANE.set(&mut *lanes[i]);
                match coroutines[i].resume(input[i]) {
                    CoroutineResult::Yield(op) => waits[i] = Some(op),
                    CoroutineResult::Return(()) => done[i] = true,
                }
            }
            let ops: Vec<Option<Op>> = range.clone().map(|i| waits[i]).collect();
            let live = range.clone().filter(|&i| !done[i]).count();
            let at_barrier = ops.iter().flatten().any(|op| matches!(op, Op::Sync));
            if live == 0 || at_barrier {
                let all = ops.iter().flatten().all(|op| matches!(op, Op::Sync));
                assert!(live == 0 || all, "warp {warp}: some lanes at a barrier, some at a warp operation");
                continue;
            }
            let kind = ops.iter().flatten().next().map(|op| op.kind());
            assert!(
                ops.iter().all(|op| op.map(Op::kind) == kind),
                "warp {warp}: lanes part at a warp operation"
            );
            let value = |lane: usize| match ops[lane & 31] {
                Some(Op::Xor(v, _) | Op::Index(v, _)) => v,
                _ => 0,
            };
            for (j, i) in range.enumerate() {
                input[i] = match ops[j] {
                    Some(Op::Xor(_, mask)) => value(j ^ mask as usize),
                    Some(Op::Index(_, from)) => value(from as usize),
                    _ => 0,
                };
                waits[i] = None;
            }
            progress = true;
        }
        if done.iter().all(|done| *done) {
            break;
        }
        if (0..n).all(|i| done[i] || matches!(waits[i], Some(Op::Sync))) {
            waits.iter_mut().for_each(|wait| *wait = None);
            continue;
        }
        assert!(progress, "deadlock");
    }
    stacks.extend(coroutines.into_iter().map(|coroutine| coroutine.into_stack()));
}

/// Thread of the block.
pub fn tid() -> u32 {
    lane().tid
}
/// Threads of the block.
pub fn ntid() -> u32 {
    block().threads
}
/// Block, first number.
pub fn ctaid_x() -> u32 {
    block().block[0]
}
/// Block, second number.
pub fn ctaid_y() -> u32 {
    block().block[1]
}
/// Block, third number.
pub fn ctaid_z() -> u32 {
    block().block[2]
}
/// Blocks, first number.
pub fn nctaid_x() -> u32 {
    block().grid[0]
}
/// The launch behind this one may begin once every block has come here; it waits for results itself.
pub fn let_next_begin() {}
/// Waits until everything that launches before this one wrote is there.
pub fn wait_for_launches() {}
/// Barrier of the block.
pub fn sync() {
    ask(Op::Sync);
}
/// The value of the lane whose number differs in these bits.
pub fn shfl_xor(v: u32, mask: u32) -> u32 {
    ask(Op::Xor(v, mask))
}
/// The value of that lane.
pub fn shfl(v: u32, lane: u32) -> u32 {
    ask(Op::Index(v, lane))
}
/// `c + a b` of int8 matrices `[16, 32]` and `[32, 8]`, spread over the lanes of a warp as `mma.m16n8k32` has them.
pub fn mma_s8(mut c: [i32; 4], a: [u32; 4], b: [u32; 2]) -> [i32; 4] {
    let dot = |a: u32, b: u32| -> i32 {
        (0..4).map(|i| i32::from((a >> (8 * i)) as u8 as i8) * i32::from((b >> (8 * i)) as u8 as i8)).sum()
    };
    let (group, pair) = (tid() % 32 / 4, tid() % 4);
    for part in 0..4 {
        let rows = a.map(|word| shfl(word, 4 * group + part));
        for column in 0..2 {
            let column_lane = 4 * (2 * pair + column) + part;
            let columns = b.map(|word| shfl(word, column_lane));
            let column = column as usize;
            c[column] += dot(rows[0], columns[0]) + dot(rows[2], columns[1]);
            c[2 + column] += dot(rows[1], columns[0]) + dot(rows[3], columns[1]);
        }
    }
    c
}
/// Shows this lane's words to its warp, and what `read` makes of everybody's: `read(lane)` is what that lane showed.
fn together<R>(words: [u32; 6], read: impl FnOnce(&dyn Fn(u32) -> [u32; 6]) -> R) -> R {
    BOARD.with_borrow_mut(|board| {
        board.resize(block().threads as usize, [0; 6]);
        board[tid() as usize] = words;
    });
    ask(Op::Xor(0, 0));
    let first = tid() & !31;
    let result = read(&|lane| BOARD.with_borrow(|board| board[(first + lane) as usize]));
    // Nobody shows anything else before all have read.
    ask(Op::Xor(0, 0));
    result
}
/// `c + a b` of f16 matrices `[16, 16]` and `[16, 8]`, spread over the lanes of a warp as `mma.m16n8k16` has them.
pub fn mma_f16(c: [f32; 4], a: [u32; 4], b: [u32; 2]) -> [f32; 4] {
    let value = |word: u32, i: u32| f64::from(half((word >> (16 * i)) as u16));
    let (group, pair) = (tid() % 32 / 4, tid() % 4);
    together([a[0], a[1], a[2], a[3], b[0], b[1]], |of| {
        std::array::from_fn(|k| {
            let (low, column) = (k / 2, 2 * pair + k as u32 % 2);
            let products = (0..16u32).map(|i| {
                let (high, lane, part) = (i / 8, i % 8 / 2, i % 2);
                let x = of(4 * group + lane)[low + 2 * high as usize];
                let y = of(4 * column + lane)[4 + high as usize];
                value(x, part) * value(y, part)
            });
            (f64::from(c[k]) + products.sum::<f64>()) as f32
        })
    })
}
/// Four 8x8 matrices of halves from shared memory, row `lane mod 8` of matrix `lane / 8` at this lane's address: the lane's two
/// neighbours in row `lane / 4`.
///
/// # Safety
/// The rows are there.
pub unsafe fn matrices(at: u32) -> [u32; 4] {
    let _ = shared_at(at, 16);
    let (row, column) = (tid() % 32 / 4, tid() % 4);
    together([at, 0, 0, 0, 0, 0], |of| {
        // SAFETY: every lane checked its row.
        std::array::from_fn(|m| unsafe { shared4(of(8 * m as u32 + row)[0] + 4 * column) })
    })
}
/// The same, turned: the lane's two neighbours in column `lane / 4`.
///
/// # Safety
/// The rows are there.
pub unsafe fn matrices_turned(at: u32) -> [u32; 4] {
    let _ = shared_at(at, 16);
    let (column, row) = (tid() % 32 / 4, tid() % 4 * 2);
    together([at, 0, 0, 0, 0, 0], |of| {
        std::array::from_fn(|m| {
            // SAFETY: every lane checked its row.
            let value = |row| u32::from(unsafe { shared2(of(8 * m as u32 + row)[0] + 2 * column) });
            value(row) | value(row + 1) << 16
        })
    })
}
/// Two halves that are nearest to these values, the first in the low bits.
pub fn halves(low: f32, high: f32) -> u32 {
    use bloomery_formats::half::f32_to_f16;
    u32::from(f32_to_f16(low)) | u32::from(f32_to_f16(high)) << 16
}
/// A power of two, to about two units in the last place.
pub fn exp2(x: f32) -> f32 {
    x.exp2()
}
/// Asks for the line of global memory at an address, without waiting.
///
/// # Safety
/// It is there.
pub unsafe fn prefetch(p: *const u8) {
    // SAFETY: the caller's.
    let _ = unsafe { p.read_volatile() };
}
/// Square root, correctly rounded.
pub fn sqrt(x: f32) -> f32 {
    x.sqrt()
}
/// Four unsigned bytes times four signed ones, added to `c`.
pub fn dp4a_us(a: u32, b: u32, c: i32) -> i32 {
    (0..4).fold(c, |sum, i| sum + ((a >> (8 * i)) & 0xff) as i32 * i32::from((b >> (8 * i)) as u8 as i8))
}
/// Four of eight bytes: `which` names one in each of its low nibbles, 0 to 3 of `low`, 4 to 7 of `high`.
pub fn bytes_of(low: u32, high: u32, which: u32) -> u32 {
    let all = u64::from(high) << 32 | u64::from(low);
    (0..4).fold(0, |d, i| d | ((all >> (8 * (which >> (4 * i) & 7))) as u32 & 0xff) << (8 * i))
}
/// 16 aligned bytes of weights.
///
/// # Safety
/// They are there.
pub unsafe fn load16(p: *const u8) -> [u32; 4] {
    assert_eq!(p as usize % 16, 0, "misaligned 16-byte load");
    // SAFETY: the caller's.
    unsafe { p.cast::<[u32; 4]>().read() }
}
/// 16 aligned bytes of activations.
///
/// # Safety
/// They are there.
pub unsafe fn load16_kept(p: *const u8) -> [u32; 4] {
    // SAFETY: the caller's.
    unsafe { load16(p) }
}
/// The block's shared memory.
pub fn shared() -> *mut u8 {
    block().shared
}

fn shared_at(at: u32, bytes: u32) -> *mut u8 {
    assert!(at.is_multiple_of(bytes), "misaligned access of {bytes} bytes at {at} of shared memory");
    assert!(at + bytes <= block().shared_bytes, "{at} is outside shared memory");
    // SAFETY: within the block's shared memory.
    unsafe { block().shared.add(at as usize) }
}
/// 16 aligned bytes of shared memory, `at` bytes from its start.
///
/// # Safety
/// They are there.
pub unsafe fn shared16(at: u32) -> [u32; 4] {
    // SAFETY: checked.
    unsafe { shared_at(at, 16).cast::<[u32; 4]>().read() }
}
/// Four aligned bytes of shared memory.
///
/// # Safety
/// They are there.
pub unsafe fn shared4(at: u32) -> u32 {
    // SAFETY: checked.
    unsafe { shared_at(at, 4).cast::<u32>().read() }
}
/// Two aligned bytes of shared memory.
///
/// # Safety
/// They are there.
pub unsafe fn shared2(at: u32) -> u16 {
    // SAFETY: checked.
    unsafe { shared_at(at, 2).cast::<u16>().read() }
}
/// Four aligned bytes of weights.
///
/// # Safety
/// They are there.
pub unsafe fn load4(p: *const u8) -> u32 {
    assert_eq!(p as usize % 4, 0, "misaligned 4-byte load");
    // SAFETY: the caller's.
    unsafe { p.cast::<u32>().read() }
}
/// Two aligned bytes of weights.
///
/// # Safety
/// They are there.
pub unsafe fn load2(p: *const u8) -> u16 {
    assert_eq!(p as usize % 2, 0, "misaligned 2-byte load");
    // SAFETY: the caller's.
    unsafe { p.cast::<u16>().read() }
}
/// The f32 that a half's bits mean.
pub fn half(bits: u16) -> f32 {
    bloomery_formats::half::f16_to_f32(bits)
}
fn copy(at: u32, from: *const u8, bytes: u32) {
    assert_eq!(from as usize % bytes as usize, 0, "misaligned copy of {bytes} bytes");
    let _ = shared_at(at, bytes);
    lane().copies.borrow_mut().last_mut().expect("a group").push((at, from as usize, bytes));
}
/// Begins a copy of 16 aligned bytes of global memory to shared memory, `at` bytes from its start; it has come after [`copies_wait`].
///
/// # Safety
/// Both are there.
pub unsafe fn copy16(at: u32, from: *const u8) {
    copy(at, from, 16);
}
/// The same for four bytes.
///
/// # Safety
/// Both are there.
pub unsafe fn copy4(at: u32, from: *const u8) {
    copy(at, from, 4);
}
/// Ends a group of this thread's copies.
pub fn copies_commit() {
    lane().copies.borrow_mut().push(Vec::new());
}
/// This thread's copies have come but for those of the last `LATER` groups; a barrier shows them to others.
pub fn copies_wait<const LATER: u32>() {
    let mut groups = lane().copies.borrow_mut();
    let complete = (groups.len() - 1).saturating_sub(LATER as usize);
    for (at, from, bytes) in groups.drain(..complete).flatten() {
        // SAFETY: the caller of the copy's; the place was checked.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, shared_at(at, 1), bytes as usize) };
    }
}
