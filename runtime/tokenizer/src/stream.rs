use crate::tokenizer::Tokenizer;

/// Text that leaves token by token and never in the middle of a character.
///
/// A token may end inside of a UTF-8 sequence; its last bytes wait until they are complete. Bytes that can never become a
/// character turn into U+FFFD, by the same rule as [`String::from_utf8_lossy`]: the text of all pushes and [`finish`](Self::finish)
/// together is the lossy text of all bytes, wherever the tokens were cut.
#[derive(Debug, Clone, Default)]
pub struct StreamDecoder {
    special: bool,
    pending: Vec<u8>,
}

impl StreamDecoder {
    /// A decoder at the start of a text. `special` shows control tokens as text; otherwise they leave none.
    #[must_use]
    pub fn new(special: bool) -> Self {
        Self { special, pending: Vec::new() }
    }

    /// The text that one more token completes; often empty.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        self.push_bytes(tokenizer.piece(id, self.special))
    }

    /// The text that these bytes complete.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            let at_end = done + invalid.len() == self.pending.len();
            if at_end && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none()) {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            done += invalid.len();
        }
        self.pending.drain(..done);
        text
    }

    /// Bytes that wait for the rest of their character.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }

    /// The end of the text: U+FFFD where a character was begun and not ended, else nothing. The decoder is as new afterwards.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn waits_for_the_rest_of_a_character() {
        let mut decoder = StreamDecoder::new(false);
        assert_eq!(decoder.push_bytes(b"a\xF0\x9F"), "a");
        assert_eq!(decoder.pending(), b"\xF0\x9F");
        assert_eq!(decoder.push_bytes(b"\x98"), "");
        assert_eq!(decoder.push_bytes(b"\x80b"), "😀b");
        assert_eq!(decoder.push_bytes(b"\xFF"), "\u{FFFD}");
        assert_eq!(decoder.push_bytes(b"\xE2\x82"), "");
        assert_eq!(decoder.push_bytes(b"x"), "\u{FFFD}x");
        assert_eq!(decoder.push_bytes(b"\xC3"), "");
        assert_eq!(decoder.finish(), "\u{FFFD}");
        assert_eq!(decoder.finish(), "");
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_text(bytes in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..64),
            "\\PC{0,24}".prop_map(String::into_bytes),
            proptest::collection::vec(prop_oneof![Just(0xF0u8), Just(0x9F), Just(0x98), Just(0x80), Just(0xE2), Just(0x41), Just(0xED), Just(0xA0)], 0..32),
        ], cuts in proptest::collection::vec(0usize..5, 0..64)) {
            let mut decoder = StreamDecoder::new(false);
            let mut text = String::new();
            let mut rest = &bytes[..];
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                text += &decoder.push_bytes(now);
                rest = later;
            }
            text += &decoder.push_bytes(rest);
            prop_assert!(decoder.pending().len() < 4);
            text += &decoder.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
