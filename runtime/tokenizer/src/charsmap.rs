//! The normalizer's table of SentencePiece: longest prefix to replacement.
//!
//! Layout: a little-endian u32 with the size of the trie in bytes, the trie (a double array of u32), then the replacements, each
//! ended by a zero byte. An entry of the trie holds the label of the edge into it (low 8 bits, with bit 31), bit 8 "a text
//! ends here", and the offset to its children (bits 10 to 30, times 256 where bit 9 is set). Children are found by
//! exclusive or with the next byte; the child of byte zero holds the offset of the replacement (S. Kanda 2018; Darts-clone).

use crate::error::Error;

#[derive(Debug, Clone, Default)]
pub(crate) struct Charsmap {
    trie: Vec<u32>,
    replacements: Vec<u8>,
}

impl Charsmap {
    pub(crate) fn new(blob: &[u8]) -> Result<Self, Error> {
        let length = blob.len();
        let bad = |detail, offset| Error::BadCharsmap { detail, offset, length };
        if blob.is_empty() {
            return Ok(Self::default());
        }
        let (size, rest) = blob.split_first_chunk::<4>().ok_or(bad("no room for the trie's size", 0))?;
        let size = u32::from_le_bytes(*size) as usize;
        let (trie, replacements) =
            rest.split_at_checked(size).ok_or(bad("the trie is longer than the table", 4))?;
        if size == 0 || !size.is_multiple_of(4) {
            return Err(bad("the trie is no array of 32-bit entries", 0));
        }
        if replacements.last() != Some(&0) {
            return Err(bad("the last replacement has no end", 4 + size));
        }
        let trie = trie.as_chunks::<4>().0.iter().map(|&entry| u32::from_le_bytes(entry)).collect();
        Ok(Self { trie, replacements: replacements.to_vec() })
    }

    /// The replacement of the longest known prefix and that prefix's length; `None` where no prefix is known or the table
    /// points outside of itself.
    pub(crate) fn replace(&self, text: &[u8]) -> Option<(&[u8], usize)> {
        let entry = |index: usize| self.trie.get(index).copied();
        let children = |entry: u32| ((entry >> 10) << ((entry & 1 << 9) >> 6)) as usize;
        let mut node = children(entry(0)?);
        let mut best = None;
        for (at, &byte) in text.iter().enumerate() {
            if byte == 0 {
                break;
            }
            node ^= usize::from(byte);
            let Some(found) = entry(node) else { break };
            if found & (1 << 31 | 0xFF) != u32::from(byte) {
                break;
            }
            node ^= children(found);
            if found >> 8 & 1 == 1 {
                let Some(value) = entry(node) else { break };
                best = Some(((value & !(1 << 31)) as usize, at + 1));
            }
        }
        let (offset, length) = best?;
        let replacement = self.replacements.get(offset..)?;
        let end = replacement.iter().position(|&byte| byte == 0)?;
        Some((replacement.get(..end)?, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table that turns "a" into "xy" and "ab" into "z".
    fn table() -> Vec<u8> {
        let mut trie = vec![0u32; 1024];
        let (root, a, ab) = (256usize, 512usize, 768usize);
        trie[0] = (root as u32) << 10;
        trie[root ^ 0x61] = 0x61 | 1 << 8 | ((root ^ 0x61 ^ a) as u32) << 10;
        trie[a] = 1 << 31;
        trie[a ^ 0x62] = 0x62 | 1 << 8 | ((a ^ 0x62 ^ ab) as u32) << 10;
        trie[ab] = 1 << 31 | 3;
        let mut blob = 4096u32.to_le_bytes().to_vec();
        blob.extend(trie.iter().flat_map(|entry| entry.to_le_bytes()));
        blob.extend(b"xy\0z\0");
        blob
    }

    #[test]
    fn longest_prefix_wins() {
        let map = Charsmap::new(&table()).unwrap();
        assert_eq!(map.replace(b"ac"), Some((&b"xy"[..], 1)));
        assert_eq!(map.replace(b"abc"), Some((&b"z"[..], 2)));
        assert_eq!(map.replace(b"b"), None);
        assert_eq!(map.replace(b""), None);
    }

    #[test]
    fn damaged_tables() {
        let blob = table();
        assert!(Charsmap::new(&[]).unwrap().replace(b"a").is_none());
        for length in 1..blob.len() - 1 {
            if let Ok(map) = Charsmap::new(&blob[..length]) {
                map.replace(b"abc");
            }
        }
        assert!(Charsmap::new(&blob[..blob.len() - 1]).is_err());
        let mut wild = blob.clone();
        wild[4..4100].fill(0xFF);
        assert_eq!(Charsmap::new(&wild).unwrap().replace(b"abc"), None);
    }
}
