//! Files in parts, as `llama-gguf-split` writes them: `NAME-00001-of-00003.gguf`, each with the keys `split.no`
//! (from 0), `split.count` and `split.tensors.count` (over all parts).

use std::path::{Path, PathBuf};

use crate::error::GgufError;
use crate::metadata::{Metadata, optional};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// What a part says about the set that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SplitKeys {
    pub number: u64,
    pub count: u64,
    /// Tensors of all parts together, where stated.
    pub tensors: Option<u64>,
}

impl SplitKeys {
    /// `None` for a file in one piece: no count, or a count of at most one.
    pub(crate) fn read(metadata: Metadata<'_>) -> Result<Option<Self>, GgufError> {
        let count = match optional(metadata.u32(COUNT))? {
            Some(count) if count > 1 => u64::from(count),
            _ => return Ok(None),
        };
        // The format stores both numbers in 16 bits, the file name in five digits.
        if count > u64::from(u16::MAX) {
            return Err(GgufError::OutOfRange { key: COUNT.into(), expected: "u16", found: count.into() });
        }
        let number = u64::from(metadata.u32(NUMBER)?);
        if number >= count {
            return Err(GgufError::OutOfRange {
                key: NUMBER.into(),
                expected: "a number below split.count",
                found: number.into(),
            });
        }
        let tensors = optional(metadata.u64(TENSORS))?;
        Ok(Some(SplitKeys { number, count, tensors }))
    }
}

/// The common part of the names of a split file's parts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SplitName {
    prefix: PathBuf,
    count: u64,
}

impl SplitName {
    /// Takes the name of one part apart; its number must be the one that the part itself states.
    pub(crate) fn of(path: &Path, keys: SplitKeys) -> Result<Self, GgufError> {
        let wrong = || GgufError::SplitName { path: path.to_owned(), number: keys.number, count: keys.count };
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(wrong)?;
        let prefix = name.strip_suffix(&*suffix(keys.number, keys.count)).ok_or_else(wrong)?;
        Ok(SplitName { prefix: path.with_file_name(prefix), count: keys.count })
    }

    /// The path of part `number`, counted from 0.
    pub(crate) fn part(&self, number: u64) -> PathBuf {
        let mut path = self.prefix.clone().into_os_string();
        path.push(suffix(number, self.count));
        path.into()
    }
}

fn suffix(number: u64, count: u64) -> String {
    format!("-{:05}-of-{count:05}.gguf", number + 1)
}

/// Checks what part `number` of the set says about itself.
pub(crate) fn check_part(
    path: &Path,
    number: u64,
    set: SplitKeys,
    found: Option<SplitKeys>,
) -> Result<(), GgufError> {
    let mismatch = |key, expected: u64, found: String| {
        Err(GgufError::SplitMismatch { path: path.to_owned(), key, expected, found })
    };
    let Some(found) = found else {
        return mismatch(COUNT, set.count, "missing".into());
    };
    if found.count != set.count {
        return mismatch(COUNT, set.count, found.count.to_string());
    }
    if found.number != number {
        return mismatch(NUMBER, number, found.number.to_string());
    }
    match (set.tensors, found.tensors) {
        (Some(expected), Some(other)) if expected != other => mismatch(TENSORS, expected, other.to_string()),
        _ => Ok(()),
    }
}

/// Checks the stated number of tensors against those found.
pub(crate) fn check_tensor_count(path: &Path, set: SplitKeys, found: u64) -> Result<(), GgufError> {
    match set.tensors {
        Some(stated) if stated != found => Err(GgufError::SplitMismatch {
            path: path.to_owned(),
            key: TENSORS,
            expected: found,
            found: stated.to_string(),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: SplitKeys = SplitKeys { number: 1, count: 3, tensors: None };

    #[test]
    fn names_of_all_parts_follow_from_one() {
        let name = SplitName::of(Path::new("models/a-00002-of-00003.gguf"), SECOND).unwrap();
        assert_eq!(name.part(0), Path::new("models/a-00001-of-00003.gguf"));
        assert_eq!(name.part(2), Path::new("models/a-00003-of-00003.gguf"));
    }

    #[test]
    fn a_renamed_part_is_refused_by_name() {
        for name in ["a-00001-of-00003.gguf", "a-00002-of-00004.gguf", "a-2-of-3.gguf", "a.gguf"] {
            let error = SplitName::of(Path::new(name), SECOND).unwrap_err();
            assert!(error.to_string().contains("NAME-00002-of-00003.gguf"), "{error}");
        }
    }
}
