//! Bytes as letters, and text that may be no UTF-8.

use std::borrow::Cow;

/// The letter that stands for a byte in byte-level BPE.
///
/// GPT-2's rule: printable bytes stand for themselves, the other 68 take the letters from U+0100 on, in order.
pub(crate) fn letter_of_byte(byte: u8) -> char {
    let code = match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u32::from(byte),
        0x00..=0x20 => 0x100 + u32::from(byte),
        0x7F..=0xA0 => 0x100 + 0x21 + u32::from(byte - 0x7F),
        0xAD => 0x100 + 0x21 + 0x22,
    };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte that a letter stands for; the inverse of [`letter_of_byte`].
pub(crate) fn byte_of_letter(letter: char) -> Option<u8> {
    let code = u32::from(letter);
    let byte = match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7F,
        0x143 => 0xAD,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// The bytes behind a byte-level token's text, or `None` where some letter stands for no byte.
pub(crate) fn bytes_of_letters(text: &[u8]) -> Option<Vec<u8>> {
    std::str::from_utf8(text).ok()?.chars().map(byte_of_letter).collect()
}

/// The byte of a byte token `<0x0A>`.
pub(crate) fn byte_of_token(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// The text of the byte token of a byte.
pub(crate) fn token_of_byte(byte: u8) -> [u8; 6] {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let digit = |nibble: u8| HEX.get(usize::from(nibble)).copied().unwrap_or(b'0');
    [b'<', b'0', b'x', digit(byte >> 4), digit(byte & 15), b'>']
}

/// Length in bytes of the character that starts with this byte, as far as the byte alone tells.
pub(crate) fn character_length(lead: u8) -> usize {
    match lead {
        0xC0..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xFF => 4,
        _ => 1,
    }
}

/// Text that came as bytes: what to match patterns against, and what to turn into tokens.
///
/// Both have the same length, and characters start at the same offsets. They differ where the bytes encode a surrogate,
/// which a `str` cannot hold: the pattern sees a private-use character there, which no pattern treats otherwise.
pub(crate) struct Readable<'a> {
    pub(crate) view: Cow<'a, str>,
    pub(crate) bytes: Cow<'a, [u8]>,
}

/// Read bytes as the reference implementation does: a byte that starts no sequence is U+FFFD, overlong forms are shortened and
/// surrogates stay. Valid UTF-8 passes through untouched.
pub(crate) fn read_leniently(bytes: &[u8]) -> Readable<'_> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Readable { view: Cow::Borrowed(text), bytes: Cow::Borrowed(bytes) };
    }
    let mut view = String::with_capacity(bytes.len());
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while !rest.is_empty() {
        let (code, length) = code_point(rest).unwrap_or((0xFFFD, 1));
        rest = rest.get(length..).unwrap_or_default();
        let (shown, kept) = match char::from_u32(code) {
            Some(letter) => (letter, None),
            // Only surrogates get here: `code_point` lets nothing else through that is no `char`.
            None => (
                char::from_u32(0xE000 + (code & 0x7FF)).unwrap_or(char::REPLACEMENT_CHARACTER),
                Some([
                    0xE0 | (code >> 12) as u8,
                    0x80 | (code >> 6 & 0x3F) as u8,
                    0x80 | (code & 0x3F) as u8,
                ]),
            ),
        };
        view.push(shown);
        match kept {
            Some(raw) => out.extend_from_slice(&raw),
            None => out.extend_from_slice(shown.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Readable { view: Cow::Owned(view), bytes: Cow::Owned(out) }
}

/// The code point at the start of `bytes` and its length; overlong forms and surrogates count, more than U+10FFFF does not.
fn code_point(bytes: &[u8]) -> Option<(u32, usize)> {
    let lead = u32::from(*bytes.first()?);
    let (length, start) = match lead {
        0x00..=0x7F => return Some((lead, 1)),
        0xC0..=0xDF => (2, lead & 0x1F),
        0xE0..=0xEF => (3, lead & 0x0F),
        0xF0..=0xF7 => (4, lead & 0x07),
        _ => return None,
    };
    let code = bytes
        .get(1..length)?
        .iter()
        .try_fold(start, |code, &byte| (byte & 0xC0 == 0x80).then_some(code << 6 | u32::from(byte & 0x3F)))?;
    (code <= 0x10_FFFF).then_some((code, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_a_bijection() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=255 {
            let letter = letter_of_byte(byte);
            assert!(seen.insert(letter));
            assert_eq!(byte_of_letter(letter), Some(byte));
            assert_eq!(byte_of_token(&token_of_byte(byte)), Some(byte));
        }
        assert_eq!(letter_of_byte(b' '), 'Ġ');
        assert_eq!(letter_of_byte(b'\n'), 'Ċ');
        assert_eq!(letter_of_byte(0xAD), 'Ń');
        assert_eq!(byte_of_letter('は'), None);
    }

    #[test]
    fn bytes_that_are_no_text() {
        for (raw, view, kept) in [
            (&b"a\xFFb"[..], "a\u{FFFD}b", "a\u{FFFD}b".as_bytes()),
            (b"\xC3", "\u{FFFD}", "\u{FFFD}".as_bytes()),
            (b"\xC0\xAF", "/", b"/"),
            (b"\xED\xA0\x80", "\u{E000}", b"\xED\xA0\x80"),
            (
                b"\xF4\x90\x80\x80",
                "\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}",
                "\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}".as_bytes(),
            ),
        ] {
            let read = read_leniently(raw);
            assert_eq!(read.view, view, "{raw:02X?}");
            assert_eq!(&*read.bytes, kept, "{raw:02X?}");
        }
    }
}
