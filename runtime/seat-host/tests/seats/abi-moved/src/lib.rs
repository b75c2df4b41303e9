//! The frozen table with a field of another type: `unwinds` is a number.

pub use abi_stable;

use abi_stable::StableAbi;
use abi_stable::library::RootModule;
use abi_stable::package_version_strings;
use abi_stable::sabi_types::VersionStrings;
use abi_stable::std_types::{ROption, RResult, RSlice, RSliceMut, RStr, RString, RVec};

#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = SeatRef)))]
pub struct Seat {
    pub info: RStr<'static>,
    pub unwinds: u8,
    pub declare: extern "C" fn(RSlice<'_, u8>) -> RResult<RVec<u8>, RString>,
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
