//! Sequences: their lengths and page tables, shared prefixes, copies before writing, bytes.

use crate::executor::{Rollback, SequenceError, SequenceId};
use bloomery_kernels_cpu::kv::{PAGE_TOKENS, PageId, PageStore};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

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

/// Checkpoints that a sequence keeps, and bytes that they may take unless there are fewer than two.
const MOST_CHECKPOINTS: usize = 8;
const CHECKPOINT_BYTES: usize = 512 << 20;

/// The states of fixed size of a sequence; shared with its checkpoints until one is written.
pub(crate) type Block = Arc<Vec<f32>>;

/// What is kept of one text.
#[derive(Debug, Clone)]
pub(crate) struct Sequence<Id> {
    pub pages: Vec<Id>,
    pub len: usize,
    /// The tokens, where the program reads them back.
    pub text: Vec<u32>,
    /// States of fixed size; empty for zeros.
    block: Block,
    /// The blocks at earlier lengths.
    checkpoints: BTreeMap<usize, Block>,
    /// One more of them, the last mark.
    mark: Option<(usize, Block)>,
}

/// What sequences keep beside their pages.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Keeps {
    /// Values of the states of fixed size.
    pub values: usize,
    /// The tokens.
    pub text: bool,
}

/// All sequences and the pages that they hold.
pub(crate) struct Sequences<P: Pages> {
    pub store: P,
    all: HashMap<SequenceId, Sequence<P::Id>>,
    next: u64,
    max_tokens: usize,
    fingerprint: u64,
    keeps: Keeps,
}

impl<P: Pages> Sequences<P> {
    pub fn new(store: P, max_tokens: usize, fingerprint: u64, keeps: Keeps) -> Sequences<P> {
        Sequences { store, all: HashMap::new(), next: 1, max_tokens, fingerprint, keeps }
    }

    /// How the sequences go back.
    pub fn rollback(&self) -> Rollback {
        if self.keeps.values > 0 { Rollback::Checkpoints } else { Rollback::Truncate }
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
        let (text, block, checkpoints) = (Vec::new(), Block::default(), BTreeMap::new());
        self.all.insert(id, Sequence { pages: Vec::new(), len: 0, text, block, checkpoints, mark: None });
        id
    }

    /// Takes the states of fixed size out, to be written and put back. The block has its full size.
    pub fn take_block(&mut self, id: SequenceId) -> Block {
        let mut block = self.all.get_mut(&id).map(|s| std::mem::take(&mut s.block)).unwrap_or_default();
        if block.len() < self.keeps.values {
            block = Arc::new(vec![0.0; self.keeps.values]);
        }
        block
    }

    /// Puts back what was taken out.
    pub fn put_block(&mut self, id: SequenceId, block: Block) {
        if let Some(sequence) = self.all.get_mut(&id) {
            sequence.block = block;
        }
    }

    /// The largest position at most `n` at which the sequence can go on.
    pub fn resumable(&self, id: SequenceId, n: usize) -> Result<usize, SequenceError> {
        let sequence = self.get(id)?;
        if self.keeps.values == 0 || n >= sequence.len {
            return Ok(n.min(sequence.len));
        }
        Ok(sequence.checkpoints.range(..=n).next_back().map_or(0, |(at, _)| *at))
    }

    /// The states of fixed size at a position that is resumable.
    fn block_at(&self, sequence: &Sequence<P::Id>, n: usize) -> Block {
        match n {
            0 => Block::default(),
            n if n == sequence.len => sequence.block.clone(),
            n => sequence.checkpoints.get(&n).cloned().unwrap_or_default(),
        }
    }

    /// Remembers the present position. Of too many the one closest behind another goes: those that stay spread over the text.
    pub fn checkpoint(&mut self, id: SequenceId) -> Result<(), SequenceError> {
        let keeps = self.keeps;
        let sequence = self.get_mut(id)?;
        if keeps.values == 0 || sequence.len == 0 {
            return Ok(());
        }
        sequence.checkpoints.insert(sequence.len, sequence.block.clone());
        let most = (CHECKPOINT_BYTES / (4 * keeps.values)).clamp(2, MOST_CHECKPOINTS);
        if sequence.checkpoints.len() > most {
            let lengths: Vec<usize> = sequence.checkpoints.keys().copied().collect();
            // The newest stays.
            let closest = lengths.windows(2).take(most - 1).min_by_key(|pair| pair[1] - pair[0]);
            if let Some(pair) = closest {
                sequence.checkpoints.remove(&pair[1]);
            }
        }
        Ok(())
    }

    /// Remembers the present position until the next mark.
    pub fn mark(&mut self, id: SequenceId) -> Result<(), SequenceError> {
        let keeps = self.keeps;
        let sequence = self.get_mut(id)?;
        sequence.mark = (keeps.values > 0).then(|| (sequence.len, sequence.block.clone()));
        Ok(())
    }

    /// Cuts at `n` or, where that cannot be, at the mark before it; returns where.
    pub fn take_back(&mut self, id: SequenceId, n: usize) -> Result<usize, SequenceError> {
        let nearest = self.resumable(id, n)?;
        let sequence = self.get_mut(id)?;
        let mark = sequence.mark.take_if(|(at, _)| nearest < n && (nearest..n).contains(at));
        let Some((at, block)) = mark else { return self.truncate(id, n).map(|()| n) };
        let is_checkpoint = sequence.checkpoints.insert(at, block).is_some();
        self.truncate(id, at)?;
        if !is_checkpoint {
            self.get_mut(id)?.checkpoints.remove(&at);
        }
        Ok(at)
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
    pub fn advance(&mut self, id: SequenceId, tokens: &[u32]) {
        let keeps = self.keeps;
        if let Some(sequence) = self.all.get_mut(&id) {
            sequence.len += tokens.len();
            if keeps.text {
                sequence.text.extend_from_slice(tokens);
            }
        }
    }

    pub fn truncate(&mut self, id: SequenceId, n: usize) -> Result<(), SequenceError> {
        let nearest = self.resumable(id, n)?;
        if nearest != n {
            return Err(SequenceError::NotResumable { asked: n, nearest });
        }
        let block = self.block_at(self.get(id)?, n);
        let sequence = self.get_mut(id)?;
        sequence.len = n;
        sequence.block = block;
        sequence.checkpoints.split_off(&(n + 1));
        sequence.mark.take_if(|(at, _)| *at > n);
        sequence.text.truncate(n);
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
        let nearest = self.resumable(source, n)?;
        if nearest != n {
            return Err(SequenceError::NotResumable { asked: n, nearest });
        }
        let to = self.get(target)?;
        if to.len > 0 {
            return Err(SequenceError::Position { position: 0, expected: to.len });
        }
        let from = self.get(source)?;
        let mut copy = Sequence {
            pages: from.pages[..n.div_ceil(PAGE_TOKENS)].to_vec(),
            len: n,
            text: from.text[..n.min(from.text.len())].to_vec(),
            block: self.block_at(from, n),
            checkpoints: from.checkpoints.range(..=n).map(|(at, block)| (*at, block.clone())).collect(),
            mark: None,
        };
        copy.pages.iter().for_each(|p| self.store.share(*p));
        std::mem::swap(self.get_mut(target)?, &mut copy);
        copy.pages.into_iter().for_each(|p| self.store.release(p));
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
        sequence.text.iter().for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
        if self.keeps.values > 0 {
            bytes.extend_from_slice(&(sequence.checkpoints.len() as u64).to_le_bytes());
            for (at, block) in sequence.checkpoints.iter().chain([(&sequence.len, &sequence.block)]) {
                bytes.extend_from_slice(&(*at as u64).to_le_bytes());
                // A block that was never written is all zeros.
                let start = bytes.len();
                block.iter().for_each(|v| bytes.extend_from_slice(&v.to_le_bytes()));
                bytes.resize(start + 4 * self.keeps.values, 0);
            }
        }
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
        let mut body = &bytes[HEADER..];
        let kept = self.take_kept(&mut body, len).ok_or_else(|| bad("its states are cut off".into()))?;
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
        if let Some(sequence) = self.all.get_mut(&id) {
            (sequence.text, sequence.block, sequence.checkpoints) = kept;
            sequence.len = len;
        }
        Ok(id)
    }

    /// Text, states of fixed size and checkpoints of a saved sequence of `len` tokens, taken off the front of its bytes.
    fn take_kept(&self, bytes: &mut &[u8], len: usize) -> Option<(Vec<u32>, Block, BTreeMap<usize, Block>)> {
        let mut take = |n: usize| {
            let (front, rest) = bytes.split_at_checked(n)?;
            *bytes = rest;
            Some(front)
        };
        let text = if self.keeps.text { take(len.checked_mul(4)?)? } else { &[] };
        let text = text.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let (mut checkpoints, mut block) = (BTreeMap::new(), Block::default());
        if self.keeps.values > 0 {
            let count = u64::from_le_bytes(take(8)?.try_into().ok()?);
            if count > MOST_CHECKPOINTS as u64 {
                return None;
            }
            for i in 0..=count {
                let at = usize::try_from(u64::from_le_bytes(take(8)?.try_into().ok()?)).ok()?;
                let words = take(self.keeps.values.checked_mul(4)?)?.as_chunks().0;
                let values = Arc::new(words.iter().map(|word| f32::from_le_bytes(*word)).collect());
                if i == count {
                    block = values;
                } else if at <= len {
                    checkpoints.insert(at, values);
                } else {
                    return None;
                }
            }
        }
        Some((text, block, checkpoints))
    }
}
