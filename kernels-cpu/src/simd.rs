//! Which integer dot product units a matrix kernel runs on, decided once at run time.

/// A family of matrix kernels. All give the same bits; they differ in speed only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Simd(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
}

impl Simd {
    /// Plain Rust, on every machine: the definition itself.
    pub const SCALAR: Simd = Simd(Kind::Scalar);

    /// The fastest family that this machine runs.
    pub fn detect() -> Simd {
        Simd::available().last().copied().unwrap_or(Simd::SCALAR)
    }

    /// Every family that this machine runs, slowest first; tests compare them all.
    pub fn available() -> &'static [Simd] {
        static FOUND: std::sync::OnceLock<Vec<Simd>> = std::sync::OnceLock::new();
        FOUND.get_or_init(|| {
            #[allow(unused_mut, reason = "nothing to add on other machines")]
            let mut found = vec![Simd::SCALAR];
            #[cfg(target_arch = "x86_64")]
            {
                if is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
                {
                    found.push(Simd(Kind::Avx2));
                    if is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512vl")
                        && is_x86_feature_detected!("avx512vbmi")
                        && is_x86_feature_detected!("avx512vnni")
                    {
                        found.push(Simd(Kind::Avx512Vnni));
                    }
                }
            }
            found
        })
    }

    /// The family's name, for logs.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => "avx512-vnni",
        }
    }

    #[inline(always)]
    pub(crate) fn kind(self) -> Kind {
        self.0
    }
}
