//! Enough of ELF to know that the dynamic loader will not run off the end of the file: a truncated copy would kill the
//! process inside `dlopen`, before any other check can speak.

/// What is wrong with the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ElfFault {
    /// A text, an archive, nothing at all.
    #[error("not an ELF file")]
    NotElf,
    /// 32-bit, or another byte order.
    #[error("not a 64-bit little-endian ELF file")]
    Class,
    /// An executable, an object file, a core dump.
    #[error("an ELF file of type {found}, not a shared library (type 3)")]
    Kind {
        /// `e_type`.
        found: u16,
    },
    /// Another processor.
    #[error("built for machine {found}, this host is machine {host}")]
    Machine {
        /// `e_machine`.
        found: u16,
        /// This host's.
        host: u16,
    },
    /// The table of segments.
    #[error("its program headers lie outside the file")]
    Headers,
    /// A segment.
    #[error("its segment {index} lies outside the file")]
    Segment {
        /// Number.
        index: u16,
    },
    /// The table of sections, which linkers write last.
    #[error("its section table lies outside the file")]
    Sections,
    /// Nothing to load.
    #[error("it has no segment to load")]
    Nothing,
    /// A static executable in a library's clothes.
    #[error("it has no dynamic section, so it is no library")]
    NotDynamic,
}

impl ElfFault {
    pub(crate) fn hint(self) -> &'static str {
        match self {
            ElfFault::Headers | ElfFault::Segment { .. } | ElfFault::Sections => {
                "probably a copy that broke off: copy the file again"
            }
            ElfFault::Machine { .. } | ElfFault::Class => "build the seat for this machine",
            _ => "a seat is a library: crate-type = [\"cdylib\"], target/release/lib*.so",
        }
    }
}

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;
#[cfg(target_arch = "riscv64")]
const MACHINE: u16 = 243;

const PROGRAM_HEADER: u64 = 56;
const SECTION_HEADER: u64 = 64;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;

/// Whether the whole of a shared library is there, as its own headers tell it.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(bytes: &[u8]) -> Result<(), ElfFault> {
    let file = File(bytes);
    if bytes.get(..4) != Some(b"\x7fELF") {
        return Err(ElfFault::NotElf);
    }
    if bytes.get(4..6) != Some(&[2, 1]) {
        return Err(ElfFault::Class);
    }
    let kind = file.u16(16).ok_or(ElfFault::Headers)?;
    if kind != 3 {
        return Err(ElfFault::Kind { found: kind });
    }
    let machine = file.u16(18).ok_or(ElfFault::Headers)?;
    if machine != MACHINE {
        return Err(ElfFault::Machine { found: machine, host: MACHINE });
    }
    check_segments(&file)?;
    let (offset, size, count) = (file.u64(40), file.u16(58), file.u16(60));
    let (Some(offset), Some(size), Some(count)) = (offset, size, count) else {
        return Err(ElfFault::Sections);
    };
    let whole = u64::from(size) == SECTION_HEADER && file.holds(offset, u64::from(count) * SECTION_HEADER);
    if offset != 0 && !whole { Err(ElfFault::Sections) } else { Ok(()) }
}

fn check_segments(file: &File<'_>) -> Result<(), ElfFault> {
    let (offset, size, count) = (file.u64(32), file.u16(54), file.u16(56));
    let (Some(offset), Some(size), Some(count)) = (offset, size, count) else {
        return Err(ElfFault::Headers);
    };
    if u64::from(size) != PROGRAM_HEADER || !file.holds(offset, u64::from(count) * PROGRAM_HEADER) {
        return Err(ElfFault::Headers);
    }
    let (mut loads, mut dynamic) = (false, false);
    for index in 0..count {
        // The table lies inside the file, so its entries do too.
        let entry = offset + u64::from(index) * PROGRAM_HEADER;
        let kind = file.u32(entry).ok_or(ElfFault::Headers)?;
        loads |= kind == PT_LOAD;
        dynamic |= kind == PT_DYNAMIC;
        let (start, len) = (file.u64(entry + 8), file.u64(entry + 32));
        let (Some(start), Some(len)) = (start, len) else { return Err(ElfFault::Headers) };
        if !file.holds(start, len) {
            return Err(ElfFault::Segment { index });
        }
    }
    match (loads, dynamic) {
        (false, _) => Err(ElfFault::Nothing),
        (_, false) => Err(ElfFault::NotDynamic),
        _ => Ok(()),
    }
}

struct File<'a>(&'a [u8]);

impl File<'_> {
    fn bytes<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let at = usize::try_from(at).ok()?;
        self.0.get(at..at.checked_add(N)?)?.try_into().ok()
    }
    fn u16(&self, at: u64) -> Option<u16> {
        self.bytes(at).map(u16::from_le_bytes)
    }
    fn u32(&self, at: u64) -> Option<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }
    fn u64(&self, at: u64) -> Option<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }
    fn holds(&self, start: u64, len: u64) -> bool {
        start.checked_add(len).is_some_and(|end| end <= self.0.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_are_named() {
        assert_eq!(check(b""), Err(ElfFault::NotElf));
        assert_eq!(check(b"#!/bin/sh\n"), Err(ElfFault::NotElf));
        assert_eq!(check(b"\x7fELF"), Err(ElfFault::Class));
        assert_eq!(check(b"\x7fELF\x01\x01"), Err(ElfFault::Class));
        assert_eq!(check(b"\x7fELF\x02\x01\x01"), Err(ElfFault::Headers));
        let mut header = [0u8; 64];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        header[16] = 2;
        assert_eq!(check(&header), Err(ElfFault::Kind { found: 2 }));
        header[16] = 3;
        header[18] = 8;
        assert_eq!(check(&header), Err(ElfFault::Machine { found: 8, host: MACHINE }));
        header[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        header[54] = 56;
        assert_eq!(check(&header), Err(ElfFault::Nothing));
        header[56..58].copy_from_slice(&u16::MAX.to_le_bytes());
        assert_eq!(check(&header), Err(ElfFault::Headers));
        header[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        header[56..58].copy_from_slice(&1u16.to_le_bytes());
        assert_eq!(check(&header), Err(ElfFault::Headers));
    }
}
