//! Kernels for the card. One source: PTX by the stock compiler for nvptx64, and a simulated grid on this processor for tests.
//!
//! Every kernel keeps the order of float operations of the CPU backend, so that both give the same bits.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(asm_experimental_arch, abi_ptx, stdarch_nvptx, link_llvm_intrinsics, abi_unadjusted)
)]
#![cfg_attr(target_arch = "nvptx64", allow(internal_features, improper_ctypes))]
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments)]
// Written out, so that neither library calls nor paths that could panic reach the PTX.
#![allow(
    clippy::precedence,
    clippy::implicit_saturating_sub,
    clippy::manual_range_contains,
    clippy::manual_checked_ops
)]
#![allow(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks, missing_docs)]

#[cfg(target_arch = "nvptx64")]
#[path = "dev_ptx.rs"]
mod dev;
#[cfg(not(target_arch = "nvptx64"))]
#[path = "dev_sim.rs"]
mod dev;

mod attention;
mod entries;
mod few;
mod gemv;
mod heads;
mod many;
mod route;
mod rows;
mod warp;

#[cfg(not(target_arch = "nvptx64"))]
pub use entries::{entry_exists, run_entry};
#[cfg(not(target_arch = "nvptx64"))]
pub use many::flash::{
    KEYS as FLASH_KEYS, ROWS as FLASH_ROWS, THREADS as FLASH_THREADS, shared_bytes as flash_shared,
};
#[cfg(not(target_arch = "nvptx64"))]
pub use many::floats::{SHARED as FLOATS_SHARED, THREADS as FLOATS_THREADS, TILE as FLOATS_TILE};
#[cfg(not(target_arch = "nvptx64"))]
pub use many::gemm::{THREADS as GEMM_THREADS, TILE_COLUMNS, TILE_ROWS, shared_bytes as gemm_shared};
#[cfg(not(target_arch = "nvptx64"))]
pub use many::sort::{SHARED as SORT_SHARED, THREADS as SORT_THREADS};

#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the kernel; no kernel has a path to it.
    unsafe { core::arch::nvptx::trap() }
}
