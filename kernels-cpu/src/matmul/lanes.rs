//! Lanes of 32 bits, one per weight row: the vocabulary of the tile kernels.
//!
//! A lane holds four bytes of one row's weights, or one integer or f32 of that row. The kernels are written once over this trait and
//! compiled for each instruction set. A value of an implementing type is the proof that its instructions exist.

use bloomery_formats::group_formats::Group;

/// Most rows of a tile.
pub(crate) const MAX_WIDTH: usize = 16;

/// `len` bytes of each of sixteen rows that lie `stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct RowBytes<'a> {
    start: *const u8,
    stride: usize,
    len: usize,
    ahead: *const u8,
    ahead_rows: usize,
    owner: std::marker::PhantomData<&'a [u8]>,
}

impl<'a> RowBytes<'a> {
    /// Sixteen rows of `len` bytes in `bytes`, the first at its start. Panics when they do not fit.
    #[inline(always)]
    pub fn new(bytes: &'a [u8], stride: usize, len: usize) -> Self {
        assert!(
            len <= stride && (MAX_WIDTH - 1) * stride + len <= bytes.len(),
            "{MAX_WIDTH} rows of {len} bytes, {stride} apart, in {}",
            bytes.len()
        );
        RowBytes {
            start: bytes.as_ptr(),
            stride,
            len,
            ahead: bytes.as_ptr(),
            ahead_rows: 0,
            owner: std::marker::PhantomData,
        }
    }

    /// The bytes of sixteen unpacked groups in the order of the fields: quants, scales at 256, minima at 288, `d` at 320, `dmin` at 324.
    /// What `packed`, from which they were unpacked, asks for ahead is asked for while their quants are used.
    #[inline(always)]
    pub fn of_groups(groups: &'a [Group; MAX_WIDTH], packed: &RowBytes<'_>) -> Self {
        const LEN: usize = 328;
        const {
            assert!(std::mem::offset_of!(Group, dmin) + 4 == LEN && std::mem::offset_of!(Group, scale) == 256)
        };
        // The structure is `repr(C)` and has no padding before byte 328.
        let start = groups.as_ptr().cast::<u8>();
        RowBytes {
            start,
            stride: size_of::<Group>(),
            len: LEN,
            ahead: packed.ahead,
            ahead_rows: (packed.ahead_rows * packed.len).div_ceil(256),
            owner: std::marker::PhantomData,
        }
    }

    /// While these bytes are used, asks for as many from `address` on, in ascending order. Nothing need be readable there.
    /// `rows` is how many rows are used.
    #[inline(always)]
    pub fn and_prefetch(self, address: *const u8, rows: usize) -> Self {
        RowBytes { ahead: address, ahead_rows: rows, ..self }
    }

    /// The bytes of one row.
    #[inline(always)]
    pub fn row(&self, lane: usize) -> &'a [u8] {
        assert!(lane < MAX_WIDTH, "row {lane} of {MAX_WIDTH}");
        // SAFETY: the constructor saw `len` bytes of every row inside the borrowed slice.
        unsafe { std::slice::from_raw_parts(self.start.add(lane * self.stride), self.len) }
    }

    /// Sixteen bytes of every row from `offset`. Panics when there are fewer.
    #[inline(always)]
    pub fn sixteen(&self, offset: usize) -> Sixteen<'a> {
        assert!(offset + 16 <= self.len, "16 bytes at {offset} of {}", self.len);
        Sixteen {
            start: self.start.wrapping_add(offset),
            stride: self.stride,
            ahead: self.ahead.wrapping_add(self.ahead_rows * offset),
            owner: self.owner,
        }
    }
}

/// Sixteen bytes of each of sixteen rows, known to be readable.
#[derive(Clone, Copy)]
pub(crate) struct Sixteen<'a> {
    start: *const u8,
    stride: usize,
    ahead: *const u8,
    owner: std::marker::PhantomData<&'a [u8]>,
}

impl Sixteen<'_> {
    /// Where lane `lane` (0..16) reads.
    #[inline(always)]
    pub fn pointer(&self, lane: usize) -> *const u8 {
        self.start.wrapping_add(lane * self.stride)
    }

    /// The four cache lines to ask for meanwhile, which need not be readable.
    #[inline(always)]
    pub fn ahead(&self, line: usize) -> *const u8 {
        self.ahead.wrapping_add(64 * line)
    }
}

/// Operations on `WIDTH` lanes.
pub(crate) trait Lanes: Copy {
    /// Lanes of 32 bits (integers, pairs of i16 or four bytes).
    type I: Copy;
    /// Lanes of f32.
    type F: Copy;
    /// Rows of a tile.
    const WIDTH: usize;
    /// Most activation rows that the registers hold at once.
    const MAX_ACTIVATIONS: usize;

    /// Four columns of dwords: lane r of result c is bytes 4 c .. 4 c + 4 of row r.
    fn columns(self, bytes: Sixteen<'_>) -> [Self::I; 4];

    fn splat(self, x: u32) -> Self::I;
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    fn xor(self, a: Self::I, b: Self::I) -> Self::I;
    /// Logical shift; `n` is below 32 and constant where it matters.
    fn shl(self, a: Self::I, n: u32) -> Self::I;
    /// Logical shift.
    fn shr(self, a: Self::I, n: u32) -> Self::I;
    /// Arithmetic shift.
    fn sra(self, a: Self::I, n: u32) -> Self::I;
    fn add(self, a: Self::I, b: Self::I) -> Self::I;
    /// Subtraction of i16 pairs.
    fn sub16(self, a: Self::I, b: Self::I) -> Self::I;
    /// Low half of the products of i16 pairs.
    fn mul16(self, a: Self::I, b: Self::I) -> Self::I;
    /// Low half of the products.
    fn mul(self, a: Self::I, b: Self::I) -> Self::I;
    /// The larger of signed integers.
    fn max(self, a: Self::I, b: Self::I) -> Self::I;
    /// The smaller of unsigned bytes.
    fn min8(self, a: Self::I, b: Self::I) -> Self::I;
    /// Byte `k` of a lane in all its four bytes.
    fn repeat(self, a: Self::I, k: u8) -> Self::I;
    /// Bytes 0 and 1 as a pair of i16, zero-extended.
    fn pair01(self, a: Self::I) -> Self::I;
    /// Bytes 2 and 3 as a pair of i16, zero-extended.
    fn pair23(self, a: Self::I) -> Self::I;
    /// The table's byte for each byte of `index` (0..16).
    fn lookup(self, table: &[u8; 16], index: Self::I) -> Self::I;
    /// `acc + sum of the four products` of unsigned bytes (at most 128) with signed bytes (at least -127).
    fn dot4(self, acc: Self::I, unsigned: Self::I, signed: Self::I) -> Self::I;
    /// As `dot4` for any unsigned bytes.
    fn dot4_wide(self, acc: Self::I, unsigned: Self::I, signed: Self::I) -> Self::I;
    /// `acc + sum of the two products` of i16 pairs.
    fn dot2(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I;

    fn to_f32(self, a: Self::I) -> Self::F;
    /// The f32 with these bits.
    fn bits(self, a: Self::I) -> Self::F;
    /// The low half's f16, widened.
    fn f16_low(self, a: Self::I) -> Self::F;
    fn fsplat(self, x: f32) -> Self::F;
    fn fadd(self, a: Self::F, b: Self::F) -> Self::F;
    fn fmul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `c - a * b`, rounded once.
    fn fnma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `WIDTH` values; panics when there are fewer.
    fn fload(self, from: &[f32]) -> Self::F;
    /// Stores `WIDTH` values; panics when there is less room.
    fn fstore(self, v: Self::F, to: &mut [f32]);

    /// The high half's f16, widened.
    #[inline(always)]
    fn f16_high(self, a: Self::I) -> Self::F {
        self.f16_low(self.shr(a, 16))
    }
    /// The dword that starts `n` bits into `low`, followed by `high`; 0 < n <= 32.
    #[inline(always)]
    fn funnel(self, low: Self::I, high: Self::I, n: u32) -> Self::I {
        if n == 32 { high } else { self.or(self.shr(low, n), self.shl(high, 32 - n)) }
    }
    /// The same 16 bits in both halves of every lane.
    #[inline(always)]
    fn splat16(self, x: i16) -> Self::I {
        self.splat((x as u16 as u32) * 0x0001_0001)
    }
    /// The same byte four times in every lane.
    #[inline(always)]
    fn splat8(self, x: u8) -> Self::I {
        self.splat(x as u32 * 0x0101_0101)
    }
}
