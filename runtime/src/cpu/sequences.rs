//! Sequences: their lengths and page tables, shared prefixes, copies before writing, bytes.

use crate::executor::{SequenceError, SequenceId};
use bloomery_kernels_cpu::kv::{PAGE_TOKENS, PageId, PageStore};
use std::collections::HashMap;

/// Where the pages lie: in this process or on a card.
pub(crate) trait Pages {
    /// Names a page.
    type Id: Copy;
    /// Bytes of an exported page.
    fn page_bytes(&self) -> usize;
    /// Pages that nobody holds.
    fn pages_free(&self) -> usize;
    /// A page with one holder, of unspecified contents.
    fn take(&mut self) -> Option<Self::Id>;
    /// One more holder.
    fn share(&mut self, id: Self::Id);
    /// One holder less; the last one frees the page.
    fn release(&mut self, id: Self::Id);
    /// More than one holder.
    fn is_shared(&self, id: Self::Id) -> bool;
    /// A new page with the contents of another.
    fn copy(&mut self, id: Self::Id) -> Option<Self::Id>;
    /// Frees every page.
    fn forget_all(&mut self);
}

impl Pages for PageStore {
    type Id = PageId;
    fn page_bytes(&self) -> usize {
        self.layout().page_bytes()
    }
    fn pages_free(&self) -> usize {
        PageStore::pages_free(self)
    }
    fn take(&mut self) -> Option<PageId> {
        PageStore::take(self)
    }
    fn share(&mut self, id: PageId) {
        PageStore::share(self, id);
    }
    fn release(&mut self, id: PageId) {
        PageStore::release(self, id);
    }
    fn is_shared(&self, id: PageId) -> bool {
        PageStore::is_shared(self, id)
    }
    fn copy(&mut self, id: PageId) -> Option<PageId> {
        PageStore::copy(self, id)
    }
    fn forget_all(&mut self) {
        PageStore::forget_all(self);
    }
}

/// First bytes of a saved state.
const MAGIC: &[u8; 8] = b"BLMRYKV1";
/// Magic, fingerprint, length.
const HEADER: usize = 24;

/// What is kept of one text.
#[derive(Debug, Clone)]
pub(crate) struct Sequence<Id> {
    pub pages: Vec<Id>,
    pub len: usize,
}

/// All sequences and the pages that they hold.
pub(crate) struct Sequences<P: Pages> {
    pub store: P,
    all: HashMap<SequenceId, Sequence<P::Id>>,
    next: u64,
    max_tokens: usize,
    fingerprint: u64,
}

impl<P: Pages> Sequences<P> {
    pub fn new(store: P, max_tokens: usize, fingerprint: u64) -> Sequences<P> {
        Sequences { store, all: HashMap::new(), next: 1, max_tokens, fingerprint }
    }

    pub fn get(&self, id: SequenceId) -> Result<&Sequence<P::Id>, SequenceError> {
        self.all.get(&id).ok_or(SequenceError::Unknown(id))
    }

    fn get_mut(&mut self, id: SequenceId) -> Result<&mut Sequence<P::Id>, SequenceError> {
        self.all.get_mut(&id).ok_or(SequenceError::Unknown(id))
    }

    /// The store for writing beside the sequences for reading.
    pub fn split(&mut self) -> (&mut P, &HashMap<SequenceId, Sequence<P::Id>>) {
        (&mut self.store, &self.all)
    }

    pub fn create(&mut self) -> SequenceId {
        let id = SequenceId(self.next);
        self.next += 1;
        self.all.insert(id, Sequence { pages: Vec::new(), len: 0 });
        id
    }

    pub fn remove(&mut self, id: SequenceId) {
        if let Some(sequence) = self.all.remove(&id) {
            sequence.pages.into_iter().for_each(|p| self.store.release(p));
        }
    }

    pub fn clear(&mut self) {
        self.all.clear();
        self.store.forget_all();
    }

    /// Pages that growing by `n` tokens takes: new ones, and a copy of a shared last one.
    pub fn pages_to_grow(&self, id: SequenceId, n: usize) -> Result<usize, SequenceError> {
        let sequence = self.get(id)?;
        if n == 0 {
            return Ok(0);
        }
        let needed = sequence.len.saturating_add(n).div_ceil(PAGE_TOKENS);
        let fresh = needed.saturating_sub(sequence.pages.len());
        let copied = self.shared_last(sequence).is_some();
        Ok(fresh + usize::from(copied))
    }

    /// The last page, when it is partly filled and someone else reads it too.
    fn shared_last(&self, sequence: &Sequence<P::Id>) -> Option<P::Id> {
        if sequence.len.is_multiple_of(PAGE_TOKENS) {
            return None;
        }
        let last = *sequence.pages.get(sequence.len / PAGE_TOKENS)?;
        self.store.is_shared(last).then_some(last)
    }

    /// Makes room for `n` more tokens: every page that will be written is the sequence's own afterwards.
    pub fn grow(&mut self, id: SequenceId, n: usize) -> Result<(), SequenceError> {
        let needed = self.pages_to_grow(id, n)?;
        let free = self.store.pages_free();
        let full = SequenceError::NoRoom { needed, free };
        let sequence = self.get(id)?;
        let (len, held) = (sequence.len, sequence.pages.len());
        let shared = self.shared_last(sequence).filter(|_| n > 0);
        if needed > free {
            return Err(full);
        }
        if let Some(page) = shared {
            let copy = self.store.copy(page).ok_or(full.clone())?;
            self.store.release(page);
            self.get_mut(id)?.pages[len / PAGE_TOKENS] = copy;
        }
        for _ in held..(len + n).div_ceil(PAGE_TOKENS) {
            let page = self.store.take().ok_or(full.clone())?;
            self.get_mut(id)?.pages.push(page);
        }
        Ok(())
    }

    /// Counts tokens that a step has written.
    pub fn advance(&mut self, id: SequenceId, n: usize) {
        if let Some(sequence) = self.all.get_mut(&id) {
            sequence.len += n;
        }
    }

    pub fn truncate(&mut self, id: SequenceId, n: usize) -> Result<(), SequenceError> {
        let sequence = self.all.get_mut(&id).ok_or(SequenceError::Unknown(id))?;
        if n > sequence.len {
            return Err(SequenceError::NotResumable { asked: n, nearest: sequence.len });
        }
        sequence.len = n;
        let released = sequence.pages.split_off(n.div_ceil(PAGE_TOKENS).min(sequence.pages.len()));
        released.into_iter().for_each(|p| self.store.release(p));
        Ok(())
    }

    pub fn copy_prefix(
        &mut self,
        source: SequenceId,
        target: SequenceId,
        n: usize,
    ) -> Result<(), SequenceError> {
        let from = self.get(source)?;
        if n > from.len {
            return Err(SequenceError::NotResumable { asked: n, nearest: from.len });
        }
        let to = self.get(target)?;
        if to.len > 0 {
            return Err(SequenceError::Position { position: 0, expected: to.len });
        }
        let pages = from.pages[..n.div_ceil(PAGE_TOKENS)].to_vec();
        pages.iter().for_each(|p| self.store.share(*p));
        let to = self.get_mut(target)?;
        let old = std::mem::replace(&mut to.pages, pages);
        to.len = n;
        old.into_iter().for_each(|p| self.store.release(p));
        Ok(())
    }

    /// `export` appends the bytes of a page, the so-manieth of its sequence, of which the first so many tokens count.
    pub fn save(
        &self,
        id: SequenceId,
        export: impl Fn(&P, P::Id, usize, usize, &mut Vec<u8>) -> Result<(), String>,
    ) -> Result<Vec<u8>, SequenceError> {
        let sequence = self.get(id)?;
        let pages = sequence.len.div_ceil(PAGE_TOKENS);
        let mut bytes = Vec::with_capacity(HEADER + pages * self.store.page_bytes());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.fingerprint.to_le_bytes());
        bytes.extend_from_slice(&(sequence.len as u64).to_le_bytes());
        for (i, page) in sequence.pages[..pages].iter().enumerate() {
            let tokens = sequence.len - i * PAGE_TOKENS;
            export(&self.store, *page, i, tokens, &mut bytes).map_err(SequenceError::Failed)?;
        }
        Ok(bytes)
    }

    /// `import` fills a page from exported bytes.
    pub fn restore(
        &mut self,
        bytes: &[u8],
        mut import: impl FnMut(&mut P, P::Id, &[u8]) -> Result<(), String>,
    ) -> Result<SequenceId, SequenceError> {
        let bad = |what: String| SequenceError::BadState(what);
        let word =
            |at: usize| -> Option<u64> { Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?)) };
        if bytes.get(..8) != Some(MAGIC) {
            return Err(bad("it is no saved state of this engine".into()));
        }
        if word(8) != Some(self.fingerprint) {
            return Err(bad("it belongs to another model or to other cache types".into()));
        }
        let len = word(16)
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| bad("its header is cut off".into()))?;
        if len > self.max_tokens {
            return Err(SequenceError::TooLong { asked: len, max_tokens: self.max_tokens });
        }
        let (pages, page_bytes) = (len.div_ceil(PAGE_TOKENS), self.store.page_bytes());
        let body = &bytes[HEADER..];
        if pages.checked_mul(page_bytes) != Some(body.len()) {
            return Err(bad(format!(
                "{len} tokens need {pages} pages of {page_bytes} bytes, it holds {}",
                body.len()
            )));
        }
        let id = self.create();
        if let Err(error) = self.grow(id, len) {
            self.remove(id);
            return Err(error);
        }
        for (i, page) in body.chunks_exact(page_bytes.max(1)).enumerate() {
            let Some(target) = self.all.get(&id).and_then(|s| s.pages.get(i)).copied() else { break };
            if let Err(why) = import(&mut self.store, target, page) {
                self.remove(id);
                return Err(SequenceError::Failed(why));
            }
        }
        self.advance(id, len);
        Ok(id)
    }
}
