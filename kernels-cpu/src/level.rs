//! Which instruction set a kernel runs on, decided once at run time.
//!
//! A row kernel is written once over [`Lanes`](crate::lanes::Lanes), sixteen virtual f32 lanes, and compiled once for each
//! level; matrix products have a kernel for each. No level reorders or contracts anything, so all levels give the same bits.

use crate::lanes::{Lanes, Scalar};

/// An instruction set that this machine was seen to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// With VBMI and VNNI: Ice Lake, Zen 4 and later.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// Plain Rust, on every machine.
    pub const SCALAR: Level = Level(Kind::Scalar);

    /// The best level of this machine.
    pub fn best() -> Level {
        Level::available().last().copied().unwrap_or(Level::SCALAR)
    }

    /// Every level of this machine, slowest first.
    pub fn available() -> &'static [Level] {
        static FOUND: std::sync::OnceLock<Vec<Level>> = std::sync::OnceLock::new();
        FOUND.get_or_init(|| {
            #[allow(unused_mut, reason = "nothing to add on other machines")]
            let mut levels = vec![Level::SCALAR];
            #[cfg(target_arch = "x86_64")]
            {
                if is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
                {
                    levels.push(Level(Kind::Avx2));
                    if is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512vl")
                        && is_x86_feature_detected!("avx512vbmi")
                        && is_x86_feature_detected!("avx512vnni")
                    {
                        levels.push(Level(Kind::Avx512));
                    }
                }
            }
            levels
        })
    }

    /// The level's name, for logs.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
        }
    }

    #[inline(always)]
    pub(crate) fn kind(self) -> Kind {
        self.0
    }

    /// Runs a kernel compiled for this level.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Out {
        match self.0 {
            Kind::Scalar => kernel.run(Scalar),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn go<K: Kernel>(kernel: K) -> K::Out {
                    kernel.run(crate::lanes::Avx2::detected())
                }
                // SAFETY: a `Level` of this kind comes only from `available`, which saw avx2, fma and f16c.
                unsafe { go(kernel) }
            }
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                fn go<K: Kernel>(kernel: K) -> K::Out {
                    kernel.run(crate::lanes::Avx512::detected())
                }
                // SAFETY: a `Level` of this kind comes only from `available`, which saw all these features.
                unsafe { go(kernel) }
            }
        }
    }
}

/// A computation over sixteen lanes. `run` must be `#[inline(always)]`: only then is it compiled for the level.
pub(crate) trait Kernel {
    /// What it gives.
    type Out;
    /// The computation.
    fn run<L: Lanes>(self, lanes: L) -> Self::Out;
}
