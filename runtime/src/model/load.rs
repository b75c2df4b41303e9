//! Reading the weights into memory, in the file's order, ahead of their use.

use bloomery_gguf::{Access, GgufFile, TensorInfo};

/// How far a load has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of weights read.
    pub done: u64,
    /// Bytes of weights in all.
    pub total: u64,
}

/// Bytes asked of the disk ahead of those that are being touched.
const AHEAD: u64 = 128 << 20;
/// Bytes between two reports.
const REPORT: usize = 16 << 20;
/// The smallest page in use.
const PAGE: usize = 4096;

/// Touches every page of these tensors in order and reports on the way, the end included.
pub(super) fn read_ahead(file: &GgufFile, tensors: &[&TensorInfo], progress: &mut dyn FnMut(LoadProgress)) {
    let total = tensors.iter().map(|tensor| tensor.byte_length()).sum();
    let mut done = 0;
    progress(LoadProgress { done, total });
    let (mut asked, mut asked_bytes) = (tensors.iter(), 0);
    let mut touched = 0u8;
    for tensor in tensors {
        while asked_bytes < done + AHEAD
            && let Some(next) = asked.next()
        {
            asked_bytes += next.byte_length();
            // A hint: without it the pages are read one by one, which is slower and no less right.
            if let Err(error) = file.advise_tensor(next, Access::WillNeed) {
                tracing::debug!(tensor = next.name(), %error, "no read-ahead");
            }
        }
        for chunk in file.data(tensor).chunks(REPORT) {
            touched ^= chunk.iter().step_by(PAGE).chain(chunk.last()).fold(0, |all, &byte| all ^ byte);
            done += chunk.len() as u64;
            progress(LoadProgress { done, total });
        }
    }
    // The compiler must not think the bytes unread.
    std::hint::black_box(touched);
}
