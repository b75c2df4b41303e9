//! What crosses between the serving process and its probing child: one request file, one answer file, both in memory.
//!
//! Request, the child's stdin: a line of JSON ([`Request`]), the library's bytes, the facts' bytes.
//! Answer, the child's stdout until a moment before the library is opened: the line [`HELLO`], then, when the library was
//! asked, a line `bloomery-seat-answer 1 HEAD BODY` with two lengths, the head as JSON ([`Head`]), and the program's bytes. An
//! answer that is not exactly that long was cut off.

use crate::error::SeatError;
use serde::{Deserialize, Serialize};

/// Written before the library is opened: what comes or fails to come after it is the seat's doing.
pub const HELLO: &[u8] = b"bloomery-seat-probe 1\n";

const MAGIC: &str = "bloomery-seat-answer 1";

/// Most bytes of an answer.
pub const MOST_BYTES: u64 = 64 << 20;

/// First line of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Bytes of the library.
    pub library: u64,
    /// Bytes of the facts; `None` asks only who the seat is.
    pub facts: Option<u64>,
    /// Seconds of processor time that the child may use.
    pub seconds: u64,
}

/// What the child found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Head {
    /// The loader refused the file.
    NotOpened {
        /// Its words.
        message: String,
    },
    /// No table.
    NoTable {
        /// The loader's words.
        message: String,
    },
    /// Another table.
    OtherTable {
        /// The layout check's words.
        message: String,
    },
    /// Built with `panic = "abort"`.
    Aborts {
        /// What it says about itself.
        info: String,
    },
    /// A seat.
    Seat {
        /// What it says about itself.
        info: String,
        /// It brings operators of its own.
        cpu_op: bool,
        /// Its answer to the facts; `ok`: the body is the program.
        declared: Option<Result<(), String>>,
    },
}

/// The answer's bytes.
pub fn write(head: &Head, body: &[u8]) -> Vec<u8> {
    let head = serde_json::to_vec(head).unwrap_or_default();
    let mut answer = format!("{MAGIC} {} {}\n", head.len(), body.len()).into_bytes();
    answer.extend_from_slice(&head);
    answer.extend_from_slice(body);
    answer
}

/// Reads an answer. `None` when it is not complete.
///
/// # Errors
/// [`SeatError::Answer`] for a complete answer that cannot be understood.
pub fn read(answer: &[u8]) -> Option<Result<(Head, &[u8]), SeatError>> {
    let line_end = answer.iter().position(|b| *b == b'\n')?;
    let (line, rest) = (&answer[..line_end], &answer[line_end + 1..]);
    let lengths = std::str::from_utf8(line).ok()?.strip_prefix(MAGIC)?.strip_prefix(' ')?;
    let (head_len, body_len) = lengths.split_once(' ')?;
    let (head_len, body_len): (usize, usize) = (head_len.parse().ok()?, body_len.parse().ok()?);
    if head_len.checked_add(body_len)? != rest.len() {
        return None;
    }
    let (head, body) = rest.split_at_checked(head_len)?;
    let head =
        serde_json::from_slice(head).map_err(|e| SeatError::Answer { message: format!("its head: {e}") });
    Some(head.map(|head| (head, body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_complete_answer_is_read() {
        let head = Head::Seat { info: "{}".into(), cpu_op: false, declared: Some(Ok(())) };
        let answer = write(&head, b"program");
        assert_eq!(read(&answer), Some(Ok((head, &b"program"[..]))));
        for len in 0..answer.len() {
            assert_eq!(read(&answer[..len]), None, "cut at {len}");
        }
        assert_eq!(read(&[&answer[..], b"x"].concat()), None, "longer than it says");
        assert!(matches!(read(&write_raw(b"{}", b"")), Some(Err(SeatError::Answer { .. }))));
        assert_eq!(read(format!("{MAGIC} {} 5\n", usize::MAX).as_bytes()), None, "no overflow");
    }

    fn write_raw(head: &[u8], body: &[u8]) -> Vec<u8> {
        [format!("{MAGIC} {} {}\n", head.len(), body.len()).as_bytes(), head, body].concat()
    }
}
