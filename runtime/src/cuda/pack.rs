//! Places for values that live for a part of a step: those that live at the same time lie apart, the others share.

/// A value: the first and last step in which it is needed, and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lifetime {
    pub first: usize,
    pub last: usize,
    pub bytes: u64,
}

/// Every kernel's widest load is aligned at multiples of this.
const ALIGNMENT: u64 = 256;

/// Offsets of all values and the bytes that they take together. Largest first, each at the lowest place that is free for its whole life
/// (Pisarchyk and Lee 2020, greedy by size).
pub(crate) fn pack(values: &[Lifetime]) -> (Vec<u64>, u64) {
    let mut order: Vec<usize> = (0..values.len()).filter(|i| values[*i].bytes > 0).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(values[*i].bytes), *i));
    let mut offsets = vec![0u64; values.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(order.len());
    let mut total = 0;
    for index in order {
        let value = values[index];
        let mut taken: Vec<(u64, u64)> = placed
            .iter()
            .filter(|other| values[**other].first <= value.last && value.first <= values[**other].last)
            .map(|other| (offsets[*other], offsets[*other] + values[*other].bytes))
            .collect();
        taken.sort_unstable();
        let mut at = 0u64;
        for (from, to) in taken {
            if at + value.bytes <= from {
                break;
            }
            at = at.max(to.next_multiple_of(ALIGNMENT));
        }
        offsets[index] = at;
        total = total.max(at + value.bytes);
        placed.push(index);
    }
    (offsets, total.next_multiple_of(ALIGNMENT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_that_do_not_meet_share() {
        let value = |first, last, bytes| Lifetime { first, last, bytes };
        let (offsets, total) =
            pack(&[value(0, 1, 1000), value(2, 3, 1000), value(1, 2, 300), value(0, 9, 0)]);
        assert_eq!(offsets, [0, 0, 1024, 0]);
        assert_eq!(total, 1536);
        assert_eq!(pack(&[]), (vec![], 0));
    }

    proptest! {
        #[test]
        fn values_that_meet_never_overlap(raw in proptest::collection::vec((0usize..20, 0usize..8, 0u64..5000), 0..40)) {
            let values: Vec<Lifetime> =
                raw.iter().map(|(first, more, bytes)| Lifetime { first: *first, last: first + more, bytes: *bytes }).collect();
            let (offsets, total) = pack(&values);
            for (i, a) in values.iter().enumerate() {
                prop_assert!(offsets[i] % ALIGNMENT == 0 && offsets[i] + a.bytes <= total.max(offsets[i]));
                for (j, b) in values.iter().enumerate().skip(i + 1) {
                    let meet = a.first <= b.last && b.first <= a.last && a.bytes > 0 && b.bytes > 0;
                    let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                    prop_assert!(!meet || apart, "{i} and {j} overlap");
                }
            }
        }
    }
}
