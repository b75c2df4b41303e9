//! One instruction each, for the card.

use core::arch::{asm, global_asm, nvptx};

/// Thread of the block.
#[inline(always)]
pub fn tid() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_thread_idx_x() as u32 }
}
/// Threads of the block.
#[inline(always)]
pub fn ntid() -> u32 {
    // SAFETY: as above.
    unsafe { nvptx::_block_dim_x() as u32 }
}
/// Block, first number.
#[inline(always)]
pub fn ctaid_x() -> u32 {
    // SAFETY: as above.
    unsafe { nvptx::_block_idx_x() as u32 }
}
/// Block, second number.
#[inline(always)]
pub fn ctaid_y() -> u32 {
    // SAFETY: as above.
    unsafe { nvptx::_block_idx_y() as u32 }
}
/// Block, third number.
#[inline(always)]
pub fn ctaid_z() -> u32 {
    // SAFETY: as above.
    unsafe { nvptx::_block_idx_z() as u32 }
}
/// Blocks, first number.
#[inline(always)]
pub fn nctaid_x() -> u32 {
    // SAFETY: as above.
    unsafe { nvptx::_grid_dim_x() as u32 }
}
/// The launch behind this one may begin once every block has come here; it waits for results itself. At a launch's end: blocks that
/// begin earlier and wait take room from those that work.
#[inline(always)]
pub fn let_next_begin() {
    #[cfg(overlap)]
    // SAFETY: no operand.
    unsafe {
        asm!("griddepcontrol.launch_dependents;", options(nostack))
    };
}
/// Waits until everything that launches before this one wrote is there. Before it only what no launch writes may be read, and nothing
/// written.
#[inline(always)]
pub fn wait_for_launches() {
    #[cfg(overlap)]
    // SAFETY: no operand.
    unsafe {
        asm!("griddepcontrol.wait;", options(nostack))
    };
}
/// Barrier of the block.
#[inline(always)]
pub fn sync() {
    // SAFETY: every thread of the block comes here.
    unsafe { nvptx::_syncthreads() }
}

unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shfl_bfly(mask: u32, v: u32, x: u32, c: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shfl_idx(mask: u32, v: u32, x: u32, c: u32) -> u32;
    #[link_name = "llvm.nvvm.mma.m16n8k32.row.col.s8"]
    fn mma_m16n8k32(
        a0: u32,
        a1: u32,
        a2: u32,
        a3: u32,
        b0: u32,
        b1: u32,
        c0: u32,
        c1: u32,
        c2: u32,
        c3: u32,
    ) -> Four;
    #[link_name = "llvm.nvvm.sqrt.rn.f"]
    fn sqrt_rn(x: f32) -> f32;
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Four(u32, u32, u32, u32);

/// `c + a b` of f16 matrices `[16, 16]` and `[16, 8]`, spread over the lanes of a warp as `mma.m16n8k16` has them.
/// The compiler does not know that lanes need each other here (its intrinsic takes operands that rustc cannot pass): every lane of the
/// warp must come, on one way.
#[inline(always)]
pub fn mma_f16(c: [f32; 4], a: [u32; 4], b: [u32; 2]) -> [f32; 4] {
    let [mut d0, mut d1, mut d2, mut d3] = c;
    // SAFETY: registers only.
    unsafe {
        asm!("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{0}, {1}, {2}, {3}}}, {{{4}, {5}, {6}, {7}}}, {{{8}, {9}}}, {{{0}, {1}, {2}, {3}}};",
            inout(reg32) d0, inout(reg32) d1, inout(reg32) d2, inout(reg32) d3,
            in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3], in(reg32) b[0], in(reg32) b[1],
            options(nomem, nostack))
    };
    [d0, d1, d2, d3]
}
/// Four 8x8 matrices of halves from shared memory, row `lane mod 8` of matrix `lane / 8` at this lane's address: the lane's two
/// neighbours in row `lane / 4`.
///
/// # Safety
/// The rows are there, and every lane of the warp comes here.
#[inline(always)]
pub unsafe fn matrices(at: u32) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller's.
    unsafe {
        asm!("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) shared_start() + at, options(readonly, nostack))
    };
    [a, b, c, d]
}
/// The same, turned: the lane's two neighbours in column `lane / 4`.
///
/// # Safety
/// The rows are there, and every lane of the warp comes here.
#[inline(always)]
pub unsafe fn matrices_turned(at: u32) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller's.
    unsafe {
        asm!("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) shared_start() + at, options(readonly, nostack))
    };
    [a, b, c, d]
}
/// Two halves that are nearest to these values, the first in the low bits.
#[inline(always)]
pub fn halves(low: f32, high: f32) -> u32 {
    let d: u32;
    // SAFETY: arithmetic.
    unsafe {
        asm!("cvt.rn.f16x2.f32 {}, {}, {};", out(reg32) d, in(reg32) high, in(reg32) low, options(pure, nomem, nostack))
    };
    d
}
/// A power of two, to about two units in the last place.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic.
    unsafe { asm!("ex2.approx.ftz.f32 {}, {};", out(reg32) y, in(reg32) x, options(pure, nomem, nostack)) };
    y
}
/// `c + a b` of int8 matrices `[16, 32]` and `[32, 8]`, spread over the lanes of a warp as `mma.m16n8k32` has them.
#[inline(always)]
pub fn mma_s8(c: [i32; 4], a: [u32; 4], b: [u32; 2]) -> [i32; 4] {
    // SAFETY: every lane of the warp comes here.
    let d = unsafe {
        mma_m16n8k32(a[0], a[1], a[2], a[3], b[0], b[1], c[0] as u32, c[1] as u32, c[2] as u32, c[3] as u32)
    };
    [d.0 as i32, d.1 as i32, d.2 as i32, d.3 as i32]
}
/// The value of the lane whose number differs in these bits.
#[inline(always)]
pub fn shfl_xor(v: u32, mask: u32) -> u32 {
    // SAFETY: every lane of the warp comes here.
    unsafe { shfl_bfly(!0, v, mask, 0x1f) }
}
/// The value of that lane.
#[inline(always)]
pub fn shfl(v: u32, lane: u32) -> u32 {
    // SAFETY: as above.
    unsafe { shfl_idx(!0, v, lane, 0x1f) }
}
/// Asks for the line of global memory at an address, without waiting.
///
/// # Safety
/// It is there.
#[inline(always)]
pub unsafe fn prefetch(p: *const u8) {
    // SAFETY: the caller's.
    unsafe { asm!("prefetch.global.L2 [{}];", in(reg64) p, options(readonly, nostack)) };
}
/// Square root, correctly rounded.
#[inline(always)]
pub fn sqrt(x: f32) -> f32 {
    // SAFETY: arithmetic.
    unsafe { sqrt_rn(x) }
}
/// Four unsigned bytes times four signed ones, added to `c`.
#[inline(always)]
pub fn dp4a_us(a: u32, b: u32, c: i32) -> i32 {
    let d: i32;
    // SAFETY: arithmetic.
    unsafe {
        asm!("dp4a.u32.s32 {}, {}, {}, {};", out(reg32) d, in(reg32) a, in(reg32) b, in(reg32) c, options(pure, nomem, nostack))
    };
    d
}
/// Four of eight bytes: `which` names one in each of its low nibbles, 0 to 3 of `low`, 4 to 7 of `high`.
#[inline(always)]
pub fn bytes_of(low: u32, high: u32, which: u32) -> u32 {
    let d: u32;
    // SAFETY: arithmetic.
    unsafe {
        asm!("prmt.b32 {}, {}, {}, {};", out(reg32) d, in(reg32) low, in(reg32) high, in(reg32) which, options(pure, nomem, nostack))
    };
    d
}
/// 16 aligned bytes of weights: read once.
///
/// # Safety
/// They are there.
#[inline(always)]
pub unsafe fn load16(p: *const u8) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) p, options(readonly, nostack))
    };
    [a, b, c, d]
}
/// 16 aligned bytes of activations.
///
/// # Safety
/// They are there.
#[inline(always)]
pub unsafe fn load16_kept(p: *const u8) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.global.v4.u32 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) p, options(readonly, nostack))
    };
    [a, b, c, d]
}

global_asm!(".extern .shared .align 16 .b8 dynamic_shared[];");
/// The block's shared memory.
#[inline(always)]
pub fn shared() -> *mut u8 {
    let p: u64;
    // SAFETY: takes an address.
    unsafe {
        asm!("{{ .reg .u64 a; mov.u64 a, dynamic_shared; cvta.shared.u64 {}, a; }}", out(reg64) p, options(pure, nomem, nostack))
    };
    p as *mut u8
}

/// The start of dynamic shared memory in its own address space.
#[inline(always)]
fn shared_start() -> u32 {
    let p: u32;
    // SAFETY: takes an address.
    unsafe { asm!("mov.u32 {}, dynamic_shared;", out(reg32) p, options(pure, nomem, nostack)) };
    p
}
/// 16 aligned bytes of shared memory, `at` bytes from its start.
///
/// # Safety
/// They are there.
#[inline(always)]
pub unsafe fn shared16(at: u32) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.shared.v4.u32 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) shared_start() + at, options(readonly, nostack))
    };
    [a, b, c, d]
}
/// Four aligned bytes of shared memory.
///
/// # Safety
/// They are there.
#[inline(always)]
pub unsafe fn shared4(at: u32) -> u32 {
    let a: u32;
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.shared.u32 {}, [{}];", out(reg32) a, in(reg32) shared_start() + at, options(readonly, nostack))
    };
    a
}
/// Two aligned bytes of shared memory.
///
/// # Safety
/// They are there.
#[inline(always)]
pub unsafe fn shared2(at: u32) -> u16 {
    let a: u16;
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.shared.u16 {}, [{}];", out(reg16) a, in(reg32) shared_start() + at, options(readonly, nostack))
    };
    a
}
/// Four aligned bytes of weights: read once.
///
/// # Safety
/// They are there.
#[inline(always)]
pub unsafe fn load4(p: *const u8) -> u32 {
    let a: u32;
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.global.nc.L2::128B.u32 {}, [{}];", out(reg32) a, in(reg64) p, options(readonly, nostack))
    };
    a
}
/// Two aligned bytes of weights.
///
/// # Safety
/// They are there.
#[inline(always)]
pub unsafe fn load2(p: *const u8) -> u16 {
    let a: u16;
    // SAFETY: the caller's.
    unsafe { asm!("ld.global.nc.u16 {}, [{}];", out(reg16) a, in(reg64) p, options(readonly, nostack)) };
    a
}
/// The f32 that a half's bits mean.
#[inline(always)]
pub fn half(bits: u16) -> f32 {
    let value: f32;
    // SAFETY: arithmetic.
    unsafe { asm!("cvt.f32.f16 {}, {};", out(reg32) value, in(reg16) bits, options(pure, nomem, nostack)) };
    value
}
/// Begins a copy of 16 aligned bytes of global memory to shared memory, `at` bytes from its start; it has come after [`copies_wait`].
///
/// # Safety
/// Both are there.
#[inline(always)]
pub unsafe fn copy16(at: u32, from: *const u8) {
    // SAFETY: the caller's.
    unsafe {
        asm!("cp.async.cg.shared.global [{}], [{}], 16;", in(reg32) shared_start() + at, in(reg64) from, options(nostack))
    };
}
/// The same for four bytes.
///
/// # Safety
/// Both are there.
#[inline(always)]
pub unsafe fn copy4(at: u32, from: *const u8) {
    // SAFETY: the caller's.
    unsafe {
        asm!("cp.async.ca.shared.global [{}], [{}], 4;", in(reg32) shared_start() + at, in(reg64) from, options(nostack))
    };
}
/// Ends a group of this thread's copies.
#[inline(always)]
pub fn copies_commit() {
    // SAFETY: no operand.
    unsafe { asm!("cp.async.commit_group;", options(nostack)) };
}
/// This thread's copies have come but for those of the last `LATER` groups; a barrier shows them to others.
#[inline(always)]
pub fn copies_wait<const LATER: u32>() {
    // SAFETY: no operand.
    unsafe { asm!("cp.async.wait_group {};", const LATER, options(nostack)) };
}
