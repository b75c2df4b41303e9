//! What stands between the projections and attention: head norms, rotation, and the store. One warp a head.

use crate::dev::{ctaid_x, ctaid_y, ctaid_z, ntid, shared, sync, tid, wait_for_launches};
use crate::rows::inverse_rms;
use crate::warp::max_f32;
use bloomery_formats::half::f32_to_f16;

/// What happens to one value (queries, keys or values).
#[derive(Clone, Copy)]
pub struct Part {
    pub x: *mut f32,
    pub width: u32,
    pub head: u32,
    pub norm: u32,
    pub weight: *const f32,
    pub weight_len: u32,
    pub eps: f32,
    /// `[positions, 2, pairs]`; null for none.
    pub rope: *const f32,
    pub dims: u32,
    pub offset: u32,
    pub halves: u32,
    /// Bytes into a page; `cache` 0 appends nothing, 1 is f32, 2 f16, 3 q8_0; 4 is added where channels lie apart.
    pub at: u32,
    pub cache: u32,
}

/// Where rows stand.
#[derive(Clone, Copy)]
pub struct Place {
    pub positions: *const u32,
    pub table_of_row: *const u32,
    pub tables: *const u32,
    pub table_pages: u32,
    pub store: *mut u8,
    pub page_bytes: u64,
}

impl Place {
    /// The number of a page of a row's sequence.
    ///
    /// # Safety
    /// The tables are there.
    #[inline(always)]
    pub unsafe fn page_number(&self, row: u32, page: u32) -> u32 {
        let table = *self.table_of_row.add(row as usize) as usize;
        *self.tables.add(table * self.table_pages as usize + page as usize)
    }
    /// A page.
    ///
    /// # Safety
    /// It is one of the store's.
    #[inline(always)]
    pub unsafe fn at(&self, number: u32) -> *mut u8 {
        self.store.add((number as u64 * self.page_bytes) as usize)
    }
    /// The page of a position of a row's sequence.
    ///
    /// # Safety
    /// The tables are there.
    #[inline(always)]
    pub unsafe fn page(&self, row: u32, position: u32) -> *mut u8 {
        self.at(self.page_number(row, position >> 5))
    }
}

/// Grid: x over heads by warps, y rows, z parts.
///
/// # Safety
/// Every pointer leads to what the shapes say.
#[inline(always)]
pub unsafe fn heads(place: Place, q: Part, k: Part, v: Part) {
    wait_for_launches();
    let part = match ctaid_z() {
        0 => q,
        1 => k,
        _ => v,
    };
    let (warp, lane, row) = (tid() >> 5, tid() & 31, ctaid_y());
    let head = part.head;
    let first_number = ctaid_x() * (ntid() >> 5);
    // Parts have different numbers of heads.
    if first_number * head >= part.width || part.x.is_null() {
        return;
    }
    let number = first_number + warp;
    let active = head > 0 && number * head < part.width && !part.x.is_null();
    let values = shared().cast::<f32>().add(warp as usize * 512);
    let x = part.x.add(row as usize * part.width as usize + (number * head) as usize);
    let position = *place.positions.add(row as usize);
    // Heads of up to 128 values, nearly all there are: a lane's share, the norm's weights and the rotation are asked for together.
    let short = head <= 4 * 32;
    let pairs = part.dims / 2;
    let table = match part.rope.is_null() {
        true => part.rope,
        false => part.rope.add(position as usize * 2 * pairs as usize),
    };
    let weight_at = if part.weight_len > head { number * head } else { 0 };
    let (mut weights, mut turns) = ([0.0f32; 4], [[0.0f32; 2]; 2]);
    if active && short {
        let mut mine = [0.0f32; 4];
        let mut k = 0;
        while k < 4 {
            let i = lane + 32 * k as u32;
            mine[k] = if i < head { *x.add(i as usize) } else { 0.0 };
            k += 1;
        }
        let mut k = 0;
        while k < 4 {
            let i = lane + 32 * k as u32;
            if i < head && !part.weight.is_null() {
                weights[k] = *part.weight.add((weight_at + i) as usize);
            }
            k += 1;
        }
        let mut k = 0;
        while k < 2 {
            let p = lane + 32 * k as u32;
            if p < pairs && !table.is_null() {
                turns[k] = [*table.add(p as usize), *table.add((pairs + p) as usize)];
            }
            k += 1;
        }
        let mut k = 0;
        while k < 4 {
            let i = lane + 32 * k as u32;
            if i < head {
                *values.add(i as usize) = mine[k];
            }
            k += 1;
        }
    } else if active {
        let mut i = lane;
        while i < head {
            *values.add(i as usize) = *x.add(i as usize);
            i += 32;
        }
    }
    sync();
    if part.norm != 0 {
        let inverse = inverse_rms(values, if active { head } else { 1 }, part.eps, lane);
        sync();
        let mut k = 0;
        while k < 16 {
            let i = lane + 32 * k as u32;
            if active && i < head {
                let mut v = *values.add(i as usize) * inverse;
                if !part.weight.is_null() {
                    v *= if short { weights[k & 3] } else { *part.weight.add((weight_at + i) as usize) };
                }
                *values.add(i as usize) = v;
            }
            k += 1;
        }
        sync();
    }
    if active && !table.is_null() {
        let mut k = 0;
        while k < 8 {
            let p = lane + 32 * k as u32;
            if p < pairs {
                let (i, j) = if part.halves != 0 { (p, p + pairs) } else { (2 * p, 2 * p + 1) };
                let (i, j) = ((part.offset + i) as usize, (part.offset + j) as usize);
                let [cosine, sine] = match short {
                    true => turns[k & 1],
                    false => [*table.add(p as usize), *table.add((pairs + p) as usize)],
                };
                let (a, b) = (*values.add(i), *values.add(j));
                *values.add(i) = a * cosine - b * sine;
                *values.add(j) = a * sine + b * cosine;
            }
            k += 1;
        }
    }
    sync();
    if active && (part.norm != 0 || !part.rope.is_null()) {
        let mut i = lane;
        while i < head {
            *x.add(i as usize) = *values.add(i as usize);
            i += 32;
        }
    }
    let (kind, apart) = (part.cache & 3, part.cache & 4 != 0);
    if kind == 0 {
        return;
    }
    let page = place.page(row, position).add(part.at as usize);
    let token = (position & 31) as usize;
    let first = (number * head) as usize;
    let mut base = 0;
    // Whole warps: q8_0 takes a maximum over 32 channels.
    while base < head {
        let i = base + lane;
        let here = active && i < head;
        let value = if here { *values.add(i as usize) } else { 0.0 };
        let channel = first + i as usize;
        let at = if apart { channel * 32 + token } else { token * part.width as usize + channel };
        if kind == 3 {
            let size = if value < 0.0 { -value } else { value };
            let step = max_f32(size) / 127.0;
            let inverse = if step == 0.0 { 0.0 } else { 1.0 / step };
            let scaled = value * inverse;
            let magnitude = if scaled < 0.0 { -scaled } else { scaled };
            let whole = magnitude as i32;
            // Halves go away from zero.
            let rounded = if magnitude - whole as f32 >= 0.5 { whole + 1 } else { whole };
            let quant = if scaled < 0.0 { -rounded } else { rounded };
            let block = channel / 32;
            if here && apart {
                let start = page.add(block * 34 * 32);
                if lane == 0 {
                    *start.cast::<u16>().add(token) = f32_to_f16(step);
                }
                *start.add((2 + channel % 32) * 32 + token).cast::<i8>() = quant as i8;
            } else if here {
                let start = page.add(token * (part.width as usize / 32 * 34) + block * 34);
                if lane == 0 {
                    *start.cast::<u16>() = f32_to_f16(step);
                }
                *start.add(2 + channel % 32).cast::<i8>() = quant as i8;
            }
        } else if here && kind == 1 {
            *page.cast::<f32>().add(at) = value;
        } else if here {
            *page.cast::<u16>().add(at) = f32_to_f16(value);
        }
        base += 32;
    }
}
