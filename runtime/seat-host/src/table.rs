//! Opening a library and fetching its table: libloading opens the file, abi_stable checks the table's layout.

use bloomery_seat::abi::abi_stable::library::AbiHeaderRef;
use bloomery_seat::abi::{SYMBOL, SeatRef};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::path::Path;

/// How far opening got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenFault {
    /// The loader refused the file.
    NotOpened(String),
    /// The library exports no table.
    NoTable(String),
    /// The table has another version or layout.
    OtherTable(String),
}

/// Opens a library and returns its table. The library stays mapped for good: the table lives in it.
///
/// # Safety
/// This runs the library's own code, with the rights of the process: its constructors and the function that makes the
/// table. The caller vouches that running it is what the user asked for.
///
/// # Errors
/// How far it got and the loader's words.
pub unsafe fn open(path: &Path) -> Result<SeatRef, OpenFault> {
    // SAFETY: the caller vouches for the library's constructors.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|e| OpenFault::NotOpened(clean(&e)))?;
    // SAFETY: the symbol is abi_stable's own name for its header, whose first bytes `upgrade` compares with its magic
    // before it believes anything else; the value read is one reference, as `AbiHeaderRef` is.
    let header = match unsafe { library.get::<AbiHeaderRef>(SYMBOL.as_bytes()) } {
        // Never unloaded: the table and everything in it are 'static.
        Ok(header) => *header,
        Err(e) => return Err(OpenFault::NoTable(clean(&e))),
    };
    std::mem::forget(library);
    let table = header.upgrade().and_then(|header| header.init_root_module::<SeatRef>());
    table.map_err(|e| OpenFault::OtherTable(last_part(&e.to_string())))
}

/// The loader's words without the path of the private copy, which says nothing to anybody.
fn clean(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error).map(ToString::to_string);
    let text = source.unwrap_or_else(|| error.to_string());
    match text.split_once(": ") {
        Some((path, rest)) if path.starts_with("/proc/self/fd/") => rest.to_string(),
        _ => text,
    }
}

/// The layout check prints whole types; what is wrong stands after its last "Error:", the way to it after the last
/// "error(s)inside:".
fn last_part(report: &str) -> String {
    let (_, inside) = report.rsplit_once("error(s)inside:").unwrap_or_default();
    let fields = inside.lines().take_while(|line| !line.starts_with("Layout of"));
    let names = fields.filter_map(|line| line.trim().strip_prefix("field_name:"));
    let way: Vec<&str> = names.filter(|name| !name.bytes().all(|b| b.is_ascii_digit())).collect();
    let (_, error) = report.rsplit_once("Error:").unwrap_or(("", report));
    let words: Vec<&str> = error.split_whitespace().collect();
    let place = if way.is_empty() { String::new() } else { format!("field {}: ", way.join(".")) };
    let line = format!("{place}{}", words.join(" "));
    match line.char_indices().nth(400) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}
