//! What stands between a seat's Rust functions and the frozen table: bytes, and panics that come back as messages.

use crate::error::Result;
use bloomery_program::{ModelFacts, Program};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

/// One call of a seat's own operator. Operands and results are f32 rows, row-major; several results lie one after
/// another in the output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CpuCall {
    /// Name of the operator, as the node gives it.
    pub name: String,
    /// Its version, as the node gives it.
    pub version: u32,
    /// Its constants.
    #[serde(default)]
    pub attributes: BTreeMap<String, f64>,
    /// Rows in every operand and result.
    pub rows: u32,
}

/// What a seat does: facts in, program out.
pub type Declare = fn(&ModelFacts) -> Result<Program>;

/// A seat's own operator: the call, its operands, room for its results.
pub type CpuOp = fn(&CpuCall, &[&[f32]], &mut [f32]) -> Result<()>;

/// Answers the host's bytes: what the table's `declare` runs.
///
/// # Errors
/// A message for the operator: the seat's refusal, or its panic with the place.
pub fn declare_bytes(request: &[u8], declare: Declare) -> std::result::Result<Vec<u8>, String> {
    guard(|| {
        let facts: ModelFacts =
            serde_json::from_slice(request).map_err(|e| format!("the host's facts cannot be read: {e}"))?;
        let program = declare(&facts).map_err(|e| e.to_string())?;
        serde_json::to_vec(&program).map_err(|e| format!("the program cannot be written: {e}"))
    })
}

/// Runs a seat's operator on the host's bytes: what the table's `cpu_op` runs.
///
/// # Errors
/// The seat's message, or its panic with the place.
pub fn call_bytes(
    call: &[u8],
    operands: &[&[f32]],
    output: &mut [f32],
    function: CpuOp,
) -> std::result::Result<(), String> {
    guard(|| {
        let call: CpuCall =
            serde_json::from_slice(call).map_err(|e| format!("the host's call cannot be read: {e}"))?;
        function(&call, operands, output).map_err(|e| e.to_string())
    })
}

thread_local! {
    /// `Some` while seat code runs on this thread; then the last panic's message and place.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs seat code so that a panic comes back as a message with its place. Panics elsewhere in the process keep the hook
/// that was there before.
///
/// # Errors
/// What `f` says, or the panic.
pub fn guard<T>(f: impl FnOnce() -> std::result::Result<T, String>) -> std::result::Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            let seats_own = PANIC.with_borrow_mut(|slot| match slot {
                Some(message) => {
                    let text = panic.payload_as_str().unwrap_or("no message");
                    *message = match panic.location() {
                        Some(place) => format!("{text} ({}:{})", place.file(), place.line()),
                        None => text.to_string(),
                    };
                    true
                }
                None => false,
            });
            if !seats_own {
                before(panic);
            }
        }));
    });
    PANIC.set(Some(String::new()));
    let result = catch_unwind(AssertUnwindSafe(f));
    let message = PANIC.take().unwrap_or_default();
    result.unwrap_or_else(|payload| {
        // A payload whose drop panics must not escape either.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
        Err(format!("the seat panicked: {message}"))
    })
}

/// Writes the frozen table into the seat's library, and a function `bloomery_seat_table` for its tests.
///
/// ```ignore
/// bloomery_seat::export_seat! { name: "llama", architectures: ["llama"], declare: declare }
/// bloomery_seat::export_seat! { name: "own", architectures: ["own"], declare: declare, cpu_op: run }
/// ```
///
/// `declare` is a [`export::Declare`](crate::export::Declare), `cpu_op` a [`export::CpuOp`](crate::export::CpuOp).
/// Version and licence are those of the seat's own manifest.
///
/// Every seat exports the same symbol, so a program can link one seat as a Rust library, as a seat's own tests do. A program
/// that wants more of them opens the libraries, as the host does.
#[macro_export]
macro_rules! export_seat {
    (name: $name:literal, architectures: [$first:literal $(, $more:literal)* $(,)?], declare: $declare:path
     $(, cpu_op: $cpu_op:path)? $(,)?) => {
        /// The table that this seat exports.
        pub fn bloomery_seat_table() -> $crate::abi::SeatRef {
            use $crate::abi::abi_stable::{prefix_type::PrefixTypeTrait, std_types::*};
            extern "C" fn bloomery_declare(request: RSlice<'_, u8>) -> RResult<RVec<u8>, RString> {
                $crate::export::declare_bytes(request.as_slice(), $declare)
                    .map(RVec::from)
                    .map_err(RString::from)
                    .into()
            }
            $crate::abi::Seat {
                info: RStr::from_str(concat!(
                    "{\"name\":\"", $name, "\",\"version\":\"", env!("CARGO_PKG_VERSION"), "\",\"licence\":\"",
                    env!("CARGO_PKG_LICENSE"), "\",\"architectures\":[\"", $first, "\"" $(, ",\"", $more, "\"")*,
                    "],\"language\":", $crate::language_json!(), "}"
                )),
                unwinds: cfg!(panic = "unwind"),
                declare: bloomery_declare,
                cpu_op: $crate::cpu_op_of!($($cpu_op)?),
            }
            .leak_into_prefix()
        }
        const _: () = {
            use $crate::abi::abi_stable::library::{
                __call_root_module_loader, CheckTypeLayout, LibHeader, RootModuleResult,
            };
            extern "C" fn load() -> RootModuleResult {
                __call_root_module_loader(bloomery_seat_table)
            }
            // SAFETY: the symbol is abi_stable 0.11's own name for a library's header, which no other symbol uses.
            #[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
            // SAFETY: `load` returns the root module of the very type that is named here.
            static HEADER: LibHeader =
                unsafe { LibHeader::from_constructor::<$crate::abi::SeatRef>(load, CheckTypeLayout::Yes) };
        };
    };
}

/// [`crate::LANGUAGE`] as JSON, for `concat!`.
#[doc(hidden)]
#[macro_export]
macro_rules! language_json {
    () => {
        "{\"major\":1,\"minor\":0}"
    };
}

/// The table's optional operator.
#[doc(hidden)]
#[macro_export]
macro_rules! cpu_op_of {
    () => {
        ROption::RNone
    };
    ($function:path) => {{
        extern "C" fn bloomery_cpu_op(
            call: RSlice<'_, u8>,
            operands: RSlice<'_, RSlice<'_, f32>>,
            mut output: RSliceMut<'_, f32>,
        ) -> RResult<(), RString> {
            let operands: Vec<&[f32]> = operands.iter().map(|o| o.as_slice()).collect();
            $crate::export::call_bytes(call.as_slice(), &operands, output.as_mut_slice(), $function)
                .map_err(RString::from)
                .into()
        }
        ROption::RSome(bloomery_cpu_op)
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn language_of_the_macro_is_the_languages_own() {
        let version: bloomery_program::Version = serde_json::from_str(language_json!()).expect("JSON");
        assert_eq!(version, bloomery_program::LANGUAGE);
    }

    #[test]
    fn a_panic_comes_back_with_message_and_place() {
        let message = guard::<()>(|| panic!("layer {} of 3", 4)).expect_err("panicked");
        assert!(message.starts_with("the seat panicked: layer 4 of 3 ("), "{message}");
        assert!(message.contains("export.rs:"), "{message}");
        assert_eq!(guard(|| Ok(7)), Ok(7), "the next call is not disturbed");
    }
}
