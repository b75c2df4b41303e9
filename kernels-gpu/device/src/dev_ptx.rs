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
    #[link_name = "llvm.nvvm.sqrt.rn.f"]
    fn sqrt_rn(x: f32) -> f32;
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
