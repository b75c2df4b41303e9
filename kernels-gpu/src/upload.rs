//! From files to the card: several threads read pieces into pinned memory, and the copies of one thread run while it reads on.

use crate::card::{Context, Event, PinnedMemory, Stream};
use crate::driver::check;
use crate::machine::{LoadError, LoadItem, LoadSource, same_length};
use cudarc::driver::result;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

/// Bytes of one read.
const PIECE: u64 = 8 << 20;
/// Pieces of one thread that are being copied while it reads the next.
const RING: usize = 3;
/// More threads than this gain nothing: the bus is full.
const MOST_THREADS: usize = 12;

/// A piece of an item.
#[derive(Clone, Copy)]
struct Piece {
    item: usize,
    from: u64,
    bytes: u64,
}

/// Every item in pieces, in order.
fn pieces(items: &[LoadItem<'_>]) -> Vec<Piece> {
    let mut all = Vec::new();
    for (item, load) in items.iter().enumerate() {
        let bytes = load.to.bytes();
        all.extend((0..bytes).step_by(PIECE as usize).map(|from| Piece {
            item,
            from,
            bytes: PIECE.min(bytes - from),
        }));
    }
    all
}

pub(crate) fn upload(
    context: &Arc<Context>,
    items: &[LoadItem<'_>],
    progress: &mut dyn FnMut(u64),
) -> Result<(), LoadError> {
    for item in items {
        if let LoadSource::Memory(bytes) = item.source {
            same_length("a load", bytes.len() as u64, item.to.bytes())?;
        }
    }
    let pieces = pieces(items);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = cores.min(MOST_THREADS).min(pieces.len()).max(1);
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (tell, hear) = mpsc::channel();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let (tell, next, stop, pieces) = (tell.clone(), &next, &stop, &pieces);
                scope.spawn(move || {
                    let done = work(context, items, pieces, next, stop, &tell);
                    if done.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    done
                })
            })
            .collect();
        drop(tell);
        let mut there = 0;
        for bytes in hear {
            there += bytes;
            progress(there);
        }
        // A thread that panics is a bug: let it be seen.
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn work(
    context: &Arc<Context>,
    items: &[LoadItem<'_>],
    pieces: &[Piece],
    next: &AtomicUsize,
    stop: &AtomicBool,
    tell: &mpsc::Sender<u64>,
) -> Result<(), LoadError> {
    context.bind()?;
    let stream = Stream::new(context)?;
    let mut ring: Vec<(PinnedMemory, Event, u64)> = Vec::with_capacity(RING);
    for _ in 0..RING {
        ring.push((PinnedMemory::new(PIECE, context)?, Event::new(context)?, 0));
    }
    let mut outcome = Ok(());
    for turn in 0.. {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(piece) = pieces.get(index).copied().filter(|_| !stop.load(Ordering::Relaxed)) else { break };
        let (memory, event, under_way) = &mut ring[turn % RING];
        if *under_way > 0 {
            // The copy before last: done long ago unless the bus is the limit.
            if let Err(error) = event.wait() {
                outcome = Err(error.into());
                break;
            }
            // Whoever listens may have gone; the load goes on.
            let _ = tell.send(std::mem::take(under_way));
        }
        if let Err(error) = send(memory, &stream, event, &items[piece.item], piece) {
            outcome = Err(error);
            break;
        }
        *under_way = piece.bytes;
    }
    // Pinned memory must not be freed under a copy, also after a failure.
    for (_, event, under_way) in &mut ring {
        if *under_way > 0 {
            let passed = event.wait();
            if outcome.is_ok() {
                outcome = passed.map_err(LoadError::from);
                let _ = tell.send(std::mem::take(under_way));
            }
        }
    }
    outcome
}

fn send(
    memory: &mut PinnedMemory,
    stream: &Stream,
    event: &Event,
    item: &LoadItem<'_>,
    piece: Piece,
) -> Result<(), LoadError> {
    let length = usize::try_from(piece.bytes).unwrap_or(0);
    let target = &mut memory.bytes_mut()[..length];
    match item.source {
        LoadSource::File(file, offset) => read_at(file, offset + piece.from, target)?,
        LoadSource::Memory(bytes) => {
            let from = usize::try_from(piece.from).unwrap_or(0);
            target.copy_from_slice(&bytes[from..from + length]);
        }
    }
    let to = item.to.part(piece.from, piece.bytes)?;
    // SAFETY: the piece lies in its item's buffer; the pinned memory lives until the event below has passed.
    check("cuMemcpyHtoDAsync", unsafe { result::memcpy_htod_async(to.address(), target, stream.0) })?;
    Ok(event.mark(stream)?)
}

#[cfg(unix)]
fn read_at(file: &File, offset: u64, target: &mut [u8]) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, target, offset)
}

#[cfg(windows)]
fn read_at(file: &File, mut offset: u64, mut target: &mut [u8]) -> std::io::Result<()> {
    while !target.is_empty() {
        let n = std::os::windows::fs::FileExt::seek_read(file, target, offset)?;
        if n == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        offset += n as u64;
        target = &mut target[n..];
    }
    Ok(())
}

/// Copies an item into host memory: the simulated grid's way of loading.
#[cfg(feature = "simulated")]
pub(crate) fn fetch(item: &LoadItem<'_>, target: &mut [u8]) -> Result<(), LoadError> {
    match item.source {
        LoadSource::File(file, offset) => Ok(read_at(file, offset, target)?),
        LoadSource::Memory(bytes) => {
            same_length("a load", bytes.len() as u64, target.len() as u64)?;
            target.copy_from_slice(bytes);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Buffer;

    #[test]
    fn pieces_cover_every_item_once() {
        let item = |bytes| LoadItem { source: LoadSource::Memory(&[]), to: Buffer::new(4096, bytes) };
        let items = [item(0), item(5), item(2 * PIECE), item(2 * PIECE + 1)];
        let pieces = pieces(&items);
        let lengths: Vec<(usize, u64, u64)> = pieces.iter().map(|p| (p.item, p.from, p.bytes)).collect();
        let expected = [
            (1, 0, 5),
            (2, 0, PIECE),
            (2, PIECE, PIECE),
            (3, 0, PIECE),
            (3, PIECE, PIECE),
            (3, 2 * PIECE, 1),
        ];
        assert_eq!(lengths, expected);
    }
}
