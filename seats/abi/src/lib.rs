//! The table that a seat's library exports. It is frozen: four fields, in this order, of these types, for good.
//!
//! Why so small: the layout check refuses an older seat as soon as the host's table has one field more, so everything
//! that grows crosses as bytes instead: model facts in, a program out, with a version of its own. A break of this table
//! would be a second crate under another name and a host that tries both.
//!
//! This crate refuses to know what the bytes mean. `bloomery-seat` writes them, `bloomery-seat-host` reads them.

// The function types stand written out in the table: an alias hides them from the derive.
#![allow(clippy::type_complexity)]

pub use abi_stable;

use abi_stable::StableAbi;
use abi_stable::library::RootModule;
use abi_stable::package_version_strings;
use abi_stable::sabi_types::VersionStrings;
use abi_stable::std_types::{ROption, RResult, RSlice, RSliceMut, RStr, RString, RVec};

/// What a seat's library exports.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = SeatRef)))]
pub struct Seat {
    /// JSON about the seat: name, version, licence, architectures, language.
    pub info: RStr<'static>,
    /// Whether a panic can be caught: `cfg!(panic = "unwind")` of the seat's own build.
    pub unwinds: bool,
    /// Model facts in, program out, both JSON; or a message for the operator.
    pub declare: extern "C" fn(RSlice<'_, u8>) -> RResult<RVec<u8>, RString>,
    /// The optional operator on host memory: the call as JSON, operands, results one after another.
    #[sabi(last_prefix_field)]
    pub cpu_op: ROption<
        extern "C" fn(
            RSlice<'_, u8>,
            RSlice<'_, RSlice<'_, f32>>,
            RSliceMut<'_, f32>,
        ) -> RResult<(), RString>,
    >,
}

impl RootModule for SeatRef {
    abi_stable::declare_root_module_statics! {SeatRef}
    const BASE_NAME: &'static str = "seat";
    const NAME: &'static str = "seat";
    const VERSION_STRINGS: VersionStrings = package_version_strings!();
}

/// Name of the symbol that every seat exports, NUL-terminated: abi_stable's own.
pub const SYMBOL: &str = abi_stable::library::ROOT_MODULE_LOADER_NAME_WITH_NUL;
