//! What each token is: its kind, and the bytes that it stands for.

use crate::bytes::{byte_of_token, bytes_of_letters};
use crate::text_index::TextIndex;

/// The kinds of a token, as a set: a token can be of several after the roles are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Kinds(u8);

impl Kinds {
    pub(crate) const UNKNOWN: Self = Self(1);
    pub(crate) const UNUSED: Self = Self(1 << 1);
    pub(crate) const NORMAL: Self = Self(1 << 2);
    pub(crate) const CONTROL: Self = Self(1 << 3);
    pub(crate) const USER_DEFINED: Self = Self(1 << 4);
    pub(crate) const BYTE: Self = Self(1 << 5);

    /// From a value of `tokenizer.ggml.token_type`.
    pub(crate) fn from_type(token_type: i32) -> Self {
        match token_type {
            1 => Self::NORMAL,
            2 => Self::UNKNOWN,
            3 => Self::CONTROL,
            4 => Self::USER_DEFINED,
            5 => Self::UNUSED,
            6 => Self::BYTE,
            _ => Self::default(),
        }
    }

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// How a token's text relates to the bytes that it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// Letters stand for bytes.
    Letters,
    /// U+2581 stands for a space.
    EscapedSpaces,
}

/// The bytes of every token, in one block.
pub(crate) struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Pieces {
    pub(crate) fn new(tokens: &TextIndex, kinds: &[Kinds], spelling: Spelling) -> Self {
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(kinds.len());
        for (id, &kinds) in (0u32..).zip(kinds) {
            append_piece(tokens.text(id), kinds, spelling, &mut bytes);
            ends.push(bytes.len());
        }
        Self { bytes, ends }
    }

    /// Nothing for an id outside of the vocabulary: logits may be wider than it.
    pub(crate) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = id.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let end = self.ends.get(id).copied().unwrap_or(start);
        self.bytes.get(start..end).unwrap_or_default()
    }
}

fn append_piece(text: &[u8], kinds: Kinds, spelling: Spelling, out: &mut Vec<u8>) {
    if kinds.has(Kinds::UNKNOWN.with(Kinds::CONTROL).with(Kinds::USER_DEFINED)) {
        out.extend_from_slice(text);
    } else if kinds.has(Kinds::NORMAL) {
        match spelling {
            // A token with other letters was added as plain text.
            Spelling::Letters => match bytes_of_letters(text) {
                Some(bytes) => out.extend_from_slice(&bytes),
                None => out.extend_from_slice(text),
            },
            Spelling::EscapedSpaces => unescape_spaces(text, out),
        }
    } else if kinds.has(Kinds::BYTE) {
        match byte_of_token(text) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(text),
        }
    }
    // Unused tokens and those of no known type stand for nothing.
}

const ESCAPED_SPACE: &[u8] = "\u{2581}".as_bytes();

fn unescape_spaces(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        if let Some(behind) = rest.strip_prefix(ESCAPED_SPACE) {
            out.push(b' ');
            rest = behind;
        } else {
            out.push(first);
            rest = tail;
        }
    }
}

/// Append text with U+2581 for every space.
pub(crate) fn escape_spaces(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        match byte {
            b' ' => out.extend_from_slice(ESCAPED_SPACE),
            _ => out.push(byte),
        }
    }
}
