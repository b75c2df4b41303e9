use crate::error::Error;
use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;
use std::hash::BuildHasher;

/// Texts by id and ids by text, each text stored once.
#[derive(Clone, Default)]
pub(crate) struct TextIndex {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    table: HashTable<u32>,
    longest: usize,
}

impl TextIndex {
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self { table: HashTable::with_capacity(count), ends: Vec::with_capacity(count), ..Self::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Length in bytes of the longest text.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    pub(crate) fn text(&self, id: u32) -> &[u8] {
        text_at(&self.bytes, &self.ends, id)
    }

    pub(crate) fn find(&self, text: &[u8]) -> Option<u32> {
        let hash = FxBuildHasher.hash_one(text);
        self.table.find(hash, |&id| self.text(id) == text).copied()
    }

    /// The id of a text, which is new or was there: `Ok(new)` or `Err(old)` inside the outer result, which fails where ids or
    /// offsets run out.
    pub(crate) fn insert(&mut self, text: &[u8]) -> Result<Result<u32, u32>, Error> {
        if let Some(old) = self.find(text) {
            return Ok(Err(old));
        }
        let end = self.bytes.len() + text.len();
        let limit = u32::MAX as usize - 1;
        let (Ok(id), Ok(end)) = (u32::try_from(self.ends.len()), u32::try_from(end)) else {
            return Err(Error::TooLarge { what: "the vocabulary's text", found: end, limit });
        };
        self.bytes.extend_from_slice(text);
        self.ends.push(end);
        self.longest = self.longest.max(text.len());
        let Self { bytes, ends, table, .. } = self;
        let hash = FxBuildHasher.hash_one(text);
        table.insert_unique(hash, id, |&other| FxBuildHasher.hash_one(text_at(bytes, ends, other)));
        Ok(Ok(id))
    }
}

fn text_at<'a>(bytes: &'a [u8], ends: &[u32], id: u32) -> &'a [u8] {
    let id = id as usize;
    let start = id.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0);
    let end = ends.get(id).copied().unwrap_or(start);
    bytes.get(start as usize..end as usize).unwrap_or_default()
}
